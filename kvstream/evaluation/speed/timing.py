"""Seconds of one reading and its answer, and the most memory seen meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from kvstream.evaluation.records import Record

SAMPLE_SECONDS = 0.02


@dataclass(frozen=True)
class Clock:
    """Seconds on the wall, and of this process on all processors."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Clock:
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, earlier: Clock) -> Clock:
        return Clock(self.wall - earlier.wall, self.cpu - earlier.cpu)


def wait(device: torch.device) -> None:
    """Wait until a GPU has finished all submitted work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """Started when reading starts; told when it ends and at every token of the answer."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        wait(device)
        self._started = Clock.now()
        self._read: Clock | None = None
        self._tokens: list[Clock] = []

    @property
    def seconds(self) -> float:
        """Wall time so far; for a GPU, of submitted work, finished or not."""
        return Clock.now().wall - self._started.wall

    def has_read(self) -> None:
        """All tokens went through the model."""
        wait(self._device)
        self._read = Clock.now() - self._started

    def token(self) -> None:
        """A token of the answer is known; reading its number has waited for the device."""
        self._tokens.append(Clock.now() - self._started)

    def record(self) -> Record:
        """``prefill_s``, ``cpu_s``, ``first_token_s``, ``total_s``, ``decode_tokens_per_s``,
        ``decode_cpu_tokens_per_s``."""
        assert self._read is not None
        found: Record = {"prefill_s": self._read.wall, "cpu_s": self._read.cpu}
        if self._tokens:
            first, last = self._tokens[0], self._tokens[-1]
            found |= {"first_token_s": first.wall, "total_s": last.wall}
            if last.wall > first.wall:
                spent, more = last - first, len(self._tokens) - 1
                found["decode_tokens_per_s"] = more / spent.wall
                found["decode_cpu_tokens_per_s"] = more / max(spent.cpu, 1e-9)
        return found


def answer(
    forward: Callable[[Sequence[int]], Tensor],
    question: Sequence[int],
    count: int,
    watch: Stopwatch,
) -> None:
    """`count` tokens, each the likeliest; ``forward(ids)`` gives the logits [V] after the last."""
    ids = list(question)
    for _ in range(count):
        ids = [int(forward(ids).argmax())]
        watch.token()


@dataclass
class Peak:
    """The most memory in bytes; of the device None where there is none of its own."""

    rss: int = 0
    device: int | None = None


@contextmanager
def memory_watched(device: torch.device) -> Iterator[Peak]:
    """Watches the process from a thread; on a GPU its allocator counts."""
    import psutil

    process, peak, stop = psutil.Process(os.getpid()), Peak(), threading.Event()
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)

    def watch() -> None:
        while True:
            peak.rss = max(peak.rss, process.memory_info().rss)
            if stop.wait(SAMPLE_SECONDS):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()
        if cuda:
            peak.device = torch.cuda.max_memory_allocated(device)
