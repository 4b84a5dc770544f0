"""Readings as events: shown, stopped, and the same as `read`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from snippets import BOOK

import kvstream
from kvstream.api.files import checkpoint_tokens
from kvstream.api.model import Model
from kvstream.events import Started, StepDone

SMALL = {"budget": 300, "max_tokens": 8}
QUESTION = "Who hid the letter?"


@pytest.fixture(scope="module")
def model(session) -> Model:
    return Model(session)


def finished(reading):
    events = []
    while True:
        try:
            events.append(next(reading))
        except StopIteration as stop:
            return events, stop.value


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


def test_a_reading_that_is_closed_reads_no_more(model, tmp_path) -> None:
    path = tmp_path / "long.txt"
    path.write_text(BOOK * 20_000)
    before = threading.active_count()
    reading = model.reading(path, **SMALL)
    while not isinstance(next(reading), StepDone):
        pass
    reading.close()
    del reading
    for thread in threading.enumerate():  # the one that read ahead
        if thread.name == "reading":
            thread.join(10)
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


def test_tokens_of_a_text(model) -> None:
    memory = model.read(text=BOOK, budget=2048)
    assert model.count(BOOK) == memory.read_tokens


def test_each_answer_may_have_a_seed_of_its_own(model) -> None:
    memory = model.read(text=BOOK, questions=[QUESTION], budget=512, max_tokens=8)

    def ask(seed: int) -> str:
        return memory.ask(QUESTION, temp=3.0, seed=seed).text

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(6)}) > 1


def test_what_is_interrupted_goes_on_from_there(model, tmp_path: Path) -> None:
    """Not from the last multiple of `checkpoint_every`."""
    text, place, steps = BOOK * 60, tmp_path / "reading.kvs", []
    asked = {"questions": [QUESTION], **SMALL}
    whole = model.read(text=text, **asked)

    def interrupted() -> bool:
        return len(steps) > 4

    model.read(text=text, checkpoint=place, interrupted=interrupted, progress=steps.append, **asked)
    saved = checkpoint_tokens(place)
    assert saved is not None
    assert 0 < saved < whole.read_tokens
    again: list = []
    memory = model.read(text=text, checkpoint=place, progress=again.append, **asked)
    read = sum(event.chunk for event in again if isinstance(event, StepDone))
    assert read == whole.read_tokens - saved
    assert memory.ask(QUESTION).to_json()["tokens"] == whole.ask(QUESTION).to_json()["tokens"]
    assert memory.ask(QUESTION).text == whole.ask(QUESTION).text
