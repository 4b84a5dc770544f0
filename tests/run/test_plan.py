"""How questions and their time determine the parts of a budget."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kvstream.errors import BudgetError
from kvstream.methods.base import EntryTensor, HeadTensor, ModelFacts
from kvstream.methods.recency import Window
from kvstream.run.plan import LATER_QUESTION, LATER_SHARE, RunPlan, budget_tokens, cache_bytes
from kvstream.run.request import Intervals, Request
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings

QUESTION = "Who hid the letter behind the old mill?"


def plan(session: Session, *questions: str, budget: int = 600, **more: Any) -> RunPlan:
    method = more.pop("method", "infinipot")
    run = RunSettings(Budget(tokens=budget), method, max_tokens=400)
    return RunPlan.of(session.model, session.tokenizer, Request(questions, run, **more))


def test_answers_that_may_not_compress_memory_get_half_of_the_room(session: Session) -> None:
    one = plan(session, QUESTION).sizes
    room = one.budget - one.prompt - one.question
    assert one.answer == room // 8
    assert plan(session, QUESTION, QUESTION + "?").sizes.answer > room // 3
    assert plan(session, QUESTION, every=Intervals(tokens=4096)).sizes.answer == room // 2


@pytest.mark.parametrize("budget", [600, 2048])
def test_a_question_that_is_not_known_yet_has_room(session: Session, budget: int) -> None:
    known = plan(session, "", budget=budget).sizes
    later = plan(session, budget=budget, command="remember").sizes
    assert later.question >= known.question + max(LATER_QUESTION, budget // LATER_SHARE)


def test_all_catalysts_have_room_where_passages_are_ranked_at_the_end(session: Session) -> None:
    """One question is asked at a time, but a chunk is followed by all questions' catalysts."""
    asked = QUESTION, "Who found it?"
    answers, extracts = plan(session, *asked), plan(session, *asked, extract=True)
    catalyst = sum(len(ids) for ids in extracts.catalysts)
    assert answers.sizes.catalyst == extracts.sizes.catalyst == catalyst
    assert answers.sizes.question < catalyst == extracts.sizes.question


@pytest.mark.parametrize("count", [1, 2, 9])
def test_the_budget_that_an_error_advises_is_enough(session: Session, count: int) -> None:
    """The catalysts of several questions take more entries than one question with its answer."""
    questions = [f"{QUESTION} {number}" for number in range(count)]
    with pytest.raises(BudgetError, match="of the 64 that a text needs") as refused:
        plan(session, *questions, budget=66)
    advised = int(re.search(r"--budget (\d+)", str(refused.value))[1])  # type: ignore[index]
    found = plan(session, *questions, budget=advised)
    reader = found.reader(session.model, RunSettings(Budget(tokens=advised), "infinipot"), 900)
    assert reader.schedule.chunk() >= 64
    with pytest.raises(BudgetError, match=f"--budget {advised} "):
        plan(session, *questions, budget=advised - 1)


@pytest.mark.parametrize("words", [10, 500, 1000, 3000])
def test_the_advised_budget_has_room_for_a_later_question(session: Session, words: int) -> None:
    """A larger budget gives a question that is not known yet more room."""
    more: Any = {"command": "remember", "system": "word " * words}
    with pytest.raises(BudgetError) as refused:
        plan(session, budget=66, **more)
    advised = int(re.search(r"--budget (\d+)", str(refused.value))[1])  # type: ignore[index]
    assert plan(session, budget=advised, **more).sizes.final >= 64


@dataclass(frozen=True)
class _Sketch(Window):
    """Stores more for a larger budget, and for more layers."""

    width: int = 0
    deep: int = 0

    def sized(self, budget: int) -> _Sketch:
        return replace(self, width=8 * budget)

    def fitted(self, model: ModelFacts) -> _Sketch:
        return replace(self, deep=len(model.layers))

    def tensors(self) -> tuple[EntryTensor, ...]:
        return tuple(EntryTensor(str(number)) for number in range(self.deep))

    def head_tensors(self) -> tuple[HeadTensor, ...]:
        return (HeadTensor("sketch", lambda *dims: (self.width,)),)


def test_a_budget_in_bytes_counts_what_depends_on_the_budget_and_the_model(
    session: Session,
) -> None:
    model, most = session.model, 1_000_000
    tokens = budget_tokens(model, Budget(bytes=most), _Sketch())
    method = _Sketch().sized(tokens).fitted(model.facts)
    cache = model.new_cache(tokens, method.tensors(), method.head_tensors())
    assert cache.capacity_bytes == cache_bytes(model, _Sketch(), tokens) <= most
    assert cache_bytes(model, _Sketch(), tokens + 1) > most
