"""Rank excerpts for a second pass: by citations, by words, or by both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvstream.errors import KvstreamError
from kvstream.tokenization.forms import words
from kvstream.tokenization.passages import Passage

_OTHER = "\0"
"""Placeholder for every word that is not in the question: only their number matters."""
_LEAST = 0.01
_FUSION = 60
"""k of reciprocal rank fusion (Cormack et al. 2009): each ranking gives 1 / (60 + rank)."""


class Cited:
    """Sums of the weights of cited passages, by range of bytes."""

    def __init__(self, cited: Sequence[Passage]) -> None:
        ordered = sorted(cited, key=lambda passage: passage.start)
        self._starts = np.array([passage.start for passage in ordered], dtype=np.int64)
        self._sums = np.cumsum([0.0, *(passage.weight for passage in ordered)])

    def weight(self, start: int, end: int) -> float:
        """Return the weight of all passages that begin at `start` or later and before `end`."""
        low, high = np.searchsorted(self._starts, (start, end))
        return float(self._sums[high] - self._sums[low])


class Words:
    """BM25 scores of excerpts for a question. Raises KvstreamError without rank-bm25."""

    def __init__(self, question: str) -> None:
        try:
            from rank_bm25 import BM25Okapi
        except ImportError:
            raise KvstreamError(
                "Ranking by words needs the package rank-bm25: pip install 'kvstream[words]', or "
                "use --reread=citations."
            ) from None
        self._make = BM25Okapi
        self._asked = words(question)
        self._texts: list[list[str]] = []

    def add(self, text: str) -> None:
        """Add the next excerpt. Only words of the question are stored; others are counted."""
        asked = set(self._asked)
        found = [word if word in asked else _OTHER for word in words(text)]
        self._texts.append(found or [_OTHER])

    def scores(self) -> np.ndarray:
        """Return the scores of all excerpts, float [n]; 0 for an excerpt without the words."""
        if not self._texts or not self._asked:
            return np.zeros(len(self._texts))
        ranking = self._make(self._texts)
        # A word that most excerpts have must add a little to scores, and never lower them.
        ranking.idf = {word: max(idf, _LEAST) for word, idf in ranking.idf.items()}
        found: np.ndarray = ranking.get_scores(self._asked)
        return found


def fused(rankings: Sequence[np.ndarray]) -> np.ndarray:
    """Fuse several scores of the same items by rank; a score of 0 adds nothing."""
    total = np.zeros(len(rankings[0]))
    for scores in rankings:
        order = np.argsort(-scores, kind="stable")
        points = 1.0 / (_FUSION + 1 + np.arange(len(order)))
        total[order] += np.where(scores[order] > 0, points, 0.0)
    return total
