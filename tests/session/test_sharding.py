"""A text read in parts: the entries, the reports and the citations of the joined memory."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from digests import digest_of

from kvstream.answer.answering import answers
from kvstream.collection import sharding
from kvstream.collection.worker import Workers
from kvstream.errors import SourceError, UsageError
from kvstream.events import Answered, Event, Notice, PartRead, Started, StepDone, returned
from kvstream.input.sources import open_sources
from kvstream.memory import saving
from kvstream.memory.contents import Memory
from kvstream.memory.merging import Joiner, join
from kvstream.run.request import Intervals, Request
from kvstream.sample.document import questions
from kvstream.session.session import Session
from kvstream.session.sharding import cut, read_part, read_shards
from kvstream.settings import Budget, RunSettings

FACTS = {"facts": 3, "seed": 6}


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Path:
    return write_story(tokens=1300, **FACTS)


def request(budget: int = 320, **more: Any) -> Request:
    known = tuple(q["question"] for q in questions(**FACTS))
    return Request(known, RunSettings(Budget(tokens=budget), max_tokens=16), **more)


@pytest.fixture(scope="module")
def read(session: Session, story: Path) -> tuple[list[Event], Memory]:
    """Read a text in three parts. Return the events and the memory."""
    events: list[Event] = []
    reading = read_shards(session, open_sources([str(story)]), request(), 3)
    return events, returned(reading, events.append)


def test_the_events_are_those_of_one_reading(read: tuple[list[Event], Memory]) -> None:
    events, memory = read
    assert [type(e) for e in events].count(Started) == 1
    steps = [e for e in events if isinstance(e, StepDone)]
    assert [e.step for e in steps] == list(range(1, len(steps) + 1))
    seen = [e.seen for e in steps]
    assert seen == sorted(seen)
    assert seen[-1] == memory.trace.read
    seconds = [e.seconds for e in steps]
    assert seconds == sorted(seconds)
    assert all(e.peak_tokens <= 320 for e in steps)
    for bins in (1, 7, 40):
        assert len(steps[-1].coverage(bins)) == bins
    parts = [e for e in events if isinstance(e, PartRead)]
    assert [(e.number, e.count) for e in parts] == [(1, 3), (2, 3), (3, 3)]
    assert sum(e.tokens for e in parts) == memory.trace.read


def test_the_memory_keeps_the_bound_and_says_how_it_was_read(
    read: tuple[list[Event], Memory], session: Session, story: Path
) -> None:
    _, memory = read
    assert memory.reader.cache.peak.tokens <= 320
    assert memory.trace.end == story.stat().st_size
    (record,) = memory.trace.records
    assert record.bytes == story.stat().st_size
    assert memory.shards is not None
    assert (memory.shards.count, memory.shards.budgets) == (3, 3)
    assert memory.shards.to_json()["bytes"] == 3 * memory.reader.cache.capacity_bytes


def test_citations_point_into_the_whole_text(read: tuple[list[Event], Memory], story: Path) -> None:
    memory, text = read[1], story.read_bytes()
    assert memory.trace.passages is not None
    kept = memory.reader.retained().numpy()
    starts = memory.trace.origins.starts(kept)
    assert starts.max() > 2 / 3 * len(text)
    found = memory.trace.passages.score(starts, np.ones(len(starts)))
    before_the_last_newlines = (starts < len(text.rstrip())).sum()
    assert sum(p.weight for p in found) == before_the_last_newlines, "a token lies in no passage"
    for passage in found:
        assert text[passage.start : passage.end].decode() == passage.text
        assert passage.line_start == text[: passage.start].count(b"\n") + 1
    for event in answers(memory, request(), may_compress=False):  # other tests use the memory
        if isinstance(event, Answered):
            told = event.result.to_json()
            assert told["shards"]["count"] == 3
            for cited in told["citations"]:
                assert cited["text"].encode() in text


def test_parts_saved_and_joined_elsewhere_are_the_same_memory(
    read: tuple[list[Event], Memory], session: Session, story: Path, tmp_path: Path
) -> None:
    joiner, parts = Joiner(320), cut(session, open_sources([str(story)]), request(), 3)[0]
    for part in parts:
        path = tmp_path / f"{part.number}.kvs"
        saving.save(returned(read_part(session, open_sources([str(story)]), part, request())), path)
        joiner.add(session.recall(saving.look(path), request().run))
    assert digest_of(joiner.finish()) == digest_of(read[1])


def test_what_fits_is_read_as_one(session: Session, write_story: Callable[..., Path]) -> None:
    path = write_story(tokens=200, facts=1, seed=1)

    def said(memory: Memory) -> list[str]:
        events = answers(memory, request(400))
        return [e.result.answer for e in events if isinstance(e, Answered)]

    joined = returned(read_shards(session, open_sources([str(path)]), request(400), 4))
    plain = returned(session.read(open_sources([str(path)]), request(400)))
    assert joined.shards.count == 1
    assert digest_of(joined) == digest_of(plain)
    assert said(joined) == said(plain)


def test_a_text_that_fits_is_announced_once_with_workers(
    session: Session, write_story: Callable[..., Path]
) -> None:
    sources = open_sources([str(write_story(tokens=200, facts=1, seed=1))])
    events: list[Event] = []
    reading = sharding.read_shards(
        session, session.settings, sources, request(400), 4, Workers(2, None, 0)
    )
    memory = returned(reading, events.append)
    assert [type(e) for e in events] == [Started, StepDone]
    assert memory.shards.count == 1


@pytest.mark.parametrize("options", [{}, {"chunk_size": 64}])
def test_what_fits_is_read_whole_though_it_was_estimated_to_be_longer(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    """Numbers have more tokens for each byte than the words after them."""
    monkeypatch.setattr("kvstream.tokenization.stream.BLOCK", 256)
    path = tmp_path / "numbers.txt"
    numbers = " ".join(str(7919 * i % 99991) for i in range(200))
    path.write_text(numbers + "\n" + "The river ran past the old mill.\n" * 20)
    budget = len(session.tokenizer.encode(path.read_text())) + 60
    run = RunSettings(Budget(tokens=budget), "keydiff", max_tokens=8, **options)
    asked = Request(("Who?",), run)
    assert not session.plan(open_sources([str(path)]), asked).lossless
    memory = returned(read_shards(session, open_sources([str(path)]), asked, 3))
    assert (memory.shards.count, memory.retained) == (1, memory.trace.read)
    assert memory.reader.cache.base == 0


@pytest.mark.parametrize("count", range(1, 9))
def test_the_joiner_joins_neighbors_in_pairs(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The joins form a tree. At each level neighbors are joined, and an odd one moves up."""

    def level(row: list[Any]) -> list[Any]:
        pairs = [(row[i], row[i + 1]) for i in range(0, len(row) - 1, 2)]
        return pairs + row[len(pairs) * 2 :]

    row: list[Any] = list(range(count))
    while len(row) > 1:
        row = level(row)
    monkeypatch.setattr("kvstream.memory.merging.join", lambda a, b, budget, one_text: (a, b))
    joiner: Any = Joiner(100)
    for part in range(count):
        joiner.add(part)
    assert joiner.finish() == row[0]
    assert joiner.most <= count.bit_length() + 2


