"""EdgeInfinite: memory and gate against slow loops, short texts untouched, the gate trained."""

from __future__ import annotations

import gzip
import math
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

from kvstream.engine import Piece, Reader
from kvstream.errors import UsageError
from kvstream.methods.edgeinfinite import ROOM, EdgeInfinite, Gate, load_gates, sigma
from kvstream.methods.recency import Streaming
from kvstream.model import hook
from kvstream.settings import RunSettings
from kvstream.sizes import Sizes
from kvstream.training import gate as training
from kvstream.training import gate_worth
from kvstream.training.gate_loss import chunk_loss
from kvstream.training.splits import is_heldout

HEAD = 4
METHOD = EdgeInfinite(sinks=8, window=12, segment=40, scale=False)


def reader(
    method: Any = METHOD,
    kind: str = "llama",
    budget: int = 128,
    length: int | None = None,
    **run: Any,
) -> Reader:
    sizes = Sizes(budget, HEAD, 0, 8, 16)
    return Reader(bounded(kind), method, RunSettings(**run), sizes, tokens(HEAD, 1), (), length)


def read(one: Reader, ids: list[int]) -> list[int]:
    """Everything, in the chunks that the schedule asks for; the sizes of memory."""
    one.begin()
    at, held = 0, []
    while at < len(ids):
        part = ids[at : at + one.schedule.chunk()]
        at += len(part)
        report = one.step(Piece(part, at - len(part)), last=at == len(ids))
        held.append(report.memory[0])
        assert one.cache.used <= one.sizes.budget
    return held


# The pieces ------------------------------------------------------------------------------------


def test_the_gate_is_equations_7_to_9() -> None:
    torch.manual_seed(0)
    heads, kv_heads, dim, value_dim, count = 4, 2, 6, 5, 3
    gate = Gate(heads, value_dim, 7)
    torch.nn.init.normal_(gate.w2)
    torch.nn.init.normal_(gate.b1)
    torch.nn.init.normal_(gate.g)
    query, out = torch.randn(heads, count, dim), torch.randn(heads, count, value_dim)
    keys, values = torch.randn(kv_heads, 20, dim), torch.randn(kv_heads, 20, value_dim)
    features = sigma(keys)
    memory, norm = features.transpose(1, 2) @ values, features.sum(1)
    mixed = gate(query, out, memory, norm)
    for h in range(heads):
        for t in range(count):
            kv = h // (heads // kv_heads)
            weights = [float(sigma(query[h, t]) @ sigma(keys[kv, j])) for j in range(20)]
            found = sum(w * values[kv, j] for j, w in enumerate(weights)) / sum(weights)
            found = gate.w2 @ torch.relu(gate.w1 @ found + gate.b1) + gate.b2
            share = torch.sigmoid(gate.g[h])
            expected = share * found + (1 - share) * out[h, t]
            assert torch.allclose(mixed[h, t], expected, atol=1e-5)


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
    for method in (METHOD, Streaming()):
        one = reader(method, kind, length=80)
        read(one, ids)
        seen: list[Tensor] = []

        def choose(row: Tensor, seen: list[Tensor] = seen) -> int:
            seen.append(row.clone())
            return int(row.argmax())

        answers.append(list(one.answer(question, choose, frozenset(), 8)))
        logits.append(torch.stack(seen))
        assert one.cache.mix is None
    assert answers[0] == answers[1]
    assert torch.equal(*logits)


