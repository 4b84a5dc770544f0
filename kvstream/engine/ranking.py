"""Which tokens memory retains, and which of them the method would keep in a smaller memory."""

from __future__ import annotations

import torch
from torch import Tensor

from kvstream.engine.prefill import Prefill
from kvstream.errors import BudgetError
from kvstream.model.cache import BoundedCache
from kvstream.model.layer_store import PROMPT, LayerStore

LEAST = 64
"""Minimum number of entries that a ranking keeps in a head, because a share of a few sentences
would be only a word or two."""


def retained(cache: BoundedCache, compressible: list[LayerStore]) -> Tensor:
    """Return the sorted, distinct ordinals of the retained source tokens; int64, on the CPU."""
    found = [s.origin[:, : s.used].flatten() for s in compressible or cache.stores]
    # One transfer for all layers: reporters ask after every chunk, and each transfer waits.
    every = torch.cat([t.to(found[0].device) for t in found]).unique().cpu().long()
    return every[every != PROMPT]


def rank(prefill: Prefill, share: float) -> tuple[Tensor, Tensor]:
    """Return (ordinals, weights) of the tokens that would stay; see `Reader.rank`."""
    evictor, cache, catalyst = prefill.evictor, prefill.cache, prefill.catalyst
    if cache.held + len(catalyst) > cache.capacity:
        raise BudgetError(
            f"Ranking takes {len(catalyst)} entries, but memory holds {cache.held} and left no "
            f"room for it under its budget of {cache.capacity}."
        )
    if catalyst:
        prefill.measure_catalysts()
    # Sinks are protected from the first eviction on. Before it they are candidates like others.
    first = evictor.prompt if evictor.sinks is None else evictor.first_candidate
    chosen = []
    drawn = evictor.generator.get_state()
    groups = evictor.groups({s: s.used for s in evictor.layers})
    parts = [(group, slice(first, group[0].used)) for group in groups]
    for group, part, step in evictor.views(parts, 0, None):
        candidates = part.stop - first
        keep = max(min(candidates, LEAST), int(share * candidates))
        if evictor.method.evicts and keep < candidates:
            kept = evictor.select(step, keep).to(step.origin.device)
            chosen.append(step.origin.gather(-1, kept).flatten().cpu())
        else:
            chosen += [s.origin[:, first : s.used].flatten().cpu() for s in group]
    evictor.generator.set_state(drawn)  # ranking changes nothing
    return _weighed(torch.cat(chosen), sum(s.spec.heads for s in evictor.layers))


def retained_weights(cache: BoundedCache, compressible: list[LayerStore]) -> tuple[Tensor, Tensor]:
    """Return (ordinals, weights) of the retained source tokens; see `Reader.retained_weights`."""
    layers = compressible or cache.stores
    every = torch.cat([s.origin[:, : s.used].flatten().cpu() for s in layers])
    return _weighed(every[every != PROMPT], sum(s.spec.heads for s in layers))


def _weighed(origins: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Return the distinct ordinals among those of all heads, and the share of heads with each."""
    ordinals, counts = origins.unique(return_counts=True)
    weights = counts.float() / heads
    # The newest tokens always stay, so their share says nothing: they get the mean of the others.
    behind = torch.arange(len(ordinals) - 1, -1, -1)
    newest = (weights == 1) & (ordinals == ordinals[-1:] - behind)  # not the sinks
    newest = newest.flip(0).cumprod(0).flip(0).bool()
    weights[newest] = weights[~newest].mean() if not newest.all() else 1.0
    return ordinals.long(), weights
