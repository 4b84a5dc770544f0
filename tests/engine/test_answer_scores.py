"""Methods that sum attention keep summing while an answer may evict entries from memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from models import bounded, tokens
from torch import Tensor

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.methods.base import Method, Step
from kvstream.methods.bumblebee import BumbleBee
from kvstream.methods.cascade import Cascade
from kvstream.methods.h2o import H2O
from kvstream.methods.recency import Streaming
from kvstream.methods.snapkv import SnapKV
from kvstream.model.layer_store import LayerStore
from kvstream.settings import RunSettings

PROMPT, QUESTION, BUDGET = 3, 5, 200
METHODS = [H2O(), BumbleBee(recent=4), Cascade(run=1, contest="attention", gamma=0.9)]


def read(method: Method, catalyst: int = 0) -> Reader:
    """Return a reader with a tiny model that has read 300 tokens under a budget of 200."""
    sizes = BudgetSplit(
        budget=BUDGET, prompt=PROMPT, catalyst=catalyst, question=QUESTION, answer=8
    )
    reader = Reader(
        bounded("llama"), method, RunSettings(keep=120), sizes, tokens(PROMPT, 1),
        [tokens(catalyst, 7)] if catalyst else (), 300,
    )  # fmt: skip
    text = tokens(300, 2)
    while reader.seen < 300:
        piece = Chunk(text[reader.seen :][: reader.schedule.chunk()], reader.seen)
        reader.step(piece, last=reader.seen + len(piece.ids) == 300)
    return reader


def ask(reader: Reader, count: int, **how: bool) -> list[int]:
    asked = tokens(QUESTION, 3)
    return list(reader.answer(asked, lambda row: int(row.argmax()), frozenset(), count, **how))


def scores(reader: Reader) -> list[Tensor]:
    """Return the scores of every layer, [K, n]."""
    return [next(iter(s.state.values()))[:, : s.used].clone() for s in reader.compressible]


def watched(monkeypatch: pytest.MonkeyPatch, store: LayerStore) -> list[tuple[Any, Any]]:
    """Return a list that collects what a layer measures: attention by rows and by columns."""
    seen: list[tuple[Any, Any]] = []
    measured = LayerStore.measured

    def noting(self: LayerStore, rows: Any, columns: Any, *, by_owner: bool) -> None:
        if self is store:
            seen.append((rows, columns))
        measured(self, rows, columns, by_owner=by_owner)

    monkeypatch.setattr(LayerStore, "measured", noting)
    return seen


@dataclass(frozen=True)
class Noting(H2O):
    """H2O that records the attention which `select` receives."""

    shown: ClassVar[list[Tensor]] = []

    def select(self, step: Step, keep: int) -> Tensor:
        self.shown.append(step.state["attention"].clone())
        return super().select(step, keep)


def test_a_compression_counts_the_attention_of_question_and_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When an answer fills the budget, h2o selects by the sum of attention over all passes."""
    monkeypatch.setattr(Noting, "shown", [])
    reader = read(Noting())
    store, first = reader.compressible[0], reader.evictor.first_candidate
    end = store.used
    want = scores(reader)[0][:, first:]
    measured = watched(monkeypatch, store)
    Noting.shown.clear()
    room = BUDGET - end - QUESTION
    assert len(ask(reader, room + 2)) == room + 2
    assert len(Noting.shown) == 2  # each of the two layers was compressed once
    assert all(columns is not None for _, columns in measured)
    # The question and the part of the answer that fits.
    before = [columns for _, columns in measured[: room + 1]]
    assert [columns.shape[1] for columns in before] == list(range(end + QUESTION, BUDGET + 1))
    assert all(a.sum() == pytest.approx(2, rel=1e-3) for a in before[1:])  # one query, two heads
    want = want + sum(columns[:, first:end] for columns in before)
    torch.testing.assert_close(Noting.shown[0][0], want)


@dataclass(frozen=True)
class NotingRows(SnapKV):
    """SnapKV that records the attention of the newest query which `select` receives."""

    shown: ClassVar[list[Tensor]] = []

    def select(self, step: Step, keep: int) -> Tensor:
        assert step.window_attention is not None
        self.shown.append(step.window_attention.clone())
        return super().select(step, keep)


