"""The cache alone: storing, gathering, rotating, counting and removing entries."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import bounded, tokens

from kvstream.errors import KvstreamError, ModelError
from kvstream.methods.base import EntryTensor, HeadTensor
from kvstream.model import hook
from kvstream.model.attention import AttentionRequest
from kvstream.model.cache import BoundedCache
from kvstream.model.layer_store import MOVED_BYTES, PROMPT, LayerSpec, LayerStore


def spec(**changes: object) -> LayerSpec:
    settings = {
        "index": 0, "heads": 2, "key_dim": 4, "value_dim": 3, "dtype": torch.float32,
        "device": torch.device("cpu"), "rotary": None, **changes,
    }  # fmt: skip
    return LayerSpec(**settings)  # type: ignore[arg-type]


def filled(count: int, capacity: int = 32, specs: tuple[LayerSpec, ...] = ()) -> BoundedCache:
    cache = BoundedCache(
        specs or (spec(),), capacity, [EntryTensor("score")], [HeadTensor("count")]
    )
    for i, store in enumerate(cache.stores):
        store.update(torch.randn(1, 2, count, 4), torch.randn(1, 2, count, 3))
        if "score" in store.state:
            store.state["score"][:, :count] = torch.arange(count) + 100.0 * i
    cache.tag(count, 0)
    return cache


@given(st.data())
def test_keep_gathers_everything_alike(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 70))
    first = data.draw(st.integers(0, count))
    size = data.draw(st.integers(0, count - first))
    cache = filled(count, capacity=72)
    store = cache.stores[0]
    cache.settle()
    old = {
        "keys": store.keys.clone(), "values": store.values.clone(),
        "origin": store.origin.clone(), "score": store.state["score"].clone(),
    }  # fmt: skip
    choice = st.permutations(range(count - first)).map(lambda p: sorted(p[:size]))
    chosen = torch.tensor([data.draw(choice), data.draw(choice)], dtype=torch.long).reshape(2, size)
    at_once = data.draw(st.sampled_from((0, MOVED_BYTES)), label="0: blocks of sixteen entries")
    with patch("kvstream.model.layer_store.MOVED_BYTES", at_once):
        store.keep(first, chosen)
    assert (store.used, store.unrotated) == (first + size, first + size)
    for head in range(2):
        rows = [*range(first), *(first + i for i in chosen[head].tolist())]
        assert torch.equal(store.keys[head, : store.used], old["keys"][head, rows])
        assert torch.equal(store.values[head, : store.used], old["values"][head, rows])
        assert torch.equal(store.origin[head, : store.used], old["origin"][head, rows])
        assert torch.equal(store.state["score"][head, : store.used], old["score"][head, rows])


def test_counters_stay_on_the_host() -> None:
    tensors = [HeadTensor("count", on_host=True), HeadTensor("memory")]
    heads = LayerStore(spec(device=torch.device("meta")), 8, (), tensors).head_state
    assert [t.device.type for t in heads.values()] == ["cpu", "meta"]


def test_one_entry_too_many_is_an_error_not_a_longer_cache() -> None:
    cache = filled(30, capacity=32)
    with pytest.raises(KvstreamError, match="over the budget"):
        cache.stores[0].update(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 3))
    assert cache.size == 30
    assert cache.stores[0].keys.shape == (2, 32, 4)


def test_what_is_parked_is_held_and_never_overwritten() -> None:
    cache = filled(30, capacity=32)
    (store,) = cache.stores
    every, peak = cache.bytes, cache.size
    with cache.in_sight(0, {store: torch.arange(10).expand(2, -1)}):
        assert (store.used, cache.size, cache.bytes) == (10, peak, every)
        parked = store.keys[:, -20:].clone()
        with pytest.raises(KvstreamError, match="would hold 33 entries, 1 over the budget"):
            store.update(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 3))
        assert torch.equal(store.keys[:, -20:], parked)


def test_the_fullest_layer_counts_and_a_peak_stays() -> None:
    cache = filled(10, specs=(spec(), spec(index=1)))
    cache.stores[1].update(torch.randn(1, 2, 4, 4), torch.randn(1, 2, 4, 3))
    assert cache.size == 14
    cache.note_peak()
    most = cache.bytes
    cache.cut([5, 6])
    cache.note_peak()
    assert cache.size == 6
    assert (cache.peak.tokens, cache.peak.bytes) == (14, most)
    assert cache.bytes < most


def test_bytes_are_those_of_the_tensors() -> None:
    cache = filled(10, capacity=32)
    store = cache.stores[0]
    tensors = [store.keys, store.values, store.origin, *store.state.values()]
    assert cache.capacity_bytes == sum(t.nbytes for t in (*tensors, *store.head_state.values()))
    assert (
        cache.bytes == sum(t.nbytes for t in tensors) * 10 // 32 + store.head_state["count"].nbytes
    )
    cache.note_peak()
    assert cache.peak.tokens == 10
    assert cache.peak.bytes == cache.bytes


def test_sliding_layers_carry_no_tensors_of_the_method() -> None:
    cache = filled(5, specs=(spec(), spec(index=1, window=4)))
    assert set(cache.stores[0].state) == {"score"}
    assert not cache.stores[1].state
    assert not cache.stores[1].head_state


def test_tags_name_the_newest() -> None:
    cache = filled(4)
    cache.stores[0].update(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 3))
    cache.tag(3, None)
    assert cache.stores[0].origin[:, :7].tolist() == [[0, 1, 2, 3, *[PROMPT] * 3]] * 2
    cache.cut([5])
    assert cache.size == 5


def test_layers_of_different_lengths_are_aligned_at_the_newest() -> None:
    """A chunk has one position in all layers. Layers with fewer entries have a gap at the start."""
    model = bounded("llama")
    cache = model.new_cache(64)
    model.forward(tokens(20), cache)
    cache.settle()
    short, long = cache.stores
    short.keep(0, torch.arange(13, 20).expand(2, -1))
    cache.rebase()
    assert (cache.base, cache.next_position, short.used, long.used) == (20, 20, 7, 20)
    rotary = short.spec.rotary
    assert rotary is not None
    got = short.rotated_keys(cache.base, cache.scratch(short.spec))
    torch.testing.assert_close(got, rotary.rotate(short.keys[:, :7], 13))
    long.keep(0, torch.arange(5).expand(2, -1))
    cache.rebase()
    assert cache.base == 7
    assert cache.get_seq_length() == 7


def test_layers_with_different_numbers_of_rotated_entries_are_an_error() -> None:
    """All layers share one vector of positions, so it would be wrong for some of them."""
    model = bounded("llama")
    cache = model.new_cache(64)
    model.forward(tokens(20), cache)
    cache.stores[1].used -= 1
    with pytest.raises(KvstreamError, match=r"rotated entries \(19, 20\)"):
        model.forward(tokens(4), cache)


def test_nothing_is_rotated_before_the_first_eviction() -> None:
    model = bounded("llama")
    cache = model.new_cache(64)
    model.forward(tokens(20), cache)
    store = cache.stores[1]
    assert store.rotated_keys(cache.base, None).data_ptr() == store.keys.data_ptr()
    assert not cache._scratch


def test_raw_keys_and_back_give_the_same_logits() -> None:
    """Removing all rotations and continuing at the same positions changes only rounding."""
    model = bounded("gpt-neox")
    plain, settled = model.new_cache(64), model.new_cache(64)
    for cache in (plain, settled):
        model.forward(tokens(20), cache)
    settled.settle()
    want, got = (model.forward(tokens(5, seed=1), cache) for cache in (plain, settled))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_cutting_back_restores_what_was_there() -> None:
    model = bounded("gemma3")
    cache = model.new_cache(64)
    model.forward(tokens(20), cache)
    cache.settle()
    ends = [store.used for store in cache.stores]
    model.forward(tokens(6, seed=1), cache)
    cache.settle()  # as when memory is evicted while decoding
    cache.cut(ends)
    assert [(s.used, s.unrotated) for s in cache.stores] == [(20, 20)] * 3
    assert cache.base == 20


def test_a_key_too_large_without_its_rotation_is_refused() -> None:
    """60,000 in both dimensions of a pair becomes 84,853 in one after a rotation by 45 degrees."""
    rotary = bounded("llama").new_cache(8).stores[0].spec.rotary
    assert rotary is not None
    half = spec(key_dim=16, value_dim=16, dtype=torch.float16, rotary=rotary)
    store = LayerStore(half, 32, [], [])
    large = torch.full((1, 2, 20, 16), 60_000.0, dtype=torch.float16)
    store.update(large, large)
    with pytest.raises(ModelError, match="beyond 65,504"):
        store.settle(0)


def test_a_store_has_the_size_it_was_made_with() -> None:
    store = LayerStore(spec(), 16, [], [])
    assert store.get_max_length() == 16
    assert store.get_mask_sizes(5) == (5, 0)
    assert store.get_seq_length() == 0


@pytest.mark.parametrize("part", [slice(0, 26), slice(3, 22), slice(22, 26), slice(2, 9)])
def test_methods_see_raw_keys_of_what_is_still_in_flight(part: slice) -> None:
    model = bounded("llama-yarn")
    cache = model.new_cache(64)
    model.forward(tokens(20), cache)
    cache.settle()
    model.forward(tokens(6, seed=1), cache)
    store = cache.stores[1]
    before = store.keys[:, : store.used].clone()  # the rest is uninitialized, possibly NaN
    seen = store.unrotated_keys(part, cache.base).clone()
    assert torch.equal(store.keys[:, : store.used], before)
    cache.settle()
    torch.testing.assert_close(seen, store.keys[:, part])


def test_what_layers_share_is_measured_as_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    model, measured = bounded("gemma4"), []
    measure = hook.evidence

    def noting(*args: Any) -> Any:
        measured.append(measure(*args))
        return measured[-1]

    monkeypatch.setattr(hook, "evidence", noting)
    cache = model.new_cache(64)
    model.forward(tokens(20), cache, AttentionRequest((3,), accumulated_attention=True, queries=17))
    store = cache.store(4)
    assert store is cache.store(3) is cache.store(1)
    assert len(measured) == 1 + len(store.spec.shared_by)  # not requested for sliding layers
    for mine, parts in zip(
        (store.window_attention, store.accumulated_attention),
        zip(*measured, strict=True),
        strict=True,
    ):
        assert torch.allclose(mine, torch.stack(parts).mean(0))
    assert not torch.allclose(measured[0][0], measured[1][0])
    model.forward(tokens(4), cache, AttentionRequest((2,)))  # a new pass resets both
    assert store.accumulated_attention is None
    assert store.window_attention is not None
    assert float(store.window_attention.sum()) == pytest.approx(2 * store.spec.heads, rel=0.5)
