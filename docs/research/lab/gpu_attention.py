"""Measure one layer's work beside its products on a CUDA device: time, rate, memory, difference.

See docs/research/performance.md.

    python docs/research/lab/gpu_attention.py

The shape is that of Llama-3.1-8B in bfloat16: a chunk of 4096 tokens, 20,800 entries with it. The
script prints one line of JSON for each case. `milliseconds` is the median, `mib` the most memory
beside the inputs, and `difference` the largest difference from the first case of the group: for
sums, divided by the largest sum. A case that fails prints its error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any
from unittest.mock import patch

import psutil
import torch
from torch import Tensor

from kvstream.model import attention, cuda_attention, rotary
from kvstream.model.attention import Shape

HEADS, GROUPS, DIM, CHUNK, ENTRIES, WINDOW = 32, 8, 128, 4096, 20800, 64
MANY = 2**19
"""Number of entries of a plain cache in the middle of a text of 1M tokens."""
SHAPE = Shape(DIM**-0.5)
BLOCKS: tuple[tuple[int, int, int, int], ...] = (
    (128, 64, 4, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (64, 128, 4, 2),
    (128, 32, 4, 3),
)  # fmt: skip
"""Numbers of keys and queries of a block, of warps and of stages."""
PAIRS = CHUNK * (ENTRIES - CHUNK) + CHUNK * (CHUNK + 1) // 2
"""Number of pairs of a query and a key that it sees."""


def main() -> None:
    torch.manual_seed(0)
    with torch.inference_mode():
        q, k, v = (
            torch.randn(heads, n, DIM, device="cuda", dtype=torch.bfloat16)
            for heads, n in ((HEADS, CHUNK), (GROUPS, ENTRIES), (GROUPS, ENTRIES))
        )
        print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
        lse = attentions(q, k, v)
        summed = sums(q, k, lse)
        wide_q, wide_k = q.float(), k.float()
        for precision in ("ieee", "tf32x3"):
            case = partial(columns, wide_q, wide_k, lse, CHUNK, PRECISION=precision)
            measure(f"sums, float32, {precision}", case, 2 * PAIRS, summed, rounds=3)
        del wide_q, wide_k
        beside(q, k, v)
        plans(q, k, v)


def attentions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Measure attention with log-sum-exp in several ways; return the log-sum-exp."""
    scale = SHAPE.scale
    ways: tuple[tuple[str, Callable[[], Any], int], ...] = (
        ("reference", lambda: attention.reference(q, k, v, SHAPE), 3),
        ("flash, merged", lambda: cuda_attention.merged(q, k, v, scale), 10),
        # The mask of one call is aligned to the last key.
        ("flash, one call", lambda: cuda_attention.flash(q, k, v, scale, True), 10),
        ("cudnn, merged", lambda: merged_by_cudnn(q, k, v), 10),
        ("sdpa, without log-sum-exp", lambda: (attention._sdpa(q, k, v, scale),), 10),
    )
    right: tuple[Tensor, ...] = attention.reference(q, k, v, SHAPE)
    for name, way, rounds in ways:
        measure(f"attention: {name}", way, 4 * PAIRS, right, rounds)
    one = q[:, -1:]
    measure("one query: merged", lambda: cuda_attention.merged(one, k, v, scale), 4 * ENTRIES)
    measure("one query: sdpa", lambda: attention._sdpa(one, k, v, scale), 4 * ENTRIES)
    return right[1]


def merged_by_cudnn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    with patch.object(cuda_attention, "flash", cuda_attention.cudnn):
        return cuda_attention.merged(q, k, v, SHAPE.scale)


