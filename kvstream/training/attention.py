"""Causal attention for training on a CPU: PyTorch's fused kernel, without a mask.

Left to itself, transformers builds a mask when it is compiled, and the kernel then computes the
future too.
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
    """Attention as transformers calls it: query [b, h, t, d], key and value [b, k, t, d].

    Causal, without padding or cache: what training needs and nothing else.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (
        x[:, :, None].expand(-1, -1, groups, -1, -1).reshape(query.shape) for x in (key, value)
    )
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return out.transpose(1, 2), None


def register() -> str:
    """Make it known to transformers under the returned name."""
    AttentionInterface.register(NAME, causal_attention)
    return NAME
