"""What most methods share: pooling of scores along the source, and the best `keep` of them."""

from __future__ import annotations

import torch
from torch import Tensor


def pool(scores: Tensor, origin: Tensor, width: int, *, how: str = "max") -> Tensor:
    """Scores pooled over entries whose tokens are neighbours in the source.

    Args:
        scores: [..., n] float32.
        origin: [..., n] strictly increasing ordinals of the entries' tokens.
        width: window in source tokens, centred; 1 leaves the scores alone.
        how: ``max`` or ``mean`` (over the neighbours that are still there).

    Entries that lie side by side in the cache but not in the source do not touch each other:
    memory is full of gaps, and a score must not leak over one.
    """
    reach = min(width // 2, scores.shape[-1] - 1)
    if reach < 1:
        return scores
    pooled = scores.clone()
    count = torch.ones_like(scores) if how == "mean" else None
    # Ordinals increase strictly, so tokens within `reach` in the source are within it in the cache.
    for shift in range(1, reach + 1):
        near = origin[..., shift:] - origin[..., :-shift] <= reach
        left, right = pooled[..., :-shift], pooled[..., shift:]
        if count is None:
            floor = torch.finfo(scores.dtype).min
            torch.maximum(left, scores[..., shift:].masked_fill(~near, floor), out=left)
            torch.maximum(right, scores[..., :-shift].masked_fill(~near, floor), out=right)
        else:
            left += scores[..., shift:] * near
            right += scores[..., :-shift] * near
            count[..., :-shift] += near
            count[..., shift:] += near
    return pooled if count is None else pooled / count


def together(scores: Tensor, origin: Tensor) -> Tensor:
    """For each entry the sum of the scores of its token over all heads and layers that hold it.

    Args:
        scores: [G, K, n] float32.
        origin: [G, K, n] ordinals of the entries' tokens.
    """
    tokens, place = origin.unique(return_inverse=True)
    sums = scores.new_zeros(len(tokens)).index_add_(0, place.flatten(), scores.flatten())
    return sums[place]


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
