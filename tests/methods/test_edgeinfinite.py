"""EdgeInfinite: memory and gates against slow loops, short texts untouched, gates trained."""

from __future__ import annotations

import gzip
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import bounded, tokens
from torch import Tensor

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.errors import KvstreamError, UsageError
from kvstream.gates import lessons
from kvstream.gates import texts as texts_of
from kvstream.gates import train as training
from kvstream.gates import worth as gate_worth
from kvstream.gates.peek import chunk_loss
from kvstream.methods.edgeinfinite import (
    LOOKED_AT,
    POOL,
    ROOM,
    WEIGHT,
    EdgeInfinite,
    Gated,
)
from kvstream.methods.recency import Streaming
from kvstream.methods.tools.gates import FORMS, Gate, LearnedGate, PaperGate, load_gates, sigma
from kvstream.model import hook
from kvstream.settings import RunSettings
from kvstream.synthetic.splits import is_heldout

HEAD = 4
METHOD = EdgeInfinite(sinks=8, window=12, segment=40, scale=False)
PAPER = replace(METHOD, form="paper")


def reader(
    method: Any = METHOD,
    kind: str = "llama",
    budget: int = 128,
    length: int | None = None,
    catalysts: Sequence[Sequence[int]] = (),
    **run: Any,
) -> Reader:
    sizes = BudgetSplit(budget, HEAD, sum(map(len, catalysts)), 8, 16)
    head = tokens(HEAD, 1)
    return Reader(bounded(kind), method, RunSettings(**run), sizes, head, catalysts, length)


def read(one: Reader, ids: list[int]) -> list[int]:
    """Everything, in the chunks that the schedule asks for; the sizes of memory."""
    one.begin()
    at, held = 0, []
    while at < len(ids):
        part = ids[at : at + one.schedule.chunk()]
        at += len(part)
        report = one.step(Chunk(part, at - len(part)), last=at == len(ids))
        held.append(report.memory[0])
        assert one.cache.used <= one.sizes.budget
    return held


# The pieces ------------------------------------------------------------------------------------


def test_the_gate_of_the_paper_is_equations_7_to_9() -> None:
    torch.manual_seed(0)
    heads, kv_heads, dim, value_dim, count = 4, 2, 6, 5, 3
    gate = PaperGate(heads, value_dim, 7)
    torch.nn.init.normal_(gate.w2)
    torch.nn.init.normal_(gate.b1)
    torch.nn.init.normal_(gate.g)
    query, out = torch.randn(heads, count, dim), torch.randn(heads, count, value_dim)
    keys, values = torch.randn(kv_heads, 20, dim), torch.randn(kv_heads, 20, value_dim)
    features = sigma(keys)
    memory, norm = features.transpose(1, 2) @ values, features.sum(1)
    mixed = gate(query, out, torch.zeros(heads, count), memory, norm, False)
    for h in range(heads):
        for t in range(count):
            kv = h // (heads // kv_heads)
            weights = [float(sigma(query[h, t]) @ sigma(keys[kv, j])) for j in range(20)]
            found = sum(w * values[kv, j] for j, w in enumerate(weights)) / sum(weights)
            found = gate.w2 @ torch.relu(gate.w1 @ found + gate.b1) + gate.b2
            share = torch.sigmoid(gate.g[h])
            expected = share * found + (1 - share) * out[h, t]
            assert torch.allclose(mixed[h, t], expected, atol=1e-5)


