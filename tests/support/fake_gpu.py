"""A GPU that is not there: its tensors compute on the host, and refuse to meet those of the host.

What a GPU would refuse is refused here: operations on tensors of both places, and random numbers of
the host's generator on the GPU. What it allows passes: single numbers, indices, copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import CausalBias
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
ABOUT = {"device", "is_cuda", "is_cpu", "layout", "grad_fn", "requires_grad"}
"""Properties that are the wrapper's own."""
ITS_OWN = {"device", "_parse_to", "_has_compatible_shallow_copy_type", "_make_subclass"}
"""Functions that compute nothing, of devices and of kinds of tensors."""
TO_HOST = {"cpu", "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__"}


class OnGPU(Tensor):
    """A tensor that says it is on the GPU, around one that is not."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnGPU:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=GPU
        )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnGPU({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ == "detach":  # what nn.Parameter asks for
            return OnGPU(args[0].held)
        raise RuntimeError(f"{func} was called outside of FakeGPU")


class FakeGPU(TorchFunctionMode):
    """Inside, what is asked of the device `GPU` is made there."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__" and func.__self__.__name__ in ABOUT:  # type: ignore[attr-defined]
            return func(*args, **kwargs)
        given = list(_leaves((args, kwargs)))
        ours = [x for x in given if isinstance(x, OnGPU)]
        asked = [x for x in given if _is_device(x)]
        if name in ITS_OWN or not (ours or any(map(_is_gpu, asked))):
            return func(*args, **kwargs)
        _meet(name, args, kwargs)
        out = func(*_mapped(_on_host, args), **_mapped(_on_host, kwargs))
        if name in TO_HOST or (asked and not any(map(_is_gpu, asked))):
            return out
        if name == "to" and not asked and isinstance(args[-1], Tensor) and len(args) > 1:
            return _mapped(_on_gpu, out) if isinstance(args[1], OnGPU) else out
        same = {id(x.held): x for x in ours}  # what works in place gives back what it was given
        return _mapped(lambda x: same[id(x)] if id(x) in same else _on_gpu(x), out)


def _leaves(x: Any) -> Iterator[Any]:
    """What is in tuples, lists and dicts; several times as fast as PyTorch's `tree_leaves`."""
    if isinstance(x, tuple | list | dict):
        for inner in x.values() if isinstance(x, dict) else x:
            yield from _leaves(inner)
    else:
        yield x


def _mapped(change: Callable[[Any], Any], x: Any) -> Any:
    """`x` with its leaves changed; several times as fast as PyTorch's `tree_map`."""
    if type(x) is dict:
        return {key: _mapped(change, inner) for key, inner in x.items()}
    if type(x) is tuple or type(x) is list:
        return type(x)([_mapped(change, inner) for inner in x])
    # The results of `topk` and others have a type of their own.
    return tree_map(change, x) if isinstance(x, tuple) else change(x)


def _on_host(x: Any) -> Any:
    if isinstance(x, OnGPU):
        return x.held
    return HOST if _is_gpu(x) else x


def _on_gpu(x: Any) -> Any:
    return OnGPU(x) if isinstance(x, Tensor) and not isinstance(x, OnGPU) else x


def _is_device(x: Any) -> bool:
    return isinstance(x, torch.device) or (
        isinstance(x, str) and x.split(":")[0] in ("cuda", "cpu")
    )


def _is_gpu(x: Any) -> bool:
    return _is_device(x) and str(x).startswith("cuda")


def _meet(name: str, args: Any, kwargs: Any) -> None:
    """Raise what a GPU would where tensors of both places come together."""
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"{name}: the generator is the host's, and the tensor on the GPU")
    if name in ("copy_", "to"):
        return
    if name in ("__getitem__", "__setitem__"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if not any(isinstance(i, Tensor) for i in index):
            return  # a view, and for what is set a copy
        if not isinstance(args[0], OnGPU) and any(isinstance(i, OnGPU) for i in index):
            raise RuntimeError(f"{name}: indices on the GPU into a tensor of the host")
        args = (args[0], *args[2:])
    for x in _leaves((args, kwargs)):
        if isinstance(x, Tensor) and not isinstance(x, OnGPU | CausalBias) and x.dim():
            raise RuntimeError(f"{name}: expected all tensors on the same device")


def moved(model: nn.Module) -> nn.Module:
    """The model with all its weights and buffers on the GPU."""
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = nn.Parameter(OnGPU(weight.data), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = OnGPU(buffer)
    return model
