"""Triton kernels for elementwise work equal PyTorch's calls.

Without a GPU, Triton's interpreter runs the kernels.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import bounded
from torch import Tensor
from triton_interpreter import interpreted, needs_triton

from kvstream.model import cuda_attention, rotary

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TURNS = ((5, 16, 16), (300, 96, 96), (70, 24, 16), (1, 128, 64), (3000, 128, 128))
"""Numbers of keys, their dimensions, and the dimensions that are rotated."""
MERGES = ((1, 16), (5, 24), (300, 96), (2000, 128))
"""Numbers of queries, and dimensions."""
FEW = 2
"""Number of these cases on a GPU, where each compiles several kernels."""
NEAR = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def check_turns(dtype: torch.dtype, device: str = "cpu") -> None:
    from kvstream.model.triton_kernels import turn

    for count, dim, width in TURNS[-FEW:] if device == "cuda" else TURNS:
        generator = torch.Generator().manual_seed(count)
        keys = torch.randn(3, count + 4, dim, generator=generator).to(device, dtype)[:, :count]
        cos, sin = torch.randn(2, count, width, generator=generator).to(device)
        work = torch.empty(2, 3, count, width, device=device)
        want = rotary._turned(keys[..., :width], cos, sin, *work).to(dtype)
        before = keys.clone()
        out = torch.zeros(3, count + 9, dim, dtype=dtype, device=device)[:, 2 : count + 2]
        wide = torch.empty(3, count, width, device=device)
        for target in (out[..., :width], wide, keys[..., :width]):
            turn(keys[..., :width], cos, sin, target)
            torch.testing.assert_close(target.to(dtype), want, rtol=NEAR[dtype], atol=NEAR[dtype])
        assert not out[..., width:].any()
        assert torch.equal(keys[..., width:], before[..., width:])


def check_merges(dtype: torch.dtype, device: str = "cpu") -> None:
    from kvstream.model.triton_kernels import merge

    for count, dim in MERGES[-FEW:] if device == "cuda" else MERGES:
        generator = torch.Generator().manual_seed(count)
        out, past = (
            torch.randn(count, 4, dim, generator=generator).to(device, dtype).transpose(0, 1)
            for _ in "op"
        )
        lse, past_lse = 9 * torch.randn(2, 4, count, generator=generator).to(device)
        want, want_lse = slow_merge(out, lse, past, past_lse)
        both = merge(out, lse, past, past_lse)
        torch.testing.assert_close(out.double(), want, rtol=NEAR[dtype], atol=NEAR[dtype])
        torch.testing.assert_close(both.double(), want_lse)


def slow_merge(out: Tensor, lse: Tensor, past: Tensor, past_lse: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.logaddexp(lse.double(), past_lse.double())
    shares = [(each.double() - both).exp()[..., None] for each in (lse, past_lse)]
    return out.double() * shares[0] + past.double() * shares[1], both


@needs_triton
def test_in_the_interpreter() -> None:
    script = """
import torch
from test_fused import check_merges, check_turns

for dtype in (torch.float32, torch.float16):
    check_turns(dtype)
    check_merges(dtype)
print("equal")
"""
    support = Path(__file__).parents[1] / "support"
    script = f"import sys; sys.path.insert(0, {str(support)!r})\n" + script
    assert interpreted(script, Path(__file__).parent) == "equal"


def test_a_host_has_no_kernels() -> None:
    assert not cuda_attention.fuses(torch.zeros(3))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", list(NEAR))
def test_on_a_gpu(dtype: torch.dtype) -> None:
    assert cuda_attention.fuses(torch.zeros(3, device="cuda"))
    for _ in range(3):  # a race between threads would not show every time
        check_turns(dtype, "cuda")
        check_merges(dtype, "cuda")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", list(NEAR))
def test_keys_are_rotated_as_on_the_host(dtype: torch.dtype) -> None:
    layer = bounded("llama").layers[0]
    keys = torch.randn(layer.heads, 700, layer.key_dim).to(dtype)
    assert layer.rotary is not None
    assert layer.rotary._by_halves
    want = layer.rotary.rotate(keys, 1000)
    tables = layer.rotary.angles.at(1000, 700)
    found = layer.rotary._turn(keys.cuda(), *(t.cuda() for t in tables), None)
    torch.testing.assert_close(found.cpu(), want, rtol=1e-5, atol=1e-5)
