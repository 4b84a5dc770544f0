"""The floor that bounded reading is measured against, and the plain caches that it replaces.

The floor runs the same chunks behind memories of the same sizes with the same fast attention, and
does nothing else: of what is there it keeps the first entries, where they lie and as they are
rotated. What a method costs beyond that is selection, evidence, catalysts and moving entries.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin

from kvstream.model import hook
from kvstream.model.attention import Shape, attend
from kvstream.model.bounded import BoundedModel


@dataclass(frozen=True)
class Clock:
    """Seconds on the wall, and of this process on all processors."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Clock:
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, earlier: Clock) -> Clock:
        return Clock(self.wall - earlier.wall, self.cpu - earlier.cpu)


FLOOR = "kvstream_floor"
SDPA = "sdpa"
"""transformers' own attention."""


def _plain_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The fast attention that kvstream uses, over what the cache hands out."""
    shape = Shape(scale=query.shape[-1] ** -0.5 if scaling is None else scaling)
    return attend(query[0], key[0], value[0], shape)[0].transpose(0, 1)[None], None


AttentionInterface.register(FLOOR, _plain_attention)


class _Layer(CacheLayerMixin):
    """A buffer that is written in place; `used` says how much of it counts."""

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity, self.used = capacity, 0
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the first update allocates."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Write [1, K, n, D] behind what is there; hands out all of it."""
        if self.k is None or self.v is None:
            self.k = key_states.new_empty(*_shape(key_states, self.capacity))
            self.v = value_states.new_empty(*_shape(value_states, self.capacity))
        end = self.used + key_states.shape[-2]
        self.k[:, :, self.used : end] = key_states
        self.v[:, :, self.used : end] = value_states
        self.used = end
        return self.k[:, :, :end], self.v[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.used + query_length, 0

    def get_seq_length(self) -> int:
        return self.used

    def get_max_length(self) -> int:
        return self.capacity


def _shape(states: Tensor, capacity: int) -> tuple[int, ...]:
    return (*states.shape[:2], capacity, states.shape[-1])


@contextmanager
def attention(model: BoundedModel, name: str) -> Iterator[None]:
    """The model computes attention by `name` inside, and kvstream's way again afterwards."""
    model.model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.model.set_attn_implementation(hook.NAME)


@torch.inference_mode()
def read_floor(
    model: BoundedModel, ids: Sequence[int], steps: Sequence[tuple[int, int]], name: str = FLOOR
) -> Clock:
    """Seconds for `ids` in chunks; `steps` are (chunk, entries of memory afterwards)."""
    held, most = 0, 0
    for chunk, memory in steps:
        most, held = max(most, held + chunk), min(memory, held + chunk)
    layers = [_Layer(most) for _ in model.layers]
    cache = Cache(layers=list(layers))
    run = model.model.base_model if model.head_is_plain else model.model
    tokens = torch.tensor([list(ids)], device=model.device)
    with attention(model, name):
        started = Clock.now()
        at = 0
        for chunk, memory in steps:
            part = tokens[:, at : at + chunk]
            first = layers[0].used
            positions = torch.arange(first, first + part.shape[1], device=model.device)[None]
            run(input_ids=part, position_ids=positions, past_key_values=cache, use_cache=True)
            at += chunk
            for layer in layers:
                layer.used = min(layer.used, memory)
        wait(model.device)
        return Clock.now() - started


@torch.inference_mode()
def read_plain(model: BoundedModel, ids: Sequence[int], chunk: int | None) -> tuple[Clock, int]:
    """Seconds with transformers' growing cache, and the bytes it ends with.

    `chunk`: tokens a forward pass; None is all at once.
    """
    tokens = torch.tensor([list(ids)], device=model.device)
    with attention(model, SDPA):
        cache = DynamicCache(config=model.model.config)
        started = Clock.now()
        for part in tokens.split(chunk or tokens.shape[1], dim=1):
            model.model(input_ids=part, past_key_values=cache, use_cache=True, logits_to_keep=1)
        wait(model.device)
        spent = Clock.now() - started
    layers: Any = cache.layers
    size = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
    return spent, size


def wait(device: torch.device) -> None:
    """Until a GPU has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
