"""``bench speed``: its measurements, its systems for comparison, and its extrapolations."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf_files
import models
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from kvstream.errors import KvstreamError, ModelError, UnsupportedModelError, UsageError
from kvstream.evaluation.speed import fit, floor, llamacpp, measure, outside, plain, plot, shapes
from kvstream.evaluation.speed.peak import measured_flops, reading_flops
from kvstream.evaluation.speed.systems import NAMES, System, Task
from kvstream.evaluation.speed.timing import Peak
from kvstream.settings import ModelSettings

SETTINGS = ModelSettings(device="cpu")
TINY = ("--budget", "256", "--threads", "1", "--runs", "1", "-n", "3", "-q")
FIELDS = {
    "bench", "system", "method", "model", "tokens", "budget", "load_s", "prefill_s", "select_s",
    "tokens_per_s", "peak_kv_tokens", "peak_kv_bytes", "peak_rss_bytes", "peak_device_bytes",
    "runs", "first_token_s", "total_s", "decode_tokens_per_s", "cpu_s", "threads", "dtype",
}  # fmt: skip


def rows_of(done: Any) -> list[dict[str, Any]]:
    assert done.code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_reading_and_encoding_alone_are_fast(cli: Any) -> None:
    """The text is long enough for a stable rate. The goal is 5 MB/s; the test asks for a tenth."""
    rows = rows_of(
        cli("bench", "speed", "--shape", "tiny", "--layers", "1", "--lengths", "20k", "--budget",
            "1k", "--threads", "1", "--runs", "1", "-n", "3", "-q", "--method", "streaming",
            "--against", "reading", "--json")
    )  # fmt: skip
    assert rows[-1]["system"] == "reading"
    assert rows[-1]["text_mb_per_s"] > 0.5


def test_every_system_takes_part_and_has_all_fields(cli: Any, tmp_path: Path) -> None:
    picture = tmp_path / "speed.png"
    rows = rows_of(
        cli("bench", "speed", "--shape", "tiny", "--layers", "1", "--lengths", "600", *TINY,
            "--method", "streaming", "--limit", "0", "--plot", str(picture), "--json",
            "--against", "floor,floor-sdpa,full,transformers,reading,streamingllm")
    )  # fmt: skip
    names = [r["system"] for r in rows]
    assert names == [
        "kvstream", "floor", "floor-sdpa", "full", "transformers", "reading", "streamingllm",
    ]  # fmt: skip
    assert all(r.keys() >= FIELDS for r in rows)
    assert {r["model"] for r in rows} == {"tiny, 1 of 2 layers"}
    ours, floor, _, full, whole, reading, token_by_token = rows
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
    assert token_by_token["measured_tokens"] == 256 + plain.SAME_SPEED
    for row in (ours, floor, full, whole, token_by_token):
        assert row["prefill_s"] < row["first_token_s"] < row["total_s"]
    assert picture.stat().st_size > 5000


def test_table(cli: Any) -> None:
    done = cli("bench", "speed", "--lengths", "500", *TINY, "--method", "streaming")
    assert "floor of streaming" in done.stdout
    assert "to floor" in done.stdout
    assert "GPU MB" not in done.stdout


# Shapes


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


# Token by token


@pytest.mark.parametrize("name", ["llama", "qwen3.5"])
def test_streamingllm_is_the_model_itself_where_all_fits(name: str) -> None:
    model, ids = models.bounded(name), models.tokens(20)
    seen = []
    torch.manual_seed(0)
    run = model.model.forward
    model.model.forward = lambda **k: seen.append(run(**k)) or seen[-1]
    try:
        plain.read_token_by_token(model, ids, 32, [5], 1, 100)
    finally:
        del model.model.forward
    found = torch.cat([out.logits[0] for out in seen])
    expected = models.plain(name)(torch.tensor([[*ids, 5]])).logits[0]
    assert torch.allclose(found, expected, atol=2e-4)


def test_the_floor_of_recurrent_layers_counts_their_states() -> None:
    model, ids = models.bounded("qwen3.5"), models.tokens(40)
    record = floor.read_floor(model, ids, [(20, 20), (20, 10)], [5], 3)
    entries = 40 * sum(spec.entry_bytes for spec in model.layers)
    assert record["peak_kv_bytes"] == entries + sum(spec.bytes for spec in model.states)
    with pytest.raises(UnsupportedModelError, match="has no floor"):
        floor.read_floor(models.bounded("falcon-h1"), ids, [(40, 20)], [5], 3)


def test_other_caches_count_entries_in_the_type_in_which_they_hold_them() -> None:
    ids, model = models.tokens(40), models.bounded("llama").storing(torch.bfloat16)
    records = [
        floor.read_floor(model, ids, [(40, 40)], [5], 1),
        plain.read_token_by_token(model, ids, 40, [5], 1, 100),
        plain.read_plain(model, ids, None, [5], 1),
    ]
    entries = 40 * sum(2 * spec.heads * spec.key_dim * 4 for spec in model.layers)
    assert [record["peak_kv_bytes"] for record in records] == [entries] * 3


def test_streamingllm_holds_the_sinks_and_the_newest() -> None:
    model, ids = models.bounded("llama"), models.tokens(40)
    layers: list[Any] = []
    make = plain._Window
    plain._Window = lambda *a: layers.append(make(*a)) or layers[-1]  # type: ignore
    try:
        plain.read_token_by_token(model, ids, 16, [], 0, 100)
    finally:
        plain._Window = make  # type: ignore
    kept = [*ids[: plain.SINKS], *ids[-(16 - plain.SINKS) :]]
    reference = models.plain("llama")(torch.tensor([kept]), use_cache=True).past_key_values
    # The values of the first layer depend on nothing but the token.
    assert torch.allclose(layers[0].v, reference.layers[0].values[0], atol=1e-5)
    assert torch.allclose(
        layers[0].spec.rotary.rotate(layers[0].k, 0), reference.layers[0].keys[0], atol=1e-4
    )


# Extrapolation


def test_fit_finds_the_coefficients() -> None:
    points = [(n, 2e-4 * n + 3e-8 * n * n) for n in (1000, 4000, 20000)]
    assert fit.coefficients(points) == pytest.approx((2e-4, 3e-8))
    assert fit.coefficients([(1000, 1.0), (2000, 2.0)]) == pytest.approx((1e-3, 0))
    # If time grows more slowly than the length, the fit must not become negative anywhere.
    linear, square = fit.coefficients([(1000, 1.0), (4000, 2.0)])
    assert linear > 0
    assert square == 0
    linear, square = fit.coefficients([(1000, 1.0), (2000, 8.0)])
    assert linear == 0
    assert square > 0


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> measure.Bench:
    """A bench whose plain cache takes n² microseconds and holds 100 tokens at most."""
    layer = SimpleNamespace(dtype=torch.float32)
    model = SimpleNamespace(
        device=torch.device("cpu"),
        layers=[layer],
        dtype=torch.float32,
        kv_dtype=torch.float32,
        precision="as stored",
    )
    session = SimpleNamespace(model=model, model_name="m", load_s=0.0)

    def run(system: System, task: Task) -> dict[str, Any]:
        n = len(task.ids)
        if system.name == "transformers" and n > 100:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")
        task.steps = [(n, n)]
        return {"prefill_s": n * n * 1e-6, "cpu_s": n * 1e-6, "peak_kv_tokens": n}

    monkeypatch.setattr(measure, "run", run)
    monkeypatch.setattr(measure, "reading_flops", lambda *_: 1.0)
    case = SimpleNamespace(name="infinipot", identity=lambda: {"method": "infinipot"})
    every = [
        System("kvstream", case, budget=8),  # type: ignore[arg-type]
        System("transformers", mode="one shot"),
        System("transformers", mode="chunked"),
    ]
    return measure.Bench(session, every, 2, measure.Limits(1.0, 1.0), 1.0, lambda _: None)  # type: ignore


def test_what_does_not_fit_is_told_and_fitted(bench: measure.Bench) -> None:
    rows = []
    for tokens in (50, 100, 200, 400):
        task = Task(bench.session, range(tokens), [1], 1, 1.0)  # type: ignore[arg-type]
        rows += bench.measure(task)
        fit.extrapolate(rows)
    whole = [r for r in rows if r["system"] == "transformers"]
    assert [r["runs"] for r in whole] == [2, 2, 0, 0]
    assert whole[2]["error"] == "out of memory"
    assert whole[3]["prefill_s"] == pytest.approx(0.16)
    assert [r.get("fitted", False) for r in whole] == [False, False, True, True]
    ours = [r for r in rows if r["system"] == "kvstream"]
    assert [r.get("ratio_to_transformers") for r in ours] == [1.0, 1.0, None, None]
    assert not any("fitted" in r for r in ours)


def test_what_would_take_too_long_is_not_begun(bench: measure.Bench) -> None:
    bench.limits = measure.Limits(0.001, 0.02)
    rows = []
    for tokens in (50, 100, 150):
        rows += bench.measure(Task(bench.session, range(tokens), [1], 1, 1.0))  # type: ignore
    whole = [r for r in rows if r["system"] == "transformers"]
    assert [r["runs"] for r in whole] == [1, 1, 0]  # slower than the limit, so not repeated
    assert "would take about" in whole[2]["error"]
    fit.extrapolate(rows)
    assert whole[2]["fitted"]


def test_rows_of_a_gpu_survive_a_lack_of_memory(
    bench: measure.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU one more reading measures selection. Without memory for it, the share is missing."""
    plain = measure.run

    def run(system: System, task: Task) -> dict[str, Any]:
        if task.exact_times or (system.name == "transformers" and len(task.ids) > 100):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB.")
        return {**plain(system, task), "select_s": 1.0}

    monkeypatch.setattr(measure, "run", run)
    monkeypatch.setattr(measure, "memory_watched", lambda _: nullcontext(Peak(1, 2)))
    monkeypatch.setattr(bench.session.model, "device", torch.device("cuda"))
    rows = bench.measure(Task(bench.session, range(200), [1], 1, 1.0))  # type: ignore[arg-type]
    ours, whole = rows
    assert (ours["runs"], ours["select_s"], whole["error"]) == (2, None, "out of memory")
    assert "select_share" not in ours


