"""Every trial of a benchmark as one line of JSON: nothing that was measured is measured again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstream.errors import KvstreamError

Record = dict[str, Any]
CASE_KEYS = (
    "model", "method", "settings", "budget", "schedule", "chunk", "keep", "start", "chunk_size",
)  # fmt: skip
"""Fields of a record that distinguish the cases."""


def grouped(records: Iterable[Record], keys: Iterable[str] = CASE_KEYS) -> list[list[Record]]:
    """The records with the same values of `keys` together, in the order of their first ones."""
    names = list(keys)
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(repr([record.get(name) for name in names]), []).append(record)
    return list(groups.values())


@dataclass(frozen=True)
class Trial:
    """One thing to measure."""

    identity: Record
    """All that the outcome depends on; plain JSON. Equal identities are the same trial."""
    run: Callable[[], Record]
    """Measures it; what it returns is recorded beside the identity."""
    renew: Callable[[Record], Record] = dict
    """Computes the scores of a record anew from what it keeps: metrics may have come since."""

    @property
    def key(self) -> str:
        """A short name of the identity, the same in every run."""
        text = json.dumps(self.identity, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]


class Records:
    """An NDJSON file of trials, appended to as they end; without a path, nothing is kept."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.known: dict[str, Record] = {}
        self.reused = 0
        """Trials that did not have to be run."""
        self._cut_short = False
        if path is None:
            return
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            path.open("a").close()  # found unwritable now, not after an hour
        except (OSError, UnicodeDecodeError) as error:
            raise KvstreamError(
                f"Cannot keep records in {path}: {error}. Choose another file for --save."
            ) from error
        self._cut_short = bool(text) and not text.endswith("\n")
        for line in text.splitlines():
            try:
                record = json.loads(line)
                self.known[record["key"]] = record
            except (ValueError, TypeError, KeyError):
                continue  # a line that a stopped run left unfinished, or not one of ours

    def add(self, key: str, record: Record) -> None:
        """Append a record; it is on disk when this returns."""
        if self.path is None:
            return
        start = "\n" if self._cut_short else ""
        self._cut_short = False
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{start}{json.dumps({'key': key, **record}, ensure_ascii=False)}\n")
        except OSError as error:
            raise KvstreamError(
                f"Cannot write {self.path}: {error.strerror}. What was measured before is in it; "
                "make room, and the same command resumes there."
            ) from error


def measure(trials: Iterable[Trial], records: Records) -> Iterator[Record]:
    """The record of every trial, in order; those already known are not run again, but renewed."""
    for trial in trials:
        key = trial.key
        known = records.known.get(key)
        if known is not None:
            records.reused += 1
            yield trial.renew(known)
            continue
        record = {**trial.identity, **trial.run()}
        records.add(key, record)
        yield record
