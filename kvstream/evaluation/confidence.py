"""Confidence intervals of measured shares and means, from the number of trials alone."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

Z = 1.959964
"""Standard deviations on either side that include 95% of a normal distribution."""
ROUNDING = 1e-12
"""Share of the values below which a standard error is the rounding of sums: 0.2 + 0.2 + 0.2."""


def wilson(right: float, trials: int) -> tuple[float, float]:
    """Return Wilson's 95% score interval of a share. It is also valid if none or all are right.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
    Without trials it is (0, 1).
    """
    if trials == 0:
        return 0.0, 1.0
    share, z2 = right / trials, Z * Z
    scale = 1 / (1 + z2 / trials)
    center = scale * (share + z2 / (2 * trials))
    half = scale * Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
    low = 0.0 if right <= 0 else center - half
    high = 1.0 if right >= trials else center + half
    return low, high


def mean_interval(
    values: Sequence[float], groups: Sequence[Hashable] | None = None
) -> tuple[float, float, float]:
    """Return (mean, low, high) at 95% of scores from 0 to 1; those of a group are not independent.

    As `difference_interval`, within 0 and 1. If all values are 0 or all are 1, no error can be
    estimated from them; the interval is then Wilson's for as many trials as there are groups.
    """
    if values and values[0] in (0, 1) and min(values) == max(values):
        groups = range(len(values)) if groups is None else groups
        count = len(set(groups))
        return values[0], *wilson(values[0] * count, count)
    mean, low, high = difference_interval(values, groups)
    return mean, max(0.0, low), min(1.0, high)


def difference_interval(
    values: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
) -> tuple[float, float, float]:
    """Return (mean, low, high) at 95% of any values; those of a group are not independent.

    Questions about one document are not independent: the standard error is that of a ratio of sums
    over groups (linearized, as for cluster samples). With fewer than two groups, or equal groups,
    there is no interval: all three numbers are the mean. With `weights` the mean is weighted.
    """
    if not values:
        return 0.0, 0.0, 0.0
    each = [1.0] * len(values) if weights is None else weights
    total = sum(each)
    mean = sum(w * v for w, v in zip(each, values, strict=True)) / total
    deviations: dict[Hashable, float] = {}
    for index, (value, weight) in enumerate(zip(values, each, strict=True)):
        group = index if groups is None else groups[index]
        deviations[group] = deviations.get(group, 0.0) + weight * (value - mean)
    count = len(deviations)
    if count < 2:
        return mean, mean, mean
    variance = sum(d * d for d in deviations.values()) * count / (count - 1)
    error = Z * math.sqrt(variance) / total
    if error < ROUNDING * max(map(abs, values)):
        return mean, mean, mean
    return mean, mean - error, mean + error
