"""Attention summed over a whole chunk, compared with explicit scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvstream.model import attention
from kvstream.model.attention import AttentionRequest, Shape, attend, evidence


def written_out(q: Tensor, k: Tensor, shape: Shape, queries: int, decay: float) -> Tensor:
    """Return [H, N] in float64: the softmax of every query, weighted and summed."""
    heads, new, _ = q.shape
    q, k = q.double(), k.double().repeat_interleave(heads // k.shape[0], 0)
    scores = q @ k.transpose(-1, -2) * shape.scale
    old = k.shape[1] - new
    hidden = torch.ones(new, k.shape[1], dtype=torch.bool).triu(old + 1)
    scores = scores.masked_fill(hidden, -torch.inf)
    if shape.sinks is not None:
        scores = torch.cat((scores, shape.sinks.double()[:, None, None].expand(-1, new, 1)), -1)
    weights = scores.softmax(-1)[..., : k.shape[1]]
    ages = torch.arange(queries - 1, -1, -1, dtype=torch.float64)
    return (weights[:, :queries] * (decay**ages)[:, None]).sum(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("decay", [1.0, 0.9999, 0.5, 0.0])
@pytest.mark.parametrize(
    ("heads", "groups", "new", "old", "queries"),
    [(4, 2, 200, 130, 200), (4, 4, 97, 0, 80), (3, 1, 64, 1, 64), (2, 2, 300, 513, 299)],
)
def test_columns_of_a_chunk(
    monkeypatch: pytest.MonkeyPatch,
    heads: int, groups: int, new: int, old: int, queries: int, decay: float, dtype: torch.dtype,
) -> None:  # fmt: skip
    monkeypatch.setattr(attention, "BLOCK", 64)  # several blocks, the last one shorter
    draw = torch.Generator().manual_seed(new)
    q = (torch.randn(heads, new, 24, generator=draw) * 2).to(dtype)
    k = torch.randn(groups, old + new, 24, generator=draw).to(dtype)
    for sinks in (None, torch.randn(heads, generator=draw)):
        shape = Shape(0.3, sinks=sinks)
        _, lse = attend(q, k, k, shape)
        exact = written_out(q, k, shape, queries, decay)
        for how in ("mean", "max"):
            wanted = AttentionRequest(
                accumulated_attention=True, queries=queries, decay=decay, reduce=how
            )
            _, columns = evidence(q, k, lse, shape, wanted)
            grouped = exact.unflatten(0, (groups, -1))
            reduced = grouped.mean(1) if how == "mean" else grouped.amax(1)
            assert columns is not None
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(
                columns.double(), reduced, rtol=tolerance, atol=tolerance * float(reduced.mean())
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("segments", [(1,), (32,), (3, 9), (70, 66), (150,)])
def test_segments_at_the_end(segments: tuple[int, ...], dtype: torch.dtype) -> None:
    """The evidence sums few queries with other code than many."""
    draw = torch.Generator().manual_seed(len(segments))
    q = torch.randn(4, 150, 16, generator=draw).to(dtype)
    k = torch.randn(2, 250, 16, generator=draw).to(dtype)
    shape = Shape(0.25)
    _, lse = attend(q, k, k, shape)
    rows, _ = evidence(q, k, lse, shape, AttentionRequest(segments=segments))
    slow, _ = evidence(q.float(), k.float(), None, shape, AttentionRequest(segments=segments))
    assert rows is not None
    assert slow is not None
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(rows, slow, rtol=tolerance, atol=tolerance * float(slow.mean()))


@pytest.mark.parametrize(
    "shape", [Shape(0.3), Shape(0.3, window=90), Shape(0.3, softcap=2.0)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_layers_have_beyond_a_softmax_counts_in_the_evidence(
    shape: Shape, dtype: torch.dtype
) -> None:
    """This holds too if many queries are summed at once, with the log-sum-exp of the pass."""
    draw = torch.Generator().manual_seed(5)
    q = torch.randn(4, 100, 16, generator=draw).to(dtype)
    k = torch.randn(2, 200, 16, generator=draw).to(dtype)
    _, lse = attend(q, k, k, shape)
    wanted = AttentionRequest((70,), accumulated_attention=True, queries=80, first=20)
    exact = evidence(q.float(), k.float(), None, shape, wanted)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for found, slow in zip(evidence(q, k, lse, shape, wanted), exact, strict=True):
        assert found is not None
        assert slow is not None
        torch.testing.assert_close(found, slow, rtol=tolerance, atol=tolerance * float(slow.mean()))
    assert exact[1] is not None
    of_all = AttentionRequest(accumulated_attention=True, queries=80)
    _, later = evidence(q.float()[:, 20:], k.float(), None, shape, of_all)
    torch.testing.assert_close(exact[1], later)  # the queries of the prompt do not count
