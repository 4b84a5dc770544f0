"""Where a model's weights go and in which numbers, and whether there is room: before loading."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from kvstream.errors import ModelError, UsageError
from kvstream.settings import ModelSettings

DTYPES = {
    "float32": torch.float32, "fp32": torch.float32,
    "bfloat16": torch.bfloat16, "bf16": torch.bfloat16,
    "float16": torch.float16, "fp16": torch.float16,
}  # fmt: skip
HEADROOM = 1.1
"""Loading needs a little more than the weights alone."""
BITS = {"8bit": 8, "4bit": 4}


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


def dtype_of(settings: ModelSettings, device: torch.device, *, embedded: bool) -> Any:
    """What `from_pretrained` takes as dtype. Raises UsageError for an unknown name."""
    if settings.dtype != "auto":
        if settings.dtype not in DTYPES:
            raise UsageError(
                f"Unknown dtype {settings.dtype!r}; choose one of {', '.join(DTYPES)}."
            )
        return DTYPES[settings.dtype]
    if embedded and device.type == "cpu" and not _fast_bfloat16():
        return torch.float32
    return "auto"


def _fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; without that it is slower than float32."""
    check = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(check and check())


def device_map(settings: ModelSettings, device: torch.device) -> dict[str, Any]:
    """What `from_pretrained` takes to place the weights.

    With `ModelSettings.max_weights` what is over goes from GPUs to the CPU, and from the CPU stays
    on disk: accelerate reads it from the checkpoint's files whenever it is needed.
    """
    limit = settings.max_weights
    if limit is None:
        if settings.device == "auto" and device.type == "cuda":
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
    if settings.quantize is None:
        return {}
    if find_spec("bitsandbytes") is None:
        raise ModelError(
            "--quantize needs the package bitsandbytes: pip install 'kvstream[quantize]'. A "
            "checkpoint that is quantized already needs no --quantize."
        )
    from transformers import BitsAndBytesConfig

    bits = {f"load_in_{settings.quantize}": True}
    return {"quantization_config": BitsAndBytesConfig(**bits)}


def refuse_too_large(where: str, settings: ModelSettings, device: torch.device) -> None:
    """Compare the weights' size in files with the memory there is, before minutes of loading.

    Raises ModelError. Spread over several devices, a model is accelerate's to place.
    """
    if device_map(settings, device).get("device_map") == "auto":
        return
    size = weight_bytes(where, settings)
    if size is None:
        return
    if DTYPES.get(settings.dtype) == torch.float32:
        size *= 2  # nearly all checkpoints are stored in 16 bits
    needs = size * HEADROOM * BITS.get(settings.quantize or "", 16) / 16
    free = _free_memory() if device.type != "cuda" else torch.cuda.mem_get_info(device)[0]
    if needs > free:
        raise ModelError(
            f"{settings.name} needs about {needs / 1e9:.1f} GB and {free / 1e9:.1f} GB of memory "
            "are free; choose a smaller model, --dtype bfloat16, --quantize, a machine with more, "
            f"or leave part of it on disk, which is slow: --max-weights {free / 2e9:.1f}GB."
        )


def weight_bytes(where: str, settings: ModelSettings) -> int | None:
    """Bytes of a model's safetensors files, in a folder, the cache or on the hub; None: unknown."""
    folder = Path(where)
    if not folder.is_dir():
        import huggingface_hub as hub

        config = hub.try_to_load_from_cache(where, "config.json", revision=settings.revision)
        if not isinstance(config, str):
            return None if settings.offline else _bytes_on_hub(where, settings.revision)
        folder = Path(config).parent
    return sum(f.stat().st_size for f in folder.glob("*.safetensors")) or None


def _bytes_on_hub(name: str, revision: str | None) -> int | None:
    import huggingface_hub as hub

    try:
        info = hub.HfApi().model_info(name, revision=revision, files_metadata=True, timeout=10)
    except Exception:  # whatever is wrong, loading says it better
        return None
    files = [f for f in info.siblings or [] if f.rfilename.endswith(".safetensors")]
    return sum(f.size or 0 for f in files if "/" not in f.rfilename) or None


def _free_memory() -> int:
    import psutil

    return psutil.virtual_memory().available
