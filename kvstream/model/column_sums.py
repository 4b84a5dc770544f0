"""The attention that each key gets, summed over queries in a Triton kernel without stored scores.

Import this module only where `cuda_attention.sums_columns` is true: it needs Triton.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Values that change with every chunk: the kernel would be compiled again for some of them.
CHANGING = ["scale", "seen", "queries", "total", "plus_head", "plus_query"]


@triton.jit
def _part(  # type: ignore[no-untyped-def]  # Triton gives annotations another meaning
    sums, keys, q, plus, key, dim, scale, seen, queries, start, stop, q_query, q_dim, plus_query,
    DIM: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Add the weights of the queries from `start` to before `stop` to `sums` [KEYS]."""
    for at in range(start, stop, QUERIES):
        query = at + tl.arange(0, QUERIES)
        there = query < queries
        rows = q + query.to(tl.int64)[:, None] * q_query + dim[None, :] * q_dim
        if DIM == WIDTH:
            asked = tl.load(rows, mask=there[:, None], other=0.0)
        else:
            asked = tl.load(rows, mask=there[:, None] & (dim[None, :] < DIM), other=0.0)
        # Queries after the last one have the weight exp2(-inf) = 0.
        more = tl.load(plus + query * plus_query, mask=there, other=float("-inf"))
        scores = tl.dot(keys, tl.trans(asked), input_precision=PRECISION)
        scores = scores * scale + (more * 1.4426950408889634)[None, :]
        if MASKED:
            visible = key[:, None] <= seen + query[None, :]
            scores = tl.where(visible, scores, float("-inf"))
        sums += tl.sum(tl.exp2(scores), 1)
    return sums


@triton.jit(do_not_specialize=CHANGING)
def _kernel(  # type: ignore[no-untyped-def]
    q, k, plus, out, scale, seen, queries, total, q_head, q_query, q_dim, k_head, k_key, k_dim,
    plus_head, plus_query,
    GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr,
    QUERIES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum for one block of keys and one query head. The key `seen + i` is the last of query i."""
    block, head = tl.program_id(0), tl.program_id(1)
    first = block * KEYS
    key = first + tl.arange(0, KEYS)
    dim = tl.arange(0, WIDTH)
    wide = head.to(tl.int64)
    q += wide * q_head
    plus += wide * plus_head
    k += (wide // GROUP) * k_head
    rows = k + key.to(tl.int64)[:, None] * k_key + dim[None, :] * k_dim
    there = (key < total)[:, None] & (dim < DIM)[None, :]
    keys = tl.load(rows, mask=there, other=0.0)
    # The block's first key is hidden from queries before `start`, the last one before `full`.
    start = tl.minimum(tl.maximum(first - seen, 0) // QUERIES * QUERIES, queries)
    full = (tl.maximum(first + KEYS - 1 - seen, 0) + QUERIES - 1) // QUERIES * QUERIES
    full = tl.minimum(full, queries)
    sums = tl.zeros([KEYS], dtype=tl.float32)
    sums = _part(
        sums, keys, q, plus, key, dim, scale, seen, queries, start, full, q_query, q_dim,
        plus_query, DIM, WIDTH, QUERIES, PRECISION, True,
    )  # fmt: skip
    sums = _part(
        sums, keys, q, plus, key, dim, scale, seen, queries, full, queries, q_query, q_dim,
        plus_query, DIM, WIDTH, QUERIES, PRECISION, False,
    )  # fmt: skip
    tl.store(out + wide * total + key, sums, mask=key < total)


def column_sums(
    q: Tensor, k: Tensor, plus: Tensor, scale: float, first: int, **blocks: Any
) -> Tensor:
    """Return ``sum_i exp(scale q_i k_j + plus_i)`` over the queries from `first` that see key j.

    The shapes are q [H, T, D], k [K, N, D] and plus [H, n] for n queries. The result is [H, N] in
    float32. `blocks` replaces values of `sizes`, for measurements.
    """
    heads, dim, total = q.shape[0], q.shape[2], k.shape[1]
    asked = q[:, first : first + plus.shape[1]]
    out = torch.empty(heads, total, dtype=torch.float32, device=q.device)
    width = max(16, triton.next_power_of_2(dim))
    chosen = {**sizes(q.dtype, width), **blocks}
    # Triton launches on the current device.
    with torch.cuda.device_of(q):
        _kernel[triton.cdiv(total, chosen["KEYS"]), heads](
            asked, k, plus, out, scale * 1.4426950408889634, total - q.shape[1] + first,
            plus.shape[1], total, *asked.stride(), *k.stride(), *plus.stride(),
            GROUP=heads // k.shape[0], DIM=dim, WIDTH=width, **chosen,
        )  # fmt: skip
    return out


def sizes(dtype: torch.dtype, width: int) -> dict[str, Any]:
    """Return the sizes of a block, which fits in 99 KiB of shared memory, and launch options."""
    if dtype == torch.float32:  # without tensor cores; a thread must not hold too many products
        keys, queries, warps, stages = 64 if width <= 128 else 32, 32, 8, 2
    else:
        keys, queries, warps, stages = *((128, 64) if width <= 128 else (64, 32)), 4, 3
    return {
        "KEYS": keys,
        "QUERIES": queries,
        "PRECISION": "ieee",
        "num_warps": warps,
        "num_stages": stages,
    }
