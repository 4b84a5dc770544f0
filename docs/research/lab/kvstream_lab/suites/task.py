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
    other: str = ""
    """Another question about the same text, or one of the same form about something not in it."""
    document: str = ""
    """The source document. Questions about one document are not independent."""


Make = Callable[[Tokenizer, Filler, int, random.Random], Sample]
"""``(tokenizer, filler, tokens, rng)``: make a sample of about `tokens` tokens."""
Score = Callable[[str, Sample], dict[str, float]]
"""``(answer, sample)``: return ``score``, which the tables show, and other scores to record."""


def score(answer: str, references: Sequence[str]) -> float:
    """Return the share of the references that occur in the answer in any case (RULER's score)."""
    said = answer.lower()
    return sum(reference.lower() in said for reference in references) / len(references)


def share(answer: str, sample: Sample) -> dict[str, float]:
    """Return RULER's score of a sample."""
    return {"score": score(answer, sample.answers)}


@dataclass(frozen=True)
class Task:
    """One task of a suite."""

    name: str
    make: Make | None
    """Maker of any number of samples; None if they are `given`."""
    max_tokens: int
    """Maximum number of tokens of an answer."""
    score: Score = share
    given: tuple[Sample, ...] = ()
    """Samples of a data set, in the order in which they are used."""
    data: str = ""
    """A digest of the data of the samples."""

    def count(self, wanted: int) -> int:
        """Return the number of samples, at most `wanted`."""
        return wanted if self.make else min(wanted, len(self.given))


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
