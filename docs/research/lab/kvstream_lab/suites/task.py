"""A task of a suite: the source of its texts and questions, and the score of an answer."""

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
    """The answer must contain all of them, or one of them, as the task scores them."""
    document: str = ""
    """The source document. Questions about one document are not independent."""


Make = Callable[[Tokenizer, Filler, int, random.Random], Sample]
"""``(tokenizer, filler, tokens, rng)``: make a sample of about `tokens` tokens."""


def score(answer: str, references: Sequence[str]) -> float:
    """Return the share of the references that occur in the answer in any case (RULER's score)."""
    said = answer.lower()
    return sum(reference.lower() in said for reference in references) / len(references)


@dataclass(frozen=True)
class Task:
    """One task of a suite."""

    name: str
    make: Make
    max_tokens: int
    """Maximum number of tokens of an answer."""
    score: Callable[[str, Sample], float] = lambda answer, sample: score(answer, sample.answers)
    data: str = ""
    """A digest of the data of the samples."""


def hidden(
    tokenizer: Tokenizer,
    filler: Filler,
    tokens: int,
    rng: random.Random,
    needles: Sequence[str],
    *,
    even: bool = True,
) -> str:
    """Return filler with the needles in their order, each at a random place in its equal part.

    If not `even`, each is at a random place in the whole text.
    """
    taken = sum(len(tokenizer.encode(needle)) + 1 for needle in needles)
    text = filler.cut(tokenizer, tokens - taken, rng)
    if even:
        depths = [(i + rng.random()) / len(needles) for i in range(len(needles))]
    else:
        depths = sorted(rng.random() for _ in needles)
    return insert(text, tokenizer, zip(depths, needles, strict=True))
