"""Find short changes of a quantity in a long log, in one pass and bounded memory.

The mean of a time bucket hides changes that last only a small part of it. So the means of 16, 64
and 256 consecutive values are compared with all earlier means of this size. The farthest swings up
and down from the usual mean are held with their times, and also how far the second farthest goes,
because a quantity that swings every night says nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

SIZES = (16, 64, 256)
"""Numbers of values in a mean."""
LEAST = 32
"""Number of means before the first swing."""
DEVIATIONS = 6.0
"""Minimum deviations of a short change from the usual mean."""
FARTHER = 1.4
"""Minimum distance of a short change, as a multiple of the second farthest one."""
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


@dataclass(slots=True)
class Means:
    """Finds swings up (`sign` 1) or down (-1) in means of `size` consecutive values."""

    size: int
    sign: int
    farthest: Swing = field(default_factory=Swing)
    second: float = 0.0
    """Standard deviations of the second farthest swing."""
    _count: int = 0
    _sum: float = 0.0
    _start: float = 0.0
    _means: int = 0
    _mean: float = 0.0
    _squares: float = 0.0
    _now: Swing | None = None

    def take(self, total: float, count: int, start: float, end: float) -> None:
        """Add the sum of `count` values, and the times of the first and the last."""
        if not self._count:
            self._start = start
        self._count += count
        self._sum += total
        if self._count < self.size:
            return
        mean = self._sum / self._count
        self._count, self._sum = 0, 0.0
        if self._means >= LEAST and self._swings(mean, end):
            return  # a swing must not change the usual mean
        self._means += 1
        off = mean - self._mean
        self._mean += off / self._means
        self._squares += off * (mean - self._mean)

    def _swings(self, mean: float, end: float) -> bool:
        deviation = math.sqrt(max(self._squares / (self._means - 1), 1e-6))
        z = self.sign * (mean - self._mean) / deviation
        if z < AWAY:
            self._now = None
            return False
        now = self._now = self._now or Swing(start=self._start)
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

    def farthest(self) -> Swing | None:
        """Return the largest swing that goes far beyond others of its size; None without one."""
        far = [
            each.farthest
            for each in self._levels
            if each.farthest.deviations >= max(DEVIATIONS, FARTHER * each.second)
        ]
        swing = max(far, key=lambda swing: abs(swing.mean - swing.usual), default=Swing())
        low, high = sorted(math.expm1(mean) for mean in (swing.usual, swing.mean))
        return swing if high >= max(1.5 * low, 0.01) else None
