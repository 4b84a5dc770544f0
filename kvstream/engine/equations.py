"""The equations of IMDC and the growth curves of memory, as pure functions.

Equation numbers are those of "Memorize Step by Step: Incremental Memory and Decremental Chunk". All
sizes are KV cache entries of one head, or tokens, which is the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

# The paper's equations -------------------------------------------------------------------------


def memory_sizes(schedule: str, n: int, m_0: int, m_max: int) -> list[int]:
    """Return memory after each of ``n`` steps, rounded down: eq. 1 (linear), 7 (square), 8 (sqrt).

    ``fixed`` is m_max from the first step on. A single step ends at m_max with every schedule.
    Raises ValueError for a schedule that is not a single curve (square-sqrt, adaptive).
    """
    if schedule == "fixed" or n == 1:
        return [m_max] * n
    rise, last = m_max - m_0, n - 1
    if schedule == "linear":
        return [m_0 + rise * i // last for i in range(n)]
    if schedule == "square":
        return [m_0 + rise * i * i // (last * last) for i in range(n)]
    if schedule == "sqrt":
        return [m_0 + math.isqrt(rise * rise * i // last) for i in range(n)]
    raise ValueError(f"{schedule!r} has no single curve")


def mean_memory(memory: Sequence[float]) -> float:
    """Return m-hat (below eq. 6): mean memory beside a chunk. No chunk follows the last size."""
    if len(memory) < 2:
        return 0.0
    return sum(memory[:-1]) / (len(memory) - 1)


def decremental_chunks(c: float, memory: Sequence[float]) -> list[float]:
    """Return the chunk sizes of eq. 6 for an average chunk ``c`` (eq. 4) and memory per step.

    The first chunk is c, because there is no memory yet. Later, chunk + memory is c + m-hat
    (eq. 5). A value of zero or less means that memory is too large for this average chunk.
    """
    attention = c + mean_memory(memory)
    return [c, *(attention - m for m in memory[:-1])]


def adaptive_sizes(base: float, ratios: Sequence[float]) -> list[float]:
    """Return each layer's memory (eq. 3): its share of the retention ratios (eq. 2) x N x base."""
    total = sum(ratios)
    if total <= 0:
        return [float(base)] * len(ratios)
    return [len(ratios) * base * p / total for p in ratios]


def time_ratio(r: float, c: float, memory: Sequence[float], m_max: float | None = None) -> float:
    """Return how many times faster incremental memory is than memory fixed at ``m_max`` (eq. 9).

    ``r`` is the share of the time that attention takes, ``c`` the (average) chunk.
    """
    largest = memory[-1] if m_max is None else m_max
    return r * ((largest + c) / (mean_memory(memory) + c) - 1) + 1


# Growth as a curve from 0 to 1 -----------------------------------------------------------------

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
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
