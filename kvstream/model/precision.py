"""Choose the number types of a model's computation, its weights in memory and its KV cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F

from kvstream.errors import UsageError
from kvstream.model import int8, placement
from kvstream.model.clock import processor_seconds, remembered
from kvstream.model.weights import HEADROOM, Weights
from kvstream.settings import INT8, NUMBER_TYPES, ModelSettings
from kvstream.store.offered import EMBEDDED

DTYPES = {name: getattr(torch, name) for name in NUMBER_TYPES if name != "auto"}
SHORT = {"bfloat16": "bf16", "float16": "fp16"}
"""Names of the 16-bit types in PyTorch's checks of a CPU."""


@dataclass(frozen=True)
class Precision:
    load: Any
    """The `dtype` argument of `from_pretrained`: a type, or ``auto`` (as stored)."""
    why: str
    widen: bool = False
    """Whether weights stay in 16 bits and are widened to float32 while the model computes."""
    int8: bool = False
    """Whether the products of linear layers use 8-bit integers."""
    kv: torch.dtype | None = None
    """Number type of the KV cache; None: the type in which the model computes."""
    attention: torch.dtype | None = None
    """Number type in which attention computes; None: as the rest of the model."""


def choose(settings: ModelSettings, device: torch.device, where: str | None) -> Precision:
    """Choose the number types, without slow or wrong 8-bit products. Raises UsageError."""
    if where is not None and where.endswith(int8.SUFFIX):  # the folder has 8-bit weights
        settings = replace(settings, quantize=INT8)
    precision = precision_of(settings, device, where)
    problem = int8.problem() if precision.int8 else None
    if problem is None:
        return precision
    precision = precision_of(replace(settings, quantize=None), device, where)
    return replace(precision, why=f"{precision.why}; int8 is not used: {problem}")


def precision_of(
    settings: ModelSettings, device: torch.device, where: str | None = None
) -> Precision:
    """Choose the number types for a model. Raises UsageError.

    `where` is the folder or hub id of the weights. If a CPU is not faster with the 16-bit type of
    the stored weights, ``auto`` computes in float32. The KV cache then uses the 16-bit type, unless
    `ModelSettings.kv_dtype` names another. If float32 weights do not fit, they stay in 16 bits and
    are widened.
    """
    dtype, kv = DTYPES.get(settings.dtype), DTYPES.get(settings.kv_dtype)
    if settings.quantize == INT8:
        return _for_int8(settings, device, where)
    whole = settings.quantize is None and settings.max_weights is None
    on_cpu = device.type == "cpu" and whole
    weights = placement.weights_of(where, settings) if where is not None and on_cpu else None
    kind = None if weights is None else weights.number_name
    if dtype is not None:
        if dtype == torch.float32 and kind in SHORT and (no_room := _no_room(weights, device)):
            return Precision(_stored_type(weights), no_room, widen=True, kv=kv)
        why = "asked for" if settings.like is None else f"as in {settings.like}"
        return Precision(dtype, why, kv=kv)
    embedded = settings.model == EMBEDDED
    if embedded and device.type == "cpu":
        kind = "bfloat16"
    if kind is None or not is_slow(kind, device.type) or not (on_cpu or embedded):
        return Precision("auto", "as stored", kv=kv)
    why = f"{kind} is not faster on this CPU"
    if settings.kv_dtype == "auto":
        kv = DTYPES[kind]
    if no_room := _no_room(weights, device):
        return Precision(_stored_type(weights), f"{why}; {no_room}", widen=True, kv=kv)
    return Precision(torch.float32, why, kv=kv)


