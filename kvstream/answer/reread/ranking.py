"""Which excerpts are worth a second pass: scores by citations, by words, by both."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from kvstream.errors import KvstreamError
from kvstream.tokenization.forms import folded
from kvstream.tokenization.passages import Passage

_WORD = re.compile(r"\w+")
_OTHER = "\0"
"""Stands for all words that the question does not have: only how many there are counts."""
_LEAST = 0.01
_FUSION = 60
"""Reciprocal rank fusion (Cormack et al. 2009): each ranking gives 1 / (60 + rank)."""


class Cited:
    """What the cited passages in an excerpt weigh together."""

    def __init__(self, cited: Sequence[Passage]) -> None:
        ordered = sorted(cited, key=lambda passage: passage.start)
        self._starts = np.array([passage.start for passage in ordered], dtype=np.int64)
        self._sums = np.cumsum([0.0, *(passage.weight for passage in ordered)])

    def weight(self, start: int, end: int) -> float:
        """Of the passages that begin in the bytes from `start` to before `end`."""
        low, high = np.searchsorted(self._starts, (start, end))
        return float(self._sums[high] - self._sums[low])


class Words:
    """Excerpts ranked by the words of a question, with BM25. Raises KvstreamError without it."""

    def __init__(self, question: str) -> None:
        try:
            from rank_bm25 import BM25Okapi
        except ImportError:
            raise KvstreamError(
                "Ranking by words needs the package rank-bm25: pip install 'kvstream[words]', or "
                "use --reread=citations."
            ) from None
        self._make = BM25Okapi
        self._asked = _WORD.findall(folded(question))
        self._texts: list[list[str]] = []

    def add(self, text: str) -> None:
        """Take in the next excerpt; of its words, those of the question are kept."""
        asked = set(self._asked)
        words = _WORD.findall(folded(text))
        self._texts.append([word if word in asked else _OTHER for word in words] or [_OTHER])

    def scores(self) -> np.ndarray:
        """Of every excerpt; float [n], 0 where it has none of the words."""
        if not self._texts or not self._asked:
            return np.zeros(len(self._texts))
        ranking = self._make(self._texts)
        # A word that most excerpts have tells them apart a little, and never the wrong way round.
        ranking.idf = {word: max(idf, _LEAST) for word, idf in ranking.idf.items()}
        found: np.ndarray = ranking.get_scores(self._asked)
        return found


def fused(rankings: Sequence[np.ndarray]) -> np.ndarray:
    """One score of several by their ranks; what a ranking scores 0 gets nothing from it."""
    total = np.zeros(len(rankings[0]))
    for scores in rankings:
        order = np.argsort(-scores, kind="stable")
        points = 1.0 / (_FUSION + 1 + np.arange(len(order)))
        total[order] += np.where(scores[order] > 0, points, 0.0)
    return total
