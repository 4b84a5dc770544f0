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
from kvstream.model.attention import reference
from kvstream.model.bounded import BoundedModel
from kvstream.model.cache import BoundedCache, in_place
from kvstream.model.recurrent import StateStore

NAME = "kvstream_gate"
POSITIONS = 1024
"""Most tokens of a chunk whose loss is taken; more only costs memory."""


class _Passing(StateStore):
    """States of a recurrent layer, read and left alone."""

    def __init__(self, store: StateStore) -> None:
        super().__init__(store.carries)
        # Copies: the engine's own tensors know no gradients.
        self.resume({name: tensor.clone() for name, tensor in store.carried().items()})

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
        layers: dict[int, Any] = {store.spec.index: DummyLayer() for store in cache.stores}
        layers |= {states.carries.index: _Passing(states) for states in cache.recurrent}
        super().__init__(layers=in_place(layers))

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
    held = zip(peek.cache.attended(store), (key[0], value[0]), strict=True)
    keys, values = (torch.cat(parts, dim=1) for parts in held)
    shape = hook.shape_of(query, store.spec.sight, scaling, sliding_window, softcap, s_aux)
    new, total = query.shape[2], keys.shape[1]
    if shape.sinks is None and shape.plain(total):
        mask = torch.ones(new, total, dtype=torch.bool, device=query.device).tril(total - new)
        out = functional.scaled_dot_product_attention(
            query, keys[None], values[None], attn_mask=mask, scale=shape.scale,
            enable_gqa=query.shape[1] != keys.shape[0],
        )[0]  # fmt: skip
    else:
        out = reference(query[0], keys, values, shape)[0]
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
