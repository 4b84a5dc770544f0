"""Keep weights in 16 bits and widen them to float32 when the model needs them.

This is for CPUs without instructions for 16-bit products, if float32 weights do not fit in memory.
Each number is converted exactly, so the results are those of float32 weights. Linear layers are
widened and multiplied in blocks of rows that fit in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HALF = (torch.bfloat16, torch.float16)
SMALL = 1 << 16
"""Weights of up to this many numbers (norms, biases) are widened once, when the model is loaded."""
BLOCK = 1 << 20
"""Numbers of a linear layer to widen at once."""


def widen(model: Any) -> None:
    """Let a model compute in float32 while its large weights stay in 16 bits."""
    room = torch.empty(BLOCK)
    modules: list[Any] = list(model.modules())
    for module in modules:
        large = _small_ones_widened(module)
        if not large:
            continue
        if isinstance(module, nn.Embedding):
            module.padding_idx = None  # only for training, and it may be beyond the rows looked up
            own = type(module).forward
            module.forward = partial(_looked_up, module, own)  # type: ignore[method-assign]
        elif type(module).forward is nn.Linear.forward:
            module.forward = partial(_multiplied, module, room)
        else:
            module.forward = partial(_whole, module, type(module).forward, large)


def _small_ones_widened(module: nn.Module) -> list[str]:
    """Widen a module's own small weights and its buffers; return the names of its large weights."""
    large = []
    for name, weight in module.named_parameters(recurse=False):
        if weight.dtype in HALF and weight.numel() > SMALL:
            large.append(name)
        elif weight.dtype in HALF:
            weight.data = weight.data.float()
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.dtype in HALF:
            module._buffers[name] = buffer.float()
    return large


def _multiplied(module: nn.Linear, room: Tensor, x: Tensor) -> Tensor:
    """Apply a linear layer to x [..., in] in float32; return [..., out]."""
    weight = module.weight
    rows = max(1, room.numel() // weight.shape[1])
    out = None
    for first in range(0, weight.shape[0], rows):
        part = weight[first : first + rows]
        wide = room[: part.numel()].view(part.shape) if part.numel() <= room.numel() else None
        wide = part.float() if wide is None else wide.copy_(part)
        product = F.linear(x, wide)
        if len(part) == len(weight):
            out = product
            break
        if out is None:
            out = product.new_empty(*x.shape[:-1], weight.shape[0])
        out[..., first : first + rows] = product
    assert out is not None
    return out if module.bias is None else out.add_(module.bias)


def _looked_up(module: Any, own: Callable[..., Tensor], ids: Tensor) -> Tensor:
    """Apply an embedding with only the rows of `ids` widened."""
    table = module.weight
    rows = nn.Parameter(table[ids.flatten()].float(), requires_grad=False)
    module._parameters["weight"] = rows
    try:
        return own(module, torch.arange(ids.numel(), device=ids.device).view(ids.shape))
    finally:
        module._parameters["weight"] = table


def _whole(
    module: Any, own: Callable[..., Any], large: list[str], *args: Any, **kwargs: Any
) -> Any:
    """Apply another kind of module (experts of a mixture) with all its large weights widened."""
    kept = {name: getattr(module, name) for name in large}
    try:
        for name, weight in kept.items():
            module._parameters[name] = nn.Parameter(weight.float(), requires_grad=False)
        return own(module, *args, **kwargs)
    finally:
        module._parameters.update(kept)