def beside(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Measure the rotation of all keys, and the merging of two attentions."""
    from kvstream.model import triton_kernels

    scale, cos, sin = SHAPE.scale, *torch.randn(2, ENTRIES, DIM, device="cuda")
    turned = torch.empty_like(k)

    def apart() -> tuple[Tensor, ...]:
        work = torch.empty(2, *k.shape, device="cuda")
        return (turned.copy_(rotary._turned(k, cos, sin, *work)),)

    def at_once() -> tuple[Tensor, ...]:
        triton_kernels.turn(k, cos, sin, turned)
        return (turned,)

    right = measure("rotation: PyTorch's calls, all keys at once", apart, 0)
    right = tuple(t.clone() for t in right)
    measure("rotation: kernel", at_once, 0, right)
    old = ENTRIES - CHUNK
    own = cuda_attention.flash(q, k[:, old:], v[:, old:], scale, True)
    past = cuda_attention.flash(q, k[:, :old], v[:, :old], scale, False)
    measure("merging: kernel", lambda: triton_kernels.merge(own[0].clone(), own[1], *past), 0)
    with patch.object(cuda_attention, "fuses", return_value=False):
        measure("both attentions, merged by PyTorch's calls",
                lambda: cuda_attention.merged(q, k, v, scale), 4 * PAIRS)  # fmt: skip


def plans(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Measure what a new shape costs cuDNN, and both kernels with the entries of a plain cache."""
    process, scale = psutil.Process(), SHAPE.scale
    before, started, count = process.memory_info().rss, time.perf_counter(), 20
    for n in range(count):
        cuda_attention.cudnn(q[:, : 3000 - 7 * n], k[:, : 9000 + n], v[:, : 9000 + n], scale, False)
    torch.cuda.synchronize()
    spent = (time.perf_counter() - started) / count
    ram = (process.memory_info().rss - before) / count / 2**20
    print(json.dumps({"case": "cuDNN: a new shape", "milliseconds": round(1e3 * spent, 1),
                      "ram_mib": round(ram, 2)}))  # fmt: skip
    k, v = (torch.randn(GROUPS, MANY, DIM, device="cuda", dtype=q.dtype) for _ in "kv")
    for kernel in (cuda_attention.flash, cuda_attention.cudnn):
        name = f"{MANY} entries: {kernel.__name__}"
        measure(name, partial(kernel, q, k, v, scale, False), 4 * CHUNK * MANY, rounds=3)


def sums(q: Tensor, k: Tensor, lse: Tensor) -> Tensor | None:
    """Measure the sums of attention to each key; return them."""
    right = measure("sums: kernel", lambda: columns(q, k, lse, CHUNK), 2 * PAIRS)
    for keys, queries, warps, stages in BLOCKS:
        blocks = {"KEYS": keys, "QUERIES": queries, "num_warps": warps, "num_stages": stages}
        case = partial(columns, q, k, lse, CHUNK, **blocks)
        measure(f"sums: kernel, {blocks}", case, 2 * PAIRS, right)
    measure("sums: stored scores", lambda: stored(q, k, lse, CHUNK), 2 * PAIRS, right, 3)
    few = 2 * WINDOW * ENTRIES
    last = measure("sums: kernel, last 64 queries", lambda: columns(q, k, lse, WINDOW), few)
    measure("sums: stored scores, last 64", lambda: stored(q, k, lse, WINDOW), few, last)
    return right


def columns(q: Tensor, k: Tensor, lse: Tensor, count: int, **blocks: Any) -> Tensor:
    """Sum the attention of the last `count` queries in the kernel."""
    from kvstream.model.triton_kernels import column_sums

    return column_sums(q, k, -lse[:, -count:], SHAPE.scale, CHUNK - count, **blocks)


def stored(q: Tensor, k: Tensor, lse: Tensor, count: int) -> Tensor:
    """Sum the same with stored scores."""
    with patch.object(cuda_attention, "sums_columns", return_value=False):
        return attention._attention_to(q, k, lse, SHAPE, CHUNK - count, CHUNK)


def measure(
    name: str, case: Callable[[], Any], work: int, right: Any = None, rounds: int = 10
) -> Any:
    """Print a line for a case of `work` times HEADS * DIM operations; return its first result."""
    told: dict[str, Any] = {"case": name}
    result = None
    try:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = case()
        torch.cuda.synchronize()
        told["mib"] = round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)
        times = [timed(case) for _ in range(3 + rounds)][3:]
        told["milliseconds"] = round(median(times), 4)
        told["tflops"] = round(work * HEADS * DIM / median(times) / 1e9, 1)
        if right is not None:
            told["difference"] = difference(result, right)
    except Exception as error:  # the other cases must run
        told["error"] = f"{type(error).__name__}: {error}"[:400]
    print(json.dumps(told), flush=True)
    return result


def timed(case: Callable[[], Any]) -> float:
    """Return the milliseconds of one call on the device."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    case()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def difference(result: Any, right: Any) -> list[float]:
    if isinstance(result, Tensor):
        return [float((result - right).abs().max() / right.abs().max())]
    return [float((a.float() - b.float()).abs().max()) for a, b in zip(result, right, strict=False)]


if __name__ == "__main__":
    main()
