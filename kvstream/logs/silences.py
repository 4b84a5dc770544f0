"""Silences of templates and components.

A silence is a gap that is improbable, given the number of all lines in this time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from kvstream.logs.series import Component, Gap, Series
from kvstream.logs.summary import LogSummary

LONGER = 2.5
"""Minimum length of a silence of a component, as a multiple of its second longest gap."""
USUAL = 0.6
"""Minimum share of the time buckets in which a component writes; otherwise silence says little."""
LEAST = 30
"""Minimum number of lines expected during a silence of a component."""


@dataclass(frozen=True)
class Silence:
    """Buckets without lines of a template or component."""

    start: int
    end: int | None
    """The bucket of the next line; None: it lasts until the end of the log."""
    expected: float
    """Number of lines expected in this time."""


def silence_of(series: Series, log: LogSummary, order: list[int]) -> Silence | None:
    """Return the most improbable silence of a series; `order` has the buckets of the log."""
    if series.count < 20 or len(order) < 8 or not series.buckets:
        return None  # no buckets: its lines came before any time
    places = [i for i, b in enumerate(order) if b in series.buckets]
    span = places[-1] - places[0] + 1
    if span < 4 or len(places) < 0.6 * span:
        return None  # it comes and goes
    totals = [log.total.buckets[b] for b in order]
    best: Silence | None = None
    gaps = [(a + 1, b) for a, b in pairwise(places) if b - a > 1]
    gaps.append((places[-1] + 1, len(order)))
    inside = sum(totals[places[0] : places[-1] + 1])
    rate = series.count / max(inside, 1)
    for start, end in gaps:
        length = end - start
        # A flood of other lines must not raise the expected number.
        expected = min(rate * sum(totals[start:end]), length * series.count / len(places))
        if expected < 15 or length < 3 or length < 0.03 * len(order):
            continue
        if best is None or expected > best.expected:
            best = Silence(order[start], None if end == len(order) else order[end], expected)
    if best is not None and best.end is not None and len(gaps) > 6:
        return None
    return best


def gap_of(series: Component, log: LogSummary) -> tuple[Gap, float] | None:
    """Return a gap that is far longer than all others, and the expected number of lines."""
    gap, second = series.longest, series.second
    low, high, now = series.first_time, series.high, log.total.high
    start, since = series.before
    if len(series.buckets) < USUAL * len(log.total.buckets):
        return None  # it comes and goes
    if low is None or high is None or now is None or since is None:
        return None
    last = Gap(now - since, log.lines - start, start, since)
    if last.length > gap.length:
        gap, second = last, gap.length
    if gap.length < LONGER * second:
        return None
    # A flood of other lines, or a jump of the clock, must not raise the expected number.
    share = min(gap.lines / max(log.total.count, 1), gap.length / max(now - low, 1.0))
    expected = share * series.count
    return (gap, expected) if expected >= LEAST else None
