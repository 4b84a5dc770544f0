"""What the lab compares speed with: other programs, StreamingLLM, shapes."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import gguf_files
import models
import psutil
import pytest
import torch
from rows import rows_of
from transformers import AutoModelForCausalLM

from kvstream.errors import KvstreamError, ModelError, UnsupportedModelError, UsageError
from kvstream.evaluation.speed import systems
from kvstream.evaluation.speed.timing import measured_flops, reading_flops
from kvstream.settings import ModelSettings
from kvstream_lab.speed import floor, llamacpp, outside, shapes, streaming

SETTINGS = ModelSettings(device="cpu")
TINY = ("--budget", "256", "--threads", "1", "--runs", "1", "-n", "3", "-q")
FIELDS = {
    "bench", "system", "method", "model", "tokens", "budget", "load_s", "prefill_s", "select_s",
    "tokens_per_s", "peak_kv_tokens", "peak_kv_bytes", "peak_rss_bytes", "peak_device_bytes",
    "runs", "first_token_s", "total_s", "decode_tokens_per_s", "cpu_s", "threads", "dtype",
}  # fmt: skip


def test_reading_and_encoding_alone_are_fast(lab: Any) -> None:
    """The text is long enough for a stable rate. The goal is 5 MB/s; the test asks for a tenth."""
    rows = rows_of(
        lab("speed", "--shape", "tiny", "--layers", "1", "--lengths", "20k", "--budget",
            "1k", "--threads", "1", "--runs", "1", "-n", "3", "-q", "--method", "streaming",
            "--against", "reading", "--json")
    )  # fmt: skip
    assert rows[-1]["system"] == "reading"
    assert rows[-1]["text_mb_per_s"] > 0.5


def test_every_system_takes_part_and_has_all_fields(lab: Any) -> None:
    rows = rows_of(
        lab("speed", "--shape", "tiny", "--layers", "1", "--lengths", "600", *TINY,
            "--method", "streaming", "--limit", "0", "--json",
            "--against", "floor,floor-sdpa,full,transformers,reading,streamingllm")
    )  # fmt: skip
    names = [r["system"] for r in rows]
    assert names == [
        "kvstream", "floor", "floor-sdpa", "transformers", "full", "reading", "streamingllm",
    ]  # fmt: skip
    assert all(r.keys() >= FIELDS for r in rows)
    assert {r["model"] for r in rows} == {"tiny, 1 of 2 layers"}
    ours, floor, _, whole, full, reading, token_by_token = rows
    assert reading["text_bytes"] > 1200
    rate = reading["text_bytes"] / reading["cpu_s"] / 1e6  # no meaningful rate of so short a text
    assert reading["text_mb_per_s"] == pytest.approx(rate, rel=0.1, abs=0.01)
    assert ours["peak_kv_tokens"] <= 256
    # The floor reads the same chunks with the same memory, but without the prompt.
    assert floor["peak_kv_tokens"] == pytest.approx(ours["peak_kv_tokens"], abs=8)
    assert ours["select_share"] == pytest.approx(ours["select_s"] / ours["prefill_s"], rel=0.2)
    assert {"ratio_to_floor", "ratio_to_transformers", "cpu_ratio_to_streamingllm"} <= set(ours)
    assert 0 < ours["peak_share"] < 1
    assert whole["peak_kv_tokens"] == full["peak_kv_tokens"] == 600
    assert token_by_token["peak_kv_tokens"] == 256
    assert token_by_token["measured_tokens"] == 256 + streaming.SAME_SPEED
    for row in (ours, floor, full, whole, token_by_token):
        assert row["prefill_s"] < row["first_token_s"] < row["total_s"]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("qwen2.5-0.5b", 494_032_768),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.1-8b", 8_030_261_248),
        ("mistral-7b", 7_248_023_552),
        ("llama-2-7b-32k", 6_738_415_616),
    ],
)
def test_shapes_have_the_parameters_of_the_models(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shapes.config(name))
    assert model.num_parameters() == parameters


@pytest.mark.parametrize("name", ["llama", "qwen3.5"])
def test_streamingllm_is_the_model_itself_where_all_fits(name: str) -> None:
    model, ids = models.bounded(name), models.tokens(20)
    seen = []
    torch.manual_seed(0)
    run = model.model.forward
    model.model.forward = lambda **k: seen.append(run(**k)) or seen[-1]
    try:
        streaming.read_token_by_token(model, ids, 32, [5], 1, 100)
    finally:
        del model.model.forward
    found = torch.cat([out.logits[0] for out in seen])
    expected = models.plain(name)(torch.tensor([[*ids, 5]])).logits[0]
    assert torch.allclose(found, expected, atol=2e-4)


def test_other_caches_count_entries_in_the_type_in_which_they_hold_them() -> None:
    ids, model = models.tokens(40), models.bounded("llama").storing(torch.bfloat16)
    records = [
        floor.read_floor(model, ids, [(40, 40)], [5], 1),
        streaming.read_token_by_token(model, ids, 40, [5], 1, 100),
        systems.read_plain(model, ids, None, [5], 1),
    ]
    entries = 40 * sum(2 * spec.heads * spec.key_dim * 4 for spec in model.layers)
    assert [record["peak_kv_bytes"] for record in records] == [entries] * 3


def test_streamingllm_holds_the_sinks_and_the_newest() -> None:
    model, ids = models.bounded("llama"), models.tokens(40)
    layers: list[Any] = []
    make = streaming._Window
    streaming._Window = lambda *a: layers.append(make(*a)) or layers[-1]  # type: ignore
    try:
        streaming.read_token_by_token(model, ids, 16, [], 0, 100)
    finally:
        streaming._Window = make  # type: ignore
    kept = [*ids[: streaming.SINKS], *ids[-(16 - streaming.SINKS) :]]
    reference = models.plain("llama")(torch.tensor([kept]), use_cache=True).past_key_values
    # The values of the first layer depend on nothing but the token.
    assert torch.allclose(layers[0].v, reference.layers[0].values[0], atol=1e-5)
    assert torch.allclose(
        layers[0].spec.rotary.rotate(layers[0].k, 0), reference.layers[0].keys[0], atol=1e-4
    )


def test_operations_are_those_of_the_products() -> None:
    """Compare with PyTorch's counter of the products in a forward pass of the model."""
    from torch.utils.flop_counter import FlopCounterMode

    session = shapes.open_shape("tiny", 2, SETTINGS)
    model = session.model
    ids = torch.tensor([models.tokens(96)])
    with FlopCounterMode(display=False) as counter:
        model.model.set_attn_implementation("eager")
        model.model.base_model(ids)
    attention_scores = 2 * 96 * 96 * 4 * (16 + 16) * 2  # eager also computes what the mask hides
    expected = counter.get_total_flops() - attention_scores
    causal = 2 * 4 * (16 + 16) * 2 * 96 * 97 / 2
    assert reading_flops(model, [(96, 96)]) == pytest.approx(expected + causal, rel=0.01)
    assert measured_flops(torch.device("cpu"), torch.float32) > 1e8


