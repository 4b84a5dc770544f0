"""Rotations are removed and applied exactly, for all rotary variants of models."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from models import EVERY_RUN, FAMILIES, bounded, fresh
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvstream.model import rotary as module
from kvstream.model.probe import bound
from kvstream.model.rotary import Angles, Rotary

WITHOUT = ["granite-hybrid", "nemotron-h"]
"""Families without rotary positions: recurrent layers tell their attention the order."""
REST = sorted(set(FAMILIES) - set(EVERY_RUN) - set(WITHOUT))


def rotary_layers(name: str) -> list[Rotary]:
    found = [spec.rotary for spec in bounded(name).layers if spec.rotary is not None]
    assert found
    return found


def keys(name: str, count: int) -> Tensor:
    spec = bounded(name).layers[0]
    torch.manual_seed(0)
    return torch.randn(spec.heads, count, spec.key_dim)


def check(name: str) -> None:
    for rotary in rotary_layers(name):
        spec = next(s for s in bounded(name).layers if s.rotary is rotary)
        torch.manual_seed(0)
        raw = torch.randn(spec.heads, 9, spec.key_dim)
        turned = rotary.rotate(raw, 1000)
        assert not torch.allclose(turned, raw, atol=0.1)
        torch.testing.assert_close(rotary.unrotate(turned, 1000), raw, atol=2e-5, rtol=1e-4)
        # Scores depend only on distances.
        far = rotary.rotate(raw, 1500)
        torch.testing.assert_close(
            turned @ turned.transpose(1, 2), far @ far.transpose(1, 2), atol=1e-3, rtol=1e-3
        )


@pytest.mark.parametrize("name", EVERY_RUN)
def test_off_and_on_again(name: str) -> None:
    check(name)


@pytest.mark.long
@pytest.mark.parametrize("name", REST)
def test_off_and_on_again_in_every_family(name: str) -> None:
    check(name)


@pytest.mark.long
@pytest.mark.parametrize("name", WITHOUT)
def test_no_rotation_is_found_where_there_is_none(name: str) -> None:
    assert all(spec.rotary is None for spec in bounded(name).layers)


def test_a_rotation_is_what_the_model_does() -> None:
    """The reference is Llama's rotation: pairs are half a head apart, the slowest is last."""
    rotary = rotary_layers("llama")[0]
    raw = keys("llama", 3)
    turned = rotary.rotate(raw, 40)
    for i in range(3):
        for pair in range(4):
            angle = torch.tensor((40 + i) * 1e4 ** (-pair / 4))
            a, b = raw[:, i, pair], raw[:, i, pair + 4]
            torch.testing.assert_close(turned[:, i, pair], a * angle.cos() - b * angle.sin())
            torch.testing.assert_close(turned[:, i, pair + 4], b * angle.cos() + a * angle.sin())


@pytest.mark.parametrize("name", ["llama-yarn", "gpt-neox", "gemma3"])
def test_blocks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rotary, raw = rotary_layers(name)[0], keys(name, 100)
    whole = rotary.rotate(raw, 5)
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 1)
    assert torch.equal(rotary.rotate(raw, 5), whole)
    within = whole.clone()
    rotary.unrotate(within, 5, within)
    torch.testing.assert_close(within, raw, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", EVERY_RUN)
def test_the_short_way_gives_the_very_bits_of_the_models_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rotated() -> list[Tensor]:
        raw = keys(name, 70).bfloat16()
        return [replace(layer).rotate(raw, 30) for layer in rotary_layers(name)]

    short = rotated()
    monkeypatch.setattr(Rotary, "_by_halves", False)
    for a, b in zip(short, rotated(), strict=True):
        assert torch.equal(a, b)


def test_the_short_way_is_for_those_that_turn_by_halves() -> None:
    assert rotary_layers("llama")[0]._by_halves
    own = rotary_layers("llama")[0].apply

    def backwards(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return own(q, k, cos, -sin)

    assert not replace(rotary_layers("llama")[0], apply=backwards)._by_halves


def test_thousands_of_rotations_do_not_drift() -> None:
    """Memory stores unrotated keys for this: each rotation starts from the stored key."""
    rotary = rotary_layers("llama")[0]
    raw = keys("llama", 8).bfloat16()
    stored = raw.clone()
    for start in range(0, 1000, 7):
        scratch = torch.empty_like(stored)
        rotary.rotate(stored, start, scratch)
    assert torch.equal(stored, raw)
    error = (scratch.float() - rotary.rotate(raw.float(), start)).norm() / raw.float().norm()
    assert error < 0.005


class AnotherThread(TorchDispatchMode):
    """Asks for tables while those that remove the rotation are made, as another thread may."""

    def __init__(self, angles: Angles) -> None:
        super().__init__()
        self.angles, self.got = angles, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten.div.Tensor:
            self.got.append(self.angles.at(0, 9, back=True)[0])
        return func(*args, **(kwargs or {}))


def test_several_threads_may_ask_for_the_tables() -> None:
    known = rotary_layers("llama")[0].angles
    angles = replace(known, _tables=(torch.empty(0),) * 4)
    with AnotherThread(angles) as other:
        angles.at(0, 5)
    assert other.got
    assert all(torch.equal(found, known.at(0, 9, back=True)[0]) for found in other.got)


def test_yarn_carries_its_scale_only_once() -> None:
    rotary = rotary_layers("llama-yarn")[0]
    raw = keys("llama-yarn", 1)
    scale = (rotary.rotate(raw, 0) / raw).median()
    assert scale > 1.05
    torch.testing.assert_close(rotary.rotate(raw, 0), raw * scale)


@pytest.mark.parametrize(
    ("kind", "rope"),
    [
        ("llama", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}),
        (
            "phi3",
            {
                "rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0,
                "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
            },
        ),
    ],
)  # fmt: skip
def test_tables_stop_before_the_frequencies_change(kind: str, rope: dict) -> None:
    """Dynamic scalings change all frequencies if the last position exceeds the length."""
    rope = {**rope, "original_max_position_embeddings": 300}
    more = {"original_max_position_embeddings": 300} if kind == "phi3" else {}
    config = FAMILIES[kind].config(rope_parameters=rope, **more)
    model = bound(fresh(config), kind)
    assert model.trained_length == 300
    rotary = model.layers[0].rotary
    assert rotary is not None
    few = rotary.angles.at(0, 10)[0].clone()
    torch.testing.assert_close(rotary.angles.at(0, 300)[0][:10], few)
    torch.testing.assert_close(rotary.angles.at(299, 1)[0].shape, torch.Size([1, 8]))
