"""Where a model's weights go and in which numbers, and whether there is room: before loading."""

from __future__ import annotations

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
"""What bitsandbytes can do."""


def device_of(name: str) -> torch.device:
    """The device that `name` means here. Raises UsageError for one that cannot be used."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(
            f"The device {name!r} cannot be used here ({first}); `kvstream doctor` lists those "
            "that can."
        ) from error
    return device


def device_map(settings: ModelSettings, device: torch.device) -> dict[str, Any]:
    """What `from_pretrained` takes to place the weights.

    With `ModelSettings.max_weights` what is over goes from GPUs to the CPU, and from the CPU stays
    on disk: accelerate reads it from the checkpoint's files whenever it is needed.
    """
    limit = settings.max_weights
    if limit is None:
        if settings.device == "auto" and device.type == "cuda" and torch.cuda.device_count() > 1:
            return {"device_map": "auto"}
        return {"device_map": {"": device}}  # placed at once: what is quantized cannot be moved
    if device.type == "cpu":
        return {"device_map": "auto", "max_memory": {"cpu": limit}}
    if device.type != "cuda":
        raise UsageError("--max-weights is for the CPU and for CUDA devices.")
    every = range(torch.cuda.device_count()) if device.index is None else [device.index]
    most: dict[int | str, int] = dict.fromkeys(every, limit)
    return {"device_map": "auto", "max_memory": {**most, "cpu": _free_memory()}}


def quantization(settings: ModelSettings) -> dict[str, Any]:
    """What `from_pretrained` takes to quantize while loading. Raises ModelError."""
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
    """Compare what the weights will take with the memory there is, before minutes of loading.

    Raises ModelError. Spread over several devices, a model is accelerate's to place.
    """
    weights = weights_of(where, settings)
    size = loaded_size(where, settings, device, dtype)
    if weights is None or size is None:
        return
    remedies = ["choose a smaller model"]
    if settings.quantize is None:
        remedies += ["--dtype bfloat16"] if weights.loaded(2) < size else []
        remedies += ["--quantize 4bit"]
    remedies += ["a machine with more"]
    if device.type in ("cpu", "cuda"):
        rest = "on disk" if device.type == "cpu" else "to the CPU"
        most = f"{free_memory(device) / 2e9:.1f}GB"
        remedies += [f"leave part of it {rest}, which is slow: --max-weights {most}"]
    refuse_beyond_memory(settings.name, size, device, remedies)


def loaded_size(
    where: str, settings: ModelSettings, device: torch.device, dtype: Any
) -> int | None:
    """Bytes of a model's weights on the device; None where accelerate places them over several, or
    nothing is known."""
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
    """Raises ModelError where so many bytes of weights cannot be loaded on the device."""
    needs, free = size * HEADROOM, free_memory(device)
    if needs > free:
        *some, last = remedies
        raise ModelError(
            f"{name} needs about {needs / 1e9:.1f} GB and {free / 1e9:.1f} GB of memory are free; "
            f"{', '.join(some)}, or {last}."
        )


def weights_of(where: str, settings: ModelSettings) -> Weights | None:
    """What is to be loaded from a folder, the cache or the hub; None where that is not known.

    What is wrong with files that cannot be understood, loading says better.
    """
    folder = folder_of(where, settings.revision)
    if folder is not None:
        with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
            return weights_in(folder)
    if settings.offline or Path(where).is_dir():
        return None
    try:
        return weights_on_hub(where, settings.revision, folder and folder / "config.json")
    except Exception:  # the library raises nearly everything
        return None


def folder_of(where: str, revision: str | None) -> Path | None:
    """The folder itself, or that of the hub's cache which has a model's configuration."""
    if Path(where).is_dir():
        return Path(where)
    import huggingface_hub as hub

    config = hub.try_to_load_from_cache(where, "config.json", revision=revision)
    return Path(config).parent if isinstance(config, str) else None


def free_memory(device: torch.device) -> int:
    """Bytes that are free where the device has its memory."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()


def _free_memory() -> int:
    import psutil

    return psutil.virtual_memory().available
