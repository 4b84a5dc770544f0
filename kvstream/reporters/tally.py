"""Counts and sums of a run over many documents, in bounded space."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvstream import events
from kvstream.events import CollectionEvent, DocumentDone, DocumentFailed, DocumentStarted

RANKED = 20
"""Maximum number of documents in the table at the end; the results have all."""
LISTED = 20
"""Maximum number of failures listed at the end; each was reported when it happened."""
SHOWN = 200
"""Maximum number of characters of an answer in the table."""


@dataclass(order=True)
class Ranked:
    """A row of the table; rows with lower values are worse."""

    support: float
    order: int
    """Negative number of the document: among equals, the document done first is the best."""
    name: str = field(compare=False)
    answer: str = field(compare=False)
    warned: bool = field(compare=False)


@dataclass
class Tally:
    """Counts the progress of a run. The clock starts with the first document."""

    clock: Callable[[], float] = time.monotonic
    documents: int = 0
    bytes: int = 0
    workers: int = 0
    done: int = 0
    present: int = 0
    """Documents of `done` that an earlier run wrote."""
    failed: int = 0
    read: int = 0
    """Tokens of the documents that this run read."""
    retained: int = 0
    budget: int = 0
    """Entries per head."""
    peak: int = 0
    """Maximum number of entries that any head held."""
    bytes_read: int = 0
    running: dict[str, tuple[DocumentStarted, float]] = field(default_factory=dict)
    """Documents being read, with the time when each began."""
    steps: dict[str, events.DocumentStep] = field(default_factory=dict)
    """The last step of each document that this process reads."""
    failures: list[DocumentFailed] = field(default_factory=list)
    best: list[Ranked] = field(default_factory=list)
    """A heap of at most `RANKED` rows."""
    began: float | None = None
    code: int = 0
    """Exit code of the first failure."""

    def add(self, event: CollectionEvent) -> None:
        """Count one event."""
        if isinstance(event, events.CollectionStarted):
            self.documents, self.bytes, self.workers = event.documents, event.bytes, event.workers
        elif isinstance(event, DocumentStarted):
            now = self.clock()
            self.began = now if self.began is None else self.began
            self.running[event.name] = event, now
        elif isinstance(event, events.DocumentStep):
            self.steps[event.name] = event
        elif isinstance(event, DocumentDone):
            self._ended(event.name)
            self._done(event)
        elif isinstance(event, DocumentFailed):
            self._ended(event.name)
            self.failed += 1
            self.code = self.code or event.exit_code
            if len(self.failures) < LISTED:
                self.failures.append(event)

    @property
    def left(self) -> int:
        """Number of documents that have not begun."""
        return max(0, self.documents - self.done - self.failed - len(self.running))

    @property
    def seconds(self) -> float:
        """Seconds since the first document began."""
        return 0.0 if self.began is None else self.clock() - self.began

    @property
    def speed(self) -> float:
        """Tokens per second over the run, of all workers together."""
        read = self.read + sum(step.tokens for step in self.steps.values())
        return read / max(self.seconds, 1e-9)

    @property
    def progress(self) -> float:
        """Share of documents that are done or failed, with shares of those being read: 0 to 1."""
        ended = self.done + self.failed + sum(step.share for step in self.steps.values())
        return min(1.0, ended / max(1, self.documents))

    @property
    def seconds_left(self) -> float | None:
        """Estimate by the bytes read; None without any, or with results of an earlier run."""
        read = self.bytes_read + sum(
            step.share * self.running[name][0].bytes
            for name, step in self.steps.items()
            if name in self.running
        )
        if not read or self.present:
            return None
        return self.seconds * max(0, self.bytes - read) / read

    def _ended(self, name: str) -> None:
        self.steps.pop(name, None)
        started = self.running.pop(name, None)
        if started is not None:
            self.bytes_read += started[0].bytes

    def _done(self, event: DocumentDone) -> None:
        self.done += 1
        self.present += event.present
        first = next((r for r in event.records if "tokens" in r), None)
        if first is not None and not event.present:
            self.read += event.tokens
            self.retained += first["tokens"]["retained"]
            self.budget = max(self.budget, first["budget"]["tokens"])
            self.peak = max(
                self.peak, *(r["peak"]["kv_tokens"] for r in event.records if "peak" in r)
            )
        if event.support is None or first is None:
            return
        answer = " / ".join(str(r.get("answer", "")) for r in event.records)
        row = Ranked(
            event.support,
            -self.done,
            event.name,
            " ".join(answer.split())[:SHOWN],
            any(r.get("warnings") for r in event.records),
        )
        if len(self.best) < RANKED:
            heapq.heappush(self.best, row)
        else:
            heapq.heappushpop(self.best, row)
