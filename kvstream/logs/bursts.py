"""Bursts of a template, rare lines shortly before them, and silences of templates and components.

A burst is one or more time buckets with far more lines than a Poisson process with the usual rate
of the template gives. A silence is a gap that is improbable, given the number of all lines in this
time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from kvstream.logs.levels import SEVERE
from kvstream.logs.series import RUSH, Component, Gap, Series, run_around
from kvstream.logs.shape import Shape
from kvstream.logs.summary import LogSummary

HARMLESS = 10
"""Minimum factor of a burst of lines with the level info or debug."""
FLOOD = 20
"""Minimum factor of a burst that earlier lines may explain."""
MUCH = 0.05
"""Minimum share of the log of such a burst, if its lines are not errors or warnings."""
LONG = 0.1
"""Share of the log above which a burst may be a steady rate."""
LONGEST_GAP = 900.0
"""Maximum seconds (lines, in a log without times) between a burst and an earlier line that may
explain it, and between two bursts that count as one event."""
LONGER = 2.5
"""Minimum length of a silence of a component, as a multiple of its second longest gap."""
USUAL = 0.6
"""Minimum share of the time buckets in which a component writes; otherwise silence says little."""
LEAST = 30
"""Minimum number of lines expected during a silence of a component."""


@dataclass(frozen=True)
class Burst:
    """Buckets in which a template has far more lines than elsewhere."""

    start: int
    end: int
    """The last bucket."""
    lines: int
    factor: float
    """Its rate, as a multiple of the rate elsewhere."""


@dataclass(frozen=True)
class Onset:
    """The beginning of a burst."""

    time: float
    """Its time, or its line in a log without times."""
    within: float
    """Maximum error of `time`."""
    line: int = 0
    """Number of the first line, if the template is new then; else 0."""


def burst_of(shape: Shape, log: LogSummary, order: list[int]) -> Burst | None:
    """Return the strongest burst of a template; `order` has the buckets of the log. People cause
    small bursts of info and debug, which do not count."""
    if shape.count < 10 or len(order) < 8 or not shape.buckets:
        return None
    top, most = max(shape.buckets.items(), key=lambda item: item[1])
    counts = [shape.buckets.get(b, 0) for b in order]
    usual = median(counts)
    spread = median(abs(c - usual) for c in counts)
    elsewhere = max(usual, (shape.count - most) / (len(order) - 1) if len(order) > 20 else usual)
    floor = usual + 8 * max(spread * 1.5, math.sqrt(max(usual, 0.1)), 1)
    # If the whole log has more lines for a while, that is not a burst of one template.
    total = log.total.buckets[top]
    share = shape.count / log.total.count
    if most < 10 or most < floor or most < 3 * max(share * total, 0.1) * (1 - share) ** 2:
        return None
    low = max(floor / 2, most / 8)
    start, end = run_around(order.index(top), [count >= low for count in counts])
    length = end - start + 1
    lines = sum(counts[start : end + 1])
    rest = (shape.count - lines) / max(len(order) - length, 1)
    factor = lines / length / max(rest or elsewhere, 0.1)
    harmless = shape.level in ("info", "debug") and factor < HARMLESS
    if harmless or length * 3 > len(order):
        return None
    return Burst(order[start], order[end], lines, factor)


def is_steady(series: Series, burst: Burst, order: list[int]) -> bool:
    """Return whether a burst covers most of the time of such lines: a rate that begins late."""
    length = sum(burst.start <= bucket <= burst.end for bucket in order)
    first, last = min(series.buckets), max(series.buckets)
    own = sum(first <= bucket <= last for bucket in order)
    return length > LONG * len(order) and 2 * length > own


def onset_of(shape: Shape, burst: Burst | None, log: LogSummary) -> Onset | None:
    """Return the beginning of a burst that earlier lines may explain; None for other bursts."""
    if burst is None or burst.lines < 30 or burst.factor < FLOOD:
        return None
    if shape.level not in SEVERE and burst.lines < MUCH * log.total.count:
        return None
    onset = begin_of(shape, burst, log)
    return onset if onset.within <= LONGEST_GAP else None


def begin_of(shape: Shape, burst: Burst, log: LogSummary) -> Onset:
    """Return the begin of a burst: the first line, the busiest minute, or mid-bucket."""
    start, end = burst.start * log.width, (burst.end + 1) * log.width
    first = float(shape.first_line) if log.by_line else shape.first_time
    if first is not None and start <= first < start + log.width:
        return Onset(first, min(log.width / 2, LONGEST_GAP), shape.first_line)
    if shape.rush is not None and start <= shape.rush.begin < end:
        return Onset(shape.rush.begin, min(log.width / 2, RUSH))
    return Onset(start + log.width / 2, log.width / 2)


def burst_after(
    shape: Shape, onsets: list[tuple[Onset, Shape]], log: LogSummary
) -> tuple[float, Shape] | None:
    """Return the time from a rare template to the nearest burst shortly after it, and the burst."""
    best: tuple[float, Shape] | None = None
    mine = float(shape.first_line) if log.by_line else shape.first_time
    if mine is None:
        return None
    for onset, flood in onsets:
        if flood is shape or (onset.line and shape.first_line > onset.line):
            continue
        gap = onset.time - mine
        if -onset.within <= gap <= min(max(1.5 * log.width, 30), LONGEST_GAP) and (
            best is None or gap < best[0]
        ):
            best = max(gap, 0.0), flood
    return best


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
    gaps = [(a + 1, b) for a, b in pairwise(places) if b - a > 1]
    gaps.append((places[-1] + 1, len(order)))
    inside = sum(totals[places[0] : places[-1] + 1])
    rate = series.count / max(inside, 1)
    silences = []
    for start, end in gaps:
        length = end - start
        # A flood of other lines must not raise the expected number.
        expected = min(rate * sum(totals[start:end]), length * series.count / len(places))
        if expected >= 15 and length >= max(3, 0.03 * len(order)):
            next_line = order[end] if end < len(order) else None
            silences.append(Silence(order[start], next_line, expected))
    best = max(silences, key=lambda silence: silence.expected, default=None)
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
