"""What is known of a run over many documents: counts and sums, however many there are."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvstream.events import (
    CollectionEvent,
    CollectionStarted,
    DocumentDone,
    DocumentFailed,
    DocumentStarted,
    DocumentStep,
)

RANKED = 20
"""Documents of the table at the end; the results have them all."""
LISTED = 20
"""Failures that are listed again at the end; each was reported when it happened."""
SHOWN = 200
"""Characters of an answer that are kept for the table."""


@dataclass(order=True)
class Ranked:
    """A row of the table; less is worse."""

    support: float
    order: int
    """Documents that were done first stand first among equals; less is later."""
    name: str = field(compare=False)
    answer: str = field(compare=False)
    tokens: int = field(compare=False)
    warned: bool = field(compare=False)


@dataclass
class Tally:
    """Counts what is done; the clock begins with the first document."""

    clock: Callable[[], float] = time.monotonic
    documents: int = 0
    bytes: int = 0
    workers: int = 0
    done: int = 0
    present: int = 0
    """Of those that are done: from an earlier run."""
    failed: int = 0
    read: int = 0
    """Tokens of the documents that were read now."""
    retained: int = 0
    budget: int = 0
    """Entries a head."""
    peak: int = 0
    """The most entries that any head held."""
    bytes_read: int = 0
    running: dict[str, tuple[DocumentStarted, float]] = field(default_factory=dict)
    """When each began."""
    steps: dict[str, int] = field(default_factory=dict)
    """Tokens so far of documents that are being read in this process."""
    shares: dict[str, float] = field(default_factory=dict)
    """How much of each of them has been read: 0 to 1."""
    failures: list[DocumentFailed] = field(default_factory=list)
    best: list[Ranked] = field(default_factory=list)
    """A heap."""
    began: float | None = None
    code: int = 0
    """Exit code of the first failure."""

    def add(self, event: CollectionEvent) -> None:
        """One more event."""
        if isinstance(event, CollectionStarted):
            self.documents, self.bytes, self.workers = event.documents, event.bytes, event.workers
        elif isinstance(event, DocumentStarted):
            now = self.clock()
            self.began = now if self.began is None else self.began
            self.running[event.name] = event, now
        elif isinstance(event, DocumentStep):
            self.steps[event.name] = event.tokens
            self.shares[event.name] = event.share
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
        """Documents that have not begun."""
        return max(0, self.documents - self.done - self.failed - len(self.running))

    @property
    def seconds(self) -> float:
        """Since the first document began."""
        return 0.0 if self.began is None else self.clock() - self.began

    @property
    def speed(self) -> float:
        """Tokens a second over the run, of all workers together."""
        return (self.read + sum(self.steps.values())) / max(self.seconds, 1e-9)

    @property
    def progress(self) -> float:
        """Documents that are ended, with the shares of those that are being read: 0 to 1."""
        ended = self.done + self.failed + sum(self.shares.values())
        return min(1.0, ended / max(1, self.documents))

    @property
    def seconds_left(self) -> float | None:
        """By the bytes that have been read; None while that says nothing."""
        read = self.bytes_read + sum(
            self.shares.get(name, 0.0) * event.bytes for name, (event, _) in self.running.items()
        )
        if not read or self.present:
            return None
        return self.seconds * max(0, self.bytes - read) / read

    def ranking(self) -> list[Ranked]:
        """The documents whose answers the text supports most, the best first."""
        return sorted(self.best, reverse=True)

    def _ended(self, name: str) -> None:
        self.steps.pop(name, None)
        self.shares.pop(name, None)
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
            event.tokens,
            any(r.get("warnings") for r in event.records),
        )
        if len(self.best) < RANKED:
            heapq.heappush(self.best, row)
        else:
            heapq.heappushpop(self.best, row)
