"""Which models kvstream can bound, and the reasons given for the others."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from models import BASE, FAMILIES, Family, bounded, fresh
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from kvstream.errors import BudgetError, ModelError, UnsupportedModelError
from kvstream.model.bounded import BoundedModel
from kvstream.model.cache import BoundedCache
from kvstream.model.loading import load
from kvstream.model.probe import bound, trained_length
from kvstream.settings import ModelSettings

MLA = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "head_dim": 8, "num_key_value_heads": 4,
}  # fmt: skip
OLD = {"num_key_value_heads": ..., "intermediate_size": ..., "attention_dropout": ...}
# Each family, and a text that the message must contain.
REFUSED: dict[str, tuple[Family, str]] = {
    "gpt2": (Family("gpt2", {"n_positions": 512, **OLD}), "positions"),
    "opt": (Family("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32, **OLD}), "positions"),
    "gpt-bigcode": (Family("gpt_bigcode", {"n_positions": 512, **OLD}), "positions"),
    "gpt-neo": (
        Family("gpt_neo", {"num_layers": 2, "attention_types": [[["global"], 2]], **OLD}),
        "attention",
    ),
    "biogpt": (Family("biogpt"), "positions"),
    # It counts its positions from the cache and ignores those that it is given.
    "bart": (
        Family(
            "bart",
            {
                "d_model": 32,
                "decoder_layers": 2,
                "decoder_attention_heads": 4,
                "decoder_ffn_dim": 48,
            },
        ),
        "positions",
    ),
    "xglm": (
        Family("xglm", {"d_model": 32, "ffn_dim": 48, "attention_heads": 4, "num_layers": 2}),
        "attention",
    ),
    "bloom": (Family("bloom", OLD), "attention"),
    "mpt": (Family("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, **OLD}), "attention"),
    "falcon-alibi": (Family("falcon", {"alibi": True, **OLD}), "attention"),
    "gptj": (Family("gptj", {"rotary_dim": 4, **OLD}), "attention|positions"),
    "deepseek-v2": (Family("deepseek_v2", MLA), "latent|cannot be removed"),
    "deepseek-v3": (Family("deepseek_v3", MLA), "latent|cannot be removed"),
    "llama4": (
        Family("llama4_text", {"num_local_experts": 2, "head_dim": 8, "intermediate_size_mlp": 48}),
        "chunked_attention|positions",
    ),
    "mamba": (Family("mamba", {"state_size": 4}), "recurrent|kind|text"),
    "mamba2": (
        Family(
            "mamba2", {"num_heads": 8, "head_dim": 8, "state_size": 4, "n_groups": 1, "expand": 2}
        ),
        "recurrent|kind|text",
    ),
    "rwkv": (Family("rwkv", {"attention_hidden_size": 32}), "recurrent|kind|text|attention"),
    "zamba2": (
        Family(
            "zamba2",
            {
                "layers_block_type": ["mamba", "hybrid"],
                "mamba_d_state": 8,
                "n_mamba_heads": 8,
                "mamba_ngroups": 1,
                "chunk_size": 16,
                "num_mem_blocks": 1,
                "attention_head_dim": 16,
                "adapter_rank": 4,
            },
        ),
        "serves several layers",
    ),
    "minimax": (Family("minimax", {"num_local_experts": 4, "head_dim": 8}), "replaced cache"),
    "hunyuan": (Family("hunyuan_v1_dense", {"head_dim": 16}), "positions"),
    "doge": (Family("doge"), "its own"),
    "diffllama": (Family("diffllama"), "its own"),
    "jetmoe": (
        Family("jetmoe", {"num_local_experts": 4, "kv_channels": 8, "num_experts_per_tok": 2}),
        "its own",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_bounded_is_refused_with_the_reason(name: str) -> None:
    family, reason = REFUSED[name]
    model = fresh(family.config())
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        bound(model, f"some/{name}")
    message = str(caught.value)
    assert f"some/{name}" in message
    assert "\n" not in message
    assert "Traceback" not in message
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recurrent_layers_that_forget_are_refused(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Jamba in transformers 5.23: one token continues from the state, several do not."""
    model = fresh(FAMILIES["qwen3.5"].config()).to(dtype)
    for layer in model.model.layers[0].linear_attn.parameters():
        layer.data.mul_(0.01)  # so the logits hardly change
    bound(copy.deepcopy(model), "some/qwen")
    own = BoundedCache.get_recurrent_state

    def forgetful(self: BoundedCache, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        state = own(self, *args, **kwargs)
        return None if state is None else torch.zeros_like(state)

    monkeypatch.setattr(BoundedCache, "get_recurrent_state", forgetful)
    with pytest.raises(UnsupportedModelError, match="forget their state"):
        bound(model, "some/qwen")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name", ["qwen3.5", "qwen3-next", "lfm2", "falcon-h1", "granite-hybrid", "nemotron-h", "gemma4"]
)
def test_half_precision_is_no_reason_to_refuse(name: str, dtype: torch.dtype) -> None:
    found = bound(fresh(FAMILIES[name].config()).to(dtype), name)
    assert [s.index for s in found.states] == [s.index for s in bounded(name).states]


