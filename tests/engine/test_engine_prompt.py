"""The prompt shares a pass with the first chunk; results equal those of a separate pass."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from models import bounded, tokens

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.methods.base import Method
from kvstream.methods.cascade import Cascade
from kvstream.methods.h2o import H2O
from kvstream.methods.infinipot import InfiniPot
from kvstream.methods.recency import Streaming
from kvstream.methods.sirllm import SirLLM
from kvstream.settings import RunSettings

HEAD, QUESTION, LENGTH = tokens(9, seed=1), tokens(4, seed=2), 300
SIZES = BudgetSplit(128, len(HEAD), 6, len(QUESTION), 8)
METHODS = [Streaming(), H2O(), Cascade(), InfiniPot(alpha=0.5), SirLLM()]


def fresh(method: Method, kind: str = "llama", head: list[int] = HEAD) -> Reader:
    return Reader(
        bounded(kind), method, RunSettings(), SIZES, head, [tokens(6, seed=3)], estimate=LENGTH
    )  # fmt: skip


def step(reader: Reader) -> Any:
    ids = tokens(LENGTH, seed=4)[reader.seen :][: reader.schedule.chunk()]
    return reader.step(Chunk(ids, reader.seen), last=reader.seen + len(ids) == LENGTH)


def entries(reader: Reader) -> list[torch.Tensor]:
    return [
        t[:, : s.used]
        for s in reader.cache.stores
        for t in (s.origin, s.keys, s.values, *s.state.values())
    ]


def say(reader: Reader) -> list[int]:
    return list(reader.answer(QUESTION, lambda x: int(x.argmax()), frozenset(), 6))


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that collects the number of tokens of every forward pass."""
    seen: list[int] = []
    forward = type(bounded("llama")).forward

    def counting(self: Any, ids: Any, *rest: Any) -> Any:
        seen.append(len(ids))
        return forward(self, ids, *rest)

    monkeypatch.setattr(type(bounded("llama")), "forward", counting)
    return seen


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_pass_with_the_first_chunk_is_as_good_as_one_of_its_own(
    kind: str, method: Method, widths: list[int]
) -> None:
    together, apart = fresh(method, kind), fresh(method, kind)
    apart.begin()
    widths.clear()
    for reader in (together, apart):
        reader.report_loss = True
    first = [step(reader) for reader in (together, apart)]
    assert widths[0] == len(HEAD) + widths[1]
    assert first[0].in_flight == first[1].in_flight
    assert len(first[0].loss) == first[0].chunk
    torch.testing.assert_close(first[0].loss, first[1].loss, rtol=1e-4, atol=1e-4)
    while together.seen < LENGTH:
        step(together)
        step(apart)
    for a, b in zip(entries(together), entries(apart), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert together.cache.peak.tokens == apart.cache.peak.tokens
    assert say(together) == say(apart)


@pytest.mark.parametrize("head", [HEAD, []], ids=["prompt", "none"])
def test_where_nothing_was_read_the_prompt_still_stands_before_the_question(
    head: list[int],
) -> None:
    one, other = fresh(Streaming(), head=head), fresh(Streaming(), head=head)
    said = say(one)
    assert one.cache.size == len(head)
    assert say(one) == said
    whole, cache = [*head, *QUESTION], one.model.new_cache(64)
    logits = one.model.logits(one.model.forward(whole, cache)[-1:])[0]
    assert said[0] == int(logits.argmax())
    loss = torch.nn.functional.cross_entropy(logits[None], torch.tensor(said[:1]))
    assert other.score(QUESTION, said[:1]) == pytest.approx(float(loss), abs=1e-4)
    # A first chunk after that finds the prompt already in the cache.
    late, usual = step(one), step(fresh(Streaming(), head=head))
    assert late.in_flight == usual.in_flight


def test_a_state_knows_whether_the_prompt_is_there(widths: list[int]) -> None:
    def continued(reader: Reader) -> Reader:
        numbers, tensors = reader.state()
        other = fresh(Streaming())
        other.restore(json.loads(json.dumps(numbers)), tensors)
        return other

    before = fresh(Streaming())
    again = continued(before)
    widths.clear()
    step(before)
    step(again)
    assert widths[0] == widths[1] > len(HEAD)
    continued(before).begin()
    assert len(widths) == 2, "it went through the model twice"


@pytest.mark.parametrize("head", [HEAD, []], ids=["prompt", "none"])
def test_each_loss_is_of_a_token_after_what_stands_before_it(head: list[int]) -> None:
    reader = fresh(Streaming(), head=head)
    reader.schedule.revise(80)
    reader.report_loss = True
    ids = tokens(LENGTH, seed=4)[:80]
    pieces = Chunk(ids[:30], 0), Chunk(ids[30:], 30)
    losses = [reader.step(piece, last=piece.first > 0).loss for piece in pieces]
    loss, model = torch.cat(losses), reader.model
    assert reader.cache.size == len(head) + 80, "nothing was to leave"
    hidden = model.forward([*head, *ids], model.new_cache(128))
    expected = model.loss(hidden[:-1], torch.tensor([*head, *ids][1:]))[-80:]
    torch.testing.assert_close(loss[-len(expected) :], expected, rtol=1e-4, atol=1e-4)
    if not head:  # no token precedes the first one
        assert float(loss[0]) == pytest.approx(float(losses[0][1:].mean()), rel=1e-5)


def test_a_catalyst_changes_no_loss() -> None:
    """The catalyst followed the previous chunk and has been removed."""
    readers = [fresh(Streaming()), fresh(Streaming())]
    readers[1].prefill.catalysts = []
    for reader in readers:
        reader.report_loss = True
    while readers[0].seen < LENGTH:
        with_catalyst, without = (step(reader).loss for reader in readers)
        torch.testing.assert_close(with_catalyst, without, rtol=1e-4, atol=1e-4)
    assert readers[0].steps > 2
