"""Local models: the embedded one, aliases, and those in the caches of this and other programs.

Whether a model fits in RAM or GPU memory and can be bounded is decided without loading it: from
``config.json`` and the headers of safetensors files, or from the header of a GGUF file.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstream.api.checks import dict_of, text_of
from kvstream.errors import ModelError
from kvstream.model.weights import HEADROOM, weights_in
from kvstream.run.request import Request
from kvstream.settings import Budget, ModelSettings
from kvstream.store import gguf_file, offered, pocket, reader, stores

BUDGET = 4096
"""Entries of the default budget; a model with a smaller trained length has that instead."""
ORIGIN_BYTES = 4
"""Bytes that an entry needs to store the ordinal of its source token."""
POCKET = "pocket"
EMBEDDED, CACHED, FOLDER, ALIAS = "embedded", "hub cache", "folder", "alias"
FETCHED, FILE = "fetched", "file"

LEAST_SPEED, PEAK = 100, 0.7
"""Minimum tokens per second that `best_model` accepts on a CPU, and the share of the speed of large
products that a reading reaches."""
KEEPS = {"full_attention", "sliding_attention", "chunked_attention", "attention", "hybrid"}
"""Kinds of layers that keep keys and values. States of recurrent layers are not counted."""

UNBOUNDED = dict.fromkeys(
    ("gpt2", "gpt_neo", "opt", "xglm", "biogpt", "ctrl", "gpt_bigcode", "openai-gpt"),
    "it has learned or absolute positions",
) | dict.fromkeys(("bloom", "mpt"), "its positions are ALiBi") | dict.fromkeys(
    ("deepseek_v2", "deepseek_v3", "minicpm3"), "it has latent attention"
) | dict.fromkeys(
    ("mamba", "mamba2", "falcon_mamba", "rwkv", "recurrent_gemma", "xlstm"),
    "it stores no keys and values, or stores them in another form",
) | dict.fromkeys(
    ("t5", "mt5", "umt5", "bart", "mbart", "pegasus"), "it has an encoder"
)  # fmt: skip
"""Kinds of models that the probe refuses when they are loaded, with the reason."""
BOUNDED = {
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "olmo",
    "olmo2", "olmo3", "gpt_neox", "smollm3", "mixtral", "qwen2_moe", "qwen3_moe", "granite",
    "stablelm", "glm", "glm4", "cohere", "cohere2", "exaone4", "gpt_oss", "starcoder2", "nemotron",
    "helium", "ernie4_5", "seed_oss", "ministral", "qwen3_next", "qwen3_5_text", "lfm2",
    "falcon_h1", "gemma3n_text", "gemma4_text",
}  # fmt: skip
"""Kinds of models whose bounded KV cache the tests compare with that of transformers."""
NOT_UNDERSTOOD = (
    OSError, ValueError, TypeError, AttributeError, KeyError, ArithmeticError, RecursionError,
)  # fmt: skip
"""Errors raised by files with unexpected contents."""


@dataclass(frozen=True)
class Room:
    """The device that a model would be loaded to."""

    device: str
    """``cpu`` or ``cuda``; several GPUs count as one device."""
    free: int
    """Free bytes."""


@dataclass(frozen=True)
class ModelEntry:
    """A model that `load` accepts. Sizes are in bytes, or None if unknown."""

    name: str
    where: str
    """EMBEDDED, FETCHED, CACHED, FOLDER, FILE, a label of `stores.STORES`, or ALIAS (an alias of a
    model that is not here)."""
    target: str | None = None
    """The hub id or path that an alias stands for."""
    kind: str | None = None
    """``model_type`` of its configuration, or the architecture of a GGUF file."""
    parameters: int | None = None
    weight_bytes: int | None = None
    kv_tokens: int | None = None
    """Entries of its default budget."""
    kv_bytes: int | None = None
    """Maximum bytes of the entries of that budget. Layers with a sliding window need less; states
    of recurrent layers are not included."""
    needs_bytes: int | None = None
    fits: bool | None = None
    problem: str | None = None
    """Why the model cannot be used now."""
    trained: int | None = None
    """Its trained length in tokens."""
    bounded: bool | None = None
    """Whether its KV cache can be bounded; None: unknown until it is loaded."""


def reader_is_ready() -> bool:
    """Return whether ``reader`` can be loaded: its base was fetched and its adapter is here."""
    return reader.is_shipped() and offered.OFFERS[reader.NAME].is_here()


def best_model(most: float = math.inf) -> offered.Offer | None:
    """Return the largest offered model that this machine holds and reads fast enough, if any.

    It need not be fetched, and has at most `most` bytes to fetch. The speed is that of large
    products here, which were timed once.
    """
    import torch

    from kvstream.model import int8

    room, folder = free_memory(), stores.cache_folder()
    while not folder.exists():
        folder = folder.parent
    products, disk = int8.measured(), shutil.disk_usage(folder).free
    for offer in sorted(offered.OFFERS.values(), key=lambda o: (-o.bytes, not o.same_as)):
        if offer.name in reader.NAMES and not reader.is_shipped(offer.name):
            continue
        eight = offer.eight_bits and room.device == "cpu" and not products["problem"]
        speed = products.get("float32", 0) * (products["many"] if eight else 1)
        tokens = PEAK * speed * torch.get_num_threads() / (2 * offer.passed)
        takes = (2 if eight else 4) * offer.bytes  # 4-bit weights become 8-bit or 16-bit
        fits = takes * (1 if eight else 2) < room.free and takes + offer.bytes < disk
        if fits and offer.bytes <= most and (room.device == "cuda" or tokens >= LEAST_SPEED):
            return offer
    return None


def default_model() -> str:
    """Return the best fetched model; one larger than `reader` only if it is fast enough here."""
    small = offered.OFFERS[reader.NAME].passed
    larger = [o for o in offered.OFFERS.values() if o.passed > small and o.is_here()]
    best = best_model() if larger else None
    fast = [o for o in larger if best is not None and o.passed <= best.passed]
    if fast:
        return max(fast, key=lambda offer: (offer.passed, bool(offer.same_as))).name
    return reader.NAME if reader_is_ready() else POCKET


def available_models(aliases: Mapping[str, str] | None = None) -> list[ModelEntry]:
    """Return the models on this machine, and whether each fits; no model is loaded.

    The list has the embedded model, fetched models, `aliases` (short names for hub ids or paths),
    the hub cache sorted by name, and the GGUF files of Ollama, LM Studio and llama.cpp.
    """
    names = dict_of("aliases", {} if aliases is None else aliases)
    targets = {name: text_of("aliases", target) for name, target in names.items()}
    return list(entries(free_memory(), targets))


def entries(room: Room, aliases: Mapping[str, str]) -> Iterator[ModelEntry]:
    """Yield the models of `available_models`, for the free memory of `room`."""
    yield _entry(POCKET, EMBEDDED, pocket.path(), room)
    for offer in offered.OFFERS.values():
        if offer.is_here() and (offer.name not in reader.NAMES or reader.is_shipped(offer.name)):
            yield _entry(offer.name, FETCHED, offer.path, room)
    folders = dict(_in_cache())
    for alias, target in aliases.items():
        folder = Path(os.path.expanduser(target))
        if target == POCKET:
            yield _entry(alias, EMBEDDED, pocket.path(), room, target)
        elif os.path.isdir(folder):  # Path.is_dir would raise for a name that is too long
            yield _entry(alias, FOLDER, folder, room, target)
        elif os.path.isfile(folder):
            yield _entry(alias, FILE, folder, room, target)
        elif target in folders:
            yield _entry(alias, CACHED, folders[target], room, target)
        else:
            yield ModelEntry(alias, ALIAS, target, problem="not here yet; loading it will fetch it")
    for name, folder in sorted(folders.items()):
        if (folder / "config.json").exists() or not any(folder.rglob("*.gguf")):
            yield _entry(name, CACHED, folder, room)
    for model in stores.stored():
        label = stores.STORES[model.name.partition(":")[0]].label
        if model.problem:
            yield ModelEntry(model.name, label, problem=model.problem)
        else:
            yield _entry(model.name, label, model.path, room)


def free_memory() -> Room:
    """Return the device that ``--device auto`` uses, and its free memory."""
    import psutil
    import torch

    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        return Room("cuda", sum(torch.cuda.mem_get_info(i)[0] for i in range(count)))
    return Room("cpu", psutil.virtual_memory().available)


def _in_cache() -> Iterator[tuple[str, Path]]:
    """Yield hub id and folder of each cached model: of ``main``, else of the newest revision."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = scan_cache_dir().repos
    except (CacheNotFound, ValueError):  # ValueError: the cache is not a folder
        return
    for repo in repos:
        if repo.repo_type == "model" and repo.revisions:
            best = max(repo.revisions, key=lambda r: ("main" in r.refs, r.last_modified))
            yield repo.repo_id, best.snapshot_path


