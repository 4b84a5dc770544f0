"""Passages judged by the answering model: compared with the plain model, and bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from kvstream.answer.support import Calibration
from kvstream.errors import BudgetError
from kvstream.events import Answered, Result
from kvstream.input.inspection import NamedStream
from kvstream.input.sources import open_sources
from kvstream.passages import memory as passages_memory
from kvstream.passages.excerpts import Excerpt, excerpts_of
from kvstream.passages.judge import Judge
from kvstream.passages.memory import PassageMemory
from kvstream.reporters.plain import skim_line
from kvstream.run.prompt import REFUSAL, build_prompt
from kvstream.run.request import Request
from kvstream.session import session as session_module
from kvstream.session.scouting import Scouting
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings

BUDGET = 200
RUN = RunSettings(Budget(tokens=BUDGET), max_tokens=8)
QUESTION = "Where did Ada hide the letter?"
TEXT = "\n\n".join(
    [
        "Ada wrote a letter to Tom in the morning. The letter was long, and Tom was pleased. " * 3,
        "Ada put it under the third stair, and told nobody. The rain fell on the town. " * 3,
        "Tom read the letter of Ada again. Ada was gone by then, and the letter was old. " * 3,
    ]
)


def excerpts(text: str = TEXT) -> list[Excerpt]:
    return list(excerpts_of(open_sources([NamedStream("t", text.encode(), plain=True)])))


@pytest.fixture
def refusing(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose model has a limit for refusals."""
    shipped = Calibration.of(session.model.facts.folder)
    assert shipped is not None
    limited = replace(shipped, refusal_limit=0.5)
    monkeypatch.setattr(Calibration, "of", classmethod(lambda cls, *where: limited))
    return session


def judge_of(session: Session) -> Judge:
    whole = session.whole(Request((QUESTION,), RUN), QUESTION)
    judge = session.judge(whole, QUESTION, session.passage_sizes(whole)[0])
    assert judge is not None
    return judge


def test_a_model_without_a_limit_for_refusals_reranks_nothing(session: Session) -> None:
    whole = session.whole(Request((QUESTION,), RUN), QUESTION)
    assert session.judge(whole, QUESTION, BUDGET) is None


def test_a_large_model_does_not_judge(refusing: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "JUDGES", refusing.model.parameters)
    whole = refusing.whole(Request((QUESTION,), RUN), QUESTION)
    assert refusing.judge(whole, QUESTION, BUDGET) is None


def test_the_odds_are_those_of_the_plain_model(refusing: Session) -> None:
    tokenizer, model = refusing.tokenizer, refusing.model
    plain = AutoModelForCausalLM.from_pretrained(model.facts.folder, dtype=model.dtype)
    prompt = build_prompt(tokenizer)
    refusal = [tokenizer.encode(start + REFUSAL)[0] for start in ("", " ")]
    expected = []
    for excerpt in excerpts():
        ids = [*prompt.head, *tokenizer.encode(excerpt.text), *prompt.tail(QUESTION)]
        with torch.inference_mode():
            logits = plain(torch.tensor([ids])).logits[0, -1].float()
        others = [i for i in range(len(logits)) if i not in refusal]
        expected.append(float(logits[others].max() - logits[refusal].max()))
    judge = judge_of(refusing)
    once = judge(excerpts())
    np.testing.assert_allclose(once, expected, atol=2e-2)
    np.testing.assert_array_equal(judge(excerpts()), once)  # the order leaves no trace
    assert judge.judged == 2 * len(expected)
    assert judge.reader.cache.peak.tokens <= BUDGET


def test_an_excerpt_that_does_not_fit_is_not_read(refusing: Session) -> None:
    judge = judge_of(refusing)
    assert set(judge(excerpts("rain and " * 400)).tolist()) == {-np.inf}
    assert judge.judged == 0
    with pytest.raises(BudgetError, match="No passage of the text fits"):
        search(refusing, "rain and " * 400)


def search(session: Session, text: str, run: RunSettings = RUN) -> Result:
    sources = open_sources([NamedStream("t", text.encode(), plain=True)])
    events = Scouting(session).ask(sources, Request((QUESTION,), run))
    return next(event.result for event in events if isinstance(event, Answered))


def test_a_search_reads_what_the_model_ranks_first(
    refusing: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXT + "\n\n" + TEXT.replace("Ada", "Eve")
    every = excerpts(text)
    wanted = every[4]

    def judged(self: Judge, some: Sequence[Excerpt]) -> np.ndarray:
        self.judged += len(some)
        return np.array([99.0 * (excerpt.start == wanted.start) for excerpt in some])

    monkeypatch.setattr(Judge, "__call__", judged)
    monkeypatch.setattr(passages_memory, "LEAST_SHARE", 0.0)
    result = search(refusing, text)
    assert result.skim is not None
    assert wanted.start in [piece["byte_start"] for piece in result.skim["pieces"]]
    assert result.skim["judged"] == len(every)
    assert f"judged {len(every)} passages and read " in str(skim_line(result))
    assert result.peak_kv_tokens <= result.budget_tokens


def test_only_the_best_passages_are_reranked(
    session: Session, write_story: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passages_memory, "MOST", 3)
    monkeypatch.setattr(passages_memory, "LEAST_SHARE", 0.0)
    text = write_story(tokens=900, seed=1, facts=2).read_text()
    kept = PassageMemory(10**6, (QUESTION,))
    for block in open_sources([NamedStream("t", text.encode(), plain=True)]):
        kept.feed(block)
    kept.note(len(text.encode()), final=True)
    sizes = 10**6, 10**6
    seen: list[list[Excerpt]] = []

    class Backwards(Judge):
        def __init__(self) -> None:
            pass

        def __call__(self, excerpts: Sequence[Excerpt]) -> np.ndarray:
            seen.append(list(excerpts))
            return 100.0 * np.arange(len(excerpts))

    def choose(passages: PassageMemory, sizes: tuple[int, int]) -> list[Excerpt]:
        ranking = passages.ranked(QUESTION, None, ())
        return passages.chosen(ranking, session.tokenizer, sizes, Backwards())

    everything = choose(kept, sizes)
    assert everything == kept.excerpts
    assert len(seen[0]) == 3
    best = choose(kept, (10**6, 1))
    assert best == [seen[1][-1]]
    monkeypatch.setattr(passages_memory, "LEAST_SHARE", 1.0)
    choose(kept, sizes)
    assert seen[2] == seen[0][:1]
    nothing = PassageMemory(1, (QUESTION,))
    with pytest.raises(BudgetError, match="No passage of the text fits"):
        choose(nothing, sizes)
