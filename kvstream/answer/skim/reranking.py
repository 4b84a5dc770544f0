"""Rerank passages: the answering model reads each one alone.

A passage can have the words of a question without its answer. What the model would say, an answer
or a refusal, tells more (docs/research/skim.md, Reranked passages).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from kvstream.answer.reread.excerpts import Excerpt
from kvstream.engine.reader import Reader
from kvstream.tokenization.loading import Tokenizer

RERANKED = 24
"""Maximum number of passages to rerank."""
RERANKED_SHARE = 0.3
"""Share of the best score by words that a passage needs to be reranked."""
STOP = 0
"""A token that ends the answer at once."""


class Reranker:
    """Scores passages for one question, each in an empty memory of the answering model."""

    def __init__(
        self,
        reader: Reader,
        tokenizer: Tokenizer,
        tail: Sequence[int],
        refusal: Sequence[int],
        room: int,
    ) -> None:
        """`tail`: token ids of the prompt behind a passage; `refusal`: first tokens of a refusal;
        `room`: maximum number of tokens of a passage.
        """
        self.reader, self._tokenizer = reader, tokenizer
        self._tail, self._refusal, self._room = list(tail), list(refusal), room
        self.reranked = 0
        """Number of passages that were reranked."""

    def rerank(
        self, order: np.ndarray, scores: np.ndarray, excerpts: Sequence[Excerpt]
    ) -> np.ndarray:
        """Return `order` with its first excerpts reranked.

        `order` [n] has the indices of the excerpts, best first by `scores` [n].
        """
        best = scores[order[:RERANKED]]
        count = int((best >= RERANKED_SHARE * best.max()).sum())
        first = order[:count]
        again = best[:count] + self([excerpts[i] for i in first])
        return np.concatenate((first[np.argsort(-again, kind="stable")], order[count:]))

    def __call__(self, excerpts: Sequence[Excerpt]) -> np.ndarray:
        """Return the log-odds that an answer follows and no refusal, in nats, float [n].

        They are those of the first token. An excerpt that does not fit has -inf.
        """
        return np.array([self._odds(excerpt) for excerpt in excerpts])

    def _odds(self, excerpt: Excerpt) -> float:
        ids = self._tokenizer.encode(excerpt.text)
        if len(ids) > self._room:
            return -np.inf
        odds: list[float] = []

        def choose(logits: Tensor) -> int:
            refusal = float(logits[self._refusal].max())
            logits = logits.clone()
            logits[self._refusal] = -np.inf
            odds.append(float(logits.max()) - refusal)
            return STOP

        self.reranked += 1
        next(self.reader.answer([*ids, *self._tail], choose, frozenset((STOP,)), 1), None)
        return odds[0]
