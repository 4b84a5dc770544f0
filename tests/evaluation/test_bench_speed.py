"""``bench speed``: its measurements, its systems for comparison, and its extrapolations."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import models
import pytest
import torch

from kvstream.evaluation.speed import measure
from kvstream.evaluation.speed.systems import System, Task
from kvstream.evaluation.speed.timing import Peak, reading_flops
from kvstream.settings import ModelSettings

SETTINGS = ModelSettings(device="cpu")
TINY = ("--budget", "256", "--threads", "1", "--runs", "1", "-n", "3", "-q")
FIELDS = {
    "bench", "system", "method", "model", "tokens", "budget", "load_s", "prefill_s", "select_s",
    "tokens_per_s", "peak_kv_tokens", "peak_kv_bytes", "peak_rss_bytes", "peak_device_bytes",
    "runs", "first_token_s", "total_s", "decode_tokens_per_s", "cpu_s", "threads", "dtype",
}  # fmt: skip


def test_table(cli: Any) -> None:
    done = cli("bench", "speed", "--lengths", "500", *TINY, "--method", "streaming")
    assert "transformers, plain cache, one shot" in done.stdout or "chunked" in done.stdout
    assert "to a plain cache" in done.stdout
    assert "GPU MB" not in done.stdout


# Extrapolation


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
    return measure.Bench(session, every, 2, 1.0, 1.0, 1.0, lambda _: None)  # type: ignore


def test_what_does_not_fit_is_told_and_fitted(bench: measure.Bench) -> None:
    rows = []
    for tokens in (50, 100, 200, 400):
        task = Task(bench.session, range(tokens), [1], 1, 1.0)  # type: ignore[arg-type]
        rows += bench.measure(task)
    whole = [r for r in rows if r["system"] == "transformers"]
    assert [r["runs"] for r in whole] == [2, 2, 0, 0]
    assert whole[2]["error"] == "out of memory"
    assert whole[3]["prefill_s"] is None
    ours = [r for r in rows if r["system"] == "kvstream"]
    assert [r.get("ratio_to_transformers") for r in ours] == [1.0, 1.0, None, None]


def test_what_would_take_too_long_is_not_begun(bench: measure.Bench) -> None:
    bench.repeat_s, bench.give_up_s = 0.001, 0.02
    rows = []
    for tokens in (50, 100, 150):
        rows += bench.measure(Task(bench.session, range(tokens), [1], 1, 1.0))  # type: ignore
    whole = [r for r in rows if r["system"] == "transformers"]
    assert [r["runs"] for r in whole] == [1, 1, 0]  # slower than the limit, so not repeated
    assert "would take about" in whole[2]["error"]


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
    monkeypatch.setattr(measure, "watch_memory", lambda _: nullcontext(Peak(1, 2)))
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
    monkeypatch.setattr(measure, "watch_memory", lambda _: nullcontext(Peak(1, 2)))
    monkeypatch.setattr(bench.session.model, "device", torch.device("cuda"))
    bench.repeat_s, bench.give_up_s = 0.005, 1.0
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


# Plots


# kvpress, replaced by a fake package that keeps the first entries


# llama.cpp, replaced by a fake package that takes longer in the slower settings


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
    lengths = ("--lengths", "200,400", "--budget", "200", "--runs", "1")
    done = cli("bench", "speed", *lengths, "-n", "2", *["--json"] * as_json)
    assert done.code == 130
    assert "Interrupted; these are the results so far." in done.stderr
    assert ('"tokens": 200' if as_json else "to a plain cache") in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--against", "llama.cpp"), "Unknown system 'llama.cpp'"),
        (("--save", "x"), "measures times in each run"),
    ],
)
def test_usage_errors(cli: Any, arguments: tuple[str, ...], message: str) -> None:
    done = cli("bench", "speed", *arguments)
    assert done.code == 2
    assert message in done.stderr
