"""An answer that loops is stopped and cut; an answer that only resembles itself is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from help_pages import commands
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from kvstream.answer import answering
from kvstream.answer.sampling import LEAST, LONGEST_PERIOD, Repetition, make_sampler
from kvstream.engine.reader import Reader
from kvstream.errors import UsageError
from kvstream.events import Answered, AnswerToken, Notice
from kvstream.input.sources import open_sources
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import RunSettings

SENTENCE = " He walks to the mill and brings the flour home."
QUESTION = "What is the passkey for the old mill?"


def words(text: str) -> list[str]:
    """Split a text as a tokenizer does: words with the space before them, each sign alone."""
    return re.findall(r" ?G(?=ide)|ide|2222| ?\w{1,5}|\s|[^\w\s]", text)


def kept(text: str) -> str | None:
    """Return the text up to and including one round of a loop, or None if there is no loop."""
    names: dict[str, int] = {}
    repetition = Repetition()
    for piece in words(text):
        repetition.push(names.setdefault(piece, len(names)), piece)
        if (count := repetition.count) is not None:
            return "".join(words(text)[:count])
    return None


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("It was the G" + "ide" * 300, "It was the Gide"),
        (
            "The old man is tired." + 8 * SENTENCE,
            "The old man is tired." + SENTENCE,
        ),
        ("Yes." + " no" * 100, "Yes. no"),
        ("x=" + "2222" * 400, "x=2222"),
        (
            "A, B." + 8 * "\nThe king sat down.\nThe queen stood up.",
            "A, B.\nThe king sat down.\nThe queen stood up.",
        ),
    ],
)
def test_a_loop_is_found_and_told_once(text: str, left: str) -> None:
    assert kept(text) == left


def test_a_loop_after_a_sentence_that_ends_alike_keeps_its_full_stop() -> None:
    found = kept("He is tall. He is kind to all of them. " + "He is kind to all of them. " * 9)
    assert found is not None
    assert found.rstrip() == "He is tall. He is kind to all of them."


@pytest.mark.parametrize(
    "text",
    [
        ", ".join(map(str, range(1, 200))),
        "\n".join(f"{i}. Item number {i}" for i in range(1, 80)),
        ", ".join(["0.5", "0.25", "0.125"] * 8),
        "\n".join("0 0 0 0 0 0" for _ in range(8)),
        "| " + " | ".join(["---"] * 20) + " |\n",
        "".join(f"| {d} | shut | shut | 0 |\n" for d in ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat")),
        "\n".join(f"| {i} | yes | no | yes | no | n/a |" for i in range(1, 40)),
        "Row, row, row your boat. " + "Merrily, merrily, merrily, life is but a dream. " * 2,
        "\n".join(
            f"The {a} came over the hill,\nOver the hill and away,\nSing ho for the {b}, sing ho,\n"
            "Over the hill and away.\n"
            for a, b in (("fox", "hen"), ("hare", "corn"), ("owl", "moon"), ("crow", "rain"))
        ),
        "Ding dong, ding dong, ding dong, ding dong, the bells rang: ding dong, ding dong.",
        ("Will they come back?\nNever again.\n" * 2 + "Will they write?\nNever again.\n") * 3,
        "Ha" + " ha" * 30 + "!",
        "for i in range(10):\n    print(i)\n" * 3,
        SENTENCE * 4,
    ],
)  # fmt: skip
def test_lists_tables_and_refrains_are_no_loops(text: str) -> None:
    assert kept(text) is None


def test_nothing_is_held_back_for_long_once_it_goes_on() -> None:
    repetition = Repetition()
    for token in [1, 2, 3, 1, 2, 3]:
        repetition.push(token, "x")
    assert repetition.open == 3
    repetition.push(9, "x")
    assert repetition.open == 0


def test_a_period_that_is_too_long_is_a_refrain() -> None:
    repetition = Repetition()
    for token in list(range(LONGEST_PERIOD + 1)) * 6:
        repetition.push(token, "x")
        assert repetition.count is None


def test_the_penalty_is_transformers_own_over_the_answer_alone() -> None:
    logits = torch.tensor([2.0, 1.5, -1.0, 1.9])
    choose = make_sampler(RunSettings(repetition_penalty=1.5))
    assert [choose(logits.clone()) for _ in range(3)] == [0, 3, 1]
    asked = RepetitionPenaltyLogitsProcessor(1.5)
    want = asked(torch.tensor([[0, 3, 1]]), logits[None].clone())[0].argmax()
    assert choose(logits.clone()) == int(want)
    whole = RunSettings(repetition_penalty=2, temp=1, top_k=3)
    assert make_sampler(whole)(logits.clone()) in (0, 1, 3), "whole numbers are numbers"
    plain = make_sampler(RunSettings())
    assert [plain(logits) for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("value", [0.5, 0.0, float("nan"), float("inf")])
def test_a_penalty_below_one_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="repetition-penalty must be 1 or more"):
        RunSettings(repetition_penalty=value)


def says(monkeypatch: pytest.MonkeyPatch, session: Session, text: str) -> list[int]:
    """Make the model answer `text`, up to its token limit, and return the tokens of `text`."""
    ids = session.tokenizer.encode(text)

    def answer(self: Reader, *args: Any, **more: Any) -> Iterator[int]:
        self.begin()
        self.stopped = "interrupted"
        for count, token in enumerate(ids):
            if count == args[3]:
                break
            yield token
        self.stopped = "length" if count == args[3] else "end"

    monkeypatch.setattr(Reader, "answer", answer)
    return ids


def asked(session: Session, path: Path, **more: Any) -> tuple[list[Any], Any]:
    events = list(session.ask(open_sources([str(path)]), Request((QUESTION,), RunSettings(**more))))
    return events, next(e.result for e in events if isinstance(e, Answered))


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_text("The passkey for the old mill is 70615. It rained all night.\n")
    return path


def test_a_looping_answer_ends_and_is_cut(
    session: Session, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, session, "The old man is tired." + 40 * SENTENCE)
    events, result = asked(session, note)
    assert result.answer == "The old man is tired." + SENTENCE
    assert result.stopped == "repetition"
    assert LEAST < result.generated < 100 < RunSettings().max_tokens
    assert any("repeated itself" in w and "--repetition-penalty" in w for w in result.warnings)
    assert any("repeated itself" in e.message for e in events if isinstance(e, Notice))
    streamed = "".join(e.text for e in events if isinstance(e, AnswerToken))
    assert streamed.strip() == result.answer


def test_a_warning_of_one_answer_is_not_one_of_the_next(
    session: Session, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = iter(["The old man is tired." + 40 * SENTENCE, "It rained."])

    def answer(self: Reader, *args: Any, **more: Any) -> Any:
        says(monkeypatch, session, next(said))
        try:
            yield from Reader.answer(self, *args, **more)
        finally:
            monkeypatch.setattr(Reader, "answer", answer)

    monkeypatch.setattr(Reader, "answer", answer)
    request = Request((QUESTION, "What did it do all night?"), RunSettings())
    events = list(session.ask(open_sources([str(note)]), request))
    first, second = (e.result for e in events if isinstance(e, Answered))
    assert any("repeated itself" in w for w in first.warnings)
    assert not any("repeated itself" in w for w in second.warnings)


@pytest.mark.parametrize("times", [1, 3])
def test_what_only_looks_like_a_loop_is_written_whole(
    session: Session, note: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    text = "The old man is tired." + times * SENTENCE
    says(monkeypatch, session, text)
    events, result = asked(session, note)
    assert (result.answer, result.stopped) == (text, "end")
    assert not any("repeat" in warning for warning in result.warnings)
    assert "".join(e.text for e in events if isinstance(e, AnswerToken)) == text


def test_the_penalty_reaches_the_answer(
    session: Session, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunSettings] = []
    made = answering.make_sampler

    def noted(run: RunSettings, *more: Any) -> Callable[[torch.Tensor], int]:
        seen.append(run)
        return made(run, *more)

    monkeypatch.setattr(answering, "make_sampler", noted)
    asked(session, note, repetition_penalty=1.3, max_tokens=4)
    assert [run.repetition_penalty for run in seen] == [1.3]


@pytest.mark.parametrize("command", ["ask", "summarize", "compare", "chat"])
def test_every_command_that_answers_has_the_penalty(command: str) -> None:
    options = [name for param in commands()[command].params for name in param.opts]
    assert "--repetition-penalty" in options


def test_a_penalty_out_of_range_is_a_usage_error(cli: Callable[..., Any], note: Path) -> None:
    ran = cli("ask", str(note), QUESTION, "--repetition-penalty", "0.5")
    assert ran.code == 2
    assert "repetition-penalty" in ran.stderr
