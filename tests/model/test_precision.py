"""Number types: their selection, a KV cache in another type, widened weights, 8-bit products."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import every_second
from models import FAMILIES, fresh
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.errors import ModelError, UsageError
from kvstream.methods.names import NAMES
from kvstream.methods.registry import make
from kvstream.model import clock, int8, linear, loading, placement, precision
from kvstream.model.bounded import BoundedModel
from kvstream.model.clock import processor_seconds
from kvstream.model.fingerprint import fingerprint
from kvstream.model.layer_store import LayerStore
from kvstream.model.loading import load
from kvstream.model.precision import precision_of
from kvstream.model.probe import bound
from kvstream.model.weights import weights_in
from kvstream.run.plan import budget_tokens
from kvstream.settings import Budget, ModelSettings, RunSettings

CPU = torch.device("cpu")
BUDGET = 96
SIZE: dict[str, Any] = dict(  # noqa: C408
    vocab_size=600, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in bfloat16, large enough that some weights are not handled as small ones."""
    torch.manual_seed(0)
    where = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(LlamaConfig(**SIZE)).to(torch.bfloat16).save_pretrained(where)
    return where


@pytest.fixture
def old_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that is slow with 16-bit numbers."""
    monkeypatch.setattr(precision, "is_fast", lambda name: False)


def settings(folder: Path, **more: Any) -> ModelSettings:
    return ModelSettings(str(folder), device="cpu", **more)


def read(model: BoundedModel, method: str = "streaming") -> Reader:
    """Read a text of four times the budget."""
    draw = torch.Generator().manual_seed(1)
    rows = model.model.get_input_embeddings().num_embeddings
    text = torch.randint(3, rows, (4 * BUDGET,), generator=draw).tolist()
    catalysts = [[5, 6, 7]] if make(method).catalyst(("q",)) else []
    sizes = BudgetSplit(BUDGET, prompt=1, catalyst=3 * len(catalysts), question=3, answer=8)
    run = RunSettings(budget=Budget(tokens=BUDGET), method=method)
    reader = Reader(model, make(method), run, sizes, [1], catalysts, estimate=len(text))
    while reader.seen < len(text):
        piece = Chunk(text[reader.seen :][: reader.prefill.room(round_down=True)], reader.seen)
        reader.step(piece, last=reader.seen + len(piece.ids) == len(text))
    list(reader.answer([5, 6, 7], lambda x: int(x.argmax()), frozenset(), 8))
    return reader


# Selected number types


def test_a_cpu_without_16_bit_instructions_computes_in_float32_and_stores_16_bits(
    folder: Path, old_cpu: None
) -> None:
    model = load(settings(folder))
    assert (model.dtype, model.kv_dtype) == (torch.float32, torch.bfloat16)
    assert model.precision == ("float32, KV cache bfloat16 (bfloat16 is not faster on this CPU)")
    model = load(settings(folder, kv_dtype="float32"))
    assert (model.dtype, model.kv_dtype) == (torch.float32, torch.float32)
    # If float32 was requested, the KV cache has it too.
    model = load(settings(folder, dtype="float32"))
    assert (model.kv_dtype, model.precision) == (torch.float32, "float32 (asked for)")


def test_a_cpu_with_the_instructions_computes_as_stored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "is_fast", lambda name: True)
    model = load(settings(folder))
    assert (model.dtype, model.kv_dtype) == (torch.bfloat16, torch.bfloat16)
    assert model.precision == "bfloat16 (as stored)"


@pytest.mark.parametrize("times", [2.0, 0.6, 0.0])
def test_the_faster_type_is_found_by_timing_it(
    times: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU can have instructions for bfloat16, and be slower with it than with float32."""
    monkeypatch.setenv("KVSTREAM_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: times > 0)

    def seconds(run: Any, **_: Any) -> float:
        kind = run.args[-1].dtype
        return 1.0 if kind == torch.float32 else 1 / times

    monkeypatch.setattr(precision, "processor_seconds", seconds)
    precision.speed_of.cache_clear()
    assert precision.speed_of("bfloat16") == pytest.approx(times)
    assert precision.is_fast("bfloat16") is (times > 1)
    # The next process takes what was measured.
    monkeypatch.setattr(precision, "processor_seconds", lambda run, **_: _interrupted())
    precision.speed_of.cache_clear()
    assert precision.speed_of("bfloat16") == pytest.approx(times)
    precision.speed_of.cache_clear()


def test_a_type_that_is_faster_in_some_rounds_only_is_timed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSTREAM_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    times = iter([1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5])
    monkeypatch.setattr(precision, "processor_seconds", lambda run, **_: next(times))
    precision.speed_of.cache_clear()
    assert precision.speed_of("bfloat16") == 2
    assert list(tmp_path.rglob("bfloat16-*.json")) == []
    precision.speed_of.cache_clear()


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_weights_that_do_not_fit_in_float32_stay_in_16_bits(
    folder: Path, old_cpu: None, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    size = weights_in(folder).bytes
    monkeypatch.setattr(placement, "free_memory", lambda _: round(1.2 * size))
    model = load(settings(folder, dtype=dtype))
    assert model.dtype == torch.float32
    assert "do not fit" in model.precision
    assert model.weights_dtype == "bfloat16"
    monkeypatch.setattr(placement, "free_memory", lambda _: round(2.3 * size))
    assert "do not fit" not in load(settings(folder, dtype=dtype)).precision


# A KV cache of another type


def test_a_budget_in_bytes_holds_twice_as_many_entries_in_16_bits(folder: Path) -> None:
    """Keys and values take half the bytes. The origins do not."""
    wide = load(settings(folder, dtype="float32"))
    narrow = load(settings(folder, dtype="float32", kv_dtype="bfloat16"))
    method = make("streaming")
    asked = Budget(bytes=200_000)
    many, few = (budget_tokens(m, asked, method) for m in (narrow, wide))
    assert 1.9 < many / few <= 2
    cache = narrow.new_cache(many)
    held = sum(s.keys.nbytes + s.values.nbytes + s.origin.nbytes for s in cache.stores)
    assert held == cache.capacity_bytes <= 200_000


@pytest.mark.parametrize(
    "method", every_second(name for name in NAMES if name not in ("full", "passages", "truncate"))
)
@pytest.mark.parametrize("kv", [torch.bfloat16, torch.float16])
def test_every_method_reads_into_a_narrower_cache(method: str, kv: torch.dtype) -> None:
    model = _llama().storing(kv)
    if (
        method == "edgeinfinite"
        and make(method).compressive_memory(model.facts, asked=True) is None
    ):
        pytest.skip("no gate for this model")
    reader = read(model, method)
    cache = reader.cache
    assert cache.peak.tokens <= BUDGET
    assert cache.peak.bytes <= cache.capacity_bytes
    for store in cache.stores:
        assert store.keys.dtype == store.values.dtype == kv
        assert store.keys[:, : store.used].isfinite().all()


@pytest.mark.parametrize("kv", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "qwen3.5"])
def test_attention_reads_what_was_stored(
    monkeypatch: pytest.MonkeyPatch, family: str, kv: torch.dtype
) -> None:
    """The reference for the logits is a float32 cache with rounded entries."""
    exact = bound(fresh(FAMILIES[family].config()), family)
    model = exact.storing(kv)
    store, update = type(exact.new_cache(8).stores[0]), LayerStore.update

    def rounded(
        self: Any, keys: torch.Tensor, values: torch.Tensor, *args: Any, **more: Any
    ) -> Any:
        return update(self, keys.to(kv).float(), values.to(kv).float(), *args, **more)

    ids = torch.randint(3, 90, (24,), generator=torch.Generator().manual_seed(2)).tolist()
    ours, plain = model.new_cache(64), exact.new_cache(64)
    for part in (ids[:9], ids[9:10], ids[10:]):
        found = model.logits(model.forward(part, ours))
        with monkeypatch.context() as patched:
            patched.setattr(store, "update", rounded)
            right = exact.logits(exact.forward(part, plain))
        assert torch.allclose(found, right, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(ours.stores, plain.stores, strict=True):
        assert mine.keys.dtype == kv
        assert torch.equal(mine.keys[:, :24].float(), theirs.keys[:, :24])


def test_numbers_beyond_float16_are_refused(folder: Path) -> None:
    model = load(settings(folder, dtype="float32", kv_dtype="float16"))
    model.model.model.layers[0].self_attn.v_proj.weight.fill_(1e6)
    with pytest.raises(ModelError, match="--kv-dtype bfloat16"):
        model.forward([5, 6, 7], model.new_cache(16))


# Widened weights


@pytest.mark.parametrize("block", [1 << 20, 300, 40_000])
def test_widened_weights_give_what_float32_gives(
    folder: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """The results are equal, also with blocks that divide no layer evenly or are below a row."""
    monkeypatch.setattr(linear, "BLOCK", block)
    monkeypatch.setattr(linear, "SMALL", 300)
    ids = torch.arange(3, 40)[None]
    right = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    linear.widen(ours)
    with torch.inference_mode():
        assert torch.allclose(ours(ids).logits, right(ids).logits, rtol=1e-5, atol=1e-5)
    kinds = {p.dtype for p in ours.parameters() if p.dim() > 1}
    assert kinds == {torch.bfloat16}
    assert sum(p.nbytes for p in ours.parameters()) <= 1.01 * weights_in(folder).bytes


def test_experts_are_widened_one_module_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "SMALL", 300)
    torch.manual_seed(0)
    config = MixtralConfig(**{**SIZE, "num_local_experts": 4, "num_experts_per_tok": 2})
    exact = MixtralForCausalLM(config).eval().requires_grad_(False)
    for weight in exact.parameters():
        weight.data = weight.data.bfloat16().float()
    model = copy.deepcopy(exact)
    for weight in model.parameters():  # buffers, such as rotary frequencies, stay in float32
        weight.data = weight.data.bfloat16()
    linear.widen(model)
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        assert torch.allclose(model(ids).logits, exact(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["linear", "embedding"])
def test_two_threads_use_a_widened_model_at_the_same_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass of another thread lies between widening and computing."""
    both: Any = torch.nn.Sequential(torch.nn.Linear(256, 300), torch.nn.Linear(256, 300))
    inputs: Any = torch.randn(2, 2, 256)
    if name == "embedding":
        both[0], inputs = torch.nn.Embedding(300, 256), torch.tensor([[1], [2]])
        both[1] = both[0]
    both.bfloat16().requires_grad_(False)
    right = [copy.deepcopy(each).float()(x) for each, x in zip(both, inputs, strict=True)]
    linear.widen(both)
    compute, found = getattr(torch.nn.functional, name), []
    thread = threading.Thread(target=lambda: found.append(both[1](inputs[1])))

    def interrupted(*args: Any, **more: Any) -> torch.Tensor:
        if not found and threading.current_thread() is not thread:
            thread.start()
            thread.join()
        return compute(*args, **more)

    monkeypatch.setattr(torch.nn.functional, name, interrupted)
    found.append(both[0](inputs[0]))
    assert torch.equal(found[0], right[1])
    assert torch.equal(found[1], right[0])


def test_widened_models_are_bounded_and_read(folder: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    linear.widen(model)
    wide, exact = bound(model, "widened"), load(settings(folder, dtype="float32"))
    assert wide.head_is_plain
    assert fingerprint(wide.model, torch.float32) == exact.fingerprint
    ours, theirs = read(wide), read(exact)
    for a, b in zip(ours.cache.stores, theirs.cache.stores, strict=True):
        assert torch.allclose(a.keys[:, : a.used], b.keys[:, : b.used], atol=1e-4)


# 8-bit products


@pytest.fixture
def int8_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "problem", lambda: None)


def layer_of(linear: torch.nn.Linear, engine: str = "fbgemm") -> int8.Int8Linear:
    bias = None if linear.bias is None else linear.bias.detach()
    return int8.Int8Linear(*int8.quantized(linear.weight.detach()), bias, engine)


ENGINES = sorted(set(int8.KERNELS) & set(torch.backends.quantized.supported_engines))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("count", [1, 3, 65])
def test_the_product_of_integers_is_exact(
    count: int, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights with large neighbours, and activations that all have the same sign: without VNNI the
    sums of pairs would saturate. The rows are packed in one part or in three."""
    monkeypatch.setattr(int8, "ROWS", 64 if count == 3 else 160)
    draw = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(96, 160).requires_grad_(False)
    for weights in (linear.weight.clone(), torch.ones(160, 96), torch.rand(160, 96) + 1):
        linear.weight.data = weights
        layer = layer_of(linear, engine)
        x = torch.rand(count, 96, generator=draw) + 3
        scale = x.abs().amax(1, keepdim=True)
        seen = ((x / scale * 127).round() / 127 * scale).double()
        slow = (seen @ layer.wide().double().t()).float() + linear.bias
        most = 1e-5 if engine == "fbgemm" else 0.01  # the others measure the range of activations
        assert float((layer(x) - slow).norm() / slow.norm()) < most
        assert layer(torch.zeros(2, 96)).isfinite().all()
        assert layer(torch.randn(2, 5, 96)).shape == (2, 5, 160)


def test_a_token_does_not_depend_on_the_others() -> None:
    draw = torch.Generator().manual_seed(0)
    layer = layer_of(torch.nn.Linear(96, 160).requires_grad_(False))
    x = torch.randn(20, 96, generator=draw) * torch.arange(1, 21)[:, None]
    assert torch.equal(layer(x)[7:9], layer(x[7:9]))


def test_large_columns_stay_in_float32() -> None:
    draw = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(96, 160).requires_grad_(False)
    layer, x = layer_of(linear), torch.randn(8, 96, generator=draw)
    x[:, 5] *= 300
    right = linear(x)
    before = float((layer(x) - right).norm())
    layer.keep_in_float32([5, 17])
    wide = torch.nn.functional.linear(x, layer.wide(), linear.bias)
    assert float((layer(x) - wide).norm()) < before / 20


@pytest.mark.parametrize("width", [66, 72, 100, 129])
@pytest.mark.parametrize("tokens", [1, 8])
def test_int8_layers_of_odd_widths_give_what_float32_gives(width: int, tokens: int) -> None:
    draw = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(width, 96).requires_grad_(False)
    layer, x = layer_of(linear), torch.randn(tokens, width, generator=draw)
    right = linear(x)
    assert float((layer(x) - right).norm() / right.norm()) < int8.ERROR


@pytest.mark.parametrize("tokens", [2, 20])
def test_int8_layers_pass_gradients_on_as_float32_ones_do(tokens: int) -> None:
    """Integers have no gradients. Without this, training through such a model learns nonsense."""
    draw = torch.Generator().manual_seed(3)
    linear = torch.nn.Linear(96, 80, bias=True)
    torch.nn.init.normal_(linear.weight, generator=draw)
    layer = layer_of(linear)
    rows, after = (torch.randn(3, tokens, n, generator=draw) for n in (96, 80))
    before = rows.clone().requires_grad_()
    out = layer(before)
    assert torch.equal(out, layer(rows))
    assert not layer(rows).requires_grad
    (found,) = torch.autograd.grad(out, before, after)
    other = rows.clone().requires_grad_()
    (right,) = torch.autograd.grad(linear(other), other, after)
    assert float((found - right).norm() / right.norm()) < 0.02


def test_int8_attends_in_bfloat16_where_the_cpu_multiplies_it(
    folder: Path, int8_works: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = torch.bfloat16
    for fast, kv, attention in ((True, "auto", halves), (False, "auto", torch.float32),
                                (True, "float32", torch.float32)):  # fmt: skip
        monkeypatch.setattr(precision, "is_fast", lambda name, fast=fast: fast)
        model = load(settings(folder, quantize="int8", kv_dtype=kv))
        assert (model.dtype, model.attention_dtype) == (torch.float32, attention)
        assert ("attention and KV cache bfloat16" in model.precision) == (attention == halves)
        cache = model.new_cache(64)
        assert cache.scratch(model.layers[0]).dtype == attention
        assert read(model).cache.peak.tokens <= BUDGET
    monkeypatch.setattr(precision, "is_fast", lambda name: True)
    wide, near = (
        load(settings(folder, quantize="int8", kv_dtype=kv)) for kv in ("float32", "auto")
    )
    ids = list(range(3, 60))
    ours, right = (m.logits(m.forward(ids, m.new_cache(64))) for m in (near, wide))
    assert 0 < float((ours - right).norm() / right.norm()) < 0.05


@pytest.mark.parametrize("tokens", [1, 20])
def test_layers_with_the_same_input_are_one_product(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(4)
    parent = torch.nn.Module()
    biases = {"q_proj": True, "k_proj": False, "v_proj": False, "o_proj": True}
    plain = {n: torch.nn.Linear(96, 80, bias=b).requires_grad_(False) for n, b in biases.items()}
    rows = {
        n: (*int8.quantized(m.weight), None if m.bias is None else m.bias) for n, m in plain.items()
    }
    for name, layer in plain.items():
        parent.add_module(name, layer)
    for names in int8.groups(plain):
        int8.install(parent, names, int8.product_of([rows[name] for name in names]))
    calls, product = [], int8.Int8Linear.product
    monkeypatch.setattr(int8.Int8Linear, "product", lambda *a: (calls.append(1), product(*a))[1])
    for _ in range(3):
        x = torch.randn(tokens, 96, generator=draw)
        for name, layer in plain.items():
            found, right = getattr(parent, name)(x), layer(x)
            assert float((found - right).norm() / right.norm()) < int8.ERROR
        assert len(calls) == 2
        calls.clear()


def test_int8_is_near_float32_and_small(folder: Path, int8_works: None) -> None:
    exact, small = load(settings(folder, dtype="float32")), load(settings(folder, quantize="int8"))
    assert small.dtype == torch.float32
    assert small.kv_dtype == torch.bfloat16
    assert "8-bit" in small.precision
    held = [sum(p.nbytes for p in m.model.parameters()) for m in (small, exact)]
    assert held[0] < 0.4 * held[1]
    ids = list(range(3, 60))
    ours, right = (m.logits(m.forward(ids, m.new_cache(64))) for m in (small, exact))
    assert float((ours - right).norm() / right.norm()) < 0.1
    assert small.fingerprint != exact.fingerprint
    read(small)


def test_the_probe_meets_the_layers_before_int8(
    folder: Path, int8_works: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe's tolerances are for float32. With 8-bit layers it refused SmolLM2's positions."""
    met = []

    def spy(model: Any, name: str) -> BoundedModel:
        met.append(any(isinstance(m, int8.Int8Linear) for m in model.modules()))
        return bound(model, name)

    monkeypatch.setattr(loading, "bound", spy)
    model = load(settings(folder, quantize="int8"))
    assert met == [False]
    assert any(isinstance(m, int8.Int8Linear) for m in model.model.modules())


def test_a_clock_of_coarse_steps_finds_no_time_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = 0.0

    def run() -> None:
        nonlocal spent
        spent += 0.001

    monkeypatch.setattr(clock.time, "process_time", lambda: int(spent / 0.004) * 0.004)
    assert 0.0005 < processor_seconds(run) < 0.002


def test_times_are_those_of_one_thread() -> None:
    """Threads that wait for others also take processor time, and int8 would look slow."""
    before, seen = torch.get_num_threads(), set()
    torch.set_num_threads(2)
    try:
        processor_seconds(lambda: seen.add(torch.get_num_threads()), rounds=1, least=1e-6)
        with pytest.raises(KeyboardInterrupt):
            processor_seconds(_interrupted)
        assert (seen, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


def _interrupted() -> None:
    raise KeyboardInterrupt


def test_int8_falls_back_where_it_is_slow_or_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "processor_seconds", lambda run, rounds: 1.0)
    facts, stable = int8._measure()
    assert stable
    assert facts["problem"] == "8-bit products are 1.00 times as fast as float32 on this CPU"
    wrong = lambda rows, packed: torch.zeros(len(rows), int8.TRIAL[2])  # noqa: E731
    monkeypatch.setattr(int8, "KERNELS", {"fbgemm": wrong})
    assert "products are wrong by" in int8._measure()[0]["problem"]

    def missing(*_: Any) -> None:
        raise RuntimeError("no such product")

    monkeypatch.setattr(int8, "KERNELS", {"fbgemm": missing})
    found = int8._measure()[0]
    assert found["problem"] == "PyTorch fails (no such product)"
    monkeypatch.setattr(int8, "measured", lambda: found)
    model = load(settings(folder, quantize="int8"))
    assert "int8 is not used: PyTorch fails" in model.precision
    assert model.weights_dtype in ("bfloat16", "float32")


def test_what_was_measured_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSTREAM_CACHE", str(tmp_path))
    found = {"problem": None, "engine": "fbgemm", "one": 4.0, "many": 2.0}
    for stable, calls in ((False, 2), (True, 1)):
        asked = []
        monkeypatch.setattr(
            int8, "_measure", lambda s=stable, a=asked: (a.append(1), (found, s))[1]
        )
        for _ in range(2):
            int8.measured.cache_clear()
            assert int8.measured() == found
        assert len(asked) == calls
    int8.measured.cache_clear()


def test_int8_refuses_layers_that_cannot_take_it(int8_works: None) -> None:
    narrow = fresh(FAMILIES["llama"].config())
    with pytest.raises(ModelError, match=r"--quantize int8 can replace .*narrower than 64"):
        int8.quantize(narrow, "narrow")
    torch.manual_seed(0)
    experts = MixtralForCausalLM(MixtralConfig(**{**SIZE, "num_local_experts": 4}))
    with pytest.raises(ModelError, match="Leave it out, or use --quantize 8bit"):
        int8.quantize(experts, "experts")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"dtype": "bfloat16", "quantize": "int8"}, "leave --dtype bfloat16 out"),
        ({"max_weights": 10**6, "quantize": "int8"}, "leave --max-weights out"),
        ({"kv_dtype": "int3"}, r"kv_dtype is one of .* not 'int3'"),
    ],
)
def test_types_that_cannot_be_had_together(
    folder: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load(settings(folder, **more))


def test_int8_is_for_the_cpu(folder: Path) -> None:
    with pytest.raises(UsageError, match="--quantize 8bit there"):
        precision_of(settings(folder, quantize="int8"), torch.device("cuda"))


def _llama() -> BoundedModel:
    return bound(fresh(FAMILIES["llama"].config()), "llama")
