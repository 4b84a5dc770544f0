"""Measure how long a small computation takes, to choose between two ways of doing it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

ROUND = 0.02
"""Minimum processor time in seconds of one round of timing."""


def processor_seconds(run: Callable[[], Any], rounds: int = 5, least: float = ROUND) -> float:
    """Return the processor seconds per run in the fastest round, always above 0.

    A round takes at least `least` seconds: some clocks count milliseconds. One thread computes,
    because threads that wait take processor time.
    """
    found, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(rounds):
            started, spent, runs = time.process_time(), 0.0, 0
            while spent < least:
                run()
                runs += 1
                spent = time.process_time() - started
            found.append(spent / runs)
    finally:
        torch.set_num_threads(threads)
    return min(found)
