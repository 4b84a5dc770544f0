"""A part of memory in sight: the entries of some stretches of the source, for one answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from kvstream.engine.eviction import Evictor
from kvstream.model.cache import LayerStore


@contextmanager
def in_sight(
    evictor: Evictor, begins: Sequence[int], order: Sequence[int], best: int
) -> Iterator[int]:
    """Attention sees the prompt and the entries of the `best` first stretches of `order`; yields
    how many entries of the fullest head that are.

    Stretch i is the tokens from ``begins[i]`` to ``begins[i + 1]``. All entries stay held, and in
    the end all are in sight again.
    """
    cache, prompt = evictor.cache, evictor.prompt
    least = evictor.first_candidate - prompt  # as many as never leave in the middle of an answer
    places = torch.empty(len(order), dtype=torch.long)
    places[list(order)] = torch.arange(len(order))
    inner = torch.tensor(list(begins[1:]), dtype=torch.int32)
    seen = {s: _seen(s, prompt, inner, places, best, least) for s in evictor.layers}
    with cache.in_sight(prompt, seen):
        yield max(store.used for store in evictor.layers)


def _seen(
    store: LayerStore, prompt: int, begins: Tensor, places: Tensor, best: int, least: int
) -> Tensor:
    """Which of a layer's entries behind the prompt are in sight [K, m], in order; `least` at least.

    All heads of a layer see equally many. Where heads kept different tokens, some hold fewer of the
    best stretches than others, and see entries of those that follow in the order as well.
    """
    origin = store.origin[:, prompt : store.used].contiguous()
    stretch = torch.bucketize(origin, begins.to(origin.device), right=True)
    place = places.to(origin.device)[stretch]
    m = max(least, int((place < best).sum(-1).max()))
    return place.argsort(dim=-1, stable=True)[:, :m].sort(dim=-1).values
