"""Judge passages: the answering model reads each one alone and says whether it has the answer.

A passage can have the words of a question without its answer. What the model would say next tells
more (docs/research/answers.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from kvstream.engine.reader import Reader
from kvstream.passages.excerpts import Excerpt
from kvstream.tokenization.loading import Tokenizer

STOP = 0
"""A token that ends the answer at once."""


@dataclass(frozen=True)
class Verdict:
    """How a model is asked about a passage, and the first tokens of what it can say."""

    tail: Sequence[int]
    """Token ids of the prompt behind a passage."""
    against: Sequence[int]
    """First tokens of a refusal, or of No."""
    for_it: Sequence[int] = ()
    """First tokens of Yes; if empty, any other token speaks for the passage."""


class Judge:
    """Judges passages for one question, each in an empty memory of the answering model."""

    def __init__(self, reader: Reader, tokenizer: Tokenizer, verdict: Verdict, room: int) -> None:
        """`room`: maximum number of tokens of a passage."""
        self.reader, self._tokenizer, self._verdict, self._room = reader, tokenizer, verdict, room
        self.judged = 0
        """Number of passages that were judged."""
        self.best = -np.inf
        """The highest log-odds of a passage, in nats."""

    @property
    def calibrated(self) -> bool:
        """Whether 0 means an answer as likely as a refusal; Yes against No has no such point."""
        return not self._verdict.for_it

    def __call__(self, excerpts: Sequence[Excerpt]) -> np.ndarray:
        """Return the log-odds that a passage has the answer, in nats, float [n].

        They are those of the first token. A passage that does not fit has -inf.
        """
        odds = np.array([self._odds(excerpt) for excerpt in excerpts])
        self.best = max(self.best, odds.max(initial=-np.inf))
        return odds

    def _odds(self, excerpt: Excerpt) -> float:
        ids = self._tokenizer.encode(excerpt.text)
        if len(ids) > self._room:
            return -np.inf
        verdict, odds = self._verdict, [0.0]

        def choose(logits: Tensor) -> int:
            against = float(logits[list(verdict.against)].max())
            if verdict.for_it:
                odds[0] = float(logits[list(verdict.for_it)].max()) - against
                return STOP
            others = logits.clone()
            others[list(verdict.against)] = -np.inf
            odds[0] = float(others.max()) - against
            return STOP

        self.judged += 1
        next(self.reader.answer([*ids, *verdict.tail], choose, frozenset((STOP,)), 1), None)
        return odds[0]
