"""Attention with log-sum-exp and sums of attention on a GPU, compared with explicit scores.

Without a GPU, Triton's interpreter runs the kernel, and a plain softmax stands in for PyTorch's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton_interpreter import interpreted, needs_triton

from kvstream.model import attention, cuda_attention
from kvstream.model.attention import AttentionRequest, Shape, attend, evidence, reference
from kvstream.model.cuda_attention import Plans

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SUMS = [(1, 1, 0, 300), (5, 5, 0, 5), (70, 65, 3, 200), (513, 513, 0, 640), (600, 513, 60, 1001)]
"""Numbers of new tokens, of summed queries, of queries before them, and of keys."""


def problem(
    new: int, old: int, group: int, dim: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries as models pass them (transposed), and keys and values as parts of a store."""
    generator = torch.Generator().manual_seed(new + old + dim)
    q = torch.randn(new, 2 * group, dim, generator=generator).to(dtype)
    k, v = torch.randn(2, 2, old + new + 7, dim, generator=generator).to(dtype)
    q, k, v = (x.to(device) for x in (q, k, v))
    return q.transpose(0, 1), k[:, : old + new], v[:, : old + new]


def slow_sums(q: Tensor, k: Tensor, plus: Tensor, scale: float, first: int) -> Tensor:
    """Compute what `column_sums` returns, in float64."""
    new, count, total = q.shape[1], plus.shape[1], k.shape[1]
    keys = k.double().repeat_interleave(q.shape[0] // k.shape[0], 0)
    scores = q[:, first : first + count].double() @ keys.mT * scale + plus[..., None].double()
    query = torch.arange(count, device=q.device)[:, None] + total - new + first
    hidden = torch.arange(total, device=q.device) > query
    return scores.masked_fill(hidden, -torch.inf).exp().sum(1)


class SlowFlash(TorchDispatchMode):
    """Computes PyTorch's flash attention of a GPU on the host, with explicit scores."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.ops.aten._scaled_dot_product_flash_attention.default:
            return func(*args, **(kwargs or {}))
        causal = args[4] if len(args) > 4 else False  # default values are not passed
        return self._flash(*args[:3], causal, kwargs["scale"])

    def _flash(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Any:
        assert k.shape[2] > 0
        assert not causal or q.shape[2] == k.shape[2]
        keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = q @ keys.mT * scale
        if causal:
            scores += torch.full_like(scores, -torch.inf).triu(1)
        some = torch.empty(0)
        return scores.softmax(-1) @ values, scores.logsumexp(-1), some, some, 0, 0, some, some, some


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("new", "old", "group"), [(1, 0, 2), (1, 30, 4), (9, 0, 1), (9, 30, 4)])
def test_memory_and_new_tokens_are_merged(
    new: int, old: int, group: int, sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_attention, "supports", lambda *_: True)
    monkeypatch.setattr(cuda_attention, "ROWS", 4)
    q, k, v = problem(new, old, group, 16, torch.float32)
    shape = Shape(0.3, sinks=torch.randn(2 * group) if sinks else None)
    want, want_lse = reference(q, k, v, shape)
    monkeypatch.setattr(attention, "reference", None)
    with SlowFlash():
        out, lse = attend(q, k, v, shape, "sdpa", log_sum_exp=True)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(lse, want_lse)


def test_the_operator_takes_these_arguments() -> None:
    """Tensors without numbers check names, types and shapes."""
    q, k, v = problem(9, 30, 4, 64, torch.bfloat16, "meta")
    for new in (1, 9):
        out, lse = cuda_attention.merged(q[:, :new], k, v, 0.3)
        assert out.shape == q[:, :new].shape
        assert (lse.shape, lse.dtype) == ((*q.shape[:1], new), torch.float32)


def test_a_host_has_no_kernels_of_a_gpu() -> None:
    q, k, v = problem(9, 30, 4, 64, torch.bfloat16)
    assert not cuda_attention.supports(q, k, v)
    assert not cuda_attention.sums_columns(q, k)


INTERPRETED = """
import torch
from test_cuda_attention import SUMS, problem, slow_sums
from kvstream.model.triton_kernels import column_sums

# The interpreter multiplies no bfloat16.
for dtype, dim, group in ((torch.float32, 8, 2), (torch.float16, 24, 3)):
    for new, count, first, total in SUMS:
        q, k, _ = problem(new, total - new, group, dim, dtype)
        plus = torch.linspace(-9, -2, 2 * group * count).view(2 * group, count)
        sums = column_sums(q, k, plus, 0.2, first)
        want = slow_sums(q, k, plus, 0.2, first)
        torch.testing.assert_close(sums.double(), want, rtol=1e-4, atol=1e-9)
print("equal")
"""


@needs_triton
def test_sums_in_the_interpreter() -> None:
    assert interpreted(INTERPRETED, Path(__file__).parent) == "equal"


def test_a_plan_is_for_a_shape_that_is_used_often(monkeypatch: pytest.MonkeyPatch) -> None:
    q = problem(8, 0, 2, 64, torch.bfloat16, "meta")[0]
    wide = torch.empty(2, 100, 64, device="meta")
    work = 4 * q.numel() * 100
    plans = Plans()
    monkeypatch.setattr(cuda_attention, "WORTH", 3 * work)
    assert [plans.worth(q, wide, False) for _ in range(5)] == [False, False, True, True, True]
    assert [plans.worth(q, wide, True) for _ in range(6)] == [False] * 5 + [True]
    # Other sizes and other strides are other shapes.
    assert not plans.worth(q, wide[:, :99], False)
    assert not plans.worth(q.contiguous(), wide, False)
    assert len(plans.shapes) == 2


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    q = problem(8, 0, 2, 64, torch.bfloat16, "meta")[0]
    plans = Plans()
    for n in range(1, 3000):  # growing memory: every shape is used once
        assert not plans.worth(q, torch.empty(2, n, 64, device="meta"), False)
        assert len(plans.done) <= cuda_attention.SHAPES
    monkeypatch.setattr(cuda_attention, "WORTH", 0)
    for n in range(1, 100):
        made = plans.worth(q, torch.empty(2, n, 64, device="meta"), False)
        assert made == (n <= cuda_attention.PLANS)
    assert len(plans.shapes) == cuda_attention.PLANS


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("dim", [16, 64, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("new", "old", "group"),
    [(1, 0, 2), (1, 300, 4), (5, 0, 1), (5, 1, 4), (200, 0, 4), (200, 313, 1), (1100, 2000, 4)],
)
def test_attention_with_log_sum_exp(
    new: int, old: int, group: int, dtype: torch.dtype, dim: int, sinks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    q, k, v = problem(new, old, group, dim, dtype, "cuda")
    assert cuda_attention.supports(q, k, v)
    shape = Shape(dim**-0.5, sinks=torch.randn(2 * group, device="cuda") if sinks else None)
    want, want_lse = reference(q.float(), k.float(), v.float(), shape)
    monkeypatch.setattr(attention, "reference", None)
    out, lse = attend(q, k, v, shape, "sdpa", log_sum_exp=True)
    assert lse is not None
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(out.float(), want, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, want_lse, atol=2e-3, rtol=1e-3)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("new", "old", "group"), [(5, 1, 4), (200, 313, 1), (1100, 2000, 4)])
def test_attention_of_cudnn(
    new: int, old: int, group: int, dtype: torch.dtype, dim: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    q, k, v = problem(new, old, group, dim, dtype, "cuda")
    if not cuda_attention._has_cudnn(q):
        pytest.skip("cuDNN's kernel is used on Hopper GPUs only")
    want, want_lse = reference(q.float(), k.float(), v.float(), Shape(dim**-0.5))
    monkeypatch.setattr(cuda_attention, "WORTH", 0)
    monkeypatch.setattr(cuda_attention, "flash", None)
    out, lse = cuda_attention.merged(q, k, v, dim**-0.5)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(out.float(), want, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, want_lse, atol=2e-3, rtol=1e-3)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dim", [16, 64, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sums_on_a_gpu(dtype: torch.dtype, dim: int) -> None:
    from kvstream.model.triton_kernels import column_sums

    for group in (1, 4):
        for new, count, first, total in SUMS:
            q, k, _ = problem(new, total - new, group, dim, dtype, "cuda")
            assert cuda_attention.sums_columns(q, k)
            plus = torch.linspace(-9, -2, 2 * group * count, device="cuda").view(-1, count)
            sums = column_sums(q, k, plus, dim**-0.5, first)
            want = slow_sums(q, k, plus, dim**-0.5, first)
            near = 1e-4 if dtype == torch.float32 else 1e-3
            torch.testing.assert_close(sums.double(), want, rtol=near, atol=1e-9)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("dtype", "near"), [(torch.bfloat16, 1e-2), (torch.float32, 1e-4)])
@pytest.mark.parametrize("sinks", [False, True])
def test_evidence_equals_that_of_the_host(dtype: torch.dtype, near: float, sinks: bool) -> None:
    """Host and GPU get the same numbers; the host computes with them in float32."""
    given = problem(300, 700, 4, 64, dtype)
    logits = torch.randn(8, generator=torch.Generator().manual_seed(5)) if sinks else None
    found = []
    for device, number in (("cpu", torch.float32), ("cuda", dtype)):
        q, k, v = (x.to(device, number) for x in given)
        shape = Shape(0.125, sinks=None if logits is None else logits.to(device))
        lse = attend(q, k, v, shape, log_sum_exp=True)[1]
        request = AttentionRequest((3, 70), True, queries=211, decay=0.97, first=50)
        found.append(evidence(q, k, lse, shape, request))
    for host, gpu in zip(*found, strict=True):
        assert host is not None
        assert gpu is not None
        torch.testing.assert_close(gpu.cpu(), host, rtol=near, atol=1e-6)


@pytest.mark.gpu
@needs_gpu
def test_nothing_waits_and_scores_are_never_stored() -> None:
    """The scores would take 2 GiB, and those of one block of queries 128 MiB."""
    q, k, v = problem(4096, 12288, 4, 128, torch.bfloat16, "cuda")
    request = AttentionRequest((64,), True, queries=4000, decay=0.999, first=96)

    def run() -> tuple[Tensor | None, Tensor | None]:
        lse = attend(q, k, v, shape := Shape(0.09), "sdpa", log_sum_exp=True)[1]
        torch.cuda.reset_peak_memory_stats()
        before.append(torch.cuda.memory_allocated())
        return evidence(q, k, lse, shape, request)

    before: list[int] = []
    run()  # compiles
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        window, accumulated = run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.max_memory_allocated() - before[-1] < 64 * 2**20
    assert window is not None
    assert accumulated is not None
    assert float(window.sum(-1).mean()) == pytest.approx(64, rel=1e-2)
