"""The bounded KV cache: allocated once, never grown, its entries counted and named.

A layer's entries lie in order of age: the prompt, the source's sinks, memory, then what the pass
adds (chunk and catalyst, or question and answer). The keys of the first `unrotated` entries are
stored unrotated; these stand at the positions that end at `BoundedCache.base`. The other keys are
stored as the model rotated them, at `base` and on. Before the first eviction all keys are rotated:
the cache then holds exactly what a plain one would.

For the length of an answer, entries can be parked at the end of the tensors (`in_sight`): attention
does not see them, and they count as held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer

from kvstream.errors import KvstreamError, ModelError
from kvstream.methods.base import CompressiveMemory, EntryTensor, HeadTensor
from kvstream.methods.tools.scoring import on_host
from kvstream.model.attention import AttentionRequest
from kvstream.model.recurrent import StateSpec, StateStore
from kvstream.model.rotary import Rotary
from kvstream.model.scratch import Scratch

PROMPT = -1
"""Origin of entries that are not from the source."""
MOVED_BYTES = 1 << 20
"""Entries that stay are moved so much at once on a CPU: the allocator of the process keeps holes
of what was copied. That of a GPU keeps few, and there each block would be a launch of its own."""


@dataclass(frozen=True)
class LayerSpec:
    """What a layer keeps of each token, found out by the probe."""

    index: int
    heads: int
    """K, key/value heads."""
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    """In which the model computes them."""
    device: torch.device
    rotary: Rotary | None
    """None: the layer has no rotary positions."""
    window: int | None = None
    """The layer slides: it keeps its newest `window - 1` entries, and no method chooses. None
    where all layers of a model slide: then all are compressed, and `sight` alone limits them."""
    sight: int | None = None
    """A query sees itself and the ``sight - 1`` positions before it; None: all of them."""
    shared_by: tuple[int, ...] = ()
    """Later layers that keep nothing, and attend to what this one keeps."""
    stored_as: torch.dtype | None = None
    """The number type that entries are stored in; None: `dtype`."""

    @property
    def kv_dtype(self) -> torch.dtype:
        """The number type that entries are stored in."""
        return self.stored_as or self.dtype

    @property
    def converts(self) -> bool:
        """Whether attention computes in another type than the entries have."""
        return self.kv_dtype != self.dtype

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry's keys and values over all heads."""
        return self.heads * (self.key_dim + self.value_dim) * self.kv_dtype.itemsize


