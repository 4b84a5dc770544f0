"""Attention with log-sum-exp on a CUDA device, with kernels that PyTorch ships.

The shapes are those of `kvstream.model.attention`. No scores are materialized.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
ROWS = 1024
"""Number of queries whose two outputs are merged at once, in float32."""


def supports(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether `merged` can compute this attention here."""
    return (
        _on_ampere(q, k)
        and q.dtype in HALF
        and q.shape[-1] % 8 == 0
        and q.shape[-1] == v.shape[-1]
        and torch.backends.cuda.is_flash_attention_available()
    )


def sums_columns(q: Tensor, k: Tensor) -> bool:
    """Return whether `kvstream.model.column_sums` works here."""
    return _on_ampere(q, k) and q.dtype in (*HALF, torch.float32) and _triton_compiles()


def _on_ampere(q: Tensor, k: Tensor) -> bool:
    """Return whether both are on a CUDA device with the memory instructions that kernels need."""
    return (
        type(q) is type(k) is Tensor  # a subclass may have its numbers elsewhere
        and q.is_cuda
        and torch.version.hip is None
        and torch.cuda.get_device_capability(q.device) >= (8, 0)
        and q.dtype == k.dtype
        and q.shape[-1] <= 256
    )


@cache
def _triton_compiles() -> bool:
    """Return whether Triton is installed and finds the driver and a C compiler."""
    try:
        from triton.runtime import driver

        driver.active.get_current_device()  # compiles Triton's own library at its first use
    except Exception:  # a missing compiler raises RuntimeError, a failing one CalledProcessError
        return False
    return True


def flash(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Call PyTorch's build of FlashAttention 2: (out, log-sum-exp).

    It takes fewer heads of keys than of queries. With `causal`, their numbers of tokens are equal.
    """
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
        q[None], k[None], v[None], 0.0, causal, False, scale=scale
    )
    return out[0], lse[0, :, : q.shape[1]]


def merged(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attend to memory (no mask) and to the new tokens (causal), and merge both by log-sum-exp."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    new, old = q.shape[1], k.shape[1] - q.shape[1]
    if new == 1:
        # The query heads of a group become queries of one head, so their keys are read once.
        out, lse = flash(q.reshape(k.shape[0], -1, q.shape[-1]), k, v, scale, False)
        return out.reshape(q.shape), lse.reshape(q.shape[:2])
    out, lse = flash(q, k[:, old:], v[:, old:], scale, True)
    if old == 0:  # the kernel's log-sum-exp of no keys is +inf
        return out, lse
    past, past_lse = flash(q, k[:, :old], v[:, :old], scale, False)
    share = torch.sigmoid(past_lse - lse)[..., None]
    for first in range(0, new, ROWS):
        rows = slice(first, first + ROWS)
        out[:, rows] = torch.lerp(out[:, rows].float(), past[:, rows].float(), share[:, rows])
    return out, torch.logaddexp(lse, past_lse)
