"""Models that are here: the embedded one, aliases, and those of this and other programs' caches.

Which of them fit in memory and can be bounded is decided without loading: from ``config.json`` and
the headers of safetensors files, and from the headers of GGUF files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstream.errors import ModelError
from kvstream.model.weights import HEADROOM, weights_in
from kvstream.store import gguf_file, offered, pocket, reader, stores

BUDGET = 4096
"""Tokens of the default budget, or what a model was trained for if that is less."""
ORIGIN_BYTES = 4
"""An entry knows which token of the source it is of."""
POCKET = "pocket"
EMBEDDED, CACHED, FOLDER, ALIAS = "embedded", "hub cache", "folder", "alias"
FETCHED, FILE = "fetched", "file"

KEEPS = {"full_attention", "sliding_attention", "chunked_attention", "attention", "hybrid"}
"""Kinds of layers that keep keys and values. States of recurrent ones come on top."""

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
"""Kinds of models that the probe refuses when they are loaded, and why."""
BOUNDED = {
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "olmo",
    "olmo2", "olmo3", "gpt_neox", "smollm3", "mixtral", "qwen2_moe", "qwen3_moe", "granite",
    "stablelm", "glm", "glm4", "cohere", "cohere2", "exaone4", "gpt_oss", "starcoder2", "nemotron",
    "helium", "ernie4_5", "seed_oss", "ministral", "qwen3_next", "qwen3_5_text", "lfm2",
    "falcon_h1", "gemma3n_text", "gemma4_text",
}  # fmt: skip
"""Kinds of models whose bounded cache the tests compare with transformers' own."""
NOT_UNDERSTOOD = (
    OSError, ValueError, TypeError, AttributeError, KeyError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What files raise that hold other things than a model's should."""


@dataclass(frozen=True)
class Room:
    """Where a model would be put."""

    device: str
    """``cpu`` or ``cuda``; several GPUs count together."""
    free: int
    """Bytes."""


@dataclass(frozen=True)
class ModelEntry:
    """A model that `load` can be given. Sizes are bytes, None if they are unknown."""

    name: str
    where: str
    """EMBEDDED, CACHED, FOLDER, or ALIAS (of something that is not here)."""
    target: str | None = None
    """What an alias stands for."""
    kind: str | None = None
    """``model_type`` of its configuration."""
    parameters: int | None = None
    weight_bytes: int | None = None
    kv_tokens: int | None = None
    """The default budget."""
    kv_bytes: int | None = None
    """What entries of that budget take, at most: layers with a sliding window take less, and
    states of recurrent layers are not in it."""
    needs_bytes: int | None = None
    fits: bool | None = None
    problem: str | None = None
    """Why it cannot be used as it is."""
    trained: int | None = None
    """Tokens that it was trained for."""
    bounded: bool | None = None
    """Whether its KV cache can be bounded; None: loading it tells."""


def reader_is_shipped() -> bool:
    """Whether this copy of the program has the adapter of ``reader``."""
    return reader.is_shipped()


def reader_is_ready() -> bool:
    """Whether ``reader`` can be loaded: its base was fetched, and its adapter is here."""
    return reader.is_shipped() and offered.OFFERS[reader.NAME].is_here()


def available_models(aliases: Mapping[str, str] | None = None) -> list[ModelEntry]:
    """The models that are on this machine, and which of them fit; nothing is loaded.

    The embedded model, fetched ones, `aliases` (short names for hub ids or paths), the hub's cache
    by name, and the GGUF files of Ollama, LM Studio and llama.cpp.
    """
    return list(entries(free_memory(), aliases or {}))


def entries(room: Room, aliases: Mapping[str, str]) -> Iterator[ModelEntry]:
    """The same, for so much memory."""
    yield _entry(POCKET, EMBEDDED, pocket.path(), room)
    for offer in offered.OFFERS.values():
        if offer.is_here() and (offer.name != reader.NAME or reader.is_shipped()):
            yield _gguf(offer.name, FETCHED, offer.path, room)
    cached = dict(_cached())
    for alias, target in aliases.items():
        folder = Path(os.path.expanduser(target))
        if target == POCKET:
            yield _entry(alias, EMBEDDED, pocket.path(), room, target)
        elif os.path.isdir(folder):  # Path would raise for a name that is too long
            yield _entry(alias, FOLDER, folder, room, target)
        elif os.path.isfile(folder):
            yield _gguf(alias, FILE, folder, room, target)
        elif target in cached:
            yield _entry(alias, CACHED, cached[target], room, target)
        else:
            yield ModelEntry(alias, ALIAS, target, problem="not here yet; loading it will fetch it")
    for name, folder in sorted(cached.items()):
        if (folder / "config.json").exists() or not any(folder.rglob("*.gguf")):
            yield _entry(name, CACHED, folder, room)
    for found in stores.stored():
        label = stores.LABELS[found.name.partition(":")[0]]
        if found.problem:
            yield ModelEntry(found.name, label, problem=found.problem)
        else:
            yield _gguf(found.name, label, found.path, room)


def free_memory() -> Room:
    """What is free on the device that ``--device auto`` takes."""
    import psutil
    import torch

    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        return Room("cuda", sum(torch.cuda.mem_get_info(i)[0] for i in range(count)))
    return Room("cpu", psutil.virtual_memory().available)


def _cached() -> Iterator[tuple[str, Path]]:
    """Hub id and folder of each model in the cache: of ``main``, else of the newest revision."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = scan_cache_dir().repos
    except (CacheNotFound, ValueError):  # the latter where it is no folder
        return
    for repo in repos:
        if repo.repo_type == "model" and repo.revisions:
            best = max(repo.revisions, key=lambda r: ("main" in r.refs, r.last_modified))
            yield repo.repo_id, best.snapshot_path


def _entry(
    name: str, where: str, folder: Path, room: Room, target: str | None = None
) -> ModelEntry:
    facts: dict[str, Any] = {}
    try:
        settings = json.loads((folder / "config.json").read_text("utf-8"))
        text = settings.get("text_config") or settings
        facts["kind"] = _kind(settings.get("model_type"))
        facts["trained"] = _whole(text.get("max_position_embeddings"))
        facts["kv_tokens"] = min(BUDGET, facts["trained"] or BUDGET)
        facts["bounded"], facts["problem"] = _bounded(settings, text)
        sizes = weights_in(folder)
        facts["parameters"], facts["weight_bytes"] = sizes.parameters, sizes.bytes
        number_bytes, kv_bytes = _number_bytes(where)
        entry = _entry_bytes(text, kv_bytes or sizes.number_bytes)
        facts["kv_bytes"] = facts["kv_tokens"] * entry
        facts["needs_bytes"] = round(sizes.loaded(number_bytes) * HEADROOM) + facts["kv_bytes"]
        facts["fits"] = facts["needs_bytes"] <= room.free
        architectures = settings.get("architectures") or []
        if architectures and not any("CausalLM" in a or "Conditional" in a for a in architectures):
            facts["problem"] = f"no language model that writes ({architectures[0]})"
    except FileNotFoundError as error:
        facts["problem"] = f"{Path(error.filename).name} is missing"
    except NOT_UNDERSTOOD as error:
        facts["problem"] = f"its files cannot be understood ({type(error).__name__}: {error})"
    return ModelEntry(name, where, target, **facts)


def facts_of(name: str, revision: str | None = None) -> tuple[int, int] | None:
    """Most bytes that the weights of a model take, and an entry of its KV cache over all layers.

    In the widest type that loading may choose (float32). None where its files are not here, or
    cannot be understood. Loads no torch.
    """
    folder = pocket.path() if name == POCKET else Path(os.path.expanduser(name))
    found = stores.find(name) or offered.fetched(name) or folder
    try:
        if found.is_file():  # GGUF: converted into numbers of 16 bits, or of 32 when it is loaded
            return 8 * found.stat().st_size, 0
        if not found.is_dir():
            import huggingface_hub as hub

            config = hub.try_to_load_from_cache(name, "config.json", revision=revision)
            if not isinstance(config, str):
                return None
            found = Path(config).parent
        settings = json.loads((found / "config.json").read_text("utf-8"))
        entry = _entry_bytes(settings.get("text_config") or settings, 4)
        return round(weights_in(found).loaded(4) * HEADROOM), entry
    except NOT_UNDERSTOOD:
        return None


def is_here(name: str) -> bool:
    """Whether the files of a model are on this machine; loads nothing."""
    try:
        return facts_of(name) is not None
    except ModelError:  # a store has no such model, or what is offered was not fetched
        return False


def _kind(found: Any) -> str | None:
    return None if found is None else str(found)


def _whole(found: Any) -> int | None:
    return None if found is None else int(found)


def _number_bytes(where: str) -> tuple[int | None, int | None]:
    """Bytes of a number of the weights and of the KV cache, None where they are as in the files."""
    from kvstream.model.placement import device_of
    from kvstream.model.precision import precision_of
    from kvstream.settings import ModelSettings

    chosen = precision_of(ModelSettings(), device_of("auto"), embedded=where == EMBEDDED)
    weights = None if chosen.load == "auto" else int(chosen.load.itemsize)
    return weights, weights if chosen.kv is None else int(chosen.kv.itemsize)


def _bounded(settings: dict[str, Any], text: dict[str, Any]) -> tuple[bool | None, str | None]:
    """Whether a configuration's KV cache can be bounded, and why not. What is not known, the probe
    tells when the model is loaded."""
    kind = text.get("model_type") or settings.get("model_type")
    reason = UNBOUNDED.get(kind or "")
    if settings.get("is_encoder_decoder"):
        reason = "it has an encoder"
    if reason:
        return False, f"its KV cache cannot be bounded: {reason}"
    return (True, None) if kind in BOUNDED else (None, None)


def _gguf(name: str, where: str, path: Path, room: Room, target: str | None = None) -> ModelEntry:
    """The same of a GGUF file, from its header."""
    from kvstream.model.gguf_config import architecture_problem

    facts: dict[str, Any] = {}
    try:
        file = gguf_file.read(path)
        facts["kind"] = file.architecture
        facts["parameters"], facts["weight_bytes"] = file.parameters, file.bytes
        facts["trained"] = _whole(file.of_model("context_length"))
        facts["kv_tokens"] = min(BUDGET, facts["trained"] or BUDGET)
        facts["problem"] = architecture_problem(file)
        facts["bounded"] = facts["problem"] is None
        full = gguf_file.all_float32(file.tensors.values())
        each = 4 if full else number_bytes(room)
        # The KV cache keeps the 16 bits of the converted weights, also where float32 is computed.
        facts["kv_bytes"] = facts["kv_tokens"] * _gguf_entry(file, 4 if full else 2)
        weights = round(file.parameters * each * HEADROOM)
        facts["needs_bytes"] = weights + facts["kv_bytes"]
        facts["fits"] = facts["needs_bytes"] <= room.free
    except ModelError as error:
        facts["problem"] = str(error).rstrip(".")
    except NOT_UNDERSTOOD as error:
        facts["problem"] = f"its header cannot be understood ({type(error).__name__}: {error})"
    return ModelEntry(name, where, target, **facts)


def number_bytes(room: Room) -> int:
    """Of a number of a converted GGUF file, where nothing else is asked for."""
    from kvstream.model.precision import automatic_dtype

    return automatic_dtype(room.device).itemsize


def _gguf_entry(file: gguf_file.GGUF, number_bytes: int) -> int:
    """Bytes of one token's keys, values and origins over all layers and heads."""
    layers, heads = file.of_model("block_count"), file.of_model("attention.head_count")
    most = max(heads) if isinstance(heads, list) else heads
    keeping = file.of_model("attention.head_count_kv", heads)
    total = sum(keeping) if isinstance(keeping, list) else keeping * layers
    width = file.of_model("attention.key_length") or file.of_model("embedding_length") // most
    numbers = width + (file.of_model("attention.value_length") or width)
    return int(total * (numbers * number_bytes + ORIGIN_BYTES))


def _entry_bytes(text: dict[str, Any], number_bytes: int) -> int:
    """Bytes of one token's keys, values and origins over all layers and heads."""

    def first(*names: str) -> int:
        found = next((text[name] for name in names if text.get(name)), None)
        if found is None:
            raise ValueError(f"config.json does not give {names[0]}")
        return int(found)

    heads = first("num_attention_heads", "n_head", "n_heads")
    key_values = first("num_key_value_heads", "num_attention_heads", "n_head", "n_heads")
    if kinds := text.get("layer_types") or text.get("layers_block_type"):
        layers = sum(kind in KEEPS for kind in kinds)
    else:
        layers = first("num_hidden_layers", "n_layer", "n_layers")
    layers -= text.get("num_kv_shared_layers") or 0
    width = text.get("head_dim") or first("hidden_size", "n_embd", "d_model") // heads
    width = max(width, text.get("global_head_dim") or 0)  # of Gemma 4's layers that do not slide
    return layers * key_values * (2 * int(width) * number_bytes + ORIGIN_BYTES)
