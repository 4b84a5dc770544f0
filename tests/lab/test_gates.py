"""The gates of `edgeinfinite`: their data, their training and their measurement."""

from __future__ import annotations

import copy
import gzip
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases import every_second
from gated import METHOD, reader
from models import bounded, tokens
from torch import Tensor

from edgeinfinite import _Lines
from kvstream.engine.reader import Chunk
from kvstream.errors import KvstreamError, UsageError
from kvstream.evaluation.splits import is_heldout
from kvstream.methods.edgeinfinite import (
    EdgeInfinite,
)
from kvstream.methods.tools.gates import FORMS, Gate, LearnedGate, load_gates
from kvstream.model.bounded import BoundedModel
from kvstream_lab.gates import lessons
from kvstream_lab.gates import texts as texts_of
from kvstream_lab.gates import train as training
from kvstream_lab.gates import worth as gate_worth
from kvstream_lab.gates.peek import chunk_loss
from kvstream_lab.gates.train import Progress


class Letters:
    """A tokenizer with 94 symbols, one token per character, for models that have none."""

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
    """A folder of texts that gates can learn: each text repeats the same words."""
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


def other_weights(model: BoundedModel) -> BoundedModel:
    """Return a model of the same name with other weights, like another downloaded revision."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        next(copied.model.parameters()).mul_(1.5)
    copied.__dict__.pop("fingerprint", None)
    return copied


KINDS = ["mistral-sliding", "smollm3", "gemma2", "gpt-oss", "qwen3.5", "falcon-h1"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
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
            trained.backward()
        at += len(part)
        report = one.step(Chunk(part, at - len(part)), last=at == 400)
        if trained is not None:
            assert report.loss is not None
            assert float(trained.detach()) == pytest.approx(float(report.loss[1:].mean()), rel=1e-4)
            compared += 1
    assert compared >= 2
    for gate in gates.values():
        assert gate.g.grad is not None
        assert bool(gate.g.grad.isfinite().all())
        assert bool(gate.g.grad.any())


def opened(gates: dict[int, Gate]) -> dict[int, Gate]:
    """Give gates random weights that read and use compressive memory; untrained gates hardly do."""
    for gate in gates.values():
        torch.nn.init.normal_(gate.w2, std=0.2)
        torch.nn.init.normal_(gate.g)
        if isinstance(gate, LearnedGate):
            torch.nn.init.zeros_(gate.b_key)
    return gates


@pytest.mark.long
@pytest.mark.parametrize("form", every_second(FORMS))
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


@pytest.mark.long
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_training_that_was_broken_off_goes_on_where_it_was(
    blocks: int, folder: Path, tmp_path: Path
) -> None:
    """The training stops in the middle of the features, or in the middle of the texts."""
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
    changed = trainer(folder, tmp_path / "parts.safetensors", epochs=2)
    changed.model = other_weights(changed.model)
    with pytest.raises(UsageError, match="other settings or weights"):
        changed.resume()


def test_lessons_that_were_read_are_not_read_again(
    folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """A large model takes most of the time to read lessons, so files hold them until the end."""
    out = tmp_path / "parts.safetensors"
    whole = trainer(folder, tmp_path / "whole.safetensors", steps=4)
    list(whole.train())
    reading = trainer(folder, out, steps=4).train()
    for _ in range(4):
        next(reading)
    reading.close()
    numbers: list[int] = []
    lesson = training.Trainer._lesson

    def counted(self: training.Trainer, number: int) -> Any:
        numbers.append(number)
        return lesson(self, number)

    monkeypatch.setattr(training.Trainer, "_lesson", counted)
    second = trainer(folder, out, steps=4)
    assert second.resume()
    assert second.read == 4
    tokens = [at.tokens for at in second.train() if at.what == "lesson"]
    assert [bool(count) for count in tokens] == [False] * 4 + [True] * 2
    assert numbers == [4, 5]
    for layer, gate in whole.gates.items():
        for name, value in gate.state_dict().items():
            assert torch.equal(value, second.gates[layer].state_dict()[name])
    second.checkpoint.unlink()
    more = trainer(folder, out, lessons=8, steps=4)  # reuses the lessons of a run with fewer
    assert more.resume()
    assert more.read == 6
    other = trainer(folder, out, seed=7, steps=4)
    assert not other.resume()
    changed = trainer(folder, out, steps=4)
    changed.model = other_weights(changed.model)
    assert not changed.resume(), "lessons of a model of the same name with other weights"
    second.save()
    assert not second.lesson_files.folder.exists()


@pytest.mark.long
def test_lessons_of_an_earlier_run_count_only_if_it_is_resumed(
    folder: Path, tmp_path: Path
) -> None:
    first = trainer(folder, tmp_path / "gate.safetensors", steps=10)
    list(first.train())
    anew = trainer(folder, tmp_path / "gate.safetensors", steps=10)
    assert all(at.tokens for at in anew.train() if at.what == "lesson")


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
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(noise.encode()))  # shorter than estimated
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
    """The text's own memory changes nothing. The memory of another text does if the gate reads."""
    model = bounded("llama")
    gates = opened(training.new_gates(model.facts, training.GateRecipe(form=form)))
    method = training.with_gates(gate_worth.method_of(gates), gates)
    one, other = tokens(400, 2), tokens(400, 3)

    def loss(*others: list[int]) -> float:
        letters: Any = Letters()
        return gate_worth.measure(model, letters, method, [one], 160, others)[0].loss

    assert loss(one) == loss()
    assert abs(loss(other) - loss()) > 1e-4


