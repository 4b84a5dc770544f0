"""A task of a suite: where a text and its question come from, and how an answer is scored."""

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
    """All of them belong in the answer, or each is one (as the task scores them)."""
    other: str = ""
    """Another question about the same text, or of the same form about nothing in it."""
    document: str = ""
    """What the text is made of: questions of one document are not independent."""


Make = Callable[[Tokenizer, Filler, int, random.Random], Sample]
"""``(tokenizer, filler, tokens, rng)``: a sample of about `tokens` tokens."""
Score = Callable[[str, Sample], dict[str, float]]
"""``(answer, sample)``: ``score``, which the tables show, and others for the record."""


def score(answer: str, references: Sequence[str]) -> float:
    """Share of the references that stand in the answer, whatever their case (RULER's score)."""
    said = answer.lower()
    return sum(reference.lower() in said for reference in references) / len(references)


def share(answer: str, sample: Sample) -> dict[str, float]:
    """RULER's score of a sample."""
    return {"score": score(answer, sample.answers)}


@dataclass(frozen=True)
class Task:
    """One task of a suite."""

    name: str
    make: Make | None
    """Makes as many samples as are wanted; None: they are `given`."""
    max_tokens: int
    """Tokens that an answer may have."""
    score: Score = share
    given: tuple[Sample, ...] = ()
    """Samples of a data set, in the order in which they are asked."""
    data: str = ""
    """A digest of the data that the samples come from."""

    def count(self, wanted: int) -> int:
        """How many samples there are, at most as many as are wanted."""
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
    """Filler with the needles in their order, each somewhere in its equal part of the text.

    Not `even`: each anywhere.
    """
    taken = sum(len(tokenizer.encode(needle)) + 1 for needle in needles)
    text = filler.cut(tokenizer, tokens - taken, rng)
    if even:
        depths = [(i + rng.random()) / len(needles) for i in range(len(needles))]
    else:
        depths = sorted(rng.random() for _ in needles)
    return insert(text, tokenizer, zip(depths, needles, strict=True))
