"""How memory grows: curves from 0 to 1 along a text (IMDC, eqs. 1, 7 and 8), and sums over them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

Curve = Callable[[float], float]


def flat(_: float) -> float:
    return 1.0


def linear(t: float) -> float:
    return t


def square(t: float) -> float:
    return t * t


CURVES: dict[str, tuple[Curve, Curve]] = {
    # schedule: (lower half of the layers, upper half); the upper is never the smaller of the two
    "fixed": (flat, flat),
    "linear": (linear, linear),
    "adaptive": (linear, linear),
    "square": (square, square),
    "sqrt": (math.sqrt, math.sqrt),
    "square-sqrt": (square, math.sqrt),
}


def mean_on_grid(curve: Curve, t: float, k: int) -> float:
    """Return the mean of a curve at t, t+d, ..., 1-d with d = (1-t)/k, without a loop over k."""
    d = (1 - t) / k
    if curve is flat or d == 0:
        return curve(t)
    if curve is linear:
        return t + d * (k - 1) / 2
    if curve is square:
        return t * t + t * d * (k - 1) + d * d * (k - 1) * (2 * k - 1) / 6
    # Square root: sum the first points one by one, the rest by Euler-Maclaurin (error below 1e-5).
    head = min(k, 16)
    total = sum(math.sqrt(t + j * d) for j in range(head))
    if k > head:
        a, b = t / d + head, t / d + k
        rest = (b * math.sqrt(b) - a * math.sqrt(a)) * 2 / 3
        rest -= (math.sqrt(b) - math.sqrt(a)) / 2
        rest += (1 / math.sqrt(b) - 1 / math.sqrt(a)) / 24
        total += rest * math.sqrt(d)
    return total / k


def first_true(enough: Callable[[int], bool]) -> int:
    """Return the smallest integer >= 1 for which ``enough`` (monotone) is true."""
    high = 1
    while not enough(high):
        high *= 2
    low = high // 2 + 1
    return low + bisect_left(range(low, high), True, key=enough)
