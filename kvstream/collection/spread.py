"""Run a job over documents, in this process or on Ray workers, each with one document at a time.

Workers have ``max_restarts=0`` and ``max_task_retries=0`` on purpose: otherwise Ray would silently
restart a worker and its document. Here the driver does it, because it counts how many workers have
ended while they read a document.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstream.collection import serial
from kvstream.collection.cluster import Need, connected, gpus_of, is_lost, room
from kvstream.collection.document_list import Document
from kvstream.collection.job import Job, Task
from kvstream.collection.worker import Place, Refusal, Send, Worker, Workers
from kvstream.errors import KvstreamError
from kvstream.events import CollectionStarted, DocumentFailed, DocumentStarted, Notice, Outcome
from kvstream.version import __version__

if TYPE_CHECKING:
    from kvstream.session.session import Session

STRIKES = 2
"""A document is put aside after this many workers have ended while they read it."""
STARTS = 3
"""The run fails after this many workers in a row have ended before they loaded the model."""
PATIENCE = 120.0
"""Seconds to wait for room for the first worker, and for a new one if all are lost."""
LOOK = 1.0
"""Maximum seconds between two checks for an interrupt by the user."""


def run(
    job: Job,
    documents: Sequence[Document],
    *,
    workers: Workers | None = None,
    session: Session | None = None,
    tell: serial.Tell,
    interrupted: Callable[[], bool],
) -> Iterator[Outcome]:
    """Yield the outcome of every document, without `workers` from this process in turn."""
    if job.into is not None:
        serial.check_folder(job.into)
    if workers is None:
        return serial.read_here(job, documents, session=session, tell=tell, interrupted=interrupted)
    return Spread(job, workers, tell, interrupted).documents(documents)


@dataclass(eq=False)
class _Seat:
    """A worker and its current task."""

    actor: Any
    place: Place | None = None
    ready: bool = False
    """Whether the model is loaded."""
    task: Task | None = None


@dataclass
class Spread:
    """Hands documents to workers and collects outcomes, once."""

    job: Job
    workers: Workers
    tell: serial.Tell
    interrupted: Callable[[], bool]
    ray: Any = None
    actor: Any = None
    number: int = 0
    """Workers that have room."""
    seats: list[_Seat] = field(default_factory=list)
    pending: dict[Any, _Seat] = field(default_factory=dict)
    strikes: Counter[str] = field(default_factory=Counter)
    failed_starts: int = 0
    ready: deque[Task] = field(default_factory=deque)
    marker: Path | None = None

    def __post_init__(self) -> None:
        model = self.job.model
        self.job = replace(self.job, model=replace(model, threads=model.threads or 1))

    def documents(self, documents: Sequence[Document]) -> Iterator[Outcome]:
        """Yield the outcome of every document. Raises KvstreamError."""
        count = self.workers.count(len(documents), self.tell)
        self.tell(CollectionStarted(len(documents), sum(d.bytes for d in documents), count))
        longest = sorted(documents, key=lambda d: (-d.bytes, d.name))
        items = serial.todo(self.job, longest, digests=self.workers.elsewhere)
        # A cluster takes seconds to start, and there may be nothing left to read.
        for item in items:
            if isinstance(item, Task):
                yield from self.tasks(chain([item], items), count)
                return
            yield item

    def tasks(self, items: Iterator[Task | Outcome], count: int) -> Iterator[Outcome]:
        """Yield the outcomes of `count` workers, or as many as fit, until the user interrupts.

        Raises KvstreamError.
        """
        threads = self.job.model.threads or 1
        with connected(self.workers.address, threads * count) as ray:
            gpus = gpus_of(ray, self.job.model.device, count)
            need = Need(threads, self.workers.memory, gpus)
            number = min(count, room(ray, need))
            if self.workers.number is not None and number < count:
                message = f"Only {number} of {count} workers have room: each needs {need}."
                self.tell(Notice(message))
            options = {**need.options(), "max_restarts": 0, "max_task_retries": 0}
            self.actor, self.ray, self.number = ray.remote(Worker).options(**options), ray, number
            if self.workers.elsewhere and self.job.makes_memories:
                self._mark()
            try:
                yield from self._run(items)
            finally:
                for seat in self.seats:
                    self._end(seat)
                if self.marker is not None:
                    self.marker.unlink(missing_ok=True)

    def _run(self, items: Iterator[Task | Outcome]) -> Iterator[Outcome]:
        alone_since, more = time.monotonic(), True
        while True:
            if self.interrupted():
                self.ready.clear()
                more = False
            # At most one task per worker waits, so that a long list is not read in advance.
            while more and len(self.ready) < self.number:
                item = next(items, None)
                if item is None:
                    more = False
                elif isinstance(item, Task):
                    self.ready.append(item)
                else:
                    yield item
            busy = sum(seat.task is not None for seat in self.seats)
            if not busy and not self.ready:
                return
            while len(self.seats) < min(self.number, busy + len(self.ready)):
                seat = _Seat(self.actor.remote(self.job, self.workers.open_reader))
                self.seats.append(seat)
                marker = None if self.marker is None else str(self.marker)
                self.pending[seat.actor.place.remote(marker)] = seat
            for seat in self.seats:
                if seat.ready and seat.task is None and self.ready:
                    self._give(seat, self.ready.popleft())
            try:
                done, _ = self.ray.wait([*self.pending], num_returns=1, timeout=LOOK)
            except self.ray.exceptions.RayError as error:
                raise KvstreamError(
                    f"The cluster is gone ({' '.join(str(error).split())[:200]}). Start it and run "
                    "the command again: it continues where it stopped."
                ) from error
            for reference in done:
                if outcome := self._handle(reference, self.pending.pop(reference)):
                    yield outcome
            if any(seat.place for seat in self.seats):
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > PATIENCE:
                raise KvstreamError(
                    f"No worker was started in {PATIENCE:.0f} seconds: others use the cluster, or "
                    "its machines are gone (ray status). Run the command again later: it "
                    "continues where it stopped."
                )

    def _give(self, seat: _Seat, task: Task, data: bytes | None = None) -> None:
        seat.task = task
        self.pending[seat.actor.read.remote(task, data)] = seat
        if data is None and seat.place is not None:
            name, size = task.document.name, task.document.bytes
            self.tell(DocumentStarted(name, size, seat.place.machine, seat.place.process))

    def _handle(self, reference: Any, seat: _Seat) -> Outcome | None:
        """Return the outcome of a call, or None. Raises KvstreamError for errors of all workers."""
        try:
            value = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            return self._dead(seat, str(error).strip().splitlines()[-1])
        except self.ray.exceptions.RayError as error:
            return self._dead(seat, " ".join(str(error).split()))
        if isinstance(value, Place):
            self._check(value)
            seat.place = value
            self.pending[seat.actor.load.remote()] = seat
            return None
        if isinstance(value, Refusal):
            assert seat.place is not None
            failure = KvstreamError(f"On {seat.place.machine}: {value.reason}")
            failure.exit_code = value.exit_code
            raise failure
        if seat.task is None:  # the model is loaded
            seat.ready, self.failed_starts = True, 0
            return None
        task, seat.task = seat.task, None
        if not isinstance(value, Send):
            return serial.with_answers_written(self.job, task, value)
        try:
            data = Path(task.place).read_bytes()
        except OSError as error:
            return serial.unread(task.document, error)
        self._give(seat, task, data)
        return None

    def _dead(self, seat: _Seat, reason: str) -> Outcome | None:
        """Remove a worker that has ended, and read its document again or put it aside."""
        self._end(seat)
        self.seats.remove(seat)
        if seat.task is None:
            self.failed_starts += not self._lost(seat)
            if self.failed_starts >= STARTS:
                raise KvstreamError(
                    f"{STARTS} workers in a row ended before they had loaded the model: "
                    f"{reason[:500]}"
                )
            return None
        task, name = seat.task, seat.task.document.name
        if not self._lost(seat):  # a lost machine is not the fault of the document
            self.strikes[name] += 1
        if self.strikes[name] < STRIKES:
            self.ready.appendleft(task)
            return None
        del self.strikes[name]
        return DocumentFailed(
            name,
            f"Put aside: {STRIKES} workers ended while they read it. Read it alone, without "
            f"--workers, to see why. ({reason[:300]})",
        )

    def _lost(self, seat: _Seat) -> bool:
        return seat.place is not None and is_lost(self.ray, seat.place.node)

    def _end(self, seat: _Seat) -> None:
        with suppress(Exception):  # the worker or the cluster may be gone
            self.ray.kill(seat.actor)

    def _check(self, place: Place) -> None:
        if place.version != __version__:
            raise KvstreamError(
                f"{place.machine} has kvstream {place.version}, and this machine {__version__}: "
                "install the same version on all machines."
            )
        if not place.sees_results:
            raise KvstreamError(
                f"{place.machine} does not see the folder {self.job.into}; choose one with -o "
                "that all machines share."
            )

    def _mark(self) -> None:
        """Write a file by which workers check that they see the folder of the results."""
        assert self.job.into is not None
        self.marker = self.job.into / f".{uuid.uuid4().hex}.run"
        self.marker.touch()
