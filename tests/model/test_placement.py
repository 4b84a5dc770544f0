"""Loading: models that do not fit are refused early, partly kept on disk, or quantized."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import tokenizers
import torch
from cases import every_second
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.errors import ModelError, UsageError
from kvstream.methods.registry import make
from kvstream.model import placement, precision
from kvstream.model.bounded import BoundedModel
from kvstream.model.loading import load
from kvstream.model.weights import weights_in
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings

BUDGET = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 5 MB in several files, as on the hub."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=512, num_hidden_layers=10,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    where = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(where, max_shard_size="1MB")
    return where


def read(model: BoundedModel) -> tuple[Reader, list[int]]:
    """Read a text of three times the budget with `streaming`, and answer."""
    text = torch.randint(3, 500, (3 * BUDGET,), generator=torch.Generator().manual_seed(1)).tolist()
    sizes = BudgetSplit(BUDGET, prompt=1, catalyst=0, question=3, answer=8)
    run = RunSettings(budget=Budget(tokens=BUDGET), method="streaming")
    reader = Reader(model, make("streaming"), run, sizes, head=[1], estimate=len(text))
    while reader.seen < len(text):
        piece = Chunk(text[reader.seen :][: reader.schedule.chunk()], reader.seen)
        reader.step(piece, last=reader.seen + len(piece.ids) == len(text))
    answer = list(reader.answer([5, 6, 7], lambda x: int(x.argmax()), frozenset(), 8))
    assert reader.cache.peak.tokens <= BUDGET
    return reader, answer


@pytest.fixture(autouse=True)
def as_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the type of the weights, even on a CPU that computes faster in another one."""
    monkeypatch.setattr(precision, "is_fast", lambda name: True)


@pytest.fixture(scope="module")
def whole(folder: Path) -> tuple[BoundedModel, Reader, list[int]]:
    """Return the model without a limit, its reader and its answer."""
    model = load(ModelSettings(str(folder), device="cpu", dtype="bfloat16"))
    return (model, *read(model))


@pytest.mark.parametrize("limit", every_second([1_000_000, 3_000_000, 10_000]))
def test_weights_beyond_the_limit_stay_on_disk(
    folder: Path, whole: tuple[BoundedModel, Reader, list[int]], limit: int
) -> None:
    """The answer is bit-identical, even with a limit too small for the embeddings."""
    model, a, said = whole
    part = load(ModelSettings(str(folder), device="cpu", max_weights=limit))
    held = sum(p.nbytes for p in part.model.parameters() if p.device.type != "meta")
    assert held <= limit < sum(p.nbytes for p in model.model.parameters())
    assert part.device.type == "cpu"
    b, also = read(part)
    assert said == also
    for one, other in zip(a.cache.stores, b.cache.stores, strict=True):
        assert torch.equal(one.keys[:, : one.used], other.keys[:, : other.used])
    held = sum(p.nbytes for p in part.model.parameters() if p.device.type != "meta")
    assert held <= limit


class Full:
    """Main memory with 2 MB free."""

    available = 2_000_000


def test_what_is_too_large_is_refused_before_it_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", Full)
    with pytest.raises(ModelError, match=r"needs about .*--quantize 4bit.* --max-weights") as told:
        load(ModelSettings(str(folder), device="cpu"))
    assert "bfloat16" not in str(told.value)  # the model has this type already
    # float32 would be widened from bfloat16, which is already too large.
    with pytest.raises(ModelError, match="needs about") as told:
        load(ModelSettings(str(folder), device="cpu", dtype="float32"))
    assert "bfloat16" not in str(told.value)
    load(ModelSettings(str(folder), device="cpu", max_weights=1_000_000))


def fits(folder: Path, free: float, monkeypatch: pytest.MonkeyPatch, **how: Any) -> bool:
    """Return whether the model is accepted if `free` bytes are free."""
    settings = ModelSettings(str(folder), device="cpu", **how)
    monkeypatch.setattr(placement, "free_memory", lambda _: int(free))
    cpu = torch.device("cpu")
    dtype = precision.precision_of(settings, cpu).load
    try:
        placement.refuse_too_large(str(folder), settings, cpu, dtype)
    except ModelError:
        return False
    return True


