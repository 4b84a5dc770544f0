"""What an answer looked at: the attention of its tokens to what memory holds, by passages.

A citation says where the model looked when it chose the words of the answer. It is no proof that
the passage says so (docs/citations.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvstream.engine import Reader
from kvstream.model.attention import Wanted
from kvstream.model.cache import PROMPT
from kvstream.passages import Passage

CITED = 5
"""Passages that are cited at most."""
LEAST_WEIGHT = 0.01
"""A passage that gets less of the attention to the text is not cited."""


def attended(
    reader: Reader, question: Sequence[int], answer: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """(ordinals, weights): the source tokens that memory holds and what the answer paid to each.

    Question and answer go through the model once more, in one pass, and leave memory as it was;
    what the budget has no room for at the answer's end is left out. Measured are the queries that
    chose the answer's tokens: the question's last one and those of the answer but its last.
    ordinals int64 [n], sorted and distinct; weights float32 [n] of the sum 1. Both empty where
    nothing was answered.
    """
    room = reader.sizes.budget - reader.cache.used - len(question)
    said = list(answer[: room + 1])
    if not said or not question or room < 0:
        return torch.empty(0, dtype=torch.int64), torch.empty(0)
    ends = [store.used for store in reader.cache.layers]
    for store in reader.cache.layers:
        store.rows = store.columns = None
    try:
        wanted = Wanted((len(said),), reduce="max")
        reader.model.forward([*question, *said[:-1]], reader.cache, wanted)
        found = [
            _of_source(store.origin[:, :end], store.rows[:, :end] / len(said))
            for store, end in zip(reader.cache.layers, ends, strict=True)
            if store.rows is not None
        ]
    finally:
        reader.cache.cut(ends)
    ordinals, places = torch.cat([o for o, _ in found]).unique(return_inverse=True)
    # Squares, so that a head that looks at one place outweighs many that look everywhere.
    weights = torch.zeros(len(ordinals)).index_add_(
        0, places, torch.cat([w for _, w in found]) ** 2
    )
    return ordinals, weights / weights.sum().clamp_min(1e-30)


def _of_source(origin: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Entries [K, N] of the source alone, on the CPU: ordinals int64 and weights float32, flat."""
    own = origin != PROMPT
    return origin[own].long().cpu(), weights[own].float().cpu()


def best(passages: Sequence[Passage], most: int = CITED) -> list[Passage]:
    """The heaviest passages first; those that hardly weigh anything are left out."""
    ranked = sorted(passages, key=lambda p: (-p.weight, p.start))[:most]
    return [p for p in ranked if p.weight >= LEAST_WEIGHT]


def as_json(passage: Passage, names: Sequence[str], bases: Sequence[int]) -> dict[str, Any]:
    """One citation: bytes count from the beginning of its source, as decompressed."""
    base = bases[passage.source] if passage.source < len(bases) else 0
    return {
        "source": names[passage.source],
        "byte_start": passage.start - base,
        "byte_end": passage.end - base,
        "line_start": passage.line_start,
        "line_end": passage.line_end,
        "text": passage.text,
        "weight": round(float(np.float64(passage.weight)), 4),
    }
