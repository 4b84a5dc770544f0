"""Other ways to compute linear layers whose weights have 16 bits, on a CPU.

`widen` is for CPUs that are slow with 16-bit products, if float32 weights do not fit in memory: it
keeps weights in 16 bits and widens them to float32 when the model needs them. Each number is
converted exactly, so the results are those of float32 weights. Linear layers are widened and
multiplied in blocks of rows that fit in the processor's cache. Several threads can use the model at
the same time: a pass writes only into a room of its thread and into copies of modules.

`speed_up` is for CPUs that are fast with bfloat16. A linear layer calls a product of matrices,
which for one token reads the weights at two thirds of the speed of PyTorch's product of a matrix
and a vector. Both sum in float32.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvstream.model.clock import processor_seconds
from kvstream.model.cuda_attention import HALF

SMALL = 1 << 16
"""Weights of up to this many numbers (norms, biases) are widened once, when the model is loaded."""
BLOCK = 1 << 20
"""Numbers of a linear layer to widen at once."""
VECTOR = (1536, 576)
"""Outputs and width of the product that `is_faster` tries."""


class _Room(threading.local):
    """Room for a block of a linear layer; each thread has its own."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # a pass with gradients may use it later
            self.numbers = torch.empty(BLOCK)


def widen(model: Any) -> None:
    """Let a model compute in float32 while its large weights stay in 16 bits."""
    room = _Room()
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


def _multiplied(module: nn.Linear, own: _Room, x: Tensor) -> Tensor:
    """Apply a linear layer to x [..., in] in float32; return [..., out]."""
    weight, room = module.weight, own.numbers
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
    rows = module.weight[ids.flatten()].float()
    places = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
    return own(_with(module, {"weight": rows}), places)


def _whole(
    module: Any, own: Callable[..., Any], large: list[str], *args: Any, **kwargs: Any
) -> Any:
    """Apply another kind of module (experts of a mixture) with all its large weights widened."""
    return own(_with(module, {n: getattr(module, n).float() for n in large}), *args, **kwargs)


def _with(module: Any, weights: Mapping[str, Tensor]) -> Any:
    result = copy.copy(module)
    own = {name: nn.Parameter(weight, requires_grad=False) for name, weight in weights.items()}
    result._parameters = {**module._parameters, **own}
    return result


def speed_up(model: nn.Module) -> None:
    """Let the linear layers of a model use the faster product, if it is faster on this CPU."""
    layers = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear)
        and type(module).forward is nn.Linear.forward
        and "forward" not in vars(module)  # accelerate moves its weights
        and module.weight.dtype == torch.bfloat16
        and module.weight.device.type == "cpu"
    ]
    if layers and is_faster():
        for layer in layers:
            layer.forward = partial(_of_one_token, layer)  # type: ignore[method-assign]


def _of_one_token(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear layer to x [..., in]; return [..., out]."""
    if x.numel() != layer.in_features:
        return F.linear(x, layer.weight, layer.bias)
    row = x.reshape(-1)
    if layer.bias is None:
        out = torch.mv(layer.weight, row)
    else:
        out = torch.addmv(layer.bias, layer.weight, row)
    return out.view(*x.shape[:-1], -1)


@cache
@torch.inference_mode()
def is_faster() -> bool:
    """Return whether the product with a vector is faster than a linear layer here."""
    weight = torch.ones(VECTOR, dtype=torch.bfloat16)
    x = torch.ones(1, VECTOR[1], dtype=torch.bfloat16)
    vector, matrix = (
        processor_seconds(run, rounds=3, least=0.005)
        for run in (partial(torch.mv, weight, x[0]), partial(F.linear, x, weight))
    )
    return vector < matrix