def test_only_files_that_are_loaded_count(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mistral publishes the same weights a second time, in one file for another program."""
    both = tmp_path / "both"
    shutil.copytree(folder, both)
    size = weights_in(folder).bytes
    (both / "consolidated.safetensors").write_bytes(bytes(size))
    assert weights_in(both).bytes == size
    assert fits(both, 1.15 * size, monkeypatch)
    assert not fits(both, 1.05 * size, monkeypatch)


def test_sizes_are_those_of_the_numbers_in_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights stored in float32 do not grow in float32, and shrink in bfloat16."""
    full = tmp_path / "float32"
    LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).save_pretrained(full)
    size = weights_in(full).bytes
    assert size == 2 * weights_in(folder).bytes
    for where, how, least in (
        (full, {}, size),
        (full, {"dtype": "float32"}, size),
        (full, {"dtype": "bfloat16"}, size / 2),
        (full, {"quantize": "8bit", "dtype": "float32"}, size / 4),
        (folder, {"dtype": "float32"}, size),
        (folder, {"dtype": "float16"}, size / 2),
        (folder, {"quantize": "4bit"}, size / 8),
    ):
        assert fits(where, 1.11 * least, monkeypatch, **how), (where, how)
        assert not fits(where, 1.09 * least, monkeypatch, **how), (where, how)
    config = full / "config.json"
    config.write_text(config.read_text().replace('"float32"', '"bfloat16"'))
    assert fits(full, 1.11 * size / 2, monkeypatch)
    loaded = load(ModelSettings(str(full), device="cpu"))
    assert sum(p.nbytes for p in loaded.model.parameters()) == size / 2


def test_one_gpu_is_compared_with_its_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, count = 2_000_000, 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (free, 10 * free))
    with pytest.raises(ModelError, match=r"0\.0 GB of memory are free.* to the CPU"):
        load(ModelSettings(str(folder)))
    settings, device = ModelSettings(str(folder)), placement.device_of("auto")
    assert placement.device_map(settings, device) == {"device_map": {"": torch.device("cuda")}}
    count = 2  # accelerate distributes the layers
    placement.refuse_too_large(str(folder), settings, device, "auto")
    assert placement.device_map(settings, device) == {"device_map": "auto"}


@pytest.mark.parametrize("name", ["meta", "hpu", "nothing"])
def test_a_device_that_cannot_compute_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"--device '{name}' cannot be used here") as caught:
        placement.device_of(name)
    assert "Expected one of" not in str(caught.value)