def _entry(name: str, where: str, path: Path, room: Room, target: str | None = None) -> ModelEntry:
    """Return the entry of a folder or a GGUF file, with as many facts as it tells."""
    facts: dict[str, Any] = {}
    whole = not os.path.isdir(path)  # also a broken link to a file
    try:
        weights, entry = _gguf(path, room, facts) if whole else _folder(path, where, facts)
        facts["kv_bytes"] = facts["kv_tokens"] * entry
        facts["needs_bytes"] = round(weights * HEADROOM) + facts["kv_bytes"]
        facts["fits"] = facts["needs_bytes"] <= room.free
    except FileNotFoundError as error:
        facts["problem"] = f"{Path(error.filename).name} is missing"
    except ModelError as error:
        facts["problem"] = str(error).rstrip(".")
    except NOT_UNDERSTOOD as error:
        what = "header" if whole else "files"
        facts["problem"] = f"its {what} cannot be understood ({type(error).__name__}: {error})"
    return ModelEntry(name, where, target, **facts)


def _folder(folder: Path, where: str, facts: dict[str, Any]) -> tuple[int, int]:
    """Add facts of a folder; return the bytes of its weights and of one token's entries."""
    from kvstream.model.placement import device_of
    from kvstream.model.precision import precision_of

    settings = json.loads((folder / "config.json").read_text("utf-8"))
    text = settings.get("text_config") or settings
    kind = settings.get("model_type")
    facts["kind"] = None if kind is None else str(kind)
    facts |= _lengths(text.get("max_position_embeddings"))
    facts["bounded"], facts["problem"] = _bounded(settings, text)
    architectures = settings.get("architectures") or []
    if architectures and not any("CausalLM" in a or "Conditional" in a for a in architectures):
        facts["problem"] = f"no language model that writes ({architectures[0]})"
    sizes = weights_in(folder)
    facts["parameters"], facts["weight_bytes"] = sizes.parameters, sizes.bytes
    precision = precision_of(ModelSettings(POCKET if where == EMBEDDED else ""), device_of("auto"))
    weights = None if precision.load == "auto" else int(precision.load.itemsize)
    number = weights if precision.kv is None else int(precision.kv.itemsize)
    return sizes.loaded(weights), _entry_bytes(text, number or sizes.number_bytes)


