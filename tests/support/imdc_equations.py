"""The equations of IMDC as plain functions: what `kvstream.engine.schedule` is compared with.

Equation numbers are those of "Memorize Step by Step: Incremental Memory and Decremental Chunk". All
sizes are KV cache entries of one head, or tokens, which is the same number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


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


def time_ratio(r: float, c: float, memory: Sequence[float], m_max: float | None = None) -> float:
    """Return how many times faster incremental memory is than memory fixed at ``m_max`` (eq. 9).

    ``r`` is the share of the time that attention takes, ``c`` the (average) chunk.
    """
    largest = memory[-1] if m_max is None else m_max
    return r * ((largest + c) / (mean_memory(memory) + c) - 1) + 1
