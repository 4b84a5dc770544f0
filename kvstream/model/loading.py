"""Load a bounded model: from the hub, a local folder or file, or the embedded pocket."""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from kvstream.errors import ModelError, is_out_of_memory
from kvstream.model import int8, placement
from kvstream.model.attention import resolve
from kvstream.model.bounded import BoundedModel
from kvstream.model.folders import POCKET, folder
from kvstream.model.linear import speed_up, widen
from kvstream.model.precision import Precision, choose, types_line
from kvstream.model.probe import bound
from kvstream.model.weights import INDEX, SINGLE, damage
from kvstream.settings import ModelSettings

WRITING = ("CausalLM", "LMHead", "ConditionalGeneration")
"""Parts of the names of classes that write text."""


def load(settings: ModelSettings, where: str | None = None) -> BoundedModel:
    """Load, place and probe a model; `where` is its `folder`, if known.

    Raises ModelError with the remedy, UnsupportedModelError, MemoryError.
    """
    if settings.threads:
        torch.set_num_threads(int(settings.threads))
    where = where or folder(settings)
    device = placement.device_of(settings.device)
    local = settings.offline or settings.model == POCKET
    precision = choose(settings, device, where)
    if not int8.is_packing(Path(where)):  # then it was checked before, and the weights take memory
        placement.refuse_too_large(where, settings, device, precision.load)
    placed = {**placement.device_map(settings, device), **placement.quantization(settings)}
    _quiet()
    if where.endswith(int8.SUFFIX):
        return in_precision(int8.opened(Path(where)), settings, precision)
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            where,
            revision=settings.revision,
            local_files_only=local,
            trust_remote_code=settings.trust_remote_code,
            dtype=precision.load,
            use_safetensors=True,
            # Returns weights of the wrong shape for `_check_complete`; transformers' report is off.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            # Otherwise transformers asks the hub for an adapter, and retries for 24 seconds.
            adapter_kwargs={"local_files_only": local},
            **placed,
        )
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(f"while {settings.model} was loaded") from error
        raise _explained(settings, where, error) from error
    model, info = loaded
    if getattr(model.config, "quantization_config", None) is None:
        # Quantizers check their own names and shapes.
        _check_complete(settings, where, info)
    if model.dtype == torch.float64:
        raise ModelError(
            f"{settings.model} computes in float64, which kvstream does not support; add --dtype "
            "float32."
        )
    model.requires_grad_(False)
    return in_precision(model, settings, precision)


def in_precision(model: Any, settings: ModelSettings, precision: Precision) -> BoundedModel:
    """Probe a model and set its number types. Raises ModelError, UnsupportedModelError."""
    if precision.widen:
        widen(model)
    bounded = bound(model, settings.model).storing(precision.kv, precision.attention)
    if precision.int8 and not int8.is_quantized(model):
        int8.quantize(model, settings.model)
        cache = bounded.new_cache(min(int8.SAMPLE, bounded.trained_length))
        int8.keep_large_columns(
            model, lambda ids: bounded.logits(bounded.forward(ids[: cache.capacity], cache))
        )
    speed_up(model)
    bounded.backend = resolve(settings.attn, bounded.device, bounded.attention_dtype)
    types = bounded.dtype, bounded.attention_dtype, bounded.kv_dtype
    bounded.precision = types_line(*types, precision.why)
    return bounded


def refuse_together(settings: ModelSettings, skim: ModelSettings) -> None:
    """Raise ModelError if two models do not fit in the device's memory together."""
    size = 0
    for one in (settings, skim):
        where, device = folder(one), placement.device_of(one.device)
        own = placement.loaded_size(where, one, device, choose(one, device, where).load)
        if own is None:
            return
        size += own
    remedies = ["choose smaller models", "--dtype bfloat16", "let one model read everything: "
                "--skim none"]  # fmt: skip
    placement.refuse_beyond_memory(f"{settings.model} with {skim.model}", size, device, remedies)


