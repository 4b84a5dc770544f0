"""Warnings about an answer that may be wrong, and about a refusal after eviction."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvstream.answer import answering
from kvstream.answer.answering import (
    NO_SUMMARY,
    NOT_SUPPORTED,
    _limit,
    answer,
    result_of,
    with_remedy,
)
from kvstream.answer.citations import Basis
from kvstream.answer.sampling import RefusalLimit, Repetition, make_sampler
from kvstream.answer.support import FILE, Calibration, Support, absent, abstains, judge
from kvstream.api.model import Model
from kvstream.errors import ModelError
from kvstream.events import Answered, AnswerToken, Result, returned
from kvstream.input.sources import open_sources
from kvstream.memory.contents import Memory
from kvstream.memory.saving import look as open_file
from kvstream.memory.saving import recall, save
from kvstream.reporters.citation_lines import coverage_line
from kvstream.run.request import Request
from kvstream.session.scouting import Scouting
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream.store import pocket
from kvstream.tokenization.forms import WordForms
from kvstream.tokenization.passages import Passage

LEASE = """RESIDENTIAL LEASE

This lease is made on 3 March 2024 between Harriet Osgood, the landlord, and Benedict Marlow, the \
tenant. The landlord lets to the tenant the flat on the second floor of 14 Quarry Lane, Wexcombe, \
for a term of eighteen months, beginning on 1 April 2024.

The rent is 1,150 pounds a month and is paid on the first day of every month by bank transfer. If \
the rent is more than seven days late, the tenant pays a charge of 40 pounds. The tenant has paid \
a deposit of 1,725 pounds, which the landlord keeps with the Fairhold scheme and returns within \
ten days after the end of the lease.

The tenant pays for gas, water and electricity. The landlord pays the insurance of the building. \
The landlord repairs the roof, the boiler and the windows; the tenant tells her of damage within \
three days. Repairs are arranged through Colin Peake, the caretaker, who lives on the ground floor.

No pets are allowed except one cat. Smoking is allowed on the balcony only. The tenant may end the \
lease with two months of notice in writing. Any dispute goes to the county court in Wexcombe.
"""
EVERYTHING = RunSettings(Budget(tokens=1024), max_tokens=24)


@pytest.fixture
def lease(tmp_path: Path) -> Path:
    path = tmp_path / "lease.txt"
    path.write_text(LEASE)
    return path


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Path:
    return write_story(tokens=1500, seed=3, facts=4)


def remember(session: Session, path: Path, run: RunSettings, *questions: str) -> Memory:
    return returned(session.read(open_sources([str(path)]), Request(questions, run)))


def says(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Make the model give this answer."""

    def write(memory: Memory, tail: Any, repetition: Repetition, *_: Any, **__: Any) -> Any:
        repetition.tokens += memory.tokenizer.encode(f" {answer}", continuing=True)
        memory.reader.stopped = "end"
        yield answer

    monkeypatch.setattr(answering, "_pieces", write)


def result(memory: Memory, question: str, **how: Any) -> Result:
    return next(e.result for e in answer(memory, question, **how) if isinstance(e, Answered))


def forms(text: str) -> WordForms:
    made = WordForms()
    made.add(text)
    return made


@pytest.mark.parametrize(
    ("answer", "marked"),
    [
        ("555-0199", ("555-0199",)),
        ("555-0142", ()),
        ("Call Harriet at 555-0199 or 555 0142.", ("555-0199",)),
        ("Benedict Osgood", ("Benedict",)),
        ("Harriet Osgood", ()),
        ("Osgood's", ()),
        ("It is Marlow.", ("Marlow",)),
        ("Unfortunately the text tells of Harriet alone.", ()),
        ("Lord Osgood, 1,150 pounds", ("Lord", "1,150")),
        ("Yes", ()),
        ("Is it 7?", ()),
        ("Then it is plan Q of Osgood", ()),
        ("the Zebra asked for", ()),
        ("房东是 Harriet", ()),
    ],
)
def test_numbers_and_names_that_the_text_lacks_are_found(answer: str, marked: Any) -> None:
    text = forms("Harriet Osgood, telephone 555-0142, owns the text; it is of 9 rooms.")
    assert absent(answer, "What is the number 7 of the Zebra?", text) == marked


