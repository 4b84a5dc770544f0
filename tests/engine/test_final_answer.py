"""A final answer reads keys that are rotated once, and gets the same numbers as any other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import every_second
from models import FAMILIES, bounded, fresh, tokens
from torch import Tensor

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.methods import registry
from kvstream.model.bounded import BoundedModel
from kvstream.model.cache import BoundedCache
from kvstream.model.probe import bound
from kvstream.settings import RunSettings

PROMPT, QUESTION, BUDGET, LENGTH = 3, 5, 160, 400
LONG = BUDGET * 3 // 2
"""Length of an answer that evicts more than all memory."""
METHODS = [name for name, method in registry.available().items() if method.evicts]
KINDS = ["gemma3", "gpt-neox", "helium", "smollm3"]
"""With a sliding window, with a part of each key rotated, in pairs of neighbors, and with a layer
that is not rotated."""


def read(method: str, model: BoundedModel, **settings: Any) -> Reader:
    made = registry.make(method)
    catalyst = [tokens(4, 7)] if made.catalyst(("q",)) else []
    sizes = BudgetSplit(
        budget=BUDGET, prompt=PROMPT, catalyst=4 * len(catalyst), question=QUESTION, answer=8
    )
    run = RunSettings(keep=80, **settings)
    reader = Reader(model, made, run, sizes, tokens(PROMPT, 1), catalyst, LENGTH)
    text = tokens(LENGTH, 2)
    while reader.seen < LENGTH:
        piece = Chunk(text[reader.seen :][: reader.prefill.room(round_down=True)], reader.seen)
        reader.step(piece, last=reader.seen + len(piece.ids) == LENGTH)
    return reader


def logits(reader: Reader, count: int = 8, **how: bool) -> list[Tensor]:
    """Return the logits of every token of an answer."""
    seen: list[Tensor] = []

    def choose(row: Tensor) -> int:
        seen.append(row.clone())
        return int(row.argmax())

    for _ in reader.answer(tokens(QUESTION, 3), choose, frozenset(), count, **how):
        assert reader.cache.size <= BUDGET
    return seen


def check(reader: Reader, *, turned: bool) -> None:
    before = [store.unrotated for store in reader.cache.stores]
    assert all(before)
    usual = logits(reader)
    assert [store.unrotated for store in reader.cache.stores] == before
    for _ in range(2):  # memory stays whole for another answer
        final = logits(reader, final=True)
        assert all(torch.equal(a, b) for a, b in zip(final, usual, strict=True))
        after = [store.unrotated for store in reader.cache.stores]
        assert after == ([0] * len(before) if turned else before)
        assert reader.cache.base == max(after)
    usual = logits(reader)
    assert all(torch.equal(a, b) for a, b in zip(final, usual, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_answers_the_same(method: str) -> None:
    reader = read(method, bounded("llama"))
    same_sizes = len({store.unrotated for store in reader.cache.stores}) == 1
    assert same_sizes or method == "pyramidkv"
    check(reader, turned=same_sizes)


@pytest.mark.parametrize("family", KINDS)
def test_families(family: str) -> None:
    model = bounded(family)
    check(read("streaming", model), turned=all(spec.window is None for spec in model.layers))


def test_16_bits() -> None:
    model = bound(fresh(FAMILIES["llama"].config()).to(torch.bfloat16), "llama")
    check(read("streaming", model), turned=True)


def test_keys_of_another_type_stay_as_they_are() -> None:
    check(read("streaming", bounded("llama").storing(torch.bfloat16)), turned=False)


@pytest.mark.parametrize("growth", ["linear", "adaptive"])
def test_layers_of_different_sizes_stay_as_they_are(growth: str) -> None:
    reader = read("infinipot", bounded("llama"), schedule=growth)
    alike = len({store.unrotated for store in reader.cache.stores}) == 1
    check(reader, turned=alike)


def test_a_narrowed_answer_does_not_rotate() -> None:
    reader = read("streaming", bounded("llama"))
    reader.cache.settle()  # the last chunk evicted nothing, so its keys are still rotated
    before = [(s.unrotated, s.keys[:, : s.used].clone()) for s in reader.cache.stores]
    with reader.in_sight([0, 350, LENGTH], [1, 0], 1):
        logits(reader, final=True)
    for store, (unrotated, keys) in zip(reader.cache.stores, before, strict=True):
        assert store.unrotated == unrotated
        assert torch.equal(store.keys[:, : store.used], keys)


@pytest.mark.parametrize("method", every_second(["streaming", "keydiff", "infinipot", "h2o"]))
def test_a_long_final_answer_evicts_as_usual(method: str) -> None:
    """The keys are rounded once more, and the bound holds."""
    usual = logits(read(method, bounded("llama")), LONG, may_compress=True)
    reader = read(method, bounded("llama"))
    final = logits(reader, LONG, may_compress=True, final=True)
    assert reader.stopped == "length"
    assert len(final) == len(usual) == LONG
    assert reader.cache.peak.tokens <= BUDGET
    for a, b in zip(final[:40], usual[:40], strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_an_interrupted_rotation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = read("streaming", bounded("llama"))
    second = reader.cache.stores[1]

    def interrupted(base: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(second, "rotate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        logits(reader, final=True)
    assert isinstance(reader.cache, BoundedCache)
    assert reader.cache.torn
