"""Query heads, grouped by the KV head that they share."""

from __future__ import annotations

from torch import Tensor


def grouped(x: Tensor, heads: int) -> Tensor:
    """Concatenate the queries that share a KV head: [H, T, *] -> [K, H / K * T, *]."""
    return x.unflatten(0, (heads, -1)).flatten(1, 2)


def ungrouped(x: Tensor, query_heads: int) -> Tensor:
    """Invert `grouped`."""
    return x.unflatten(1, (query_heads // x.shape[0], -1)).flatten(0, 1)
