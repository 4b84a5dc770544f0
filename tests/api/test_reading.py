"""Readings as events: progress, interrupts, and the same results as `read`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from snippets import BOOK

import kvstream
from kvstream.api.memory import checkpoint_tokens, inspect
from kvstream.api.model import Model
from kvstream.errors import SourceError, UsageError
from kvstream.events import Answered, Event, Notice, Started, StepDone, changed, returned

SMALL = {"budget": 300, "max_tokens": 8}
QUESTION = "Who hid the letter?"


@pytest.fixture(scope="module")
def model(session) -> Model:
    return Model(session)


def finished(reading):
    events: list = []
    return events, returned(reading, events.append)


def test_a_reading_gives_its_events_and_the_memory_of_read(model) -> None:
    text = BOOK * 40
    events, memory = finished(model.reading(text=text, questions=[QUESTION], **SMALL))
    plain = model.read(text=text, questions=[QUESTION], **SMALL)
    assert isinstance(events[0], Started)
    assert sum(e.chunk for e in events if isinstance(e, StepDone)) == memory.read_tokens
    assert memory.ask(QUESTION).text == plain.ask(QUESTION).text
    more, same = finished(memory.reading(text="\nBob saw it."))
    assert same is memory
    assert any(isinstance(e, StepDone) for e in more)
    plain.read(text="\nBob saw it.")
    assert memory.ask(QUESTION).to_json()["tokens"] == plain.ask(QUESTION).to_json()["tokens"]


@pytest.mark.parametrize("kind", ["log", "iterator"])
def test_an_interrupt_stops_what_does_not_end_by_itself(model, tmp_path, kind: str) -> None:
    """Two sources of unknown length: a log, which is thinned, and a long iterator."""
    log, steps = tmp_path / "web.log", []
    lines = (f"2026-11-22 03:{i // 60:02d}:{i % 60:02d} INFO {i:x} {i * 79:x}" for i in range(3000))
    log.write_text("\n".join(lines))
    endless = (f"The key number {n} is red.\n" for n in range(10_000))
    given = {"source": log} if kind == "log" else {"text": endless}
    stops = {"interrupted": lambda: len(steps) > 2, "progress": steps.append}
    memory = model.read(**given, **stops, **SMALL)
    assert memory.read_tokens < 1500
    assert "stopped" in memory.warnings[0]


def test_the_bytes_of_an_interrupted_memory_are_those_that_were_read(model, tmp_path) -> None:
    steps: list = []
    stops = {"interrupted": lambda: len(steps) > 1, "progress": steps.append}
    memory = model.read(text=BOOK * 40, **stops, **SMALL)
    some, whole = memory.bytes_read
    assert model.count((BOOK * 40)[:some]) == memory.read_tokens
    assert some == whole < len(BOOK) * 40
    memory.save(tmp_path / "some.kvs")
    recalled = model.recall(tmp_path / "some.kvs")
    assert recalled.bytes_read == (some, whole)
    assert recalled.interrupted
    assert recalled.ask(QUESTION).result.interrupted


def test_an_interrupt_in_the_last_chunk_loses_nothing_and_says_nothing(model) -> None:
    seen: list = []

    def interrupted() -> bool:
        return any(isinstance(event, StepDone) for event in seen)

    asked = {"interrupted": interrupted, "progress": seen.append}
    memory = model.read(text=BOOK, budget=400, **asked)
    assert interrupted()
    assert memory.warnings == ()
    assert memory.read_tokens == model.read(text=BOOK, budget=400).read_tokens


@pytest.mark.parametrize("ends", [True, False])
def test_a_pipe_that_was_interrupted_is_told_in_the_result(model, ends: bool) -> None:
    """The pipe either ends on the interrupt, as standard input does, or the reading stops first."""

    class Pipe:
        ends_on_interrupt = ends
        left = 20

        def read(self, size: int = -1, /) -> bytes | None:
            self.left -= 1
            return b"" if ends and interrupted() else BOOK.encode()

    def interrupted() -> bool:
        return pipe.left < 0 if ends else any(isinstance(event, StepDone) for event in events)

    pipe, events = Pipe(), []
    for event in model.stream(pipe, questions=[QUESTION], interrupted=interrupted, **SMALL):
        events.append(event)
    told = next(event.result for event in events if isinstance(event, Answered))
    assert any("was stopped after" in warning for warning in told.warnings)
    assert told.to_json()["interrupted"] is True


def test_of_an_interrupted_pipe_one_chunk_is_read_and_not_all_that_it_brought(model) -> None:
    class Pipe:
        ends_on_interrupt = True
        left = 400

        def read(self, size: int = -1, /) -> bytes | None:
            self.left -= 1
            return BOOK.encode() if self.left >= 0 else b""

    def interrupted() -> bool:
        return bool(steps)

    steps: list[StepDone] = []
    for event in model.stream(Pipe(), questions=[QUESTION], interrupted=interrupted, **SMALL):
        if isinstance(event, StepDone):
            steps.append(event)
        elif isinstance(event, Answered):
            result = event.result
    assert steps[0].seen < result.read <= steps[0].seen + 2 * SMALL["budget"]
    assert result.to_json()["interrupted"] is True


@pytest.mark.parametrize("more", ["The dog is called Rex.\n", BOOK * 40])
def test_a_followed_file_is_complete_at_the_stop_or_its_rest_is_told(
    model, tmp_path, more: str
) -> None:
    path, told = tmp_path / "a.txt", []
    path.write_text("The cat is called Tom. He is black.\n")
    asked = {"follow": True, "every": "0.2s", "interrupted": lambda: bool(told)}
    for event in model.stream(path, questions=[QUESTION], **asked, **SMALL):
        if isinstance(event, Answered):
            if not told:
                path.rename(tmp_path / "old.txt")  # rotation
                path.write_text(more)
            told.append(event.result)
    first, last = told
    assert first.waiting > 0
    assert first.bytes_read == (36 - first.waiting,) * 2
    unread = 36 + len(more.encode()) - last.bytes_read[0]
    assert last.interrupted is (unread > 0) is (more != "The dog is called Rex.\n")
    expected = [f"The last {unread:,} bytes of {path} were not read."] if unread else []
    assert [line for line in last.warnings if "read" in line] == expected


def test_a_memory_that_could_not_be_read_on_into_is_as_good_as_before(model, tmp_path) -> None:
    memory = model.read(text=BOOK, **SMALL)
    answer = memory.ask(QUESTION).text
    with pytest.raises(SourceError):
        memory.read(text="Bob saw it. " * 30, interrupted=lambda: True)
    memory.save(tmp_path / "a.kvs")
    again = model.recall(tmp_path / "a.kvs")
    assert memory.ask(QUESTION).text == again.ask(QUESTION, max_tokens=8).text == answer
    again.read(text="Bob saw it.")
    assert again.read_tokens > memory.read_tokens


@pytest.mark.parametrize("method", ["truncate", "streaming", "infinipot"])
def test_a_pipe_that_pauses_is_read_to_its_end_by_every_method(model, method: str) -> None:
    """`truncate` keeps the newest tokens of the whole pipe, not those before a pause."""

    class Pausing:
        def __init__(self) -> None:
            self.parts = [BOOK.encode() * 20, None, None, BOOK.encode() * 20, None, b" A tulip."]

        def read(self, size: int = -1, /) -> bytes | None:
            return self.parts.pop(0) if self.parts else b""

    whole = b"".join(part for part in Pausing().parts if part).decode()
    reading = model.stream(Pausing(), questions=[QUESTION], every="1s", method=method, **SMALL)
    last = [event.result for event in reading if isinstance(event, Answered)][-1]
    assert last.read == model.read(text=whole, method=method, **SMALL).read_tokens


def test_a_reading_that_is_closed_reads_no_more(model, tmp_path) -> None:
    path = tmp_path / "long.txt"
    path.write_text(BOOK * 20_000)
    before = threading.active_count()
    reading = model.reading(path, **SMALL)
    while not isinstance(next(reading), StepDone):
        pass
    reading.close()
    del reading
    assert threading.active_count() <= before


def test_texts_have_names_and_stay_as_they_are(model) -> None:
    texts = [
        kvstream.Text("%PDF-1.7 is no PDF.\n", "first"),
        kvstream.Text("Ada hid it.", "second"),
    ]
    memory = model.read(texts, questions=["Who hid it?"], **SMALL)
    assert [source["name"] for source in memory.sources] == ["first", "second"]
    assert [source["bytes"] for source in memory.sources] == [20, 11]
    assert memory.ask("Who hid it?").citations[0]["source"] in ("first", "second")


@pytest.mark.parametrize("options", [{"budget": 300}, {"budget": "1MB"}, {"method": "h2o"}, {}])
def test_bytes_are_those_of_a_run(model, options) -> None:
    assert (
        model.kv_bytes(**options)
        == model.plan(text="Ada.", question="Who?", **options).budget_bytes
    )
    with pytest.raises(UsageError, match="no option 'budgett'"):
        model.kv_bytes(budgett=300)


def test_tokens_of_a_text(model) -> None:
    memory = model.read(text=BOOK, budget=2048)
    assert model.count(BOOK) == memory.read_tokens


def test_each_answer_may_have_a_seed_of_its_own(model) -> None:
    memory = model.read(text=BOOK, questions=[QUESTION], budget=512, max_tokens=8)

    def ask(seed: int) -> str:
        return memory.ask(QUESTION, temp=3.0, seed=seed).text

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(6)}) > 1


def test_a_memory_that_reads_on_says_once_what_concerns_its_plan(model) -> None:
    memory = model.read(text="Ada hid the letter.", budget="1GB", system="Use <|endoftext|>.")
    before = memory.warnings
    assert "was trained for" in before[0]
    memory.read(text="Bob saw it.")
    assert memory.warnings == before


def test_what_is_interrupted_goes_on_from_there(model, tmp_path: Path) -> None:
    """It resumes where it stopped, not at the last multiple of `checkpoint_every`."""
    text, place, steps = BOOK * 60, tmp_path / "reading.kvs", []
    asked = {"questions": [QUESTION], **SMALL}
    whole = model.read(text=text, **asked)

    def interrupted() -> bool:
        return len(steps) > 4

    stops = {"interrupted": interrupted, "progress": steps.append}
    stopped = model.read(text=text, checkpoint=place, **stops, **asked)
    stopped.save(tmp_path / "stopped.kvs")
    saved = checkpoint_tokens(place)
    assert saved is not None
    assert 0 < saved < whole.read_tokens
    part = model.recall(place)
    part.read(text=BOOK)
    part.save(tmp_path / "part.kvs")
    told = f"had not ended: only {saved} tokens of its text were read."
    assert told in model.recall(tmp_path / "part.kvs").ask(QUESTION).warnings[0]
    again: list = []
    memory = model.read(text=text, checkpoint=place, progress=again.append, **asked)
    read = sum(event.chunk for event in again if isinstance(event, StepDone))
    assert read == whole.read_tokens - saved
    assert memory.ask(QUESTION).to_json()["tokens"] == whole.ask(QUESTION).to_json()["tokens"]
    assert memory.ask(QUESTION).text == whole.ask(QUESTION).text


def test_a_checkpoint_that_cannot_be_written_is_a_python_warning(
    model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    asked = {"checkpoint": tmp_path / "reading.kvs", "checkpoint_every": 1, **SMALL}
    with pytest.warns(RuntimeWarning, match="No space left on device") as told:
        memory = model.read(text=BOOK * 30, **asked)
    assert [warning.filename for warning in told] == [__file__]
    assert memory.read_tokens > 0


def test_a_reading_that_is_stopped_at_once_is_no_empty_text(model) -> None:
    with pytest.raises(SourceError, match="Reading was stopped before the first token"):
        model.read(text=BOOK, interrupted=lambda: True, **SMALL)


def test_a_memory_gives_one_answer_at_a_time(model, tmp_path) -> None:
    memory = model.read(text=BOOK * 20, questions=[QUESTION], **SMALL)
    text = memory.ask(QUESTION).text
    events = memory.stream(QUESTION)
    next(events)
    for use in (
        lambda: memory.ask("Where?"),
        lambda: memory.read(text=BOOK),
        lambda: memory.save(tmp_path / "a.kvs"),
        memory.release,
    ):
        with pytest.raises(UsageError, match="This memory is in use"):
            use()
    events.close()
    assert memory.ask(QUESTION).text == text


@pytest.mark.parametrize("how", ["closed", "failed", "released"])
def test_a_memory_that_is_lost_says_so(model, tmp_path, how: str) -> None:
    def failing():
        yield BOOK * 200
        raise ValueError("no more")

    memory = model.read(text=BOOK * 20, questions=[QUESTION], **SMALL)
    with pytest.raises(SourceError, match=r"^Nothing to read: note held"):
        memory.read(kvstream.Text("", "note"))
    if how == "closed":
        reading = memory.reading(text=BOOK * 20)
        while not isinstance(next(reading), StepDone):
            pass
        reading.close()
    elif how == "failed":
        with pytest.raises(ValueError, match="no more"):
            memory.read(text=failing())
    else:
        memory.release()
    says = "was released" if how == "released" else "a reading into it was stopped"
    for use in (
        lambda: memory.ask(QUESTION),
        lambda: memory.read(text=BOOK),
        lambda: memory.save(tmp_path / "a.kvs"),
    ):
        with pytest.raises(UsageError, match=says):
            use()


def test_the_file_of_a_memory_tells_the_same_as_inspect(model, tmp_path) -> None:
    path = tmp_path / "a.kvs"
    model.read(text=BOOK * 20, questions=[QUESTION], **SMALL).save(path)
    told, found = model.recall(path).file, inspect(path)
    assert told.record() == found.record()
    assert (told.retained, told.evicted) == (found.retained, found.evicted)
    assert found.evicted > 0


@pytest.mark.parametrize("run", [returned, lambda *given: next(changed(*given))])
def test_an_error_about_an_event_ends_the_reading_at_once(run: Callable[..., object]) -> None:
    """The traceback of the error, which a notebook keeps, must not hold memory and workers."""
    ended = []

    def reading() -> Generator[Notice, None, None]:
        try:
            yield Notice("A part was read.")
        finally:
            ended.append(True)

    def fail(event: Event) -> None:
        raise RuntimeError("the function fails")

    events = reading()
    with pytest.raises(RuntimeError, match="the function fails"):
        run(events, fail)
    assert ended == [True]
