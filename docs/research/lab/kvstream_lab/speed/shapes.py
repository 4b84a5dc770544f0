"""Known models with random weights: speed depends on shapes, not on the values of weights."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from kvstream.errors import UsageError
from kvstream.model.folders import POCKET
from kvstream.model.loading import in_precision
from kvstream.model.placement import device_of, refuse_beyond_memory
from kvstream.model.precision import choose
from kvstream.session.session import Session
from kvstream.settings import ModelSettings
from kvstream.tokenization.loading import load_tokenizer

_LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def _plain_rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


# name: (model_type, vocabulary, hidden, MLP, layers, heads, KV heads, positions, rope, tied)
_SHAPES: dict[str, tuple[str, int, int, int, int, int, int, int, dict[str, Any], bool]] = {
    "tiny": ("llama", 8192, 64, 128, 2, 4, 2, 32768, _plain_rope(1e4), True),
    "smollm2-135m": ("llama", 49152, 576, 1536, 30, 9, 3, 8192, _plain_rope(1e5), True),
    "qwen2.5-0.5b": ("qwen2", 151936, 896, 4864, 24, 14, 2, 32768, _plain_rope(1e6), True),
    "llama-3.2-1b": (
        "llama", 128256, 2048, 8192, 16, 32, 8, 131072, {**_LLAMA_3, "factor": 32.0}, True,
    ),
    "llama-3.1-8b": (
        "llama", 128256, 4096, 14336, 32, 32, 8, 131072, {**_LLAMA_3, "factor": 8.0}, False,
    ),
    "mistral-7b": ("mistral", 32768, 4096, 14336, 32, 32, 8, 32768, _plain_rope(1e6), False),
    "llama-2-7b": ("llama", 32000, 4096, 11008, 32, 32, 32, 4096, _plain_rope(1e4), False),
    "llama-2-7b-32k": (
        "llama", 32000, 4096, 11008, 32, 32, 32, 32768,
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}, False,
    ),
}  # fmt: skip
"""From the configurations of the published models. `mistral-7b` is v0.3. `llama-2-7b-32k` is the
one with positions stretched by 8. `tiny` is for trying commands."""
SHAPES = tuple(_SHAPES)


def config(name: str, layers: int | None = None) -> Any:
    """Return a shape's transformers configuration, with `layers` layers if given.

    Raise UsageError for an unknown shape.
    """
    from transformers import AutoConfig

    if name not in _SHAPES:
        raise UsageError(f"Unknown shape {name!r}; choose one of {', '.join(SHAPES)}.")
    kind, vocabulary, hidden, mlp, depth, heads, kv_heads, positions, rope, tied = _SHAPES[name]
    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers or depth,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
        "rope_parameters": rope,
        "tie_word_embeddings": tied,
        "architectures": [{"llama": "Llama", "qwen2": "Qwen2", "mistral": "Mistral"}[kind]
                          + "ForCausalLM"],
    }  # fmt: skip
    if kind == "mistral":
        settings["sliding_window"] = None
    return AutoConfig.for_model(kind, **settings)


def open_shape(name: str, layers: int | None, settings: ModelSettings) -> Session:
    """Open a session with random weights, drawn on the device, and pocket's tokenizer.

    ``auto`` is bfloat16 on a GPU and float32 elsewhere. Raise ModelError if the model is too large.
    """
    from transformers import AutoModelForCausalLM

    started = time.perf_counter()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    shape = config(name, layers)
    device = device_of(settings.device)
    chosen = choose(replace(settings, model=name), device, None)
    if chosen.load == "auto":
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        chosen = replace(chosen, load=dtype, why="the default of a shape")
    dtype = chosen.load
    _refuse_too_large(name, shape, device, dtype)
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(shape, dtype=dtype)
    model.requires_grad_(False)
    whole = config(name).num_hidden_layers
    label = name if layers in (None, whole) else f"{name}, {layers} of {whole} layers"
    bounded = in_precision(model, replace(settings, model=label), chosen)
    load_s = time.perf_counter() - started
    return Session(bounded, load_tokenizer(POCKET), load_s, settings)


def _refuse_too_large(name: str, shape: Any, device: torch.device, dtype: torch.dtype) -> None:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        parameters = AutoModelForCausalLM.from_config(shape, dtype=dtype).parameters()
    remedies = ["choose a smaller shape", "fewer --layers"]
    remedies += ["--dtype bfloat16"] if dtype.itemsize > 2 else []
    size = sum(p.nbytes for p in parameters)
    refuse_beyond_memory(name, size, device, [*remedies, "a machine with more"])
