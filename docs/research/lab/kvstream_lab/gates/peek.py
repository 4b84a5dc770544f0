"""A forward pass after the entries of a bounded cache that does not change it, to train gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DummyLayer

from kvstream.methods.tools.gates import Gate
from kvstream.methods.tools.scoring import grouped, ungrouped
from kvstream.model import hook
from kvstream.model.attention import Shape, reference
from kvstream.model.bounded import BoundedModel, holding
from kvstream.model.cache import BoundedCache, in_place
from kvstream.model.recurrent import StateStore

NAME = "kvstream_peek"
POSITIONS = 1024
"""Maximum number of tokens of a chunk whose loss is computed. More would only need more memory."""

Mix = Callable[[int, Tensor, Tensor, Tensor, Mapping[str, Tensor], Shape], Tensor]
"""Like `CompressiveMemory.mix`, with the `Shape` of the layer's attention as last argument."""


class _Passing(StateStore):
    """States of a recurrent layer that are read, but not changed."""

    def __init__(self, store: StateStore) -> None:
        super().__init__(store.carries)
        # Copies, because the engine's own tensors have no gradients.
        self.resume({name: tensor.clone() for name, tensor in store.states().items()})

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, *args: Any, **kwargs: Any
    ) -> Tensor:
        before = self.conv_states[state_idx]
        return conv_states if before is None else torch.cat((before, conv_states), dim=-1)

    def update_recurrent_state(self, recurrent_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return recurrent_states


class _Peek(Cache):
    """A replacement for the cache: it reads the held entries and adds nothing."""

    def __init__(self, cache: BoundedCache, mix: Mix) -> None:
        self.cache, self.mix = cache, mix
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
    """Compute attention like `hook.bounded_attention`, with gradients, without caching new keys."""
    peek = _peeking[-1]
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    store = peek.cache.store(layer)
    with torch.inference_mode():  # as in use: the cache may have to rotate its keys
        held = peek.cache.attended(store)
    keys, values = (torch.cat(parts, dim=1) for parts in zip(held, (key[0], value[0]), strict=True))
    shape = hook.shape_of(query, store.spec.sight, scaling, sliding_window, softcap, s_aux)
    out = _with_gradients(query[0], keys, values, shape)
    if store.head_state and layer == store.spec.index:
        with torch.no_grad():  # gradients through lse are small, but would take much memory
            lse = reference(query[0], keys, values, shape)[1]
        out = peek.mix(layer, query[0], out, lse, store.head_state, shape)
    return out.transpose(0, 1)[None], None


AttentionInterface.register(NAME, _attention)


def _with_gradients(q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> Tensor:
    """Return the output of `reference`, which computes in place and so has no gradients."""
    new, total = q.shape[1], k.shape[1]
    seen = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new)
    if shape.window is not None:
        seen = seen.triu(total - new - shape.window + 1)
    if shape.softcap is None and shape.sinks is None:
        return functional.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=seen, scale=shape.scale,
            enable_gqa=q.shape[0] != k.shape[0],
        )[0]  # fmt: skip
    scores = ungrouped(grouped(q.float(), len(k)) @ k.float().mT * shape.scale, len(q))
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    scores = scores.masked_fill(~seen, -torch.inf)
    if shape.sinks is not None:
        sinks = shape.sinks.float()[:, None, None].expand(-1, new, 1)
        scores = torch.cat((scores, sinks), -1)
    weights = scores.softmax(-1)[..., :total].to(v.dtype)
    return ungrouped(grouped(weights, len(k)) @ v, len(q))


@contextmanager
def _peeking_at(model: BoundedModel, peek: _Peek) -> Iterator[None]:
    model.model.set_attn_implementation(NAME)
    _peeking.append(peek)
    try:
        yield
    finally:
        _peeking.pop()
        model.model.set_attn_implementation(hook.NAME)


def peek(
    model: BoundedModel, cache: BoundedCache, ids: Sequence[int], mix: Mix, rows: Tensor
) -> Tensor:
    """Return logits [n, V] of the n `rows` of `ids`, run after the entries of the cache.

    Add nothing to the cache. Call `mix` in each layer with compressive memory.
    """
    start = cache.next_position
    inputs = torch.tensor([list(ids)], device=model.device)
    positions = torch.arange(start, start + len(ids), device=model.device)[None]
    stand_in = _Peek(cache, mix)
    with _peeking_at(model, stand_in):
        out = model.model(
            input_ids=inputs, position_ids=positions, use_cache=True, logits_to_keep=rows,
            **holding(model.model, stand_in),
        )  # fmt: skip
    logits: Tensor = out.logits[0]
    return logits


def through(gates: Mapping[int, Gate]) -> Mix:
    """Return a `Mix` that reads compressive memory through `gates`, as in use without question."""

    def mix(
        layer: int,
        query: Tensor,
        out: Tensor,
        lse: Tensor,
        head_state: Mapping[str, Tensor],
        _: Shape,
    ) -> Tensor:
        mixed: Tensor = gates[layer](
            query, out, lse, head_state["memory"], head_state["norm"], False
        )
        return mixed

    return mix


def chunk_loss(
    model: BoundedModel, cache: BoundedCache, ids: Sequence[int], gates: Mapping[int, Gate]
) -> Tensor:
    """Return the mean loss of the tokens after the first, with gradients for the gates."""
    rows = torch.arange(len(ids) - 1, device=model.device)
    if len(rows) > POSITIONS:
        rows = rows[:: -(-len(rows) // POSITIONS)]
    with torch.enable_grad():
        logits = peek(model, cache, ids, through(gates), rows)
        targets = torch.tensor(list(ids), device=model.device)[rows + 1]
        return functional.cross_entropy(logits.float(), targets)
