"""Tiny models with random weights, one for each kind of decoder, built from a configuration.

The weights are so large that attention is peaked and every norm, bias and sink matters. With the
usual small initialization, a wrong position or a lost key would hardly show in the logits.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kvstream.model.bounded import BoundedModel
from kvstream.model.probe import bound

VOCABULARY = 97
BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_dropout": 0.0,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 512,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip


LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
MAMBA = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_expand": 2,
    "mamba_n_groups": 1, "mamba_chunk_size": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A kind of decoder: its configuration, and what the slow reference must know about it."""

    kind: str
    """``model_type`` of the configuration."""
    settings: dict[str, Any] = field(default_factory=dict)
    pairs: str = "half"
    """Rotary pairs: dimensions ``half`` the rotated width apart, or ``neighbors``."""
    backwards: bool = False
    """Whether pairs turn in the opposite direction."""
    unrotated: tuple[int, ...] = ()
    """Layers without positions."""

    def config(self, **changes: Any) -> Any:
        merged = {**BASE, **self.settings, **changes}
        return AutoConfig.for_model(self.kind, **{k: v for k, v in merged.items() if v is not ...})


def _sliding(*pattern: str, window: int = 24) -> dict[str, Any]:
    kinds = {"s": "sliding_attention", "f": "full_attention"}
    return {
        "num_hidden_layers": len(pattern),
        "layer_types": [kinds[p] for p in pattern],
        "sliding_window": window,
    }


