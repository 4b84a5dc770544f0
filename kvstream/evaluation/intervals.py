"""How far a measured share or mean may be off, from the number of trials alone."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

Z = 1.959964
"""Standard deviations on either side that hold 95% of a normal distribution."""


def wilson(right: float, trials: int) -> tuple[float, float]:
    """95% interval of a share, by Wilson's score: honest also at 0 and at all right.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
    No trials: (0, 1).
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
    values: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
) -> tuple[float, float, float]:
    """(mean, low, high) at 95%, where values of one group go together.

    Questions about one document are not independent: the standard error is that of a ratio of
    sums over groups (linearised, as for cluster samples). Where all are 0 or all are 1, no error
    can be estimated from them, and it is Wilson's of as many trials as there are groups. Fewer
    than two groups of other values: no interval, and all three are the mean. With `weights` the
    mean is the weighted one.
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
    if mean in (0, 1) and min(values) == max(values):
        return mean, *wilson(mean * count, count)
    if count < 2:
        return mean, mean, mean
    variance = sum(d * d for d in deviations.values()) * count / (count - 1)
    error = Z * math.sqrt(variance) / total
    return mean, mean - error, mean + error
