"""Question-answering records of several formats, converted to one.

The known formats are SQuAD-like lines (``context``, ``question`` or ``questions``, ``answers``),
LongBench's (``input``, ``context``, ``answers``; version 2 with ``choice_A`` to ``choice_D``),
L-Eval's (``input``, ``instructions``, ``outputs``) and multiple choice with ``options`` (or
``choices``) and a ``label`` or ``answer``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvstream.errors import SourceError
from kvstream.input import pseudo
from kvstream.input.sources import open_sources

T = TypeVar("T")
LETTERS = "ABCDEFGHIJ"
LONGEST_LINE = 16_000_000
"""Maximum number of characters of a record. A file without line ends may never end."""
NO_QUESTION = "What is the summary of the text?"
_LETTER = re.compile(r"\(?([A-Ja-j])(?:[.):].*)?", re.DOTALL)
"""An option given by its letter, such as B, (B) or B. with its text."""
_OPTION = re.compile(r"^[^\S\n]*\(?([A-J])[.)]\s*(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Question:
    text: str
    answers: tuple[str, ...]
    """Accepted answers; if empty, the context does not answer the question."""
    metric: str = "f1"
    """The usual score of the data set."""
    options: tuple[str, ...] = ()
    """The options of a multiple-choice question; the answer is one of them."""
    correct: int = -1
    """Index of the right option."""


@dataclass(frozen=True)
class Item:
    """A context with its questions, which are asked after one reading."""

    id: str
    document: str
    """The document of the context. Questions about one document are not independent."""
    context: str
    questions: tuple[Question, ...]
    record: dict[str, Any]


def load(paths: Sequence[str]) -> Iterator[Item]:
    """Yield items of NDJSON files, packed or not. Raise SourceError with a bad line's number."""
    needs = (
        "A record needs `context`, `question` (or `questions`) and `answers`, or the keys of "
        "LongBench or L-Eval."
    )
    for path in paths:
        yield from items(path, item, needs)


def items(path: str, parse: Callable[[Any, str], T], needs: str) -> Iterator[T]:
    """Yield `parse` of each line of JSON and its name. Raise SourceError with what it `needs`."""
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        try:
            yield parse(json.loads(line), f"{path}:{number}")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise SourceError(f"{path}, line {number}{_wrong(error)}. {needs}") from error


def _wrong(error: Exception) -> str:
    """Return what is wrong with a line, in words that follow its number."""
    if isinstance(error, KeyError):
        return f" has no {error.args[0]!r}"
    if isinstance(error, RecursionError):
        return " is nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f" is not JSON: {error}"
    if isinstance(error, ValueError):
        return f": {error}"
    return f" has another shape: {error}"


def lines(path: str) -> Iterator[str]:
    """Yield the lines of a file, packed or not, without line ends. Raise SourceError."""
    rest = ""
    if os.path.isfile(path) and pseudo.kind(os.stat(path)) is not None:  # it may never have data
        raise SourceError(f"{path} is a file of the kernel; records are in a file on disk.")
    for block in open_sources([path], plain=True):
        # Not splitlines: some of its line ends occur inside JSON strings.
        *whole, rest = (rest + block.text).split("\n")
        yield from whole
        if len(rest) > LONGEST_LINE:
            raise SourceError(
                f"{path} has a line of more than {LONGEST_LINE:,} characters; a record is one line."
            )
    yield rest


def item(record: dict[str, Any], name: str) -> Item:
    """Parse one record in one of the known formats."""
    if "instructions" in record:  # L-Eval
        context = record["input"]
        pairs = zip(record["instructions"], record["outputs"], strict=True)
        questions = tuple(_leval(q, a, str(record.get("evaluation", ""))) for q, a in pairs)
    elif "choice_A" in record:  # LongBench v2
        context = record["context"]
        options = tuple(str(record[f"choice_{c}"]) for c in LETTERS if f"choice_{c}" in record)
        questions = (_choice(record["question"], options, record["answer"]),)
    elif "input" in record and "context" in record:  # LongBench
        context = record["context"]
        question = record["input"].strip() or NO_QUESTION
        questions = (Question(question, _texts(record["answers"])),)
    else:
        context = record["context"]
        questions = tuple(_plain(q) for q in _questions_of(record))
    identity = str(record.get("id") or record.get("_id") or name)
    document = str(record.get("doc_id") or record.get("title") or identity)
    return Item(identity, document, text(context, "the context"), questions, record)


def _questions_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one object per question, from a single question, a list, or parallel lists."""
    if "questions" not in record:
        return [record]
    questions = record["questions"]
    if questions and isinstance(questions[0], dict):
        return list(questions)
    answers = record["answers"]
    if len(answers) != len(questions):
        raise ValueError(f"{len(questions)} questions and {len(answers)} lists of answers")
    return [{"question": q, "answers": a} for q, a in zip(questions, answers, strict=True)]


def _plain(record: dict[str, Any]) -> Question:
    question = record["question"]
    options = record.get("options") or record.get("choices")
    if options:
        if not isinstance(options, list):
            raise ValueError("its options are not a list")
        right = record.get("label", record.get("gold_label", record.get("answer")))
        if "gold_label" in record and "label" not in record:
            right = int(record["gold_label"]) - 1  # QuALITY counts from one
        return _choice(question, tuple(map(str, options)), right)
    answers = record["answers"] if "answers" in record else record["answer"]
    return Question(text(question, "the question"), _texts(answers))


def _texts(answers: Any) -> tuple[str, ...]:
    if isinstance(answers, dict):  # as in the hub's SQuAD
        answers = answers["text"]
    if isinstance(answers, str):
        answers = [answers]
    each = [a["text"] if isinstance(a, dict) else a for a in answers or ()]
    if not all(isinstance(a, str | int | float) for a in each):
        raise ValueError("an answer is not text")
    return tuple(dict.fromkeys(map(str, each)))


def _choice(question: str, options: tuple[str, ...], right: Any) -> Question:
    """Make a question; `right` is an index, a letter or the option. Raises ValueError."""
    answer = right.strip() if isinstance(right, str) else right
    same = [index for index, option in enumerate(options) if option.strip() == answer]
    if same:
        correct = same[0]
    elif isinstance(answer, str) and (letter := _LETTER.fullmatch(answer)):
        correct = LETTERS.index(letter[1].upper())
    elif isinstance(answer, int) or (isinstance(answer, str) and answer.isdecimal()):
        correct = int(answer)
    else:
        correct = -1
    if not 0 <= correct < len(options):
        raise ValueError(f"{right!r} names none, or not one, of the {len(options)} options")
    return Question(text(question, "the question"), (options[correct],), "choice", options, correct)


def text(value: Any, name: str) -> str:
    """Return `value` if it is a text that is not empty; otherwise raise ValueError."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is not text")
    return value


def _leval(question: str, answer: str, evaluation: str) -> Question:
    options = _OPTION.findall(question)
    letters = "".join(letter for letter, _ in options)
    if evaluation == "exam" and len(options) > 1 and letters == LETTERS[: len(options)]:
        stem = question[: question.index(_OPTION.search(question).group())]  # type: ignore[union-attr]
        return _choice(stem.strip(), tuple(text for _, text in options), answer)
    metric = "rouge_l" if evaluation == "rouge" else "f1"
    return Question(text(question, "the question"), _texts(answer), metric)
