"""Measure how much a process grows while a model with huge keys and values reads some budgets.

It runs in a process of its own, so that the memory of nothing else counts.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import threading
import time

import torch
from models import BASE, fresh, tokens
from transformers import AutoConfig

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.methods.registry import make
from kvstream.model.probe import bound
from kvstream.settings import RunSettings

BUDGET, CHUNK = 256, 48
LIBC, MMAP_THRESHOLD = ctypes.CDLL("libc.so.6"), -3
SHAPE = {
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 32,
    "head_dim": 256, "hidden_size": 32, "intermediate_size": 16,
}  # fmt: skip


def rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Watch(threading.Thread):
    """Polls the process every millisecond; kernels run without the interpreter's lock."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.over = rss(), False

    def run(self) -> None:
        while not self.over:
            self.peak = max(self.peak, rss())
            time.sleep(0.001)

    def stop(self) -> int:
        self.over = True
        self.join()
        return self.peak


def main(method: str, budgets: float) -> None:
    length = round(budgets * BUDGET)
    torch.set_num_threads(1)
    model = bound(fresh(AutoConfig.for_model("llama", **{**BASE, **SHAPE})), "fat")
    sizes = BudgetSplit(BUDGET, prompt=4, catalyst=4, question=4, answer=8)
    # The forward pass of one chunk is a cost of the model. The warm-up's keys and values are freed
    # and returned to the system before the measurement.
    watch = Watch()
    watch.start()
    with torch.inference_mode():
        for _ in range(2):
            model.forward(tokens(CHUNK), model.new_cache(CHUNK))
    warm = watch.stop()
    LIBC.malloc_trim(0)
    before = rss()
    cache_of_warm_up = CHUNK * model.new_cache(1).capacity_bytes
    run = RunSettings(chunk="fixed", chunk_size=CHUNK, keep=192)
    reader = Reader(model, make(method), run, sizes, tokens(4), [tokens(4)], length)
    watch = Watch()
    watch.start()
    first = None
    while reader.seen < length:
        piece = Chunk(tokens(reader.schedule.chunk(), seed=reader.seen), reader.seen)
        reader.step(piece, last=reader.seen + len(piece.ids) >= length)
        first = first or rss()
    for _ in reader.answer(tokens(4), lambda x: int(x.argmax()), frozenset(), 8):
        pass
    print(
        json.dumps(
            {
                "budget": reader.cache.capacity_bytes,
                "token": reader.cache.stores[0].spec.entry_bytes * len(reader.cache.stores),
                "grown": rss() - before,
                "grown_peak": watch.stop() - before,
                "activations": warm - before - cache_of_warm_up,
                "later": rss() - first,
                "peak_tokens": reader.cache.peak.tokens,
            }
        )
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "returns" in sys.argv:  # freed blocks of this size to the system at once
        assert LIBC.mallopt(MMAP_THRESHOLD, 1 << 17)
    main(sys.argv[1], float(sys.argv[2]))
