"""InfiniPot: kvstream's additions, and the code of its paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import ClassVar

import pytest
import torch
from memory import Memory
from models import bounded, plain, tokens
from torch import Tensor
from torch.nn.functional import cross_entropy

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.methods.base import Step
from kvstream.methods.infinipot import GENERAL, InfiniPot
from kvstream.methods.tools.scoring import pool, together
from kvstream.settings import RunSettings


def test_all_heads_hold_what_one_of_them_sees() -> None:
    """One head of one layer attends to an answer. The others attend to noise."""
    rng = torch.Generator().manual_seed(1)
    rows = torch.rand(2, 3, 400, generator=rng) * 0.02
    rows[1, 2, 100:110] = 0.5
    held = {}
    for shared in (0.0, 0.25):
        memory = Memory(InfiniPot(shared=shared, pool=7), layers=2, heads=3)
        memory.cut(memory.read(400, window_attention=rows), 120)
        held[shared] = [
            set(range(100, 110)) <= set(head.tolist()) for head in memory.origin.flatten(0, 1)
        ]
    assert held[0.0] == [False] * 5 + [True]
    assert held[0.25] == [True] * 6


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("shared", [0.0, 0.25, 1.0])
def test_each_share_has_its_entries(alpha: float, shared: float) -> None:
    """The shared entries are the same in all heads. The recency window is kept beside them."""
    rng = torch.Generator().manual_seed(2)
    rows, loss = torch.rand(2, 3, 300, generator=rng), torch.rand(300, generator=rng)
    method = InfiniPot(alpha=alpha, shared=shared, pool=3, recent=20)
    memory = Memory(method, layers=2, heads=3)
    memory.cut(memory.read(300, window_attention=rows, loss=loss if alpha else None), 120)
    held = [set(head.tolist()) for head in memory.origin.flatten(0, 1)]
    assert all(len(h) == 120 and set(range(280, 300)) <= h for h in held)
    ordinals = torch.arange(300).int().expand(2, 3, 300)
    agreed = together([pool(rows, ordinals, 3)], [ordinals])[0][0, 0, :280]
    first = set(agreed.topk(int(shared * 100)).indices.tolist())
    if alpha + shared <= 1:
        assert all(first <= h for h in held)


def test_a_memory_smaller_than_the_newest_tokens_holds_the_newest() -> None:
    memory = Memory(InfiniPot(recent=32, alpha=0.5))
    rows, loss = torch.rand(2, 3, 60), torch.rand(60)
    memory.cut(memory.read(60, window_attention=rows, loss=loss), 10)
    assert memory.origin[0, 0].tolist() == list(range(50, 60))


@pytest.mark.parametrize("kind", ["auto", "question", "both", "general"])
def test_without_a_question_the_catalyst_is_the_general_one(kind: str) -> None:
    assert InfiniPot(catalyst_kind=kind).catalyst(()) == (GENERAL,)
    own = InfiniPot(catalyst_kind=kind).catalyst(("Who?",))
    expected = {"both": f"{GENERAL} Who?", "general": GENERAL}
    assert own == (expected.get(kind, "Who?"),)


@pytest.mark.parametrize("shared", [0.0, 0.25, 1.0])
def test_novelty_alone_takes_all_of_memory(shared: float) -> None:
    """`alpha` is the share of novelty. The shared entries get only the rest."""
    rng = torch.Generator().manual_seed(3)
    rows, loss = torch.rand(2, 3, 300, generator=rng), torch.rand(300, generator=rng)
    method = InfiniPot(alpha=1.0, shared=shared, pool_novelty=1, recent=0)
    memory = Memory(method, layers=2, heads=3)
    memory.cut(memory.read(300, window_attention=rows, loss=loss), 100)
    most_novel = loss.topk(100).indices.sort().values
    assert (memory.origin == most_novel.int()).all()


@dataclass(frozen=True)
class OneByOne(InfiniPot):
    """Layers select separately, as layers on different devices do."""

    @property
    def needs_keys(self) -> bool:
        return True


@dataclass(frozen=True)
class Uneven(InfiniPot):
    """Upper layers hold less and less."""

    def layer_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(size * 2 // (2 + i) for i, size in enumerate(sizes))


def read_with(
    method: InfiniPot,
    growth: str = "linear",
    kind: str = "llama",
    seed: int = 0,
    length: int = 1200,
) -> Reader:
    """Read with a tiny model and a catalyst of 8 tokens. Memory holds up to 128 entries."""
    sizes = BudgetSplit(budget=256, prompt=2, catalyst=8, question=4, answer=8)
    run = RunSettings(schedule=growth, keep=128)
    reader = Reader(bounded(kind), method, run, sizes, tokens(2, 1), [tokens(8, 2)], length)
    text = tokens(length, 3 + seed)
    while reader.seen < length:
        piece = Chunk(text[reader.seen :][: reader.schedule.chunk()], reader.seen)
        reader.step(piece, last=reader.seen + len(piece.ids) == length)
    return reader


def held_by_heads(reader: Reader) -> list[list[set[int]]]:
    """Return the ordinals that each head of each layer holds after the sinks."""
    first = reader.evictor.first_candidate
    return [[set(h.tolist()) for h in s.origin[:, first : s.used]] for s in reader.compressible]


def test_layers_that_select_apart_agree_all_the_same() -> None:
    whole, apart = (read_with(m) for m in (InfiniPot(), OneByOne()))
    for one, other in zip(whole.compressible, apart.compressible, strict=True):
        assert torch.equal(one.origin[:, : one.used], other.origin[:, : other.used])


def test_what_a_small_layer_shares_is_part_of_what_a_large_one_shares() -> None:
    """At the first eviction all heads still hold the same entries."""
    reader = read_with(Uneven(shared=1.0, recent=0), kind="smollm3", length=260)
    assert reader.steps == 2
    layers = held_by_heads(reader)
    assert [len(heads[0]) for heads in layers] == sorted((len(h[0]) for h in layers), reverse=True)
    for larger, smaller in pairwise(layers):
        assert all(head == larger[0] for head in larger)
        assert all(head < larger[0] for head in smaller)


@pytest.mark.parametrize(
    ("growth", "kind", "seed"), [("square-sqrt", "smollm3", 0), ("adaptive", "llama", 1)]
)
def test_layers_of_different_sizes_agree(growth: str, kind: str, seed: int) -> None:
    """At the end all heads share as many entries as if every layer had the smallest size."""
    method = InfiniPot()
    layers = held_by_heads(read_with(method, growth, kind, seed))
    smallest = min(len(head) for heads in layers for head in heads)
    common = set.intersection(*(head for heads in layers for head in heads))
    assert len(common) - method.recent >= int(method.shared * (smallest - method.recent))


# The code of the paper -------------------------------------------------------------------------

PAPER = InfiniPot(
    alpha=0.5, catalyst_kind="general", pool=1, pool_novelty=1, shared=0.0, recent=0, sinks=0
)
"""The settings with which a step equals Code 1."""


def code_1(attention: Tensor, token_loss: Tensor, cache_size: int, nuc_size: int) -> set[int]:
    """Select one head's entries as in appendix B, from the CaP's attention [n] and the loss [n]."""
    score = attention.clone()
    score[token_loss.topk(nuc_size).indices] = attention.max() + 1  # "one unit above the maximum"
    return set(score.topk(cache_size).indices.tolist())


@dataclass(frozen=True)
class Recorded(InfiniPot):
    """Records every step and its selection."""

    seen: ClassVar[list[tuple[Step, Tensor]]] = []

    def select(self, step: Step, keep: int) -> Tensor:
        chosen = super().select(step, keep)
        self.seen.append((step, chosen))
        return chosen


def test_every_step_is_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps of a tiny model. The plain model gives the evidence of the first step."""
    monkeypatch.setattr(Recorded, "seen", [])
    cap, text, head, size = tokens(7, 4), tokens(300, 5), tokens(1, 6), 60
    run = RunSettings(schedule="fixed", chunk="fixed", chunk_size=80, keep=size)
    sizes = BudgetSplit(budget=256, prompt=1, catalyst=len(cap), question=4, answer=8)
    reader = Reader(bounded("llama"), Recorded(**PAPER.settings()), run, sizes, head, [cap], 300)
    reader.begin()
    for first in range(0, 300, 75):
        piece = Chunk(text[first : first + 75], first)
        reader.step(piece, last=False)
    assert len(Recorded.seen) == 4

    model = plain("llama")
    ids = torch.tensor([[*head, *text[:75], *cap]])
    with torch.no_grad():
        out = model(ids, output_attentions=True)
    rows = torch.stack(out.attentions)[:, 0, :, -len(cap) :, 1 : -len(cap)].sum(-2)  # [L, H, n]
    rows = rows.unflatten(1, (2, -1)).mean(2)  # the mean over the query heads of a KV head
    loss = cross_entropy(out.logits[0, :75], ids[0, 1:76], reduction="none")
    step = Recorded.seen[0][0]
    assert step.window_attention is not None
    assert torch.allclose(step.window_attention, rows, atol=1e-5)
    assert torch.allclose(step.state["novelty"], loss.expand(2, 2, -1), atol=1e-4)

    for step, chosen in Recorded.seen:
        assert step.window_attention is not None
        for layer, head_ in product(range(2), range(2)):
            novelty = step.state["novelty"][layer, head_]
            want = code_1(step.window_attention[layer, head_], novelty, size, size // 2)
            assert set(chosen[layer, head_].tolist()) == want


def test_novelty_is_equation_3_until_something_leaves() -> None:
    """While all chunks fit, novelty is the plain model's loss ``-log P(x_t | x_{0:t-1})``."""
    text, head = tokens(100, 7), tokens(1, 6)
    run = RunSettings(schedule="fixed", chunk="fixed", chunk_size=25, keep=120)
    sizes = BudgetSplit(budget=256, prompt=1, catalyst=0, question=4, answer=8)
    reader = Reader(bounded("llama"), PAPER, run, sizes, head, (), 1000)
    for first in range(0, 100, 25):
        reader.step(Chunk(text[first : first + 25], first), last=False)
    ids = torch.tensor([[*head, *text]])
    with torch.no_grad():
        want = cross_entropy(plain("llama")(ids).logits[0, :-1], ids[0, 1:], reduction="none")
    for store in reader.compressible:
        assert torch.allclose(store.state["novelty"][:, 1:101], want.expand(2, -1), atol=1e-4)


def test_a_small_budget_has_a_smaller_rest() -> None:
    """What the user makes even smaller stays so."""
    small = InfiniPot().sized(255)
    assert (small.pool, small.recent, small.shared) == (15, 8, 0.0)
    assert InfiniPot(pool=1, recent=0).sized(255) == InfiniPot(pool=1, recent=0, shared=0.0)
    assert InfiniPot().sized(256) == InfiniPot()