def test_sizes_are_known_from_folder_cache_and_hub(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub as hub

    here, online, offline = str(folder), ModelSettings(), ModelSettings(offline=True)
    size = weights_in(folder).bytes
    assert size == sum(p.nbytes for p in load(ModelSettings(here)).model.parameters())

    def known(where: str, settings: ModelSettings) -> int | None:
        weights = placement.weights_of(where, settings)
        return weights and weights.loaded()

    assert known(here, offline) == size
    cached: str | None = str(folder / "config.json")
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_, **__: cached)
    assert known("some/model", offline) == size
    cached = None
    assert known("some/model", offline) is None

    class Tensor:
        dtype, parameter_count, data_offsets = "F32", 3, (4, 16)

    file = SimpleNamespace(tensors={"a": Tensor, "b": Tensor})
    found = SimpleNamespace(files_metadata={"model.safetensors": file})
    monkeypatch.setattr(hub.HfApi, "get_safetensors_metadata", lambda *_, **__: found)
    assert known("some/model", online) == 24
    # As after fetching the tokenizer only: the weights are missing.
    config = tmp_path / "config.json"
    config.write_text('{"dtype": "bfloat16"}')
    cached = str(config)
    assert known("some/model", online) == 12
    assert known("some/model", offline) is None

    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(hub.HfApi, "get_safetensors_metadata", unreachable)
    assert known("some/model", online) is None


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
        ("./nowhere.gguf", {}, "There is no file nowhere.gguf"),
        ("nobody/nothing", {"offline": True}, "--offline was given"),
    ],
)
def test_missing_models_are_told_with_the_remedy(
    name: str, more: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is not asked. That would take 24 seconds of retries."""
    looked: list[Any] = []

    def look(*asked: Any, **_: Any) -> None:
        looked.append(asked)
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", look)
    with pytest.raises(ModelError, match=message):
        load(ModelSettings(name, device="cpu", **more))
    assert not looked


def in_cache(folder: Path, hub: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a snapshot of org/some from a folder, in the layout of the hub's library."""
    snapshot = hub / "models--org--some/snapshots/0123abc"
    shutil.copytree(folder, snapshot)
    (hub / "models--org--some/refs").mkdir()
    (hub / "models--org--some/refs/main").write_text("0123abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(hub))
    return snapshot


def told(name: object) -> str:
    """Return the error for a model that cannot be loaded offline."""
    with pytest.raises(ModelError) as caught:
        load(ModelSettings(str(name), device="cpu", offline=True))
    return str(caught.value)


def test_a_hub_that_cannot_be_reached_is_asked_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library alone would retry each file for 23 seconds."""
    from huggingface_hub import constants

    snapshot = in_cache(folder, tmp_path / "hub", monkeypatch)
    letters = tokenizers.Tokenizer(WordLevel({"a": 0, "?": 1}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="?").save_pretrained(snapshot)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        began = time.monotonic()
        cached = Session.open(ModelSettings("org/some", device="cpu"))
        with pytest.raises(ModelError, match=r"the hub cannot be reached .*; check the name and"):
            Session.open(ModelSettings("org/none", device="cpu"))
        assert time.monotonic() - began < 15
    assert cached.model.fingerprint == load(ModelSettings(str(folder), device="cpu")).fingerprint
    assert not constants.HF_HUB_OFFLINE


def test_a_cached_model_without_safetensors_is_told_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = in_cache(folder, tmp_path / "hub", monkeypatch)
    cached = load(ModelSettings("org/some", device="cpu", offline=True))
    assert cached.fingerprint == load(ModelSettings(str(folder), device="cpu")).fingerprint
    shards = sorted(snapshot.glob("*.safetensors"))
    shards[0].unlink()
    assert re.search(rf"{shards[0].name} is missing; .*again without --offline", told("org/some"))
    for file in (*shards[1:], snapshot / "model.safetensors.index.json"):
        file.unlink()
    assert re.search("cache without its weights; .*again without --offline", told("org/some"))
    (snapshot / "pytorch_model.bin").write_bytes(b"not looked at")
    for where, more in (("org/some", ".* without --offline"), (snapshot, "")):
        says = rf"no safetensors weights but pytorch_model\.bin;{more}.*save_pretrained"
        assert re.search(says, told(where))


def test_damaged_files_are_named_with_their_sizes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    shard = sorted(copy.glob("*.safetensors"))[1]
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-1000])
    wrong = rf"{shard.name} has {size - 1000:,} bytes and should have {size:,}; "
    assert f"{wrong}copy or download it again" in told(copy)
    in_cache(copy, tmp_path / "hub", monkeypatch)
    assert f"{wrong}remove {tmp_path / 'hub/models--org--some'} and load" in told("org/some")
    shard.write_bytes(b"<html>")
    assert f"{shard.name} is not a safetensors file; copy" in told(copy)
    shard.unlink()
    assert f"{shard.name} is missing; copy" in told(copy)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"[" * 99_999, "the header of .*safetensors is damaged; copy"),
        (
            b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4]}}',
            "the header of its weights",
        ),
        (b'{"a": 5}', "the header of its weights"),
    ],
)
def test_damaged_headers_of_weights_are_told(
    folder: Path, tmp_path: Path, header: bytes, says: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    shard = sorted(copy.glob("*.safetensors"))[0]
    shard.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    assert re.search(says, told(copy))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("intermediate_size", 256, r"30 weights of .*\(128, 512\) in the files and \(128, 256\)"),
        ("num_hidden_layers", 11, r"9 weights that .*such as model\.layers\.10\."),
    ],
)
def test_weights_of_another_configuration_are_refused(
    folder: Path, tmp_path: Path, key: str, value: int, says: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, key: value}))
    message = told(copy)
    assert re.search(says, message)
    assert "download both again" in message


@pytest.mark.parametrize(
    ("content", "says"), [("{", "not valid JSON"), ("[]", "not a JSON object")]
)
def test_a_broken_configuration_is_not_blamed_on_the_tokenizer(
    tmp_path: Path, content: str, says: str
) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=rf"config\.json is {says}.*download"):
        Session.open(ModelSettings(str(tmp_path)))


def test_a_setting_that_transformers_refuses_is_not_blamed_on_the_tokenizer(tmp_path: Path) -> None:
    wrong = {"model_type": "llama", "rope_parameters": "x"}
    (tmp_path / "config.json").write_text(json.dumps(wrong))
    with pytest.raises(ModelError, match=r"The config\.json of .* cannot be used: .*rope_param"):
        Session.open(ModelSettings(str(tmp_path)))


def test_an_index_of_weights_without_metadata_is_told(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    index = copy / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    index.write_text(json.dumps({"weight_map": content["weight_map"]}))
    assert "index.json has no metadata; copy or download it again" in told(copy)


def test_unknown_devices_and_types_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="kvstream doctor"):
        load(ModelSettings(str(folder), device="cuda:7"))
    with pytest.raises(UsageError, match=r"dtype is one of .* not 'int3'"):
        load(ModelSettings(str(folder), device="cpu", dtype="int3"))


@pytest.mark.parametrize(
    ("stored", "slow", "expected"),
    [
        ("bfloat16", {"bfloat16", "float16"}, torch.float32),
        ("float16", {"float16"}, torch.float32),
        ("bfloat16", {"float16"}, "auto"),
        ("float32", {"bfloat16", "float16"}, "auto"),
    ],
)
def test_a_cpu_that_is_slow_with_16_bits_computes_in_float32(
    stored: str,
    slow: set[str],
    expected: Any,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = tmp_path / "m"
    dtype = getattr(torch, stored)
    LlamaForCausalLM.from_pretrained(folder, dtype=dtype).save_pretrained(here)
    monkeypatch.setattr(precision, "is_fast", lambda name: name not in slow)
    cpu = torch.device("cpu")

    def chosen(**how: Any) -> Any:
        settings = ModelSettings(str(here), **how)
        return precision.precision_of(settings, cpu, str(here)).load

    assert chosen() == expected
    assert chosen(dtype=stored) == dtype
    assert load(ModelSettings(str(here), device="cpu")).layers[0].dtype == (
        dtype if expected == "auto" else expected
    )
    # Weights that do not fit in float32 keep their type, to be widened. So do weights on disk.
    monkeypatch.setattr(placement, "free_memory", lambda _: int(weights_in(here).bytes * 1.2))
    assert chosen() == (dtype if stored in slow else "auto")
    assert chosen(max_weights=10**9) == "auto"
    assert chosen(quantize="8bit") == "auto"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_temporary_tensors_of_loading_leave_no_holes(warm: list[str], tmp_path: Path) -> None:
    program = """
import random, sys
import torch
from kvstream.model.ahead import returning_memory

def memory():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

def tensor(megabytes):
    return torch.ones(int(megabytes * 2**20), dtype=torch.uint8)

def run():
    draw, stay, before = random.Random(1).uniform, [], memory()
    for _ in range(40):
        temporary = tensor(draw(2, 16))
        stay.append(tensor(draw(1.1, 3)))
        del temporary
    return (memory() - before) / sum(map(torch.numel, stay))

print((returning_memory()(run) if sys.argv[1] == "returning" else run)())
"""
    (tmp_path / "program.py").write_text(program)
    shares = [
        float(subprocess.check_output([*warm, str(tmp_path / "program.py"), how]))
        for how in ("returning", "as it comes")
    ]
    assert shares[0] < 1.05 < shares[1]
