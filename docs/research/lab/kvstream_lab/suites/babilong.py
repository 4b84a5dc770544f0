"""The facts of bAbI's stories among the sentences of another text, and a question about them.

Kuratov et al., "BABILong: Testing the Limits of LLMs with Long Context Reasoning-in-a-Haystack",
section 3. The stories are the user's copy of Weston et al., "Towards AI-Complete Question
Answering: A Set of Prerequisite Toy Tasks". The score is that of the authors' ``metrics.py``
(repository booydar/babilong), in a new implementation. There is no instruction and no example
before the text, so the scores compare methods and models with each other, not with published
scores.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kvstream.errors import SourceError, UsageError
from kvstream.evaluation.datasets import lines
from kvstream.evaluation.filler import Filler
from kvstream.evaluation.records import digest
from kvstream.tokenization.loading import Tokenizer
from kvstream_lab.suites.task import Sample, Task, hidden

TASKS = ("qa1", "qa2", "qa3", "qa4", "qa5")
_LINE = re.compile(r"(\d{1,9}) +(\S.*)")
_SPLIT = re.compile(r" *[\t|] *")
"""Separator between a question and its answer: a tab, in some copies a vertical bar."""


@dataclass(frozen=True)
class Question:
    """A question at some point of a story."""

    text: str
    answer: str
    facts: int
    """Number of facts of the story before it."""


@dataclass(frozen=True)
class Story:
    """Facts in their order, and the questions between them."""

    name: str
    facts: tuple[str, ...]
    questions: tuple[Question, ...]


def loaded(folder: Path, name: str) -> Task:
    """Return a task with a folder's stories. Raise SourceError for missing or damaged files."""
    if not folder.is_dir():
        raise SourceError(
            f"{folder} is not a folder. For babilong, --data names the folder of bAbI's files, "
            "for example tasks_1-20_v1-2/en."
        )
    pattern = f"{name}_*_test.txt"
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SourceError(
            f"{folder} has {len(found) or 'no'} files {pattern}, and {name} needs one. --data "
            "names the folder of bAbI's files, for example tasks_1-20_v1-2/en."
        )
    read = stories(str(found[0]), name)
    candidates = frozenset(q.answer.lower() for story in read for q in story.questions)
    score = partial(right, candidates=candidates)
    return Task(name, partial(make, name, read), 32, score, digest(read))


def stories(path: str, task: str) -> tuple[Story, ...]:
    """Read the stories of one of bAbI's files. Raise SourceError with the number of a bad line."""
    found: list[Story] = []
    last = 0
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        numbered = _LINE.fullmatch(line.strip(" \r"))
        if numbered is None or int(numbered[1]) not in (1, last + 1):
            raise _damaged(path, number, "it should begin with the next number, or with 1")
        last = int(numbered[1])
        if last == 1:
            found.append(Story(f"{task} {len(found) + 1}", (), ()))
        story, parts = found[-1], _SPLIT.split(numbered[2])
        if len(parts) == 1:
            found[-1] = replace(story, facts=(*story.facts, parts[0]))
        elif not (parts[0] and parts[1]) or not story.facts:
            raise _damaged(path, number, "a question needs an answer, and a fact before it")
        else:
            asked = Question(parts[0], parts[1], len(story.facts))
            found[-1] = replace(story, questions=(*story.questions, asked))
    if not any(story.questions for story in found):
        raise SourceError(f"{path} has no question; use a file of bAbI's tasks.")
    return tuple(found)


def _damaged(path: str, number: int, problem: str) -> SourceError:
    return SourceError(
        f"{path}, line {number}: {problem}. bAbI's lines are a number and a fact, or a number, a "
        "question, its answer and the numbers of its facts, with tabs between."
    )


def make(
    task: str,
    read: Sequence[Story],
    tokenizer: Tokenizer,
    filler: Filler,
    tokens: int,
    rng: random.Random,
) -> Sample:
    """Make a sample of any question whose facts fit in the text, without the rest of its story."""
    every = [(story, question) for story in read for question in story.questions]
    least = 0
    for story, question in rng.sample(every, len(every)):
        facts = story.facts[: question.facts]
        size = sum(len(tokenizer.encode(fact)) + 1 for fact in facts)
        if size <= tokens:
            text = hidden(tokenizer, filler, tokens, rng, facts, even=False)
            return Sample(text, question.text, (question.answer,), story.name)
        least = min(least or size, size)
    raise UsageError(
        f"A text of {tokens:,} tokens has no room for the facts of {task}, which are at least "
        f"{least:,} tokens; use a larger --tokens."
    )


def right(answer: str, sample: Sample, candidates: frozenset[str]) -> float:
    """Return 1 if the first sentence of the answer names only the right candidate, otherwise 0.

    Candidates that the question names do not count: it never asks for them.
    """
    said, asked = answer.lower().partition(".")[0], sample.question.lower()
    named = {word for word in candidates if word in said and word not in asked}
    return float(named == {sample.answers[0].lower()})
