"""Elementwise work on a CUDA device in one Triton kernel each: every number is read once.

PyTorch needs eight calls for a rotation and seven to merge two attentions. Import this module only
where `cuda_attention.fuses` is true: it needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 4096
"""Numbers that a program handles at once."""


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