@pytest.mark.parametrize("asked", [True, False])
def test_what_a_learned_gate_finds_was_attended_to_together_with_what_is_there(
    asked: bool,
) -> None:
    """A softmax over entries, scores being logarithms of sums of features, by loops."""
    torch.manual_seed(0)
    heads, kv_heads, dim, value_dim, count, held, left = 4, 2, 6, 5, 3, 7, 20
    gate = LearnedGate(kv_heads, dim, 9, heads, value_dim, 7)
    for parameter in gate.parameters():
        torch.nn.init.normal_(parameter)
    query = torch.randn(heads, count, dim)
    there, values_there = torch.randn(heads, count, held), torch.randn(kv_heads, held, value_dim)
    keys, values = torch.randn(kv_heads, left, dim), torch.randn(kv_heads, left, value_dim)
    out = there.softmax(-1) @ values_there.repeat_interleave(2, 0)
    features = gate.features(keys)
    memory, norm = features.transpose(1, 2) @ values, features.sum(1)
    mixed = gate(query, out, there.logsumexp(-1), memory, norm, asked)
    for h in range(heads):
        kv = h // (heads // kv_heads)
        for t in range(count):
            of_query = (query[h, t] @ gate.w_query[kv] + gate.b_query[kv, 0]).exp()
            of_keys = [(k @ gate.w_key[kv] + gate.b_key[kv, 0]).exp() for k in keys[kv]]
            masses = torch.stack([of_query @ f for f in of_keys])
            found = (masses[:, None] * values[kv]).sum(0) / masses.sum()
            if not asked:
                masses = masses * gate.offset[h].exp()
            weights = torch.cat((there[h, t].exp(), masses))
            weights = weights / weights.sum()
            expected = weights @ torch.cat((values_there[kv], values[kv]))
            if not asked:
                said = gate.w2 @ torch.relu(gate.w1 @ found + gate.b1) + gate.b2
                share = torch.sigmoid(gate.g[h])
                expected = share * said + (1 - share) * expected
            assert torch.allclose(mixed[h, t], expected, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_memory_that_holds_nothing_says_nothing(form: str) -> None:
    facts = bounded("llama").facts
    gate = training.new_gates(facts, training.GateRecipe(form=form, features=3))[0]
    rows = 3 if form == "learned" else facts.layers[0].key_dim
    out, query = torch.randn(4, 2, 8), torch.randn(4, 2, 8)
    empty = torch.zeros(2, rows, 8), torch.zeros(2, rows)
    mixed = gate(query, out, torch.zeros(4, 2), *empty, True)
    share = gate.g.sigmoid()[:, None] if form == "paper" else 0.0  # untrained, the MLP says zero
    assert torch.allclose(mixed, out * (1 - share), atol=1e-6)


def test_sizes_are_the_papers_at_its_budget_and_follow_it() -> None:
    paper = EdgeInfinite().sized(ROOM)
    assert (paper.sinks, paper.window, paper.segment) == (300, 200, 2048)
    half = EdgeInfinite().sized(ROOM // 2)
    assert (half.sinks, half.window, half.segment) == (150, 100, 1024)
    assert half.sized(5000) == half
    assert METHOD.sized(5000) == METHOD


@given(st.integers(1, 300), st.integers(1, 300))
def test_segments_leave_and_a_residual_stays(size: int, present: int) -> None:
    size = min(size, present)
    kept = METHOD.target(size, present)
    assert 0 < kept <= size
    if present <= size and present < METHOD.sinks + METHOD.window + METHOD.segment:
        assert kept == present
    elif size >= METHOD.sinks + METHOD.window:
        assert kept == METHOD.sinks + METHOD.window


# The way through the engine ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "smollm3", "gemma2"])
def test_short_inputs_take_the_untouched_model_bit_for_bit(kind: str) -> None:
    ids, question = tokens(80, 3), tokens(8, 4)
    answers, logits = [], []
    for method in (METHOD, PAPER, Streaming()):
        one = reader(method, kind, length=80)
        read(one, ids)
        seen: list[Tensor] = []

        def choose(row: Tensor, seen: list[Tensor] = seen) -> int:
            seen.append(row.clone())
            return int(row.argmax())

        answers.append(list(one.answer(question, choose, frozenset(), 8)))
        logits.append(torch.stack(seen))
        assert one.cache.compressive_memory is None
    assert answers[0] == answers[1] == answers[2]
    assert torch.equal(logits[0], logits[2])
    assert torch.equal(logits[1], logits[2])


def test_memory_is_the_sum_over_what_left_with_keys_as_they_were_read(monkeypatch: Any) -> None:
    attended: list[tuple[Tensor, Tensor]] = []
    attend = hook.attend

    def recording(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **more: Any) -> Any:
        attended.append((k.clone(), v.clone()))
        return attend(q, k, v, *rest, **more)

    monkeypatch.setattr(hook, "attend", recording)
    one = reader(PAPER, length=400)
    one.begin()
    sums = [torch.zeros_like(s.head_state["memory"]) for s in one.cache.stores]
    norms = [torch.zeros_like(s.head_state["norm"]) for s in one.cache.stores]
    ids = tokens(400, 5)
    at, left = 0, 0
    while at < len(ids):
        part = ids[at : at + one.schedule.chunk()]
        before = one.cache.used
        attended.clear()
        at += len(part)
        one.step(Chunk(part, at - len(part)), last=at == len(ids))
        gone = before + len(part) - one.cache.used
        left += gone
        first = one.first_candidate
        for layer, store in enumerate(one.cache.stores):
            keys, values = (x[:, first : first + gone] for x in attended[layer])
            sums[layer] += torch.einsum("knd,kne->kde", sigma(keys), values)
            norms[layer] += sigma(keys).sum(1)
            assert torch.allclose(store.head_state["memory"], sums[layer], rtol=1e-3, atol=1e-3)
            assert torch.allclose(store.head_state["norm"], norms[layer], rtol=1e-3, atol=1e-3)
    assert left == 400 - one.schedule.held[0]
    assert one.schedule.held[0] >= METHOD.sinks + METHOD.window


def test_a_question_chooses_what_goes_into_a_learned_memory(monkeypatch: Any) -> None:
    """Those of each chunk that it looks at most, as much as it looks at what is around them."""
    wanted: dict[int, Tensor] = {}
    fold = Gated.fold

    def checking(self: Gated, step: Any, chosen: Tensor) -> None:
        fold(self, step, chosen)
        layer, gate = step.layers[0], self.gates[step.layers[0]]
        assert self.asked
        leave = step.origin.shape[-1] - chosen.shape[-1]
        keys, values = (t[0] for t in step.as_read(0, leave))
        sums = wanted.setdefault(layer, torch.zeros_like(step.head_state["memory"][0]))
        for head in range(len(keys)):
            rows, origin = step.window_attention[0, head].tolist(), step.origin[0, head].tolist()
            pooled = [
                max(r for r, o in zip(rows, origin, strict=True) if abs(o - at) <= POOL // 2)
                for at in origin[:leave]
            ]
            best = torch.tensor(pooled).topk(max(1, leave // LOOKED_AT)).indices  # ties as there
            for i in best.tolist():
                count = WEIGHT * max(pooled[i], 1e-6)
                features = (keys[head, i] @ gate.w_key[head] + gate.b_key[head, 0]).exp()
                sums[head] += count * torch.outer(features, values[head, i])
        assert torch.allclose(step.head_state["memory"][0], sums, rtol=1e-3, atol=1e-4)

    monkeypatch.setattr(Gated, "fold", checking)
    one = reader(length=400, catalysts=[tokens(6, 9), tokens(4, 10)])
    read(one, tokens(400, 5))
    assert set(wanted) == {0, 1}
    assert all(sums.abs().max() > 0 for sums in wanted.values())


@pytest.mark.parametrize("method", [METHOD, PAPER])
def test_what_left_changes_what_follows_and_counts_in_the_bytes(method: EdgeInfinite) -> None:
    ids, losses, byte_counts = tokens(400, 6), [], []
    for memory in (True, False):
        one = reader(replace(method, memory=memory), length=400)
        one.report_loss = True
        one.begin()
        at, found = 0, []
        while at < 400:
            part = ids[at : at + one.schedule.chunk()]
            at += len(part)
            report = one.step(Chunk(part, at - len(part)), last=at == 400)
            found.append(report.loss)
        losses.append(found)
        byte_counts.append(one.cache.bytes)
        retained = one.retained()
        assert retained[: METHOD.sinks].tolist() == list(range(METHOD.sinks))
        assert retained[-METHOD.window :].tolist() == list(range(400 - METHOD.window, 400))
    assert torch.equal(losses[0][0], losses[1][0])
    assert not torch.allclose(losses[0][2], losses[1][2])
    rows = method.features if method.form == "learned" else one.cache.stores[0].spec.key_dim
    extra = sum(s.spec.heads * rows * (s.spec.value_dim + 1) * 4 for s in one.cache.stores)
    assert byte_counts[0] - byte_counts[1] == extra


def test_without_memory_it_is_streaming_with_its_sizes() -> None:
    ids = tokens(300, 7)
    method = replace(METHOD, memory=False, segment=1)
    mine = reader(method, length=300, growth="fixed", chunk="fixed", chunk_size=40, keep=20)
    theirs = reader(
        Streaming(sinks=8), length=300, growth="fixed", chunk="fixed", chunk_size=40, keep=20
    )
    assert read(mine, ids) == read(theirs, ids)
    for a, b in zip(mine.cache.stores, theirs.cache.stores, strict=True):
        assert torch.equal(a.keys[:, : a.used], b.keys[:, : b.used])


@pytest.mark.parametrize("method", [METHOD, PAPER])
def test_decoding_folds_where_the_budget_is_full(method: EdgeInfinite, monkeypatch: Any) -> None:
    one = reader(replace(method, window=90), budget=192, length=300)
    read(one, tokens(300, 8))
    folded: list[tuple[int, float]] = []
    fold = Gated.fold

    def counting(self: Gated, step: Any, chosen: Tensor) -> None:
        fold(self, step, chosen)
        if step.layers[0] == 0:
            first = int(step.origin[0, 0, 0])
            folded.append((first, float(step.head_state["norm"].sum())))

    monkeypatch.setattr(Gated, "fold", counting)
    answered = 0
    for _ in one.answer(tokens(8, 9), lambda logits: int(logits.argmax()), frozenset(), 240):
        answered += 1
        assert one.cache.used <= 192
    assert answered == 240
    sums = [norm for _, norm in folded]
    assert sums == sorted(sums)
    assert folded[0][0] >= 0 > folded[-1][0]  # memory first, then the answer's own tokens
    # What the answer said is not remembered after it; what left memory is.
    of_memory = [norm for origin, norm in folded if origin >= 0]
    assert float(one.cache.stores[0].head_state["norm"].sum()) == pytest.approx(of_memory[-1])


@pytest.mark.parametrize("form", FORMS)
def test_a_model_without_a_gate_is_told_how_to_train_one(form: str, tmp_path: Path) -> None:
    facts = replace(bounded("llama").facts, folder=str(tmp_path), name="some/model")
    with pytest.raises(UsageError, match=r"kvstream gate train --model some/model") as told:
        load_gates(form, "", facts)
    assert ("--form paper" in str(told.value)) == (form == "paper")
    with pytest.raises(UsageError, match=r"nothing.safetensors is no file.*kvstream gate train"):
        load_gates(form, str(tmp_path / "nothing.safetensors"), facts)
    beside = {"learned": LearnedGate, "paper": PaperGate}[form].file
    (tmp_path / beside).write_bytes(b"no tensors")
    with pytest.raises(UsageError, match="cannot be read as a gate"):
        load_gates(form, "", facts)


@pytest.mark.parametrize("form", FORMS)
def test_gates_are_stored_and_those_of_another_model_refused(form: str, tmp_path: Path) -> None:
    facts = bounded("llama").facts
    gates = training.new_gates(facts, training.GateRecipe(form=form, features=6, hidden=5, seed=3))
    path = tmp_path / gates[0].file
    training.save_gates(gates, path, {"model": "llama"})
    beside = replace(facts, folder=str(tmp_path))
    for layer, gate in load_gates(form, "", beside).items():
        for name, value in gate.state_dict().items():
            assert torch.equal(value, gates[layer].state_dict()[name])
    others = [replace(layer, query_heads=layer.query_heads + 1) for layer in facts.layers]
    with pytest.raises(UsageError, match="trained for another model"):
        load_gates(form, "", replace(beside, layers=tuple(others)))
    (other,) = {*FORMS} - {form}
    with pytest.raises(
        UsageError, match=f"is a gate of the form {form}.*--set edgeinfinite.form={form}"
    ):
        load_gates(other, str(path), facts)


def test_a_memory_has_as_many_rows_as_the_gate_has_features(
    tmp_path: Path, monkeypatch: Any
) -> None:
    facts = replace(bounded("llama").facts, folder=str(tmp_path))
    gates = training.new_gates(facts, training.GateRecipe(features=6))
    training.save_gates(gates, tmp_path / LearnedGate.file, {})
    with pytest.raises(UsageError, match=r"--set edgeinfinite.features=6"):
        METHOD.compressive_memory(facts, asked=False)
    assert replace(METHOD, features=6).compressive_memory(facts, asked=False) is not None


# Training ---------------------------------------------------------------------------------------


class Letters:
    """A tokenizer of a few letters for models that have none."""

    bos_id, eos_ids, has_template, special_strings = 1, (2,), False, ()

    def encode(self, text: str, *, continuing: bool = False) -> list[int]:
        return [3 + ord(c) % 94 for c in text]

    encode_template = encode

    def controls(self, ids: Sequence[int]) -> int:
        return 0

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(32 + (i - 3 - 32) % 94) for i in ids)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Texts that can be learned: each says the same words again and again."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for i, words in enumerate(("the cat sat", "on and on it ran", "all that glitters")):
        (texts / f"book-{i}.txt").write_text(f"{words} " * 80, encoding="utf-8")
    return texts


def trainer(folder: Path, out: Path, kind: str = "llama", **recipe: Any) -> training.Trainer:
    small = {"features": 5, "lessons": 6, "steps": 150}
    settings = {"budget": 160, "tokens": 400, "epochs": 1, **small, **recipe}
    return training.Trainer(
        bounded(kind),
        Letters(),
        training.GateRecipe(**settings),
        folder,
        out,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["llama", "smollm3", "gemma2", "gpt-oss", "qwen3.5", "falcon-h1"])
def test_the_loss_in_training_is_the_loss_in_use(kind: str, form: str) -> None:
    model = bounded(kind)
    gates = opened(training.new_gates(model.facts, training.GateRecipe(form=form)))
    method = replace(METHOD, form=form, features=training.GateRecipe().features)
    one = reader(training.with_gates(method, gates), kind, length=400)
    one.report_loss = True
    one.begin()
    ids, at, compared = tokens(400, 11), 0, 0
    while at < 400:
        part = ids[at : at + one.schedule.chunk()]
        trained = None
        if one.cache.compressive_memory is not None:
            trained = chunk_loss(model, one.cache, part, gates)
        at += len(part)
        report = one.step(Chunk(part, at - len(part)), last=at == 400)
        if trained is not None:
            assert report.loss is not None
            assert float(trained.detach()) == pytest.approx(float(report.loss[1:].mean()), rel=1e-4)
            assert trained.requires_grad
            compared += 1
    assert compared >= 2


def opened(gates: dict[int, Gate]) -> dict[int, Gate]:
    """Untrained ones find next to nothing in memory, and say nothing of it; these do."""
    for gate in gates.values():
        torch.nn.init.normal_(gate.w2, std=0.2)
        torch.nn.init.normal_(gate.g)
        if isinstance(gate, LearnedGate):
            torch.nn.init.zeros_(gate.b_key)
    return gates


@pytest.mark.parametrize("form", FORMS)
def test_training_lowers_the_loss_and_leaves_the_model_alone(
    form: str, folder: Path, tmp_path: Path
) -> None:
    one = trainer(folder, tmp_path / "gate.safetensors", epochs=4, lr=0.02, form=form, steps=400)
    before = {k: v.clone() for k, v in one.model.model.state_dict().items()}
    steps = list(one.train())
    texts = [at.loss for at in steps if at.what == "text"]
    assert texts[-1] < texts[0] - 0.05
    blocks = [at.loss for at in steps if at.what == "step"]
    assert len(blocks) == (4 if form == "learned" else 0)
    assert not blocks or blocks[-1] < blocks[0] / 2
    assert all(torch.equal(v, before[k]) for k, v in one.model.model.state_dict().items())
    one.save()
    assert not one.checkpoint.exists()
    for layer, gate in load_gates(form, str(one.out), one.model.facts).items():
        for name, value in gate.state_dict().items():
            assert torch.equal(value, one.gates[layer].state_dict()[name])


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_training_that_was_broken_off_goes_on_where_it_was(
    blocks: int, folder: Path, tmp_path: Path
) -> None:
    """In the middle of the features, and of the texts."""
    whole = trainer(folder, tmp_path / "whole.safetensors", epochs=2)
    list(whole.train())
    first = trainer(folder, tmp_path / "parts.safetensors", epochs=2)
    learning = (at for at in first.train() if at.what != "lesson")
    for _ in range(blocks):
        next(learning)
    second = trainer(folder, tmp_path / "parts.safetensors", epochs=2)
    assert second.resume()
    assert (second.stepped, second.done) == ((100, 0) if blocks == 1 else (150, 1))
    kinds = [at.what for at in second.train()]
    assert ("lesson" in kinds) == (blocks == 1)
    assert kinds.count("text") == len(whole.order) - (blocks == 3)
    for layer, gate in whole.gates.items():
        for name, value in gate.state_dict().items():
            assert torch.equal(value, second.gates[layer].state_dict()[name])
    other = trainer(folder, tmp_path / "parts.safetensors", epochs=2, lr=0.1)
    with pytest.raises(UsageError, match="other settings"):
        other.resume()


def test_excerpts_are_from_anywhere_and_of_the_length_asked_for(folder: Path) -> None:
    names, held = texts_of.texts_in(folder)
    assert len(names) + len(held) == 3
    text = Path(names[0]).read_text(encoding="utf-8")
    ids = Letters().encode(text)
    for place in (0.0, 0.5, 0.999):
        draw: Any = SimpleNamespace(random=lambda place=place: place)
        start = int(place * (len(text) - 30 * texts_of.BYTES_A_TOKEN))
        found = texts_of.excerpt(names[0], Letters(), 30, draw)  # type: ignore[arg-type]
        assert found == ids[start : start + 30]
        whole = texts_of.excerpt(names[0], Letters(), len(text), draw)  # type: ignore[arg-type]
        assert whole == ids


def test_excerpts_of_packed_texts_are_never_empty(tmp_path: Path) -> None:
    noise = "".join(chr(97 + i * i % 25) for i in range(3000))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(noise.encode()))  # smaller than it looks
    draw: Any = SimpleNamespace(random=lambda: 0.99)
    assert len(texts_of.excerpt(str(tmp_path / "a.txt.gz"), Letters(), 50, draw)) == 50  # type: ignore[arg-type]


def test_variants_are_measured_on_the_tokens_behind_a_memory(folder: Path) -> None:
    model = bounded("llama")
    gates = training.new_gates(model.facts, training.GateRecipe())
    texts = [tokens(300, 2), tokens(250, 3)]
    found = gate_worth.compare(model, Letters(), gates, texts, 160)  # type: ignore[arg-type]
    assert set(found) == set(gate_worth.VARIANTS)
    for measured in found.values():
        assert [0 < m.tokens < len(t) for m, t in zip(measured, texts, strict=True)] == [True] * 2
        assert math.isfinite(gate_worth.overall(measured).perplexity)


@pytest.mark.parametrize("form", FORMS)
def test_the_control_finds_the_other_texts_memory(form: str) -> None:
    """Its own memory under another name changes nothing; another text's does, if the gate reads."""
    model = bounded("llama")
    gates = opened(training.new_gates(model.facts, training.GateRecipe(form=form)))
    method = training.with_gates(gate_worth.method_of(gates), gates)
    one, other = tokens(400, 2), tokens(400, 3)

    def loss(*others: list[int]) -> float:
        letters: Any = Letters()
        return gate_worth.measure(model, letters, method, [one], 160, others)[0].loss

    assert loss(one) == loss()
    assert abs(loss(other) - loss()) > 1e-4


# What features learn from -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gemma2", "smollm3"])
def test_what_is_noted_is_attention_to_what_is_there_and_to_what_left(
    kind: str, monkeypatch: Any
) -> None:
    """Of the queries as they are run, and the model goes on with what all of it says."""
    mixed: dict[int, tuple[Any, ...]] = {}
    peek = lessons.peek

    def watched(model: Any, cache: Any, ids: Any, mix: Any, rows: Tensor) -> Tensor:
        def recording(
            layer: int, query: Tensor, out: Tensor, lse: Tensor, heads: Any, shape: Any
        ) -> Tensor:
            said = mix(layer, query, out, lse, heads, shape)
            mixed[layer] = query, out, lse, shape, said
            return said

        return peek(model, cache, ids, recording, rows)

    monkeypatch.setattr(lessons, "peek", watched)
    written: dict[int, list[Any]] = {}
    write = EdgeInfinite.written

    def watching(self: EdgeInfinite, step: Any, leave: int) -> Any:
        for parts in write(self, step, leave):
            written.setdefault(step.layers[0], []).append(parts)
            yield parts

    monkeypatch.setattr(EdgeInfinite, "written", watching)
    asked = tokens(12, 5)
    lesson = lessons.Lesson(tokens(500, 4), [asked], [*asked, *tokens(5, 6)])
    met = lessons.noted(bounded(kind), [1], METHOD, 160, lesson, random.Random(0))
    assert met is not None
    assert set(met) == set(mixed) == set(written)
    for layer, one in met.items():
        query, out, lse, shape, said = mixed[layer]
        keys, values, counts = (torch.cat(p, 1) for p in zip(*written[layer], strict=True))
        heads, count, group = len(query), query.shape[1], len(query) // len(keys)
        assert one.wanted.shape == (len(keys), group * count, 1 + keys.shape[1])
        for h in range(heads):
            for t in range(count):
                scores = keys[h // group] @ query[h, t].float() * shape.scale
                if shape.softcap is not None:
                    scores = torch.tanh(scores / shape.softcap) * shape.softcap
                scores = torch.cat((lse[h, t][None], scores + counts[h // group].log()))
                shares = scores.softmax(0)
                row = h % group * count + t
                assert torch.allclose(one.wanted[h // group, row].exp(), shares, atol=1e-5)
                assert torch.equal(one.queries[h // group, row], query[h, t].float())
                expected = shares[0] * out[h, t] + shares[1:] @ values[h // group]
                assert torch.allclose(said[h, t], expected, atol=1e-4)


def test_the_divergence_is_none_where_features_are_the_softmax() -> None:
    torch.manual_seed(1)
    heads, count, held, dim = 2, 5, 9, 4
    gate = LearnedGate(heads, dim, 6, 4, 3, 2)
    torch.nn.init.normal_(gate.b_key)
    queries, keys = torch.randn(heads, count, dim), torch.randn(heads, held, dim)
    counts, lse = torch.randn(heads, held), torch.randn(heads, count)
    mine = gate.features(keys)[:, None] * gate.logs_of_queries(queries).exp()[:, :, None]
    masses = mine.sum(-1) * counts[:, None].exp()
    wanted = torch.cat((lse.exp()[..., None], masses), -1)
    wanted = (wanted / wanted.sum(-1, keepdim=True)).log()
    noted = lessons.Noted(queries, keys, counts, lse, wanted)
    assert float(lessons.divergence({0: gate}, {0: noted}).detach()) == pytest.approx(0, abs=1e-6)
    even = replace(noted, wanted=torch.full_like(wanted, -math.log(held + 1)))
    by_hand = (even.wanted.exp() * (even.wanted - wanted)).sum(-1).mean().detach()
    told = lessons.divergence({0: gate, 1: gate}, {0: noted, 1: even})
    assert float(told.detach()) == pytest.approx(float(by_hand), rel=1e-4)


def test_lessons_hide_what_they_ask_for() -> None:
    from kvstream.tokenization.loading import load_tokenizer
    from kvstream.tokenization.tokenizer import Tokenizer

    tokenizer: Tokenizer = load_tokenizer("pocket")
    text = "The old man walked to the harbour. Anna stole the letter from the desk. " * 20
    ids = tokenizer.encode(text)
    for seed in range(20):
        made = lessons.with_questions(ids, tokenizer, 200, random.Random(seed))
        assert made is not None
        assert 1 <= len(made.questions) <= 3
        assert len(made.ids) > len(ids)
        words = tokenizer.decode(made.words)
        assert words.count("\nAnswer:") == len(made.questions)
        answer = words.partition("\nAnswer:")[2].split("\n")[0].strip()
        assert answer.strip(" .").lower() in tokenizer.decode(made.ids).lower()
    prose = lessons.of_prose(ids)
    assert [*prose.ids, *prose.words] == ids
    assert len(prose.words) == lessons.FOLLOWING


def test_texts_have_to_be_longer_than_what_memory_holds(folder: Path, tmp_path: Path) -> None:
    for form, tokens_ in (("learned", 480 * 3 // 2), ("paper", 480)):
        with pytest.raises(UsageError, match=f"--tokens {tokens_ + 1} or more"):
            trainer(folder, tmp_path / "g", budget=480, tokens=tokens_, form=form)
    long = tmp_path / "long"
    long.mkdir()
    (long / "a.txt").write_text("the cat sat on and on " * 200, encoding="utf-8")
    shortest = {"budget": 480, "tokens": 480 * 3 // 2 + 1, "steps": 2, "lessons": 2}
    one = trainer(long, tmp_path / "g", **shortest)
    assert all(math.isfinite(at.loss) for at in one.train() if at.what == "step")


@pytest.mark.parametrize("form", FORMS)
def test_texts_that_memory_holds_teach_nothing(form: str, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.mkdir()
    (short / "a.txt").write_text("the cat sat on and on", encoding="utf-8")
    one = trainer(short, tmp_path / "g", form=form)
    with pytest.raises(UsageError, match="No text was longer than a budget of 160 holds"):
        list(one.train())


def test_a_loss_that_is_no_number_ends_the_training(folder: Path, tmp_path: Path) -> None:
    one = trainer(folder, tmp_path / "g", form="paper")
    torch.nn.init.constant_(next(iter(one.gates.values())).g, math.nan)
    with pytest.raises(KvstreamError, match="lower --lr"):
        list(one.train())


def test_features_of_any_key_are_finite() -> None:
    gate = LearnedGate(2, 8, 4, 4, 8, 3)
    keys = torch.randn(2, 50, 8) * 1e3
    memory, norm = gate.features(keys).transpose(1, 2) @ keys, gate.features(keys).sum(1)
    out = gate(
        torch.randn(4, 5, 8) * 1e3, torch.zeros(4, 5, 8), torch.zeros(4, 5), memory, norm, True
    )
    assert torch.isfinite(out).all()
    assert torch.isfinite(gate.logs_between(keys, keys)).all()


def test_a_memory_is_read_through_the_gate_that_wrote_it(
    write_story: Any, cli: Any, tmp_path: Path
) -> None:
    story, memory = write_story(tokens=900, seed=3, facts=2), tmp_path / "m.kvs"
    stored = load_gates("learned", "", pocket().facts)
    gate = tmp_path / "gate.safetensors"
    training.save_gates(stored, gate, {})
    use = ("--method", "edgeinfinite", "--set", f"edgeinfinite.gate={gate}", "--budget", "400")
    ran = cli("remember", str(story), "-o", str(memory), *use)
    assert ran.code == 0, ran.stderr
    assert cli("ask", "--memory", str(memory), "Who?", "--max-tokens", "3").code == 0
    stored[0].b_key.add_(0.1)
    training.save_gates(stored, gate, {})
    refused = cli("ask", "--memory", str(memory), "Who?", "--max-tokens", "3")
    assert refused.code != 0
    assert "another gate" in refused.stderr


# The gates of pocket ----------------------------------------------------------------------------


def pocket() -> Any:
    from kvstream.model.loading import load
    from kvstream.settings import ModelSettings

    return load(ModelSettings())


@pytest.mark.parametrize("form", FORMS)
def test_the_gates_of_pocket_are_a_small_share_of_it(form: str) -> None:
    model = pocket()
    gates = load_gates(form, "", model.facts)
    mine = sum(p.numel() for gate in gates.values() for p in gate.parameters())
    assert mine < 0.01 * sum(p.numel() for p in model.model.parameters())


@pytest.mark.parametrize("form", FORMS)
def test_the_gates_of_pocket_lower_the_loss_behind_its_sinks_and_window(
    form: str, data: Path
) -> None:
    """Those in the package, on a novel that neither the model nor the gate was trained on."""
    from kvstream.session.session import Session
    from kvstream.settings import ModelSettings

    session = Session.open(ModelSettings(threads=1))
    gates = load_gates(form, "", session.model.facts)
    name = str(data / "books" / "joseph-conrad-lord-jim.txt.gz")
    assert is_heldout("joseph-conrad-lord-jim")
    texts = texts_of.excerpts([name], session.tokenizer, 4000, 1, 0)
    variants = (gate_worth.BASE, "edgeinfinite")
    found = gate_worth.compare(session.model, session.tokenizer, gates, texts, 1024, variants)
    without, with_memory = (found[name][0].loss for name in variants)
    assert with_memory < without


def test_the_gate_of_pocket_finds_what_a_question_looked_at() -> None:
    """Its own memory makes the right number likelier by far, that of another text does not."""
    from kvstream.evaluation.harness import IdFeed, open_reader
    from kvstream.session.session import Session
    from kvstream.settings import Budget, ModelSettings
    from kvstream.synthetic.novel import novel

    session = Session.open(ModelSettings(threads=1))
    question = "What is the passkey?"
    story = session.tokenizer.encode("".join(itertools.islice(novel(9), 300)))[:3000]
    assert len(story) == 3000
    gained, lost, lent = [], [], None
    for number in (48213, 70956, 31584, 92607):
        said = session.tokenizer.encode(f" The passkey is {number}. Remember it.")
        ids = [*story[:900], *said, *story[900:]]
        losses = {}
        for memory in ("true", "false"):
            run = RunSettings(Budget(tokens=1024), "edgeinfinite", {"memory": memory})
            one, prompt = open_reader(session, [question], run, len(ids))
            for _ in one.read(IdFeed(ids)):
                pass
            assert int(one.retained().max()) == len(ids) - 1
            assert not set(one.retained().tolist()) & set(range(900, 900 + len(said)))
            tail = prompt.tail(question)
            answer = session.tokenizer.encode(f" {number}", continuing=True)
            losses[memory] = float(one.score(tail, answer).mean())
            if memory == "true":
                mine = [{n: t.clone() for n, t in s.head_state.items()} for s in one.compressible]
                for store, other in zip(one.compressible, lent or mine, strict=True):
                    for name, tensor in store.head_state.items():
                        tensor.copy_(other[name])
                losses["other"] = float(one.score(tail, answer).mean())
        gained.append(losses["false"] - losses["true"])
        if lent is not None:
            lost.append(losses["other"] - losses["true"])
        lent = mine
    assert min(gained) > 0.5
    assert min(lost) > 0.5


def test_the_command_trains_measures_and_resumes(cli: Any, tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "gate.safetensors"
    few_steps = ("--lessons", "4", "--steps", "20")
    ran = cli(
        "gate", "train", "--data", str(folder), "--out", str(out), "--epochs", "1", "--texts", "1",
        "--tokens", "600", "--budget", "256", "--threads", "1", "--dtype", "float32", *few_steps,
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    assert "lesson 4 of 4" in ran.stderr
    assert "step 20 of 20" in ran.stderr
    assert "text 1 of 1" in ran.stderr
    assert "text 1 of 1" not in ran.stdout
    assert out.is_file()
    for wrong, told in (
        (["--out", str(tmp_path)], "is a folder"),
        (["--tokens", "200", "--budget", "256"], "leave nothing to go into memory"),
    ):
        refused = cli("gate", "train", "--data", str(folder), *wrong)
        assert refused.code == 2
        assert told in refused.stderr
    few = tmp_path / "few"
    few.mkdir()
    (few / "one.txt").write_text("the cat sat on and on " * 80, encoding="utf-8")
    alone = cli(
        "gate", "train", "--data", str(few), "--out", str(tmp_path / "new"), "--epochs", "1",
        "--tokens", "500", "--budget", "256", "--threads", "1", "--dtype", "float32", "--resume",
        "--form", "paper",
    )  # fmt: skip
    assert "beginning anew" in alone.stderr
    assert "not measured" in alone.stderr
    again = cli("gate", "train", "--data", str(tmp_path / "nowhere"), "--out", str(out))
    assert again.code != 0
    assert "does not exist" in again.stderr
    for number in [n for n in range(99) if is_heldout(f"more-{n}")][:2]:
        (folder / f"more-{number}.txt").write_text("the cat sat on and on " * 80, encoding="utf-8")
    ran = cli(
        "gate", "measure", "--data", str(folder), "--gate", str(out), "--texts", "2", "--tokens",
        "500", "--budget", "256", "--threads", "1", "--dtype", "float32",
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(gate_worth.VARIANTS)
    assert "%" not in lines[0]
    assert all("% to " in line for line in lines[1:])
