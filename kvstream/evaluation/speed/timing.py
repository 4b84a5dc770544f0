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
from kvstream.model.bounded import BoundedModel

SAMPLE_SECONDS = 0.02
PEAK_SECONDS = 0.3
"""Minimum seconds of a measurement, after one product that does not count."""


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """A clock that starts with the reading, and records its end and every token of the answer."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        wait(device)
        self._start = time.perf_counter(), time.process_time()
        self._read: tuple[float, float] | None = None
        self._tokens: list[tuple[float, float]] = []

    def _seconds(self) -> tuple[float, float]:
        """Return seconds of wall time so far, and of this process's time on all processors."""
        return time.perf_counter() - self._start[0], time.process_time() - self._start[1]

    @property
    def seconds(self) -> float:
        """Wall time so far. On a GPU, submitted work may be unfinished."""
        return self._seconds()[0]

    def has_read(self) -> None:
        """Record that all tokens went through the model."""
        wait(self._device)
        self._read = self._seconds()

    def token(self) -> None:
        """Record a token of the answer. Getting its id has already waited for the device."""
        self._tokens.append(self._seconds())

    def record(self) -> Record:
        """Return times in seconds (``*_s``) and tokens per second (``*_tokens_per_s``)."""
        assert self._read is not None
        times: Record = dict(zip(("prefill_s", "cpu_s"), self._read, strict=True))
        if self._tokens:
            (first, first_cpu), (last, last_cpu) = self._tokens[0], self._tokens[-1]
            times |= {"first_token_s": first, "total_s": last}
            if last > first:
                more = len(self._tokens) - 1
                times["decode_tokens_per_s"] = more / (last - first)
                times["decode_cpu_tokens_per_s"] = more / max(last_cpu - first_cpu, 1e-9)
        return times


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
def watch_memory(device: torch.device) -> Iterator[Peak]:
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


def measured_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return floating-point operations per second in products of large square matrices."""
    n = 8192 if device.type == "cuda" else 1024
    a = torch.randn(n, n, device=device, dtype=torch.float32).to(dtype)
    a @ a
    wait(device)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < PEAK_SECONDS:
        for _ in range(4):
            a @ a
        wait(device)
        count += 4
    return count * 2 * n**3 / (time.perf_counter() - start)


def reading_flops(model: BoundedModel, steps: Sequence[tuple[int, int]]) -> float:
    """Return the operations that the model itself needs for these (chunk, memory) steps.

    That is twice the weights of its layers for every token (of all experts, which is too much), and
    attention to all tokens that a token sees. The output layer and the method do not count.
    """
    heads = model.model.config.get_text_config().num_attention_heads
    layers = model.model.base_model
    tables = {id(m.weight) for m in layers.modules() if isinstance(m, torch.nn.Embedding)}
    weights = sum(p.numel() for p in layers.parameters() if p.dim() > 1 and id(p) not in tables)
    tokens = sum(chunk for chunk, _ in steps)
    pairs = {sight: _pairs(steps, sight) for sight in {spec.sight for spec in model.layers}}
    products = sum(
        (spec.key_dim + spec.value_dim) * (1 + len(spec.shared_by)) * pairs[spec.sight]
        for spec in model.layers
    )
    return 2.0 * weights * tokens + 2.0 * heads * products


def _pairs(steps: Sequence[tuple[int, int]], sight: int | None) -> float:
    """Return how many tokens all tokens of the steps see together, each at most `sight`."""
    before, total = 0, 0.0
    for chunk, memory in steps:
        # So many tokens see all that is held and all of the chunk before them.
        wide = chunk if sight is None else min(chunk, max(0, sight - before))
        total += wide * (before + (wide + 1) / 2) + (chunk - wide) * (sight or 0)
        before = min(memory, before + chunk)
    return total