def test_what_layers_carry_is_found_out() -> None:
    model = bounded("falcon-h1")
    assert [spec.index for spec in model.layers] == [0, 1]
    assert [state.index for state in model.states] == [0, 1]
    state = model.states[0]
    assert state.shapes["recurrent.0"] == ((1, 8, 8, 8), torch.float32)
    assert state.bytes == 4 * (8 * 8 * 8 + 80 * 4)
    assert [spec.index for spec in bounded("qwen3.5").layers] == [1]
    assert [state.index for state in bounded("zaya").states] == [0, 1]
    assert not bounded("llama").states


def test_what_layers_share_is_found_out() -> None:
    assert [spec.shared_by for spec in bounded("gemma4").layers] == [(2,), (3, 4)]
    assert [spec.shared_by for spec in bounded("gemma3n").layers] == [(3,), (), (4,)]
    assert not any(spec.shared_by for spec in bounded("gemma3").layers)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_an_encoder_decoder_is_refused(kind: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        kind, vocab_size=50, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2,
        encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16, decoder_ffn_dim=16,
        encoder_attention_heads=2, decoder_attention_heads=2,
    )  # fmt: skip
    model = AutoModelForSeq2SeqLM.from_config(config)
    with pytest.raises(UnsupportedModelError, match="encoder"):
        bound(model, f"some/{kind}")
    # From its files, transformers makes no model at all, or only the decoder.
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="decoder-only") as caught:
        load(ModelSettings(str(tmp_path), device="cpu"))
    assert "again" not in str(caught.value)


def test_a_model_for_another_task_is_named(tmp_path: Path) -> None:
    config = FAMILIES["llama"].config()
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="saved as LlamaForSequenceClassification, which does not"):
        load(ModelSettings(str(tmp_path), device="cpu"))


@pytest.mark.parametrize("text", ["\nGemma 3n requires timm. Run:\n`pip install timm`", ""])
def test_all_lines_of_an_error_are_shown(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fresh(FAMILIES["llama"].config()).save_pretrained(tmp_path)

    def failing(*_: Any, **__: Any) -> Any:
        raise ImportError(text)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", failing)
    with pytest.raises(ModelError, match=r"does not load: ImportError") as caught:
        load(ModelSettings(str(tmp_path), device="cpu"))
    assert text.strip().replace("\n", " ") in str(caught.value)
    assert "Download its files again" in str(caught.value)


def test_a_type_that_kvstream_does_not_compute_in_is_refused(tmp_path: Path) -> None:
    fresh(FAMILIES["llama"].config()).double().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"float64, which kvstream does not .* --dtype float32"):
        load(ModelSettings(str(tmp_path), device="cpu"))
    load(ModelSettings(str(tmp_path), device="cpu", dtype="float32"))


def test_a_refused_model_keeps_its_own_attention() -> None:
    """The caller may still want to use it."""
    model = fresh(REFUSED["doge"][0].config())
    ids = torch.arange(8)[None]
    want = model(input_ids=ids).logits
    with pytest.raises(UnsupportedModelError):
        bound(model, "doge")
    assert torch.equal(model(input_ids=ids).logits, want)


def test_what_the_probe_finds_out() -> None:
    layers = bounded("smollm3").layers
    assert [spec.rotary is not None for spec in layers] == [True, False, True, False]
    layers = bounded("gemma3").layers
    assert [spec.window for spec in layers] == [24, 24, None]
    assert [spec.sight for spec in layers] == [24, 24, None]
    layers = bounded("mistral-sliding").layers  # the memory of every layer is compressed
    assert [spec.window for spec in layers] == [None, None]
    assert [spec.sight for spec in layers] == [24, 24]
    spec = bounded("qwen3").layers[0]
    assert (spec.heads, spec.key_dim, spec.value_dim) == (2, 16, 16)
    assert spec.entry_bytes == 2 * (16 + 16) * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gemma3", "smollm3", "gpt-neox", "mixtral", "gpt-oss"])
