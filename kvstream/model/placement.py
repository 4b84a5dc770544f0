"""Decide before loading where a model's weights go, how they are quantized, and if they fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from kvstream.errors import ModelError, UsageError
from kvstream.model.weights import HEADROOM, Weights, weights_in, weights_on_hub
from kvstream.settings import ModelSettings

BITS = {"8bit": 8, "4bit": 4}
"""Bits per weight of the quantizations of bitsandbytes."""


def device_of(name: str) -> torch.device:
    """Return the device for `name`. Raises UsageError if it cannot be used on this machine."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        float(torch.zeros(1, device=device))  # `meta` can make tensors, but none has a number
    except (RuntimeError, AssertionError, ImportError) as error:
        first = str(error).splitlines()[0].split(". ")[0].removesuffix(".")
        first = "PyTorch knows no such device" if first.startswith("Expected one of") else first
        raise UsageError(
            f"--device {name!r} cannot be used here ({first}); `kvstream doctor` lists those that "
            "can."
        ) from error
    return device


def device_map(settings: ModelSettings, device: torch.device) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that place the weights.

    Weights beyond `ModelSettings.max_weights` go from GPUs to the CPU. On a CPU they stay on disk,
    and accelerate reads them from the model's files whenever they are needed. Raises UsageError
    for `max_weights` on other devices.
    """
    limit = settings.max_weights
    if limit is None:
        if settings.device == "auto" and device.type == "cuda" and torch.cuda.device_count() > 1:
            return {"device_map": "auto"}
        return {"device_map": {"": device}}  # not moved later: quantized weights cannot be moved
    if device.type == "cpu":
        return {"device_map": "auto", "max_memory": {"cpu": limit}}
    if device.type != "cuda":
        raise UsageError("--max-weights is for the CPU and for CUDA devices.")
    every = range(torch.cuda.device_count()) if device.index is None else [device.index]
    most: dict[int | str, int] = dict.fromkeys(every, limit)
    return {"device_map": "auto", "max_memory": {**most, "cpu": free_memory(torch.device("cpu"))}}


def quantization(settings: ModelSettings) -> dict[str, Any]:
    """Return the quantization for `from_pretrained`. Raises ModelError without bitsandbytes."""
    if settings.quantize not in BITS:
        return {}
    if find_spec("bitsandbytes") is None:
        raise ModelError(
            "--quantize needs the package bitsandbytes: pip install 'kvstream[quantize]'. A "
            "checkpoint that is quantized already needs no --quantize."
        )
    from transformers import BitsAndBytesConfig

    bits = {f"load_in_{settings.quantize}": True}
    return {"quantization_config": BitsAndBytesConfig(**bits)}


def refuse_too_large(where: str, settings: ModelSettings, device: torch.device, dtype: Any) -> None:
    """Raise ModelError if the weights do not fit on one device, before minutes of loading."""
    size = loaded_size(where, settings, device, dtype)
    if size is None:
        return
    remedies = ["choose a smaller model"]
    if settings.quantize is None:
        smaller = loaded_size(where, settings, device, torch.bfloat16) or size
        remedies += ["--dtype bfloat16"] if smaller < size else []
        remedies += ["--quantize 4bit"]
    remedies += ["a machine with more"]
    if device.type in ("cpu", "cuda"):
        rest = "on disk" if device.type == "cpu" else "to the CPU"
        most = f"{free_memory(device) / 2e9:.1f}GB"
        remedies += [f"leave part of it {rest}, which is slow: --max-weights {most}"]
    refuse_beyond_memory(settings.model, size, device, remedies)


def loaded_size(
    where: str, settings: ModelSettings, device: torch.device, dtype: Any
) -> int | None:
    """Return the bytes of the weights on one device; None if unknown, or on several devices."""
    if device_map(settings, device).get("device_map") == "auto":
        return None
    weights = weights_of(where, settings)
    if weights is None:
        return None
    if settings.quantize in BITS:
        return weights.loaded(BITS[settings.quantize] / 8)
    return weights.loaded(None if dtype == "auto" else dtype.itemsize)


def refuse_beyond_memory(
    name: str, size: int, device: torch.device, remedies: Sequence[str]
) -> None:
    """Raise ModelError if `size` bytes of weights do not fit in the device's free memory."""
    needs, free = size * HEADROOM, free_memory(device)
    if needs > free:
        *some, last = remedies
        raise ModelError(
            f"{name} needs about {needs / 1e9:.1f} GB and {free / 1e9:.1f} GB of memory are free; "
            f"{', '.join(some)}, or {last}."
        )


def weights_of(where: str, settings: ModelSettings) -> Weights | None:
    """Return the weights of a folder, the cache or the hub; None if unknown or damaged."""
    folder = folder_of(where, settings.revision)
    if folder is not None:
        with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
            return weights_in(folder)
    if settings.offline or os.path.isdir(where):
        return None
    try:
        return weights_on_hub(where, settings.revision, folder and folder / "config.json")
    except Exception:  # the library raises many kinds of exceptions
        return None


def folder_of(where: str, revision: str | None) -> Path | None:
    """Return the folder itself, or the folder in the hub's cache with the model's configuration."""
    if os.path.isdir(where):
        return Path(where)
    import huggingface_hub as hub

    config = hub.try_to_load_from_cache(where, "config.json", revision=revision)
    return Path(config).parent if isinstance(config, str) else None


def free_memory(device: torch.device) -> int:
    """Return the free bytes of the device's memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return int(psutil.virtual_memory().available)
