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
    "budget_bytes",
)  # fmt: skip
"""Fields of a record that distinguish the cases."""


def digest(value: object) -> str:
    """Short for what a trial measures; `value` has a `repr` that tells all of it."""
    return hashlib.sha256(repr(value).encode("utf-8", "replace")).hexdigest()[:12]


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
    content: str = ""
    """A digest of the data, where the identity has only their name."""

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
        self._of_earlier: dict[str, str] = {}
        """Whose data a record without a digest was taken to be of."""
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
        # Not splitlines: some of the line ends that it knows stand in the middle of JSON strings.
        for line in text.split("\n"):
            try:
                record = json.loads(line)
                self.known[record["key"] + record.get("content", "")] = record
            except (ValueError, TypeError, KeyError):
                continue  # a line that a stopped run left unfinished, or not one of ours

    def find(self, trial: Trial) -> Record | None:
        """The record of a trial.

        One without a digest of its data is of an earlier version: it is the first's of trials that
        differ in their data alone.
        """
        own = self.known.get(trial.key + trial.content)
        if own is not None or trial.key not in self.known:
            return own
        first = self._of_earlier.setdefault(trial.key, trial.content)
        return self.known[trial.key] if first == trial.content else None

    def add(self, key: str, record: Record) -> None:
        """Append a record; it is on disk when this returns."""
        if self.path is None:
            return
        start = "\n" if self._cut_short else ""
        self._cut_short = False
        try:
            # What UTF-8 cannot hold, a half of a pair, becomes its escape in JSON.
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{start}{json.dumps({'key': key, **record}, ensure_ascii=False)}\n")
        except OSError as error:
            raise KvstreamError(
                f"Cannot write {self.path}: {error.strerror}. What was measured before is in it; "
                "make room, and the same command resumes there."
            ) from error


def measure(trials: Iterable[Trial], records: Records) -> Iterator[Record]:
    """The record of every trial, in order; those already known are not run again, but renewed."""
    for trial in trials:
        known = records.find(trial)
        if known is not None:
            records.reused += 1
            yield trial.renew(known)
            continue
        content = {"content": trial.content} if trial.content else {}
        record = {**trial.identity, **content, **trial.run()}
        records.add(trial.key, record)
        yield record
