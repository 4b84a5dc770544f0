"""GGUF files for tests: tiny models, written as llama.cpp's converter writes real ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import models
import numpy as np
import torch
from tokenizers import Tokenizer, pre_tokenizers, trainers
from tokenizers.models import BPE

from kvstream.tokenization.tokenizer import byte_alphabet

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = (
    "The ferry left the harbour at ten, and nobody saw the keeper of the lighthouse again. "
    "2026-11-22 10:15:37,104 INFO worker-7 took 1,024 of 8,192 tokens; don't stop, we'll wait. "
    "def read(path: str) -> list[int]: return [int(line) for line in open(path)]"
)


def byte_level(size: int = 400) -> dict[str, Any]:
    """Return the keys of a byte-level tokenizer that was trained on a short text."""
    trained = Tokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(CONTROL),
        initial_alphabet=sorted(byte_alphabet()),
        show_progress=False,
    )
    texts = [TEXT, TEXT.upper(), "    " * 40 + "\n\n\n" * 20, "1234567890" * 20, "é語½ " * 20]
    trained.train_from_iterator(texts, trainer)
    state = trained.model.__getstate__()
    merges = [" ".join(m) if isinstance(m, list) else m for m in json.loads(state)["merges"]]
    vocabulary = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    tokens = [*CONTROL, *(token for token, _ in vocabulary)]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), size)]
    return {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [3] * len(CONTROL) + [1] * (size - len(CONTROL)),
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
    }


def write(
    path: Path,
    model: Any = None,
    tokenizer: dict[str, Any] | None = None,
    *,
    template: Any = CHATML,
    keys: dict[str, Any] | None = None,
    parts: int = 1,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    leave_out: Sequence[str] = (),
    more: dict[str, np.ndarray] | None = None,
    endian: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
) -> Path:
    """Write a tiny model of one of `ARCHITECTURES`, by default of Llama's.

    tokenizer: keys without their prefix; {}: none. Returns the path of the first part.
    """
    model = tiny("llama") if model is None else model
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    tensors = _tensors(model, architecture) | (more or {})
    tensors = {name: array for name, array in tensors.items() if name not in leave_out}
    names = list(tensors)
    for number in range(parts):
        part = path
        if parts > 1:
            part = path.with_name(f"{path.stem}-{number + 1:05}-of-{parts:05}.gguf")
        writer = gguf.GGUFWriter(str(part), architecture, endianess=endian)
        if parts > 1:
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", parts)
        if number == 0:
            first = part
            _add_config(writer, config, architecture)
            vocabulary = byte_level(config.vocab_size) if tokenizer is None else tokenizer
            for name, value in vocabulary.items():
                _add(writer, f"tokenizer.ggml.{name}", value)
            if template is not None:
                _add(writer, "tokenizer.chat_template", template)
            for name, value in (keys or {}).items():
                writer.kv_data[0].pop(name, None)  # replaces the model's own
                _add(writer, name, value)
        for name in names[number::parts]:
            array = tensors[name]
            matrix = array.ndim > 1 and array.shape[-1] % 32 == 0
            stored = kind if matrix else gguf.GGMLQuantizationType.F32
            data = gguf.quantize(array, stored)
            writer.add_tensor(name, data, raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return first


ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3",
    "gemma2": "gemma2", "phi3": "phi3", "mistral": "llama", "qwen3_moe": "qwen3moe",
    "lfm2": "lfm2", "stablelm": "stablelm", "starcoder2": "starcoder2",
}  # fmt: skip


TAKEN_FOR_GRANTED: dict[str, dict[str, Any]] = {
    "gemma3": {"num_hidden_layers": 6, "layer_types": None},
    "qwen3-moe": {"norm_topk_prob": True},
    "lfm2": {"block_auto_adjust_ff_dim": False},
}
"""Settings that a GGUF file leaves out, since all models of the family have them."""


def tiny(family: str, vocabulary: int = 400, **settings: Any) -> Any:
    """Return a model of a family with a vocabulary that holds `byte_level`'s tokens."""
    settings = {**TAKEN_FOR_GRANTED.get(family, {}), **settings}
    found = models.FAMILIES[family].config(vocab_size=vocabulary, **settings)
    return models.fresh(found)


def _tensors(model: Any, architecture: str) -> dict[str, np.ndarray]:
    """Return the tensors with the names and layouts of llama.cpp."""
    config = model.config
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    found = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.float().numpy().copy()
        if name.endswith("experts.gate_up_proj"):
            gate, up = np.split(array, 2, axis=1)
            base = table.get_name(name.replace("gate_up_proj", "gate_proj"))
            found[f"{base}.weight"] = np.ascontiguousarray(gate)
            found[f"{base.replace('gate', 'up')}.weight"] = np.ascontiguousarray(up)
            continue
        short, suffix = name, ""
        if name.endswith((".weight", ".bias")):
            short, _, suffix = name.rpartition(".")
            suffix = f".{suffix}"
        elif "experts" in name:
            suffix = ".weight"
        ours = table.get_name(short)
        assert ours is not None, name
        if architecture == "llama" and ".attn_q." in f"{ours}." and array.ndim == 2:
            array = _interleaved(array, config.num_attention_heads)
        if architecture == "llama" and ".attn_k." in f"{ours}." and array.ndim == 2:
            array = _interleaved(array, config.num_key_value_heads)
        if architecture.startswith("gemma") and "norm" in ours:
            array = array + 1
        if architecture == "lfm2" and array.ndim == 3:
            array = array.squeeze(1)
        found[ours + suffix] = array
    return found


def _interleaved(array: np.ndarray, heads: int) -> np.ndarray:
    """Make the rows of rotated pairs neighbors, as llama.cpp has them for Llama."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def _add_config(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    part = rope.get("partial_rotary_factor") or 1
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if architecture == "lfm2":
        kinds = config.layer_types
        attends = [config.num_key_value_heads * (kind == "full_attention") for kind in kinds]
        writer.add_head_count_kv(attends)
        writer.add_shortconv_l_cache(config.conv_L_cache)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
    epsilon = getattr(config, "rms_norm_eps", None) or getattr(config, "norm_eps", None)
    if epsilon is not None:
        writer.add_layer_norm_rms_eps(epsilon)
    else:
        writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", None) or config.norm_epsilon)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(part * width))
    writer.add_vocab_size(config.vocab_size)
    if width * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(width)
        writer.add_value_length(width)
    if architecture.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(name, value)
    elif isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    else:
        writer.add_string(name, value)


def logits(model: Any, count: int = 40) -> torch.Tensor:
    """Return the logits of some tokens, float32 [count, V]."""
    with torch.no_grad():
        return copy.deepcopy(model).float()(torch.tensor([models.tokens(count)])).logits[0]
