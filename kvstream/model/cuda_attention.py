"""Attention with log-sum-exp on a CUDA device, with kernels that PyTorch ships.

The shapes are those of `kvstream.model.attention`. No scores are materialized.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from functools import cache

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
WORTH = 5e14
"""cuDNN's kernel is used for a shape after FlashAttention 2 has done so many operations with it.
It is 1.6 times as fast on a Hopper GPU, but a plan takes 40 ms and 1 MiB of RAM for each shape, and
the first plans half a second. These operations take 1.5 s. Only chunks of one size repeat a shape
so often."""
PLANS = 32
"""Maximum number of shapes that have a plan."""
SHAPES = 1024
"""Maximum number of shapes whose operations are counted."""
ROWS = 1024
"""Number of queries whose two outputs PyTorch merges at once."""


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
    """Return whether `triton_kernels.column_sums` works here."""
    return _on_ampere(q, k) and q.dtype in (*HALF, torch.float32) and _triton_compiles()


def fuses(x: Tensor) -> bool:
    """Return whether the other functions of `triton_kernels` work on the device of `x`."""
    return _is_new_enough(x) and _triton_compiles()


def _on_ampere(q: Tensor, k: Tensor) -> bool:
    """Return whether kernels take both: same type, and not too wide."""
    return _is_new_enough(q) and type(k) is Tensor and q.dtype == k.dtype and q.shape[-1] <= 256


def _is_new_enough(x: Tensor) -> bool:
    """Return whether `x` is on a CUDA device with the memory instructions that kernels need."""
    return (
        type(x) is Tensor  # a subclass may have its numbers elsewhere
        and x.is_cuda
        and torch.version.hip is None
        and torch.cuda.get_device_capability(x.device) >= (8, 0)
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


class Plans:
    """Decides for which shapes a plan of cuDNN's is worth its time and memory."""

    def __init__(self) -> None:
        self.shapes: set[Hashable] = set()
        self.done: Counter[Hashable] = Counter()

    def worth(self, q: Tensor, k: Tensor, causal: bool) -> bool:
        """Return whether to use cuDNN's kernel for this call, which is counted."""
        shape = (q.device, q.dtype, *q.shape, *q.stride(), *k.shape, *k.stride(), causal)
        if shape in self.shapes:
            return True
        if len(self.shapes) >= PLANS:
            return False
        if len(self.done) >= SHAPES:
            self.done.clear()
        self.done[shape] += 4 * q.numel() * k.shape[1] // (2 if causal else 1)
        if self.done[shape] < WORTH:
            return False
        self.done.pop(shape, None)  # another thread may have done it
        self.shapes.add(shape)
        return True


_plans = Plans()


def _attended(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Call the faster kernel: (out, log-sum-exp)."""
    if _has_cudnn(q) and _plans.worth(q, k, causal):
        return cudnn(q, k, v, scale, causal)
    return flash(q, k, v, scale, causal)


def _has_cudnn(q: Tensor) -> bool:
    """Return whether cuDNN's kernel is there and faster: on a Hopper GPU, for narrow heads."""
    return (
        q.is_cuda
        and q.shape[-1] <= 128
        and torch.cuda.get_device_capability(q.device)[0] == 9
        and torch.backends.cuda.cudnn_sdp_enabled()
        and torch.backends.cudnn.is_available()
    )


def cudnn(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Call cuDNN's attention as `flash` is called."""
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q[None], k[None], v[None], None, True, 0.0, causal, False, scale=scale
    )
    return out[0], lse.reshape(q.shape[:2])


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
    out, lse = _attended(q, k[:, old:], v[:, old:], scale, True)
    if old == 0:  # the kernel's log-sum-exp of no keys is +inf
        return out, lse
    past, past_lse = _attended(q, k[:, :old], v[:, :old], scale, False)
    if fuses(out):
        from kvstream.model import triton_kernels  # needs Triton

        return out, triton_kernels.merge(out, lse, past, past_lse)
    return merge(out, lse, past, past_lse, ROWS)


def merge(
    out: Tensor, lse: Tensor, past: Tensor, past_lse: Tensor, block: int
) -> tuple[Tensor, Tensor]:
    """Merge as `triton_kernels.merge`, on any device, with `block` queries at once in float32."""
    share = torch.sigmoid(past_lse - lse)[..., None]
    for first in range(0, out.shape[1], block):
        rows = slice(first, first + block)
        out[:, rows] = torch.lerp(out[:, rows].float(), past[:, rows].float(), share[:, rows])
    return out, torch.logaddexp(lse, past_lse)