def test_a_compression_goes_by_what_the_newest_token_of_the_answer_looks_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attention of the end of the text, long before, does not count."""
    monkeypatch.setattr(NotingRows, "shown", [])
    reader = read(NotingRows(window=4))
    store, first = reader.compressible[0], reader.evictor.first_candidate
    end = store.used
    measured = watched(monkeypatch, store)
    NotingRows.shown.clear()
    room = BUDGET - end - QUESTION
    assert len(ask(reader, room + 2)) == room + 2
    ((newest, _),) = measured  # measured only when the budget is full
    assert newest.sum() == pytest.approx(2, rel=1e-3)  # one query, two heads
    torch.testing.assert_close(NotingRows.shown[0][0], newest[:, first:end])


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_scores_are_as_before_once_an_answer_ends(method: Method) -> None:
    reader = read(method)
    before = scores(reader)
    origins = [s.origin[:, : s.used].clone() for s in reader.compressible]
    room = BUDGET - reader.cache.size - QUESTION
    for count, how in ((room, {}), (room + 40, {"may_compress": False})):
        ask(reader, count, **how)
        assert all(map(torch.equal, scores(reader), before))
    closed = reader.answer(tokens(QUESTION, 3), lambda row: 5, frozenset(), room + 40)
    for _ in range(room):
        next(closed)
    assert not all(map(torch.equal, [s[:, : b.shape[1]] for s, b in
                   zip(scores(reader), before, strict=True)], before))  # fmt: skip
    closed.close()
    assert all(map(torch.equal, scores(reader), before))
    ask(reader, room + 2)  # evicts a part of memory
    for now, then, origin, store in zip(
        scores(reader), before, origins, reader.compressible, strict=True
    ):
        assert now.shape[1] < then.shape[1]
        for head in range(len(now)):
            old = dict(zip(origin[head].tolist(), then[head].tolist(), strict=True))
            held = store.origin[head, : store.used].tolist()
            assert now[head, PROMPT:].tolist() == [old[o] for o in held[PROMPT:]]


def test_tokens_of_question_and_answer_count_as_none_of_the_source() -> None:
    """Origins of evicted entries in those places never count as retained again."""
    reader = read(Streaming())
    before = reader.retained()
    assert 50 not in before.tolist()
    for store in reader.compressible:
        store.origin[:, store.used :] = 50
    answer = reader.answer(tokens(QUESTION, 3), lambda row: 5, frozenset(), 9)
    for _ in answer:
        assert torch.equal(reader.retained(), before)


def test_layers_make_room_for_an_answer_all_or_none() -> None:
    """The second layer can evict neither memory nor answer, so the first layer evicts nothing."""
    reader = read(H2O())
    evictor, cache, first = reader.evictor, reader.cache, reader.evictor.first_candidate
    with cache.passing() as ends:
        reader.model.forward(tokens(BUDGET - cache.size, 3), cache)
        before = [(s.used, s.unrotated, s.keys.clone(), s.origin.clone()) for s in cache.stores]
        given = [ends[0], first]
        assert not evictor.evict_while_decoding(given, BUDGET - first)
        assert given == [ends[0], first]
        for store, (used, unrotated, keys, origin) in zip(cache.stores, before, strict=True):
            assert (store.used, store.unrotated) == (used, unrotated)
            assert torch.equal(store.keys, keys)
            assert torch.equal(store.origin, origin)
        assert evictor.evict_while_decoding(ends, QUESTION)


def test_an_answer_that_fits_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = read(H2O())
    room = BUDGET - reader.cache.size - QUESTION

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("attention was measured for nothing")

    monkeypatch.setattr(LayerStore, "measured", never)
    assert len(ask(reader, room)) == room


def test_a_ranking_leaves_what_was_accumulated() -> None:
    """It reads the catalyst again, and no token of the text."""
    reader = read(H2O(), catalyst=6)
    before = [store.accumulated_attention for store in reader.compressible]
    reader.rank()
    for store, accumulated in zip(reader.compressible, before, strict=True):
        assert accumulated is not None
        assert store.accumulated_attention is not None
        assert torch.equal(store.accumulated_attention, accumulated)
