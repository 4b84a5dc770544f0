"""Narrowed memory: the bound, the entries in sight, and the return of the parked entries."""

from __future__ import annotations

import pytest
import torch
from cases import every_second
from models import tokens
from test_engine_bound import METHODS, smallest

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.errors import KvstreamError
from kvstream.memory.state import cache_state
from kvstream.model.layer_store import PROMPT, LayerStore
from kvstream.settings import RunSettings

BUDGET, LENGTH, PROMPT_TOKENS = 160, 320, 4
BEGINS = (0, 107, 213)
JOINABLE = sorted(n for n, m in METHODS.items() if m.evicts and not m().head_tensors())


def read(
    method: str,
    family: str = "llama",
    *,
    catalyst: bool = True,
    budget: int = BUDGET,
    length: int = LENGTH,
) -> Reader:
    reader = Reader(
        smallest(family), METHODS[method](), RunSettings(),
        BudgetSplit(budget, PROMPT_TOKENS, 5 * catalyst, 5, 10), tokens(PROMPT_TOKENS, 1),
        [tokens(5, 2)] * catalyst, estimate=length, extract=not catalyst,
    )  # fmt: skip
    text = tokens(length, seed=3)
    while reader.seen < length:
        piece = Chunk(text[reader.seen :][: reader.schedule.chunk()], reader.seen)
        reader.step(piece, last=reader.seen + len(piece.ids) == length)
    return reader


def entries(reader: Reader) -> list[torch.Tensor]:
    reader.cache.settle()
    return [
        t[:, : s.used].clone()
        for s in reader.cache.stores
        for t in (s.keys, s.values, s.origin, *s.state.values())
    ]


MEASURED = sorted(n for n in JOINABLE if METHODS[n]().evidence().window_attention)
"""Methods that select by the attention that the last pass measured."""


@pytest.mark.parametrize("method", MEASURED)
def test_what_was_measured_of_entries_comes_back_too(method: str) -> None:
    reader = read(method, catalyst=False, budget=256, length=500)
    before = reader.rank(), cache_state(reader)
    with reader.in_sight(BEGINS, [1, 0, 2], 1):
        said(reader, 12, budget=256)
    after = reader.rank(), cache_state(reader)
    for a, b in zip(before[0], after[0], strict=True):
        assert torch.equal(a, b)
    assert set(before[1][1]) == set(after[1][1]), "a saved memory has all that it had"
    with reader.in_sight(BEGINS, [1, 0, 2], 3):  # this answer evicts entries of memory
        said(reader, 120, may_compress=True, budget=256)
    with pytest.raises(KvstreamError, match="a long answer evicted entries"):
        reader.rank()


@pytest.mark.parametrize("method", every_second(JOINABLE))
def test_the_schedule_knows_what_a_long_answer_left(method: str) -> None:
    reader = read(method)
    said(reader, 90, may_compress=True)
    held = tuple(s.used - PROMPT_TOKENS for s in reader.compressible)
    assert max(held) < LENGTH
    assert reader.schedule.held == held
    with reader.in_sight(BEGINS, [1, 0, 2], 1):
        said(reader, 70, may_compress=True)
    assert reader.schedule.held == tuple(s.used - PROMPT_TOKENS for s in reader.compressible)


def said(
    reader: Reader, count: int, *, may_compress: bool = False, budget: int = BUDGET
) -> list[int]:
    found = []
    for token in reader.answer(
        tokens(5, 4), lambda x: int(x.argmax()), frozenset(), count, may_compress=may_compress
    ):
        assert reader.cache.size <= budget
        found.append(token)
    return found


