"""The thread that computes. It alternates among active requests: a chunk or a token per turn.

The model runs one forward pass at a time, so requests share its time instead of its threads: the
request that used the least time has the next turn. A question to a memory file is answered while
a book is read if fewer than `parallel` requests are active and the bound has room.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from contextlib import suppress

from kvstream.errors import KvstreamError
from kvstream.events import AnswerToken, Event, Notice, StepDone
from kvstream.reporters.format import shortened, visible
from kvstream.server.bound import Bound
from kvstream.server.catalog import Catalog
from kvstream.server.client_errors import ApiError, broken, error_for_client, shut_down
from kvstream.server.request_job import Answering, Job, Outcome, Reply, Sent

log = logging.getLogger("kvstream.server")
LONGEST_NAME = 80
"""Characters of the name of a model in a line of the log."""


class Worker:
    """Takes jobs in their order, `parallel` at once, within one bound on bytes."""

    def __init__(
        self, answering: Answering, catalog: Catalog, bound: Bound, parallel: int, queue: int
    ) -> None:
        self.answering, self.catalog, self.bound = answering, catalog, bound
        self.parallel, self.most_waiting = parallel, queue
        self.counts: dict[str, int] = {"done": 0, "failed": 0, "left": 0}
        self._change = threading.Condition()
        self._waiting: list[Job] = []
        self._active: dict[Job, tuple[Generator[Event, None, Reply], int]] = {}
        self.draining = False
        """Whether the server ends and accepts no new requests."""
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="kvstream-worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Put a job into the queue. Raises ApiError if the queue is full or the server ends."""
        with self._change:
            if self.draining:
                raise shut_down(saved=False)
            # A job that is about to begin does not count as waiting.
            free = self.parallel - len(self._active)
            if len(self._waiting) >= self.most_waiting + free:
                unfinished = len(self._active) + len(self._waiting)
                raise ApiError(
                    429,
                    f"{unfinished} requests are already in progress or waiting; try again later.",
                    code="rate_limit_exceeded",
                    retry_after=1,
                )
            self._waiting.append(job)
            self._change.notify()

    def cancel(self, job: Job, count: Outcome = "left") -> None:
        """Stop a job: its client has left, or already knows why the job `failed`."""
        with self._change:
            job.canceled, job.count = True, count
            waited = self._left_queue(job)
            self._change.notify()
        if waited:
            self._count(job, count, "timeout" if count == "failed" else "")

    def _left_queue(self, job: Job) -> bool:
        with self._change:
            waited = job in self._waiting
            if waited:
                self._waiting.remove(job)
        return waited

    def drain(self) -> None:
        """Accept no new requests; waiting ones get an error, those in progress may finish."""
        with self._change:
            self.draining = True
            waiting, self._waiting = self._waiting, []
            self._change.notify()
        for job in waiting:
            self._fail(job, shut_down(saved=False))

    def stop(self) -> None:
        """End the time of active jobs. Their readings are saved if the cache is lasting."""
        self.drain()
        with self._change:
            for job in self._active:
                job.ending = True

    def close(self, seconds: float = 60.0) -> None:
        """Stop, and wait for the chunk that is being read."""
        self.stop()
        with self._change:
            self._ended = True
            self._change.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)

    @property
    def load(self) -> dict[str, int]:
        with self._change:
            return {"active": len(self._active), "waiting": len(self._waiting), **self.counts}

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._active or self._waiting or self._ended)
                if self._ended and not self._active:
                    return
            try:
                self._turn()
            except BaseException as error:
                # There is no other thread: if this one ended, every request would wait forever.
                log.error("A step of the worker failed.", exc_info=error)

    def _turn(self) -> None:
        """Begin the jobs that have room, and advance the job that used the least time."""
        self._admit()
        if not self._active:
            return
        job = min(self._active, key=lambda job: job.spent)
        try:
            self._step(job)
        except BaseException as error:
            self.cancel(job, "failed")  # if it is still active, its next step ends it
            self._send(job, broken(error))
            raise

    def _admit(self) -> None:
        while len(self._active) < self.parallel and (job := next(iter(self._waiting), None)):
            try:
                if job.over and not job.canceled:
                    raise job.error()
                size = self._size(job)
            except Exception as error:
                if self._left_queue(job):
                    self._fail(job, self._error_for_client(error))
                continue
            if not self.bound.fits(size):
                return  # the next jobs wait too: otherwise a large memory would never have its turn
            try:
                with self._change:
                    if not self._left_queue(job):  # the client has left meanwhile
                        continue
                    self._begin(job, size)
            except BaseException as error:
                self._fail(job, broken(error))
                raise

    def _begin(self, job: Job, size: int) -> None:
        job.spent = min((other.spent for other in self._active), default=0.0)
        events = self.answering.events(job)
        job.memory = self.bound.take(size, job.entry)
        self._active[job] = events, size
        job.begun = True

    def _size(self, job: Job) -> int:
        """Return the bytes of the KV cache that a job needs. Raises ApiError, KvstreamError."""
        path = self.catalog.path(job.request.model)
        job.entry = None if path is None else self.catalog.entry(path)
        size = self.answering.bytes if job.entry is None else job.entry.bytes
        self.bound.check(size)
        return size

    def _step(self, job: Job) -> None:
        events, _ = self._active[job]
        if job.canceled:
            try:
                events.close()  # puts memory in order; can itself run out of memory
            finally:
                self._leave(job, job.count)
            return
        began = time.monotonic()
        try:
            event = next(events)
        except StopIteration as stop:
            reply: Reply = stop.value
            self._leave(job, "done")
            self._send(job, reply)
        except BaseException as error:
            if job.canceled:
                self._leave(job, job.count)
            else:
                why = self._error_for_client(error)
                self._leave(job, None)
                self._fail(job, why)
        else:
            if isinstance(event, Notice) and event.loss:  # of a file that no client knows
                log.warning("%s", event.message)
            read = event.seen if isinstance(event, StepDone) else 0
            self._send(job, event if isinstance(event, AnswerToken) else read)
        finally:
            job.spent += time.monotonic() - began

    def _leave(self, job: Job, count: Outcome | None) -> None:
        with self._change:
            _, size = self._active.pop(job)
            self.bound.give_back(size)
            if job.entry is not None and job.memory is not None:
                self.bound.keep(job.entry, job.memory)
            job.memory = None
        if count is not None:
            self._count(job, count)

    def _count(self, job: Job, count: Outcome, code: str = "") -> None:
        """Count a request; log one without an answer, and without its text or the lock."""
        with self._change:
            self.counts[count] += 1
        if count != "done":
            what = "failed" if count == "failed" else "the client left"
            name = shortened(visible(job.request.model), LONGEST_NAME)  # the client chose it
            seconds = time.monotonic() - job.arrived
            log.info("%s: %s after %.2f s%s", name, what, seconds, f" ({code})" if code else "")

    def _fail(self, job: Job, error: ApiError) -> None:
        self._count(job, "failed", error.code)
        # The frames of the traceback hold the memory, which a slow client may keep alive.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        self._send(job, error)

    def _send(self, job: Job, what: Sent) -> None:
        """Pass an event to the client without waiting: no other job may wait for a client."""
        with suppress(RuntimeError):  # the event loop of the server has ended
            job.sink(what)

    def _error_for_client(self, error: BaseException) -> ApiError:
        if not isinstance(error, ApiError | KvstreamError):
            log.error("A request failed.", exc_info=error)
        return error_for_client(error, self.catalog.folder, self.answering.cache.folder)
