"""All attention backends and the evidence, compared with an explicit softmax."""

from __future__ import annotations

import math
import random
import threading
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvstream.errors import UsageError
from kvstream.model import attention, hook
from kvstream.model.attention import AttentionRequest, Shape, attend, evidence, reference

TIGHT = {"atol": 2e-5, "rtol": 1e-4}


def naive(q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Return (out [H, T, E], lse [H, T], weights [H, T, N]) in float64, computed with loops."""
    heads, new, _ = q.shape
    total, group = k.shape[1], q.shape[0] // k.shape[0]
    weights = torch.zeros(heads, new, total, dtype=torch.float64)
    lse = torch.zeros(heads, new, dtype=torch.float64)
    out = torch.zeros(heads, new, v.shape[-1], dtype=torch.float64)
    for h in range(heads):
        for t in range(new):
            position = total - new + t
            scores = []
            for j in range(position + 1):
                if shape.window is not None and j <= position - shape.window:
                    scores.append(-math.inf)
                    continue
                score = float(q[h, t].double() @ k[h // group, j].double()) * shape.scale
                if shape.softcap is not None:
                    score = shape.softcap * math.tanh(score / shape.softcap)
                scores.append(score)
            parts = [math.exp(s) for s in scores]
            total_weight = sum(parts)
            if shape.sinks is not None:
                total_weight += math.exp(float(shape.sinks[h]))
            lse[h, t] = math.log(total_weight)
            for j, part in enumerate(parts):
                weights[h, t, j] = part / total_weight
            out[h, t] = weights[h, t] @ v[h // group].double()
    return out, lse, weights


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    new, old = draw(st.integers(1, 9)), draw(st.sampled_from([0, 0, 1, 2, 7, 20]))
    dim = draw(st.sampled_from([4, 8, 16]))
    value_dim = draw(st.sampled_from([dim, dim, dim, 12]))
    torch.manual_seed(draw(st.integers(0, 10**6)))
    return {
        "q": torch.randn(heads * group, new, dim),
        "k": torch.randn(heads, old + new, dim),
        "v": torch.randn(heads, old + new, value_dim),
        "shape": Shape(
            scale=draw(st.sampled_from([dim**-0.5, 0.7])),
            window=draw(st.sampled_from([None, None, 1, 3, 8, 100])),
            softcap=draw(st.sampled_from([None, None, 1.5])),
            sinks=torch.randn(heads * group) if draw(st.booleans()) else None,
        ),
    }


@given(problems())
@settings(max_examples=30)
def test_attention_is_a_softmax(problem: dict[str, Any]) -> None:
    want, want_lse, _ = naive(**problem)
    for way in (attend, reference):
        out, lse = way(**problem)
        torch.testing.assert_close(out.double(), want, **TIGHT)
        assert lse is not None
        torch.testing.assert_close(lse.double(), want_lse, **TIGHT)


@given(problems())
@settings(max_examples=30)
def test_pytorchs_own_kernels_give_the_same(problem: dict[str, Any]) -> None:
    """A GPU runs these kernels. On a CPU the same call runs PyTorch's plain implementation."""
    shape = Shape(problem["shape"].scale)
    q, k, v = problem["q"], problem["k"], problem["v"]
    want = naive(q, k, v, shape)[0]
    torch.testing.assert_close(attention._sdpa(q, k, v, shape.scale).double(), want, **TIGHT)


@pytest.mark.parametrize("backend", ["flash", "sdpa"])
def test_backends_of_a_gpu_are_refused_on_a_cpu(backend: str) -> None:
    """The mask of PyTorch's kernels fails on a CPU while kvstream measures the first passes."""
    with pytest.raises(UsageError, match=f"--attn {backend} .* a CUDA device.* --attn auto"):
        attention.resolve(backend, torch.device("cpu"), torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("new", "old", "group"), [(1, 300, 4), (200, 0, 1), (200, 313, 4)])
def test_attention_on_a_gpu(new: int, old: int, group: int, sinks: bool) -> None:
    torch.manual_seed(0)
    q = torch.randn(2 * group, new, 64, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, 2, old + new, 64, device="cuda", dtype=torch.bfloat16)
    shape = Shape(0.125, sinks=torch.randn(2 * group, device="cuda") if sinks else None)
    out, _ = attend(q, k, v, shape)
    want, _ = reference(q.float(), k.float(), v.float(), shape)
    torch.testing.assert_close(out.float(), want, atol=2e-2, rtol=2e-2)


def test_long_inputs_go_through_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more queries than a block, tests the offsets of blocks, masks and windows."""
    monkeypatch.setattr(attention, "BLOCK", 7)
    torch.manual_seed(1)
    q, k, v = torch.randn(4, 40, 8), torch.randn(2, 61, 8), torch.randn(2, 61, 8)
    for shape in (Shape(0.3), Shape(0.3, window=11), Shape(0.3, softcap=2.0)):
        want, want_lse, weights = naive(q, k, v, shape)
        for way in (attend, reference):
            out, lse = way(q, k, v, shape)
            torch.testing.assert_close(out.double(), want, **TIGHT)
            assert lse is not None
            torch.testing.assert_close(lse.double(), want_lse, **TIGHT)
        wanted = AttentionRequest(accumulated_attention=True, queries=33, decay=0.9)
        for known in (lse, None):
            _, columns = evidence(q, k, known, shape, wanted)
            torch.testing.assert_close(columns.double(), summed(weights, 33, 0.9, 2), **TIGHT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_stays_near(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    q, k, v = (torch.randn(h, n, 16).to(dtype) for h, n in ((4, 25), (2, 65), (2, 65)))
    for shape in (Shape(0.25), Shape(0.25, window=20), Shape(0.25, sinks=torch.randn(4))):
        want, _, _ = naive(q, k, v, shape)
        out, _ = attend(q, k, v, shape)
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), want, atol=2e-2, rtol=2e-2)


def test_keys_may_be_a_part_of_a_larger_store() -> None:
    """The cache passes slices of its storage, and models pass transposed projections."""
    torch.manual_seed(3)
    store_k, store_v = torch.randn(2, 99, 8), torch.randn(2, 99, 8)
    k, v = store_k[:, :31], store_v[:, :31]
    q = torch.randn(12, 4, 8).transpose(0, 1)
    out, _ = attend(q, k, v, Shape(0.3))
    torch.testing.assert_close(out.double(), naive(q, k, v, Shape(0.3))[0], **TIGHT)


def summed(weights: Tensor, queries: int, decay: float, heads: int, how: str = "mean") -> Tensor:
    """Sum the attention of the first `queries` queries, with less weight for older: [K, N]."""
    factors = torch.tensor([decay ** (queries - 1 - i) for i in range(queries)]).double()
    each = (weights[:, :queries] * factors[:, None]).sum(1).unflatten(0, (heads, -1))
    return each.mean(1) if how == "mean" else each.amax(1)


@given(problems(), st.data())
@settings(max_examples=30)
def test_evidence_is_attention_summed(problem: dict[str, Any], data: st.DataObject) -> None:
    q, k, shape = problem["q"], problem["k"], problem["shape"]
    heads, new = k.shape[0], q.shape[1]
    how = data.draw(st.sampled_from(["mean", "max"]))
    cuts = data.draw(st.lists(st.integers(1, 3), max_size=3))
    segments = tuple(cuts) if sum(cuts) <= new else (new,)
    queries = data.draw(st.integers(1, new))
    decay = data.draw(st.sampled_from([1.0, 0.99, 0.5]))
    columns = data.draw(st.booleans())
    _, _, weights = naive(**problem)
    _, lse = reference(**problem)
    wanted = AttentionRequest(segments, columns, queries, decay, how)
    for known in (lse, None):
        rows, cols = evidence(q, k, known, shape, wanted)
        if segments:
            parts, first = [], new - sum(segments)
            for length in segments:
                parts.append(weights[:, first : first + length].sum(1))
                first += length
            mean = sum(segments) / len(segments)
            parts = [p * mean / n for p, n in zip(parts, segments, strict=True)]
            strongest = torch.stack(parts).amax(0).unflatten(0, (heads, -1))
            want = strongest.mean(1) if how == "mean" else strongest.amax(1)
            assert rows is not None
            torch.testing.assert_close(rows.double(), want, **TIGHT)
        else:
            assert rows is None
        if columns:
            assert cols is not None
            want = summed(weights, queries, decay, heads, how)
            torch.testing.assert_close(cols.double(), want, **TIGHT)
        else:
            assert cols is None


@pytest.mark.parametrize("lengths", [(1, 6), (6, 1)])
def test_a_long_group_does_not_drown_a_short_one(lengths: tuple[int, int]) -> None:
    """Each group attends to one entry of its own only, so both entries score alike.

    With one group, or groups of one length, `rows` is the plain sum.
    """
    q = torch.zeros(1, sum(lengths), 2)
    q[0, : lengths[0], 0] = q[0, lengths[0] :, 1] = 50
    k = torch.zeros(1, 9 + sum(lengths), 2)
    k[0, 3, 0] = k[0, 5, 1] = 1
    rows, _ = evidence(q, k, None, Shape(1.0), AttentionRequest(segments=lengths))
    assert rows is not None
    assert rows[0, [3, 5]].tolist() == pytest.approx([3.5, 3.5], rel=1e-3)
    alone, _ = evidence(q, k, None, Shape(1.0), AttentionRequest(segments=(sum(lengths),)))
    assert alone is not None
    assert alone[0, [3, 5]].tolist() == pytest.approx(lengths, rel=1e-3)


def test_decay_over_a_long_chunk_does_not_vanish_wrongly() -> None:
    """Decay factors need double precision: 0.9999 to the power of thousands is not 1."""
    q, k = torch.zeros(1, 3000, 2), torch.zeros(1, 3000, 2)
    _, columns = evidence(
        q,
        k,
        None,
        Shape(1.0),
        AttentionRequest(accumulated_attention=True, queries=3000, decay=0.9999),
    )
    assert columns is not None
    want = sum(0.9999 ** (2999 - t) / (t + 1) for t in range(3000))
    assert columns[0, 0].item() == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("new", "old"), [(1, 0), (1, 31), (1, 33), (32, 64), (45, 1), (63, 65), (70, 95)]
)
def test_rounded_sizes_change_nothing(new: int, old: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(new + old)
    q = torch.randn(4, new, 16, generator=generator).to(dtype)
    k, v = torch.randn(2, 2, old + new, 16, generator=generator).to(dtype)
    out, lse = attend(q, k, v, Shape(0.25), "split")
    right, right_lse = reference(q.float(), k.float(), v.float(), Shape(0.25))
    assert lse is not None
    torch.testing.assert_close(out.float(), right, atol=0.02, rtol=0.02)
    torch.testing.assert_close(lse, right_lse, atol=0.01, rtol=0.01)


def test_new_shapes_leave_nothing_behind() -> None:
    """Compiled products of odd shapes must not stay: 250 KiB per call on some processors."""
    process, lengths = psutil.Process(), random.Random(0)

    def call() -> None:
        new, old = lengths.randrange(100, 400), lengths.randrange(400, 800)
        q = torch.randn(2, new, 64).bfloat16()
        k = torch.randn(1, old + new, 64).bfloat16()
        attend(q, k, k, Shape(0.125), "split")

    for _ in range(150):
        call()
    before = process.memory_info().rss
    for _ in range(150):
        call()
    assert process.memory_info().rss - before < 8 * 2**20


def test_products_in_float16_are_scaled_before_they_overflow() -> None:
    torch.manual_seed(0)
    q = (torch.randn(4, 8, 64) * 2 + 45).half()
    k = (torch.randn(2, 64, 64) * 0.5 + 30).half()
    v = torch.randn(2, 64, 64).half()
    assert float(q[0, 0].float() @ k[0, 0].float()) > torch.finfo(torch.float16).max
    for window in (None, 20):
        shape = Shape(64**-0.5, window=window)
        out, lse = attend(q, k, v, shape, "split")
        exact, _ = reference(q.float(), k.float(), v.float(), shape)
        torch.testing.assert_close(out.float(), exact, atol=0.02, rtol=0.02)
        if window is None:
            request = AttentionRequest((8,), accumulated_attention=True, queries=8)
            rows, columns = evidence(q, k, lse, shape, request)
            assert rows is not None
            assert columns is not None
            assert float(rows.float().sum(-1).mean()) == pytest.approx(8, rel=0.05)
            assert bool(columns.isfinite().all())


def test_passes_of_two_threads_do_not_take_the_cache_of_each_other() -> None:
    began, ended = threading.Event(), threading.Event()

    def other_pass() -> None:
        with hook.running(None) as met:
            began.set()
            ended.wait(10)
            found.append(dict(met))

    found: list[dict[int, Any]] = []
    q = torch.zeros(1, 2, 3, 4)
    thread = threading.Thread(target=other_pass)
    with hook.running(None) as met:
        thread.start()
        assert began.wait(10)
        layer: Any = SimpleNamespace(layer_idx=0)
        hook.bounded_attention(layer, q, q, q)
    ended.set()
    thread.join()
    assert list(met) == [0]
    assert found == [{}]
