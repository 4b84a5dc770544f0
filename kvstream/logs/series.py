"""How often something occurs in a log, over time: lines, silences of components, rushes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

RUSH = 60.0
"""Seconds (lines, in a log without times) in which the lines of an error are counted together."""


class Series:
    """How often something occurs, over time."""

    def __init__(self) -> None:
        self.count = 0
        self.buckets: Counter[int] = Counter()
        self.first_time: float | None = None
        self.last_time: float | None = None
        self.low: float | None = None
        self.high: float | None = None
        """`low` and `high` are the earliest and the latest time, because clocks can go back."""
        self.first_line = 0
        self.last_line = 0

    def take(self, line: int, time: float | None, bucket: int | None) -> None:
        """Count a line."""
        if not self.count:
            self.first_line, self.first_time = line, time
        self.count += 1
        self.last_line, self.last_time = line, time
        if bucket is not None:
            self.buckets[bucket] += 1
        if time is not None:
            if self.low is None or time < self.low:
                self.low = time
            if self.high is None or time > self.high:
                self.high = time

    def merge(self, other: Series) -> None:
        """Add the counts of another series."""
        self.count += other.count
        self.low = min((t for t in (self.low, other.low) if t is not None), default=None)
        self.high = max((t for t in (self.high, other.high) if t is not None), default=None)
        self.buckets.update(other.buckets)
        if other.first_line < self.first_line or not self.first_line:
            self.first_line, self.first_time = other.first_line, other.first_time
        if other.last_line > self.last_line:
            self.last_line, self.last_time = other.last_line, other.last_time


@dataclass
class Gap:
    """A span of time in which a component wrote at most one line."""

    length: float = 0.0
    """Seconds (lines, in a log without times)."""
    lines: int = 0
    """Lines of the log in this time."""
    line: int = 0
    """Number of the last line before."""
    start: float | None = None
    end: float | None = None


class Component(Series):
    """The lines of one program, service or class."""

    def __init__(self) -> None:
        super().__init__()
        self.before: tuple[int, float | None] = 0, None
        """Number and time of the line before the last one."""
        self.longest = Gap()
        self.second = 0.0
        """Length of the second longest gap that does not overlap the longest."""

    def take(self, line: int, time: float | None, bucket: int | None) -> None:
        """Count a line, and note the time since the line before the last one, as one line does not
        end a silence."""
        start, since = self.before
        self.before = self.last_line, self.last_time
        if start:
            length = line - start if time is None or since is None else time - since
            if length > self.second:
                self._note_gap(Gap(length, line - start, start, since, time))
        Series.take(self, line, time, bucket)

    def _note_gap(self, gap: Gap) -> None:
        apart = gap.line >= self.longest.line + self.longest.lines
        if gap.length > self.longest.length:
            if apart:
                self.second = self.longest.length
            self.longest = gap
        elif apart:
            self.second = gap.length


class Rush:
    """The minute with most lines of a template: when a burst begins in buckets of hours."""

    def __init__(self) -> None:
        self._since, self._lines = -math.inf, 0
        self.begin = 0.0
        self.lines = 0

    def take(self, at: float) -> None:
        """Count a line at this time (or with this number). A minute begins with a line."""
        if not 0 <= at - self._since < RUSH:
            self._since, self._lines = at, 0
        self._lines += 1
        if self._lines > self.lines:
            self.lines, self.begin = self._lines, self._since
