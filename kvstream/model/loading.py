"""From a name to a bounded model: the hub's cache, a local folder, or the embedded pocket."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch

from kvstream import pocket
from kvstream.errors import ModelError
from kvstream.model.attention import resolve
from kvstream.model.bounded import BoundedModel, bound
from kvstream.model.placement import (
    device_map,
    device_of,
    dtype_of,
    quantization,
    refuse_too_large,
)
from kvstream.settings import ModelSettings

POCKET = "pocket"


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
    device = device_of(settings.device)
    common: dict[str, Any] = {
        "revision": settings.revision,
        "local_files_only": settings.offline or settings.name == POCKET,
        "trust_remote_code": settings.trust_remote_code,
    }
    dtype = dtype_of(settings, device, embedded=settings.name == POCKET)
    refuse_too_large(where, settings, device, dtype)
    placement = {**device_map(settings, device), **quantization(settings)}
    _quiet()
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            where, dtype=dtype, use_safetensors=True, **placement, **common
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise _explained(settings, error) from error
    model.requires_grad_(False)
    bounded = bound(model, settings.name)
    bounded.way = resolve(settings.attn, bounded.device, bounded.layers[0].dtype)
    return bounded


def _quiet() -> None:
    """Keep transformers' bars and notices off stderr; the hub's download bar stays."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for library in ("transformers", "accelerate", "bitsandbytes"):
        logging.getLogger(library).setLevel(logging.ERROR)
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
