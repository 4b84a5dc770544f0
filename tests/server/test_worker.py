"""The worker thread, with stand-ins for a model: no failure of a job ends it."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from kvstream.api.options import Request
from kvstream.errors import KvstreamError
from kvstream.events import Answered, AnswerToken, Notice
from kvstream.server.bound import Bound
from kvstream.server.client_errors import ApiError
from kvstream.server.compute_thread import Worker
from kvstream.server.request_job import Answering, Job, Reply
from kvstream.server.routes import _Talk
from kvstream.server.schema import ChatRequest
from kvstream.settings import Budget

SIZE = 10
"""Bytes of one job and of the whole bound, so one job runs at a time."""
Events = Generator[Any, None, Any]


class Asked:
    """A job, its events, and what its client received."""

    def __init__(self, events: Callable[[], Events], fails: type[Exception] | None = None) -> None:
        self.events, self._fails = events, fails
        self.got: list[Any] = []
        self.came = threading.Event()
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        self.job = Job(ChatRequest.model_validate(body), self._sink, 60.0)

    def _sink(self, what: Any) -> None:
        self.got.append(what)
        self.came.set()
        if self._fails is not None:
            raise self._fails("the client's queue is broken")


class Workplace:
    """A worker whose jobs are stand-ins."""

    def __init__(self) -> None:
        self.jobs: dict[Job, Asked] = {}
        cache = SimpleNamespace(folder=None)
        answering: Any = SimpleNamespace(
            events=lambda job: self.jobs[job].events(), bytes=SIZE, cache=cache
        )
        catalog: Any = SimpleNamespace(path=lambda name: None, folder=None)
        self.worker = Worker(answering, catalog, Bound(SIZE), parallel=1, queue=4)

    def ask(self, events: Callable[[], Events], **more: Any) -> Asked:
        asked = Asked(events, **more)
        self.jobs[asked.job] = asked
        self.worker.submit(asked.job)
        return asked

    def answers(self) -> bool:
        """Return whether the next job is answered."""
        asked = self.ask(answered)
        return asked.came.wait(10) and asked.got == ["a reply"]

    @property
    def counts(self) -> tuple[int, int, int]:
        load = self.worker.load
        assert (load["active"], load["waiting"], self.worker.bound.working) == (0, 0, 0)
        return load["done"], load["failed"], load["left"]


@pytest.fixture
def place() -> Iterator[Workplace]:
    place = Workplace()
    place.worker.start()
    yield place
    for job in place.jobs:
        place.worker.cancel(job)
    place.worker.close(10)


def answered() -> Events:
    yield from ()
    return "a reply"


def failing() -> Events:
    yield Notice("at work")
    raise ValueError("an answer fails")


def endless() -> Events:
    while True:
        yield Notice("at work")


def cleaned_up_in_vain() -> Events:
    try:
        yield from endless()
    finally:
        raise RuntimeError("out of memory")


def test_a_job_whose_cleanup_fails_leaves_and_the_next_one_begins(place, logged) -> None:
    asked = place.ask(cleaned_up_in_vain)
    assert asked.came.wait(10)
    place.worker.cancel(asked.job)
    assert place.answers()
    assert place.counts == (1, 0, 1)
    assert "out of memory" in logged.text


def test_a_job_whose_events_cannot_be_sent_ends_and_the_next_one_begins(place, logged) -> None:
    closed = threading.Event()

    def events() -> Events:
        try:
            yield from endless()
        finally:
            closed.set()

    asked = place.ask(events, fails=ValueError)
    assert closed.wait(10)
    assert place.answers()
    # The second item is the error that the client gets because sending the first failed.
    assert (len(asked.got), place.counts) == (2, (1, 1, 0))
    assert "the client's queue is broken" in logged.text


@pytest.mark.parametrize(
    ("where", "events"),
    [
        ("_error_for_client", failing),
        ("_leave", answered),
        ("_begin", answered),
        ("_admit_size", answered),
    ],
    ids=["the error", "the end", "the beginning", "the size"],
)  # fmt: skip
def test_a_job_whose_step_fails_in_the_worker_is_told(place, monkeypatch, where, events) -> None:
    """Otherwise its client would wait forever."""
    worker = place.worker
    name = {"_admit_size": "_size"}.get(where, where)
    own, failed = getattr(worker, name), []

    def once(*given: Any) -> Any:
        if not failed:
            failed.append(where)
            raise MemoryError("no memory for that")
        return own(*given)

    monkeypatch.setattr(worker, name, once)
    asked = place.ask(events)
    assert asked.came.wait(10)
    assert place.answers()
    *before, error = asked.got
    assert len(before) == (1 if events is failing else 0)
    assert error.status in (500, 503)
    assert place.counts == (1, 1, 0)


def test_a_checkpoint_that_cannot_be_written_is_logged(place, logged) -> None:
    def events() -> Events:
        yield Notice("The disk is full.", note=True, loss=True)
        return "a reply"

    asked = place.ask(events)
    assert place.answers()
    assert asked.got[-1] == "a reply"
    assert logged.messages == ["The disk is full."]


def test_a_job_that_was_told_that_time_is_over_counts_as_failed(place) -> None:
    """True for running and waiting jobs: a job can begin just when its client gets the error."""
    at_work = place.ask(endless)
    assert at_work.came.wait(10)
    waiting, gone = place.ask(endless), place.ask(endless)
    place.worker.cancel(waiting.job, "failed")
    place.worker.cancel(gone.job)
    place.worker.cancel(at_work.job, "failed")
    assert place.answers()
    assert place.counts == (1, 2, 1)


def test_the_log_has_a_line_for_each_request_without_an_answer(place, logged) -> None:
    def refused() -> Events:
        yield from ()
        raise ApiError(404, "There is no such model.", code="model_not_found")

    logging.getLogger("kvstream.server").setLevel(logging.INFO)
    failed = place.ask(refused)
    assert failed.came.wait(10)
    gone = place.ask(endless)
    assert gone.came.wait(10)
    waiting = place.ask(endless)
    place.worker.cancel(waiting.job, "failed")
    gone.job.request.model = "m\nListening" * 20
    place.worker.cancel(gone.job)
    assert place.answers()
    first, late, second = logged.messages
    assert re.fullmatch(r"m: failed after \d+\.\d\d s \(timeout\)", late)
    assert re.fullmatch(r"m: failed after \d+\.\d\d s \(model_not_found\)", first)
    assert re.fullmatch(r"m Listening.*: the client left after \d+\.\d\d s", second)
    assert len(second) < 200


def test_a_line_of_the_log_is_written_without_the_lock(place) -> None:
    free: list[bool] = []

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            other = threading.Thread(target=lambda: place.worker.load, daemon=True)
            other.start()
            other.join(1)
            free.append(not other.is_alive())

    log, handler = logging.getLogger("kvstream.server"), Slow()
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        assert place.ask(failing).came.wait(10)
        at_work = place.ask(endless)
        assert at_work.came.wait(10)
        waiting = place.ask(endless)
        place.worker.cancel(waiting.job)
        place.ask(endless)
        place.worker.drain()
        place.worker.cancel(at_work.job)
        place.worker.close()
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
    assert len(free) >= 4
    assert all(free)


def test_a_client_that_leaves_before_its_stream_begins_stops_the_job() -> None:
    """The framework does not iterate over the pieces then."""

    async def canceled() -> list[Job]:
        found: list[Job] = []
        left = asyncio.Event()

        async def receive() -> dict[str, str]:
            await left.wait()
            return {"type": "http.disconnect"}

        worker = SimpleNamespace(
            submit=lambda job: job.sink(Notice("at work")),
            cancel=lambda job, count: found.append(job),
        )
        service: Any = SimpleNamespace(worker=worker, settings=SimpleNamespace(timeout=60.0))
        request: Any = SimpleNamespace(client=None, scope={}, receive=receive)
        body = Asked(endless).job.request
        await _Talk(service, body, request).streamed()
        left.set()
        await asyncio.sleep(0.01)
        return found

    assert len(asyncio.run(canceled())) == 1


# Retrying an answer.


class Standing:
    """A model, its memories and the cache. A cached memory fails after `tokens` tokens."""

    name, read_tokens, entries, most, folder = "m", 1, 1, 1, None
    scouting = None

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.made = 0
        """Number of memories that were read again."""

    def room_of(self, request: Request) -> int:
        return (request.run.budget or Budget(tokens=8)).tokens or 0

    def count(self, text: str) -> int:
        return len(text.split())

    def find(self, key: str) -> Path:
        return Path("kept.kvs")

    def recall(self, path: Path) -> Any:
        return SimpleNamespace(read_tokens=1, entries=1, lost=False, stream=self._fails)

    def checkpoint(self, key: str) -> None:
        return None

    def save(self, key: str, memory: Any) -> None:
        pass

    def memory_of(self, sources: Any, request: Request) -> Events:
        self.made += 1
        yield from ()
        return SimpleNamespace(read_tokens=1, entries=1, lost=False, stream=self._answers)

    def _fails(self, question: str, **options: Any) -> Events:
        yield from [AnswerToken("Ada", 1)] * self.tokens
        raise KvstreamError("The cache became infinite.")

    def _answers(self, question: str, **options: Any) -> Events:
        yield AnswerToken("Ada", 1)
        yield Answered(SimpleNamespace(answer="Ada", warnings=()))  # type: ignore[arg-type]


def tried(tokens: int, stream: bool | None) -> tuple[Standing, list[Any], Events]:
    """Return stand-ins, an empty list, and the events of a job that fails after some tokens."""
    standing: Any = Standing(tokens)
    answering = Answering(standing, Request(), standing)
    talk = [("user", "Ada hid it.\n\nWho?"), ("assistant", "Ada"), ("user", "And where?")]
    messages = [{"role": role, "content": content} for role, content in talk]
    body = {"model": "m", "messages": messages, "stream": stream}
    job = Job(ChatRequest.model_validate(body), lambda sent: None, 60.0)
    return standing, [], answering.events(job)


def test_an_answer_of_which_a_stream_has_sent_tokens_is_not_begun_again() -> None:
    standing, sent, events = tried(2, stream=True)
    with pytest.raises(KvstreamError, match="infinite"):
        sent.extend(events)
    assert [event.text for event in sent] == ["Ada", "Ada"]
    assert standing.made == 0


@pytest.mark.parametrize(("tokens", "stream"), [(0, True), (0, None), (2, None), (2, False)])
def test_an_answer_of_which_nothing_was_sent_is_tried_again(tokens, stream) -> None:
    """A client without a stream gets only the reply, so tokens of a failed try do not matter."""
    standing, _, events = tried(tokens, stream)
    reply = None
    while reply is None:
        try:
            next(events)
        except StopIteration as end:
            reply = end.value
    assert isinstance(reply, Reply)
    assert (reply.result.answer, standing.made) == ("Ada", 1)