def _for_int8(settings: ModelSettings, device: torch.device, where: str | None) -> Precision:
    """Choose the number types around 8-bit products, whose input and output are float32.

    With a KV cache in bfloat16, attention computes in that type if the CPU has instructions for it.
    Raises UsageError for settings that --quantize int8 cannot be combined with.
    """
    if device.type != "cpu":
        raise UsageError(
            f"--quantize {INT8} is for the CPU, and the model goes to {device.type}; use "
            "--quantize 8bit there."
        )
    if settings.dtype not in ("auto", "float32"):
        raise UsageError(
            f"--quantize {INT8} computes in float32 around its 8-bit products; leave --dtype "
            f"{settings.dtype} out."
        )
    if settings.max_weights is not None:
        raise UsageError(f"--quantize {INT8} holds all weights in RAM; leave --max-weights out.")
    weights = None if where is None else placement.weights_of(where, settings)
    kind = None if weights is None else weights.number_name
    widen, kv = kind in SHORT, DTYPES.get(settings.kv_dtype)
    load = _stored_type(weights) if widen else torch.float32
    if weights is not None and (where or "").endswith(int8.SUFFIX):
        kind = weights.declared  # the weights have 8 bits already
    if kind in SHORT and settings.kv_dtype == "auto":
        kv = DTYPES[kind]
    attention = kv if kv == torch.bfloat16 and is_fast("bfloat16") else None
    return Precision(load, "with 8-bit products", widen, int8=True, kv=kv, attention=attention)


def _stored_type(weights: Weights | None) -> torch.dtype:
    """Return the 16-bit type of most stored numbers, so that these are not rounded."""
    assert weights is not None
    return DTYPES[max(("float16", "bfloat16"), key=weights.floats.__getitem__)]


def _no_room(weights: Weights | None, device: torch.device) -> str:
    """Return why weights in float32 are not used; empty if they fit in memory, or are unknown."""
    if weights is None or weights.loaded(4) * HEADROOM <= placement.free_memory(device):
        return ""
    return (
        f"float32 weights of {weights.loaded(4) / 1e9:.1f} GB do not fit, so each is widened from "
        "16 bits when it is needed"
    )


def is_slow(name: str, device: str) -> bool:
    """Return whether this kind of device is slower with a number type than with float32."""
    return device == "cpu" and name in SHORT and not is_fast(name)


def types_line(model: torch.dtype, attention: torch.dtype, kv: torch.dtype, why: str) -> str:
    """Describe the chosen types briefly, for the status line."""
    computes, attends, stores = (str(t).removeprefix("torch.") for t in (model, attention, kv))
    # Attention computes in another type only if the KV cache has it (`_for_int8`).
    which = "KV cache" if attends == computes else "attention and KV cache"
    return f"{computes}{'' if computes == stores else f', {which} {stores}'} ({why})"


def is_fast(name: str) -> bool:
    """Return whether products in a 16-bit type are faster than in float32 on this CPU."""
    return speed_of(name) > 1


@cache
def speed_of(name: str) -> float:
    """Return how many times as fast as float32 a 16-bit type is; 0 if PyTorch only emulates it.

    Instructions do not tell: some CPUs that have them are slower with them. So products are timed,
    once per machine and PyTorch.
    """
    check = getattr(torch.ops.mkldnn, f"_is_mkldnn_{SHORT[name]}_supported", None)
    if not (check and check()):
        return 0
    timed = partial(_timed, DTYPES[name])
    speed: float = remembered(name, (int8.TRIAL, int8.TEXT, int8.ANSWER), timed)["speed"]
    return speed


@torch.inference_mode()
def _timed(kind: torch.dtype) -> tuple[dict[str, float], bool]:
    """Return the speed of a type for a typical question, and whether all rounds are on one side."""
    tokens, width, outputs = int8.TRIAL

    def seconds(of: torch.dtype) -> float:
        rows, matrix = torch.ones(tokens, width, dtype=of), torch.ones(outputs, width, dtype=of)
        runs = partial(F.linear, rows, matrix), partial(torch.mv, matrix, rows[0])
        many, one = (processor_seconds(run, rounds=2, least=0.002) for run in runs)
        return int8.TEXT / tokens * many + int8.ANSWER * one

    ratios = sorted(seconds(torch.float32) / seconds(kind) for _ in range(3))
    return {"speed": ratios[1]}, ratios[0] > 1 or ratios[2] < 1
