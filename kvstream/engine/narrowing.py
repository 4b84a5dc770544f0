"""Narrow memory: one answer sees only the entries of some stretches of the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from kvstream.engine.eviction import Evictor
from kvstream.model.layer_store import LayerStore


@contextmanager
def in_sight(
    evictor: Evictor, begins: Sequence[int], order: Sequence[int], best: int
) -> Iterator[int]:
    """Let attention see only the prompt and the entries of the first `best` stretches of `order`.

    Yields the number of visible entries in the fullest head. Stretch i is the tokens from
    ``begins[i]`` to ``begins[i + 1]``. The other entries stay held, and are visible again
    afterwards.
    """
    cache, prompt = evictor.cache, evictor.prompt
    least = evictor.first_candidate - prompt  # as many as evicting while decoding protects
    places = torch.empty(len(order), dtype=torch.long)
    places[list(order)] = torch.arange(len(order))
    inner = torch.tensor(list(begins[1:]), dtype=torch.int32)
    seen = {s: _seen(s, prompt, inner, places, best, least) for s in evictor.layers}
    with cache.in_sight(prompt, seen):
        yield max(store.used for store in evictor.layers)


def _seen(
    store: LayerStore, prompt: int, begins: Tensor, places: Tensor, best: int, least: int
) -> Tensor:
    """Return which entries of a layer after the prompt are visible [K, m], in order.

    m is at least `least`.
    All heads of a layer see equally many entries. If heads hold different tokens, a head that holds
    fewer entries of the best stretches also sees entries of the next stretches in the order.
    """
    origin = store.origin[:, prompt : store.used].contiguous()
    stretch = torch.bucketize(origin, begins.to(origin.device), right=True)
    place = places.to(origin.device)[stretch]
    m = max(least, int((place < best).sum(-1).max()))
    return place.argsort(dim=-1, stable=True)[:, :m].sort(dim=-1).values
