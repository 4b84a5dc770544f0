"""Numbers about what heads hold: what they hit, what they have in common, how old it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PARTS = 8
"""Parts of the text that was read so far, for the age of what is held."""
BLOCK = 4096
"""Distinct tokens at once, so that little memory is needed however many there are."""


def hit_rate(attention: Tensor, origin: Tensor) -> float | None:
    """Share of the tokens with the most attention that a layer holds, averaged over its heads.

    Args:
        attention: [K, n], what each token of the text so far gets where all of it is held.
        origin: [K, m], ordinals of the tokens that each head holds.

    As many tokens count as a head holds (InfiniPot, section 3.4). None where it holds them all.
    """
    held = origin.shape[1]
    if held >= attention.shape[-1]:
        return None
    best = torch.zeros(attention.shape, dtype=torch.bool)
    best.scatter_(1, attention.topk(held, dim=-1, sorted=False).indices.cpu(), value=True)
    return float(best.gather(1, origin.long()).float().mean())


@dataclass(frozen=True)
class Overlap:
    """What heads hold in common."""

    jaccard: float | None
    """Mean over all pairs of heads of the tokens of both, as a share of those of either."""
    shared: float | None
    """Tokens that all heads hold, as a share of what one holds. None, both, of a single head."""


def overlaps(origins: Sequence[Tensor]) -> tuple[Overlap, list[Overlap]]:
    """The overlap of all heads of all layers, and that of the heads of each layer.

    `origins` are the ordinals [K, m] that the heads of each layer hold; m may differ.
    """
    every, places = torch.cat([o.flatten() for o in origins]).unique(return_inverse=True)
    layers = [
        part.view_as(origin)
        for part, origin in zip(
            places.split([o.numel() for o in origins]), origins, strict=True
        )
    ]  # fmt: skip
    counts = [len(layer) for layer in layers]
    both = torch.zeros(sum(counts), sum(counts), dtype=torch.float64)
    common, common_of_all = [0] * len(layers), 0
    for first in range(0, len(every), BLOCK):
        held = torch.cat([_members(layer, first) for layer in layers])
        both += (held @ held.T).double()
        common_of_all += int(held.all(0).sum())
        for i, part in enumerate(held.split(counts)):
            common[i] += int(part.all(0).sum())
    sizes = torch.cat([torch.full((len(o),), o.shape[1]) for o in origins]).double()
    found, start = [], 0
    for layer, count in zip(common, counts, strict=True):
        part = slice(start, start + count)
        found.append(_overlap(both[part, part], sizes[part], layer))
        start += count
    return _overlap(both, sizes, common_of_all), found


def _members(places: Tensor, first: int) -> Tensor:
    """[K, BLOCK] float32: 1 where a head holds a token from `first` on."""
    inside = (places >= first) & (places < first + BLOCK)
    held = torch.zeros(len(places), BLOCK + 1)
    held.scatter_(1, torch.where(inside, places - first, BLOCK), 1.0)
    return held[:, :BLOCK]


def _overlap(both: Tensor, sizes: Tensor, common: int) -> Overlap:
    heads = len(sizes)
    if heads < 2 or not bool(sizes.all()):
        return Overlap(None, None)
    either = sizes[:, None] + sizes - both
    pairs = torch.triu(torch.ones(heads, heads, dtype=torch.bool), 1)
    return Overlap(float((both / either)[pairs].mean()), common / float(sizes.mean()))


def parts(origin: Tensor, seen: int) -> Tensor:
    """[K, PARTS]: the share of what each head holds that is from each part of the text so far."""
    part = origin.long() * PARTS // seen
    counts = torch.zeros(len(origin), PARTS)
    counts.scatter_add_(1, part, torch.ones(part.shape))
    return counts / origin.shape[1]


def age(origin: Tensor, seen: int) -> float:
    """How far back the tokens that are held stand, as a share of the text so far: 0 is its end,
    1 its beginning, 0.5 an even choice."""
    return float((seen - 1 - origin.double()).mean() / max(1, seen - 1))


def spread(shares: Tensor) -> float:
    """How evenly heads hold all parts of the text: the entropy of `parts`, 1 being even."""
    entropy = -(shares * shares.clamp_min(1e-9).log()).sum(-1)
    return float((entropy / math.log(PARTS)).mean())
