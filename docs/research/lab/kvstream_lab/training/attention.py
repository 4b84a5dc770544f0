"""Causal attention for training on a CPU: PyTorch's fused kernel, without a mask.

By default, transformers builds a mask under compilation, and the kernel then also computes the
attention to future tokens.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "kvstream_causal"


def causal_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute attention for transformers: query [b, h, t, d], key and value [b, k, t, d].

    Attention is causal, without padding or cache. Training needs nothing else.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (
        x[:, :, None].expand(-1, -1, groups, -1, -1).reshape(query.shape) for x in (key, value)
    )
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return out.transpose(1, 2), None


def register() -> str:
    """Register `causal_attention` with transformers and return its name there."""
    AttentionInterface.register(NAME, causal_attention)
    return NAME
