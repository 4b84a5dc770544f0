"""Return the folder of a model's files: given, fetched, or converted into the cache."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvstream.errors import ModelError
from kvstream.model import int8, placement
from kvstream.model.adapter import AGAIN, SUPPORT, Adapter
from kvstream.model.weights import is_whole
from kvstream.settings import INT8, ModelSettings
from kvstream.store import gguf_file, hub, offered, pocket, reader, stores
from kvstream.store.reader import CARD
from kvstream.store.stores import CACHE_VARIABLE, converted_folder, refuse_undecodable
from kvstream.store.writing import replace

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
FORMAT = 1
"""Version of the conversion. Increase it if files must be converted again."""


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
    if not (path.is_file() and gguf_file.is_gguf(path)):  # opening a pipe would wait for a writer
        raise ModelError(f"{path} is not a model: give a folder, a GGUF file or a hub id.")
    return converted(path, settings.quiet, eight=_in_8_bits(path, settings))


def _merged(adapter: Path, settings: ModelSettings) -> Path:
    read = Adapter.of(adapter)
    base = offered.OFFERS.get(read.base)
    eight = base is not None and base.eight_bits and _in_8_bits(base.path, settings)
    return merged(read, settings.quiet, eight=eight)


def _in_8_bits(path: Path, settings: ModelSettings) -> bool:
    """Return whether to store a file's weights in 8 bits: as asked for, or where nothing else is
    asked for and 8 bits were measured as harmless."""
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


def converted(
    path: Path, quiet: bool = False, *, eight: bool = False, adapter: Adapter | None = None
) -> Path:
    """Return the model folder for a GGUF file. It is made if the cache does not have it.

    `eight`: with large weights in 8 bits instead of 16, for `int8.opened`. An `adapter` is added
    to the weights before.

    Raises ModelError for a problem with the file, the disk or the cache.
    """
    refuse_undecodable(converted_folder(), f"give the cache another place: {CACHE_VARIABLE}=FOLDER")
    digest = digest_of(path)
    key = f"-{adapter.sha256[:16]}" if adapter else ""
    folder = converted_folder() / f"{digest[:32]}-{FORMAT}{key}{int8.SUFFIX if eight else ''}"
    if not is_whole(folder):
        from kvstream.model.gguf import convert  # transformers takes seconds to import

        convert(path, folder, quiet, eight, adapter)
    known = _known(path)
    with suppress(OSError):  # without it, the next start computes the digest again
        if not known.exists():
            known.parent.mkdir(parents=True, exist_ok=True)
            replace(known, lambda file: file.write(digest.encode("ascii")))
    return folder


def merged(adapter: Adapter, quiet: bool = False, *, eight: bool = False) -> Path:
    """Return the merged model folder of an adapter. It is made if the cache does not have it.

    Adapter and base are checked by their digests, which also name the folder. `eight`: with large
    weights in 8 bits, as in `converted`. Raises ModelError for a problem with either, or with
    the cache.
    """
    folder = adapter.folder
    file = offered.fetched(adapter.base)
    if file is None:
        raise ModelError(
            f"{folder / CARD} names the base {adapter.base!r}, which kvstream does not offer. "
            f"{AGAIN}"
        )
    digest = digest_of(file)
    if digest != adapter.base_sha256:
        raise ModelError(
            f"The adapter of {folder} is for the {adapter.base} with the SHA-256 "
            f"{adapter.base_sha256}, and {file} has {digest}. `kvstream models get {adapter.base}` "
            "fetches the right one; if it is that one already, the adapter is for another base."
        )
    result = converted(file, quiet, eight=eight, adapter=adapter)
    with suppress(OSError):  # a newer calibration needs no new weights
        content, there = (folder / SUPPORT).read_bytes(), result / SUPPORT
        # Written whole and only if it changed, because other processes may be reading it.
        if not there.is_file() or there.read_bytes() != content:
            replace(there, lambda file: file.write(content))
    return result


def digest_of(path: Path) -> str:
    """Return the SHA-256 in hex of all parts of a file, concatenated. Raises ModelError."""
    with suppress(OSError, UnicodeDecodeError):
        digest = _known(path).read_text("ascii").strip()
        if len(digest) == 64:
            return digest
    total = hashlib.sha256()
    try:
        for part in gguf_file.parts(path):
            with part.open("rb") as file:
                hashlib.file_digest(file, lambda: total)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error
    return total.hexdigest()


def _known(path: Path) -> Path:
    """Return where the digest of a file is stored: by paths, sizes and modification times."""
    stats = [(str(p.resolve()), p.stat()) for p in gguf_file.parts(path)]
    facts = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return converted_folder() / "digests" / hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
