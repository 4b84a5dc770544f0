"""`foresight`: the definition of its scores, their storage, and their benefit on pocket."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from models import bounded, tokens
from torch import Tensor, nn

from kvstream.api.options import request_of, with_method
from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Reader
from kvstream.errors import UsageError
from kvstream.evaluation.harness import IdFeed
from kvstream.methods.automatic import choose
from kvstream.methods.base import Step
from kvstream.methods.foresight import (
    FILE,
    Foresight,
    LayerScorers,
    Scorer,
    load_scorers,
    new_scorer,
)
from kvstream.model.bounded import BoundedModel
from kvstream.run.request import Request
from kvstream.sample.document import generate, questions
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream_lab import scorers
from kvstream_lab.scorers import Recipe, cut, lessons, recovered, save_scorers, train
from kvstream_lab.synthetic.corpus import Corpus


@pytest.fixture(scope="module")
def pocket() -> Session:
    return Session.open(ModelSettings(threads=1))


def read(model: BoundedModel, ids: list[int], budget: int, method: Foresight) -> Reader:
    sizes = BudgetSplit(budget, 2, 0, 8, 8)
    reader = Reader(model, method, RunSettings(), sizes, tokens(2, seed=1), (), len(ids))
    for _ in reader.read(IdFeed(ids)):
        pass
    return reader


def test_a_scorer_is_a_projection_a_convolution_and_a_sum() -> None:
    torch.manual_seed(0)
    scorer, keys = Scorer(6, hidden=4, width=3), torch.randn(2, 9, 3)
    found = [(scorer.w1 @ torch.cat([keys[0, t], keys[1, t]]) + scorer.b1).relu() for t in range(9)]
    nothing = torch.zeros(4)
    for t, said in enumerate(scorer(keys)):
        beside = scorer.b2.clone()
        for place, near in enumerate((t - 1, t, t + 1)):
            beside = beside + scorer.w2[..., place] @ (found[near] if 0 <= near < 9 else nothing)
        torch.testing.assert_close(said, (scorer.w3 @ (found[t] + beside.relu()) + scorer.b3)[0])


@pytest.mark.parametrize("length", [1, 3, 255, 256, 257, 520, 800])
def test_blocks_change_no_score(length: int) -> None:
    torch.manual_seed(0)
    scorer, keys = Scorer(6, hidden=4), torch.randn(2, length, 3)
    torch.testing.assert_close(scorer.in_blocks(keys), scorer(keys))


def test_rows_that_stand_for_no_token_part_what_they_lie_between() -> None:
    torch.manual_seed(0)
    scorer, keys = Scorer(6, hidden=4, width=3), torch.randn(2, 9, 3)
    real = torch.tensor([1.0, 1, 1, 1, 0, 1, 1, 1, 1])
    apart = torch.cat((scorer(keys[:, :4]), scorer(keys[:, 5:])))
    torch.testing.assert_close(scorer(keys, real)[real.bool()], apart)


def test_a_memory_is_read_with_the_scorers_that_made_it(
    pocket: Session, write_story: Any, cli: Any, tmp_path: Path
) -> None:
    story, memory = write_story(tokens=900, seed=3, facts=2), tmp_path / "m.kvs"
    scorers, file = load_scorers(pocket.model.facts), tmp_path / "scorers.safetensors"
    save_scorers(scorers, file)
    use = ("--method", "foresight", "--set", f"foresight.scorers={file}", "--budget", "400")
    ran = cli("remember", str(story), "-o", str(memory), *use)
    assert ran.code == 0, ran.stderr
    ask = ("ask", "--memory", str(memory), "Who?", "--max-tokens", "3")
    assert cli(*ask).code == 0
    next(scorers.parameters()).data.add_(0.1)
    save_scorers(scorers, file)
    refused = cli(*ask)
    assert refused.code != 0
    assert "other scorers" in refused.stderr


def test_all_heads_keep_the_same_tokens_with_the_scores_they_came_with() -> None:
    model, ids = bounded("llama"), tokens(400, seed=3)
    met: dict[tuple[int, int], float] = {}

    class Watched(Foresight):
        def absorb(self, step: Step) -> None:
            super().absorb(step)
            came = step.origin[0, 0, -step.new :].tolist()
            worth = step.state["worth"][0, 0, -step.new :].tolist()
            met.update({(step.layers[0], at): w for at, w in zip(came, worth, strict=True)})

    reader = read(model, ids, 128, Watched())
    assert len(met) == len(ids) * len(reader.compressible)
    held = {tuple(head) for s in reader.compressible for head in s.origin[:, : s.used].tolist()}
    assert len(held) == 1
    for store in reader.compressible:
        origin, worth = store.origin[0, 2 : store.used], store.state["worth"][0, 2 : store.used]
        for at, scored in zip(origin.tolist(), worth.tolist(), strict=True):
            assert scored == met[store.spec.index, at]


@pytest.mark.parametrize("width", [1, 9])
def test_what_stays_has_the_highest_sum_over_the_layers(width: int) -> None:
    """With pooling a token scores as high as the best token held near it."""
    model, sums = bounded("llama"), torch.zeros(400)
    looked = []

    class Watched(Foresight):
        def absorb(self, step: Step) -> None:
            super().absorb(step)
            came = step.origin[0, 0, -step.new :].long()
            sums[came] += step.state["worth"][0, :, -step.new :].sum(0)

        def select(self, step: Step, keep: int) -> Tensor:
            entries = super().select(step, keep)
            for origin, kept in zip(step.origin[0].long(), entries[0], strict=True):
                near = (origin[:, None] - origin[None]).abs() <= width // 2
                pooled = sums[origin].expand(len(origin), -1).masked_fill(~near, -torch.inf).amax(1)
                # Neighbors share their score, so any of them may stay.
                best = pooled.topk(keep).values.sort().values
                assert torch.equal(pooled[kept].sort().values, best)
                looked.append(keep)
            return entries

    read(model, tokens(400, seed=4), 128, Watched(pool=width))
    assert looked


def test_scorers_of_layers_keep_the_best_of_each_layer(tmp_path: Path) -> None:
    """The scores of other layers have no effect."""
    model = bounded("llama")
    layers = model.facts.layers
    save_scorers(LayerScorers({str(la.index): new_scorer(la, 4) for la in layers}), tmp_path / FILE)
    looked = set()

    class Watched(Foresight):
        def select(self, step: Step, keep: int) -> Tensor:
            entries = super().select(step, keep)
            (worth,) = step.state["worth"][0, :1]
            best = worth.topk(keep).values.sort().values
            assert torch.equal(worth[entries[0, 0]].sort().values, best)
            looked.add(step.layers)
            return entries

    reader = read(model, tokens(400, seed=4), 128, Watched(pool=1, scorers=str(tmp_path / FILE)))
    assert len(looked) == len(layers)
    held = [s.origin[:, : s.used].tolist() for s in reader.compressible]
    assert all(head == of[0] for of in held for head in of)
    assert held[0] != held[1]


def test_a_model_without_scorers_is_refused_and_told_what_to_do(tmp_path: Path) -> None:
    facts = replace(bounded("llama").facts, folder=str(tmp_path))
    with pytest.raises(UsageError, match=r"lab/foresight.py.*--method keydiff"):
        load_scorers(facts)
    for missing in (str(tmp_path / "missing"), "x" * 3000):
        with pytest.raises(UsageError, match="is not a file"):
            load_scorers(facts, missing)
    (tmp_path / FILE).write_bytes(b"no scorers")
    with pytest.raises(UsageError, match="cannot be read as scorers"):
        load_scorers(facts)


@pytest.mark.parametrize("kind", [nn.ModuleDict, LayerScorers])
def test_scorers_go_through_a_file_and_into_their_model_alone(
    tmp_path: Path, kind: type[nn.ModuleDict]
) -> None:
    facts = bounded("llama").facts
    made = kind({str(layer.index): new_scorer(layer, 4) for layer in facts.layers})
    save_scorers(made, tmp_path / FILE)
    loaded = load_scorers(facts, str(tmp_path / FILE))
    assert type(loaded) is kind
    assert loaded.state_dict().keys() == made.state_dict().keys()
    for name, weights in loaded.state_dict().items():
        torch.testing.assert_close(weights, made.state_dict()[name].half().float())
    wider = tuple(replace(layer, key_dim=layer.key_dim + 2) for layer in facts.layers)
    with pytest.raises(UsageError, match="was trained for another model"):
        load_scorers(replace(facts, layers=wider), str(tmp_path / FILE))


def test_auto_foresees_where_no_question_is_known_and_the_model_learned_it() -> None:
    assert choose(known=False, learned=True) == "foresight"
    assert choose(known=False) == "keydiff"
    assert choose(known=True, learned=True) == "infinipot"
    assert choose(known=True, owners=["foresight"]) == "foresight"
    run = with_method(request_of(command="remember"), learned=True).run
    assert (run.method, dict(run.set)) == ("foresight", {})


def test_pocket_holds_on_to_planted_facts_that_nobody_has_asked_for_yet(
    whole_session: Session,
) -> None:
    """At 8:1 memory holds most tokens of the planted sentences. Chance would hold an eighth."""
    shares = {}
    text = "".join(generate(tokens=3000, seed=11, facts=6))
    ids = whole_session.tokenizer.encode(text)
    raw, spans = text.encode(), whole_session.tokenizer.spans(text).starts
    for name, settings in (("foresight", {}), ("keydiff", {"pool": "15"})):
        run = RunSettings(Budget(tokens=len(ids) // 8), name, settings)
        plan = whole_session.settle(Request((), run, command="remember"))
        reader = plan.reader(whole_session.model, run, len(ids))
        for _ in reader.read(IdFeed(ids)):
            pass
        held, weights = reader.retained_weights()
        weight = torch.zeros(len(ids)).scatter(0, held, weights)
        found = []
        for fact in questions(facts=6, seed=11):
            first = raw.index(fact["sentence"].encode())
            end = first + len(fact["sentence"].encode())
            inside = [first <= int(at) < end for at in spans[: len(ids)]]
            found.append(weight[torch.tensor(inside)].mean())
        shares[name] = float(torch.stack(found).mean())
    assert shares["foresight"] > 0.5
    assert shares["foresight"] > shares["keydiff"]


@pytest.mark.long
@pytest.mark.parametrize("by_layer", [False, True])
def test_training_learns_what_questions_look_at(
    pocket: Session, data: Path, monkeypatch: pytest.MonkeyPatch, by_layer: bool
) -> None:
    monkeypatch.setattr(scorers, "LENGTHS", (1000, 1500))
    corpus = Corpus(data)
    made = list(lessons(pocket.model, pocket.tokenizer, corpus, 2, seed=5, by_layer=by_layer))
    for lesson in made:
        torch.testing.assert_close(lesson.attention.sum(-1).min(), torch.tensor(1.0))
        assert len(lesson.keys) == len(pocket.model.layers)
        assert {k.shape[1] for k in lesson.keys} == {lesson.attention.shape[-1]}
        assert 0 < lesson.wanted.mean() < 0.5
    epochs = list(train(pocket.model, made, Recipe(epochs=25, by_layer=by_layer)))
    assert isinstance(epochs[-1].scorers, LayerScorers) == by_layer
    assert epochs[-1].loss < epochs[0].loss / 2
    chance = recovered(epochs[0].scorers, made, 1 / 8)
    learned = recovered(epochs[-1].scorers, made, 1 / 8)
    assert sum(learned) > sum(chance)
    rows, real = cut(1000, random.Random(0))
    assert rows[real.bool()].tolist() == list(range(1000))


@pytest.mark.long
def test_a_lesson_is_no_longer_than_it_may_be(pocket: Session, data: Path) -> None:
    (made,) = lessons(pocket.model, pocket.tokenizer, Corpus(data), 1, seed=5, longest=600)
    assert 0 < made.attention.shape[1] <= 600 + scorers.ANSWER
