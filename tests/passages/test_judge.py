"""Passages judged by the answering model: compared with the plain model, and bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cutting import excerpts_of
from transformers import AutoModelForCausalLM

from kvstream.answer import answering
from kvstream.answer.support import Calibration
from kvstream.errors import BudgetError
from kvstream.events import Answered, AnswerStarted, AnswerToken, Result
from kvstream.input.inspection import NamedStream
from kvstream.input.sources import open_sources
from kvstream.passages import memory as passages_memory
from kvstream.passages.excerpts import Excerpt
from kvstream.passages.judge import Judge
from kvstream.passages.memory import NEAR, PassageMemory, fitting, near_the_best
from kvstream.reporters.plain import skim_line
from kvstream.run.prompt import REFUSAL, build_prompt
from kvstream.run.request import Request
from kvstream.session import scouting
from kvstream.session import session as session_module
from kvstream.session.scouting import Scouting
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings
from kvstream.tokenization.passages import Passage

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


def test_passages_are_read_below_the_system_prompt(session: Session) -> None:
    request = Request((QUESTION,), RUN, system="Be brief.")
    assert session.whole(request, QUESTION).system == "Be brief."


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


def readings(session: Session, monkeypatch: pytest.MonkeyPatch, text: str) -> list[Result]:
    """Return the results of the two readings of a question, each made alone."""
    one = []
    for near in (lambda ranked: ranked, near_the_best):
        with monkeypatch.context() as patch:
            patch.setattr(Session, "calibrated", False)
            ranked = PassageMemory.ranked
            patch.setattr(
                PassageMemory,
                "ranked",
                lambda *of: lambda judge: near(ranked(*of)(judge)),  # noqa: B023
            )
            one.append(search(session, text))
    return one


@pytest.mark.parametrize("weaker", [0, 1])
def test_the_more_probable_of_two_answers_counts(
    refusing: Session, monkeypatch: pytest.MonkeyPatch, weaker: int
) -> None:
    text = f"{TEXT}\n\n{TEXT.replace('Ada', 'Eve')}\n\n" + "The rain fell on the old mill. " * 60
    monkeypatch.setattr(session_module, "JUDGES", refusing.model.parameters)
    alone = readings(refusing, monkeypatch, text)
    skims = [each.skim or {} for each in alone]
    assert skims[0]["pieces"] != skims[1]["pieces"]
    measured, runs = answering.measure, 0

    def attended(*of: Any) -> Any:
        nonlocal runs
        found, runs = measured(*of), runs + 1
        assert found is not None
        return replace(found, losses=torch.full((2,), 2.0 if runs - 1 == weaker else 0.1))

    monkeypatch.setattr(answering, "measure", attended)
    monkeypatch.setattr(scouting, "SURE", 2.0)
    sources = open_sources([NamedStream("t", text.encode(), plain=True)])
    events = list(Scouting(refusing).ask(sources, Request((QUESTION,), RUN)))
    [started] = [event for event in events if isinstance(event, AnswerStarted)]
    [result] = [event.result for event in events if isinstance(event, Answered)]
    likelier = alone[1 - weaker]
    assert (runs, result.answer, result.citations) == (2, likelier.answer, likelier.citations)
    assert result.skim is not None
    assert result.skim["pieces"] == skims[1 - weaker]["pieces"]
    other = {"answer": alone[weaker].answer, "tokens": skims[weaker]["tokens"]}
    assert result.skim["other"] == other
    assert " and compared 2 answers · " in str(skim_line(result))
    written = "".join(event.text for event in events if isinstance(event, AnswerToken))
    assert written.strip() == result.answer
    assert started.kept is not None
    assert started.kept().counts().sum() > 0  # memory has been released, but was asked before
    assert result.peak_kv_tokens == max(each.peak_kv_tokens for each in alone) <= BUDGET


def test_a_sure_answer_counts_alone(refusing: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "JUDGES", refusing.model.parameters)
    text = "\n\n".join([TEXT, TEXT.replace("Ada", "Eve"), TEXT])
    for sure, compared in ((0.0, False), (2.0, True)):
        monkeypatch.setattr(scouting, "SURE", sure)
        result = search(refusing, text)
        assert result.skim is not None
        assert (result.skim["other"] is not None) == compared


def test_a_refusal_names_what_both_readings_had(
    refusing: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "JUDGES", refusing.model.parameters)
    monkeypatch.setattr(scouting, "abstains", lambda text: True)
    monkeypatch.setattr(scouting, "SURE", 2.0)
    result = search(refusing, "\n\n".join([TEXT, TEXT.replace("Ada", "Eve"), TEXT]))
    assert result.skim is not None
    tokens = f"{result.skim['tokens']} and {result.skim['other']['tokens']} tokens of passages"
    assert f"The answer is not in the {tokens} that were read" in result.warnings[-1]


def test_the_text_near_the_best_passage_is_of_its_source() -> None:
    def excerpt(start: int, source: int = 0) -> Excerpt:
        return Excerpt((Passage(source, start, start + 200, 1, 1, "abc", 0.0),))

    best = excerpt(2000)
    around = [excerpt(2000 - NEAR), excerpt(2200), excerpt(2000 + NEAR)]
    outside = [excerpt(1999 - NEAR), excerpt(2001 + NEAR), excerpt(2300, source=1)]
    assert near_the_best([best, *outside, *around]) == [best, around[1], around[0], around[2]]


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
        best = passages.ranked(QUESTION, None, ())(Backwards())
        return fitting(best, session.tokenizer, sizes)

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
