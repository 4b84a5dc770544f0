"""A simulated GPU: its tensors compute on the host, and refuse to mix with those of the host.

It refuses what a GPU would refuse: operations on tensors of both devices, and random numbers of the
host's generator on the GPU. It allows what a GPU allows: single numbers, indices, copies.
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
"""Properties of the wrapper itself."""
ITS_OWN = {"device", "_parse_to", "_has_compatible_shallow_copy_type", "_make_subclass"}
"""Functions of devices and of tensor types that compute nothing."""
TO_HOST = {"cpu", "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__"}


class OnGPU(Tensor):
    """A tensor that says it is on the GPU, around one on the host."""

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
        if func.overloadpacket.__name__ == "detach":  # nn.Parameter calls it
            return OnGPU(args[0].held)
        raise RuntimeError(f"{func} was called outside of FakeGPU")


class FakeGPU(TorchFunctionMode):
    """Mode in which tensors for the device `GPU` are made there."""

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
        same = {id(x.held): x for x in ours}  # in-place functions return their argument
        return _mapped(lambda x: same[id(x)] if id(x) in same else _on_gpu(x), out)


def _leaves(x: Any) -> Iterator[Any]:
    """Yield the leaves of tuples, lists and dicts; several times as fast as `tree_leaves`."""
    if isinstance(x, tuple | list | dict):
        for inner in x.values() if isinstance(x, dict) else x:
            yield from _leaves(inner)
    else:
        yield x


def _mapped(change: Callable[[Any], Any], x: Any) -> Any:
    """Return `x` with its leaves changed; several times as fast as `tree_map`."""
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
    """Raise what a GPU would raise if tensors of both devices come together."""
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"{name}: the generator is the host's, and the tensor on the GPU")
    if name in ("copy_", "to"):
        return
    if name in ("__getitem__", "__setitem__"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if not any(isinstance(i, Tensor) for i in index):
            return  # a view; what is set is copied
        if not isinstance(args[0], OnGPU) and any(isinstance(i, OnGPU) for i in index):
            raise RuntimeError(f"{name}: indices on the GPU into a tensor of the host")
        args = (args[0], *args[2:])
    for x in _leaves((args, kwargs)):
        if isinstance(x, Tensor) and not isinstance(x, OnGPU | CausalBias) and x.dim():
            raise RuntimeError(f"{name}: expected all tensors on the same device")


def moved(model: nn.Module) -> nn.Module:
    """Move all weights and buffers of the model to the GPU; return the model."""
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = nn.Parameter(OnGPU(weight.data), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = OnGPU(buffer)
    return model
