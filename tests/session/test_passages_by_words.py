"""The words of a question choose passages, and a model reads those alone."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from adapters import tiny_reader
from cutting import excerpts_of

import kvstream
from kvstream.errors import BudgetError, SourceError, UsageError
from kvstream.events import Answered, AnswerStarted, Event, Result, Started, StepDone
from kvstream.input.inspection import NamedStream
from kvstream.input.sources import open_sources
from kvstream.passages.memory import BYTES_A_TOKEN
from kvstream.run.request import Request
from kvstream.sample.document import make_facts
from kvstream.session import scouting
from kvstream.session.scouting import STEP, Scouting
from kvstream.session.session import SMALL, Session
from kvstream.settings import Budget, RunSettings
from kvstream.tokenization.loading import TokenStream

SEED, FACTS = 3, 6
FACTS_OF = make_facts(FACTS, SEED)
FACT = FACTS_OF[5]
RUN = RunSettings(Budget(tokens=320), max_tokens=8)


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Path:
    return write_story(tokens=1300, seed=SEED, facts=FACTS)


def ask(session: Session, path: Path, *questions: str, run: RunSettings = RUN) -> list[Result]:
    events = Scouting(session).ask(open_sources([str(path)]), Request(questions, run))
    return [event.result for event in events if isinstance(event, Answered)]


def test_what_is_read_is_bounded_and_counted(session: Session, story: Path) -> None:
    [result] = ask(session, story, FACT.question)
    told, text = result.skim, story.read_bytes()
    assert told is not None
    assert (told["model"], told["first"]) == (None, None)
    assert result.peak_kv_tokens <= 320
    assert told["peak"]["answer"]["kv_tokens"] == result.peak_kv_tokens
    kept = told["kept"]
    assert 0 < kept["bytes"] <= kept["peak_bytes"] <= kept["room_bytes"] == 320 * BYTES_A_TOKEN
    assert len(b"".join(text.split())) <= kept["bytes"] + kept["dropped_bytes"] <= len(text)
    assert 0 < told["tokens"] <= SMALL[1] + 120
    assert result.read == len(session.tokenizer.encode(story.read_text()))
    assert result.retained == told["tokens"]
    assert result.read == result.retained + result.evicted


def test_citations_are_of_the_source(session: Session, story: Path) -> None:
    text = story.read_bytes()
    for fact, result in zip(
        FACTS_OF, ask(session, story, *(f.question for f in FACTS_OF)), strict=True
    ):
        assert result.question == fact.question
        at = text.index(fact.sentence.encode())
        assert result.skim is not None
        assert any(p["byte_start"] <= at < p["byte_end"] for p in result.skim["pieces"])
        for cited in result.citations:
            assert text[cited["byte_start"] : cited["byte_end"]].decode() == cited["text"]


def test_a_pipe_and_a_file_give_the_same(session: Session, story: Path) -> None:
    [file] = ask(session, story, FACT.question)
    with story.open("rb") as stream:
        sources = open_sources([NamedStream("stdin", stream)])
        events = Scouting(session).ask(sources, Request((FACT.question,), RUN))
        [pipe] = [event.result for event in events if isinstance(event, Answered)]
    assert (pipe.answer, pipe.read) == (file.answer, file.read)
    assert pipe.skim is not None
    assert file.skim is not None
    assert pipe.skim["kept"] == file.skim["kept"]


class _Pausing:
    """A stream that has no data most of the time, like a pipe that does not block."""

    def __init__(self, data: bytes, size: int) -> None:
        self._pieces = [data[i : i + size] for i in range(0, len(data), size)]
        self._calls = 0

    def read(self, size: int) -> bytes | None:
        self._calls += 1
        if self._calls % 4:
            return None
        return self._pieces.pop(0) if self._pieces else b""


@pytest.mark.parametrize("size", [300, 3000])
def test_a_stream_that_pauses_is_read_to_its_end(
    session: Session, story: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstream.input.sources.WAIT_SECONDS", 0.001)
    [whole] = ask(session, story, FACT.question)
    stream = NamedStream(str(story), _Pausing(story.read_bytes(), size), plain=True)
    events = Scouting(session).ask(open_sources([stream]), Request((FACT.question,), RUN))
    [result] = [event.result for event in events if isinstance(event, Answered)]
    assert (result.method, result.read) == (whole.method, whole.read) == ("passages", whole.read)
    assert result.skim is not None
    assert whole.skim is not None
    assert result.skim["pieces"] == whole.skim["pieces"]


def test_events_tell_how_far_the_search_is(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("The sun rose over the town, and nobody came.\n" * 2500)
    sources = open_sources([str(path)])
    events: list[Event] = list(Scouting(session).ask(sources, Request(("Who came?",), RUN)))
    started, *others = events
    assert isinstance(started, Started)
    steps = [event for event in others if isinstance(event, StepDone)]
    assert len(steps) > 1
    assert [step.seen for step in steps[:-1]] == [STEP * (i + 1) for i in range(len(steps) - 1)]
    assert all(
        (step.kv_tokens, step.in_flight_tokens, step.retained()) == (0, 0, 0) for step in steps
    )
    assert others.index(steps[-1]) < [isinstance(e, AnswerStarted) for e in others].index(True)
    [result] = [event.result for event in events if isinstance(event, Answered)]
    assert result.read == steps[-1].seen


def test_a_text_that_fits_is_read_by_the_model_alone(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text(f"Snow fell. {FACT.sentence}\n")
    [found] = ask(session, path, FACT.question)
    plain = session.ask(open_sources([str(path)]), Request((FACT.question,), RUN))
    [alone] = [event.result for event in plain if isinstance(event, Answered)]
    assert found.skim is None
    assert (found.answer, found.evicted) == (alone.answer, 0)


def test_no_text_is_an_error(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "blank.txt"
    path.write_text(" \n" * 40_000)
    with pytest.raises(SourceError, match="only spaces"):
        ask(session, path, "Who?")


def test_a_question_without_any_word_of_the_text(session: Session, story: Path) -> None:
    [result] = ask(session, story, "Zyqqx wvxzz?")
    assert result.skim is not None
    assert result.skim["tokens"] > 0
    assert any("has a word of the question" in warning for warning in result.warnings)


def test_a_question_of_common_words(session: Session, story: Path) -> None:
    [result] = ask(session, story, "Who is it?")
    assert any("has only common words" in warning for warning in result.warnings)
    assert not any("has a word of" in warning for warning in result.warnings)


def test_passages_that_are_longer_than_the_room(session: Session, tmp_path: Path) -> None:
    rng = random.Random(3)
    path = tmp_path / "long.txt"
    words = ("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=12)) for _ in range(3000))
    path.write_text(" ".join(words))
    with pytest.raises(BudgetError, match="No passage of the text fits"):
        ask(session, path, "Who?", run=RunSettings(Budget(tokens=256), max_tokens=16))


def test_ctrl_c_answers_from_what_was_read(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("The sun rose over the town, and nobody came.\n" * 5000)
    seen = 0

    def stop() -> bool:
        return seen >= STEP

    request = Request(("Who came?",), RUN, interrupted=stop)
    events: Iterator[Event] = Scouting(session).ask(open_sources([str(path)]), request)
    for event in events:
        if isinstance(event, StepDone):
            seen = event.seen
        if isinstance(event, Answered):
            result = event.result
    assert result.read == STEP
    assert result.interrupted
    assert any("Reading was stopped after 8,192 tokens" in warning for warning in result.warnings)


def test_a_pipe_that_ends_on_ctrl_c_may_have_had_more(session: Session) -> None:
    class Pipe:
        ends_on_interrupt = True
        left = 12

        def read(self, size: int = -1, /) -> bytes:
            self.left -= 1
            return b"The sun rose over the town, and nobody came.\n" * 9 if self.left >= 0 else b""

    pipe = Pipe()
    request = Request(("Who came?",), RUN, interrupted=lambda: pipe.left < 0)
    events = list(Scouting(session).ask(open_sources([NamedStream("stdin", pipe)]), request))
    [result] = [event.result for event in events if isinstance(event, Answered)]
    assert any("Reading was stopped after" in warning for warning in result.warnings)
    assert result.interrupted


def test_ctrl_c_between_two_blocks_of_a_file_is_told(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("The sun rose over the town, and nobody came.\n" * 5000)
    block = TokenStream(session.tokenizer, open_sources([str(path)]))
    step = len(block.read(1)) + block._ready_tokens
    monkeypatch.setattr(scouting, "STEP", step)
    seen: list[Event] = []

    def stop() -> bool:
        return any(isinstance(event, StepDone) for event in seen)

    request = Request(("Who came?",), RUN, interrupted=stop)
    for event in Scouting(session).ask(open_sources([str(path)]), request):
        seen.append(event)
    [result] = [event.result for event in seen if isinstance(event, Answered)]
    assert result.read == step
    assert result.interrupted


def test_ctrl_c_before_the_first_token_is_no_empty_input(session: Session, story: Path) -> None:
    request = Request(("Who came?",), RUN, interrupted=lambda: True)
    with pytest.raises(SourceError, match="Reading was stopped before the first token"):
        list(Scouting(session).ask(open_sources([str(story)]), request))


def test_a_budget_that_is_too_small(session: Session, story: Path) -> None:
    with pytest.raises(BudgetError, match="Use --budget"):
        ask(session, story, "Who?", run=RunSettings(Budget(tokens=70)))


def test_the_passages_are_cut_as_everywhere(session: Session, story: Path) -> None:
    [result] = ask(session, story, FACT.question)
    assert result.skim is not None
    places = {(e.start, e.end) for e in excerpts_of(open_sources([str(story)]))}
    pieces = {(p["byte_start"], p["byte_end"]) for p in result.skim["pieces"]}
    assert pieces <= places


# The Python API and the command line.


def test_from_python(story: Path) -> None:
    model = kvstream.load("pocket", skim="words", threads=1)
    answer = model.ask(story, FACT.question, budget=320)
    assert answer.to_json()["skim"]["model"] is None
    assert answer.coverage is None
    assert model.plan(story, question=FACT.question, budget=320).method == "passages"
    with pytest.raises(UsageError, match="needs its questions"):
        model.read(story, budget=320)
    with pytest.raises(UsageError, match="one model"):
        model.ask(story, FACT.question, shards=2, budget=320)


def test_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: Path, cli: Callable[..., Any]
) -> None:
    tiny_reader(tmp_path, monkeypatch)
    page = tmp_path / "page.html"
    words = ("--skim", "words", "--budget", "500", "-n", "8")
    done = cli("ask", str(story), FACT.question, *words, "--json", "--report", str(page))
    assert done.code == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["model"], said["skim"]["model"], said["method"]) == ("reader", None, "passages")
    assert said["receipt"]["settings"]["method"] == "passages"
    assert said["peak"]["kv_tokens"] <= 500
    assert " tokens) · answered from " in done.stderr
    assert FACT.sentence.split()[0] in page.read_text()
    method = cli("ask", str(story), FACT.question, *words[2:], "--json", "--method", "passages")
    assert json.loads(method.stdout)["answer"] == said["answer"]
    piped = cli("ask", FACT.question, *words, "--json", stdin=story.read_bytes())
    assert json.loads(piped.stdout)["answer"] == said["answer"]
    planned = cli("ask", str(story), FACT.question, *words, "--dry-run")
    assert planned.code == 0, planned.stderr
    assert "word search for reader" in planned.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("chat", "STORY", "--skim", "words"), "needs its questions"),
        (("remember", "STORY", "--skim", "words", "-o", "x.kvs"), "needs its questions"),
        (("ask", "STORY", "Q?", "--skim", "words", "--shards", "2"), "--skim is for one reading"),
        (("summarize", "STORY", "--skim", "words"), "one model reads here"),
    ],
)
def test_what_it_cannot_be_used_for(
    arguments: tuple[str, ...], told: str, story: Path, cli: Callable[..., Any]
) -> None:
    ran = cli(*(str(story) if a == "STORY" else a for a in arguments))
    assert ran.code == 2, ran.stderr
    assert told in ran.stderr