def _quiet() -> None:
    """Turn off the progress bars and notices of transformers; the hub's download bar stays."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for library in ("transformers", "accelerate", "bitsandbytes"):
        logging.getLogger(library).setLevel(logging.ERROR)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _check_complete(settings: ModelSettings, where: str, info: dict[str, Any]) -> None:
    """Raise ModelError if the files lack weights, which would be initialized at random."""
    name = settings.model
    remedy = (
        "config.json and weights belong to different models, or are damaged: download both again."
    )
    wrong, missing = sorted(info["mismatched_keys"]), sorted(info["missing_keys"])
    if wrong:
        key, stored, expected = wrong[0]
        raise ModelError(
            f"{len(wrong)} weights of {name} do not fit its config.json, such as {key} with shape "
            f"{tuple(stored)} in the files and {tuple(expected)} by the configuration; {remedy}"
        )
    if missing and (reason := _other_kind(placement.folder_of(where, settings.revision))):
        raise ModelError(f"{name} {reason}; kvstream needs a decoder-only language model.")
    if missing:
        raise ModelError(
            f"{len(missing)} weights that the config.json of {name} asks for are not in its files, "
            f"such as {missing[0]}; {remedy}"
        )


def _other_kind(path: Path | None) -> str | None:
    """Return why the model of a folder is no causal language model, or None."""
    if path is None:
        return None
    with suppress(OSError, ValueError, AttributeError, TypeError):
        config = json.loads((path / "config.json").read_text("utf-8"))
        if config.get("is_encoder_decoder"):  # transformers takes only the decoder
            return "has an encoder, which reads its input as a whole"
        kinds = config.get("architectures") or ()
        if kinds and not any(writes in kind for kind in kinds for writes in WRITING):
            return f"is saved as {kinds[0]}, which does not write text"
    return None


def _explained(settings: ModelSettings, where: str, error: Exception) -> ModelError:
    """Convert an error of transformers or the hub to a ModelError with the remedy."""
    name, kind, text = settings.model, type(error).__name__, str(error)
    chain = f"{kind} {text} {type(error.__cause__).__name__} {error.__cause__}"
    fetched = isinstance(error, OSError) or "Offline" in chain or "Connection" in chain
    if "GatedRepo" in chain or "gated" in text.lower():
        why = f"{name} is gated: accept its license on its hub page, then set HF_TOKEN."
    elif "trust_remote_code" in text:
        why = f"{name} has its own Python code; if you trust it, add --trust-remote-code."
    elif unknown := re.search(r"Unrecognized configuration class <class '.*?(\w+)'>", text):
        why = (
            f"{name} has the configuration {unknown[1]}, which is not that of a causal language "
            "model; kvstream needs a decoder-only language model."
        )
    elif "does not appear to have a file named" in text and SINGLE in text:
        why = _no_safetensors(name)
    elif wrong := _wrong_files(settings, where, fetched):
        why = wrong
    elif fetched and settings.offline:
        why = (
            f"The model {name!r} cannot be loaded: it is not in the local cache and --offline was "
            "given."
        )
    elif fetched:
        why = (
            f"The model {name!r} cannot be loaded: it is not a local folder, and not in the cache "
            "or on the hub as far as can be reached from here; check the name and the network."
        )
    else:
        reason = " ".join(text.split())[:300].rstrip(".")
        why = (
            f"The model {name!r} does not load: {kind}: {reason}. Download its files again, update "
            "transformers, or choose another model."
        )
    return ModelError(why)


def _no_safetensors(name: str, files: str = "", more: str = "") -> str:
    return (
        f"{name} has no safetensors weights{files}; choose a revision that has them, {more}or "
        "convert it with transformers: "
        "`AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER)`."
    )


def _wrong_files(settings: ModelSettings, where: str, fetched: bool) -> str | None:
    """Return what is wrong with local files, or None; `fetched`: opening them failed."""
    name, path = settings.model, placement.folder_of(where, settings.revision)
    if path is None:
        return None
    local = os.path.isdir(where)
    again = "load it again without --offline" if settings.offline else "load it again"
    if fetched and not any((path / file).is_file() for file in (SINGLE, INDEX)):
        others = sorted(file.name for file in path.glob("*.bin"))
        if others or local:
            more = "load it without --offline if the hub has them, " if settings.offline else ""
            files = f" but {others[0]}" if others else ""
            if local:
                return _no_safetensors(name, files)
            return _no_safetensors(f"{name}, as it is in the local cache,", files, more)
        return f"{name} is in the local cache without its weights; check the network and {again}."
    try:
        wrong = damage(path)
    except FileNotFoundError as error:
        if not fetched:
            return None
        wrong = f"{Path(error.filename).name} is missing"
        remedy = "copy or download it again" if local else f"check the network and {again}"
    else:
        # Files of the cache are links. They are fetched again only if their targets are removed.
        cached = path.parent.parent
        remedy = "copy or download it again" if local else f"remove {cached} and {again}"
    return wrong and f"The model {name!r} is damaged: {wrong}; {remedy}."
