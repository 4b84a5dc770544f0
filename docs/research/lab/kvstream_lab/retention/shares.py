"""Numbers about the tokens that heads hold: hit rate, overlap between heads, age."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PARTS = 8
"""Number of parts of the text read so far, for the places of the held tokens."""
BLOCK = 4096
"""Number of distinct tokens to process at once, which limits scratch memory."""


def hit_rate(attention: Tensor, origin: Tensor) -> float | None:
    """Return the share of the most attended tokens that a layer holds, averaged over its heads.

    Args:
        attention: [K, n], attention to each token of the text so far, from a full KV cache.
        origin: [K, m], ordinals of the tokens that each head holds.

    The most attended tokens are m, as many as a head holds (InfiniPot, section 3.4). Return None if
    a head holds all n tokens.
    """
    held = origin.shape[1]
    if held >= attention.shape[-1]:
        return None
    best = torch.zeros(attention.shape, dtype=torch.bool)
    best.scatter_(1, attention.topk(held, dim=-1, sorted=False).indices.cpu(), value=True)
    return float(best.gather(1, origin.long()).float().mean())


@dataclass(frozen=True)
class Overlap:
    """The overlap of the tokens that heads hold."""

    jaccard: float | None
    """Mean over all pairs of heads: tokens that both hold, divided by tokens that either holds."""
    shared: float | None
    """Tokens that all heads hold, divided by the mean number that a head holds. Both values are
    None for a single head, or if a head holds nothing."""


def overlap(origins: Sequence[Tensor]) -> Overlap:
    """Return the overlap of all heads of all layers.

    `origins` are the ordinals [K, m] that the heads of each layer hold; m may differ.
    """
    every, places = torch.cat([o.flatten() for o in origins]).unique(return_inverse=True)
    parts = places.split([o.numel() for o in origins])
    layers = [part.view_as(origin) for part, origin in zip(parts, origins, strict=True)]
    sizes = torch.cat([torch.full((len(o),), o.shape[1]) for o in origins]).double()
    heads = len(sizes)
    if heads < 2 or not bool(sizes.all()):
        return Overlap(None, None)
    both, common = torch.zeros(heads, heads, dtype=torch.float64), 0
    for first in range(0, len(every), BLOCK):
        held = torch.cat([_members(layer, first) for layer in layers])
        both += (held @ held.T).double()
        common += int(held.all(0).sum())
    either = sizes[:, None] + sizes - both
    pairs = torch.triu(torch.ones(heads, heads, dtype=torch.bool), 1)
    return Overlap(float((both / either)[pairs].mean()), common / float(sizes.mean()))


def _members(places: Tensor, first: int) -> Tensor:
    """Return [K, BLOCK] float32: 1 if a head holds the token; the first column is token `first`."""
    inside = (places >= first) & (places < first + BLOCK)
    held = torch.zeros(len(places), BLOCK + 1)
    held.scatter_(1, torch.where(inside, places - first, BLOCK), 1.0)
    return held[:, :BLOCK]


def parts(origin: Tensor, seen: int) -> Tensor:
    """Return [K, PARTS]: the shares of each head's tokens from each part of the text so far."""
    part = origin.long() * PARTS // seen
    counts = torch.zeros(len(origin), PARTS)
    counts.scatter_add_(1, part, torch.ones(part.shape))
    return counts / origin.shape[1]


def age(origin: Tensor, seen: int) -> float:
    """Return the mean distance of the held tokens from the end, as a share of the text so far.

    0 is the end of the text, 1 its beginning, 0.5 an even distribution.
    """
    return float((seen - 1 - origin.double()).mean() / max(1, seen - 1))


def spread(shares: Tensor) -> float:
    """Return the entropy of `parts`, averaged over heads: 1 is an even spread over the text."""
    entropy = -(shares * shares.clamp_min(1e-9).log()).sum(-1)
    return float((entropy / math.log(PARTS)).mean())
