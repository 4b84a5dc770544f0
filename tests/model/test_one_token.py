"""Products of one token in bfloat16 equal those of linear layers, up to the order of sums."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from models import FAMILIES, fresh, tokens
from torch import nn

from kvstream.model import linear
from kvstream.model.probe import bound


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU on which they are faster."""
    monkeypatch.setattr(linear, "is_faster", lambda: True)


@pytest.mark.parametrize("bias", [False, True])
def test_one_row_and_several(faster: None, bias: bool) -> None:
    layer = nn.Linear(96, 80, bias=bias).bfloat16()
    plain = copy.deepcopy(layer)
    linear.speed_up(layer)
    assert "forward" in vars(layer)
    for shape in ((1, 1, 96), (96,), (1, 5, 96), (0, 96)):
        x = torch.randn(shape).bfloat16()
        torch.testing.assert_close(layer(x), plain(x), rtol=1e-2, atol=1e-2)
    row = torch.randn(1, 96).bfloat16().requires_grad_()
    found, want = (torch.autograd.grad(m(row).float().sum(), row)[0] for m in (layer, plain))
    torch.testing.assert_close(found, want, rtol=1e-2, atol=1e-2)


def test_a_model_writes_the_same(faster: None) -> None:
    model = fresh(FAMILIES["llama"].config()).to(torch.bfloat16)
    plain, fast = bound(copy.deepcopy(model), "plain"), bound(model, "fast")
    linear.speed_up(fast.model)
    ids = tokens(20)
    caches = plain.new_cache(32), fast.new_cache(32)
    for part in (ids[:18], *([i] for i in ids[18:])):
        rows = (
            m.logits(m.forward(part, cache)) for m, cache in zip((plain, fast), caches, strict=True)
        )
        torch.testing.assert_close(*rows, rtol=0.1, atol=0.1)
    assert plain.fingerprint == fast.fingerprint
    # A copy computes with its own weights.
    other = copy.deepcopy(fast.model)
    nn.init.zeros_(other.lm_head.weight)
    assert not other.lm_head(torch.ones(1, other.lm_head.in_features).bfloat16()).any()


def test_other_layers_stay(faster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    wide, moved, own = nn.Linear(8, 8), nn.Linear(8, 8).bfloat16(), Own(8, 8).bfloat16()
    moved.forward = moved.forward  # type: ignore[method-assign]  # as accelerate's hooks do
    before = moved.forward
    model = nn.ModuleList([wide, moved, own])
    linear.speed_up(model)
    assert "forward" not in vars(wide)
    assert moved.forward is before
    assert "forward" not in vars(own)
    monkeypatch.setattr(linear, "is_faster", lambda: False)
    slow = nn.Linear(8, 8).bfloat16()
    linear.speed_up(slow)
    assert "forward" not in vars(slow)


class Own(nn.Linear):
    """A layer with a product of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("vector", [1.0, 3.0])
def test_the_faster_product_is_taken(vector: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(run: partial[torch.Tensor], **_: float) -> float:
        assert torch.equal(run().flatten(), torch.full((1536,), 576.0).bfloat16())
        return vector if run.func is torch.mv else 2.0

    monkeypatch.setattr(linear, "processor_seconds", timed)
    assert linear.is_faster.__wrapped__() == (vector < 2)
