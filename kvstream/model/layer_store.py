"""The entries of one layer: keys, values, and the origin and state of each entry.

A layer stores its entries in order of age: the prompt, the source's attention sinks, memory, then
the entries in flight (chunk and catalyst, or question and answer). The keys of the first
`unrotated` entries are stored unrotated. Their positions are the last ones before
`BoundedCache.base`. The other keys are stored as the model rotated them, at positions from `base`
on.

During an answer, entries can be parked at the end of the tensors (`BoundedCache.in_sight`).
Attention does not see them, but they count as held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from kvstream.errors import KvstreamError, ModelError
from kvstream.methods.base import EntryTensor, HeadTensor
from kvstream.methods.tools.scoring import on_host
from kvstream.model.recurrent import StateSpec, StateStore
from kvstream.model.rotary import Rotary

PROMPT = -1
"""Origin of entries that are not from the source."""
MOVED_BYTES = 1 << 20
"""Maximum bytes of kept entries to move at once on a CPU, whose allocator keeps the holes that
copies leave. On a GPU all entries move at once: its allocator keeps few holes, and each block
would need a kernel launch."""


@dataclass(frozen=True)
class LayerSpec:
    """The shapes and types of a layer's entries, as the probe finds them."""

    index: int
    heads: int
    """K, key/value heads."""
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    """The number type in which the model computes keys and values."""
    device: torch.device
    rotary: Rotary | None
    """None: the layer has no rotary positions."""
    window: int | None = None
    """Sliding window of a layer that keeps its newest `window - 1` entries without a method. None:
    a method compresses the layer. If all layers of a model slide, all are compressed, and only
    `sight` limits them."""
    sight: int | None = None
    """A query sees itself and the ``sight - 1`` positions before it; None: all positions."""
    shared_by: tuple[int, ...] = ()
    """Later layers that store no entries and attend to those of this layer."""
    stored_as: torch.dtype | None = None
    """The number type that entries are stored in; None: `dtype`."""
    attends_in: torch.dtype | None = None
    """The number type in which attention computes; None: `dtype`."""

    @property
    def kv_dtype(self) -> torch.dtype:
        return self.stored_as or self.dtype

    @property
    def attention_dtype(self) -> torch.dtype:
        return self.attends_in or self.dtype

    @property
    def converts(self) -> bool:
        """Whether attention computes in a different type than the entries are stored in."""
        return self.kv_dtype != self.attention_dtype

    @property
    def entry_bytes(self) -> int:
        """Bytes of keys and values of one entry in every head."""
        return self.heads * (self.key_dim + self.value_dim) * self.kv_dtype.itemsize


class BufferLayer(CacheLayerMixin):
    """What transformers asks of a layer of a cache that has `used` of `capacity` entries."""

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity, self.used = capacity, 0
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: such a layer allocates for itself."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.used + query_length, 0

    def get_seq_length(self) -> int:
        return self.used

    def get_max_length(self) -> int:
        return self.capacity


