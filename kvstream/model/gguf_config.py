"""Build the transformers configuration of the model in a GGUF file.

The tables of transformers leave out some fields that change the answers, such as the scaling of
rotary frequencies. They are added or refused here: otherwise answers are worse without an error.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.integrations.gguf import GGUF_CONFIG_ARCHS, get_gguf_config
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from kvstream.errors import ModelError, UnsupportedModelError
from kvstream.store.gguf_file import AGAIN, GGUF

HUB = "choose the model in the hub's format"
UNBOUNDED = {
    **dict.fromkeys(
        ("t5", "t5encoder", "umt5", "bert", "nomic-bert", "clip"),
        "is not a decoder-only language model, so it has no KV cache to bound",
    ),
    **dict.fromkeys(
        ("mamba", "mamba2", "rwkv6", "rwkv7"),
        "has only recurrent layers: it keeps no keys and values to bound",
    ),
    "deepseek2": "has latent attention, which cannot be bounded by dropping entries",
}
"""Architectures whose KV cache cannot be bounded, and why."""
KNOWN = {
    {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}.get(name, name.replace("_", "-"))
    for name in GGUF_CONFIG_MAPPING.keys() - {"general", "tokenizer", "deci"}
} | GGUF_CONFIG_ARCHS.keys()
"""Architectures that the tables of transformers know."""
ALWAYS_TIED = {"falcon", "bloom"}
PARTIAL = {"stablelm", "phi3", "nemotron"}
"""Architectures in which transformers can rotate a part of each head."""
CHANGES = (
    "attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias", "logit_scale",
    "embedding_scale", "residual_scale", "attention.temperature_scale",
)  # fmt: skip
"""Keys that change the answers but that the tables of transformers do not read."""


def refuse_architecture(file: GGUF, path: Path) -> None:
    """Raise ModelError or UnsupportedModelError if kvstream cannot use the model."""
    if problem := architecture_problem(file):
        kind = UnsupportedModelError if file.architecture in UNBOUNDED else ModelError
        raise kind(f"{path} ({file.architecture}) {problem}.")


def architecture_problem(file: GGUF) -> str | None:
    """Return why the model cannot run under a budget, judged by its header; None: no problem."""
    if file.architecture in UNBOUNDED:
        return UNBOUNDED[file.architecture]
    if file.architecture not in KNOWN:
        return f"is of an architecture that transformers does not read from GGUF; {HUB}"
    if key := next(filter(file.of_model, CHANGES), None):
        return f"sets {key}, which transformers does not read from GGUF; {HUB}"
    layers, tensors = file.of_model("block_count"), len(file.tensors)
    if isinstance(layers, int) and layers > tensors:  # building them all would take hours
        return f"is damaged: its header announces {layers:,} layers, {tensors:,} tensors; {AGAIN}"
    return None


def model_config(file: GGUF, path: Path) -> Any:
    """Return the transformers configuration. Raises ModelError if the header lacks something."""
    try:
        settings = _from_tables(file)
        settings.pop("_model_name_or_path", None)
        tied = "output.weight" not in file.tensors or file.architecture in ALWAYS_TIED
        settings["tie_word_embeddings"] = tied
        settings.setdefault("pad_token_id", None)  # the class default is for another vocabulary
        settings |= _heads(file, path) | _rope(file, path) | _experts(file)
        kind = settings.pop("model_type")
        settings.pop("architectures", None)
        config = AutoConfig.for_model(kind, **settings)
    except ModelError:
        raise
    except Exception as error:  # the tables and classes raise many kinds of exceptions
        raise ModelError(
            f"The header of {path} lacks something that the model needs "
            f"({type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}); "
            f"{HUB}."
        ) from error
    kinds: Any = AutoModelForCausalLM._model_mapping
    if type(config) not in kinds:
        raise UnsupportedModelError(
            f"{path} ({config.model_type}) is not a decoder-only language model, so it has no KV "
            "cache to bound."
        )
    config.architectures = [kinds[type(config)].__name__]
    return config


def _from_tables(file: GGUF) -> dict[str, Any]:
    if file.architecture in GGUF_CONFIG_ARCHS:
        keys = {
            k: len(v) if isinstance(v, list) and v and isinstance(v[0], str) else v
            for k, v in file.keys.items()
        }
        return dict(get_gguf_config(keys, tuple(file.tensors)))
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return dict(load_gguf_checkpoint(str(file.paths[0]), return_tensors=False)["config"])


def _heads(file: GGUF, path: Path) -> dict[str, Any]:
    """Return the width of the heads, its rotated part, and the scale and caps of the scores."""
    settings: dict[str, Any] = {}
    count = file.of_model("attention.head_count")
    width = file.of_model("attention.key_length")
    if not isinstance(count, int) or file.architecture == "gemma4":
        return settings
    if width and file.architecture not in ("gpt2", "bloom", "falcon", "starcoder2", "qwen2moe"):
        settings["head_dim"] = width
    width = width or file.of_model("embedding_length", 0) // max(count, 1)
    rotated = file.of_model("rope.dimension_count")
    if rotated and rotated != width and not file.architecture.startswith("qwen35"):
        if file.architecture not in PARTIAL:
            raise ModelError(
                f"{path} ({file.architecture}) rotates {rotated} of {width} dimensions of a head, "
                f"which transformers does not read from GGUF; {HUB}."
            )
        settings["partial_rotary_factor"] = rotated / width
        settings.pop("head_dim", None)
    if file.architecture in ("gemma2", "gemma3"):
        # The largest models scale by the model width per head, as llama.cpp does.
        largest = file.of_model("block_count") == {"gemma2": 46, "gemma3": 62}[file.architecture]
        by = file.of_model("embedding_length") // count if largest else width
        settings["query_pre_attn_scalar"] = by
        caps = ("attn_logit_softcapping", "final_logit_softcapping")
        stated = {name: file.of_model(name) for name in caps}
        settings |= {name: cap or None for name, cap in stated.items() if cap is not None}
    return settings


def _experts(file: GGUF) -> dict[str, Any]:
    """Return the widths of experts, which the tables of transformers leave at class defaults."""
    if file.architecture not in ("qwen2moe", "qwen3moe"):
        return {}
    widths = {
        "moe_intermediate_size": file.of_model("expert_feed_forward_length"),
        "shared_expert_intermediate_size": file.of_model("expert_shared_feed_forward_length"),
    }
    return {name: width for name, width in widths.items() if width}


def _rope(file: GGUF, path: Path) -> dict[str, Any]:
    """Return the parameters of rotary positions. Raises ModelError for an unknown scaling."""
    if file.architecture.startswith(("qwen35", "lfm2", "gpt-oss", "gemma4")):
        return {}  # the tables of transformers read the scaling
    base = float(file.of_model("rope.freq_base", 10000.0))
    scaled = _scaling(file, path, base)
    long = scaled.get("rope_type") == "longrope"
    if not long:
        _refuse_factors(file, path)
    if file.architecture == "gemma3":
        near = float(file.of_model("rope.freq_base_swa", 10000.0))
        return {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", **scaled, "rope_theta": base},
                "sliding_attention": {"rope_type": "default", "rope_theta": near},
            }
        }
    if not scaled:
        return {"rope_theta": base}  # some tables of transformers (StarCoder2) leave it out
    name = "original_max_position_embeddings"
    more = {name: scaled[name]} if long else {}
    return {"rope_parameters": {**scaled, "rope_theta": base}, **more}


def _scaling(file: GGUF, path: Path, base: float) -> dict[str, Any]:
    # As in llama.cpp, a factor alone means linear scaling. `scale_linear` is its old name.
    factor = file.of_model("rope.scaling.factor", file.of_model("rope.scale_linear")) or 0.0
    kind = file.of_model("rope.scaling.type", "linear" if factor not in (0, 1) else "none")
    original = file.of_model("rope.scaling.original_context_length")
    length = original or file.of_model("context_length")  # llama.cpp's default
    if "rope_freqs.weight" in file.tensors:
        return _by_frequency(file, path, base)
    if "rope_factors_short.weight" in file.tensors:
        attention = file.of_model("rope.scaling.attn_factor")
        return {
            "rope_type": "longrope",
            "short_factor": _read(file, "rope_factors_short.weight"),
            "long_factor": _read(file, "rope_factors_long.weight"),
            "original_max_position_embeddings": int(length),
            **({"attention_factor": float(attention)} if attention else {}),
        }
    if kind == "linear" and factor:
        return {"rope_type": "linear", "factor": float(factor)}
    if kind == "yarn" and factor:
        betas = {n: file.of_model(f"rope.scaling.yarn_{n}") for n in ("beta_fast", "beta_slow")}
        return {
            "rope_type": "yarn",
            "factor": float(factor),
            "original_max_position_embeddings": int(length),
            **{name: float(beta) for name, beta in betas.items() if beta is not None},
        }
    if kind in ("none", "linear", "yarn", "longrope"):
        return {}
    raise ModelError(
        f"{path} scales its rotary positions by {kind!r}, which kvstream does not know; {HUB}."
    )


ORDINARY = {
    "attn_factor": (0.0, 1.0),
    "yarn_ext_factor": (-1.0, 1.0),
    "yarn_attn_factor": (1.0,),
    "yarn_log_multiplier": (0.0,),
}
"""Values of other fields of a scaling that have no effect."""


def _refuse_factors(file: GGUF, path: Path) -> None:
    """Raise ModelError if another field of the scaling changes what the model computes."""
    for name, ordinary in ORDINARY.items():
        value = file.of_model(f"rope.scaling.{name}")
        if value is not None and float(value) not in ordinary:
            raise ModelError(
                f"{path} scales its rotary positions with {name} {float(value):g}, which kvstream "
                f"does not know; {HUB}."
            )


def _by_frequency(file: GGUF, path: Path, base: float) -> dict[str, Any]:
    """Return the parameters of the Llama 3 scaling. The file has the factor of each frequency."""
    factors = np.array(_read(file, "rope_freqs.weight"))
    low, high, length = 1.0, 4.0, 8192
    factor = round(float(factors.max()), 3)
    lengths = 2 * math.pi * base ** (np.arange(len(factors)) / len(factors))
    smooth = np.clip((length / lengths - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if not np.allclose(factors, expected, rtol=1e-2):
        raise ModelError(
            f"{path} scales its rotary frequencies in its own way (factors up to {factor}), "
            f"and kvstream knows only the way of Llama 3; {HUB}."
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": length,
    }


def _read(file: GGUF, name: str) -> list[float]:
    place = file.tensors[name]
    with place.path.open("rb") as stream:
        stream.seek(place.start)
        return [float(x) for x in np.fromfile(stream, np.float32, count=place.numbers)]
