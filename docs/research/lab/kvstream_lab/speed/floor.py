"""The floor that bounded reading is compared with.

The floor runs the same chunks after memories of the same sizes with the same fast attention, and
does nothing else: it keeps the first entries where they are, with their rotation. A method's
additional cost is that of selection, evidence, catalysts and moving entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from kvstream.errors import UnsupportedModelError
from kvstream.evaluation.records import Record
from kvstream.evaluation.speed.systems import SDPA, Kind, System, Task, attention
from kvstream.evaluation.speed.timing import Stopwatch, answer
from kvstream.model.attention import Shape, attend
from kvstream.model.bounded import BoundedModel, holding
from kvstream.model.cache import in_place
from kvstream.model.layer_store import BufferLayer
from kvstream.model.recurrent import StateStore

FLOOR = "kvstream_floor"
FULL_CHUNK = 8192


def _plain_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute the fast attention of kvstream over all entries that the cache returns."""
    shape = Shape(scale=query.shape[-1] ** -0.5 if scaling is None else scaling)
    out = attend(query[0].to(key.dtype), key[0], value[0], shape)[0]
    return out.to(query.dtype).transpose(0, 1)[None], None


AttentionInterface.register(FLOOR, _plain_attention)


class _Layer(BufferLayer):
    """A buffer that is written in place; the first update allocates it."""

    def __init__(self, capacity: int, dtype: torch.dtype) -> None:
        super().__init__(capacity)
        self.dtype = dtype
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Write [1, K, n, D] after the valid entries; return all of them."""
        if self.k is None or self.v is None:
            self.k, self.v = (
                states.new_empty(
                    *states.shape[:2], self.capacity, states.shape[-1], dtype=self.dtype
                )
                for states in (key_states, value_states)
            )
        end = self.used + key_states.shape[-2]
        self.k[:, :, self.used : end] = key_states
        self.v[:, :, self.used : end] = value_states
        self.used = end
        return self.k[:, :, :end], self.v[:, :, :end]


def beside_states(model: BoundedModel, layers: Sequence[Any]) -> list[Any]:
    """Return attention and state layers in order. Raise UnsupportedModelError for both in one."""
    every = {spec.index: layer for spec, layer in zip(model.layers, layers, strict=True)}
    states = {spec.index: StateStore(spec) for spec in model.states}
    if every.keys() & states.keys():
        raise UnsupportedModelError(
            f"The layers of {model.name} attend and carry a state at once; `bench speed` has no "
            "floor for them. `kvstream ask` shows how fast it reads."
        )
    return in_place(every | states)


def _row(model: BoundedModel, ids: Sequence[int]) -> Tensor:
    return torch.tensor([list(ids)], device=model.device)


@torch.inference_mode()
def read_floor(
    model: BoundedModel,
    ids: Sequence[int],
    steps: Sequence[tuple[int, int]],
    question: Sequence[int],
    tokens: int,
    name: str = FLOOR,
) -> Record:
    """Read `ids` in `steps` (chunk, entries after it), then write `tokens` tokens."""
    held, most = 0, 0
    for chunk, memory in steps:
        most, held = max(most, held + chunk), min(memory, held + chunk)
    size = max(most, steps[-1][1] + len(question) + tokens)
    # transformers' own attention takes keys of the type of the queries.
    dtype = model.attention_dtype if name == FLOOR else model.dtype
    layers = [_Layer(size, dtype) for _ in model.layers]
    cache = Cache(layers=beside_states(model, layers))

    def forward(part: Tensor) -> Tensor:
        """Return hidden states [n, d], or logits if the output layer is not plain."""
        first = layers[0].used
        positions = torch.arange(first, first + part.shape[1], device=model.device)[None]
        run = model.model.base_model if model.head_is_plain else model.model
        passed = holding(run, cache)
        out = run(input_ids=part, position_ids=positions, use_cache=True, **passed)
        return (out.last_hidden_state if model.head_is_plain else out.logits)[0]

    def logits(more: Sequence[int]) -> Tensor:
        return model.logits(forward(_row(model, more))[-1:])[0]

    text = _row(model, ids)
    with attention(model, name):
        watch = Stopwatch(model.device)
        at = 0
        for chunk, memory in steps:
            forward(text[:, at : at + chunk])
            at += chunk
            for layer in layers:
                layer.used = min(layer.used, memory)
        watch.has_read()
        answer(logits, question, tokens, watch)
    return {
        **watch.record(), "peak_kv_tokens": most, "peak_kv_bytes": held_bytes(model, most, dtype),
    }  # fmt: skip


def held_bytes(model: BoundedModel, entries: int, dtype: torch.dtype | None = None) -> int:
    """Return the bytes of `entries` entries in every layer, plus those of the recurrent states.

    The caches of the lab hold entries as they are computed (`dtype` None), or as the fast
    attention reads them, unlike kvstream's, which may convert them.
    """
    each = sum(spec.entry_bytes for spec in model.storing(dtype).layers)
    return entries * each + sum(spec.bytes for spec in model.states)


def _floor(_: System, task: Task, name: str = FLOOR) -> Record:
    return read_floor(task.session.model, task.ids, task.steps, task.question, task.tokens, name)


def _full(_: System, task: Task) -> Record:
    """Run the floor's loop with its fast attention, and drop nothing."""
    tokens = len(task.ids)
    steps = [(min(FULL_CHUNK, tokens - at), tokens) for at in range(0, tokens, FULL_CHUNK)]
    return read_floor(task.session.model, task.ids, steps, task.question, task.tokens)


KINDS = {
    "floor": Kind(_floor, "floor", of_case=True),
    "floor-sdpa": Kind(partial(_floor, name=SDPA), "floor with SDPA", of_case=True),
    "full": Kind(_full, "all of it, kvstream's attention", grows=("",)),
}
