"""Convert the used part of a cache to tensors by name, those of the prompt apart, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kvstream.engine.reader import Reader
from kvstream.errors import KvstreamError, ModelError
from kvstream.memory.file import ASIDE
from kvstream.model.layer_store import PROMPT, LayerStore
from kvstream.model.recurrent import StateStore

MEASURED = {"rows": "window_attention", "columns": "accumulated_attention"}
"""Names of tensors in a memory file, with the attributes of `LayerStore` that they hold."""


def cache_state(reader: Reader) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the numbers of the cache, and its tensors under names such as ``entries.3.keys``.

    ``prefix.L.*`` [K, P, ...] belong to the prompt, ``entries.L.*`` [K, n, ...] to the source, in
    order of age, ``heads.L.*`` [K, ...] to each head as a whole; ``states.L.*`` are the state of a
    recurrent layer. Raises KvstreamError if the cache was interrupted while it moved entries.
    """
    cache = reader.cache
    if cache.torn:
        raise KvstreamError("This memory is lost: it was interrupted while its entries were moved.")
    tensors: dict[str, Tensor] = {}
    layers = []
    for store in cache.stores:
        layer = store.spec.index
        # A sliding layer may have evicted a part of the prompt.
        prefix = int((store.origin[0, : store.used] == PROMPT).sum())
        layers.append({"used": store.used, "raw": store.unrotated, "prefix": prefix})
        for part, span in _parts(store.used, prefix).items():
            tensors[f"{part}.{layer}.keys"] = store.keys[:, span]
            tensors[f"{part}.{layer}.values"] = store.values[:, span]
        entries = slice(prefix, store.used)
        tensors[f"entries.{layer}.origin"] = store.origin[:, entries]
        for name, tensor in store.state.items():
            tensors[f"entries.{layer}.state.{name}"] = tensor[:, entries]
        for name, tensor in store.head_state.items():
            tensors[f"heads.{layer}.{name}"] = tensor
        # A catalyst measures again; without one a ranking uses the last measurement.
        for name, attribute in MEASURED.items() if not reader.catalysts else ():
            attention = getattr(store, attribute)
            if attention is not None and attention.shape[-1] == store.used:
                tensors[f"{ASIDE}{layer}.{name}"] = attention
    for recurrent in cache.recurrent:
        for name, tensor in recurrent.states().items():
            tensors[f"states.{recurrent.carries.index}.{name}"] = tensor
    return {"base": cache.base, "layers": layers}, tensors


def fill(
    reader: Reader, state: Mapping[str, Any], tensors: Mapping[str, Tensor], kv_dtype: torch.dtype
) -> None:
    """Put the `cache_state` in the state of a file into the cache of a reader.

    The reader must have the same parameters as the saved one. Keys and values of the type
    `kv_dtype` are converted to the type of the cache. Raises ValueError or KeyError if something
    does not fit, before anything is computed, and ModelError for numbers beyond float16.
    """
    cache, numbers, tokens = reader.cache, state["cache"], state["trace"]["read"]
    if len(numbers["layers"]) != len(cache.stores):
        raise ValueError(f"it has {len(numbers['layers'])} layers, not {len(cache.stores)}")
    for store, layer in zip(cache.stores, numbers["layers"], strict=True):
        _fill_layer(store, layer, tokens, tensors, kv_dtype)
    if not cache.aligned:
        raise ValueError("its layers hold different numbers of rotated entries")
    head = len(reader.head) if reader.begun else 0
    full = [s.used - head for s in reader.compressible]
    fronts = {int((s.origin[0, : s.used] == PROMPT).sum()) for s in reader.compressible}
    if full != list(reader.schedule.held) or not fronts <= {head}:
        raise ValueError("its layers do not hold what its schedule says")
    longest = max(s.unrotated for s in cache.stores)
    if numbers["base"] != longest:
        raise ValueError(f"its positions go on from {numbers['base']!r}, not from {longest}")
    cache.base = longest
    states = {name for name in tensors if name.startswith("states.")}
    for recurrent in cache.recurrent if numbers["layers"][0]["used"] else ():
        states -= _resume(recurrent, tensors)
    if states:
        raise ValueError(f"the model has nothing that carries {min(states)}")