def test_memory_is_the_sum_over_what_left_with_keys_as_they_were_read(monkeypatch: Any) -> None:
    attended: list[tuple[Tensor, Tensor]] = []
    attend = hook.attend

    def recording(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
        attended.append((k.clone(), v.clone()))
        return attend(q, k, v, *rest)

    monkeypatch.setattr(hook, "attend", recording)
    one = reader(length=400)
    one.begin()
    sums = [torch.zeros_like(s.heads["memory"]) for s in one.cache.stores]
    norms = [torch.zeros_like(s.heads["norm"]) for s in one.cache.stores]
    ids = tokens(400, 5)
    at, left = 0, 0
    while at < len(ids):
        part = ids[at : at + one.schedule.chunk()]
        before = one.cache.used
        attended.clear()
        at += len(part)
        one.step(Piece(part, at - len(part)), last=at == len(ids))
        gone = before + len(part) - one.cache.used
        left += gone
        first = one.first_candidate
        for layer, store in enumerate(one.cache.stores):
            keys, values = (x[:, first : first + gone] for x in attended[layer])
            sums[layer] += torch.einsum("knd,kne->kde", sigma(keys), values)
            norms[layer] += sigma(keys).sum(1)
            assert torch.allclose(store.heads["memory"], sums[layer], rtol=1e-3, atol=1e-3)
            assert torch.allclose(store.heads["norm"], norms[layer], rtol=1e-3, atol=1e-3)
    assert left == 400 - one.schedule.held[0]
    assert one.schedule.held[0] >= METHOD.sinks + METHOD.window


def test_what_left_changes_what_follows_and_counts_in_the_bytes() -> None:
    ids, losses, byte_counts = tokens(400, 6), [], []
    for memory in (True, False):
        one = reader(replace(METHOD, memory=memory), length=400)
        one.report_loss = True
        one.begin()
        at, found = 0, []
        while at < 400:
            part = ids[at : at + one.schedule.chunk()]
            at += len(part)
            report = one.step(Piece(part, at - len(part)), last=at == 400)
            found.append(report.loss)
        losses.append(found)
        byte_counts.append(one.cache.bytes)
        retained = one.retained()
        assert retained[: METHOD.sinks].tolist() == list(range(METHOD.sinks))
        assert retained[-METHOD.window :].tolist() == list(range(400 - METHOD.window, 400))
    assert torch.equal(losses[0][0], losses[1][0])
    assert not torch.allclose(losses[0][2], losses[1][2])
    extra = sum(
        s.spec.heads * s.spec.key_dim * (s.spec.value_dim + 1) * 4 for s in one.cache.stores
    )
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


def test_decoding_folds_where_the_budget_is_full(monkeypatch: Any) -> None:
    one = reader(replace(METHOD, window=90), budget=192, length=300)
    read(one, tokens(300, 8))
    folded: list[tuple[int, float]] = []
    fold = EdgeInfinite.fold

    def counting(self: EdgeInfinite, step: Any, chosen: Tensor) -> None:
        fold(self, step, chosen)
        if step.layers[0] == 0:
            first = int(step.origin[0, 0, 0])
            folded.append((first, float(step.heads["norm"].sum())))

    monkeypatch.setattr(EdgeInfinite, "fold", counting)
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
    assert float(one.cache.stores[0].heads["norm"].sum()) == pytest.approx(of_memory[-1])


def test_a_model_without_a_gate_is_told_how_to_train_one(tmp_path: Path) -> None:
    facts = replace(bounded("llama").facts, folder=str(tmp_path), name="some/model")
    with pytest.raises(UsageError, match=r"kvstream gate train --model some/model"):
        load_gates("", facts)
    with pytest.raises(UsageError, match=r"nothing.safetensors is no file.*kvstream gate train"):
        load_gates(str(tmp_path / "nothing.safetensors"), facts)
    (tmp_path / "gate.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UsageError, match="cannot be read as a gate"):
        load_gates("", facts)


def test_gates_are_stored_and_those_of_another_model_refused(tmp_path: Path) -> None:
    facts = bounded("llama").facts
    gates = training.new_gates(facts, 5, seed=3)
    training.save_gates(gates, tmp_path / "gate.safetensors", {"model": "llama"})
    beside = replace(facts, folder=str(tmp_path))
    for layer, gate in load_gates("", beside).items():
        for name, value in gate.state_dict().items():
            assert torch.equal(value, gates[layer].state_dict()[name])
    others = [replace(layer, query_heads=layer.query_heads + 1) for layer in facts.layers]
    with pytest.raises(UsageError, match="trained for another model"):
        load_gates("", replace(beside, layers=tuple(others)))


# Training ---------------------------------------------------------------------------------------


class Letters:
    """A tokenizer of a few letters for models that have none."""

    bos_id = 1

    def encode(self, text: str) -> list[int]:
        return [3 + ord(c) % 60 for c in text]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Texts that can be learned: each says the same words again and again."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for i, words in enumerate(("the cat sat", "on and on it ran", "all that glitters")):
        (texts / f"book-{i}.txt").write_text(f"{words} " * 80, encoding="utf-8")
    return texts


def trainer(folder: Path, out: Path, kind: str = "llama", **recipe: Any) -> training.Trainer:
    settings = {"budget": 160, "tokens": 400, "epochs": 1, **recipe}
    return training.Trainer(
        bounded(kind),
        Letters(),
        training.GateRecipe(**settings),
        folder,
        out,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("kind", ["llama", "smollm3", "gemma2", "gpt-oss", "qwen3.5", "falcon-h1"])
def test_the_loss_in_training_is_the_loss_in_use(kind: str) -> None:
    model = bounded(kind)
    gates = training.new_gates(model.facts, None, 0)
    for gate in gates.values():
        torch.nn.init.normal_(gate.w2, std=0.2)
        torch.nn.init.normal_(gate.g)
    one = reader(training.with_gates(METHOD, gates), kind, length=400)
    one.report_loss = True
    one.begin()
    ids, at, compared = tokens(400, 11), 0, 0
    while at < 400:
        part = ids[at : at + one.schedule.chunk()]
        trained = None
        if one.cache.mix is not None:
            trained = chunk_loss(model, one.cache, part, gates)
        at += len(part)
        report = one.step(Piece(part, at - len(part)), last=at == 400)
        if trained is not None:
            assert report.loss is not None
            assert float(trained.detach()) == pytest.approx(float(report.loss[1:].mean()), rel=1e-4)
            assert trained.requires_grad
            compared += 1
    assert compared >= 2


def test_training_lowers_the_loss_and_leaves_the_model_alone(folder: Path, tmp_path: Path) -> None:
    one = trainer(folder, tmp_path / "gate.safetensors", epochs=4, lr=0.02)
    before = {k: v.clone() for k, v in one.model.model.state_dict().items()}
    losses = [at.loss for at in one.train()]
    assert losses[-1] < losses[0] - 0.05
    assert all(torch.equal(v, before[k]) for k, v in one.model.model.state_dict().items())
    one.save()
    assert not one.checkpoint.exists()
    stored = load_gates(str(one.out), one.model.facts)
    assert all(torch.equal(stored[i].w1, one.gates[i].w1) for i in one.gates)


def test_a_training_that_was_broken_off_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    whole = trainer(folder, tmp_path / "whole.safetensors", epochs=2)
    list(whole.train())
    first = trainer(folder, tmp_path / "parts.safetensors", epochs=2)
    next(first.train())
    second = trainer(folder, tmp_path / "parts.safetensors", epochs=2)
    assert second.resume()
    assert second.done == 1
    assert [at.text for at in second.train()] == list(range(2, len(whole.order) + 1))
    for layer, gate in whole.gates.items():
        for name, value in gate.state_dict().items():
            assert torch.equal(value, second.gates[layer].state_dict()[name])
    other = trainer(folder, tmp_path / "parts.safetensors", epochs=2, lr=0.1)
    with pytest.raises(UsageError, match="other settings"):
        other.resume()


def test_excerpts_are_from_anywhere_and_of_the_length_asked_for(folder: Path) -> None:
    names, held = training.texts_in(folder)
    assert len(names) + len(held) == 3
    text = Path(names[0]).read_text(encoding="utf-8")
    ids = Letters().encode(text)
    for place in (0.0, 0.5, 0.999):
        draw: Any = SimpleNamespace(random=lambda place=place: place)
        start = int(place * (len(text) - 30 * training.BYTES_A_TOKEN))
        found = training.excerpt(names[0], Letters(), 30, draw)  # type: ignore[arg-type]
        assert found == ids[start : start + 30]
        whole = training.excerpt(names[0], Letters(), len(text), draw)  # type: ignore[arg-type]
        assert whole == ids


def test_excerpts_of_packed_texts_are_never_empty(tmp_path: Path) -> None:
    noise = "".join(chr(97 + i * i % 25) for i in range(3000))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(noise.encode()))  # smaller than it looks
    draw: Any = SimpleNamespace(random=lambda: 0.99)
    assert len(training.excerpt(str(tmp_path / "a.txt.gz"), Letters(), 50, draw)) == 50  # type: ignore[arg-type]


def test_variants_are_measured_on_the_tokens_behind_a_memory(folder: Path) -> None:
    model = bounded("llama")
    gates = training.new_gates(model.facts, None, 0)
    texts = [tokens(300, 2), tokens(250, 3)]
    found = gate_worth.compare(model, Letters(), gates, texts, 160)  # type: ignore[arg-type]
    assert set(found) == set(gate_worth.VARIANTS)
    for measured in found.values():
        assert [0 < m.tokens < len(t) for m, t in zip(measured, texts, strict=True)] == [True] * 2
        assert math.isfinite(gate_worth.overall(measured).perplexity)


def test_the_control_finds_the_other_texts_memory() -> None:
    """Its own memory under another name changes nothing; another text's does, if the gate reads."""
    model = bounded("llama")
    gates = training.new_gates(model.facts, None, 0)
    for gate in gates.values():  # untrained it says zero whatever it reads
        torch.nn.init.normal_(gate.w2)
        torch.nn.init.zeros_(gate.g)
    method = training.with_gates(EdgeInfinite(), gates)
    one, other = tokens(400, 2), tokens(400, 3)

    def loss(*others: list[int]) -> float:
        letters: Any = Letters()
        return gate_worth.measure(model, letters, method, [one], 160, others)[0].loss

    assert loss(one) == loss()
    assert abs(loss(other) - loss()) > 1e-4


def test_the_gate_of_pocket_is_a_small_share_of_it() -> None:
    from kvstream.model.loading import load
    from kvstream.settings import ModelSettings

    model = load(ModelSettings())
    gates = training.new_gates(model.facts, None, 0)
    mine = sum(p.numel() for gate in gates.values() for p in gate.parameters())
    assert mine < 0.01 * sum(p.numel() for p in model.model.parameters())


def test_the_gate_of_pocket_lowers_the_loss_behind_its_sinks_and_window(data: Path) -> None:
    """The one in the package, on a novel that neither the model nor the gate was trained on."""
    from kvstream.session import Session
    from kvstream.settings import ModelSettings

    session = Session.open(ModelSettings(threads=1))
    gates = load_gates("", session.model.facts)
    name = str(data / "books" / "joseph-conrad-lord-jim.txt.gz")
    assert is_heldout("joseph-conrad-lord-jim")
    texts = training.excerpts([name], session.tokenizer, 4000, 1, 0)
    variants = (gate_worth.BASE, "edgeinfinite")
    found = gate_worth.compare(session.model, session.tokenizer, gates, texts, 1024, variants)
    without, with_memory = (found[name][0].loss for name in variants)
    assert with_memory < without


def test_the_command_trains_measures_and_resumes(cli: Any, tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "gate.safetensors"
    ran = cli(
        "gate", "train", "--data", str(folder), "--out", str(out), "--epochs", "1", "--texts", "1",
        "--tokens", "600", "--budget", "256", "--threads", "1", "--dtype", "float32",
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    assert "text 1 of 1" in ran.stderr
    assert "text 1 of 1" not in ran.stdout
    assert out.is_file()
    for wrong, told in (
        (["--out", str(tmp_path)], "is a folder"),
        (["--tokens", "200", "--budget", "256"], "nothing goes into memory"),
    ):
        refused = cli("gate", "train", "--data", str(folder), *wrong)
        assert refused.code == 2
        assert told in refused.stderr
    few = tmp_path / "few"
    few.mkdir()
    (few / "one.txt").write_text("the cat sat on and on " * 80, encoding="utf-8")
    alone = cli(
        "gate", "train", "--data", str(few), "--out", str(tmp_path / "new"), "--epochs", "1",
        "--tokens", "300", "--budget", "256", "--threads", "1", "--dtype", "float32", "--resume",
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
