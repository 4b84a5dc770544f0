"""Find short changes of a quantity in a long log, in one pass and bounded memory.

The mean of a time bucket hides changes that last only a small part of it. So the means of 16, 64
and 256 consecutive values are compared with all earlier means of this size. The farthest swings up
and down from the usual mean are held with their times, and also how far the second farthest goes,
because a quantity that swings every night says nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SIZES = (16, 64, 256)
"""Numbers of values in a mean."""
LEAST = 32
"""Number of means before the first swing."""
AWAY = 3.0
"""Minimum standard deviations between a swing and the usual mean."""


@dataclass
class Swing:
    """A span of time in which means are far from the usual mean."""

    deviations: float = 0.0
    """Distance of the farthest mean from the usual one, in standard deviations."""
    mean: float = 0.0
    """The farthest mean, of log(1 + x)."""
    usual: float = 0.0
    start: float = 0.0
    end: float = 0.0


class Means:
    """Finds swings up (`sign` 1) or down (-1) in means of `size` consecutive values."""

    __slots__ = (
        "_count", "_mean", "_now", "_seen", "_sign", "_size", "_squares", "_start", "_sum",
        "farthest", "second",
    )  # fmt: skip

    def __init__(self, size: int, sign: int) -> None:
        self._size, self._sign = size, sign
        self._count, self._sum, self._start = 0, 0.0, 0.0
        self._seen, self._mean, self._squares = 0, 0.0, 0.0
        self._now: Swing | None = None
        self.farthest = Swing()
        self.second = 0.0
        """Standard deviations of the second farthest swing."""

    def take(self, total: float, count: int, start: float, end: float) -> None:
        """Add the sum of `count` values, and the times of the first and the last."""
        if not self._count:
            self._start = start
        self._count += count
        self._sum += total
        if self._count < self._size:
            return
        mean = self._sum / self._count
        self._count, self._sum = 0, 0.0
        if self._seen >= LEAST and self._swings(mean, end):
            return  # a swing must not change the usual mean
        self._seen += 1
        off = mean - self._mean
        self._mean += off / self._seen
        self._squares += off * (mean - self._mean)

    def _swings(self, mean: float, end: float) -> bool:
        deviation = math.sqrt(max(self._squares / (self._seen - 1), 1e-6))
        z = self._sign * (mean - self._mean) / deviation
        if z < AWAY:
            self._now = None
            return False
        if self._now is None:
            self._now = Swing(start=self._start)
        now = self._now
        now.end = end
        if z > now.deviations:
            now.deviations, now.mean, now.usual = z, mean, self._mean
            if now is not self.farthest:
                if z > self.farthest.deviations:
                    self.second, self.farthest = self.farthest.deviations, now
                else:
                    self.second = max(self.second, z)
        return True


class Swings:
    """The swings of one quantity, up and down."""

    __slots__ = ("_count", "_levels", "_start", "_sum")

    def __init__(self) -> None:
        self._levels = [Means(size, sign) for size in SIZES for sign in (1, -1)]
        self._count, self._sum, self._start = 0, 0.0, 0.0

    def take(self, value: float, at: float) -> None:
        """Add a value of log(1 + x) with its time (or line)."""
        if not self._count:
            self._start = at
        self._count += 1
        self._sum += value
        if self._count == SIZES[0]:
            for level in self._levels:
                level.take(self._sum, self._count, self._start, at)
            self._count, self._sum = 0, 0.0

    def farthest(self, least: float, times: float) -> Swing | None:
        """Return the largest swing of `least` deviations, `times` as far as others of its size."""
        far = [
            level.farthest
            for level in self._levels
            if level.farthest.deviations >= max(least, times * level.second)
        ]
        return max(far, key=lambda swing: abs(swing.mean - swing.usual), default=None)