def test_the_probe_is_not_misled_by_low_precision(name: str, dtype: torch.dtype) -> None:
    found = bound(fresh(FAMILIES[name].config()).to(dtype), name).layers
    for spec, exact in zip(found, bounded(name).layers, strict=True):
        assert (spec.rotary is None) == (exact.rotary is None)
        assert (spec.window, spec.dtype) == (exact.window, dtype)


def test_logits_in_float32_are_as_exact_as_the_model() -> None:
    """Some models (Beam) compute in 16 bits and return logits in float32."""
    model = fresh(FAMILIES["llama"].config()).to(torch.bfloat16)

    def widened(_: Any, __: Any, out: Any) -> None:
        out.logits = out.logits.float()

    model.register_forward_hook(widened)
    assert bound(model, "llama").layers[0].rotary is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_slow_dimensions_do_not_hide_the_rotation(dtype: torch.dtype) -> None:
    """Keys of some models have huge values in a few dimensions that hardly rotate."""
    model = fresh(FAMILIES["qwen2"].config(head_dim=32))
    with torch.no_grad():
        for layer in model.model.layers:
            bias = layer.self_attn.k_proj.bias
            width = bias.numel() // 2
            bias[width // 2 - 1] += 300  # the slowest pair of the first head
    layers = bound(model.to(dtype), "outliers").layers
    assert all(spec.rotary is not None for spec in layers)


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


LONG = rope("longrope", factor=4.0, original_max_position_embeddings=512,
            short_factor=[1.0] * 4, long_factor=[4.0] * 4)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "settings", "length"),
    [
        ("llama", {}, 2048),
        ("llama", rope("linear", factor=4.0), 2048),
        ("llama", FAMILIES["llama-yarn"].settings, 2048),
        ("llama", FAMILIES["llama3-scaling"].settings, 2048),
        ("llama", rope("dynamic", factor=4.0, original_max_position_embeddings=512), 512),
        ("phi3", {**LONG, "sliding_window": None, "original_max_position_embeddings": 512}, 512),
        ("ministral3", rope("yarn", factor=4.0, original_max_position_embeddings=512,
                            llama_4_scaling_beta=0.1), 512),
    ],
)  # fmt: skip
def test_the_length_that_a_model_was_trained_for(
    kind: str, settings: dict[str, Any], length: int
) -> None:
    config = AutoConfig.for_model(kind, **{**BASE, **settings})
    assert trained_length(config) == length
    model = bound(fresh(config), kind)
    assert model.trained_length == length
    model.new_cache(length)
    with pytest.raises(BudgetError, match=str(length)):
        model.new_cache(length + 1)


def test_logits_that_are_no_numbers_are_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN can come from a weight or the replaced attention. No comparison with NaN is true."""
    model = fresh(FAMILIES["llama"].config())
    model.lm_head.weight.data[3] = torch.nan
    with pytest.raises(UnsupportedModelError, match="not finite in float32"):
        bound(model, "some/llama")
    blind = fresh(FAMILIES["llama"].config())  # PyTorch's attention makes numbers of it
    blind.model.layers[0].self_attn.q_proj.weight.data.fill_(torch.nan)
    with pytest.raises(UnsupportedModelError, match="not finite in float32"):
        bound(blind, "some/llama")
    own = BoundedModel.forward

    def spoiled(self: BoundedModel, *args: Any, **kwargs: Any) -> torch.Tensor:
        hidden = own(self, *args, **kwargs).clone()
        hidden[0] = torch.nan
        return hidden

    monkeypatch.setattr(BoundedModel, "forward", spoiled)
    with pytest.raises(UnsupportedModelError, match="gives different answers"):
        bound(fresh(FAMILIES["llama"].config()), "some/llama")


def test_a_base_model_that_does_not_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code from the hub may have one. The model runs as a whole, or is refused with the reason."""

    def made() -> Any:
        model = fresh(FAMILIES["llama"].config())
        whole, base = model.forward, model.model.forward
        inside: list[bool] = []

        def alone(*args: Any, **kwargs: Any) -> Any:
            if not inside:
                raise TypeError("an argument is missing")
            return base(*args, **kwargs)

        def forward(*args: Any, **kwargs: Any) -> Any:
            inside.append(True)
            try:
                return whole(*args, **kwargs)
            finally:
                inside.clear()

        model.forward, model.model.forward = forward, alone
        return model

    found = bound(made(), "some/llama")
    assert not found.head_is_plain
    own = BoundedModel.forward
    monkeypatch.setattr(BoundedModel, "forward", lambda *args: 2 * own(*args) + 1)
    with pytest.raises(UnsupportedModelError, match="gives different answers"):
        bound(made(), "some/llama")
