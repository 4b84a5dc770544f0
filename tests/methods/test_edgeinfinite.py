"""EdgeInfinite: memory and gates compared with slow loops; short texts are unchanged."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gated import METHOD, PAPER, reader
from hypothesis import given
from hypothesis import strategies as st
from models import bounded, tokens
from torch import Tensor

from kvstream.engine.reader import Chunk, Reader
from kvstream.errors import UsageError
from kvstream.evaluation.splits import is_heldout
from kvstream.methods.edgeinfinite import (
    LOOKED_AT,
    POOL,
    ROOM,
    WEIGHT,
    EdgeInfinite,
    Gated,
)
from kvstream.methods.recency import Streaming
from kvstream.methods.tools.gates import FORMS, LearnedGate, PaperGate, load_gates, sigma
from kvstream.model import hook
from kvstream.settings import RunSettings
from kvstream_lab.gates import texts as texts_of
from kvstream_lab.gates import train as training
from kvstream_lab.gates import worth as gate_worth
from kvstream_lab.gates.lessons import logs_between


def read(one: Reader, ids: list[int]) -> list[int]:
    """Read all ids in the chunks of the schedule. Return the size of memory after each chunk."""
    one.begin()
    at, held = 0, []
    while at < len(ids):
        part = ids[at : at + one.schedule.chunk()]
        at += len(part)
        report = one.step(Chunk(part, at - len(part)), last=at == len(ids))
        held.append(report.memory[0])
        assert one.cache.size <= one.sizes.budget
    return held


# Gates -----------------------------------------------------------------------------------------


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
    """The reference is a softmax over entries with loops. Scores are logs of sums of features."""
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
    share = gate.g.sigmoid()[:, None] if form == "paper" else 0.0  # the untrained MLP gives 0
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


# In the engine ----------------------------------------------------------------------------------


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
        before = one.cache.size
        attended.clear()
        at += len(part)
        one.step(Chunk(part, at - len(part)), last=at == len(ids))
        gone = before + len(part) - one.cache.size
        left += gone
        first = one.evictor.first_candidate
        for layer, store in enumerate(one.cache.stores):
            keys, values = (x[:, first : first + gone] for x in attended[layer])
            sums[layer] += torch.einsum("knd,kne->kde", sigma(keys), values)
            norms[layer] += sigma(keys).sum(1)
            assert torch.allclose(store.head_state["memory"], sums[layer], rtol=1e-3, atol=1e-3)
            assert torch.allclose(store.head_state["norm"], norms[layer], rtol=1e-3, atol=1e-3)
    assert left == 400 - one.schedule.held[0]
    assert one.schedule.held[0] >= METHOD.sinks + METHOD.window


def test_a_question_chooses_what_goes_into_a_learned_memory(monkeypatch: Any) -> None:
    """The most attended entries of each chunk are folded, weighted by their pooled attention."""
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
            best = torch.tensor(pooled).topk(max(1, leave // LOOKED_AT)).indices  # ties as in fold
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
    mine = reader(method, length=300, schedule="fixed", chunk="fixed", chunk_size=40, keep=20)
    theirs = reader(
        Streaming(sinks=8), length=300, schedule="fixed", chunk="fixed", chunk_size=40, keep=20
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
        assert one.cache.size <= 192
    assert answered == 240
    sums = [norm for _, norm in folded]
    assert sums == sorted(sums)
    assert folded[0][0] >= 0 > folded[-1][0]  # memory first, then the answer
    # After the answer, only the entries that left memory stay folded, not the answer's own.
    of_memory = [norm for origin, norm in folded if origin >= 0]
    assert float(one.cache.stores[0].head_state["norm"].sum()) == pytest.approx(of_memory[-1])


def test_a_loaded_memory_is_scored_and_ranked_with_its_compressive_memory() -> None:
    one = reader(length=400, catalysts=[tokens(6, 9)])
    read(one, tokens(400, 8))

    def found() -> list[Tensor]:
        one.cache.compressive_memory = None  # as in a cache that was filled from a file
        score = one.score(tokens(8, 9), tokens(10, 3))
        one.cache.compressive_memory = None
        one.rank()
        return [score, *(s.window_attention for s in one.cache.stores)]

    loaded = found()
    for _ in one.answer(tokens(8, 9), lambda logits: int(logits.argmax()), frozenset(), 1):
        pass
    assert one.cache.compressive_memory is not None
    one.rank()
    read_on = [one.score(tokens(8, 9), tokens(10, 3))]
    read_on += [s.window_attention for s in one.cache.stores]
    for mine, theirs in zip(loaded, read_on, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_an_answer_of_which_nothing_stays_folded_leaves_no_compressive_memory() -> None:
    one = reader(PAPER, length=30)
    read(one, tokens(30, 8))
    before = one.score(tokens(8, 9), tokens(10, 3))
    for _ in one.answer(tokens(8, 9), lambda logits: int(logits.argmax()), frozenset(), 240):
        pass
    assert not one.cache.stores[0].head_state["memory"].any()
    after = one.score(tokens(8, 9), tokens(10, 3))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_a_model_without_a_gate_is_told_how_to_train_one(form: str, tmp_path: Path) -> None:
    facts = replace(bounded("llama").facts, folder=str(tmp_path), name="some/model")
    with pytest.raises(UsageError, match=r"edgeinfinite.py train --model some/model") as told:
        load_gates(form, "", facts)
    assert ("--form paper" in str(told.value)) == (form == "paper")
    with pytest.raises(UsageError, match=r"safetensors is not a file.*edgeinfinite.py train"):
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


def test_features_of_any_key_are_finite() -> None:
    gate = LearnedGate(2, 8, 4, 4, 8, 3)
    keys = torch.randn(2, 50, 8) * 1e3
    memory, norm = gate.features(keys).transpose(1, 2) @ keys, gate.features(keys).sum(1)
    out = gate(
        torch.randn(4, 5, 8) * 1e3, torch.zeros(4, 5, 8), torch.zeros(4, 5), memory, norm, True
    )
    assert torch.isfinite(out).all()
    assert torch.isfinite(logs_between(gate, keys, keys)).all()


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


@pytest.mark.parametrize("form", ["learned", pytest.param("paper", marks=pytest.mark.long)])
def test_the_gates_of_pocket_lower_the_loss_behind_its_sinks_and_window(
    form: str, data: Path
) -> None:
    """The gates of the package, on a novel that was not in the training of model or gate."""
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
    """The text's own memory makes the number much likelier than none or that of another text."""
    from kvstream.evaluation.harness import IdFeed, open_reader
    from kvstream.sample.novel import novel
    from kvstream.session.session import Session
    from kvstream.settings import Budget, ModelSettings

    session = Session.open(ModelSettings(threads=1))
    question = "What is the passkey?"
    story = session.tokenizer.encode("".join(itertools.islice(novel(9), 300)))[:2200]
    assert len(story) == 2200
    gained, lost, lent = [], [], None
    for number in (48213, 70956):
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
