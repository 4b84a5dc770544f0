"""Functions that methods share: pool scores along the source, select the best, group heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstream.methods.base import Step, setting

AT_ONCE = 1 << 20
"""Places of the source to pool at once, to limit scratch memory."""
WIDEST = 1024
"""Maximum width of pooling in a setting. Time grows with up to the square of the width: this width
takes at most half a second per head, a width four times as large several seconds."""


def pooling_width(
    default: int, help: str = "width of the max pooling of the scores, in source tokens; 1: none"
) -> Any:
    """Return a setting for the `width` of `pool`."""
    return setting(default, help, least=1, most=WIDEST)


def on_host(tensor: Tensor) -> bool:
    """Return whether a value can be read without waiting for the queued work of a GPU."""
    return tensor.device.type == "cpu"


def noise(shape: torch.Size, generator: torch.Generator, device: torch.device) -> Tensor:
    """Return random numbers from 0 to 1, the same on every device."""
    numbers = torch.rand(shape, generator=generator)
    # Do not wait for the GPU to copy; but MPS may read the source after it is freed.
    return numbers.to(device, non_blocking=device.type != "mps")


def pool(scores: Tensor, origin: Tensor, width: int) -> Tensor:
    """Return the maximum of the scores over entries whose tokens are neighbors in the source.

    Args:
        scores: [..., n] float32.
        origin: [..., n] strictly increasing ordinals of the entries' tokens; those of an answer,
            which are all the same, count as neighbors.
        width: centered window in source tokens; an even one reaches one token further back than
            forward. 1 does not change the scores.

    Distance counts in the source, not in the cache: memory is full of gaps, and a score must not
    leak across a gap.
    """
    reach = width // 2
    if reach < 1 or not scores.numel():
        return scores
    flat, ordinals = scores.reshape(-1, scores.shape[-1]), origin.reshape(-1, scores.shape[-1])
    # Lay the scores out as in the source, but shorten gaps wider than the window.
    gaps = (ordinals[:, 1:] - ordinals[:, :-1]).clamp_(1, reach + 1)
    place = F.pad(gaps, (1, 0)).cumsum(-1)
    # On a GPU, use the upper bound: it costs less than waiting for the exact number.
    most = int(place[:, -1].max()) if on_host(place) else gaps.shape[-1] * (reach + 1)
    length = most + 1
    parts = []
    rows = max(1, AT_ONCE // length)
    for some, places in zip(flat.split(rows), place.split(rows), strict=True):
        laid = some.new_full((len(some), length), torch.finfo(some.dtype).min)
        laid.scatter_(1, places, some)
        highest = F.max_pool1d(laid[:, None], width, stride=1, padding=reach)[:, 0]
        parts.append(highest.gather(1, places))
    return torch.cat(parts).view(scores.shape)


def together(scores: Sequence[Tensor], origins: Sequence[Tensor]) -> list[Tensor]:
    """Return, for each entry, the sum of the scores of its token over all heads that hold it.

    Args:
        scores: [G, K, n] float32 for each group of layers; sizes and devices may differ.
        origins: [G, K, n] ordinals of the entries' tokens, for each group.

    Returns the sums in the shapes and on the devices of `scores`.
    """
    if not any(s.numel() for s in scores):
        return list(scores)
    device = scores[0].device
    tokens, order = torch.cat([o.flatten().to(device) for o in origins]).sort(stable=True)
    # `unique` would also work, but its size is only known after waiting for the GPU.
    ranks = F.pad(tokens[1:] != tokens[:-1], (1, 0)).cumsum(0)
    place = torch.empty_like(ranks).scatter_(0, order, ranks)
    flat = torch.cat([s.flatten().to(device) for s in scores])
    sums = flat.new_zeros(len(place)).index_add_(0, place, flat)[place]
    parts = sums.split([s.numel() for s in scores])
    return [p.view(s.shape).to(s.device) for p, s in zip(parts, scores, strict=True)]


def latest(step: Step, keep: int) -> Tensor:
    """Return the `keep` newest candidates, the same in all heads: int64 [G, K, keep]."""
    n = step.origin.shape[-1]
    indices = torch.arange(n - keep, n, device=step.origin.device)
    return indices.expand(*step.origin.shape[:-1], keep)


def best(scores: Tensor, keep: int, *, recent: int = 0) -> Tensor:
    """Return the indices [..., keep] of the highest scores and of the newest entries, by age.

    Args:
        scores: [..., n] float32, higher is better; ``keep < n``.
        recent: number of newest entries that stay with any score (at most `keep`).
    """
    n = scores.shape[-1]
    recent = min(recent, keep)
    top = scores[..., : n - recent].topk(keep - recent, dim=-1, sorted=False).indices
    newest = torch.arange(n - recent, n, device=scores.device).expand(*scores.shape[:-1], recent)
    return torch.cat((top, newest), dim=-1).sort(dim=-1).values


def grouped(x: Tensor, heads: int) -> Tensor:
    """Concatenate the queries that share a KV head: [H, T, *] -> [K, H / K * T, *]."""
    return x.unflatten(0, (heads, -1)).flatten(1, 2)


def ungrouped(x: Tensor, query_heads: int) -> Tensor:
    """Invert `grouped`."""
    return x.unflatten(1, (query_heads // x.shape[0], -1)).flatten(0, 1)