def test_an_interrupted_reading_answers_from_what_was_read(session: Session, story: Path) -> None:
    read: list[int] = []
    asked = request(interrupted=lambda: len(read) == 1)
    notices: list[str] = []

    def see(event: Event) -> None:
        if isinstance(event, PartRead):
            read.append(event.tokens)
        if isinstance(event, Notice):
            notices.append(event.message)

    memory = returned(read_shards(session, open_sources([str(story)]), asked, 3), see)
    assert memory.warnings == [notices[-1]]
    assert f"stopped after {sum(read):,} tokens" in notices[-1]
    assert memory.trace.read == sum(read)
    size = story.stat().st_size - memory.trace.waiting
    assert size == memory.trace.end < story.stat().st_size * 0.6, "the size of what was read"


@pytest.mark.parametrize("change", ["moved", "grown"])
def test_a_text_that_changes_between_its_parts_is_told(
    session: Session, story: Path, tmp_path: Path, change: str
) -> None:
    path, text = tmp_path / "changing.txt", story.read_text()
    path.write_text(text)

    def see(event: Event) -> None:
        if isinstance(event, PartRead):
            path.write_text(f"{text}The end." if change == "grown" else f"Ben left. {text}")

    memory = returned(read_shards(session, open_sources([str(path)]), request(), 3), see)
    told = [warning for warning in memory.warnings if "changed while its parts" in warning]
    assert len(told) == (change == "moved")


