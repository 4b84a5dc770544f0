"""Load a bounded model by name: from the hub, a local folder or file, or the embedded pocket."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kvstream.errors import ModelError, is_out_of_memory
from kvstream.model import int8, placement
from kvstream.model.attention import resolve
from kvstream.model.bounded import BoundedModel
from kvstream.model.linear import speed_up, widen
from kvstream.model.precision import Precision, precision_of, types_line
from kvstream.model.probe import bound
from kvstream.model.weights import INDEX, SINGLE, damage
from kvstream.settings import INT8, ModelSettings
from kvstream.store import hub, offered, pocket, reader, stores
from kvstream.store.gguf_file import is_gguf

POCKET = "pocket"
_SIZES = {
    "num_hidden_layers": (1, 10_000),
    "hidden_size": (1, 1_000_000),
    "num_attention_heads": (1, 100_000),
    "num_key_value_heads": (1, 100_000),
    "head_dim": (1, 1_000_000),
    "vocab_size": (1, 100_000_000),
    "max_position_embeddings": (1, 10**12),
    "sliding_window": (0, 10**12),
}
"""Minimum and maximum of the sizes in a configuration. No model needs more."""
WRITING = ("CausalLM", "LMHead", "ConditionalGeneration")
"""Parts of the names of classes that write text."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's options, from malloc.h."""


@contextmanager
def returning_memory() -> Iterator[None]:
    """Return blocks over 1 MB to the system at once when they are freed, as glibc does at first.

    After some such blocks it keeps all up to 32 MB. Then temporary tensors leave holes between the
    packed weights: 0.6 GB of the 2.8 GB of a model of 1.5B in 8 bits.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_THRESHOLD, 1 << 20)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, 1 << 25)
        mallopt(_TRIM_THRESHOLD, 1 << 26)


def folder(settings: ModelSettings) -> str:
    """Return the folder or hub id for transformers, made if necessary. Raises ModelError."""
    if settings.model == POCKET:
        return str(pocket.path())
    if settings.model in reader.NAMES:
        offered.fetched(settings.model)
        if not reader.is_shipped(settings.model):
            raise ModelError(
                f"This copy of kvstream has no adapter for {settings.model}. Install a release, or "
                "train one (python docs/research/lab/reader.py)."
            )
        return str(_merged(reader.path(settings.model), settings))
    # Path methods raise for an unknown user and for a name that is too long.
    path = stores.find(settings.model) or Path(os.path.expanduser(settings.model))
    if not os.path.exists(path):
        path = offered.fetched(settings.model) or path
    if os.path.isdir(path):
        stores.refuse_undecodable(path, "rename the folder, or make a link to it")
        if reader.is_adapter(path):
            return str(_merged(path, settings))
        if not (path / "config.json").is_file():
            raise ModelError(
                f"{path} has no config.json; a model folder is what `save_pretrained` writes."
            )
        _check_config(path / "config.json")
        return str(path)
    if os.path.exists(path):
        return str(_converted(path, settings))
    offered.refuse_unsupported(settings.model)
    if settings.model.startswith((".", "/", "~")) or settings.model.count("/") > 1:
        what = "file" if path.suffix.lower() == ".gguf" else "model folder"
        raise ModelError(f"There is no {what} {path}; check the path.")
    return settings.model


def must_be_cached(settings: ModelSettings, where: str) -> bool:
    """Return whether a model can only come from the cache. Raises ModelError if it is not there."""
    if os.path.exists(where):
        return False
    missing = placement.folder_of(where, settings.revision) is None
    if missing and settings.offline:
        raise ModelError(f"{settings.model} is not on this machine; run once without --offline.")
    why = "" if settings.offline else hub.unreachable()
    if missing and why:
        raise ModelError(
            f"The model {settings.model!r} cannot be loaded: it is not a local folder and not in "
            f"the cache, and the hub cannot be reached ({why}); check the name and the network."
        )
    return bool(why)


def _converted(path: Path, settings: ModelSettings) -> Path:
    if not (path.is_file() and is_gguf(path)):  # opening a pipe would wait for a writer
        raise ModelError(f"{path} is not a model: give a folder, a GGUF file or a hub id.")
    from kvstream.model.gguf import converted

    return converted(path, settings.quiet, eight=_in_8_bits(path, settings))


def _merged(adapter: Path, settings: ModelSettings) -> Path:
    from kvstream.model.adapter import Adapter
    from kvstream.model.gguf import merged

    read = Adapter.of(adapter)
    base = offered.OFFERS.get(read.base)
    eight = base is not None and base.eight_bits and _in_8_bits(base.path, settings)
    return merged(read, settings.quiet, eight=eight)


def _in_8_bits(path: Path, settings: ModelSettings) -> bool:
    """Return whether to store a file's weights in 8 bits: as asked for, or where nothing else is
    asked for and 8 bits were measured as harmless."""
    from kvstream.model.gguf import digest_of

    if settings.quantize != INT8:
        if (settings.quantize, settings.dtype, settings.max_weights) != (None, "auto", None):
            return False
        tried = {o.sha256: o.bytes for o in offered.OFFERS.values() if o.eight_bits}
        if path.stat().st_size not in tried.values() or digest_of(path) not in tried:
            return False
    return placement.device_of(settings.device).type == "cpu" and int8.problem() is None


def _check_config(path: Path) -> None:
    """Raise ModelError for a damaged config.json, wrong sizes or files that are not regular.

    Otherwise the tokenizer, which reads the file first, would be blamed, or a model of a wrong size
    would be built for hours.
    """
    wrong = ""
    try:
        config = json.loads(path.read_text("utf-8"))
        wrong = _wrong_size(config) if isinstance(config, dict) else "is not a JSON object"
    except ValueError as error:
        wrong = f"is not valid JSON ({error})"
    except RecursionError:
        wrong = "is nested too deeply"
    except OSError as error:
        wrong = f"cannot be read ({error.strerror})"
    if wrong:
        raise ModelError(f"{path} {wrong}; copy or download the model's config.json again.")
    for file in sorted(path.parent.iterdir()):
        if file.suffix in (".json", ".safetensors") and file.exists() and not file.is_file():
            raise ModelError(
                f"{file} is not a regular file, and reading it may never end; copy or download the "
                "model again."
            )


def _wrong_size(config: dict[str, Any]) -> str:
    """Return what is wrong with the sizes in a configuration; empty if nothing."""
    text = config.get("text_config")
    for sizes in (config, *([text] if isinstance(text, dict) else [])):
        for name, (least, most) in _SIZES.items():
            value = sizes.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                return f"says {name} = {str(value)[:40]}, which must be from {least} to {most:,}"
    return ""


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