def test_a_slow_reading_of_a_gpu_is_not_repeated_for_selection(
    bench: measure.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, exact = measure.run, []

    def run(system: System, task: Task) -> dict[str, Any]:
        exact.extend([len(task.ids)] * task.exact_times)
        return {**plain(system, task), "select_s": 0.001}

    monkeypatch.setattr(measure, "run", run)
    monkeypatch.setattr(measure, "memory_watched", lambda _: nullcontext(Peak(1, 2)))
    monkeypatch.setattr(bench.session.model, "device", torch.device("cuda"))
    bench.limits = measure.Limits(0.005, 1.0)
    rows = []
    for tokens in (50, 90):
        rows += bench.measure(Task(bench.session, range(tokens), [1], 1, 1.0))  # type: ignore
    ours = [r for r in rows if r["system"] == "kvstream"]
    assert [r["runs"] for r in ours] == [2, 1]
    assert [r.get("select_share") for r in ours] == [0.4, None]
    assert exact == [50]


def test_other_errors_are_not_swallowed(
    bench: measure.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any) -> Any:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(measure, "run", run)
    with pytest.raises(RuntimeError, match="shapes"):
        bench.measure(Task(bench.session, range(9), [1], 1, 1.0))  # type: ignore[arg-type]


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


@pytest.mark.parametrize("name", ["gemma3", "mistral-sliding", "llama"])
def test_a_token_sees_at_most_the_window_of_a_layer(name: str) -> None:
    model = models.bounded(name)
    steps = [(10, 10), (30, 12), (9, 21), (60, 40), (50, 40)]
    heads = model.model.config.get_text_config().num_attention_heads
    attended = 0
    for spec in model.layers:
        held = 0
        for chunk, memory in steps:
            for place in range(held + 1, held + chunk + 1):
                attended += min(place, spec.sight or place) * (spec.key_dim + spec.value_dim)
            held = min(memory, held + chunk)
    one = reading_flops(model, [(1, 1)]) - 2 * heads * sum(
        spec.key_dim + spec.value_dim for spec in model.layers
    )
    assert reading_flops(model, steps) == one * sum(c for c, _ in steps) + 2 * heads * attended
    assert (name == "llama") == all(spec.sight is None for spec in model.layers)


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


# Plots


def test_every_system_has_a_line_of_its_own() -> None:
    def row(name: str, **more: Any) -> dict[str, Any]:
        return {"system": name, "method": "m", "budget": 8, "tokens": 1, **more}

    rows = [row(name, keep=keep) for keep in (1, 2) for name in ("kvstream", "floor")]
    rows += [row(name) for name in NAMES if not name.startswith("floor")]
    lines = plot._lines(rows)
    assert list(lines)[:4] == ["m, keep 1", "floor of m, keep 1", "m, keep 2", "floor of m, keep 2"]
    assert len({(v.color, v.mark, v.style) for v in lines.values()}) == len(lines) == len(rows)
    assert lines["m, keep 1"].color == lines["floor of m, keep 1"].color
    many = plot._lines([row("kvstream", keep=keep) for keep in range(1, 31)])
    assert len({(v.color, v.mark) for v in many.values()}) == 30


def test_picture_says_what_is_fitted(tmp_path: Path) -> None:
    def row(tokens: int, seconds: float, **more: Any) -> dict[str, Any]:
        return {
            "system": "transformers", "method": None, "tokens": tokens, "budget": None,
            "prefill_s": seconds, "peak_kv_bytes": tokens * 9, "peak_rss_bytes": 10**9,
            "peak_device_bytes": None, **more,
        }  # fmt: skip

    path = tmp_path / "speed.svg"
    plot.draw([row(1024, 1.0), row(2048, 4.0, fitted=True)], path, "a title")
    text = path.read_text()
    assert "stroke-dasharray" in text
    plot.draw([row(1024, 1.0), row(2048, 4.0)], path, "a title")
    assert "stroke-dasharray" not in path.read_text()


# kvpress, replaced by a fake package that keeps the first entries


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
def fake_kvpress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "kvpress.py").write_text(FAKE)
    info = tmp_path / "kvpress-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvpress\nVersion: 9.9\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path)]))
    return sys.executable


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


