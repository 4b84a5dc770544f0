"""Functions that methods share, compared with loops over tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvstream.methods.keydiff import unlikeness
from kvstream.methods.tools import scoring
from kvstream.methods.tools.scoring import best, pool, together


def entries(seed: int, n: int, most: int) -> tuple[Tensor, Tensor]:
    """Draw scores and ordinals [2, 3, n] of tokens from the first `most`."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(2, 3, n, generator=generator) - 0.5
    drawn = [torch.randperm(most, generator=generator)[:n].sort().values for _ in range(6)]
    return scores, torch.stack(drawn).view(2, 3, n).int()


def plain_pool(scores: Tensor, origin: Tensor, width: int) -> Tensor:
    back = origin[..., :, None] - origin[..., None, :]
    near = (back <= width // 2) & (back >= -((width - 1) // 2))  # `width` tokens in all
    return scores[..., None, :].masked_fill(~near, -torch.inf).amax(-1)


@given(
    seed=st.integers(0, 2**16),
    n=st.integers(1, 40),
    spread=st.sampled_from([1, 2, 9, 1000]),
    width=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_pooling_over_neighbors_in_the_source(seed: int, n: int, spread: int, width: int) -> None:
    scores, origin = entries(seed, n, n * spread)
    assert torch.equal(pool(scores, origin, width), plain_pool(scores, origin, width))


def test_pooling_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, origin = entries(1, 30, 200)
    whole = pool(scores, origin, 9)
    monkeypatch.setattr(scoring, "AT_ONCE", 1)
    assert torch.equal(pool(scores, origin, 9), whole)


def test_pooling_without_a_look_at_values_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, origin = entries(2, 30, 200)
    whole = pool(scores, origin, 9)
    monkeypatch.setattr(scoring, "on_host", lambda tensor: False)
    assert torch.equal(pool(scores, origin, 9), whole)


def plain_sums(scores: Tensor, origin: Tensor) -> Tensor:
    """Compute `together` with a loop over tokens."""
    out = torch.zeros_like(scores)
    for place in torch.cartesian_prod(*map(torch.arange, scores.shape)).tolist():
        token = origin[tuple(place)]
        out[tuple(place)] = scores[origin == token].sum()
    return out


@given(seed=st.integers(0, 2**16), n=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_sums_over_whoever_holds_a_token(seed: int, n: int) -> None:
    scores, origin = entries(seed, n, 12)
    (sums,) = together([scores], [origin])
    assert torch.allclose(sums, plain_sums(scores, origin))


def test_the_newest_are_no_more_than_are_kept() -> None:
    scores = torch.tensor([[9.0, 8.0, 1.0, 2.0, 3.0, 7.0]])
    assert best(scores, 3, recent=2).tolist() == [[0, 4, 5]]
    assert best(scores, 3, recent=32).tolist() == [[3, 4, 5]]


def test_a_key_of_zero_leaves_the_others_their_scores() -> None:
    keys = torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(3))
    with_zero = torch.cat((keys, torch.zeros(1, 2, 1, 8)), 2)
    torch.testing.assert_close(unlikeness(with_zero)[..., :6], unlikeness(keys))


@given(seed=st.integers(0, 2**16), shift=st.floats(-100, 100))
@settings(max_examples=30, deadline=None)
def test_a_direction_that_all_keys_share_changes_no_centered_score(seed: int, shift: float) -> None:
    """The biases of some models point all keys of a head the same way."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(1, 2, 12, 8, generator=generator, dtype=torch.float64).float()
    same = torch.randn(1, 2, 1, 8, generator=generator) * shift
    scores, shifted = (unlikeness(k, centered=True) for k in (keys, keys + same))
    torch.testing.assert_close(shifted, scores, atol=1e-2, rtol=1e-2)
