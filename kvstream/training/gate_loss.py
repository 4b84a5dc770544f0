"""The loss of one chunk with gradients for the gates, behind what a bounded cache holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DummyLayer

from kvstream.methods.edgeinfinite import Gate
from kvstream.model import hook
from kvstream.model.attention import Shape, reference
from kvstream.model.bounded import BoundedModel
from kvstream.model.cache import BoundedCache
from kvstream.model.recurrent import PARTS, StateStore

NAME = "kvstream_gate"
POSITIONS = 1024
"""Most tokens of a chunk whose loss is taken; more only costs memory."""


class _Passing(StateStore):
    """States of a recurrent layer, read and left alone."""

    def __init__(self, store: StateStore) -> None:
        super().__init__(store.carries)
        self.__dict__.update(vars(store))
        # Copies: the engine's own tensors know no gradients.
        for kept in PARTS.values():
            states = getattr(store, kept)
            setattr(self, kept, {i: None if t is None else t.clone() for i, t in states.items()})

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, *args: Any, **kwargs: Any
    ) -> Tensor:
        before = self.conv_states[state_idx]
        return conv_states if before is None else torch.cat((before, conv_states), dim=-1)

    def update_recurrent_state(self, recurrent_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return recurrent_states


class _Peek(Cache):
    """Stands in for the cache: what it holds is read, and nothing is added."""

    def __init__(self, cache: BoundedCache, gates: Mapping[int, Gate]) -> None:
        self.cache, self.gates = cache, gates
        states = {s.carries.index: _Passing(s) for s in cache.recurrent}
        layers: list[Any] = [states.get(i, DummyLayer()) for i in range(len(cache.layers))]
        super().__init__(layers=layers)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.cache.next_position

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.cache.next_position + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.cache.capacity


_peeking: list[_Peek] = []


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """As `hook.bounded_attention`, with gradients, and the new keys not in the cache."""
    peek = _peeking[-1]
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    store = peek.cache.store(layer)
    scratch = peek.cache.scratch(store.spec) if store.raw and store.spec.rotary else None
    keys = torch.cat((store.rotated(peek.cache.base, scratch), key[0]), dim=1)
    values = torch.cat((store.values[:, : store.used], value[0]), dim=1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = sliding_window or store.spec.sight
    if softcap is None and s_aux is None and (window is None or window >= keys.shape[1]):
        new, total = query.shape[2], keys.shape[1]
        mask = torch.ones(new, total, dtype=torch.bool, device=query.device).tril(total - new)
        out = functional.scaled_dot_product_attention(
            query, keys[None], values[None], attn_mask=mask, scale=scale,
            enable_gqa=query.shape[1] != keys.shape[0],
        )[0]  # fmt: skip
    else:
        out = reference(query[0], keys, values, Shape(scale, window, softcap, s_aux))[0]
    if layer in peek.gates:
        heads = store.heads
        out = peek.gates[layer](query[0], out, heads["memory"], heads["norm"])
    return out.transpose(0, 1)[None], None


AttentionInterface.register(NAME, _attention)


@contextmanager
def _peek(model: BoundedModel, peek: _Peek) -> Iterator[None]:
    model.model.set_attn_implementation(NAME)
    _peeking.append(peek)
    try:
        yield
    finally:
        _peeking.pop()
        model.model.set_attn_implementation(hook.NAME)


def chunk_loss(
    model: BoundedModel, cache: BoundedCache, ids: Sequence[int], gates: Mapping[int, Gate]
) -> Tensor:
    """Mean loss of the tokens after the first, each predicted behind what the cache holds."""
    start = cache.next_position
    inputs = torch.tensor([list(ids)], device=model.device)
    positions = torch.arange(start, start + len(ids), device=model.device)[None]
    rows = torch.arange(len(ids) - 1, device=model.device)
    if len(rows) > POSITIONS:
        rows = rows[torch.randperm(len(rows), device=model.device)[:POSITIONS].sort().values]
    peek = _Peek(cache, gates)
    with _peek(model, peek), torch.enable_grad():
        out = model.model(
            input_ids=inputs, position_ids=positions, past_key_values=peek, use_cache=True,
            logits_to_keep=rows,
        )  # fmt: skip
        return functional.cross_entropy(out.logits[0].float(), inputs[0, rows + 1])
