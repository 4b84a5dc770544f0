"""Layers with a recurrent state: temporary passes leave no trace, and all bytes are counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from digests import digest_of
from fuzz_parsers import pocket
from models import FAMILIES, bounded, fresh, tokens
from torch import Tensor

from kvstream.answer.answering import result_of
from kvstream.answer.citations import measure
from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.errors import BudgetError, KvstreamError, SourceError
from kvstream.events import returned
from kvstream.input.sources import open_sources
from kvstream.memory import saving
from kvstream.memory.file import read as read_file
from kvstream.memory.file import write as write_file
from kvstream.methods.infinipot import InfiniPot
from kvstream.methods.recency import Streaming
from kvstream.model.probe import bound
from kvstream.run.plan import budget_tokens
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings

KINDS = ["qwen3.5", "lfm2", "falcon-h1", "granite-hybrid"]
HEAD, QUESTION, LENGTH = tokens(5, seed=1), tokens(4, seed=2), 300
SIZES = BudgetSplit(128, len(HEAD), 6, len(QUESTION), 8)


def read(kind: str, method: Any, catalyst: list[int]) -> Reader:
    reader = Reader(bounded(kind), method, RunSettings(), SIZES, HEAD, [catalyst], estimate=LENGTH)
    text = tokens(LENGTH, seed=4)
    while reader.seen < LENGTH:
        ids = text[reader.seen :][: reader.schedule.chunk()]
        reader.step(Chunk(ids, reader.seen), last=reader.seen + len(ids) == LENGTH)
    return reader


def states(reader: Reader) -> dict[str, Tensor]:
    return {
        f"{state.carries.index}.{name}": tensor.clone()
        for state in reader.cache.recurrent
        for name, tensor in state.states().items()
    }


def say(reader: Reader, count: int = 6) -> list[int]:
    return list(reader.answer(QUESTION, lambda x: int(x.argmax()), frozenset(), count))


@pytest.mark.parametrize("kind", KINDS)
def test_asking_changes_no_state(kind: str) -> None:
    reader = read(kind, InfiniPot(), tokens(6, seed=3))
    before = states(reader)
    assert len(before) >= len(reader.cache.recurrent) > 0
    first = say(reader)
    reader.score(QUESTION, first)
    reader.rank()
    measure(reader, QUESTION, first)
    stopped = reader.answer(QUESTION, lambda x: int(x.argmax()), frozenset(), 6)
    next(stopped)
    stopped.close()
    after = states(reader)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert say(reader) == first


@pytest.mark.parametrize("kind", KINDS)
def test_a_catalyst_leaves_no_trace_in_a_state(kind: str) -> None:
    """`streaming` keeps the same entries for every catalyst, so states and answers are equal."""
    one, other = (read(kind, Streaming(), tokens(6, seed=seed)) for seed in (3, 8))
    first, second = states(one), states(other)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert say(one) == say(other)


def test_a_state_goes_back_to_nothing_where_nothing_was_read() -> None:
    reader = Reader(bounded("lfm2"), Streaming(), RunSettings(), SIZES, [], (), estimate=LENGTH)
    assert say(reader) == say(reader)
    assert not states(reader)


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_of_a_state_is_counted(kind: str) -> None:
    reader = read(kind, InfiniPot(), tokens(6, seed=3))
    cache = reader.cache
    held = sum(t.nbytes for t in states(reader).values())
    assert held == sum(spec.bytes for spec in reader.model.states) > 0
    entries = sum(s.used * s.tensor_bytes() for s in cache.stores)
    assert cache.bytes == entries + held
    with cache.passing():
        assert cache.bytes == entries + 2 * held
    assert cache.bytes == entries + held
    most = max(s.used for s in cache.stores)
    assert cache.peak.bytes >= entries + 2 * held, "no copy was ever counted"
    assert cache.peak.bytes <= cache.capacity_bytes
    assert most <= cache.capacity


def test_a_budget_in_bytes_pays_for_the_states() -> None:
    model = bounded("falcon-h1")
    states = 2 * sum(spec.bytes for spec in model.states)
    each = sum(spec.entry_bytes + spec.heads * 4 for spec in model.layers)
    method = Streaming()
    assert budget_tokens(model, Budget(bytes=states + 10 * each), method) == 10
    with pytest.raises(BudgetError, match=rf"{states:,} bytes .* what its layers carry {states:,}"):
        budget_tokens(model, Budget(bytes=states), method)


def test_a_state_that_grows_is_an_error() -> None:
    cache = bounded("lfm2").new_cache(16)
    bounded("lfm2").forward(tokens(4), cache)
    cache.recurrent[0].conv_states[0] = torch.zeros(1, 32, 4)
    with pytest.raises(KvstreamError, match="over the"):
        _ = cache.bytes


@pytest.mark.parametrize("kind", ["llama", "qwen3.5", "falcon-h1"])
def test_what_is_interrupted_leaves_no_trace(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = read(kind, InfiniPot(), tokens(6, seed=3))
    before, used = states(reader), [s.used for s in reader.cache.stores]
    said, run = say(reader), type(reader.model).forward

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        run(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(reader.model), "forward", interrupted)
    asked = [
        reader.rank,
        lambda: reader.score(QUESTION, said),
        lambda: measure(reader, QUESTION, said),
        lambda: say(reader),
    ]
    for ask in asked:
        with pytest.raises(KeyboardInterrupt):
            ask()
        assert [s.used for s in reader.cache.stores] == used
    monkeypatch.undo()
    after = states(reader)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert say(reader) == said


def test_a_second_answer_waits_for_the_first() -> None:
    reader = read("qwen3.5", Streaming(), tokens(6, seed=3))
    before = states(reader)
    first = reader.answer(QUESTION, lambda x: int(x.argmax()), frozenset(), 6)
    next(first)
    with pytest.raises(KvstreamError, match="still being made"):
        say(reader)
    first.close()
    after = states(reader)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_copy_that_finds_no_room_leaves_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = read("falcon-h1", Streaming(), tokens(6, seed=3))
    said, last = say(reader), reader.cache.recurrent[-1]
    monkeypatch.setattr(last, "set_aside", lambda: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        say(reader)
    monkeypatch.undo()
    assert say(reader) == said


def test_chunks_are_rounded_for_a_catalyst_in_a_pass_of_its_own() -> None:
    widths: list[int] = []
    for kind in ("qwen3.5", "llama"):
        model = bound(fresh(FAMILIES[kind].config()).bfloat16(), kind)
        sizes = BudgetSplit(512, len(HEAD), 6, len(QUESTION), 8)
        one = Reader(model, InfiniPot(), RunSettings(), sizes, [], [tokens(6)], estimate=4000)
        text, catalyst = tokens(4000, seed=4), 0 if one.cache.recurrent else 6
        while one.seen < 2000:
            ids = text[one.seen :][: one.prefill.room(round_down=one._shrinking)]
            one.step(Chunk(ids, one.seen), last=False)
            widths += [(len(ids) + catalyst) % model.round_width] * (one.steps > 1)
    assert not any(widths)


# Memory files


@cache
def session(kind: str) -> Session:
    config = FAMILIES[kind].config(vocab_size=8192, max_position_embeddings=2048)
    return Session(bound(fresh(config), kind), pocket())


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Path:
    return write_story(tokens=1300, seed=3, facts=2)


def remembered(kind: str, path: Path) -> Any:
    run = RunSettings(Budget(tokens=320), "infinipot", max_tokens=8)
    request = Request(run=run, command="remember")
    return returned(session(kind).read(open_sources([str(path)]), request))


def answer(memory: Any) -> str:
    return result_of(memory, "Who did it?")[0].answer


@pytest.mark.parametrize("kind", ["qwen3.5", "falcon-h1"])
def test_a_memory_file_holds_the_states(kind: str, story: Path, tmp_path: Path) -> None:
    memory, path = remembered(kind, story), tmp_path / "m.kvs"
    digest = saving.save(memory, path)
    again = session(kind).recall(saving.look(path), RunSettings(Budget(tokens=320), max_tokens=8))
    before, after = states(memory.reader), states(again.reader)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert answer(again) == answer(memory)
    assert digest_of(again) == digest == digest_of(memory)


@pytest.mark.parametrize("change", ["missing", "another shape"])
def test_a_memory_file_whose_states_do_not_fit_is_refused(
    change: str, story: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.kvs"
    saving.save(remembered("qwen3.5", story), path)
    content = read_file(path)
    tensors, name = dict(content.tensors), "states.0.conv.0"
    if change == "missing":
        del tensors[name]
    else:
        tensors[name] = tensors[name][..., :-1].contiguous()
    write_file(path, content.state, content.notes, tensors)
    with pytest.raises(SourceError, match=r"m\.kvs"):
        session("qwen3.5").recall(saving.look(path), RunSettings(Budget(tokens=320)))


def test_a_memory_file_with_states_that_nothing_carries_is_refused(
    story: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.kvs"
    saving.save(remembered("qwen3.5", story), path)
    content = read_file(path)
    more = {"states.1.conv.0": content.tensors["states.0.conv.0"]}
    write_file(path, content.state, content.notes, {**content.tensors, **more})
    with pytest.raises(SourceError, match=r"states\.1\.conv\.0"):
        session("qwen3.5").recall(saving.look(path), RunSettings(Budget(tokens=320)))


def test_a_memory_does_not_live_in_its_file(story: Path, tmp_path: Path) -> None:
    """If the file were mapped, a change of the file would change the states."""
    path = tmp_path / "m.kvs"
    digest = saving.save(remembered("qwen3.5", story), path)
    kind = saving.look(path)
    memories = [session("qwen3.5").recall(kind, RunSettings(Budget(tokens=320))) for _ in "ab"]
    answer(memories[0])
    with path.open("r+b") as file:
        file.seek(-4000, 2)
        file.write(b"\x55" * 4000)
    assert [digest_of(m) for m in memories] == [digest] * 2


@pytest.mark.parametrize("kind", ["qwen3.5", "falcon-h1"])
def test_a_memory_that_was_released_holds_nothing(kind: str, story: Path) -> None:
    memory = remembered(kind, story)
    memory.reader.release()
    cache = memory.reader.cache
    assert sum(layer.state_bytes for layer in cache.recurrent) == 0
    assert all(store.keys.numel() == 0 for store in cache.stores)
