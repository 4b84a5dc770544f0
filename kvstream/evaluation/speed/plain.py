"""transformers' growing cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from kvstream.evaluation.records import Record
from kvstream.evaluation.speed.floor import SDPA, attention, held_bytes
from kvstream.evaluation.speed.timing import Stopwatch, answer
from kvstream.model.bounded import BoundedModel, holding


@torch.inference_mode()
def read_plain(
    model: BoundedModel,
    ids: Sequence[int],
    chunk: int | None,
    question: Sequence[int],
    tokens: int,
) -> Record:
    """Read with a cache that holds everything. `chunk`: tokens per forward pass; None is all."""
    cache = DynamicCache(config=model.model.config)

    def logits(part: Tensor) -> Tensor:
        passed = holding(model.model, cache)
        out = model.model(input_ids=part, use_cache=True, logits_to_keep=1, **passed)
        return out.logits[0, -1]

    text = torch.tensor([list(ids)], device=model.device)
    with attention(model, SDPA):
        watch = Stopwatch(model.device)
        for part in text.split(chunk or text.shape[1], dim=1):
            logits(part)
        watch.has_read()
        layers: Any = [cache.layers[spec.index] for spec in model.layers]
        size = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
        size += held_bytes(model, 0)
        answer(
            lambda more: logits(torch.tensor([list(more)], device=model.device)),
            question,
            tokens,
            watch,
        )
    return {**watch.record(), "peak_kv_tokens": len(ids), "peak_kv_bytes": size}
