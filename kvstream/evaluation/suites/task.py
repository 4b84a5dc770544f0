"""A task of a suite: how a text and its question are made, and how an answer is scored."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstream.evaluation.filler import Filler, insert
from kvstream.tokenization.loading import Tokenizer


@dataclass(frozen=True)
class Sample:
    """A text and a question about it."""

    text: str
    question: str
    answers: tuple[str, ...]
    """All of them belong in the answer."""


Make = Callable[[Tokenizer, Filler, int, random.Random], Sample]
"""``(tokenizer, filler, tokens, rng)``: a sample of about `tokens` tokens."""


@dataclass(frozen=True)
class Task:
    """One task of a suite."""

    name: str
    make: Make
    max_tokens: int
    """Tokens that an answer may have."""


def score(answer: str, references: Sequence[str]) -> float:
    """Share of the references that stand in the answer, whatever their case (RULER's score)."""
    said = answer.lower()
    return sum(reference.lower() in said for reference in references) / len(references)


def hidden(
    tokenizer: Tokenizer, filler: Filler, tokens: int, rng: random.Random, needles: Sequence[str]
) -> str:
    """Filler with the needles in their order, each somewhere in its equal part of the text."""
    taken = sum(len(tokenizer.encode(needle)) + 1 for needle in needles)
    text = filler.cut(tokenizer, tokens - taken, rng)
    depths = [(i + rng.random()) / len(needles) for i in range(len(needles))]
    return insert(text, tokenizer, zip(depths, needles, strict=True))
