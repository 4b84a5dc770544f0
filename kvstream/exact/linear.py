"""Linear models of questions: int8 weights in one table, which features share by their hash.

A linear-chain conditional random field (Lafferty et al. 2001) marks tokens; sums of weights score
whatever else is chosen. The lab trains them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import exp, log
from pathlib import Path
from zlib import crc32

STEP = 1 / 32
"""The weight of one unit of a table."""


def row_of(*feature: object) -> int:
    """Return the row of the weights of a feature, in a table that is large enough."""
    return crc32(repr(feature).encode())


class Weights:
    """The weights of `marks` marks of tokens, and of other classes in the columns behind them."""

    def __init__(self, file: Path, marks: int, columns: int, rows: int) -> None:
        """`file`: the transitions between marks, then `rows` rows of `columns` weights."""
        self.file, self.marks, self.columns, self.rows = file, marks, columns, rows

    @property
    def size(self) -> int:
        """Number of weights; what stands behind them in the file is not read here."""
        return self.marks**2 + self.rows * self.columns

    @cached_property
    def data(self) -> memoryview:
        """The content of the file."""
        return memoryview(self.file.read_bytes()).cast("b")

    def score(self, rows: Sequence[int], column: int) -> float:
        """Return the sum of the weights of features in a column."""
        data, begin, width, count = self.data, self.marks**2 + column, self.columns, self.rows
        return STEP * sum(data[begin + row % count * width] for row in rows)

    def shares(self, rows: Sequence[int], first: int) -> list[float]:
        """Return the probabilities of the classes from column `first` on."""
        return softmax([self.score(rows, column) for column in range(first, self.columns)])

    def marked(self, features: Sequence[Sequence[int]]) -> tuple[list[int], float]:
        """Return the likeliest marks of all tokens (Viterbi), and the probability of these."""
        numbers = range(self.marks)
        sums, *others = ([self.score(rows, mark) for mark in numbers] for rows in features)
        steps = [[self.data[a * self.marks + b] * STEP for a in numbers] for b in numbers]
        before: list[list[int]] = []
        every = sums
        for own in others:
            best = [max(numbers, key=lambda a: sums[a] + steps[b][a]) for b in numbers]
            sums = [sums[a] + steps[b][a] + own[b] for b, a in enumerate(best)]
            every = [log_sum(every[a] + steps[b][a] for a in numbers) + own[b] for b in numbers]
            before.append(best)
        marks = [max(numbers, key=sums.__getitem__)]
        for best in reversed(before):
            marks.append(best[marks[-1]])
        return marks[::-1], exp(max(sums) - log_sum(every))


def log_sum(sums: Iterable[float]) -> float:
    """Return the logarithm of a sum of exponentials."""
    some = [*sums]
    return max(some) + log(sum(exp(each - max(some)) for each in some))


def softmax(sums: Sequence[float]) -> list[float]:
    """Return probabilities from sums of weights."""
    most = max(sums, default=0.0)
    parts = [exp(each - most) for each in sums]
    return [part / sum(parts) for part in parts]