class LayerStore(CacheLayerMixin):
    """Keys [K, B, D] and values [K, B, E] of one layer, and what is known of each entry."""

    is_sliding = False

    def __init__(
        self,
        spec: LayerSpec,
        capacity: int,
        tensors: Sequence[EntryTensor],
        head_tensors: Sequence[HeadTensor],
    ) -> None:
        super().__init__()
        self.spec = spec
        self.capacity = capacity
        self.used = 0
        self.unrotated = 0
        self.parked = 0
        """Entries at the end of the tensors, which are held and not seen."""
        shape, on = (spec.heads, capacity), spec.device
        self.keys: Tensor = torch.empty(*shape, spec.key_dim, dtype=spec.kv_dtype, device=on)
        self.values: Tensor = torch.empty(*shape, spec.value_dim, dtype=spec.kv_dtype, device=on)
        self.origin = torch.full(shape, PROMPT, dtype=torch.int32, device=on)
        self.state = {t.name: torch.zeros(shape, dtype=t.dtype, device=on) for t in tensors}
        self.head_state = {
            t.name: torch.zeros(
                (spec.heads, *t.shape(spec.key_dim, spec.value_dim)),
                dtype=t.dtype,
                device="cpu" if t.on_host else on,
            )
            for t in head_tensors
        }
        self.aside: dict[str, Tensor] = {}
        """What `state` was before an answer changes it; entries that leave, leave here too."""
        self.head_aside: dict[str, Tensor] = {}
        """What `head_state` was before tokens of an answer were folded into it."""
        self.window_attention: Tensor | None = None
        self.accumulated_attention: Tensor | None = None
        self.waiting: tuple[Tensor | None, Tensor | None] = None, None
        """What was measured of the entries before some were parked, in their order of then."""
        self.before_answer: tuple[Tensor | None, Tensor | None] = None, None
        """What was measured of the entries before an answer, which measures for itself."""
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the store is allocated when it is made."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store [1, K, n, D] and [1, K, n, E] behind what is there; hands the new ones back."""
        end = self.used + key_states.shape[-2]
        held = end + self.parked
        if held > self.capacity:
            raise KvstreamError(
                f"Layer {self.spec.index} would hold {held} entries, {held - self.capacity} over "
                "the budget. This is a defect of kvstream; please report it with the command."
            )
        self.keys[:, self.used : end] = key_states[0]
        self.values[:, self.used : end] = value_states[0]
        if self.spec.converts:
            self._refuse_infinite(self.keys[:, self.used : end], self.values[:, self.used : end])
        self.used = end
        return key_states, value_states

    def _refuse_infinite(self, *stored: Tensor) -> None:
        """Raises ModelError where what is stored is beyond what float16 can hold."""
        if self.spec.kv_dtype == torch.float16 and any(bool(t.isinf().any()) for t in stored):
            raise ModelError(
                f"Layer {self.spec.index} has keys or values beyond 65,504, the most that "
                "float16 can store; use --kv-dtype bfloat16."
            )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.used + query_length, 0

    def get_seq_length(self) -> int:
        return self.used

    def get_max_length(self) -> int:
        return self.capacity

    @property
    def rotated(self) -> int:
        return self.used - self.unrotated

    @property
    def held(self) -> int:
        """Entries of a head, parked ones included."""
        return self.used + self.parked

    def rotated_keys(self, base: int, scratch: Tensor | None) -> Tensor:
        """All keys as attention needs them, [K, used, D]; in `scratch` if they have to change."""
        if not self.turns and not self.spec.converts:
            return self.keys[:, : self.used]
        assert scratch is not None
        out = scratch[: self.spec.heads, : self.used, : self.spec.key_dim]
        turned = self.unrotated if self.turns else 0
        if self.spec.rotary is not None and turned:
            self.spec.rotary.rotate(self.keys[:, :turned], base - turned, out[:, :turned])
        out[:, turned:] = self.keys[:, turned : self.used]
        return out

    @property
    def turns(self) -> bool:
        """Whether entries have to be rotated before attention reads them."""
        return self.unrotated > 0 and self.spec.rotary is not None

    def unrotated_keys(self, part: slice, base: int) -> Tensor:
        """Unrotated keys [K, n, D] of the entries `part`; a copy where some are rotated."""
        keys = self.keys[:, part]
        if part.stop <= self.unrotated or self.spec.rotary is None:
            return keys
        keys = keys.clone()
        first = max(part.start, self.unrotated)
        turned = keys[:, first - part.start :]
        self.spec.rotary.unrotate(turned, base + first - self.unrotated, turned)
        return keys

    def measured(
        self, window: Tensor | None, accumulated: Tensor | None, *, by_owner: bool
    ) -> None:
        """Note the attention that entries got in a pass: the mean over the layers that share them.

        The owner comes first in every pass, so it is where the mean begins.
        """
        if self.spec.shared_by:
            layers = 1 + len(self.spec.shared_by)
            window, accumulated = (None if t is None else t / layers for t in (window, accumulated))
        if by_owner:
            self.window_attention, self.accumulated_attention = window, accumulated
            return
        self.window_attention = _sum(self.window_attention, window)
        self.accumulated_attention = _sum(self.accumulated_attention, accumulated)

    def settle(self, base: int) -> None:
        """Take the rotation off all rotated keys; afterwards every entry is unrotated."""
        if self.rotated and self.spec.rotary is not None:
            turned = self.keys[:, self.unrotated : self.used]
            self.spec.rotary.unrotate(turned, base, turned)
            self._refuse_infinite(turned)  # what fits as the model rotated it can be too large
        self.unrotated = self.used

    def keep(self, first: int, indices: Tensor) -> None:
        """Keep, of the unrotated entries from `first` on, ``first + indices`` [K, m], in order."""
        heads, m = indices.shape
        flat = indices + first + torch.arange(heads, device=indices.device)[:, None] * self.capacity
        remembered = (*self.state.values(), *self.aside.values())
        for tensor in (self.keys, self.values, self.origin, *remembered):
            entries = tensor.flatten(0, 1)
            # In blocks: an entry only ever moves towards the front, so none is overwritten before
            # it is read, and no layer of memory is ever there twice.
            fitting = MOVED_BYTES // (heads * tensor[0, 0].nbytes)
            block = max(16, fitting if on_host(tensor) else m)
            for at in range(0, m, block):
                part = flat[:, at : at + block]
                kept = entries.index_select(0, part.flatten()).unflatten(0, part.shape)
                tensor[:, first + at : first + at + part.shape[1]] = kept
        self.window_attention, self.accumulated_attention = (
            # What was measured of these entries goes with them, for whoever ranks them later.
            torch.cat((t[:, :first], t.gather(-1, (indices + first).to(t.device))), -1)
            if t is not None and t.shape[-1] >= self.used
            else None
            for t in (self.window_attention, self.accumulated_attention)
        )
        self.used = self.unrotated = first + m

    def park(self, first: int, indices: Tensor) -> None:
        """Of the unrotated entries from `first` on, ``first + indices`` [K, m] (in order) stay in
        sight; the others wait at the end of the tensors.
        """
        heads, m = indices.shape
        hidden = torch.ones(heads, self.used - first, dtype=torch.bool, device=indices.device)
        others = hidden.scatter_(-1, indices, False).nonzero()[:, 1].view(heads, -1)
        self.waiting = self.window_attention, self.accumulated_attention
        self.parked = others.shape[1]
        self.used = self.unrotated = first + m
        places = slice(first, self.used), slice(self.capacity - self.parked, self.capacity)
        self._move(first + torch.cat((indices, others), -1), places)

    def unpark(self, first: int) -> None:
        """Put the parked entries back among the unrotated ones, in the order of the source."""
        end = self.used + self.parked
        places = [*range(first, self.used), *range(self.capacity - self.parked, self.capacity)]
        there = torch.tensor(places, device=self.origin.device)
        order = self.origin[:, there].argsort(dim=-1, stable=True)
        self._move(there[order], (slice(first, end),))
        self.used = self.unrotated = end
        self.parked = 0
        # Where entries left in the middle of an answer, what was measured of them is of no use.
        self.window_attention, self.accumulated_attention = (
            t if t is not None and t.shape[-1] == end else None for t in self.waiting
        )
        self.waiting = None, None

    def _move(self, entries: Tensor, places: Sequence[slice]) -> None:
        """Write `entries` [K, n] of each head to `places`; a copy of one head at a time."""
        # Their order among themselves changes: what was measured of them is not kept up.
        self.window_attention = self.accumulated_attention = None
        for tensor in (self.keys, self.values, self.origin, *self.state.values()):
            for head, chosen in zip(tensor, entries.to(tensor.device), strict=True):
                moved, begin = head[chosen], 0
                for place in places:
                    end = begin + place.stop - place.start
                    head[place] = moved[begin:end]
                    begin = end

    def set_state_aside(self) -> None:
        """Keep a copy of `state` for `restore_state`."""
        self.aside = {name: t.clone() for name, t in self.state.items()}

    def set_head_state_aside(self) -> None:
        """Keep a copy of `head_state` for `restore_head_state`, unless there is one already."""
        if not self.head_aside:
            self.head_aside = {name: t.clone() for name, t in self.head_state.items()}

    def restore_head_state(self) -> None:
        """Give the heads back what they remembered; without a copy nothing."""
        self.head_state.update(self.head_aside)
        self.head_aside = {}

    def restore_state(self) -> None:
        """Give the entries that are still held the state that they had; without a copy nothing."""
        for name, before in self.aside.items():
            self.state[name][:, : self.used] = before[:, : self.used]
        self.aside = {}

    def release_entries(self) -> None:
        """Give all tensors back; the layer can no longer be used. A state has its own `release`."""
        nothing = self.keys.new_empty(0)
        self.keys = self.values = nothing
        self.origin = self.origin.new_empty(0)
        self.state, self.head_state, self.aside, self.head_aside = {}, {}, {}, {}
        self.window_attention = self.accumulated_attention = None
        self.waiting = self.before_answer = None, None
        self.used = self.unrotated = self.parked = 0

    def tensor_bytes(self) -> int:
        """Bytes of one entry over all heads: keys, values, origin and the method's tensors."""
        extra = self.origin.itemsize + sum(t.itemsize for t in self.state.values())
        return self.spec.entry_bytes + self.spec.heads * extra

    def head_bytes(self) -> int:
        """Bytes of what is kept of the heads as a whole."""
        return sum(t.nbytes for t in self.head_state.values())


