"""Measure how long a small computation takes, to choose between two ways of doing it."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from kvstream.store.stores import converted_folder


def processor_seconds(run: Callable[[], Any], rounds: int = 5, least: float = 0.02) -> float:
    """Return the processor seconds per run in the fastest round, always above 0.

    A round takes at least `least` seconds: some clocks count milliseconds. One thread computes,
    because threads that wait take processor time.
    """
    seconds, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(rounds):
            started, spent, runs = time.process_time(), 0.0, 0
            while spent < least:
                run()
                runs += 1
                spent = time.process_time() - started
            seconds.append(spent / runs)
    finally:
        torch.set_num_threads(threads)
    return min(seconds)


def compared(plain: Callable[[], Any], other: Callable[[], Any]) -> tuple[float, float, bool]:
    """Return how many times as fast `other` is, its seconds, and whether the rounds agree.

    The two take turns, because the speed of a busy machine changes.
    """
    pairs = [[processor_seconds(run, rounds=2) for run in (plain, other)] for _ in range(3)]
    ratios = sorted(slow / fast for slow, fast in pairs)
    return ratios[1], min(fast for _, fast in pairs), ratios[2] < 1.5 * ratios[0]


def remembered(
    name: str, about: tuple[Any, ...], measure: Callable[[], tuple[dict[str, Any], bool]]
) -> dict[str, Any]:
    """Return what `measure` finds of this machine and PyTorch, from an earlier process if known.

    `about` are the constants that the facts depend on. `measure` also returns whether its facts are
    stable; others are not stored, and the next process measures again.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = [f"model name {platform.processor()}"]
    cpu = [line for line in lines if line.startswith(("model name", "flags"))][:2]
    key = sha256(repr((torch.__version__, platform.machine(), cpu, *about)).encode())
    file = converted_folder() / f"{name}-{key.hexdigest()[:16]}.json"
    with suppress(OSError, ValueError):
        known: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return known
    facts, stable = measure()
    with suppress(OSError):
        if stable:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(facts), "utf-8")
    return facts
