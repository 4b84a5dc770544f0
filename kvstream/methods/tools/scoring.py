"""What most methods share: pooling of scores along the source, and the best `keep` of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstream.methods.base import Step, setting

AT_ONCE = 1 << 20
"""Places of the source in which scores are pooled at once, so that little memory is needed."""
WIDEST = 1024
"""The widest pooling that a setting may ask for. Time grows with up to the square of the width:
this one takes half a second a head at worst, one four times as wide several seconds."""


def add_attention(step: Step) -> None:
    """Add the attention of a chunk to the entries' sum, their tensor ``attention`` [G, K, n]."""
    attention = step.state["attention"]
    attention[..., attention.shape[-1] - step.new :] = 0  # their places had other owners
    if step.accumulated_attention is not None:
        attention += step.accumulated_attention


def pooling_width(default: int, help: str) -> Any:
    """A method's setting for the `width` of `pool`."""
    return setting(default, help, least=1, most=WIDEST)


def on_host(tensor: Tensor) -> bool:
    """Whether reading a value is free: a GPU would first finish all that was asked of it."""
    return tensor.device.type == "cpu"


def noise(shape: torch.Size, generator: torch.Generator, device: torch.device) -> Tensor:
    """Random numbers from 0 to 1, the same on every device."""
    drawn = torch.rand(shape, generator=generator)
    # The copy waits for no GPU; but MPS might read what it copies when it is no longer there.
    return drawn.to(device, non_blocking=device.type != "mps")


def pool(scores: Tensor, origin: Tensor, width: int) -> Tensor:
    """The maximum of the scores over entries whose tokens are near each other in the source.

    Args:
        scores: [..., n] float32.
        origin: [..., n] strictly increasing ordinals of the entries' tokens; those of an answer,
            which are all the same, count as neighbors.
        width: window in source tokens, centered; an even one reaches one token further back than
            on. 1 leaves the scores alone.

    Entries that lie side by side in the cache but not in the source do not touch each other:
    memory is full of gaps, and a score must not leak over one.
    """
    reach = width // 2
    if reach < 1 or not scores.numel():
        return scores
    flat, ordinals = scores.reshape(-1, scores.shape[-1]), origin.reshape(-1, scores.shape[-1])
    # The scores laid out as in the source, but for gaps wider than the window, which are cut short.
    gaps = (ordinals[:, 1:] - ordinals[:, :-1]).clamp_(1, reach + 1)
    place = F.pad(gaps, (1, 0)).cumsum(-1)
    # Or as many places as there can be, which are worth less than the wait for their number.
    most = int(place[:, -1].max()) if on_host(place) else gaps.shape[-1] * (reach + 1)
    length = most + 1
    pooled = []
    rows = max(1, AT_ONCE // length)
    for some, places in zip(flat.split(rows), place.split(rows), strict=True):
        laid = some.new_full((len(some), length), torch.finfo(some.dtype).min)
        laid.scatter_(1, places, some)
        highest = F.max_pool1d(laid[:, None], width, stride=1, padding=reach)[:, 0]
        pooled.append(highest.gather(1, places))
    return torch.cat(pooled).view(scores.shape)


def together(scores: Sequence[Tensor], origins: Sequence[Tensor]) -> list[Tensor]:
    """For each entry the sum of the scores of its token over all heads and layers that hold it.

    Args:
        scores: [G, K, n] float32 of some layers, then of others; sizes and devices may differ.
        origins: [G, K, n] ordinals of the entries' tokens.

    Returns the sums in the shapes and on the devices of `scores`.
    """
    if not any(s.numel() for s in scores):
        return list(scores)
    device = scores[0].device
    tokens, order = torch.cat([o.flatten().to(device) for o in origins]).sort(stable=True)
    # `unique` would do, but how many tokens there are is nothing that a GPU could tell at once.
    ranks = F.pad(tokens[1:] != tokens[:-1], (1, 0)).cumsum(0)
    place = torch.empty_like(ranks).scatter_(0, order, ranks)
    flat = torch.cat([s.flatten().to(device) for s in scores])
    sums = flat.new_zeros(len(place)).index_add_(0, place, flat)[place]
    parts = sums.split([s.numel() for s in scores])
    return [p.view(s.shape).to(s.device) for p, s in zip(parts, scores, strict=True)]


def unlikeness(keys: Tensor) -> Tensor:
    """[..., n] float32: how far each of the keys [..., n, D] points away from their mean (KeyDiff).

    With the anchor ``a = mean_j k_j / |k_j|`` the score is ``-cos(k_j, a)``, but for a factor that
    all scores of a head share.
    """
    keys = keys.float()
    inverse = keys.norm(dim=-1).clamp_min_(1e-12).reciprocal_()
    # The sum of the normalized keys points where their mean does; its length changes nothing.
    anchor = inverse[..., None, :] @ keys
    return (keys @ anchor.transpose(-1, -2))[..., 0] * inverse.neg_()


def observed(step: Step, width: int) -> Tensor:
    """The attention that the newest queries pay to each entry, pooled: float32 [G, K, n]."""
    assert step.window_attention is not None
    return pool(step.window_attention, step.origin, width)


def latest(step: Step, keep: int) -> Tensor:
    """The `keep` newest candidates, the same in all heads: int64 [G, K, keep]."""
    n = step.origin.shape[-1]
    indices = torch.arange(n - keep, n, device=step.origin.device)
    return indices.expand(*step.origin.shape[:-1], keep)


def best(scores: Tensor, keep: int, *, recent: int = 0) -> Tensor:
    """Indices [..., keep] of the highest scores and of the newest `recent`, sorted by age.

    Args:
        scores: [..., n] float32, higher is better; ``keep < n``.
        recent: newest entries that stay whatever their score (at most `keep` of them).
    """
    n = scores.shape[-1]
    recent = min(recent, keep)
    chosen = scores[..., : n - recent].topk(keep - recent, dim=-1, sorted=False).indices
    newest = torch.arange(n - recent, n, device=scores.device).expand(*scores.shape[:-1], recent)
    return torch.cat((chosen, newest), dim=-1).sort(dim=-1).values
