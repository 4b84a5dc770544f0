"""StreamingLLM as in its paper's own code, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from kvstream.evaluation.records import Record
from kvstream.evaluation.speed.systems import attention
from kvstream.evaluation.speed.timing import Stopwatch, answer
from kvstream.model.bounded import BoundedModel, holding
from kvstream.model.layer_store import BufferLayer, LayerSpec
from kvstream_lab.speed.floor import FLOOR, beside_states, held_bytes

SINKS = 4
"""Number of first tokens that StreamingLLM never drops."""
SAME_SPEED = 256
"""Tokens after memory is full until the rest may be extrapolated: they all cost the same."""


class _Window(BufferLayer):
    """The first tokens and the newest ones, as in the StreamingLLM paper's own code.

    Keys are stored unrotated, and at every token all of them are rotated to their places in the
    cache. Before a token that does not fit, the oldest one after the sinks is removed.
    """

    def __init__(self, spec: LayerSpec, capacity: int) -> None:
        super().__init__(capacity)
        self.spec = spec
        shape = (spec.heads, 0)
        self.k = torch.empty(*shape, spec.key_dim, dtype=spec.dtype, device=spec.device)
        self.v = torch.empty(*shape, spec.value_dim, dtype=spec.dtype, device=spec.device)

    def make_room(self) -> None:
        """Drop the oldest token after the sinks if the cache is full."""
        if self.used == self.capacity:
            self.used -= 1
            self.k = torch.cat((self.k[:, :SINKS], self.k[:, SINKS + 1 :]), 1)
            self.v = torch.cat((self.v[:, :SINKS], self.v[:, SINKS + 1 :]), 1)

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Add one token [1, K, 1, D], rotated to the next place; return all tokens."""
        raw, rotary = key_states[0], self.spec.rotary
        if rotary is not None:
            raw = rotary.unrotate(raw, self.used).to(raw.dtype)
        self.k = torch.cat((self.k, raw), 1)
        self.v = torch.cat((self.v, value_states[0]), 1)
        self.used += 1
        keys = self.k if rotary is None else rotary.rotate(self.k, 0).to(self.k.dtype)
        return keys[None], self.v[None]


@torch.inference_mode()
def read_token_by_token(
    model: BoundedModel,
    ids: Sequence[int],
    capacity: int,
    question: Sequence[int],
    tokens: int,
    limit_s: float,
) -> Record:
    """Read as StreamingLLM with a memory of `capacity` entries, one forward pass per token.

    After `limit_s` seconds the rest is extrapolated, if memory is full; then the record has
    ``measured_tokens``. Attention is the floor's.
    """
    layers = [_Window(spec, capacity) for spec in model.layers]
    cache = Cache(layers=beside_states(model, layers))

    def step(token: int) -> Tensor:
        for layer in layers:
            layer.make_room()
        place = torch.tensor([[layers[0].used]], device=model.device)
        out = model.model(
            input_ids=torch.tensor([[token]], device=model.device),
            position_ids=place,
            use_cache=True,
            **holding(model.model, cache),
        )
        return out.logits[0, -1]

    def logits(more: Sequence[int]) -> Tensor:
        return [step(token) for token in more][-1]

    found: Record = {}
    with attention(model, FLOOR):
        watch = Stopwatch(model.device)
        full: tuple[int, float] | None = None
        for count, token in enumerate(ids, 1):
            step(token)
            if full is None and count >= capacity:
                full = count, watch.seconds
            if full is not None and count - full[0] >= SAME_SPEED and watch.seconds > limit_s:
                each = (watch.seconds - full[1]) / (count - full[0])
                found = {"measured_tokens": count, "rest_s": each * (len(ids) - count)}
                break
        watch.has_read()
        answer(logits, question, tokens, watch)
    result = watch.record()
    rest = found.pop("rest_s", 0.0)
    result["cpu_s"] *= 1 + rest / result["prefill_s"]
    for key in ("prefill_s", "first_token_s", "total_s"):
        if key in result:
            result[key] += rest
    held = min(capacity, len(ids))
    return {
        **result, **found, "peak_kv_tokens": held, "peak_kv_bytes": held_bytes(model, held),
    }  # fmt: skip