# fmt: off
FAMILIES: dict[str, Family] = {
    "llama": Family("llama"),
    "llama3-scaling": Family("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": Family("llama", {"rope_parameters": YARN}),
    "mistral": Family("mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral-sliding": Family("mistral", {"sliding_window": 24, "head_dim": 16}),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3", {"head_dim": 16}),
    "gemma2": Family("gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16, **_sliding(*"sf")}),
    "gemma3": Family(
        "gemma3_text", {"head_dim": 16, "query_pre_attn_scalar": 16, **_sliding(*"ssf")}
    ),
    "phi3": Family("phi3", {"sliding_window": None}),
    "olmo2": Family("olmo2"),
    "gpt-neox": Family("gpt_neox", {"rotary_pct": 0.5, "num_key_value_heads": ...}),
    "smollm3": Family(
        "smollm3",
        {"num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0], "layer_types": None},
        unrotated=(1, 3),
    ),
    # The rest runs with ``-m long``, in test files that use every family.
    "mixtral": Family("mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "qwen2-moe": Family(
        "qwen2_moe", {"num_experts": 4, "shared_expert_intermediate_size": 24, **EXPERTS}
    ),
    "qwen3-moe": Family("qwen3_moe", {"num_experts": 4, "head_dim": 16, **EXPERTS}),
    "gemma": Family("gemma", {"head_dim": 16}),
    "olmo": Family("olmo", {"clip_qkv": 2.0}),
    "olmo3": Family("olmo3", _sliding(*"ssf")),
    "olmoe": Family("olmoe", {"num_experts": 4, **EXPERTS}),
    "granite": Family(
        "granite",
        {
            "logits_scaling": 3.0,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.7,
        },
    ),
    "granite-moe": Family("granitemoe", {"num_local_experts": 4, "logits_scaling": 3.0, **EXPERTS}),
    "granite-moe-shared": Family(
        "granitemoeshared", {"num_local_experts": 4, "shared_intermediate_size": 24, **EXPERTS}
    ),
    "phi": Family("phi", {"partial_rotary_factor": 0.5}),
    "phimoe": Family("phimoe", {"num_local_experts": 4, "sliding_window": None, **EXPERTS}),
    "stablelm": Family("stablelm", {"partial_rotary_factor": 0.25}),
    "glm": Family("glm", {"head_dim": 16, "partial_rotary_factor": 0.5}, pairs="neighbors"),
    "glm4": Family("glm4", {"head_dim": 16, "partial_rotary_factor": 0.5}, pairs="neighbors"),
    "glm4-moe": Family(
        "glm4_moe",
        {
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "head_dim": 16,
            "first_k_dense_replace": 1,
            "partial_rotary_factor": 0.5,
            **EXPERTS,
        },
    ),
    "cohere": Family("cohere", {"logit_scale": 0.25, "use_qk_norm": True}, pairs="neighbors"),
    "cohere2": Family(
        "cohere2", {"logit_scale": 0.25, **_sliding(*"ssf")}, pairs="neighbors", unrotated=(2,)
    ),
    "exaone4": Family("exaone4", {**_sliding(*"ssf")}, unrotated=(2,)),
    "gpt-oss": Family(
        "gpt_oss",
        {"num_local_experts": 4, "head_dim": 16, **EXPERTS, **_sliding(*"sf")},
    ),
    "starcoder2": Family("starcoder2", {"sliding_window": None}),
    "nemotron": Family("nemotron", {"partial_rotary_factor": 0.5}),
    "helium": Family("helium", {"head_dim": 8}, pairs="neighbors"),
    "ernie4.5": Family("ernie4_5", {"head_dim": 8}, pairs="neighbors"),
    "ernie4.5-moe": Family(
        "ernie4_5_moe",
        {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, **EXPERTS},
        pairs="neighbors",
    ),
    "apertus": Family("apertus"),
    "arcee": Family("arcee"),
    "seed-oss": Family("seed_oss", {"head_dim": 16}),
    "bitnet": Family("bitnet"),
    "cwm": Family("cwm", {"head_dim": 16, **_sliding(*"sf")}),
    "dots1": Family(
        "dots1",
        {
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            **EXPERTS,
        },
    ),
    "flex-olmo": Family("flex_olmo", {"num_experts": 4, **EXPERTS}),
    "minimax-m2": Family("minimax_m2", {"num_local_experts": 4, "head_dim": 16, **EXPERTS}),
    "ministral": Family("ministral", {"head_dim": 16, **_sliding(*"sf")}),
    "nanochat": Family("nanochat", backwards=True),
    "persimmon": Family("persimmon", {"partial_rotary_factor": 0.5}),
    "vaultgemma": Family(
        "vaultgemma", {"head_dim": 16, "query_pre_attn_scalar": 16, **_sliding(*"sf")}
    ),
    "jais2": Family("jais2"),
    "dbrx": Family(
        "dbrx",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 2048,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 2.0, "rope_theta": 1e4},
            "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
            "hidden_size": ...,
            "num_attention_heads": ...,
            "num_hidden_layers": ...,
            "num_key_value_heads": ...,
        },
    ),
    "exaone-moe": Family(
        "exaone_moe",
        {"num_experts": 4, "first_k_dense_replace": 1, **EXPERTS, **_sliding(*"ssf")},
        unrotated=(2,),
    ),
    "afmoe": Family(
        "afmoe",
        {"num_experts": 4, "head_dim": 16, "num_dense_layers": 1, **EXPERTS, **_sliding(*"ssf")},
        unrotated=(2,),
    ),
    "laguna": Family("laguna", {"num_experts": 4, "head_dim": 16, **EXPERTS, **_sliding(*"sf")}),
    "solar-open": Family(
        "solar_open", {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, **EXPERTS}
    ),
    "mimo-v2-flash": Family(
        "mimo_v2_flash",
        {"n_routed_experts": 4, "head_dim": 16, "v_head_dim": 8, **EXPERTS, **_sliding(*"sf")},
    ),
    "hyperclovax": Family("hyperclovax", {"logits_scaling": 2.0}),
    "cohere2-moe": Family(
        "cohere2_moe",
        {"num_experts": 4, "head_dim": 16, "logit_scale": 0.25, **EXPERTS, **_sliding(*"ssf")},
        pairs="neighbors",
        unrotated=(2,),
    ),
    "granite-swa": Family("granite_swa", _sliding(*"sf")),
    "hy-v3": Family("hy_v3", {"num_experts": 4, "head_dim": 16, **EXPERTS}),
    "internlm3": Family("internlm3", {"head_dim": 16}),
    "ministral3": Family("ministral3", {"head_dim": 16}),
    "aria": Family("aria_text", {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1}),
    # Later layers attend to the entries of earlier ones.
    "gemma3n": Family(
        "gemma3n_text",
        {
            "head_dim": 16,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "num_kv_shared_layers": 2,
            "activation_sparsity_pattern": [0.0] * 5,
            "intermediate_size": [48] * 5,
            **_sliding(*"sffsf"),
        },
    ),
    "gemma4": Family(
        "gemma4_text",
        {
            "head_dim": 16,
            "global_head_dim": 16,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 3,
            **_sliding(*"sfsff"),
        },
    ),
    "gemma4-unified": Family(
        "gemma4_unified_text", {"head_dim": 16, "global_head_dim": 16, **_sliding(*"ssf")}
    ),
    # Recurrent layers between attention layers, or in parallel with them.
    "qwen3-next": Family(
        "qwen3_next",
        {
            "num_experts": 4,
            "head_dim": 16,
            "shared_expert_intermediate_size": 24,
            **EXPERTS,
            **LINEAR,
        },
    ),
    "qwen3.5": Family("qwen3_5_text", {"head_dim": 16, **LINEAR}),
    "qwen3.5-moe": Family(
        "qwen3_5_moe_text",
        {
            "num_experts": 4,
            "head_dim": 16,
            "shared_expert_intermediate_size": 24,
            **EXPERTS,
            **LINEAR,
        },
    ),
    "olmo-hybrid": Family("olmo_hybrid", LINEAR),
    "lfm2": Family("lfm2", {"layer_types": ["conv", "full_attention"]}),
    "lfm2-moe": Family(
        "lfm2_moe",
        {
            "num_experts": 4,
            "num_dense_layers": 1,
            "layer_types": ["conv", "full_attention"],
            **EXPERTS,
        },
    ),
    "bamba": Family("bamba", {"attn_layer_indices": [1], **MAMBA}),
    "falcon-h1": Family("falcon_h1", {"mamba_d_ssm": 64, "head_dim": 8, **MAMBA}),
    "granite-hybrid": Family(
        "granitemoehybrid",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 4,
            "shared_intermediate_size": 24,
            **EXPERTS,
            **MAMBA,
        },
        unrotated=(1,),
    ),
    "zaya": Family(
        "zaya",
        {"num_experts": 4, "head_dim": 8, "router_hidden_size": 16, **EXPERTS}
        | {"num_experts_per_tok": 1},
    ),
    "nemotron-h": Family(
        "nemotron_h",
        {
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "attention", "mlp"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 1,
            "chunk_size": 16,
            "head_dim": 8,
            # transformers applies this limit to several tokens, but not to one.
            "time_step_min": 1e-9,
        },
        unrotated=(1,),
    ),
}
# fmt: on
EVERY_RUN = (
    "llama",
    "llama3-scaling",
    "llama-yarn",
    "mistral",
    "mistral-sliding",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "olmo2",
    "gpt-neox",
    "smollm3",
    "qwen3.5",
    "lfm2",
    "falcon-h1",
    "gemma4",
)  # fmt: skip


def fresh(config: Any, seed: int = 0) -> Any:
    """Return a model in float32 with transformers' eager attention and newly drawn weights."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=draw)
            if weight.dim() < 2:  # norms, biases, sinks
                weight.add_(noise, alpha=0.2)
            elif "embed" in name or "lm_head" in name:
                weight.copy_(noise)
            else:
                weight.copy_(noise * 1.5 * weight.shape[-1] ** -0.5)
    return model.eval()


@cache
def plain(name: str) -> Any:
    """Return a tiny model of the family, unchanged by kvstream."""
    return fresh(FAMILIES[name].config())


@cache
def bounded(name: str) -> BoundedModel:
    """Return a copy with the same weights that is set up for a bounded cache."""
    return bound(copy.deepcopy(plain(name)), name)


def tokens(count: int, seed: int = 0, vocabulary: int = VOCABULARY) -> list[int]:
    """Return random ids that are not special tokens."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary, (count,), generator=draw).tolist()
