"""Loading: what does not fit is told before, stays on disk, or is quantized."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvstream.engine import Piece, Reader
from kvstream.errors import ModelError, UsageError
from kvstream.methods.registry import make
from kvstream.model import placement
from kvstream.model.bounded import BoundedModel
from kvstream.model.loading import load
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream.sizes import Sizes

BUDGET = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 5 MB in several files, as the hub has them."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=512, num_hidden_layers=10,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    where = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(where, max_shard_size="1MB")
    return where


def read(model: BoundedModel) -> tuple[Reader, list[int]]:
    """Five budgets of tokens through `streaming`, and an answer."""
    text = torch.randint(3, 500, (5 * BUDGET,), generator=torch.Generator().manual_seed(1)).tolist()
    sizes = Sizes(BUDGET, prompt=1, catalyst=0, question=3, answer=8)
    run = RunSettings(budget=Budget(tokens=BUDGET), method="streaming")
    reader = Reader(model, make("streaming"), run, sizes, head=[1], estimate=len(text))
    while reader.seen < len(text):
        piece = Piece(text[reader.seen :][: reader.schedule.chunk()], reader.seen)
        reader.step(piece, last=reader.seen + len(piece.ids) == len(text))
    answer = list(reader.answer([5, 6, 7], lambda x: int(x.argmax()), frozenset(), 8))
    assert reader.cache.peak.tokens <= BUDGET
    return reader, answer


@pytest.mark.parametrize("limit", [3_000_000, 1_000_000, 10_000])
def test_weights_beyond_the_limit_stay_on_disk(folder: Path, limit: int) -> None:
    """Down to a limit that holds not even the embeddings, with the same answer to the bit."""
    whole = load(ModelSettings(str(folder), device="cpu"))
    part = load(ModelSettings(str(folder), device="cpu", max_weights=limit))
    held = sum(p.nbytes for p in part.model.parameters() if p.device.type != "meta")
    assert held <= limit < sum(p.nbytes for p in whole.model.parameters())
    assert part.device.type == "cpu"
    (a, said), (b, also) = read(whole), read(part)
    assert said == also
    for one, other in zip(a.cache.layers, b.cache.layers, strict=True):
        assert torch.equal(one.keys[:, : one.used], other.keys[:, : other.used])
    held = sum(p.nbytes for p in part.model.parameters() if p.device.type != "meta")
    assert held <= limit


def test_what_is_too_large_is_refused_before_it_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        available = 2_000_000

    monkeypatch.setattr(psutil, "virtual_memory", Full)
    with pytest.raises(ModelError, match=r"needs about .* --max-weights"):
        load(ModelSettings(str(folder), device="cpu"))
    load(ModelSettings(str(folder), device="cpu", max_weights=1_000_000))


def test_sizes_are_known_from_folder_cache_and_hub(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub as hub

    size = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    assert placement.weight_bytes(str(folder), ModelSettings()) == size
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_, **__: str(folder / "config.json"))
    assert placement.weight_bytes("some/model", ModelSettings()) == size
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_, **__: None)
    assert placement.weight_bytes("some/model", ModelSettings(offline=True)) is None

    sizes = {"a.safetensors": 7, "b.safetensors": 5, "original/c.safetensors": 9, "d.bin": 3}
    info = SimpleNamespace(
        siblings=[SimpleNamespace(rfilename=n, size=z) for n, z in sizes.items()]
    )
    monkeypatch.setattr(hub.HfApi, "model_info", lambda *_, **__: info)
    assert placement.weight_bytes("some/model", ModelSettings()) == 12

    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(hub.HfApi, "model_info", unreachable)
    assert placement.weight_bytes("some/model", ModelSettings()) is None


@pytest.mark.parametrize("bits", ["8bit", "4bit"])
def test_quantized_weights_are_smaller_and_read_under_the_bound(folder: Path, bits: str) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra `quantize` is not installed")
    whole = load(ModelSettings(str(folder), device="cpu"))
    small = load(ModelSettings(str(folder), device="cpu", quantize=bits))
    assert small.model.get_memory_footprint() < 0.75 * whole.model.get_memory_footprint()
    assert small.fingerprint != whole.fingerprint
    read(small)


def test_quantizing_without_the_library_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        placement, "find_spec", lambda name: None if name == "bitsandbytes" else found(name)
    )
    with pytest.raises(ModelError, match=r"pip install 'kvstream\[quantize\]'"):
        load(ModelSettings(str(folder), device="cpu", quantize="4bit"))


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("./nowhere", {}, "no model folder"),
        ("nobody/nothing", {"offline": True}, "--offline was given"),
    ],
)
def test_missing_models_are_told_with_the_remedy(
    name: str, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load(ModelSettings(name, device="cpu", **more))


def test_unknown_devices_and_types_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="kvstream doctor"):
        load(ModelSettings(str(folder), device="cuda:7"))
    with pytest.raises(UsageError, match="Unknown dtype"):
        load(ModelSettings(str(folder), device="cpu", dtype="int3"))