class LayerStore(BufferLayer):
    """Keys [K, B, D] and values [K, B, E] of one layer, with origin and state of each entry."""

    def __init__(
        self,
        spec: LayerSpec,
        capacity: int,
        tensors: Sequence[EntryTensor],
        head_tensors: Sequence[HeadTensor],
    ) -> None:
        super().__init__(capacity)
        self.spec = spec
        self.unrotated = 0
        self.parked = 0
        """Number of entries at the end of the tensors, which are held but not seen."""
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
        """Copy of `state` from before an answer. Entries that leave also leave this copy."""
        self.head_aside: dict[str, Tensor] = {}
        """Copy of `head_state` from before tokens of an answer were folded into it."""
        self.window_attention: Tensor | None = None
        self.accumulated_attention: Tensor | None = None
        self.waiting: tuple[Tensor | None, Tensor | None] = None, None
        """Window and accumulated attention from before entries were parked, in the order that the
        entries had then."""
        self.before_answer: tuple[Tensor | None, Tensor | None] = None, None
        """Window and accumulated attention from before an answer, which measures its own."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys [1, K, n, D] and values [1, K, n, E], and return them.

        Raises KvstreamError over the budget, ModelError if float16 cannot store them.
        """
        end = self.used + key_states.shape[-2]
        size = end + self.parked
        if size > self.capacity:
            raise KvstreamError(
                f"Layer {self.spec.index} would hold {size} entries, {size - self.capacity} over "
                "the budget. This is a defect of kvstream; please report it with the command."
            )
        keys, values = self.keys[:, self.used : end], self.values[:, self.used : end]
        keys.copy_(key_states[0])
        values.copy_(value_states[0])
        if self.spec.converts:
            self._refuse_infinite(keys, values)
        self.used = end
        return key_states, value_states

    def _refuse_infinite(self, *tensors: Tensor) -> None:
        """Raise ModelError if stored numbers are beyond the range of float16."""
        if self.spec.kv_dtype == torch.float16 and any(bool(t.isinf().any()) for t in tensors):
            raise ModelError(
                f"Layer {self.spec.index} has keys or values beyond 65,504, the most that "
                "float16 can store; use --kv-dtype bfloat16."
            )

    @property
    def rotated(self) -> int:
        return self.used - self.unrotated

    @property
    def size(self) -> int:
        """Entries of each head, including parked ones."""
        return self.used + self.parked

    def ordinals(self) -> list[Tensor]:
        """Return the ordinals of the source tokens that each head holds, on the CPU."""
        return [head[head != PROMPT] for head in self.origin[:, : self.used].cpu()]

    def rotated_keys(self, base: int, scratch: Tensor | None) -> Tensor:
        """Return keys as attention needs them, [K, used, D], maybe in `scratch`."""
        rotary = self.spec.rotary
        count = self.unrotated if rotary else 0
        if not count and not self.spec.converts:
            return self.keys[:, : self.used]
        assert scratch is not None
        out = scratch[: self.spec.heads, : self.used, : self.spec.key_dim]
        if rotary and count:
            rotary.rotate(self.keys[:, :count], base - count, out[:, :count])
        out[:, count:] = self.keys[:, count : self.used]
        return out

    @property
    def turns(self) -> bool:
        """Whether entries have to be rotated before attention reads them."""
        return self.unrotated > 0 and self.spec.rotary is not None

    def unrotated_keys(self, part: slice, base: int) -> Tensor:
        """Return unrotated keys [K, n, D] of the entries `part`: a copy if some are rotated."""
        keys = self.keys[:, part]
        if part.stop <= self.unrotated or self.spec.rotary is None:
            return keys
        keys = keys.clone()
        first = max(part.start, self.unrotated)
        tail = keys[:, first - part.start :]
        self.spec.rotary.unrotate(tail, base + first - self.unrotated, tail)
        return keys

    def measured(
        self, window: Tensor | None, accumulated: Tensor | None, *, by_owner: bool
    ) -> None:
        """Record the attention of a pass, the mean over sharing layers; the owner is first."""
        if self.spec.shared_by:
            layers = 1 + len(self.spec.shared_by)
            window, accumulated = (None if t is None else t / layers for t in (window, accumulated))
        if by_owner:
            self.window_attention, self.accumulated_attention = window, accumulated
            return
        self.window_attention = _sum(self.window_attention, window)
        self.accumulated_attention = _sum(self.accumulated_attention, accumulated)

    def settle(self, base: int) -> None:
        """Remove the rotation from all rotated keys."""
        if self.rotated and self.spec.rotary is not None:
            part = self.keys[:, self.unrotated : self.used]
            self.spec.rotary.unrotate(part, base, part)
            self._refuse_infinite(part)  # a rotated key can fit where the unrotated does not
        self.unrotated = self.used

    def rotate(self, base: int) -> None:
        """Rotate all unrotated keys in place: the inverse of `settle`, up to rounding."""
        if self.unrotated and self.spec.rotary:
            part = self.keys[:, : self.unrotated]
            self.spec.rotary.rotate(part, base - self.unrotated, part)
        self.unrotated = 0

    def keep(self, first: int, indices: Tensor) -> None:
        """Keep the first `first` entries and ``first + indices`` [K, m]; all are unrotated."""
        heads, m = indices.shape
        flat = indices + first + torch.arange(heads, device=indices.device)[:, None] * self.capacity
        remembered = (*self.state.values(), *self.aside.values())
        for tensor in (self.keys, self.values, self.origin, *remembered):
            entries = tensor.flatten(0, 1)
            # Move in blocks, so that a layer's memory never exists twice. Entries only move
            # towards the front, so none is overwritten before it is read.
            fitting = MOVED_BYTES // (heads * tensor[0, 0].nbytes)
            block = max(16, fitting if on_host(tensor) else m)
            for at in range(0, m, block):
                part = flat[:, at : at + block]
                chunk = entries.index_select(0, part.flatten()).unflatten(0, part.shape)
                tensor[:, first + at : first + at + part.shape[1]] = chunk
        self.window_attention, self.accumulated_attention = (
            # The measured attention moves with the entries, for a later ranking.
            torch.cat((t[:, :first], t.gather(-1, (indices + first).to(t.device))), -1)
            if t is not None and t.shape[-1] >= self.used
            else None
            for t in (self.window_attention, self.accumulated_attention)
        )
        self.used = self.unrotated = first + m

    def park(self, first: int, indices: Tensor) -> None:
        """Park at the end what is from `first` on, except ``first + indices`` [K, m]; unrotated."""
        heads, m = indices.shape
        hidden = torch.ones(heads, self.used - first, dtype=torch.bool, device=indices.device)
        others = hidden.scatter_(-1, indices, False).nonzero()[:, 1].view(heads, -1)
        self.waiting = self.window_attention, self.accumulated_attention
        self.parked = others.shape[1]
        self.used = self.unrotated = first + m
        self._move(first + torch.cat((indices, others), -1), self._seen_and_parked(first))

    def unpark(self, first: int) -> None:
        """Put the parked entries back among the others, in the order of the source."""
        end = self.used + self.parked
        there = self._seen_and_parked(first)
        order = self.origin[:, there].argsort(dim=-1, stable=True)
        self._move(there[order], torch.arange(first, end, device=there.device))
        self.used = self.unrotated = end
        self.parked = 0
        # If entries left during the answer, the attention measured before no longer fits.
        self.window_attention, self.accumulated_attention = (
            t if t is not None and t.shape[-1] == end else None for t in self.waiting
        )
        self.waiting = None, None

    def _seen_and_parked(self, first: int) -> Tensor:
        places = torch.arange(self.capacity, device=self.origin.device)
        return torch.cat((places[first : self.used], places[self.capacity - self.parked :]))

    def _move(self, entries: Tensor, places: Tensor) -> None:
        """Write `entries` [K, n] of each head to `places`. Only one head is copied at a time."""
        # The order of the entries changes, so the measured attention no longer fits.
        self.window_attention = self.accumulated_attention = None
        for tensor in (self.keys, self.values, self.origin, *self.state.values()):
            for head, indices in zip(tensor, entries.to(tensor.device), strict=True):
                head.index_copy_(0, places.to(tensor.device), head[indices])

    def set_state_aside(self) -> None:
        self.aside = {name: t.clone() for name, t in self.state.items()}

    def set_head_state_aside(self) -> None:
        """Keep a copy of `head_state` for `restore_head_state`, unless one exists already."""
        if not self.head_aside:
            self.head_aside = {name: t.clone() for name, t in self.head_state.items()}

    def restore_head_state(self) -> None:
        """Restore `head_state` from its copy, if there is one."""
        self.head_state.update(self.head_aside)
        self.head_aside = {}

    def restore_state(self) -> None:
        """Restore `state` of the entries still held from its copy, if there is one."""
        for name, before in self.aside.items():
            self.state[name][:, : self.used] = before[:, : self.used]
        self.aside = {}

    def release_entries(self) -> None:
        """Free all tensors of the entries; the layer can no longer be used."""
        self.keys = self.values = self.keys.new_empty(0)
        self.origin = self.origin.new_empty(0)
        self.state, self.head_state, self.aside, self.head_aside = {}, {}, {}, {}
        self.window_attention = self.accumulated_attention = None
        self.waiting = self.before_answer = None, None
        self.used = self.unrotated = self.parked = 0

    def tensor_bytes(self) -> int:
        """Return the bytes of one entry in every head: keys, values, origin and state."""
        extra = self.origin.itemsize + sum(t.itemsize for t in self.state.values())
        return self.spec.entry_bytes + self.spec.heads * extra

    def head_bytes(self) -> int:
        return sum(t.nbytes for t in self.head_state.values())


def _sum(mine: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the sum on the device of `mine`, or `mine` if one of the two is None."""
    return mine if mine is None or other is None else mine + other.to(mine.device)


class HybridStore(StateStore, LayerStore):  # type: ignore[override]  # theirs differ in this
    def __init__(self, store: LayerStore, carries: StateSpec) -> None:
        StateStore.__init__(self, carries)
        self.__dict__.update(vars(store))