# llama.cpp, replaced by a fake package that takes longer in the slower settings


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
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path)]))
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
    from kvstream.evaluation.speed.llamacpp_worker import write

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
    from kvstream.evaluation.speed.llamacpp_worker import copy

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


@pytest.mark.parametrize("as_json", [False, True])
def test_lengths_that_were_measured_are_shown_after_an_interruption(
    cli: Any, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    measured = measure.Bench.measure

    def interrupted(self: measure.Bench, task: Task) -> list[Any]:
        if len(task.ids) > 300:
            raise KeyboardInterrupt
        return measured(self, task)

    monkeypatch.setattr(measure.Bench, "measure", interrupted)
    lengths = ("--lengths", "200,400", "--budget", "200", "--shape", "tiny", "--runs", "1")
    done = cli("bench", "speed", *lengths, "-n", "2", *["--json"] * as_json)
    assert done.code == 130
    assert "Interrupted; these are the results so far." in done.stderr
    assert ('"tokens": 200' if as_json else "to floor") in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--against", "llamacpp"), "needs --llamacpp-python"),
        (("--against", "llama.cpp"), "Unknown system 'llama.cpp'"),
        (("--against", "kvpress"), "needs --kvpress-python"),
        (("--save", "x"), "measures times in each run"),
        (("--shape", "gpt-5"), "Unknown shape 'gpt-5'; choose one of tiny"),
        (("--shape", "tiny", "-m", "pocket"), "two models"),
        (("--layers", "2"), "--layers is for a --shape"),
        (("--llamacpp-python", "python"), "--llamacpp-python is for --against llamacpp"),
        (("--plot", "x.txt"), "must end in"),
    ],
)
def test_usage_errors(cli: Any, arguments: tuple[str, ...], message: str) -> None:
    done = cli("bench", "speed", *arguments)
    assert done.code == 2
    assert message in done.stderr
