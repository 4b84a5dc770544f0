"""Triton kernels for a CUDA device, each of which reads every number once.

PyTorch needs eight calls for a rotation and seven to merge two attentions, and would store the
scores to sum the attention that each key gets. Import this module only where
`cuda_attention.fuses` or `cuda_attention.sums_columns` is true: it needs Triton.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 4096
"""Numbers that a program handles at once."""
# Values that change with every chunk: the kernel would be compiled again for some of them.
CHANGING = ["scale", "seen", "queries", "total", "plus_head", "plus_query"]


@triton.jit(do_not_specialize=["count"])
def _turn(  # type: ignore[no-untyped-def]  # Triton gives annotations another meaning
    keys, cos, sin, out, count, k_head, k_row, k_dim, o_head, o_row, o_dim, c_row, c_dim, s_row,
    s_dim, HALF: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    dim = tl.arange(0, WIDTH)[None, :]
    there = (row < count) & (dim < HALF)
    head = tl.program_id(1).to(tl.int64)
    keys += head * k_head + row * k_row + dim * k_dim
    out += head * o_head + row * o_row + dim * o_dim
    cos += row * c_row + dim * c_dim
    sin += row * s_row + dim * s_dim
    left = tl.load(keys, mask=there).to(tl.float32)
    right = tl.load(keys + HALF * k_dim, mask=there).to(tl.float32)
    first = left * tl.load(cos, mask=there) - right * tl.load(sin, mask=there)
    second = right * tl.load(cos + HALF * c_dim, mask=there)
    second += left * tl.load(sin + HALF * s_dim, mask=there)
    tl.debug_barrier()  # `out` may be the keys, and another thread may still read them
    tl.store(out, first, mask=there)
    tl.store(out + HALF * o_dim, second, mask=there)


def turn(keys: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Rotate keys [K, n, D] by cos and sin [n, D] float32, into `out`, which may be the keys.

    Each dimension of the first half of D turns with its partner in the second half.
    """
    heads, count, dim = keys.shape
    width = triton.next_power_of_2(dim // 2)
    rows = max(1, ELEMENTS // width)
    with torch.cuda.device_of(keys):  # Triton launches on the current device
        _turn[triton.cdiv(count, rows), heads](
            keys, cos, sin, out, count, *keys.stride(), *out.stride(), *cos.stride(),
            *sin.stride(), HALF=dim // 2, WIDTH=width, ROWS=rows,
        )  # fmt: skip


@triton.jit(do_not_specialize=["count", "l_head", "m_head"])  # they change with every chunk
def _merge(  # type: ignore[no-untyped-def]
    out, lse, past, past_lse, both_lse, count, o_head, o_row, o_dim, l_head, l_row, p_head, p_row,
    p_dim, m_head, m_row, DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    dim = tl.arange(0, WIDTH)[None, :]
    there = row < count
    head = tl.program_id(1).to(tl.int64)
    own = tl.load(lse + head * l_head + row * l_row, mask=there, other=0.0)
    other = tl.load(past_lse + head * m_head + row * m_row, mask=there, other=0.0)
    most = tl.maximum(own, other)
    own, other = tl.exp(own - most), tl.exp(other - most)
    both = own + other
    # Not in place: several threads read the same value.
    tl.store(both_lse + head * count + row, most + tl.log(both), mask=there)
    inside = there[:, None] & (dim < DIM)
    out += head * o_head + row[:, None] * o_row + dim * o_dim
    past += head * p_head + row[:, None] * p_row + dim * p_dim
    new = tl.load(out, mask=inside).to(tl.float32)
    old = tl.load(past, mask=inside).to(tl.float32)
    merged = new + (old - new) * (other / both)[:, None]
    tl.debug_barrier()
    tl.store(out, merged, mask=inside)


def merge(out: Tensor, lse: Tensor, past: Tensor, past_lse: Tensor) -> Tensor:
    """Merge the attentions of the same queries to two sets of keys, in place of `out`.

    `out` and `past` are [H, T, D], `lse` and `past_lse` [H, T] float32. Returns the log-sum-exp of
    both [H, T].
    """
    heads, count, dim = out.shape
    width = triton.next_power_of_2(dim)
    rows = max(1, ELEMENTS // width)
    both_lse = torch.empty(heads, count, dtype=torch.float32, device=out.device)
    with torch.cuda.device_of(out):
        _merge[triton.cdiv(count, rows), heads](
            out, lse, past, past_lse, both_lse, count, *out.stride(), *lse.stride(), *past.stride(),
            *past_lse.stride(), DIM=dim, WIDTH=width, ROWS=rows,
        )  # fmt: skip
    return both_lse


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
            vectors = tl.load(rows, mask=there[:, None], other=0.0)
        else:
            vectors = tl.load(rows, mask=there[:, None] & (dim[None, :] < DIM), other=0.0)
        # Queries after the last one have the weight exp2(-inf) = 0.
        more = tl.load(plus + query * plus_query, mask=there, other=float("-inf"))
        scores = tl.dot(keys, tl.trans(vectors), input_precision=PRECISION)
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
    queries = q[:, first : first + plus.shape[1]]
    out = torch.empty(heads, total, dtype=torch.float32, device=q.device)
    width = max(16, triton.next_power_of_2(dim))
    blocks = {**sizes(q.dtype, width), **blocks}
    # Triton launches on the current device.
    with torch.cuda.device_of(q):
        _kernel[triton.cdiv(total, blocks["KEYS"]), heads](
            queries, k, plus, out, scale * 1.4426950408889634, total - q.shape[1] + first,
            plus.shape[1], total, *queries.stride(), *k.stride(), *plus.stride(),
            GROUP=heads // k.shape[0], DIM=dim, WIDTH=width, **blocks,
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
