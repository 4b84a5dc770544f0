"""Find changes of the quantities in the lines of a template, and name its variables.

A quantity drifts if its late values are far from its early ones.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import Any

from kvstream.logs.series import run_around
from kvstream.logs.shape import Shape, Variable
from kvstream.logs.summary import Clock
from kvstream.logs.swings import DEVIATIONS
from kvstream.logs.template_tree import WILDCARD

ENOUGH_VALUES = 8
"""Minimum number of values in a mean that is compared; buckets with fewer are joined."""


def changed_value(
    shape: Shape, place: int, variable: Variable, order: list[int], when: Clock
) -> tuple[str, float]:
    """Describe how a quantity changes, and by how many deviations; ("", 0) if it does not."""
    name = _name(shape, place)
    if (high := _deviation(variable, order)) is not None:
        usual, other, first, last, z = high
        during = when.buckets(shape, first, last)
    elif (drift := _drift(variable, order)) is not None:
        usual, other, z = drift
        during = ""
    elif variable.swings and (swing := variable.swings.farthest()) is not None:
        usual, other, z = math.expm1(swing.usual), math.expm1(swing.mean), swing.deviations
        start, end = when(swing.start, int(swing.start)), when(swing.end, int(swing.end))
        during = f"from {start} to {end}"
    else:
        return "", 0.0
    return (
        f"{name} goes from {_amount(usual)} to {_amount(other, variable.unit)} {during}".strip(),
        z,
    )


def _drift(variable: Variable, order: list[int]) -> tuple[float, float, float] | None:
    """Return early and late mean of a quantity that drifts, and their distance in deviations."""
    numbers = sum(int(held[0]) for held in variable.means.values())
    if numbers < 40 or len(variable.means) < 12:
        return None
    if variable.rises > 0.9 * numbers:  # a counter
        return None
    means = [variable.means[b][1] / variable.means[b][0] for b in order if b in variable.means]
    third = len(means) // 3
    early, late = median(means[:third]), median(means[-third:])
    noise = [abs(b - a) for a, b in pairwise(means)]
    spread = max(median(noise), 1e-3) / math.sqrt(third) * 1.5
    z = abs(late - early) / spread
    a, b = math.expm1(early), math.expm1(late)
    ratio = max(a, b) / max(min(a, b), 1e-9)
    if z < 6 or ratio < 1.5 or max(a, b) < 0.01:
        return None
    middle = median(means[third:-third])
    if not min(early, late) - spread <= middle <= max(early, late) + spread:
        return None
    return a, b, z


def _deviation(variable: Variable, order: list[int]) -> tuple[float, float, int, int, float] | None:
    """Return a short change: usual and other value, first and last bucket, deviations."""
    points: list[tuple[int, int, float]] = []  # first and last bucket, mean
    begin, numbers, total = 0, 0.0, 0.0
    for bucket in order:
        if bucket in variable.means:
            begin = begin if numbers else bucket
            numbers += variable.means[bucket][0]
            total += variable.means[bucket][1]
            if numbers >= ENOUGH_VALUES:
                points.append((begin, bucket, total / numbers))
                numbers = total = 0.0
    counted = sum(held[0] for held in variable.means.values())
    if len(points) < 24 or variable.rises > 0.9 * counted:
        return None
    usual = median(mean for *_, mean in points)
    off = [mean - usual for *_, mean in points]
    within = sum(squares - total * total / n for n, total, squares in variable.means.values())
    chance = math.sqrt(max(within, 0.0) / max(counted - len(variable.means), 1) / ENOUGH_VALUES)
    spread = max(median(map(abs, off)) * 1.5, chance, 1e-3)
    most = max(off, key=abs)
    if abs(most) < DEVIATIONS * spread:
        return None
    far = [each * most > abs(most) * DEVIATIONS / 2 * spread for each in off]
    first, last = run_around(off.index(most), far)
    a, b = math.expm1(usual), math.expm1(usual + most)
    if (last - first + 1) * 5 > len(points) or max(a, b) < 1.25 * max(min(a, b), 1e-9):
        return None
    return (a, b, points[first][0], points[last][1], abs(most) / spread) if b >= 0.01 else None


def _amount(number: float, unit: str = "") -> str:
    """Format a quantity with three digits."""
    text = f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
    return f"{text} {unit}".rstrip()


def _name(shape: Shape, place: int) -> str:
    """Return the name of a variable: up to two words before it, or ``<*>``."""
    named: list[str] = []
    for word in reversed(shape.template.words[max(place - 2, 0) : place]):
        if WILDCARD in word or not any(c.isalpha() for c in word):
            break
        named.insert(0, word)
    return " ".join(named) or WILDCARD


def variables_of(shape: Shape) -> list[dict[str, Any]]:
    """Return the most frequent values of each variable."""
    rows = []
    for place, variable in sorted(shape.variables.items()):
        top = variable.values.most_common(3)
        rows.append(
            {
                "place": place,
                "after": _name(shape, place),
                "values": [{"value": value, "lines": lines} for value, lines in top],
                "different": len(variable.values),
                "more_different": variable.other > 0,
                "looked_at": variable.looked_at,
            }
        )
    return rows