def test_a_shape_that_memory_has_no_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half:
        available = 20 * 10**9

    monkeypatch.setattr(psutil, "virtual_memory", Half)
    wanted = r"llama-2-7b needs about 29\.6 GB and 20\.0 .*fewer --layers.*--dtype bfloat16"
    with pytest.raises(ModelError, match=wanted):
        shapes.open_shape("llama-2-7b", None, SETTINGS)
    Half.available = 10**6
    with pytest.raises(ModelError, match=r"needs about 0\.0 .*fewer --layers, or"):
        shapes.open_shape("tiny", None, ModelSettings(device="cpu", dtype="bfloat16"))


FAKE = """
from contextlib import contextmanager

class SnapKVPress:
    def __init__(self, compression_ratio):
        self.ratio = compression_ratio

    def forward_hook(self, module, inputs, kwargs, output):
        cache = kwargs["cache" if "cache" in kwargs else "past_key_values"]
        layer = cache.layers[module.layer_idx]
        kept = round(layer.keys.shape[2] * (1 - self.ratio))
        layer.keys, layer.values = layer.keys[:, :, :kept], layer.values[:, :, :kept]
        return output

    @contextmanager
    def __call__(self, model):
        hooks = [
            layer.self_attn.register_forward_hook(self.forward_hook, with_kwargs=True)
            for layer in model.model.layers
        ]
        yield
        for hook in hooks:
            hook.remove()
"""