def test_a_warning_shortens_a_word_without_end() -> None:
    (told,) = Support(absent=("La" * 300, "Anna")).doubts
    assert told.endswith(f": {'La' * 18}L..., Anna")


def test_a_number_that_is_not_in_the_text_is_marked(
    session: Session, lease: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = remember(session, lease, EVERYTHING, "What is the phone number?")
    says(monkeypatch, "555-0199")
    told = result(memory, "What is the phone number of the landlord?")
    assert told.answer == "555-0199"
    assert told.absent == ("555-0199",)
    assert told.to_json()["not_in_text"] == ["555-0199"]
    assert "not in the text: 555-0199" in told.warnings[-1]
    strict = result(memory, "What is the phone number of the landlord?", strict=True)
    assert (strict.answer, strict.withheld) == (NOT_SUPPORTED, "555-0199")
    says(monkeypatch, "Harriet Osgood")
    assert result(memory, "Who is the landlord?").absent == ()


def test_the_whole_text_counts_and_not_what_memory_kept(
    session: Session, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(EVERYTHING, budget=Budget(tokens=256), method="streaming")
    memory = remember(session, story, run, "Who?")
    memory.trace.prune(memory.reader.retained())
    held = " ".join(p.text for p in memory.trace.passages.all())  # type: ignore[union-attr]
    lost = next(w for w in story.read_text().split() if w.isalpha() and w not in held)
    assert memory.trace.words is not None
    assert memory.trace.words.has_word(lost), "it was read, though memory has lost it"
    says(monkeypatch, f"{lost.capitalize()} Zzyzx")
    assert result(memory, "Who?").absent == ("Zzyzx",)


def test_an_old_memory_file_knows_the_words_that_it_kept(
    session: Session, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(EVERYTHING, budget=Budget(tokens=300))
    memory = remember(session, story, run, "Who?")
    new, old = tmp_path / "new.kvs", tmp_path / "old.kvs"
    save(memory, new)
    kept = recall(open_file(new), session.model, session.tokenizer, run)
    assert kept.trace.words is not None
    assert memory.trace.words is not None
    assert kept.trace.words.packed() == memory.trace.words.packed()
    monkeypatch.setattr(WordForms, "packed", lambda self: b"")
    save(memory, old)
    assert "trace.words" not in open_file(old).content.tensors
    before = recall(open_file(old), session.model, session.tokenizer, run)
    assert before.trace.words is None
    says(monkeypatch, "555-0199")
    told = result(before, "Who?").warnings[-1]
    assert "of the text): 555-0199" in told


def test_a_refusal_after_forgetting_says_how_little_was_kept(
    session: Session, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = "What is the name of the cat?"
    run = replace(EVERYTHING, budget=Budget(tokens=256), method="cascade")
    memory = remember(session, story, run, question)
    says(monkeypatch, "not in the text")
    told = result(memory, question, strict=True)
    assert told.evicted
    assert told.answer == "not in the text", "the answer stays the model's, and is no claim"
    assert told.withheld is None
    assert told.to_json()["support"]["probability"] is None, "a refusal has none"
    share = f"{told.coverage['share']:.0%}"  # type: ignore[index]
    assert f"not in what memory kept (parts of {share} of the text)" in told.warnings[-1]
    assert "Low confidence" not in told.warnings[-1]
    nearly_all = replace(told, coverage={**(told.coverage or {}), "share": 0.996})
    kept = f"not in what memory kept ({told.retained:,} of {told.read:,} tokens)"
    assert kept in with_remedy(nearly_all, 10**6).warnings[-1]


def test_a_refusal_after_ctrl_c_is_of_what_was_read(
    session: Session, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, "not in the text")
    steps: list[int] = []

    def interrupted() -> bool:
        steps.append(0)
        return len(steps) > 6

    run = replace(EVERYTHING, budget=Budget(tokens=256))
    request = Request(("Who?",), run, interrupted=interrupted)
    events = list(session.ask(open_sources([str(story)]), request))
    told = events[-1].result  # type: ignore[union-attr]
    assert told.to_json()["interrupted"] is True
    stopped, refusal = told.warnings
    assert stopped.startswith(f"Reading was stopped after {told.read:,} tokens of about ")
    assert f"the first {told.read:,} tokens" in refusal
    assert "let it read to the end" in refusal
    assert "of what was read is represented" in str(coverage_line(told, pictures=False))


def test_a_refusal_is_of_the_passages_that_were_read(
    session: Session, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, "not in the text")
    run = replace(EVERYTHING, budget=Budget(tokens=300))
    events = list(
        Scouting(session, session).ask(open_sources([str(story)]), Request(("Who?",), run))
    )
    told = events[-1].result  # type: ignore[union-attr]
    assert told.skim is not None
    tokens = told.skim["tokens"]
    assert 0 < tokens < told.read
    assert f"not in the {tokens:,} tokens of passages that were read" in told.warnings[-1]


def test_a_refusal_about_a_text_held_whole_needs_no_warning(
    session: Session, lease: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = remember(session, lease, EVERYTHING, "Who?")
    says(monkeypatch, "not in the text")
    assert result(memory, "How many bedrooms does the flat have?").warnings == ()


def test_no_answer_at_all_is_told(
    session: Session, lease: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = remember(session, lease, EVERYTHING, "Who?")
    says(monkeypatch, "")
    monkeypatch.setattr(answering, "_pieces", lambda *_, **how: iter([""]))
    memory.reader.stopped = "end"
    assert result(memory, "Who?").warnings == ("The model gave no answer. Check the text.",)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("not in the text", (NO_SUMMARY,)),
        (" ", (NO_SUMMARY,)),
        ("A flat is let.", ()),
        ("A flat is let to Ada from May on, and the lease does not say what the rent will be.", ()),
    ],
)
def test_a_summary_that_is_none_is_told(
    session: Session, lease: Path, monkeypatch: pytest.MonkeyPatch, said: str, told: Any
) -> None:
    memory = returned(
        session.read(open_sources([str(lease)]), Request((), EVERYTHING, command="summarize"))
    )
    says(monkeypatch, said)
    assert result(memory, "").warnings == told


def test_wrong_answers_about_a_lease_are_doubted_and_right_ones_not(
    whole_session: Session, lease: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(question: str, answer: str) -> Result:
        memory = remember(whole_session, lease, EVERYTHING, question)
        says(monkeypatch, answer)
        return result(memory, question)

    wrong = asked("Who is the tenant?", "a month and is paid on the first day of every month")
    assert "Low confidence" in wrong.warnings[-1]
    assert "and the main passage has few words of the question. Check" in wrong.warnings[-1]
    assert asked("Who is the tenant?", "the tenant").warnings
    assert asked("When is the rent paid?", "on the first day of every month").warnings == ()


def test_every_number_type_has_the_calibration_that_ships() -> None:
    for settings in (ModelSettings(dtype="bfloat16"), ModelSettings(quantize="int8")):
        found = Calibration.of(Session.open(settings).model.facts.folder)
        assert found is not None
        assert found.probability(dict.fromkeys(found.weights, 0.0)) < 1
        assert 0 < found.threshold < 1


def test_a_model_without_a_calibration_is_not_doubted(session: Session, lease: Path) -> None:
    assert Calibration.of("") is None
    guess = Basis((), (), 0.1, 0.1, -9.0)
    told = judge(None, guess, "Who?", "Harriet and 99", forms("Harriet"), "the text")
    assert told.probability is None
    assert told.doubts == ("The answer has words that are not in the text: 99",)


def test_a_refusal_must_be_surer_than_the_limit() -> None:
    refusal = RefusalLimit((3, 5), 1.5)
    for odds, chosen in ((1.0, 7), (2.0, 3)):
        logits = torch.zeros(9)
        logits[7], logits[3] = 4.0, 4.0 + odds
        kept = logits.clone()
        choose = make_sampler(RunSettings(), refusal)
        assert choose(logits) == chosen
        assert torch.equal(logits, kept)
        assert choose(logits) == 3  # the limit applies only to the first token
    assert make_sampler(RunSettings())(logits) == 3


def test_the_limit_comes_from_the_calibration_of_the_weights(
    session: Session, lease: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = remember(session, lease, EVERYTHING, "Who is the tenant?")
    said = result_of(memory, "Who is the tenant?")[0].answer
    assert not abstains(said)
    shipped = Calibration.of(session.model.facts.folder)
    assert shipped is not None
    assert shipped.refusal_limit == 0
    eager = replace(shipped, refusal_limit=-1000.0)
    monkeypatch.setattr(Calibration, "of", classmethod(lambda cls, *where: eager))
    assert result_of(memory, "Who is the tenant?")[0].answer.startswith("not")
    summary = Request((), EVERYTHING, command="summarize")
    reading = returned(session.read(open_sources([str(lease)]), summary))
    assert _limit(reading) is None  # the limit applies to questions only


def test_the_calibration_is_read_once_for_each_model(
    session: Session, lease: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    read_text = Path.read_text

    def noted(path: Path, *how: Any) -> str:
        read.append(path)
        return read_text(path, *how)

    monkeypatch.setattr(Path, "read_text", noted)
    Calibration.of.cache_clear()
    memory = remember(session, lease, EVERYTHING, "Who is the tenant?")
    for _ in range(2):
        assert result_of(memory, "Who is the tenant?")[0].support is not None
    assert [path.name for path in read].count(FILE) == 1


def test_a_damaged_calibration_is_an_error_with_its_name(tmp_path: Path) -> None:
    shipped = json.loads((pocket.path() / FILE).read_text())
    for broken in ([], {}, {**shipped, "weights": {"other": 1.0}}, {**shipped, "bias": "x"}):
        (tmp_path / FILE).write_text(json.dumps(broken))
        with pytest.raises(ModelError, match=r"support\.json is not a valid calibration"):
            Calibration.of(tmp_path)
    for text in ("[" * 100_000, json.dumps({**shipped, "bias": 10**400})):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(ModelError, match=r"support\.json is not a valid calibration"):
            Calibration.of(tmp_path)


def test_a_probability_below_the_limit_is_a_doubt() -> None:
    passage = Passage(0, 0, 5, 1, 1, "The tenant is Marlow.", 0.9)
    certain = Basis((passage,), (), 0.9, 0.9, -0.1)
    calibration = Calibration(0.0, {"mean": 1.0, "asked_in_first": 2.0}, 0.6)
    told = judge(calibration, certain, "Who is the tenant?", "Marlow", None, "the text")
    assert told.probability == pytest.approx(1 / (1 + math.exp(-(math.log(0.9) + 2))))
    assert told.doubts == ()
    told = judge(
        calibration, replace(certain, confidence=1e-4), "Who is the tenant?", "M", None, "it"
    )
    assert told.doubts == ("Low confidence (0%)",), "one passage is clear"
    spread = replace(certain, citations=(replace(passage, weight=0.4),))
    told = judge(calibration, replace(spread, confidence=1e-4), "Who is the tenant?", "M", None, "")
    assert told.doubts == ("Low confidence (0%), and no clear passage supports it",)
    told = judge(calibration, replace(certain, confidence=1e-4), "Which pets live?", "M", None, "")
    assert told.doubts == (
        "Low confidence (0%), and the main passage has few words of the question",
    )


def test_strict_withholds_what_is_doubtful(
    session: Session, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = remember(session, story, EVERYTHING, "Who?")
    for threshold, withheld in ((0.0, False), (1.0, True)):
        limit = Calibration(0.0, {"mean": 0.1}, threshold)
        monkeypatch.setattr(Calibration, "of", lambda *_, limit=limit: limit)
        events = list(answer(memory, "Who?", strict=True))
        told = events[-1].result
        assert (told.withheld is not None) == withheld
        assert (told.answer == NOT_SUPPORTED) == withheld
        shown = "".join(e.text for e in events if isinstance(e, AnswerToken))
        assert shown.strip() == told.answer, "what is withheld must not have been streamed"


def test_the_numbers_are_shown_with_v_alone(cli, lease) -> None:
    asked = ("ask", str(lease), "When is the rent paid?", "--budget", "512")
    assert "probability that the answer is right" not in cli(*asked).stderr
    assert "probability that the answer is right" in cli(*asked, "-v").stderr


@pytest.mark.parametrize(
    ("budget", "advice"),
    [
        (300, "with a larger --budget."),
        (4096, "Use words of the text in the question, or --skim self"),
    ],
)
def test_a_refusal_advises_no_budget_past_the_trained_length(session, budget, advice) -> None:
    memory = Model(session).read(text="The mill is old. " * 400, budget=300, max_tokens=4)
    result = replace(memory.ask("Who?").result, budget_tokens=budget, interrupted=False)
    assert advice in with_remedy(result, 4096).warnings[-1]


@pytest.mark.whole_pocket
def test_tokens_that_some_heads_evicted_are_told(cli, tmp_path, monkeypatch) -> None:
    """Each token is in some head, so that none counts as evicted."""
    text = tmp_path / "mill.txt"
    text.write_text("".join(f"The mill number {n} is old. " for n in range(31)))
    says(monkeypatch, "not in the text")
    asked = ("--budget", "256", "--method", "keydiff", "-n", "4", "-m", "pocket")
    ran = cli("ask", str(text), "Who?", *asked)
    assert "not in what memory kept of the text (each token, but not in each head)" in ran.stderr
    assert "kept each token, but not in each head: no room" in ran.stderr
    assert "not in each head" in cli("remember", str(text), "-o", f"{text}.kvs", *asked).stderr


@pytest.mark.parametrize(
    ("sources", "told"),
    [(["a.txt"], "of a.txt, which has most"), (["a.txt", "b.txt"], "of a.txt, b.txt, which have")],
)
def test_a_refusal_names_the_sources_that_it_saw(session, sources, told) -> None:
    result = Model(session).read(text="The mill is old.", budget=300, max_tokens=4).ask("Who?")
    narrowed = replace(result.result, narrowed={"sources": sources})
    assert told in with_remedy(narrowed, 4096).warnings[-1]


@pytest.mark.parametrize(
    ("question", "answer", "repeats"),
    [
        ("Who is Estella's father?", "Estella's Father", True),
        ("Who is the guarantor?", "Guarantor", True),
        ("Who is Estella's father?", "Abel Magwitch", False),
        ("Who investigated the murders?", "Investigators of the murder", True),
        ("Which exception does an assert statement raise?", "AssertionError", False),
        ("Is it late?", "Yes", False),
        ("How many boats?", "4 boats", False),
    ],
)
def test_an_answer_that_repeats_the_question_is_doubted(
    question: str, answer: str, repeats: bool
) -> None:
    found = judge(None, answering.NOTHING, question, answer, None, "the text")
    assert found.repeats == repeats
    assert ("The answer only repeats words of the question" in found.doubts) == repeats
