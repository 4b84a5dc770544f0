"""Query heads, and the KV heads that groups of them share."""

from __future__ import annotations

from torch import Tensor


def grouped(x: Tensor, heads: int) -> Tensor:
    """[H, T, *] -> [K, H / K * T, *]: the queries that share a KV head, one after another."""
    return x.unflatten(0, (heads, -1)).flatten(1, 2)


def ungrouped(x: Tensor, query_heads: int) -> Tensor:
    """The inverse of `grouped`."""
    return x.unflatten(1, (query_heads // x.shape[0], -1)).flatten(0, 1)
