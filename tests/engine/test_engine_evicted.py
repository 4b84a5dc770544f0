"""After evictions, every forward pass equals a slow model that holds its entries in lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
from cases import every_second
from models import EVERY_RUN, FAMILIES, tokens
from slow import CheckedModel

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.methods.base import Method
from kvstream.methods.infinipot import InfiniPot
from kvstream.methods.recency import Random
from kvstream.methods.snapkv import SnapKV
from kvstream.settings import RunSettings

REST = sorted(set(FAMILIES) - set(EVERY_RUN))


@dataclass(frozen=True)
class Uneven(Random):
    """Random selection with sizes that halve from layer to layer, down to one entry."""

    name: ClassVar[str] = "uneven"

    def layer_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(max(1, size >> i) for i, size in enumerate(sizes))


METHODS = [
    Random(recent=3),
    SnapKV(window=5, pool=3),
    InfiniPot(recent=4, pool=3),
    Uneven(sinks=2, recent=2),
]


def read_and_ask(
    name: str,
    method: Method,
    run: RunSettings,
    *,
    sizes: BudgetSplit,
    length: int,
    answers: Sequence[int] = (6, 6),
    may_compress: bool = True,
) -> Reader:
    """Run the engine over random tokens. The model inside checks every pass."""
    head, question = tokens(sizes.prompt, seed=1), tokens(sizes.question, seed=2)
    catalysts = []
    if sizes.catalyst:
        cut = sizes.catalyst // 2
        catalysts = [tokens(cut, seed=3), tokens(sizes.catalyst - cut, seed=4)]
    model = CheckedModel(name, sizes.prompt)
    model.slow.question, model.catalyst = len(question), [i for c in catalysts for i in c]
    reader = Reader(model, method, run, sizes, head, catalysts, estimate=length)
    text = tokens(length, seed=5)
    while reader.seen < length:
        piece = Chunk(text[reader.seen :][: reader.schedule.chunk()], reader.seen)
        model.piece = piece
        reader.step(piece, last=reader.seen + len(piece.ids) == length)
        assert reader.cache.size <= sizes.budget
    for count in answers:
        said = list(
            reader.answer(
                question, lambda logits: int(logits.argmax()), frozenset(), count,
                may_compress=may_compress,
            )
        )  # fmt: skip
        assert len(said) == count
    assert reader.cache.peak.tokens <= sizes.budget
    assert model.compared > reader.steps + sum(answers) - len(answers)
    return reader


SIZES = BudgetSplit(budget=128, prompt=5, catalyst=6, question=4, answer=8)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        # Heads that differ for every family, and another method for each; -m long runs all.
        pytest.param(name, method, marks=() if i in (0, 1 + f % 3) else pytest.mark.long)
        for f, name in enumerate(EVERY_RUN)
        for i, method in enumerate(METHODS)
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_evicted_equals_the_slow_model(name: str, method: Method) -> None:
    reader = read_and_ask(name, method, RunSettings(seed=3), sizes=SIZES, length=240)
    assert reader.steps > 2
    if method.name == "random":
        store = reader.compressible[0]
        first, second = (set(head.tolist()) for head in store.origin[:2, : store.used])
        assert first != second, "the heads were to differ"


@pytest.mark.long
@pytest.mark.parametrize("name", REST)
def test_evicted_equals_the_slow_model_in_every_family(name: str) -> None:
    for method in METHODS:
        read_and_ask(name, method, RunSettings(seed=3), sizes=SIZES, length=420)


@pytest.mark.parametrize(
    ("growth", "chunk"),
    every_second(
        (growth, chunk)
        for i, growth in enumerate(("fixed", "sqrt", "square-sqrt", "adaptive"))
        for chunk in (("decremental", "fixed"), ("fixed", "decremental"))[i % 2]
    ),
)
def test_evicted_under_other_schedules(growth: str, chunk: str) -> None:
    run = RunSettings(schedule=growth, chunk=chunk, seed=4)
    read_and_ask("gemma3", Random(recent=3), run, sizes=SIZES, length=500)


@pytest.mark.parametrize(
    ("name", "method"),
    [("llama", InfiniPot(recent=4)), ("gemma3", Random(recent=3)), ("smollm3", Uneven(recent=2))],
    ids=lambda x: getattr(x, "name", x),
)
def test_memory_compressed_in_mid_answer_equals_the_slow_model(name: str, method: Method) -> None:
    """The second answer starts from the memory that the first one left."""
    sizes = BudgetSplit(budget=80, prompt=3, catalyst=0, question=4, answer=8)
    read_and_ask(name, method, RunSettings(), sizes=sizes, length=150, answers=(40, 36))


def test_an_answer_longer_than_all_memory_equals_the_slow_model() -> None:
    """When memory has no entry left to evict, the oldest tokens of the answer are evicted."""
    sizes = BudgetSplit(budget=160, prompt=3, catalyst=0, question=4, answer=8)
    reader = read_and_ask(
        "llama", Random(recent=3), RunSettings(), sizes=sizes, length=220, answers=(180,)
    )
    assert reader.compressible[0].used < 72


def test_layers_of_different_sizes_end_at_the_same_position() -> None:
    reader = read_and_ask("smollm3", Uneven(), RunSettings(), sizes=SIZES, length=420)
    used = [store.used for store in reader.cache.stores]
    assert len(set(used)) == len(used), "the layers were to differ"
    newest = [store.origin[:, store.used - 1].tolist() for store in reader.cache.stores]
    assert newest == [[419, 419]] * len(used)


@dataclass(frozen=True)
class Greedy(Random):
    """A method that asks for more than the schedule allows."""

    name: ClassVar[str] = "greedy"

    def layer_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(10 * size for size in sizes)


def test_a_method_gets_no_more_than_the_schedule_allows() -> None:
    held = {}
    for method in (Random(), Greedy()):
        reader = read_and_ask("llama", method, RunSettings(), sizes=SIZES, length=420, answers=(1,))
        held[method.name] = reader.schedule.held
    assert held["greedy"] == held["random"]
