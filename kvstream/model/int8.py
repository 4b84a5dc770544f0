"""8-bit integer products on a CPU: weights quantized once, activations token by token.

Each weight row and each token's vector has one scale, its largest absolute number over 127, and no
offset. The product of the integers is exact (int32). The few columns with the largest activations
stay in float32, because they would make the scale coarse for all others (LLM.int8(), arXiv
2208.07339, section 3.2; here their number is fixed). The product is PyTorch's `torch._int_mm`,
which the int8 configurations of torchao also call. Only this file uses it. On CPUs without VNNI it
is slow for single tokens; there `torch._weight_int8pack_mm` takes bfloat16 activations.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kvstream.errors import ModelError
from kvstream.model.clock import processor_seconds

LEAST = 64
"""Minimum width of a quantized layer. Narrower ones, such as routers, cost little and matter much.
"""
LEAST_SHARE = 0.5
"""Minimum share of a model's weights in layers that can be quantized."""
WORTH = 1.3
"""Minimum speed of an 8-bit product relative to float32."""
TRIED = (256, 768, 768)
"""Tokens, width and outputs of the product that `problem` tests."""
ERROR = 0.02
"""Maximum relative error of that product; the measured error of 8 bits was 0.011."""
LARGEST = 127
COLUMNS = 16
"""Maximum number of activation columns in float32; in narrow layers an eighth of the columns."""
FEW = 4
"""Fewer tokens than this may use `torch._weight_int8pack_mm`."""
PACKED = 16
"""Widths for `torch._weight_int8pack_mm` are multiples of this. For others PyTorch reads beyond the
end of the rows."""


class Int8Linear(nn.Module):
    """A linear layer with 8-bit weights and float32 input and output."""

    def __init__(self, linear: nn.Linear, *, packs: bool = False) -> None:
        """Quantize `linear`.

        packs: for few tokens use bfloat16 activations and widen weights within the product, if the
        width allows it.
        """
        super().__init__()
        self.packs = packs and linear.in_features % PACKED == 0
        weight, scale = quantized(linear.weight.detach().float())
        self.weight = nn.Parameter(weight, requires_grad=False)
        """int8 [out, in]."""
        self.scale = nn.Parameter(scale.flatten(), requires_grad=False)
        """float32 [out]."""
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._ones = torch.ones(self.out_features, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: [..., in] -> [..., out], float32."""
        if x.requires_grad and torch.is_grad_enabled():
            out: Tensor = _Product.apply(x, self)
            return out
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """Compute the same as `forward`, without gradients."""
        rows = x.reshape(-1, x.shape[-1])
        if self.packs and rows.shape[0] < FEW:
            out = torch._weight_int8pack_mm(rows.bfloat16(), self.weight, self._ones).float()
        else:
            integers, scale, columns, apart = _newest.quantized(x)
            out = torch._int_mm(integers, self.weight.t()).float().mul_(scale)
            out.addmm_(apart, self.weight[:, columns].float().t())
        out.mul_(self.scale)
        if self.bias is not None:
            out.add_(self.bias)
        return out.view(*x.shape[:-1], -1)


class _Newest(threading.local):
    """The newest input of this thread, quantized: layers with the same input share it."""

    def __init__(self) -> None:
        self._of: Callable[[], Tensor | None] = lambda: None
        self._found: tuple[Tensor, ...] = ()

    def quantized(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return `without_largest_columns` of the rows of x, and those columns in float32."""
        if self._of() is not x:
            rows = x.reshape(-1, x.shape[-1])
            integers, scale, columns = without_largest_columns(rows)
            self._of, self._found = weakref.ref(x), (integers, scale, columns, rows[:, columns])
        return self._found


_newest = _Newest()


class _Product(torch.autograd.Function):
    """The product with the gradient of the dequantized weights, because rounding has none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Int8Linear) -> Tensor:
        ctx.layer = layer
        return layer.product(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,), layer = grads, ctx.layer
        return (grad * layer.scale) @ layer.weight.float(), None


def without_largest_columns(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize rows [n, d], with zeros in the columns that have the largest numbers.

    Returns the rows as int8, their scales [n, 1] float32, and the indices [k] int64 of the columns.
    """
    sizes = rows.abs()
    columns = sizes.amax(0).topk(min(COLUMNS, rows.shape[1] // 8)).indices
    scale = _scale(sizes.index_fill_(1, columns, 0))
    # Few passes over the rows, and no new memory: together they take as long as the product.
    integers = torch.div(rows, scale, out=sizes).round_().to(torch.int8)
    return integers.index_fill_(1, columns, 0), scale, columns


def quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [n, d] as int8, and the scale of each row, [n, 1] float32."""
    scale = _scale(rows.abs())
    return (rows / scale).round_().to(torch.int8), scale


def _scale(sizes: Tensor) -> Tensor:
    return sizes.amax(1, keepdim=True).div_(LARGEST).clamp_min_(1e-30)


def quantize(model: nn.Module, name: str) -> None:
    """Quantize a model's linear layers. Raises ModelError if most weights are in other layers."""
    places = [
        (parent, key, child)
        for parent in model.modules()
        for key, child in parent.named_children()
        if isinstance(child, nn.Linear)
        and type(child).forward is nn.Linear.forward
        and min(child.weight.shape) >= LEAST
    ]
    # Embedding tables are not counted: they stay for lookup, even if tied to the output layer.
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    inside = sum(c.weight.numel() for _, _, c in places if id(c.weight) not in tables)
    beside = sum(p.numel() for p in model.parameters() if id(p) not in tables)
    if inside < LEAST_SHARE * beside:
        raise ModelError(
            f"--quantize int8 can replace layers with {inside:,} of the {beside:,} weights of "
            f"{name}; the others are not linear layers, or are narrower than {LEAST}. Leave it "
            "out, or use --quantize 8bit."
        )
    packs = packing_is_faster()
    for parent, key, child in places:
        setattr(parent, key, Int8Linear(child, packs=packs))


def problem() -> str | None:
    """Return what is wrong with 8-bit products on this machine, or None."""
    tokens, width, outputs = TRIED
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, width, generator=generator)
    linear = nn.Linear(width, outputs, bias=False).requires_grad_(False)
    linear.weight.data = torch.randn(outputs, width, generator=generator)
    try:
        layer = Int8Linear(linear)
        with torch.inference_mode():
            right, found = linear(x), layer(x)
            error = float((found - right).norm() / right.norm())
            if not error <= ERROR:
                return f"its products are wrong by {error:.0%} on this CPU"
            plain, ours = _seconds_of(linear, x), _seconds_of(layer, x)
    except (RuntimeError, AttributeError) as exception:
        return f"this PyTorch cannot do it ({str(exception).splitlines()[0][:80]})"
    if plain < WORTH * ours:
        return f"8-bit products are {plain / ours:.2f} times as fast as float32 on this CPU"
    return None


@torch.inference_mode()
def packing_is_faster() -> bool:
    """Return whether one token's product is faster here with bfloat16 activations."""
    _, width, outputs = TRIED
    linear = nn.Linear(width, outputs, bias=False)
    x = torch.ones(1, width)
    ways = [Int8Linear(linear, packs=packs) for packs in (True, False)]
    try:
        packed, plain = (_seconds_of(layer, x) for layer in ways)
    except (RuntimeError, AttributeError):  # this PyTorch does not have it
        return False
    return packed < plain


def _seconds_of(layer: nn.Module, x: Tensor) -> float:
    """Return the processor time per call. Each call gets a tensor of its own, because the same one
    would be quantized only once."""
    return processor_seconds(lambda: layer(x[:]))
