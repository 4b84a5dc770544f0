"""Bursts of a template, and rare lines shortly before them.

A burst is one or more time buckets with far more lines than a Poisson process with the usual rate
of the template gives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from kvstream.logs.levels import SEVERE
from kvstream.logs.series import RUSH, Series
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


def telling_burst(shape: Shape, log: LogSummary, order: list[int]) -> Burst | None:
    """Return the strongest burst, or None: people cause small bursts of info and debug."""
    burst = strongest_burst(shape, log, order)
    harmless = shape.level in ("info", "debug")
    return None if burst is None or (harmless and burst.factor < HARMLESS) else burst


def strongest_burst(series: Series, log: LogSummary, order: list[int]) -> Burst | None:
    """Return the strongest burst of a series; `order` has the buckets of the log."""
    if series.count < 10 or len(order) < 8 or not series.buckets:
        return None
    top, most = max(series.buckets.items(), key=lambda item: item[1])
    counts = [series.buckets.get(b, 0) for b in order]
    usual = median(counts)
    spread = median(abs(c - usual) for c in counts)
    elsewhere = max(usual, (series.count - most) / (len(order) - 1) if len(order) > 20 else usual)
    floor = usual + 8 * max(spread * 1.5, math.sqrt(max(usual, 0.1)), 1)
    # If the whole log has more lines for a while, that is not a burst of one template.
    total = log.total.buckets[top]
    share = series.count / log.total.count
    if most < 10 or most < floor or most < 3 * max(share * total, 0.1) * (1 - share) ** 2:
        return None
    place = order.index(top)
    start = end = place
    low = max(floor / 2, most / 8)
    while start > 0 and counts[start - 1] >= low:
        start -= 1
    while end + 1 < len(order) and counts[end + 1] >= low:
        end += 1
    if (end - start + 1) * 3 > len(order):
        return None
    lines = sum(counts[start : end + 1])
    rest = (series.count - lines) / max(len(order) - (end - start + 1), 1)
    factor = lines / (end - start + 1) / max(rest, elsewhere if rest == 0 else rest, 0.1)
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
