"""All KV caches that exist at the same time are together within the budget in bytes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstream.api.model import Model
from kvstream.events import Answered, AnswerStarted, Result, StepDone
from kvstream.methods import registry
from kvstream.model.cache import BoundedCache
from kvstream.sample.document import make_facts
from kvstream.session.scouting import Scouting
from kvstream.session.session import Session

SEED, FACTS = 3, 6
FACT = make_facts(FACTS, SEED)[5]
BYTES = 2_000_000
UNLIKE = ("append", "bumblebee", "cascade", "edgeinfinite", "infinipot", "pyramidkv")
"""Methods whose caches differ in kind: with states of entries, of heads, layers of other sizes."""
EVICTING = sorted(name for name, method in registry.available().items() if method.evicts)


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Path:
    return write_story(tokens=1300, seed=SEED, facts=FACTS)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of the tensors of all caches, recorded at every pass of any cache."""
    there: weakref.WeakSet[BoundedCache] = weakref.WeakSet()
    seen: list[int] = []
    make, note = BoundedCache.__init__, BoundedCache.note_peak

    def made(cache: BoundedCache, *args: Any, **kwargs: Any) -> None:
        make(cache, *args, **kwargs)
        there.add(cache)

    def noted(cache: BoundedCache) -> None:
        note(cache)
        seen.append(sum(map(allocated, there)))

    monkeypatch.setattr(BoundedCache, "__init__", made)
    monkeypatch.setattr(BoundedCache, "note_peak", noted)
    return seen


def allocated(cache: BoundedCache) -> int:
    """Return the actual bytes of the tensors that `BoundedCache.capacity_bytes` counts."""
    return sum(
        tensor.nbytes
        for s in cache.stores
        for tensor in (s.keys, s.values, s.origin, *s.state.values(), *s.head_state.values())
    )


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=() if name in UNLIKE else pytest.mark.long) for name in EVICTING],
)
def test_two_models(session: Session, story: Path, live: list[int], method: str) -> None:
    both = Model(session, Scouting(session, session))
    answer = both.ask(story, FACT.question, budget="2MB", method=method, max_tokens=8)
    assert answer.result.skim is not None
    passed(answer.result, live)


def test_a_panel_can_show_what_was_kept_once_the_cache_is_gone(
    session: Session, story: Path
) -> None:
    """The panel counts the entries again when an answer begins."""
    model = Model(session, Scouting(session, session))
    step: StepDone | None = None
    counted, shares, retained = [], [], 0
    for event in model.stream(story, question=FACT.question, budget=320, max_tokens=8):
        if isinstance(event, StepDone):
            step = event
        if isinstance(event, AnswerStarted):
            assert step is not None
            counted.append(step.retained())
            shares.append(step.coverage(20))
        if isinstance(event, Answered):
            retained = event.result.retained
    assert counted == [retained]
    assert retained > 0
    assert [len(each) for each in shares] == [20]
    assert max(shares[0]) > 0


def passed(result: Result, live: list[int]) -> None:
    """Assert that the run evicted entries and that all caches stayed within its budget."""
    assert result.evicted > 0
    assert BYTES // 2 < max(live) <= BYTES
    assert result.budget_bytes <= BYTES


def test_a_folder_of_memories(
    session: Session, story: Path, live: list[int], tmp_path: Path
) -> None:
    model = Model(session)
    for name in ("a", "b", "c"):
        memory = model.read(story, questions=[FACT.question], budget="2MB", max_tokens=8)
        memory.save(tmp_path / f"{name}.kvs")
        memory.release()
    del memory
    live.clear()
    assert len(Model(session).memories(tmp_path).answers(FACT.question)) == 3
    assert BYTES // 2 < max(live) <= BYTES


def test_a_question_that_some_memories_have_no_room_for(
    session: Session, story: Path, tmp_path: Path
) -> None:
    """Such memories are reported as problems. The others answer."""
    model = Model(session)
    for budget in (300, 900):
        memory = model.read(story, questions=[FACT.question], budget=budget, max_tokens=8)
        memory.save(tmp_path / f"{budget}.kvs")
    memories = Model(session).memories(tmp_path)
    long = "Who " + "of all the people in the old house by the river " * 10 + "came?"
    [(ranked, _)] = memories.answers(long)
    assert ranked.path.name == "900.kvs"
    assert len(memories.problems) == 1
    assert "300.kvs: The question takes" in memories.problems[0]
