"""The bounded KV cache: allocated once, never grown.

Each layer has a `LayerStore`. Before the first eviction all keys are stored as the model rotated
them, so the cache holds exactly what a plain one would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DummyLayer

from kvstream.errors import KvstreamError
from kvstream.methods.base import CompressiveMemory, EntryTensor, HeadTensor
from kvstream.model.attention import AttentionRequest
from kvstream.model.layer_store import PROMPT, HybridStore, LayerSpec, LayerStore
from kvstream.model.recurrent import StateSpec, StateStore
from kvstream.model.scratch import Scratch


@dataclass
class Peak:
    """Maximum memory so far, counted at every forward pass."""

    tokens: int = 0
    bytes: int = 0
    scratch: int = 0
    """Bytes beside entries and the model's own activations: rotated keys, scores, similarities,
    copies of measured attention and state."""

    def include(self, other: Peak) -> None:
        self.tokens = max(self.tokens, other.tokens)
        self.bytes = max(self.bytes, other.bytes)
        self.scratch = max(self.scratch, other.scratch)


def in_place(layers: Mapping[int, Any]) -> list[Any]:
    """Return the layers as a list by model index, with a `DummyLayer` for each missing index."""
    return [layers.get(i, DummyLayer()) for i in range(max(layers) + 1)]


class BoundedCache(Cache):
    """One `LayerStore` per attention layer, each with at most `capacity` entries per head.

    A layer with a recurrent state has a `StateStore`, or a `HybridStore` if it also has attention.
    The other layers store nothing.
    """

    def __init__(
        self,
        specs: Sequence[LayerSpec],
        capacity: int,
        tensors: Sequence[EntryTensor] = (),
        head_tensors: Sequence[HeadTensor] = (),
        backend: str = "auto",
        states: Sequence[StateSpec] = (),
    ) -> None:
        stores = {
            spec.index: LayerStore(
                spec, capacity, *((tensors, head_tensors) if spec.window is None else ((), ()))
            )
            for spec in specs
        }
        carrying: dict[int, StateStore] = {}
        for state in states:
            if state.index in stores:
                both = HybridStore(stores[state.index], state)
                stores[state.index] = carrying[state.index] = both
            else:
                carrying[state.index] = StateStore(state)
        super().__init__(layers=in_place({**stores, **carrying}))
        self._stores = {i: s for s in stores.values() for i in (s.spec.index, *s.spec.shared_by)}
        self.stores: list[LayerStore] = list(stores.values())
        self.recurrent: list[StateStore] = list(carrying.values())
        self.capacity = capacity
        self.base = 0
        """Position of the first rotated entry, the same for all layers."""
        self.request = AttentionRequest()
        self.torn = False
        """Whether a move of entries was interrupted. The cache can then no longer be used."""
        self.compressive_memory: CompressiveMemory | None = None
        """Mixes compressive memory into attention; None: nothing was folded yet."""
        self.backend = backend
        self.peak = Peak()
        self.momentary = Scratch()
        """Scratch memory of attention."""
        self._selection = Scratch()
        self._scratch: dict[tuple[torch.device, bool], Tensor] = {}

    def store(self, layer: int) -> LayerStore:
        """Return the store that layer `layer` of the model attends to."""
        return self._stores[layer]

    @property
    def size(self) -> int:
        """Entries of the fullest head, including parked ones."""
        return max(store.size for store in self.stores)

    @property
    def aligned(self) -> bool:
        """Whether all layers hold the same number of rotated entries. False during a pass."""
        return all(store.rotated == self.stores[0].rotated for store in self.stores)

    @property
    def next_position(self) -> int:
        """Position of the next token, the same for all layers because they are `aligned`."""
        return self.base + self.stores[0].rotated

    @property
    def bytes(self) -> int:
        """Bytes of all entries held now, with their state and recurrent states."""
        entries = sum(s.size * s.tensor_bytes() + s.head_bytes() for s in self.stores)
        return entries + sum(s.state_bytes for s in self.recurrent)

    @property
    def fixed_bytes(self) -> int:
        """Maximum bytes beside the entries: `head_state`, recurrent states and their copies."""
        states = sum(2 * s.carries.bytes for s in self.recurrent)
        return sum(s.head_bytes() for s in self.stores) + states

    @property
    def capacity_bytes(self) -> int:
        """Bytes when every head is full."""
        return sum(self.capacity * s.tensor_bytes() for s in self.stores) + self.fixed_bytes

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.next_position

    def scratch(self, spec: LayerSpec, *, values: bool = False) -> Tensor:
        """Return a device's buffer for keys (or `values`), in the type that attention reads."""
        which = spec.device, values
        if which not in self._scratch:
            same = [s.spec for s in self.stores if s.spec.device == spec.device]
            width = max(s.value_dim if values else s.key_dim for s in same)
            self._scratch[which] = torch.empty(
                max(s.heads for s in same), self.capacity, width, dtype=spec.attention_dtype,
                device=spec.device,
            )  # fmt: skip
        return self._scratch[which]

    def attended(self, store: LayerStore) -> tuple[Tensor, Tensor]:
        """Return keys [K, used, D] and values [K, used, E] of a layer as attention needs them."""
        spec = store.spec
        scratch = self.scratch(spec) if store.turns or spec.converts else None
        rotary = spec.rotary and spec.rotary.width
        with self.momentary.metered("rotate", store.keys.shape, store.used, rotary):
            keys = store.rotated_keys(self.base, scratch)
        values = store.values[:, : store.used]
        if spec.converts:
            room = self.scratch(spec, values=True)[: spec.heads, : store.used, : spec.value_dim]
            values = room.copy_(values)
        return keys, values

    def release(self) -> None:
        """Free all tensors; the cache can no longer be used."""
        for store in self.stores:
            store.release_entries()
        for recurrent in self.recurrent:
            recurrent.release()
        self.free_scratch()

    def free_scratch(self) -> None:
        self._scratch.clear()

    def as_read(self, store: LayerStore, part: slice) -> Tensor:
        """Return keys [K, n, D] at the positions of the last pass, float32, after `settle`."""
        if store.spec.rotary is None:
            return store.keys[:, part].float()
        return store.spec.rotary.rotate(store.keys[:, part], self.base - store.used + part.start)

    def note_peak(self) -> None:
        """Update `peak` after entries were added. Raises KvstreamError over `capacity`."""
        tokens = self.size
        if tokens > self.capacity:
            raise KvstreamError(f"{tokens} entries are held, over the budget of {self.capacity}.")
        self.peak.tokens = max(self.peak.tokens, tokens)
        self.peak.bytes = max(self.peak.bytes, self.bytes)
        self.note_scratch()

    @contextmanager
    def selecting(self) -> Iterator[None]:
        """Count the scratch memory of the selection inside in `peak`."""
        scratch = self._scratch_bytes()
        with self._selection.metered(on=self.momentary.on):
            yield
        self.peak.scratch = max(self.peak.scratch, scratch + self._selection.most)

    def note_scratch(self) -> None:
        self.peak.scratch = max(self.peak.scratch, self._scratch_bytes() + self.momentary.most)

    def _scratch_bytes(self) -> int:
        """Return the bytes of rotated keys, measured attention and copies of state."""
        tensors: list[Tensor | None] = [*self._scratch.values()]
        for s in self.stores:
            tensors += [s.window_attention, s.accumulated_attention, *s.waiting, *s.before_answer]
            tensors += [*s.aside.values(), *s.head_aside.values()]
        distinct = {id(t): t.nbytes for t in tensors if t is not None}
        return sum(distinct.values())

    def tag(self, count: int, first: int | None) -> None:
        """Set the origin of the newest `count` entries: ordinals from `first`; None: PROMPT."""
        for store in self.stores:
            origin = store.origin[:, store.used - count : store.used]
            if first is None:
                origin.fill_(PROMPT)
            else:
                origin[:] = torch.arange(first, first + count, device=origin.device)

    @contextmanager
    def passing(self) -> Iterator[list[int]]:
        """Remove what is added inside, and restore recurrent states.

        Yields the number of entries that each layer had before. Code that removes older entries
        inside must lower it.
        """
        ends = [store.used for store in self.stores]
        with ExitStack() as afterwards:
            for layer in self.recurrent:
                layer.set_aside()
                afterwards.callback(layer.give_back)
            afterwards.callback(self.cut, ends)
            yield ends

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Restore the attention measured before an answer; it is lost where entries left inside."""
        before = [store.used for store in self.stores]
        for store in self.stores:
            store.before_answer = store.window_attention, store.accumulated_attention
        try:
            yield
        finally:
            for store, used in zip(self.stores, before, strict=True):
                attention = store.before_answer if store.used == used else (None, None)
                store.window_attention, store.accumulated_attention = attention
                store.before_answer = None, None

    @contextmanager
    def in_sight(self, first: int, visible: Mapping[LayerStore, Tensor]) -> Iterator[None]:
        """Let attention see only ``first + visible[store]`` [K, m] of the entries from `first` on.

        The others are parked: they count as held and come back at the end. Code inside must remove
        what it adds (`passing`), but it may also remove older entries.
        """
        self.settle()
        with self.moving():
            for store, indices in visible.items():
                store.park(first, indices)
        try:
            yield
        finally:
            with self.moving():
                for store in visible:
                    store.unpark(first)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Mark the cache as `torn` while entries move; Ctrl-C leaves the mark."""
        before, self.torn = self.torn, True
        yield
        self.rebase()
        self.torn = before

    def cut(self, ends: Sequence[int]) -> None:
        """Remove all entries after the first ``ends[i]`` of layer i."""
        for store, end in zip(self.stores, ends, strict=True):
            store.used, store.unrotated = end, min(store.unrotated, end)
        self.rebase()

    def settle(self) -> None:
        """Unrotate all entries. The next token's position follows the longest layer."""
        with self.moving():
            for store in self.stores:
                store.settle(self.base)

    def rotate(self) -> None:
        """Rotate all entries in place, so that a pass does not have to rotate them.

        Attention reads the same numbers as before, but `settle` then rounds the keys once more.
        Nothing changes if layers hold different numbers of unrotated entries, because one vector of
        positions serves them all, if attention reads another type, or while entries are parked.
        """
        alike = len({store.unrotated for store in self.stores}) == 1
        if alike and not any(store.spec.converts or store.parked for store in self.stores):
            with self.moving():
                for store in self.stores:
                    store.rotate(self.base)
            self.free_scratch()

    def rebase(self) -> None:
        """Set `base` after entries left, so that new entries follow the longest layer."""
        self.base = max(store.unrotated for store in self.stores)
