"""Data sets of whole documents, each with questions, as samples of tasks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kvstream.errors import SourceError
from kvstream.evaluation.datasets import parsed
from kvstream.evaluation.records import digest
from kvstream_lab.suites.task import Sample, Score, Task


@dataclass(frozen=True)
class Asked:
    """A question and its human answers."""

    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Document:
    """A text, and the questions about it by task."""

    name: str
    text: str
    asked: Mapping[str, tuple[Asked, ...]]


def load(
    path: str,
    tasks: Sequence[Task],
    seed: int,
    parse: Callable[[Any, str], Document],
    needs: str,
    score: Score,
) -> list[Task]:
    """Return the tasks with the questions of a file of JSON lines.

    Raise SourceError for a damaged line, or if a task has no question.
    """
    if Path(path).is_dir():
        raise SourceError(f"{path} is a folder; name a file of JSON lines with --data.")
    documents = list(parsed(path, parse, needs))
    loaded = []
    for task in tasks:
        given = samples(documents, task.name, random.Random(seed))
        if not given:
            raise SourceError(f"{path} has no question of the task {task.name}. {needs}")
        loaded.append(replace(task, given=given, data=digest(documents), score=score))
    return loaded


def samples(documents: Sequence[Document], task: str, rng: random.Random) -> tuple[Sample, ...]:
    """Return a question of each document in random order, then a second one of each, and so on."""
    shuffled = rng.sample(documents, len(documents))
    of_each = [
        [(document, asked) for asked in rng.sample(questions, len(questions))]
        for document in shuffled
        if (questions := document.asked[task])
    ]
    order = [pair for together in zip_longest(*of_each) for pair in together if pair]
    return tuple(
        Sample(
            document.text, asked.question, asked.answers,
            _other(documents, document, asked.question, rng), document.name,
        )
        for document, asked in order
    )  # fmt: skip


def _other(
    documents: Sequence[Document], document: Document, asked: str, rng: random.Random
) -> str:
    """Return another question about the document, or about another document."""
    for places in ([document], documents):
        others = [
            each.question
            for place in places
            for questions in place.asked.values()
            for each in questions
            if each.question != asked
        ]
        if others:
            return rng.choice(others)
    return ""
