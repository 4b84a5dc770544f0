"""How often something occurs in a log, over time: lines, silences of components, rushes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

RUSH = 60.0
"""Seconds (lines, in a log without times) in which the lines of an error are counted together."""


@dataclass(eq=False)
class Series:
    """How often something occurs, over time."""

    count: int = 0
    buckets: Counter[int] = field(default_factory=Counter)
    first_time: float | None = None
    last_time: float | None = None
    low: float | None = None
    high: float | None = None
    """`low` and `high` are the earliest and the latest time, because clocks can go back."""
    first_line: int = 0
    last_line: int = 0

    def take(self, line: int, time: float | None, bucket: int | None) -> None:
        """Count a line."""
        if not self.count:
            self.first_line, self.first_time = line, time
        self.count += 1
        self.last_line, self.last_time = line, time
        if bucket is not None:
            self.buckets[bucket] += 1
        if time is not None:
            self.low = time if self.low is None else min(self.low, time)
            self.high = time if self.high is None else max(self.high, time)

    def span(self) -> dict[str, Any]:
        """Return the fields of a series, by name."""
        return {each.name: getattr(self, each.name) for each in fields(Series)}

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


@dataclass(eq=False)
class Component(Series):
    """The lines of one program, service or class."""

    before: tuple[int, float | None] = 0, None
    """Number and time of the line before the last one."""
    longest: Gap = field(default_factory=Gap)
    second: float = 0.0
    """Length of the second longest gap that does not overlap the longest."""

    def take(self, line: int, time: float | None, bucket: int | None) -> None:
        """Count a line, and note the time since the line before the last one, as one line does not
        end a silence."""
        start, since = self.before
        self.before = self.last_line, self.last_time
        length = line - start if time is None or since is None else time - since
        if start and length > self.second:
            apart = start >= self.longest.line + self.longest.lines
            if length > self.longest.length:
                if apart:
                    self.second = self.longest.length
                self.longest = Gap(length, line - start, start, since, time)
            elif apart:
                self.second = length
        Series.take(self, line, time, bucket)


@dataclass
class Rush:
    """The minute with most lines of a template: when a burst begins in buckets of hours."""

    begin: float = 0.0
    lines: int = 0
    _since: float = -math.inf
    _lines: int = 0

    def take(self, at: float) -> None:
        """Count a line at this time (or with this number). A minute begins with a line."""
        if not 0 <= at - self._since < RUSH:
            self._since, self._lines = at, 0
        self._lines += 1
        if self._lines > self.lines:
            self.lines, self.begin = self._lines, self._since


def run_around(place: int, holds: Sequence[bool]) -> tuple[int, int]:
    """Return the first and the last place of the run of true values around a place."""
    first = last = place
    while first > 0 and holds[first - 1]:
        first -= 1
    while last + 1 < len(holds) and holds[last + 1]:
        last += 1
    return first, last
