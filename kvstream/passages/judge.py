"""Judge passages: the answering model reads each one alone and says whether it has the answer.

A passage can have the words of a question without its answer. What the model would say next tells
more. It pays for a model that reads few passages (docs/research/answers.md).
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


@dataclass(eq=False, repr=False)
class Judge:
    """Judges passages for one question, each in an empty memory of the answering model."""

    reader: Reader
    tokenizer: Tokenizer
    tail: Sequence[int]
    """Ids behind a passage."""
    refusal: list[int]
    """First tokens of a refusal."""
    room: int
    """Maximum number of tokens of a passage."""
    judged: int = 0
    best: float = -np.inf
    """The highest log-odds of a passage, in nats."""

    def __call__(self, excerpts: Sequence[Excerpt]) -> np.ndarray:
        """Return log-odds of answer to refusal by first token, nats, float [n]; -inf: no room."""
        odds = np.array([self._odds(excerpt) for excerpt in excerpts])
        self.best = max(self.best, odds.max(initial=-np.inf))
        return odds

    def _odds(self, excerpt: Excerpt) -> float:
        ids = self.tokenizer.encode(excerpt.text)
        if len(ids) > self.room:
            return -np.inf
        odds = -np.inf

        def choose(logits: Tensor) -> int:
            nonlocal odds
            against = float(logits[self.refusal].max())
            others = logits.clone()
            others[self.refusal] = -np.inf
            odds = float(others.max()) - against
            return STOP

        self.judged += 1
        next(self.reader.answer([*ids, *self.tail], choose, frozenset((STOP,)), 1), None)
        return odds
