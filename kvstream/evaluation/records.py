"""Every trial of a benchmark as one line of JSON, so that no trial is measured twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from kvstream.errors import KvstreamError, UsageError

Record = dict[str, Any]
CASE_KEYS = (
    "model", "method", "settings", "budget", "schedule", "chunk", "keep", "start", "chunk_size",
    "budget_bytes",
)  # fmt: skip
"""Fields of a record that distinguish the cases."""


def digest(value: object) -> str:
    """Return a short digest of what a trial measures; the `repr` of `value` must tell all of it."""
    return hashlib.sha256(repr(value).encode("utf-8", "replace")).hexdigest()[:12]


def grouped(records: Iterable[Record], keys: Iterable[str] = CASE_KEYS) -> list[list[Record]]:
    """Group the records with the same values of `keys`, in the order of their first records."""
    names = list(keys)
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(repr([record.get(name) for name in names]), []).append(record)
    return list(groups.values())


class SavedRecord(dict[str, Any]):
    """An object of a file of records. A missing key is a UsageError that names the line."""

    __slots__ = ("place",)

    def __init__(self, values: Record, place: str) -> None:
        super().__init__(values)
        self.place = place

    def __missing__(self, key: str) -> NoReturn:
        raise UsageError(
            f"{self.place} has no {key!r}. Remove the line, and the same command measures it again."
        )


@dataclass(frozen=True)
class Trial:
    identity: Record
    """Everything that the result depends on, as plain JSON. Equal identities are the same trial."""
    run: Callable[[], Record]
    """Measures the trial. Its result is recorded with the identity."""
    renew: Callable[[Record], Record] = dict
    """Computes the scores of a record again from its saved data, because metrics may be newer."""
    content: str = ""
    """A digest of the data, if the identity has only their name."""

    @property
    def key(self) -> str:
        """A short key of the identity, the same in every run."""
        text = json.dumps(self.identity, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]


class Records:
    """An NDJSON file of trials, appended after each trial. Without a path, nothing is saved."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.by_key: dict[str, SavedRecord] = {}
        self.reuses = 0
        """Number of trials that did not have to run."""
        self.refusals: list[KvstreamError] = []
        self._cut_short = False
        if path is None:
            return
        try:
            # A device or a pipe has no records; reading it may never end.
            data = path.read_bytes() if path.is_file() else b""
            if b"\0" in data:
                raise ValueError("it is a binary file")
            # Another program's file is not altered. A stopped run may have left a part of a line.
            # Bytes, because a line may be cut within a character. Not splitlines: some of its line
            # ends occur inside JSON strings.
            lines = data.split(b"\n")
            starts = {line[:6] for line in lines if line.strip()}
            if starts and not any(map(b'{"key"'.startswith, starts)):
                raise ValueError("it has no records of a benchmark")
            path.open("a").close()  # fail now if the file is not writable, not after an hour
        except (OSError, ValueError) as error:
            raise KvstreamError(
                f"Cannot keep records in {path}: {error}. Choose another file for --save."
            ) from error
        self._cut_short = bool(data) and not data.endswith(b"\n")
        for number, line in enumerate(lines, 1):
            entry = partial(SavedRecord, place=f"{path}, line {number}")
            try:
                record = json.loads(line, object_hook=entry)
                self.by_key[record["key"] + record.get("content", "")] = record
            except (ValueError, TypeError, UsageError):
                continue  # an unfinished line of a stopped run, or a foreign line

    def add(self, key: str, record: Record) -> None:
        """Append a record; it is on disk when this returns."""
        if self.path is None:
            return
        start = "\n" if self._cut_short else ""
        self._cut_short = False
        try:
            # A character that UTF-8 cannot encode, a lone surrogate, becomes its escape in JSON.
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{start}{json.dumps({'key': key, **record}, ensure_ascii=False)}\n")
        except OSError as error:
            raise KvstreamError(
                f"Cannot write {self.path}: {error.strerror}. What was measured before is in it; "
                "make room, and the same command resumes there."
            ) from error


def measure(trials: Iterable[Trial], records: Records) -> Iterator[Record]:
    """Yield the record of every trial, in order: renewed if known; refused ones are not saved."""
    for trial in trials:
        old = records.by_key.get(trial.key + trial.content)
        if old is not None:
            records.reuses += 1
            for name in trial.identity:
                old[name]  # a missing one is told here, before the rows need it
            yield SavedRecord(trial.renew(old), old.place)
            continue
        content = {"content": trial.content} if trial.content else {}
        record = {**trial.identity, **content}
        try:
            record |= trial.run()
        except KvstreamError as error:
            records.refusals.append(error)
            yield {**record, "error": str(error)}
            continue
        records.add(trial.key, record)
        yield record


def left_out(group: Sequence[Record]) -> Record:
    """Return how many trials of a case could not be measured, and the first reason."""
    errors = [record["error"] for record in group if "error" in record]
    return {"left_out": len(errors), "error": errors[0]} if errors else {}
