"""From a name to a bounded model: the hub's cache, a local folder, or the embedded pocket."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch

from kvstream import pocket
from kvstream.errors import ModelError, UsageError
from kvstream.model.attention import resolve
from kvstream.model.bounded import BoundedModel, bound
from kvstream.settings import ModelSettings

POCKET = "pocket"
DTYPES = {
    "float32": torch.float32, "fp32": torch.float32,
    "bfloat16": torch.bfloat16, "bf16": torch.bfloat16,
    "float16": torch.float16, "fp16": torch.float16,
}  # fmt: skip
HEADROOM = 1.1
"""Loading needs a little more than the weights alone."""


def folder(settings: ModelSettings) -> str:
    """What transformers is to load: a folder or a hub id. Raises ModelError if it is not there."""
    if settings.name == POCKET:
        return str(pocket.path())
    path = Path(settings.name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                f"{path} has no config.json; a model folder is what `save_pretrained` writes."
            )
        return str(path)
    if settings.name.startswith((".", "/", "~")) or settings.name.count("/") > 1:
        raise ModelError(f"There is no model folder {path}; check the path.")
    return settings.name


def load(settings: ModelSettings) -> BoundedModel:
    """Load, place and probe a model. Raises ModelError with the remedy, UnboundedError."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    where = folder(settings)
    device = _device(settings.device)
    common: dict[str, Any] = {
        "revision": settings.revision,
        "local_files_only": settings.offline or settings.name == POCKET,
        "trust_remote_code": settings.trust_remote_code,
    }
    _refuse_too_large(where, settings, device)
    _quiet()
    from transformers import AutoModelForCausalLM

    placement: dict[str, Any] = {}
    if settings.device == "auto" and device.type == "cuda":
        placement["device_map"] = "auto"  # accelerate spreads it over what there is
    try:
        model = AutoModelForCausalLM.from_pretrained(
            where, dtype=_dtype(settings, device), use_safetensors=True, **placement, **common
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise _explained(settings, error) from error
    if not placement:
        model.to(device)  # type: ignore[arg-type]
    model.requires_grad_(False)
    bounded = bound(model, settings.name)
    bounded.way = resolve(settings.attn, bounded.device, bounded.layers[0].dtype)
    return bounded


def _device(name: str) -> torch.device:
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


def _dtype(settings: ModelSettings, device: torch.device) -> torch.dtype | str:
    if settings.dtype != "auto":
        if settings.dtype not in DTYPES:
            raise UsageError(
                f"Unknown dtype {settings.dtype!r}; choose one of {', '.join(DTYPES)}."
            )
        return DTYPES[settings.dtype]
    if settings.name == POCKET and device.type == "cpu" and not _fast_bfloat16():
        return torch.float32
    return "auto"


def _fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; without that it is slower than float32."""
    check = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(check and check())


def _refuse_too_large(where: str, settings: ModelSettings, device: torch.device) -> None:
    """Compare the weights' size on disk with the memory there is, before minutes of loading."""
    path = Path(where)
    if not path.is_dir() or device.type != "cpu":
        return
    import psutil

    size = sum(f.stat().st_size for f in path.glob("*.safetensors"))
    if DTYPES.get(settings.dtype) == torch.float32:
        size *= 2  # nearly all checkpoints are stored in 16 bits
    free = psutil.virtual_memory().available
    if size * HEADROOM > free:
        raise ModelError(
            f"{settings.name} needs about {size * HEADROOM / 1e9:.1f} GB and {free / 1e9:.1f} GB "
            "of memory are free; choose a smaller model, --dtype bfloat16, or a machine with more."
        )


def _quiet() -> None:
    """Keep transformers' bars and notices off stderr; the hub's download bar stays."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _explained(settings: ModelSettings, error: Exception) -> ModelError:
    """transformers' and the hub's errors in our words, with what to do."""
    name, kind, text = settings.name, type(error).__name__, str(error)
    chain = f"{kind} {text} {type(error.__cause__).__name__} {error.__cause__}"
    if "GatedRepo" in chain or "gated" in text.lower():
        return ModelError(
            f"{name} is gated: accept its licence on its hub page, then set HF_TOKEN."
        )
    if "trust_remote_code" in text:
        return ModelError(
            f"{name} brings its own Python code; --trust-remote-code runs it, if you trust it."
        )
    if "safetensors" in text and Path(folder(settings)).is_dir():
        return ModelError(
            f"{name} has no safetensors weights; convert them with `save_pretrained`."
        )
    if isinstance(error, OSError) or "Offline" in chain or "Connection" in chain:
        remedy = (
            "it is not in the local cache and --offline was given"
            if settings.offline
            else "it is no local folder, and not in the cache or on the hub as far as can be "
            "reached from here; check the name and the network"
        )
        return ModelError(f"The model {name!r} cannot be loaded: {remedy}.")
    return ModelError(f"The model {name!r} does not load: {kind}: {text.splitlines()[0][:300]}")