def _resume(recurrent: StateStore, tensors: Mapping[str, Tensor]) -> set[str]:
    """Restore the state of a recurrent layer, and return the names of its tensors."""
    spec, states = recurrent.carries, {}
    for name, (shape, dtype) in spec.shapes.items():
        key = f"states.{spec.index}.{name}"
        kind = tensors[key].dtype
        # The weights may have had another number type.
        kind = kind if kind.is_floating_point and dtype.is_floating_point else dtype
        tensor = _tensor(tensors, key, kind, shape)
        states[name] = tensor.to(spec.device, dtype, copy=True)  # do not share the file's buffer
    recurrent.resume(states)
    return {f"states.{spec.index}.{name}" for name in states}


def _fill_layer(
    store: LayerStore,
    layer: Mapping[str, int],
    tokens: int,
    tensors: Mapping[str, Tensor],
    kv_dtype: torch.dtype,
) -> None:
    spec, used, raw, prefix = store.spec, layer["used"], layer["raw"], layer["prefix"]
    if not (used <= store.capacity and max(raw, prefix) <= used):
        raise ValueError(f"layer {spec.index} cannot hold {used!r} entries, {raw!r} of them raw")

    def take(name: str, into: Tensor) -> None:
        into.copy_(_tensor(tensors, name, into.dtype, into.shape))

    for part, span in _parts(used, prefix).items():
        for name, into in (("keys", store.keys), ("values", store.values)):
            tensor = _tensor(tensors, f"{part}.{spec.index}.{name}", kv_dtype, into[:, span].shape)
            _refuse_beyond(into.dtype, tensor, f"{part}.{spec.index}.{name}")
            into[:, span].copy_(tensor)
    entries = slice(prefix, used)
    take(f"entries.{spec.index}.origin", store.origin[:, entries])
    origin = store.origin[:, entries]
    if origin.numel() and not (
        int(origin.min()) >= 0
        and int(origin.max()) < tokens
        and bool((origin.diff(dim=-1) > 0).all())
    ):
        raise ValueError(f"the entries of layer {spec.index} are not in the order of the source")
    store.origin[:, :prefix] = PROMPT
    for name, tensor in store.state.items():
        take(f"entries.{spec.index}.state.{name}", tensor[:, entries])
    for name, tensor in store.head_state.items():
        take(f"heads.{spec.index}.{name}", tensor)
    for name, attribute in MEASURED.items():
        attention = tensors.get(f"{ASIDE}{spec.index}.{name}")
        setattr(store, attribute, None)
        if attention is not None:
            if (attention.dtype, attention.shape) != (torch.float32, (spec.heads, used)):
                raise ValueError(f"what was measured of layer {spec.index} is not of its entries")
            setattr(store, attribute, attention.to(spec.device))
    store.used, store.unrotated = used, raw


def _tensor(
    tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype, shape: Sequence[int]
) -> Tensor:
    data = tensors[name]
    if (data.dtype, tuple(data.shape)) != (dtype, tuple(shape)):
        raise ValueError(f"{name} is {data.dtype} {list(data.shape)}, not {dtype} {list(shape)}")
    return data


def _refuse_beyond(dtype: torch.dtype, numbers: Tensor, name: str) -> None:
    """Raise ModelError for numbers that are infinite in float16."""
    if dtype == torch.float16 != numbers.dtype and numbers.numel():
        most = float(numbers.abs().max())
        if most > torch.finfo(torch.float16).max:
            raise ModelError(
                f"{name} of the memory has numbers up to {most:,.0f}, and float16 holds at most "
                "65,504; use --kv-dtype bfloat16 or float32."
            )


def _parts(used: int, prefix: int) -> dict[str, slice]:
    return {"prefix": slice(0, prefix), "entries": slice(prefix, used)}