@pytest.fixture
def fake_kvpress(tmp_path: Path, warm: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a Python that has kvpress; only for ``-c`` does it import PyTorch anew."""
    (tmp_path / "kvpress.py").write_text(FAKE)
    info = tmp_path / "kvpress-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvpress\nVersion: 9.9\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\nexec {shlex.join(warm)} "$@"\n'
    )
    python.chmod(0o755)
    return str(python)


def test_kvpress_runs_in_its_own_process(fake_kvpress: str) -> None:
    session = shapes.open_shape("tiny", None, SETTINGS)
    with outside.Kvpress(
        outside.KVPRESS.check(fake_kvpress), session.model, random=True, revision=None
    ) as kvpress:
        assert kvpress.loaded["versions"]["kvpress"] == "9.9"
        found = kvpress.read(models.tokens(400), 100, [5, 6], 3)
        assert found["kept"] == 100
        assert found["peak_kv_tokens"] == 400
        # Two layers: when the second layer is full, the first is already compressed.
        entry = 2 * 2 * 16 * 4
        assert found["peak_kv_bytes"] == (100 + 400) * entry
        assert found["prefill_s"] < found["first_token_s"] < found["total_s"]
        with pytest.raises(KvstreamError, match="kvpress failed"):
            kvpress.read([], 100, [5], 3)
        assert kvpress.read(models.tokens(50), 100, [5], 1)["kept"] == 50
        process = kvpress._process
    assert process is not None
    assert process._process.poll() is not None


def test_kvpress_that_is_missing_is_told_with_the_remedy() -> None:
    for python, what in ((None, "needs --kvpress-python"), ("/nowhere/python", "is not a program")):
        with pytest.raises(UsageError, match=what) as caught:
            outside.KVPRESS.check(python)
        assert "pip install kvpress" in str(caught.value)
    with pytest.raises(UsageError, match="has no kvpress"):
        outside.KVPRESS.check(sys.executable)


FAKE_LLAMA = """
import time
from types import SimpleNamespace as Some
from pathlib import Path

clock = [0.0]  # of this fake alone, so that a busy machine changes nothing
time.process_time = lambda: clock[-1]

llama_flash_attn_type = Some(LLAMA_FLASH_ATTN_TYPE_ENABLED=1, LLAMA_FLASH_ATTN_TYPE_DISABLED=0)
get_system_info = lambda: "AVX2 = 1"

def CommonParams():
    return Some(model=Some(), cpuparams=Some(), cpuparams_batch=Some())

class Server:
    def __init__(self, params):
        self.params, self.cached, self.read = params, [], 0
        import gguf
        fields = gguf.GGUFReader(params.model.path).fields
        # As the real server, which reads no prompt longer than the model was trained for.
        params.n_ctx = min(params.n_ctx, fields["llama.context_length"].contents())

    def handle_completions(self, asked):
        if asked["prompt"][:1] == [666]:
            return {"error": "no such token"}
        assert len(asked["prompt"]) + asked["n_predict"] <= self.params.n_ctx
        p = self.params
        better = p.model.path.endswith("Q8_0.gguf"), bool(p.flash_attn_type), p.n_ubatch == 128
        clock.append(clock[-1] + 0.1 / 2 ** sum(better))
        return {"choices": [{"tokens": [7] * asked["n_predict"]}]}
"""


@pytest.fixture
def fake_llamacpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "xllamacpp.py").write_text(FAKE_LLAMA)
    info = tmp_path / "xllamacpp-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: xllamacpp\nVersion: 9.9\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return sys.executable


def test_llamacpp_takes_part_at_its_best(fake_llamacpp: str, tmp_path: Path) -> None:
    session = shapes.open_shape("tiny", None, SETTINGS)
    source = tmp_path / "model.gguf"
    gguf_files.write(source)
    converted = tmp_path / "converted"
    converted.mkdir()
    (converted / "origin.json").write_text(json.dumps({"files": [str(source)]}))
    session.model.model.name_or_path = str(converted)
    python = llamacpp.LLAMACPP.check(fake_llamacpp)
    with llamacpp.Llamacpp(python, session.model) as rival:
        found = rival.read(models.tokens(600), "full", None, [5, 6], 3)
        assert found["setting"] == {"kind": "Q8_0", "ubatch": 128, "flash": True}
        assert len(found["tried"]) == 8
        assert found["system_info"] == "AVX2 = 1"
        assert found["cpu_s"] == pytest.approx(0.0125)  # the fast setting did the reading
        assert found["decode_cpu_tokens_per_s"] > 0
        assert found["peak_rss_bytes"] > 10**6
        assert rival.read(models.tokens(600), "sliding", 100, [5], 3)["peak_kv_tokens"] == 100
        with pytest.raises(KvstreamError, match=r"xllamacpp failed.*no such token"):
            rival.read([666], "full", None, [5], 3)


def test_another_type_of_gguf_holds_the_same_numbers(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from kvstream_lab.speed.llamacpp_worker import write

    source, target = tmp_path / "model.gguf", tmp_path / "other.gguf"
    gguf_files.write(source)
    write(str(source), str(target), "F16")
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(target)
    names = set(before.fields) - {"GGUF.tensor_count", "GGUF.kv_count", "GGUF.version"}
    assert names <= set(after.fields)
    for name in names:
        assert before.fields[name].contents() == after.fields[name].contents()
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert (old.name, list(old.shape)) == (new.name, list(new.shape))
        numbers = (gguf.dequantize(t.data, t.tensor_type) for t in (old, new))
        assert torch.allclose(*(torch.tensor(n) for n in numbers), rtol=1e-3, atol=1e-6)


def test_a_copy_claims_more_positions_and_nothing_else(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from kvstream_lab.speed.llamacpp_worker import copy

    source, target = tmp_path / "model.gguf", tmp_path / "other.gguf"
    gguf_files.write(source)
    before = source.read_bytes()
    copy(str(source), str(target), 1 << 20)
    assert source.read_bytes() == before
    after = target.read_bytes()
    assert len(after) == len(before)
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert changed[-1] - changed[0] < 4  # one number of four bytes
    claimed = gguf.GGUFReader(target).fields["llama.context_length"].contents()
    assert claimed == 1 << 20


def test_llamacpp_needs_the_gguf_file() -> None:
    session = shapes.open_shape("tiny", None, SETTINGS)
    with pytest.raises(UsageError, match=r"use -m MODEL\.gguf"):
        llamacpp.gguf_of(session.model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--against", "llamacpp"), "needs --llamacpp-python"),
        (("--against", "kvpress"), "needs --kvpress-python"),
        (("--shape", "gpt-5"), "Unknown shape 'gpt-5'; choose one of tiny"),
        (("--shape", "tiny", "-m", "pocket"), "two models"),
        (("--layers", "2"), "--layers is for a --shape"),
        (("--llamacpp-python", "python"), "--llamacpp-python is for --against llamacpp"),
    ],
)
def test_usage_errors(lab: Any, arguments: tuple[str, ...], message: str) -> None:
    done = lab("speed", *arguments)
    assert done.code == 2
    assert message in done.stderr


def test_the_floor_of_recurrent_layers_counts_their_states() -> None:
    model, ids = models.bounded("qwen3.5"), models.tokens(40)
    record = floor.read_floor(model, ids, [(20, 20), (20, 10)], [5], 3)
    entries = 40 * sum(spec.entry_bytes for spec in model.layers)
    assert record["peak_kv_bytes"] == entries + sum(spec.bytes for spec in model.states)
    with pytest.raises(UnsupportedModelError, match="has no floor"):
        floor.read_floor(models.bounded("falcon-h1"), ids, [(40, 20)], [5], 3)
