"""Rotary positions of one layer, applied and removed with the model's own functions.

Keys are stored unrotated, because kept entries get new positions after every chunk. Repeated
rotation by the difference drifts: 5-38% after 1,000 times in bf16, against 0.35%.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from kvstream.model import cuda_attention

BLOCK_ELEMENTS = 2**18
"""Maximum elements of keys to rotate at once on a CPU. On any device a block and its copies are at
most half as large as the keys in float32."""


@dataclass(eq=False)
class Angles:
    """Cosines and sines of a rotary embedding, float32 [positions, rotary dims].

    Repeats the recorded call of the embedding for all positions needed so far. Layers that used
    the same call share the tables.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device
    limit: int
    _tables: tuple[Tensor, ...] = (torch.empty(0),) * 4

    def at(self, start: int, count: int, *, back: bool = False) -> tuple[Tensor, Tensor]:
        """Return (cos, sin), each [count, rotary dims], from `start`; `back`: of the inverse."""
        tables = self._tables
        if tables[0].shape[0] < start + count:
            # Compute more than requested, so that growing memory does not recompute each time. Some
            # embeddings (dynamic, LongRoPE) change all frequencies past the trained length, so the
            # extra positions end there.
            roomy = min(-(-(start + count) // 1024) * 1024, self.limit)
            cos, sin = self._compute(max(start + count, roomy))
            # The tables include attention scaling (YaRN and others): cos² + sin² is its square.
            scale = cos[:1, :1] ** 2 + sin[:1, :1] ** 2
            # Set all at once at the end, because other threads read them meanwhile.
            tables = self._tables = cos, sin, cos / scale, -sin / scale
        cos, sin = tables[2:] if back else tables[:2]
        return cos[start : start + count], sin[start : start + count]

    def _compute(self, positions: int) -> tuple[Tensor, Tensor]:
        places = torch.arange(positions, device=self.device)[None]

        def again(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return torch.zeros(1, 1, 1, device=self.device) if value.is_floating_point() else places

        with torch.no_grad():
            more = {k: again(v) for k, v in self.kwargs.items()}
            cos, sin = self.module(*map(again, self.args), **more)
        return cos[0].float(), sin[0].float()


@dataclass
class Rotary:
    """Rotates keys [K, n, D] to positions and back.

    `apply` is the modeling module's ``apply_rotary_pos_emb``. It gets the first `width` dimensions
    of the keys; the others are not rotated (partial RoPE).
    """

    apply: Callable[..., tuple[Tensor, Tensor]]
    angles: Angles
    width: int
    queries: int = 0
    """Number of query heads that `apply` needs beside the keys; their results are not used."""

    def rotate(self, keys: Tensor, start: int, out: Tensor | None = None) -> Tensor:
        """Rotate keys of any float dtype to positions from `start`, in `out` or new in float32."""
        return self._turn(keys, *self.angles.at(start, keys.shape[-2]), out)

    def unrotate(self, keys: Tensor, start: int, out: Tensor | None = None) -> Tensor:
        """Invert `rotate`, exact up to rounding; `out` may be `keys`."""
        return self._turn(keys, *self.angles.at(start, keys.shape[-2], back=True), out)

    def _turn(self, keys: Tensor, cos: Tensor, sin: Tensor, out: Tensor | None) -> Tensor:
        if out is None:
            out = torch.empty(keys.shape, dtype=torch.float32, device=keys.device)
        heads, count, dim = keys.shape
        if self.width < dim:
            out[..., self.width :] = keys[..., self.width :]
        if self._by_halves and cuda_attention.fuses(keys):
            from kvstream.model.triton_kernels import turn  # needs Triton

            turn(keys[..., : self.width], cos, sin, out[..., : self.width])
            return out
        # The model's function makes several float32 copies of its input, which for a whole layer
        # would be many times its keys. Blocks also fit in a processor's cache; on a GPU, more of
        # them would only be more calls.
        direct = out.dtype == torch.float32 and out.data_ptr() != keys.data_ptr()
        copies = 0 if not self._by_halves else 1 if direct else 2
        block = -(-count // (2 if copies == 1 else 4))
        if keys.device.type == "cpu":
            block = min(BLOCK_ELEMENTS // (heads * dim), block)
        block = max(16, block)
        work = torch.empty(copies, heads, min(block, count), self.width, device=keys.device)
        for first in range(0, count, block):
            rows = slice(first, min(first + block, count))
            part, angles = keys[:, rows, : self.width], (cos[rows], sin[rows])
            target, room = out[:, rows, : self.width], work[:, :, : rows.stop - first]
            if copies == 0:
                target.copy_(self._applied(part.float(), *angles))
            elif copies == 1:
                _turned(part, *angles, target, *room)
            else:
                target.copy_(_turned(part, *angles, *room))
        return out

    @cached_property
    def _by_halves(self) -> bool:
        """Whether `apply` computes exactly the same bits as `_turned`, as in most models."""
        keys, cos, sin = torch.arange(3.0 * 8 * self.width).sin().view(3, 1, 8, self.width)
        try:
            theirs = self._applied(keys, cos[0], sin[0])
        except RuntimeError:  # the tables have another width
            return False
        return torch.equal(theirs, _turned(keys, cos[0], sin[0], *torch.empty(2, *keys.shape)))

    def _applied(self, keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Call the model's function, which also takes queries: pass no head, or one if it fails."""
        keys, cos, sin = keys[None], cos[None], sin[None]
        if self.queries == 0:
            try:
                return self.apply(keys[:, :0], keys, cos, sin)[1][0]
            except RuntimeError:
                self.queries = 1
        return self.apply(keys[:, :1], keys, cos, sin)[1][0]


def _of_both(apply: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Adapt an `apply` that rotates one tensor at a time (Gemma 3n, 4) to queries and keys."""
    if list(inspect.signature(apply).parameters)[1] != "cos":
        return apply
    return lambda queries, keys, cos, sin: (queries, apply(keys, cos, sin))


def _turned(keys: Tensor, cos: Tensor, sin: Tensor, out: Tensor, crossed: Tensor) -> Tensor:
    """Rotate keys [K, n, D]: each dimension of the first half with its partner in the second half.

    Writes the result to `out` and returns it; `crossed` is scratch memory. Both are float32 and
    have the shape of the keys. This is the rotation of most models, in a third of the memory and
    half of the time.
    """
    half = keys.shape[-1] // 2
    source = keys if keys.dtype == torch.float32 else out.copy_(keys)
    torch.mul(source[..., half:], sin[..., :half], out=crossed[..., :half])
    torch.mul(source[..., :half], sin[..., half:], out=crossed[..., half:])
    torch.mul(source, cos, out=out)
    out[..., :half] -= crossed[..., :half]
    out[..., half:] += crossed[..., half:]
    return out


class RotaryRecorder:
    """Records in a forward pass which rotary embedding each attention layer gets."""

    def __init__(self, model: nn.Module, limit: int) -> None:
        self._limit = limit
        self._calls: list[tuple[Tensor, Angles]] = []
        self._cosines: dict[int, Tensor] = {}
        self._hooks = []
        for module in model.modules():
            if "RotaryEmbedding" in type(module).__name__:
                hook = module.register_forward_hook(self._rotary, with_kwargs=True)
                self._hooks.append(hook)
            elif hasattr(module, "layer_idx"):
                hook = module.register_forward_pre_hook(self._attention, with_kwargs=True)
                self._hooks.append(hook)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _rotary(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if isinstance(output, tuple) and len(output) == 2:
            angles = Angles(module, args, kwargs, output[0].device, self._limit)
            self._calls.append((output[0], angles))

    def _attention(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        pair = kwargs.get("position_embeddings")
        if pair is None:
            pair = next((a for a in args if isinstance(a, tuple) and len(a) == 2), None)
        if isinstance(pair, tuple) and isinstance(pair[0], Tensor):
            self._cosines[module.layer_idx] = pair[0]  # type: ignore[index]

    def rotary(self, attention: nn.Module, layer: int) -> Rotary | None:
        """Return the layer's rotation, or None if it got none."""
        apply = getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
        own = self._cosines.get(layer)
        if apply is None or own is None:
            return None
        for cos, angles in self._calls:
            if cos.shape == own.shape and torch.equal(cos.to(own.device), own):
                return Rotary(_of_both(apply), angles, own.shape[-1])
        return None