def test_an_interrupt_before_a_later_part_begins_keeps_the_parts_before(
    session: Session, story: Path
) -> None:
    """The interrupt comes after the second part began, while it skips the text of the first."""
    parts: list[int] = []
    asks_after_the_first = itertools.count()

    def interrupted() -> bool:
        return len(parts) == 1 and next(asks_after_the_first) > 0

    def see(event: Event) -> None:
        if isinstance(event, PartRead):
            parts.append(event.tokens)

    asked = request(interrupted=interrupted)
    memory = returned(read_shards(session, open_sources([str(story)]), asked, 3), see)
    assert memory.trace.read == parts[0]
    assert memory.shards.count == len(parts) == 1
    assert "stopped" in memory.warnings[-1]


def test_what_cannot_be_read_in_parts_is_refused(
    session: Session, story: Path, tmp_path: Path
) -> None:
    def refused(sources: Any, asked: Request) -> None:
        next(read_shards(session, sources, asked, 2))

    for method in ("edgeinfinite", "truncate", "full"):
        run = RunSettings(Budget(tokens=320), method)
        with pytest.raises(UsageError, match="cannot be joined"):
            refused(open_sources([str(story)]), Request(("Who?",), run))
    with pytest.raises(UsageError, match="--every is for one reading"):
        refused(open_sources([str(story)]), request(every=Intervals(tokens=100)))
    with pytest.raises(UsageError, match="1 or more"):
        request(shards=0)
    with pytest.raises(SourceError, match="can be read only once"):
        refused(open_sources(["-"], stdin=io.BytesIO(b"A text. " * 1000)), request())
    copy = tmp_path / "copy.txt"
    copy.write_text(story.read_text())
    gone = open_sources([str(copy)])
    copy.unlink()
    with pytest.raises(SourceError, match="does not exist"):
        refused(gone, request())


@pytest.mark.parametrize("size", [3, 6000])
def test_a_text_of_blanks_is_refused(session: Session, tmp_path: Path, size: int) -> None:
    text = tmp_path / "blank.txt"
    text.write_text(" \n" * (size // 2))
    with pytest.raises(SourceError, match=r"blank\.txt held only spaces and line ends"):
        returned(read_shards(session, open_sources([str(text)]), request(), 2))


def test_parts_of_two_readings_are_joined_alike(session: Session, story: Path) -> None:
    """Each part knows its position, so the joined memory has one source and not two."""
    parts = [
        returned(read_part(session, open_sources([str(story)]), part, request()))
        for part in cut(session, open_sources([str(story)]), request(), 2)[0]
    ]
    joined = join(*parts, 320, one_text=True)
    assert list(joined.trace.names) == [str(story)]
    assert list(joined.trace.bases) == [0]


def test_parts_that_evict_nothing_are_joined_by_attention(session: Session, story: Path) -> None:
    """The method ranks the entries of each part by the attention of its last chunk."""
    run = RunSettings(Budget(tokens=1024), "snapkv", max_tokens=16)
    events: list[Event] = []
    reading = read_shards(session, open_sources([str(story)]), Request(("Who?",), run), 2)
    memory = returned(reading, events.append)
    steps = [e for e in events if isinstance(e, StepDone)]
    assert [set(e.memory) for e in steps] == [{e.chunk} for e in steps]  # each part fits
    assert len(memory.reader.retained()) < memory.trace.read
