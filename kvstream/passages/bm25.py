"""BM25 of excerpts that are read once: the counts of an excerpt do not grow with the text.

Words are compared by their first letters, and common words are left out. A word of almost the same
meaning (`related.py`) counts as a part of an occurrence. An excerpt gets a part of the scores of
its neighbors, and of the scene around it, because an answer is often near the words of the
question. One that has most of these words, with its neighbors, ranks above one that repeats a few.

Robertson & Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond", equation 3.15,
with ln(1 + (N - n + 0.5) / (n + 0.5)) as the weight of a word, which is never negative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import lt
from typing import TypeAlias

import numpy as np

from kvstream.passages.excerpts import Excerpt
from kvstream.passages.related import related
from kvstream.tokenization.forms import COMMON, STEM, words

SATURATION, LENGTH_SHARE = 1.0, 0.75
"""k1 and b."""
DOCUMENT_SATURATION = 1.2
"""k1 for whole documents."""
NEIGHBOR = 0.4
"""Part of an excerpt's score that its neighbors also get."""
COVERAGE = 2.0
"""How much more an excerpt counts that has, with its neighbors, all words of the question."""
SCENE, REACH = 0.4, 3
"""Weight of the best scene, the excerpts within REACH, to that of the best excerpt."""
RELATED, SURE = 0.6, 0.7
"""How much a word of the same meaning counts, beside the word of the question; and from which share
of the question's words, at one place, it counts less: not at all if a place has them all."""
GAP = 8
"""Maximum bytes of white space between two neighbors."""


Counts: TypeAlias = tuple[int, np.ndarray]
"""Words of an excerpt without common ones, and for each word of the question its occurrences, and
the shares of those of related words; float [2, w]."""


class QuestionWords:
    """The words of a question, and the number of excerpts so far that have each word."""

    def __init__(self, question: str) -> None:
        self._terms = [*dict.fromkeys(words_of(question))]
        self._shares: dict[str, list[tuple[int, int, float]]] = {}
        """For each word of a text that counts: rows and columns of its shares in `Counts`."""
        for column, term in enumerate(self._terms):
            self._shares.setdefault(term, []).append((0, column, 1.0))
            for word, share in related(term).items():
                self._shares.setdefault(word, []).append((1, column, share))
        self._excerpts = self._words = 0
        self._having = np.zeros(len(self._terms), dtype=np.int64)

    def count(self, text: str) -> Counts:
        """Add the next excerpt of the text, and return its counts."""
        words = words_of(text)
        often = Counter(words)
        counts = np.zeros((2, len(self._terms)))
        for word in sorted(often.keys() & self._shares.keys()):
            for row, column, share in self._shares[word]:
                counts[row, column] += share * often[word]
        self._having += counts[0] > 0
        self._excerpts += 1
        self._words += len(words)
        return len(words), counts

    @property
    def totals(self) -> list[int]:
        """Number of excerpts, of their words, and of excerpts with each word of the question."""
        return [self._excerpts, self._words, *map(int, self._having)]

    @totals.setter
    def totals(self, totals: Sequence[int]) -> None:
        """Set the totals of a longer reading. Raises ValueError for impossible ones."""
        excerpts, words, *having = totals
        less = len(totals) != len(self.totals) or any(map(lt, totals, self.totals))
        if less or any(n > excerpts for n in having):
            raise ValueError("its words of a question are counted wrongly")
        self._excerpts, self._words = excerpts, words
        self._having = np.array(having, dtype=np.int64)

    def scores(self, rows: Sequence[Counts], excerpts: Sequence[Excerpt]) -> np.ndarray:
        """Return scores in document order, float [n]; 0: no word of it within REACH."""
        if not rows or not self._terms:
            return np.zeros(len(rows))
        sizes, counts = zip(*rows, strict=True)
        own, others = np.stack(counts, axis=1)
        lengths = np.array(sizes) / max(self._words / self._excerpts, 1e-9)
        weights = weights_of(self._having, self._excerpts)
        near = near_by(excerpts)
        most = float(((around(own, near, 1) > 0) @ weights).max() / weights.sum())
        often = own + RELATED * min(1.0, (1 - most) / (1 - SURE)) * others
        scores = bm25(often, lengths, weights)
        coverage = np.minimum(around(often, near, 1), 1.0) @ weights / weights.sum()
        result = (1 - NEIGHBOR) * scores + NEIGHBOR * around(scores, near, 1)
        result *= (1 + COVERAGE * coverage) / (1 + COVERAGE)
        size = around(lengths, near, REACH) / (2 * REACH + 1)
        scenes = bm25(around(often, near, REACH), size, weights)
        best = float(result.max()) / max(float(scenes.max()), 1e-9)
        total: np.ndarray = (result + SCENE * best * scenes) / (1 + SCENE)
        return total


def around(values: np.ndarray, near: np.ndarray, reach: int) -> np.ndarray:
    """Return for each excerpt the sum of values [n, ...] of those within `reach` that touch it.

    `near` [n - 1]: see `near_by`. A gap between two excerpts parts all before it from all behind.
    """
    sums, linked = values.astype(float), near
    for step in range(1, min(reach, len(near)) + 1):
        mask = linked.reshape(-1, *[1] * (values.ndim - 1))
        sums[step:] += mask * values[:-step]
        sums[:-step] += mask * values[step:]
        linked = linked[:-1] & near[step:]
    return sums


def bm25(
    often: np.ndarray, lengths: np.ndarray, weights: np.ndarray, saturation: float = SATURATION
) -> np.ndarray:
    """Return the scores of n documents for w words, float [n].

    `often` [n, w]: occurrences of each word in each document; `lengths` [n]: number of words of
    each document, divided by the mean; `weights` [w]: see `weights_of`; `saturation`: k1.
    """
    limits = saturation * (1 - LENGTH_SHARE + LENGTH_SHARE * lengths)
    return often * (saturation + 1) / (often + limits[:, None]) @ weights


def bm25_of_documents(often: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return scores, float [n], of documents of `sizes` [n] words; `often` as in `bm25`."""
    lengths = sizes / max(sizes.mean(), 1.0) if len(sizes) else sizes
    weights = weights_of((often > 0).sum(axis=0), len(sizes))
    return bm25(often, lengths, weights, DOCUMENT_SATURATION)


def weights_of(having: np.ndarray, count: int) -> np.ndarray:
    """Return the weights of w words, of which `having` [w] of `count` documents have each."""
    return np.log1p((count - having + 0.5) / (having + 0.5))


def near_by(excerpts: Sequence[Excerpt]) -> np.ndarray:
    """Return whether each excerpt, after the first, is next to the one before; bool [n - 1]."""
    starts = np.array([excerpt.start for excerpt in excerpts])
    ends = np.array([excerpt.end for excerpt in excerpts])
    sources = np.array([excerpt.passages[0].source for excerpt in excerpts])
    return (starts[1:] - ends[:-1] <= GAP) & (sources[1:] == sources[:-1])


def words_of(text: str) -> list[str]:
    """Return the words that are not common, each cut to its first letters."""
    return [word[:STEM] for word in words(text) if word not in COMMON]
