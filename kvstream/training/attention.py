"""Causal attention for training on a CPU, twice as fast there as PyTorch's fused kernel.

The fused kernel reaches a quarter of the speed of matrix products on CPUs with bfloat16
instructions but no tiles.  Here the scores of a block of queries are formed by batched products
and kept for the backward pass, only up to the diagonal block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "kvstream_blocks"
BLOCK = 256


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        n, length, _ = query.shape
        mask = torch.full((BLOCK, BLOCK), float("-inf"), dtype=query.dtype).triu(1)
        out = torch.empty_like(query)
        kept = []
        for start in range(0, length, BLOCK):
            end = min(start + BLOCK, length)
            scores = torch.baddbmm(
                query.new_zeros(()).expand(n, end - start, end),
                query[:, start:end],
                key[:, :end].transpose(1, 2),
                beta=0.0,
                alpha=scale,
            )
            scores[:, :, start:] += mask[: end - start, : end - start]
            weights = torch.softmax(scores, -1)
            out[:, start:end] = torch.bmm(weights, value[:, :end])
            kept.append(weights)
        ctx.save_for_backward(query, key, value, out, *kept)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, *kept = ctx.saved_tensors
        d_query = torch.empty_like(query)
        d_key = torch.zeros_like(key)
        d_value = torch.zeros_like(value)
        product = (gradient * out).sum(-1, keepdim=True)
        for index, weights in enumerate(kept):
            start = index * BLOCK
            end = start + weights.shape[1]
            part = gradient[:, start:end]
            d_value[:, :end] += torch.bmm(weights.transpose(1, 2), part)
            d_scores = torch.bmm(part, value[:, :end].transpose(1, 2))
            d_scores.sub_(product[:, start:end]).mul_(weights)
            torch.bmm(d_scores, key[:, :end], out=d_query[:, start:end])
            d_key[:, :end] += torch.bmm(d_scores.transpose(1, 2), query[:, start:end])
        return d_query.mul_(ctx.scale), d_key.mul_(ctx.scale), d_value, None


def block_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: query [b, h, t, d], key and value [b, k, t, d].

    Causal, without padding or cache: what training needs and nothing else.
    """
    batch, heads, length, size = query.shape
    groups = heads // key.shape[1]
    key, value = (
        x[:, :, None].expand(-1, -1, groups, -1, -1).reshape(batch * heads, length, size)
        for x in (key, value)
    )
    scale = scaling if scaling is not None else size**-0.5
    out = _Blocks.apply(query.reshape(batch * heads, length, size), key, value, scale)
    return out.view(batch, heads, length, size).transpose(1, 2), None


def register() -> str:
    """Make it known to transformers under the returned name."""
    AttentionInterface.register(NAME, block_attention)
    return NAME
