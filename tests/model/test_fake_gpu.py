"""Everything between the source and the answer on a simulated GPU (`fake_gpu`).

No operation may mix tensors of host and GPU, and the results equal those of the host.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from digests import digest_of
from fake_gpu import GPU, FakeGPU, OnGPU, moved
from fuzz_parsers import pocket
from models import FAMILIES, bounded, fresh, plain, tokens
from test_waits import VARIANTS
from torch import nn

import speed
from kvstream.answer.answering import answer
from kvstream.answer.citations import measure
from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.evaluation.speed.systems import KINDS as RIVALS
from kvstream.evaluation.speed.systems import Kind, Task, systems
from kvstream.evaluation.speed.systems import run as run_system
from kvstream.evaluation.sweep import Case
from kvstream.events import Answered, returned
from kvstream.input.sources import open_sources
from kvstream.memory import saving
from kvstream.methods import registry
from kvstream.methods.foresight import new_scorer
from kvstream.model.bounded import BoundedModel
from kvstream.model.probe import bound
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings
from kvstream_lab.gates.train import GateRecipe, new_gates, save_gates
from kvstream_lab.scorers import save_scorers
from kvstream_lab.speed import floor

HEAD, QUESTION, CHUNK, CHUNKS, BUDGET = tokens(3, seed=1), tokens(5, seed=2), 40, 3, 160
KINDS = [
    "llama", "smollm3", "gemma2", "gemma3", "mistral-sliding", "gpt-neox", "cohere2", "gemma4",
    "qwen3.5", "lfm2", "falcon-h1",
]  # fmt: skip
MORE = [
    ("bumblebee", {"algorithm": "lazy"}),
    ("bumblebee", {"algorithm": "streaming"}),
    *((name, {}) for name, method in registry.available().items() if not method.evicts),
]


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 0)
    # Otherwise `Module.to` would put tensors of another class into the existing parameters.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    with FakeGPU():
        yield
    torch.__future__.set_overwrite_module_params_on_conversion(False)


@cache
def on_gpu(kind: str) -> BoundedModel:
    return bound(moved(copy.deepcopy(plain(kind))), kind)


def unread(model: BoundedModel, name: str, settings: dict[str, str]) -> Reader:
    method = registry.make(name, settings)
    run = RunSettings(chunk="fixed", chunk_size=CHUNK, keep=75, seed=7)
    catalysts = [tokens(4, seed=9 + i) for i in range(len(method.catalyst(("a question",))))]
    sizes = BudgetSplit(BUDGET, len(HEAD), 4 * len(catalysts), len(QUESTION), 8)
    return Reader(model, method, run, sizes, HEAD, catalysts, extract=True)


def read(model: BoundedModel, name: str, settings: dict[str, str]) -> Reader:
    reader = unread(model, name, settings)
    ids = tokens(CHUNK * (CHUNKS if reader.method.evicts else 2), seed=3)
    for i in range(0, len(ids), CHUNK):
        reader.step(Chunk(ids[i : i + CHUNK], i), last=i + CHUNK == len(ids))
    return reader


def told(reader: Reader, count: int) -> list[Any]:
    """Return everything that a reader can compute."""
    said = list(reader.answer(QUESTION, lambda x: int(x.argmax()), frozenset(), count))
    ordinals, weights = reader.rank()
    found = measure(reader, QUESTION, said[:4])
    return [
        said,
        reader.retained().tolist(),
        ordinals.tolist(),
        weights,
        reader.score(QUESTION, said),
        found and found.ordinals.tolist(),
    ]


def check(kind: str, name: str, settings: dict[str, str], count: int = 6) -> None:
    ours, theirs = (read(model, name, settings) for model in (on_gpu(kind), bounded(kind)))
    assert all(isinstance(s.keys, OnGPU) for s in ours.cache.stores)
    for mine, other in zip(told(ours, count), told(theirs, count), strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(mine.cpu(), other, rtol=1e-3, atol=1e-4)
        else:
            assert mine == other
    numbers, tensors = ours.state()
    again = unread(on_gpu(kind), name, settings)
    again.restore(json.loads(json.dumps(numbers)), {k: t.cpu() for k, t in tensors.items()})


@pytest.mark.parametrize(("name", "settings"), [*VARIANTS, *MORE], ids=str)
def test_every_method(name: str, settings: dict[str, str], tmp_path: Path) -> None:
    if name == "edgeinfinite":
        recipe = GateRecipe(form=settings.get("form", "learned"))
        save_gates(new_gates(bounded("llama").facts, recipe), tmp_path / "gate.safetensors", {})
        settings = {**settings, "gate": str(tmp_path / "gate.safetensors")}
    if name == "foresight":
        layers = bounded("llama").facts.layers
        made = nn.ModuleDict({str(layer.index): new_scorer(layer, 4) for layer in layers})
        save_scorers(made, tmp_path / "foresight.safetensors")
        settings = {**settings, "scorers": str(tmp_path / "foresight.safetensors")}
    check("llama", name, settings)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_layer(kind: str) -> None:
    check(kind, "infinipot", {})


def test_memory_that_gives_way_to_an_answer() -> None:
    check("llama", "infinipot", {}, count=92)


def test_what_a_gpu_refuses_is_refused() -> None:
    """Without these refusals no test of this file could fail."""
    here, there = torch.zeros(3), torch.zeros(3, device=GPU)
    with pytest.raises(RuntimeError, match="same device"):
        here + there
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device=GPU, generator=torch.Generator())
    with pytest.raises(RuntimeError, match="indices"):
        here[torch.zeros(1, dtype=torch.long, device=GPU)]
    assert there.device == GPU
    assert (there + 1).sum().item() == 3
    assert there.cpu().device.type == there.to("cpu").device.type == "cpu"
    assert here.to(GPU).device == there[1:].device == there.clone().device == GPU
    there[1:] += 1
    assert there.tolist() == [0, 1, 1]


@pytest.mark.parametrize("kind", ["llama", "qwen3.5"])
def test_a_session_and_its_memory_file(
    kind: str, write_story: Callable[..., Path], tmp_path: Path
) -> None:
    path, file = write_story(tokens=1500, seed=3, facts=2), tmp_path / "m.kvs"
    config = FAMILIES[kind].config(vocab_size=8192)
    session = Session(bound(moved(fresh(config)), kind), pocket())
    run = RunSettings(Budget(tokens=400), "infinipot", max_tokens=6)
    request = Request(run=run, command="remember")
    memory = returned(session.read(open_sources([str(path)]), request))
    digest = saving.save(memory, file)
    again = session.recall(saving.look(file), run)
    assert digest_of(again) == digest
    answers = [
        next(e.result for e in answer(m, "Who did it?") if isinstance(e, Answered))
        for m in (memory, again)
    ]
    assert answers[0].answer == answers[1].answer
    assert answers[0].citations == answers[1].citations


@pytest.mark.parametrize("kind", ["llama", pytest.param("qwen3.5", marks=pytest.mark.long)])
def test_the_systems_that_speed_is_measured_against(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each system holds the same on both devices. Times mean nothing here."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    token_by_token = Kind(speed._streamingllm, "", {"": True})
    for name, one in {**floor.KINDS, "streamingllm": token_by_token}.items():
        monkeypatch.setitem(RIVALS, name, one)
    found = []
    for place in (lambda model: model, moved):
        model = place(fresh(FAMILIES[kind].config(vocab_size=8192)))
        session = Session(bound(model, kind), pocket())
        run = RunSettings(Budget(tokens=130), "infinipot", max_tokens=4)
        task = Task(session, tokens(140, vocabulary=8192), tokens(5), 4, 1e9, exact_times=True)
        against = ("floor", "floor-sdpa", "full", "transformers", "streamingllm")
        chosen = systems(session, [Case(run)], against)
        found.append([run_system(system, task) for system in chosen])
    assert len(found[0]) == 7
    for here, there in zip(*found, strict=True):
        held = ("peak_kv_tokens", "peak_kv_bytes")
        assert [here[name] for name in held] == [there[name] for name in held]
        assert here.keys() == there.keys()