def facts_of(name: str, revision: str | None = None) -> tuple[int, int] | None:
    """Return the maximum bytes of a model's weights, and of one token's entries in all layers.

    Both are in the widest type that loading may choose (float32). Of a GGUF file the second is 0.
    Return None if the files are not here or cannot be understood. Does not load torch.
    """
    folder = pocket.path() if name == POCKET else Path(os.path.expanduser(name))
    place = stores.find(name) or offered.fetched(name) or folder
    try:
        if place.is_file():  # GGUF: its numbers become 16-bit, or 32-bit when loaded
            return 8 * place.stat().st_size, 0
        if not place.is_dir():
            import huggingface_hub as hub

            config = hub.try_to_load_from_cache(name, "config.json", revision=revision)
            if not isinstance(config, str):
                return None
            place = Path(config).parent
        settings = json.loads((place / "config.json").read_text("utf-8"))
        entry = _entry_bytes(settings.get("text_config") or settings, 4)
        return round(weights_in(place).loaded(4) * HEADROOM), entry
    except NOT_UNDERSTOOD:
        return None


def is_here(name: str) -> bool:
    """Return whether the files of a model are on this machine; loads nothing."""
    try:
        return facts_of(name) is not None
    except ModelError:  # a store has no such model, or an offered model was not fetched
        return False