def _sum(mine: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The sum of two, on the device of `mine`; `mine` where one of them is missing."""
    return mine if mine is None or other is None else mine + other.to(mine.device)


class HybridStore(StateStore, LayerStore):  # type: ignore[override]  # theirs differ in this
    """A layer that attends and carries a state as well."""

    def __init__(self, store: LayerStore, carries: StateSpec) -> None:
        StateStore.__init__(self, carries)
        self.__dict__.update(vars(store))


@dataclass
class Peak:
    """The most that was ever in memory, counted at every forward pass."""

    tokens: int = 0
    bytes: int = 0
    scratch: int = 0
    """Bytes beside entries and the model's own activations: rotated keys, scores, similarities,
    copies of what was measured."""


def in_place(layers: Mapping[int, Any]) -> list[Any]:
    """The layers of a cache where they are in the model; those between them keep nothing."""
    return [layers.get(i, DummyLayer()) for i in range(max(layers) + 1)]


class BoundedCache(Cache):
    """One `LayerStore` per attending layer under a common budget of `capacity` entries a head.

    Layers that carry a state instead, or as well, have a `StateStore`; the rest keep nothing.
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
        """The layers that attend."""
        self.recurrent: list[StateStore] = list(carrying.values())
        """The layers that carry a state."""
        self.capacity = capacity
        self.base = 0
        """Position of the first rotated entry, the same for all layers."""
        self.request = AttentionRequest()
        self.torn = False
        """Entries were moved, and the move did not end: nothing here can be used."""
        self.compressive_memory: CompressiveMemory | None = None
        """Mixes what the heads remember into attention; None: nothing was folded yet."""
        self.backend = backend
        self.peak = Peak()
        self.momentary = Scratch()
        """What attention takes for a moment."""
        self._selection = Scratch()
        """What selection takes for a moment, after attention."""
        self._scratch: dict[tuple[torch.device, bool], Tensor] = {}

    def store(self, layer: int) -> LayerStore:
        """What layer `layer` of the model attends to."""
        return self._stores[layer]

    @property
    def held(self) -> int:
        """Entries of the fullest head, parked ones included."""
        return max(store.held for store in self.stores)

    @property
    def aligned(self) -> bool:
        """Whether all layers hold equally many rotated entries; in the middle of a pass not."""
        return all(store.rotated == self.stores[0].rotated for store in self.stores)

    @property
    def next_position(self) -> int:
        """Position of the next token, the same for all layers, because they are `aligned`."""
        return self.base + self.stores[0].rotated

    @property
    def bytes(self) -> int:
        """Bytes of all entries held now, with what is remembered of them."""
        entries = sum(s.held * s.tensor_bytes() + s.head_bytes() for s in self.stores)
        return entries + sum(s.state_bytes for s in self.recurrent)

    @property
    def fixed_bytes(self) -> int:
        """Bytes at the most, beside all entries: of heads as a whole, of states and their copy."""
        states = sum(2 * s.carries.bytes for s in self.recurrent)
        return sum(s.head_bytes() for s in self.stores) + states

    @property
    def capacity_bytes(self) -> int:
        """Bytes when every head is full."""
        return sum(self.capacity * s.tensor_bytes() for s in self.stores) + self.fixed_bytes

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.next_position

    def scratch(self, spec: LayerSpec, *, values: bool = False) -> Tensor:
        """Room for one layer's keys (or `values`) as attention reads them, in the type that it
        computes in, shared by the layers of a device."""
        which = spec.device, values
        if which not in self._scratch:
            same = [s.spec for s in self.stores if s.spec.device == spec.device]
            width = max(s.value_dim if values else s.key_dim for s in same)
            self._scratch[which] = torch.empty(
                max(s.heads for s in same), self.capacity, width, dtype=spec.dtype,
                device=spec.device,
            )  # fmt: skip
        return self._scratch[which]

    def attended(self, store: LayerStore) -> tuple[Tensor, Tensor]:
        """Keys [K, used, D] and values [K, used, E] of a layer as attention needs them."""
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
        """Give all tensors back; the cache can no longer be used."""
        for store in self.stores:
            store.release_entries()
        for recurrent in self.recurrent:
            recurrent.release()
        self.free_scratch()

    def free_scratch(self) -> None:
        """Give the room for rotated keys back; it is taken again when it is needed."""
        self._scratch.clear()

    def as_read(self, store: LayerStore, part: slice) -> Tensor:
        """Unrotated keys [K, n, D] at the positions of the last pass, float32; after `settle`."""
        if store.spec.rotary is None:
            return store.keys[:, part].float()
        return store.spec.rotary.rotate(store.keys[:, part], self.base - store.used + part.start)

    def note_peak(self) -> None:
        """Count what is held now; called whenever entries were added."""
        tokens = self.held
        if tokens > self.capacity:
            raise KvstreamError(f"{tokens} entries are held, over the budget of {self.capacity}.")
        self.peak.tokens = max(self.peak.tokens, tokens)
        self.peak.bytes = max(self.peak.bytes, self.bytes)
        self.note_scratch()

    @contextmanager
    def selecting(self) -> Iterator[None]:
        """Meter what a method takes inside, as the pass before was; and count it."""
        held = self._held_scratch()
        with self._selection.metered(on=self.momentary.on):
            yield
        self.peak.scratch = max(self.peak.scratch, held + self._selection.most)

    def note_scratch(self) -> None:
        """Count what is there beside the entries after a pass."""
        self.peak.scratch = max(self.peak.scratch, self._held_scratch() + self.momentary.most)

    def _held_scratch(self) -> int:
        """Bytes of rotated keys, of what was measured, of copies."""
        held: list[Tensor | None] = []
        for s in self.stores:
            held += [s.window_attention, s.accumulated_attention, *s.waiting, *s.before_answer]
        held += [t for s in self.stores for t in (*s.aside.values(), *s.head_aside.values())]
        held += self._scratch.values()
        distinct = {id(t): t.nbytes for t in held if t is not None}
        return sum(distinct.values())

    def tag(self, count: int, first: int | None) -> None:
        """Name the newest `count` entries: ordinals from `first`, or the prompt's if None."""
        for store in self.stores:
            end = store.used
            if first is None:
                store.origin[:, end - count : end] = PROMPT
            else:
                store.origin[:, end - count : end] = torch.arange(
                    first, first + count, dtype=torch.int32, device=store.origin.device
                )

    @contextmanager
    def passing(self) -> Iterator[list[int]]:
        """What comes inside leaves no trace: a catalyst, a question and its answer.

        Yields where each layer ended before; who takes older entries away lowers it.
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
        """What an answer measures of the entries inside goes with it, and what was measured before
        it comes back: the next selection goes by that.

        Where entries leave inside, nothing is known of the attention that the others had.
        """
        before = [store.used for store in self.stores]
        for store in self.stores:
            store.before_answer = store.window_attention, store.accumulated_attention
        try:
            yield
        finally:
            for store, used in zip(self.stores, before, strict=True):
                known = store.before_answer if store.used == used else (None, None)
                store.window_attention, store.accumulated_attention = known
                store.before_answer = None, None

    @contextmanager
    def in_sight(self, first: int, seen: Mapping[LayerStore, Tensor]) -> Iterator[None]:
        """Of the entries from `first` on, attention sees ``first + seen[store]`` [K, m] alone.

        The others are parked: they count as held, and come back in the end. What comes inside must
        leave no trace (`passing`), except that it may take entries away.
        """
        self.settle()
        with self._moving():
            for store, indices in seen.items():
                store.park(first, indices)
        try:
            yield
        finally:
            with self._moving():
                for store in seen:
                    store.unpark(first)

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Ctrl-C in the middle of a move leaves `torn` set: entries have lost their order."""
        self.torn = True
        yield
        self.rebase()
        self.torn = False

    def drop_newest(self, count: int) -> None:
        """Remove the newest `count` entries (a catalyst, an answer).

        Raises KvstreamError if some are not rotated: those are memory.
        """
        rotated = min(store.rotated for store in self.stores)
        if count > rotated:
            raise KvstreamError(
                f"{count} entries were to be removed, but only {rotated} are newer than memory."
            )
        for store in self.stores:
            store.used -= count

    def cut(self, ends: Sequence[int]) -> None:
        """Forget what came after the first ``ends[i]`` entries of each layer."""
        for store, end in zip(self.stores, ends, strict=True):
            store.used, store.unrotated = end, min(store.unrotated, end)
        self.rebase()

    def settle(self) -> None:
        """Make every entry unrotated; the next ones follow the longest layer."""
        for store in self.stores:
            store.settle(self.base)
        self.rebase()

    def rebase(self) -> None:
        """After entries left: what remains is pushed together, and new ones follow it."""
        self.base = max(store.unrotated for store in self.stores)
