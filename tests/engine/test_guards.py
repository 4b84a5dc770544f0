"""Guards of the bound, each alone. No run reaches them while everything else works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from models import bounded, tokens

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import MOST_TOKENS, Chunk, Reader
from kvstream.errors import BudgetError, KvstreamError, ModelError, SourceError
from kvstream.events import returned
from kvstream.input.sources import open_sources
from kvstream.memory import saving
from kvstream.memory.contents import Memory
from kvstream.memory.merging import _shrink, join
from kvstream.methods import registry
from kvstream.model.layer_store import LayerStore
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings

SIZES = BudgetSplit(224, 4, 5, 5, 20)


@pytest.fixture
def reader() -> Reader:
    """A reader that has read more than it can hold."""
    read = Reader(
        bounded("llama"), registry.available()["snapkv"](), RunSettings(), SIZES, tokens(4, 1),
        [tokens(5, 2)], estimate=600,
    )  # fmt: skip
    text = tokens(600, seed=3)
    while read.seen < 600:
        ids = text[read.seen :][: read.schedule.chunk()]
        read.step(Chunk(ids, read.seen), last=read.seen + len(ids) == 600)
    return read


@pytest.mark.parametrize(("used", "parked"), [(225, 0), (200, 25)])
def test_a_pass_that_left_too_much_is_noticed(reader: Reader, used: int, parked: int) -> None:
    store = reader.cache.stores[0]
    store.used, store.parked = used, parked
    with pytest.raises(KvstreamError, match="225 entries are held, over the budget of 224"):
        reader.cache.note_peak()


def test_a_schedule_takes_over_no_more_than_is_free(reader: Reader) -> None:
    schedule, layers = reader.schedule, len(reader.schedule.held)
    schedule.take_over((schedule.free,) * layers, 600, 3)
    with pytest.raises(BudgetError, match="do not fit"):
        schedule.take_over((schedule.free + 1,) * layers, 600, 3)


def test_a_full_memory_reads_no_more(reader: Reader) -> None:
    schedule = reader.schedule
    schedule.take_over((schedule.free,) * len(schedule.held), 600, 3)
    with pytest.raises(BudgetError, match="leaves no room to read more"):
        reader.reopen(1200)


def test_a_reading_ends_before_ordinals_overflow(reader: Reader) -> None:
    reader.step(Chunk([5, 6], MOST_TOKENS - 2), last=False)
    assert int(reader.retained()[-1]) == MOST_TOKENS - 1
    with pytest.raises(KvstreamError, match=r"more than 2,147,483,647 tokens"):
        reader.step(Chunk([7], MOST_TOKENS), last=True)


def test_a_method_does_not_select_by_attention_that_is_lost(reader: Reader) -> None:
    step = cast(Any, SimpleNamespace(window_attention=None))
    with pytest.raises(KvstreamError, match="attention that is no longer known"):
        reader.evictor.select(step, 8)


def test_layers_do_not_vote_without_those_whose_attention_is_lost() -> None:
    """An answer evicts entries of the larger layers only, and then passages are ranked."""
    run = RunSettings(schedule="square-sqrt")
    method = registry.make("infinipot", {"catalyst_kind": "none"})
    sizes, text = BudgetSplit(256, 4, 0, 5, 20), tokens(500, seed=3)
    reader = Reader(bounded("llama"), method, run, sizes, tokens(4, 1), estimate=900, extract=True)
    while reader.seen < 500:
        piece = Chunk(text[reader.seen :][: reader.schedule.chunk()], reader.seen)
        reader.step(piece, last=False)
    reader.rank()
    list(reader.answer(tokens(5, 7), lambda logits: int(logits.argmax()), frozenset(), 120))
    assert [store.window_attention is None for store in reader.compressible] == [False, True]
    with pytest.raises(KvstreamError, match="attention that is no longer known"):
        reader.rank()


def test_a_memory_in_the_middle_of_a_move_is_lost(reader: Reader) -> None:
    reader.cache.torn = True
    with pytest.raises(KvstreamError, match="This memory is lost"):
        reader.score([3], [4, 5])


@pytest.mark.parametrize("move", ["settle", "keep"])
@pytest.mark.parametrize("best", [1, 3])
def test_ctrl_c_while_an_answer_moves_entries_loses_the_memory(
    reader: Reader, move: str, best: int
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    def said() -> None:
        with reader.in_sight((0, 200, 400), (2, 1, 0), best):
            list(reader.answer([3, 4], lambda logits: int(logits.argmax()), frozenset(), 200))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayerStore, move, interrupted)
        with pytest.raises(KeyboardInterrupt):
            said()
    with pytest.raises(KvstreamError, match="This memory is lost"):
        said()


def test_numbers_that_are_not_finite_are_no_answer(reader: Reader) -> None:
    reader.cache.stores[0].values[:, 9] = torch.nan  # as if the text overflowed in float16
    before = [store.used for store in reader.cache.stores]
    with pytest.raises(ModelError, match=r"not finite in float32 .*another method or model"):
        list(reader.answer([3], lambda logits: int(logits.argmax()), frozenset(), 4))
    assert [store.used for store in reader.cache.stores] == before


def test_a_memory_that_leaves_its_catalyst_no_room_is_not_cut(reader: Reader) -> None:
    reader.cache.capacity = reader.cache.size + 1
    with pytest.raises(BudgetError, match="leaves no room for a question"):
        _shrink(reader, 16)


# Memory files.


@pytest.fixture(scope="module")
def stories(write_story: Callable[..., Path]) -> list[Path]:
    return [write_story(tokens=1500, seed=seed, facts=3) for seed in (1, 2)]


def read(session: Session, path: Path, budget: int) -> Memory:
    run = RunSettings(Budget(tokens=budget), "infinipot", max_tokens=8)
    return returned(session.read(open_sources([str(path)]), Request(("Who?",), run, "remember")))


@pytest.mark.parametrize(("bytes_", "right"), [(2**52, "capacity"), (0, "held")])
def test_the_peak_of_a_file_is_one_that_can_be(
    session: Session, stories: list[Path], tmp_path: Path, bytes_: int, right: str
) -> None:
    path = tmp_path / "story.kvs"
    saving.save(read(session, stories[0], 320), path)
    kind = saving.look(path)
    kind.content.notes["peak"]["bytes"] = bytes_
    cache = session.recall(kind, RunSettings()).reader.cache
    expected = cache.capacity_bytes if right == "capacity" else cache.bytes
    assert cache.peak.bytes == expected
    kind.content.notes["peak"]["tokens"] = 321
    with pytest.raises(SourceError, match="its peak of 321 is over its budget"):
        session.recall(kind, RunSettings())


def test_peaks_of_larger_budgets_are_not_those_of_a_joined_memory(
    session: Session, stories: list[Path]
) -> None:
    parts = [read(session, path, 900) for path in stories]
    assert min(part.reader.cache.peak.tokens for part in parts) > 320
    cache = join(*parts, 320).reader.cache
    assert 0 < cache.peak.tokens <= 320
    assert cache.bytes <= cache.peak.bytes <= cache.capacity_bytes