# Training data of features ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gemma2", "smollm3"])
def test_what_is_noted_is_attention_to_what_is_there_and_to_what_left(
    kind: str, monkeypatch: Any
) -> None:
    """Queries are those of the pass. It continues with attention to held and evicted entries."""
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
    write = EdgeInfinite.blocks

    def watching(self: EdgeInfinite, step: Any, leave: int) -> Any:
        for parts in write(self, step, leave):
            written.setdefault(step.layers[0], []).append(parts)
            yield parts

    monkeypatch.setattr(EdgeInfinite, "blocks", watching)
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


TRAIN = ("edgeinfinite", "train")


def test_the_command_trains_measures_and_resumes(lab: Any, tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "gate.safetensors"
    few_steps = ("--lessons", "4", "--steps", "6")
    ran = lab(
        *TRAIN, "--data", str(folder), "--out", str(out), "--epochs", "1", "--texts", "1",
        "--tokens", "460", "--budget", "256", "--threads", "1", "--dtype", "float32", *few_steps,
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    assert "lesson 4 of 4" in ran.stderr
    assert "step 6 of 6" in ran.stderr
    assert "text 1 of 1" in ran.stderr
    assert "text 1 of 1" not in ran.stdout
    assert out.is_file()
    for wrong, told in (
        (["--out", str(tmp_path)], "is a folder"),
        (["--tokens", "200", "--budget", "256"], "leave nothing to go into memory"),
    ):
        refused = lab(*TRAIN, "--data", str(folder), *wrong)
        assert refused.code == 2
        assert told in refused.stderr
    few = tmp_path / "few"
    few.mkdir()
    (few / "one.txt").write_text("the cat sat on and on " * 80, encoding="utf-8")
    assert not list(tmp_path.glob("*.lessons"))
    alone = lab(
        *TRAIN, "--data", str(few), "--out", str(tmp_path / "new"), "--epochs", "1",
        "--tokens", "460", "--budget", "256", "--threads", "1", "--dtype", "float32", "--resume",
        "--form", "paper",
    )  # fmt: skip
    assert "starts again" in alone.stderr
    assert "not measured" in alone.stderr
    again = lab(*TRAIN, "--data", str(tmp_path / "nowhere"), "--out", str(out))
    assert again.code != 0
    assert "does not exist" in again.stderr
    for number in [n for n in range(99) if is_heldout(f"more-{n}")][:2]:
        (folder / f"more-{number}.txt").write_text("the cat sat on and on " * 80, encoding="utf-8")
    ran = lab("edgeinfinite", "measure", "--data", str(folder), "--gate", str(out),
        "--texts", "2", "--tokens", "460", "--budget", "256", "--threads", "1", "--dtype",
        "float32",
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(gate_worth.VARIANTS)
    assert "%" not in lines[0]
    assert all("% to " in line for line in lines[1:])
    fits = lab("edgeinfinite", "measure", "--data", str(folder), "--gate", str(out),
        "--texts", "2", "--tokens", "100", "--budget", "256", "--threads", "1",
    )  # fmt: skip
    assert fits.code == 2
    assert "nothing can be measured" in fits.stderr
    assert fits.stdout == ""


def test_lessons_that_take_long_are_told_one_by_one() -> None:
    lines, now, told = _Lines(), 0.0, []
    for number in range(1, 61):
        seconds = 0.0 if number <= 5 else 1.0 if number <= 40 else 40.0
        now += seconds
        tokens = 0 if number <= 5 else 100
        told.append(lines.of(Progress("lesson", number, 60, math.nan, tokens, seconds), now))
    said = {number: line for number, line in enumerate(told, 1) if line}
    assert set(said) == {1, 20, 40, *range(41, 61)}
    assert said[1] == "lesson 1 of 60"  # an earlier run read it
    assert said[20] == "lesson 20 of 60, 100 tokens/s, 40.0 s left"
    assert said[41].startswith("lesson 41 of 60, 2 tokens/s, ")
    assert said[60] == "lesson 60 of 60, 2 tokens/s"
    assert lines.of(Progress("step", 100, 300, 2.5, 0, 3.0), now) == (
        "step 100 of 300: 2.500 nats from the attention, over all layers"
    )
    assert (lines.of(Progress("step", 200, 300, 2.0, 0, 3.0), now) or "").endswith("3.0 s left")
