"""Seconds of one reading and its answer, and the peak memory during them."""

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


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """A clock that starts with the reading, and records its end and every token of the answer."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        wait(device)
        self._started = time.perf_counter(), time.process_time()
        self._read: tuple[float, float] | None = None
        self._tokens: list[tuple[float, float]] = []

    def _spent(self) -> tuple[float, float]:
        """Return seconds of wall time so far, and of this process's time on all processors."""
        return time.perf_counter() - self._started[0], time.process_time() - self._started[1]

    @property
    def seconds(self) -> float:
        """Wall time so far. On a GPU, submitted work may be unfinished."""
        return self._spent()[0]

    def has_read(self) -> None:
        """Record that all tokens went through the model."""
        wait(self._device)
        self._read = self._spent()

    def token(self) -> None:
        """Record a token of the answer. Getting its id has already waited for the device."""
        self._tokens.append(self._spent())

    def record(self) -> Record:
        """Return times in seconds (``*_s``) and tokens per second (``*_tokens_per_s``)."""
        assert self._read is not None
        found: Record = dict(zip(("prefill_s", "cpu_s"), self._read, strict=True))
        if self._tokens:
            (first, first_cpu), (last, last_cpu) = self._tokens[0], self._tokens[-1]
            found |= {"first_token_s": first, "total_s": last}
            if last > first:
                more = len(self._tokens) - 1
                found["decode_tokens_per_s"] = more / (last - first)
                found["decode_cpu_tokens_per_s"] = more / max(last_cpu - first_cpu, 1e-9)
        return found


def answer(
    forward: Callable[[Sequence[int]], Tensor],
    question: Sequence[int],
    count: int,
    watch: Stopwatch,
) -> None:
    """Generate `count` tokens greedily; ``forward(ids)`` returns logits [V] after the last id."""
    ids = list(question)
    for _ in range(count):
        ids = [int(forward(ids).argmax())]
        watch.token()


@dataclass
class Peak:
    """Peak memory in bytes; `device` is None if the device has no memory of its own."""

    rss: int = 0
    device: int | None = None


@contextmanager
def memory_watched(device: torch.device) -> Iterator[Peak]:
    """Watch the process's memory in a thread, and on a GPU the allocator's peak."""
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
