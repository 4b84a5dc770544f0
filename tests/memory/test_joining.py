"""Memories joined into one: entries in order, the bound, origins, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draining import returned

from kvstream.answer.answering import answer
from kvstream.errors import UsageError
from kvstream.events import Answered
from kvstream.input.sources import open_sources
from kvstream.memory import saving
from kvstream.memory.base import Memory
from kvstream.memory.joining import join
from kvstream.model.cache import PROMPT
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings

QUESTION = "What is the passkey for the old mill?"
METHODS = ["infinipot", "h2o", "snapkv", "bumblebee", "sirllm", "random", "keydiff", "streaming"]


@pytest.fixture(scope="module")
def stories(write_story: Callable[..., Path]) -> list[Path]:
    return [write_story(tokens=600, seed=seed, facts=3) for seed in (3, 4, 5)]


def read(
    session: Session,
    path: Path,
    method: str = "infinipot",
    questions: tuple[str, ...] = (),
    budget: int = 320,
    **more: Any,
) -> Memory:
    run = RunSettings(Budget(tokens=budget), method, max_tokens=8, **more)
    return returned(session.read(open_sources([str(path)]), Request(questions, run, "remember")))


def entries(memory: Memory) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Unrotated keys, values and ordinals of the source's entries of each layer."""
    reader = memory.reader
    reader.cache.settle()
    first = len(reader.head)
    return [
        (s.keys[:, first : s.used].clone(), s.values[:, first : s.used].clone(),
         s.origin[:, first : s.used].clone())
        for s in reader.compressible
    ]  # fmt: skip


@pytest.mark.parametrize("questions", [(), (QUESTION,)])
@pytest.mark.parametrize("method", METHODS)
def test_a_joined_memory_keeps_the_bound_and_survives_its_file(
    session: Session,
    stories: list[Path],
    tmp_path: Path,
    method: str,
    questions: tuple[str, ...],
) -> None:
    parts = [read(session, path, method, questions) for path in stories]
    total, ends = sum(p.trace.read for p in parts), [p.trace.end for p in parts]
    known = [set(p.reader.retained().tolist()) for p in parts]
    offsets = np.cumsum([0, *(p.trace.read for p in parts)])
    joined = join(join(parts[0], parts[1], 320), parts[2], 320)
    reader = joined.reader
    assert reader.cache.peak.tokens <= 320
    assert reader.seen == joined.trace.read == total
    assert joined.trace.end == sum(ends)
    kept = reader.retained().numpy()
    for number in range(3):
        own = kept[(kept >= offsets[number]) & (kept < offsets[number + 1])] - offsets[number]
        assert len(own), "a part left nothing"
        assert set(own.tolist()) <= known[number]
    for store in reader.compressible:
        origin = store.origin[:, : store.used]
        assert int((origin[0] == PROMPT).sum()) == len(reader.head)
        source = origin[:, len(reader.head) :]
        assert bool((source.diff(dim=-1) > 0).all())
    path = tmp_path / "joined.kvs"
    digest = saving.save(joined, path)
    again = session.recall(saving.look(path), joined.run)
    assert saving.digest(again) == digest
    results = [
        next(e.result for e in answer(m, QUESTION) if isinstance(e, Answered))
        for m in (joined, again)
    ]
    assert results[0].answer == results[1].answer
    assert results[0].citations == results[1].citations


def test_what_fits_is_joined_entry_by_entry(session: Session, write_story: Any) -> None:
    paths = [write_story(tokens=60, seed=seed) for seed in (1, 2)]
    first, second = (read(session, path, budget=400) for path in paths)
    before, offset = [entries(first), entries(second)], first.trace.read
    joined = entries(join(first, second, 400))
    for layer, (keys, values, origin) in enumerate(joined):
        (k1, v1, o1), (k2, v2, o2) = (part[layer] for part in before)
        assert torch.equal(keys, torch.cat((k1, k2), 1))
        assert torch.equal(values, torch.cat((v1, v2), 1))
        assert torch.equal(origin, torch.cat((o1, o2 + offset), 1))


def test_a_joined_memory_reads_on(session: Session, stories: list[Path]) -> None:
    joined = join(*(read(session, path) for path in stories[:2]), 320)
    read_before = joined.trace.read
    request = Request((), joined.run, "remember")
    more = returned(session.read(open_sources([str(stories[2])]), request, joined))
    assert more.trace.read > read_before
    assert more.reader.cache.peak.tokens <= 320


def test_citations_name_the_right_source(session: Session, stories: list[Path]) -> None:
    joined = join(*(read(session, path, questions=(QUESTION,)) for path in stories[:2]), 320)
    assert joined.trace.passages is not None
    starts = joined.trace.origins.starts(joined.reader.retained().numpy())
    texts = [path.read_text(encoding="utf-8") for path in stories]
    for passage in joined.trace.passages.score(starts, np.ones(len(starts))):
        first = passage.start - joined.trace.bases[passage.source]
        raw = texts[passage.source].encode()[first : first + passage.end - passage.start]
        assert raw.decode() == passage.text
        line = texts[passage.source].encode()[:first].count(b"\n") + 1
        assert passage.line_start == line


def test_what_does_not_belong_together_is_refused(session: Session, stories: list[Path]) -> None:
    infinipot = read(session, stories[0])
    for other, why in (
        (read(session, stories[1], "keydiff"), "cannot be joined; read the sources again"),
        (read(session, stories[1], questions=(QUESTION,)), "different questions"),
    ):
        with pytest.raises(UsageError, match=why):
            join(infinipot, other, 320)
    for method in ("edgeinfinite", "truncate"):
        pair = [read(session, path, method) for path in stories[:2]]
        with pytest.raises(UsageError, match="cannot be joined"):
            join(*pair, 320)