def _lengths(length: Any) -> dict[str, int | None]:
    length = None if length is None else int(length)
    return {"trained": length, "kv_tokens": min(BUDGET, length or BUDGET)}


def _bounded(settings: dict[str, Any], text: dict[str, Any]) -> tuple[bool | None, str | None]:
    """Return whether the KV cache can be bounded (None: only loading tells), and why not."""
    kind = text.get("model_type") or settings.get("model_type")
    encodes = settings.get("is_encoder_decoder")
    if reason := "it has an encoder" if encodes else UNBOUNDED.get(kind or ""):
        return False, f"its KV cache cannot be bounded: {reason}"
    return kind in BOUNDED or None, None


def _gguf(path: Path, room: Room, facts: dict[str, Any]) -> tuple[int, int]:
    """Add facts of a GGUF file; return the bytes of its weights and of one token's entries."""
    from kvstream.model.gguf_config import architecture_problem
    from kvstream.model.precision import is_slow

    file = gguf_file.read(path)
    facts["kind"] = file.architecture
    facts["parameters"], facts["weight_bytes"] = file.parameters, file.bytes
    facts |= _lengths(file.of_model("context_length"))
    facts["problem"] = architecture_problem(file)
    facts["bounded"] = facts["problem"] is None
    full = gguf_file.all_float32(file.tensors.values())
    each = 4 if full or is_slow("bfloat16", room.device) else 2
    # The KV cache has the 16-bit type of the converted weights, even if float32 is computed.
    return file.parameters * each, _gguf_entry(file, 4 if full else 2)


def _gguf_entry(file: gguf_file.GGUF, number_bytes: int) -> int:
    """Return the bytes of one token's keys, values and origins over all layers and heads."""
    layers, heads = file.of_model("block_count"), file.of_model("attention.head_count")
    most = max(heads) if isinstance(heads, list) else heads
    keeping = file.of_model("attention.head_count_kv", heads)
    total = sum(keeping) if isinstance(keeping, list) else keeping * layers
    width = file.of_model("attention.key_length") or file.of_model("embedding_length") // most
    numbers = width + (file.of_model("attention.value_length") or width)
    return int(total * (numbers * number_bytes + ORIGIN_BYTES))


def _entry_bytes(text: dict[str, Any], number_bytes: int) -> int:
    """Return the bytes of one token's keys, values and origins over all layers and heads."""

    def first(*names: str) -> int:
        value = next((text[name] for name in names if text.get(name)), None)
        if value is None:
            raise ValueError(f"config.json does not give {names[0]}")
        return int(value)

    heads = first("num_attention_heads", "n_head", "n_heads")
    key_values = first("num_key_value_heads", "num_attention_heads", "n_head", "n_heads")
    if kinds := text.get("layer_types") or text.get("layers_block_type"):
        layers = sum(kind in KEEPS for kind in kinds)
    else:
        layers = first("num_hidden_layers", "n_layer", "n_layers")
    layers -= text.get("num_kv_shared_layers") or 0
    width = text.get("head_dim") or first("hidden_size", "n_embd", "d_model") // heads
    width = max(width, text.get("global_head_dim") or 0)  # Gemma 4's full-attention layers
    return layers * key_values * (2 * int(width) * number_bytes + ORIGIN_BYTES)


LIBRARIES = 700 * 1024**2
"""Bytes of a process without weights and KV cache: torch, transformers, activations."""


def worker_memory(settings: ModelSettings, requests: Iterable[Request]) -> int:
    """Estimate the bytes of a worker: weights in the widest type that loading may choose, KV cache
    and libraries. If the model's files are not here, only libraries and a budget in bytes count."""
    facts = facts_of(settings.model, settings.revision)
    budgets = [request.run.budget or Budget(tokens=BUDGET) for request in requests]
    weights, entry = facts or (0, 0)
    return LIBRARIES + weights + max(b.bytes or (b.tokens or 0) * entry for b in budgets)