@pytest.mark.parametrize(
    ("method", "family"),
    [*every_second((name, "llama") for name in JOINABLE), ("keydiff", "gemma3")],
)
def test_every_method_keeps_the_bound_and_gets_its_entries_back(method: str, family: str) -> None:
    reader = read(method, family)
    before, bytes_before = entries(reader), reader.cache.bytes
    for best in range(3):
        order = [best, *(i for i in range(3) if i != best)]
        with reader.in_sight(BEGINS, order, 1) as seen:
            assert seen <= reader.cache.size
            assert reader.cache.bytes == bytes_before, "what is not in sight counts as held"
            answer = said(reader, 70)
            assert reader.stopped == "budget", "parked entries leave no room"
        assert answer
        assert all(torch.equal(a, b) for a, b in zip(entries(reader), before, strict=True))
        assert reader.cache.base == max(s.unrotated for s in reader.cache.stores)
    assert reader.cache.peak.tokens <= BUDGET
    with reader.in_sight(BEGINS, [1, 0, 2], 1):  # a long answer may evict memory
        assert len(said(reader, 70, may_compress=True)) == 70
    assert reader.cache.peak.tokens <= BUDGET
    for store in reader.compressible:
        origin = store.origin[:, : store.used]
        assert (origin[:, :PROMPT_TOKENS] == PROMPT).all()
        assert (origin[:, PROMPT_TOKENS:].diff(dim=1) > 0).all()
        assert store.parked == 0


@pytest.mark.parametrize("method", JOINABLE)
def test_heads_see_all_they_hold_of_the_best_stretch(method: str) -> None:
    reader = read(method)
    begin, end = BEGINS[1], BEGINS[2]
    held = [
        [set(head[(head >= begin) & (head < end)].tolist()) for head in s.origin[:, : s.used]]
        for s in reader.compressible
    ]
    least = reader.evictor.first_candidate - PROMPT_TOKENS
    with reader.in_sight(BEGINS, [1, 2, 0], 1):
        for store, heads in zip(reader.compressible, held, strict=True):
            most = max(least, *map(len, heads))
            assert store.used == PROMPT_TOKENS + most
            for head, own in zip(store.origin[:, PROMPT_TOKENS : store.used], heads, strict=True):
                found = set(head.tolist())
                assert own <= found
                assert len(found) == most
                if len(own) < most and min(map(len, held[0])):
                    assert max(found) >= begin, "the next stretch of the order fills what is left"


def test_what_is_seen_counts_as_if_it_were_alone() -> None:
    """Likelihoods equal those of a memory from which the other entries were evicted for good."""
    one, other = read("keydiff"), read("keydiff")
    question, text = tokens(3, 5), tokens(12, 6)
    whole = one.score(question, text)
    with one.in_sight(BEGINS, [1, 0, 2], 1):
        narrowed = one.score(question, text)
        rows = [s.origin[:, : s.used].clone() for s in one.compressible]
        positions = one.cache.next_position
    for store, wanted in zip(other.compressible, rows, strict=True):
        held = store.origin[:, : store.used]
        places = [
            [i for i, token in enumerate(head.tolist()) if token == PROMPT or token in set(own)]
            for head, own in zip(held, wanted.tolist(), strict=True)
        ]
        store.keep(0, torch.tensor(places))
    other.cache.rebase()
    assert positions == other.cache.next_position
    assert torch.equal(other.score(question, text), narrowed)
    assert not torch.equal(narrowed, whole)
    assert torch.equal(one.score(question, text), whole)


def test_an_interrupted_move_is_an_error_and_no_wrong_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = read("keydiff")

    def interrupted(self: LayerStore, first: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LayerStore, "unpark", interrupted)
        with pytest.raises(KeyboardInterrupt), reader.in_sight(BEGINS, [1, 0, 2], 1):
            pass
    for use in (lambda: reader.score([1], [2]), lambda: cache_state(reader)):
        with pytest.raises(KvstreamError, match="interrupted while its entries were moved"):
            use()


def test_an_error_inside_loses_nothing() -> None:
    reader = read("snapkv")
    before = entries(reader)
    refused = pytest.raises(KvstreamError, match="over the budget")
    with refused, reader.in_sight(BEGINS, [2, 1, 0], 1):
        reader.score(tokens(BUDGET, 7), tokens(2, 8))
    assert all(torch.equal(a, b) for a, b in zip(entries(reader), before, strict=True))
