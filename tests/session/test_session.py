"""From sources to answers, with the embedded model and its real tokenizer."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvstream.errors import BudgetError, SourceError
from kvstream.events import Answered, AnswerStarted, Event, Notice, Started, StepDone, returned
from kvstream.input import sources
from kvstream.input.following import Follow
from kvstream.input.sources import open_sources
from kvstream.memory.contents import Memory
from kvstream.run import feed
from kvstream.run.prompt import Layout
from kvstream.run.request import Intervals, Request
from kvstream.session import reading
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings
from kvstream.store import pocket

QUESTION = "What is the passkey for the old mill?"


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Path:
    """A story of about 1,800 tokens."""
    return write_story(tokens=1800, seed=3, facts=4)


def run(session: Session, path: Path, settings: RunSettings, **more: Any) -> list[Any]:
    request = Request(run=settings, **{"questions": (QUESTION,), **more})
    return list(session.ask(open_sources([str(path)]), request))


def result(events: list[Any]) -> Any:
    return next(e.result for e in events if isinstance(e, Answered))


@pytest.mark.parametrize(("budget", "warned"), [(400, True), (300, False)])
def test_memory_that_no_layer_sees_is_warned_of(
    session: Session, story: Path, budget: int, warned: bool
) -> None:
    """Every layer of the model slides, and the budget holds more than its window."""
    layers = tuple(replace(layer, sight=300) for layer in session.model.layers)
    sliding = Session(replace(session.model, layers=layers), session.tokenizer)
    settings = RunSettings(budget=Budget(tokens=budget), max_tokens=2)
    told = result(run(sliding, story, settings)).warnings
    assert any("sees more than 300 positions" in message for message in told) is warned


def test_what_fits_is_answered_as_by_transformers(whole_session: Session, tmp_path: Path) -> None:
    text = "The passkey for the old mill is 70615. It rained all night.\nNobody came.\n"
    (tmp_path / "short.txt").write_text(text)
    ours = result(run(whole_session, tmp_path / "short.txt", RunSettings(max_tokens=12)))
    tokenizer = AutoTokenizer.from_pretrained(pocket.path())
    model = AutoModelForCausalLM.from_pretrained(pocket.path(), dtype=torch.float32)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": f"{text}\nQuestion: {QUESTION}"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    out = model.generate(**ids, max_new_tokens=12, do_sample=False)
    said = tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert ours.answer == said.strip()
    assert ours.evicted == 0
    assert ours.retained == ours.read == len(tokenizer(text, add_special_tokens=False).input_ids)


@pytest.mark.parametrize("packed", [False, True])
def test_a_plan_is_what_the_run_says_when_it_starts(
    session: Session, story: Path, tmp_path: Path, packed: bool
) -> None:
    settings = RunSettings(budget=Budget(tokens=600), max_tokens=1)
    path = story
    if packed:
        path = tmp_path / "story.txt.gz"
        path.write_bytes(gzip.compress(story.read_bytes()))
    request = Request((QUESTION,), settings)
    planned = session.plan(open_sources([str(path)]), request)
    began = next(session.ask(open_sources([str(path)]), request))
    assert planned == began
    tokens = len(session.tokenizer.encode(story.read_text()))
    assert planned.estimated_tokens == pytest.approx(tokens, rel=0.3 if packed else 0.01)


@pytest.mark.parametrize("lines", [2, 2000])
def test_a_plan_of_a_log_is_what_the_run_says(session: Session, tmp_path: Path, lines: int) -> None:
    """A long log is thinned, so how much of it the model reads is not known before."""
    path = tmp_path / "server.log"
    path.write_text("".join(f"2026-11-22 03:00:00 INFO web: page {i}\n" for i in range(lines)))
    settings = RunSettings(budget=Budget(tokens=300), max_tokens=1, thin="auto")
    request = Request((QUESTION,), settings)
    planned = session.plan(open_sources([str(path)]), request)
    assert planned == next(session.ask(open_sources([str(path)]), request))
    assert (planned.estimated_tokens is None) == (lines > 2)


def test_events_come_in_order_and_stay_in_the_budget(session: Session, story: Path) -> None:
    events = run(session, story, RunSettings(budget=Budget(tokens=600), max_tokens=5))
    assert isinstance(events[0], Started)
    steps = [e for e in events if isinstance(e, StepDone)]
    assert [s.step for s in steps] == list(range(1, len(steps) + 1))
    assert sum(s.chunk for s in steps) == steps[-1].seen == result(events).read
    assert all(s.in_flight_tokens <= s.peak_tokens <= 600 for s in steps)
    assert all(0 <= share <= 1 for share in steps[-1].coverage(20))
    assert result(events).retained == steps[-1].retained()
    assert result(events).peak_kv_tokens <= 600
    assert result(events).peak_kv_bytes <= result(events).budget_bytes


@pytest.mark.parametrize("method", ["infinipot", "streaming", "truncate"])
def test_a_method_reads_and_counts_every_token(session: Session, story: Path, method: str) -> None:
    r = result(run(session, story, RunSettings(Budget(tokens=512), method, max_tokens=4)))
    assert r.read == len(session.tokenizer.encode(story.read_text()))
    assert 0 < r.retained < r.read
    assert r.read == r.retained + r.evicted


def test_the_plan_of_full_has_the_length_of_the_text(session: Session, story: Path) -> None:
    tokens = len(session.tokenizer.encode(story.read_text()))
    for budget, fits in ((512, False), (4096, True)):
        asked = Request(("Who?",), RunSettings(Budget(tokens=budget), "full", max_tokens=4))
        plan = session.plan(open_sources([str(story)]), asked)
        assert plan.estimated_tokens == pytest.approx(tokens, rel=0.1)
        assert plan.lossless == fits


def test_truncate_keeps_the_two_ends(session: Session, story: Path) -> None:
    settings = RunSettings(Budget(tokens=300), "truncate", max_tokens=4)
    asked = Request(("Who?",), settings)
    assert not session.plan(open_sources([str(story)]), asked).lossless
    events = run(session, story, settings)
    coverage = [e for e in events if isinstance(e, StepDone)][-1].coverage(40)
    assert coverage[0] == 1.0
    assert coverage[-1] > 0.9
    assert sum(coverage[4:36]) == 0


@pytest.mark.parametrize("dropped", [200, 400])
def test_truncate_tells_that_it_was_stopped_before_the_end(
    session: Session, story: Path, monkeypatch: pytest.MonkeyPatch, dropped: int
) -> None:
    """The interrupt comes while it drops the middle, of which it has more than it may keep."""
    monkeypatch.setattr(feed, "DROP_BLOCK", 200)
    settings = RunSettings(Budget(tokens=512), "truncate", max_tokens=4)
    stops = iter([False] * (1 + dropped // 200))
    r = result(run(session, story, settings, interrupted=lambda: next(stops, True)))
    whole = len(session.tokenizer.encode(story.read_text()))
    assert r.retained + dropped == r.read < whole
    assert any(f"after {r.read:,} tokens of about {whole:,}" in told for told in r.warnings)
    assert r.interrupted


def test_a_budget_in_bytes_is_kept_in_bytes(session: Session, story: Path) -> None:
    r = result(run(session, story, RunSettings(Budget(bytes=3_000_000), max_tokens=4)))
    assert r.peak_kv_bytes <= r.budget_bytes <= 3_000_000
    assert r.budget_bytes > 2_900_000


def test_several_questions_are_answered_from_the_same_memory(session: Session, story: Path) -> None:
    settings = RunSettings(budget=Budget(tokens=700), max_tokens=6)
    asked = (QUESTION, "Who lives in the castle?", QUESTION)
    events = run(session, story, settings, questions=asked)
    answers = [e.result for e in events if isinstance(e, Answered)]
    assert tuple(e.question for e in events if isinstance(e, AnswerStarted)) == asked
    assert answers[0].answer == answers[2].answer
    assert answers[0].retained == answers[2].retained


def test_stopping_answers_from_what_was_read(session: Session, story: Path) -> None:
    stops = iter([False, False, True, True, True, True])
    settings = RunSettings(budget=Budget(tokens=600), max_tokens=4)
    events = run(session, story, settings, interrupted=lambda: next(stops, True))
    r = result(events)
    assert 0 < r.read < 1800
    assert any("stopped" in e.message for e in events if isinstance(e, Notice))
    assert any("stopped" in warning for warning in r.warnings)


@pytest.mark.parametrize("asked", range(21, 26))
def test_a_stop_at_any_moment_reads_a_followed_text_to_its_end(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    monkeypatch.setattr(sources, "WAIT_SECONDS", 0.0)
    text = tmp_path / "rain.txt"
    text.write_text("It rained all night.\n" * 5)
    calls = count(1)

    def stop() -> bool:
        return next(calls) >= asked

    settings = RunSettings(budget=Budget(tokens=200), max_tokens=1)
    request = Request((QUESTION,), run=settings, follow=True, interrupted=stop)
    events = session.ask(open_sources([str(text)], follow=Follow(stop, lambda: True)), request)
    assert not any("not read" in warning for warning in result(list(events)).warnings)


def test_answers_on_the_way_take_no_time_of_the_reading(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [5.0]
    monkeypatch.setattr(reading, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def answers(memory: Memory) -> Iterator[Event]:
        now[0] += 100
        yield Notice("answered", note=True)
        now[0] += 100

    text = tmp_path / "rain.txt"
    text.write_text("It rained all night. " * 60)
    settings = RunSettings(budget=Budget(tokens=200), method="streaming", max_tokens=8)
    request = Request(run=settings, every=Intervals.of(64))
    read = reading.Reading(
        session.model, session.tokenizer, open_sources([str(text)]), session.settle(request),
        request, on_the_way=answers,
    )  # fmt: skip
    events: list[Event] = []
    memory = returned(read.events(), events.append)
    assert len([event for event in events if isinstance(event, Notice)]) > 2
    assert {event.seconds for event in events if isinstance(event, StepDone)} == {0}
    assert memory.prefill_s == 0


def test_a_long_answer_stays_in_the_budget(session: Session, story: Path) -> None:
    settings = RunSettings(budget=Budget(tokens=300), max_tokens=400, temp=1.5, seed=1)
    r = result(run(session, story, settings))
    assert r.peak_kv_tokens <= 300
    assert r.generated > 0


@pytest.mark.parametrize(
    "lines",
    [["Hi."], ["Bob owns a red boat."], ["The cat sat.", "Bob owns a boat.", "Ann has a dog."]],
)
def test_all_of_a_short_text_is_extracted(
    lines: list[str], session: Session, tmp_path: Path
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = RunSettings(budget=Budget(tokens=512))
    events = run(
        session, short, settings, questions=(), command="summarize", extract=True, passages=5
    )
    r = result(events)
    assert r.evicted == 0
    assert r.answer.splitlines() == [f"{n}: {line}" for n, line in enumerate(lines, 1)]
    told = [event.message for event in events if isinstance(event, Notice) and event.note]
    assert told == [f"Extracted {len(lines)} of at most 5 passages: memory holds no others."]


def test_extracted_passages_are_sentences_of_the_text(session: Session, story: Path) -> None:
    settings = RunSettings(budget=Budget(tokens=512))
    r = result(
        run(session, story, settings, questions=(), command="summarize", extract=True, passages=5)
    )
    text, lines = story.read_text(), r.answer.splitlines()
    assert 1 <= len(lines) <= 5
    numbers = [int(line.split(":")[0]) for line in lines]
    assert numbers == sorted(numbers)
    flat = " ".join(text.split())
    assert all(line.split(": ", 1)[1] in flat for line in lines)


def test_nothing_to_read(session: Session, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(SourceError):
        run(session, tmp_path / "empty.txt", RunSettings())


def test_a_budget_below_prompt_question_and_chunk(session: Session, story: Path) -> None:
    with pytest.raises(BudgetError, match="--budget"):
        run(session, story, RunSettings(budget=Budget(tokens=40)))


def test_the_model_writes_the_likeliest_tokens_of_a_whole_pass(session: Session) -> None:
    run = RunSettings(Budget(tokens=300), max_tokens=6)
    text, likely = session.write(run, "You count.", "one two three")
    request = Request(("one two three",), run, system="You count.", layout=Layout(""))
    prompt, tokenizer = session.settle(request).prompt, session.tokenizer
    ids = [*prompt.head, *prompt.tail("one two three")]
    shares, found = [], list[int]()
    for _ in range(6):
        hidden = session.model.forward(ids + found, session.model.new_cache(300))
        logits = session.model.logits(hidden[-1:])[0]
        best = int(logits.argmax())
        shares.append(float(logits.float().log_softmax(-1)[best]))
        if best in prompt.stop_ids:
            break
        found.append(best)
    assert text == tokenizer.decode(found)
    assert likely == pytest.approx(sum(shares) / len(shares), abs=1e-3)


def test_a_budget_without_room_to_write(session: Session) -> None:
    run = RunSettings(Budget(tokens=100), max_tokens=6)
    with pytest.raises(BudgetError):
        session.write(run, "You count.", "one two " * 200)
