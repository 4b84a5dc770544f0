"""Joining memories: the order of entries, the budget, the origins, and refused memories."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from digests import digest_of

from kvstream.answer.answering import answer, result_of
from kvstream.api.model import Model
from kvstream.engine.budget import BudgetSplit
from kvstream.errors import BudgetError, UsageError
from kvstream.events import Answered, returned
from kvstream.input.source import LineCounts
from kvstream.input.sources import open_sources
from kvstream.memory import saving
from kvstream.memory.contents import Memory
from kvstream.memory.merging import _shares, _sizes, join
from kvstream.model.layer_store import PROMPT
from kvstream.run.request import Request
from kvstream.sample.document import questions
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings

QUESTION = "What is the passkey for the old mill?"
METHODS = ["infinipot", "h2o", "bumblebee", "sirllm", "streaming", "random", "keydiff", "snapkv"]


@pytest.fixture(scope="module")
def stories(write_story: Callable[..., Path]) -> list[Path]:
    return [write_story(tokens=480, seed=seed, facts=3) for seed in (3, 4, 5)]


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
    """Return the unrotated keys, values and ordinals of the source's entries in each layer."""
    reader = memory.reader
    reader.cache.settle()
    first = len(reader.head)
    return [
        (s.keys[:, first : s.used].clone(), s.values[:, first : s.used].clone(),
         s.origin[:, first : s.used].clone())
        for s in reader.compressible
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "questions"),
    [
        *((method, ()) for method in METHODS[:5]),
        *((method, (QUESTION,)) for method in METHODS[:2]),
        *(pytest.param(method, (), marks=pytest.mark.long) for method in METHODS[5:]),
        *(pytest.param(method, (QUESTION,), marks=pytest.mark.long) for method in METHODS[2:]),
    ],
)
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
    assert digest_of(again) == digest
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


def test_a_short_text_keeps_more_than_its_sinks(session: Session, write_story: Any) -> None:
    """A share in proportion to the tokens read can be 0, or less than the sinks need."""
    run: dict[str, Any] = {"method": "streaming", "set": {"sinks": "60"}}
    paths = [write_story(tokens=n, seed=n, facts=2) for n in (2000, 320)]
    for order in ((0, 1), (1, 0)):
        first, second = (read(session, paths[i], **run) for i in order)
        joined = join(first, second, 320)
        kept = joined.reader.retained()
        own = [int((kept < first.trace.read).sum()), int((kept >= first.trace.read).sum())]
        assert joined.reader.cache.size <= 320
        assert own[order.index(1)] == 61
    first, second = (read(session, path, **run) for path in paths)
    with pytest.raises(BudgetError, match=r"take at least 122 with their sinks; use a larger"):
        join(first, second, 180)
    first, second = (read(session, path) for path in (paths[0], write_story(tokens=20, seed=1)))
    first.trace.read *= 1000
    joined = join(first, second, 320)
    assert int((joined.reader.retained() >= first.reader.seen).sum()) == 1


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


def test_an_interrupted_memory_is_joined_at_the_end_of_its_source(
    session: Session, stories: list[Path], tmp_path: Path
) -> None:
    """The source was read further than the model, and the last passage goes beyond its tokens."""
    steps = 0
    long = tmp_path / "long.txt"
    long.write_text(
        "The walls of the old house were painted blue by the owner and his sons. " * 300
    )

    def interrupted() -> bool:
        nonlocal steps
        steps += 1
        return steps > 8

    run = RunSettings(Budget(tokens=320), "keydiff", max_tokens=8)
    request = Request((), run, "remember", interrupted=interrupted)
    first = returned(session.read(open_sources([str(long)]), request))
    assert first.trace.passages is not None
    assert first.trace.passages.all()[-1].end > first.trace.end
    joined = join(first, read(session, stories[0], "keydiff"), 320)
    bases = list(joined.trace.bases)
    assert bases == [0, first.trace.records[0].bytes]
    saving.save(joined, tmp_path / "both.kvs")
    recalled = session.recall(saving.look(tmp_path / "both.kvs"), RunSettings())
    assert recalled.trace.bases == bases
    assert recalled.trace.passages is not None
    text, found = stories[0].read_bytes(), recalled.trace.passages.all()
    assert {passage.source for passage in found} == {0, 1}
    for passage in found:
        if passage.source:
            raw = text[passage.start - bases[1] : passage.end - bases[1]]
            assert raw.decode() == passage.text


def test_what_does_not_belong_together_is_refused(session: Session, stories: list[Path]) -> None:
    infinipot = read(session, stories[0])
    for other, why in (
        (read(session, stories[1], "keydiff"), "first memory was made by infinipot, and the"),
        (read(session, stories[1], questions=(QUESTION,)), "different questions"),
    ):
        with pytest.raises(UsageError, match=why):
            join(infinipot, other, 320)
    for method in ("edgeinfinite", "truncate"):
        pair = [read(session, path, method) for path in stories[:2]]
        with pytest.raises(UsageError, match="cannot be joined"):
            join(*pair, 320)


def test_one_model_one_prompt_and_the_same_settings_are_needed(
    session: Session, stories: list[Path]
) -> None:
    def refused(other: Memory, why: str) -> None:
        with pytest.raises(UsageError, match=why):
            join(read(session, stories[0]), other, 320)

    pool = read(session, stories[1], set={"pool": "9"})
    refused(pool, "different settings of infinipot")
    system = replace(Request((), pool.run, "remember"), system="Be brief.")
    system = replace(system, run=replace(pool.run, set={}))
    refused(returned(session.read(open_sources([str(stories[1])]), system)), "differ in --system")
    other = read(session, stories[1])
    other.reader.model = replace(other.reader.model)
    other.reader.model.__dict__["fingerprint"] = "of other weights"
    refused(other, "different models")
    nothing = read(session, stories[1])
    nothing.reader.prefill.due = [1]
    refused(nothing, "has read nothing")


def test_a_joined_memory_says_what_both_of_its_parts_did(
    session: Session, stories: list[Path]
) -> None:
    first, second = (read(session, path, keep=150) for path in stories[:2])
    first.warnings, second.warnings = ["a", "b"], ["b", "c"]
    first.prefill_s, second.prefill_s = 1.0, 2.0
    first.trace.ended_line, second.trace.ended_line = True, False
    second.trace.line_counts = LineCounts(9, 3)
    steps = first.reader.steps + second.reader.steps
    sinks, before = first.reader.evictor.sinks, second.reader.prefill.before
    joined = join(first, second, 320)
    assert joined.warnings == ["a", "b", "c"]
    assert joined.prefill_s == 3.0
    assert not joined.trace.ended_line
    assert joined.trace.line_counts == LineCounts(9, 3)
    assert joined.reader.steps == steps
    assert joined.reader.evictor.sinks == sinks
    assert joined.reader.prefill.before is before  # text read later follows the second
    assert joined.run.keep is None
    assert max(joined.reader.schedule.held) > 150


def test_the_sizes_of_a_joined_memory_are_the_larger_ones_and_its_answer_has_a_part() -> None:
    one, other = BudgetSplit(900, 10, 7, 30, 200), BudgetSplit(900, 10, 9, 20, 100)
    for pair in ((one, other), (other, one)):
        assert _sizes(*pair, 800) == BudgetSplit(800, 10, 9, 30, 100)
    assert _sizes(one, other, 4000).answer == 200


def test_what_one_memory_does_not_need_the_other_gets() -> None:
    def memory(held: int, read: int, sinks: int = 4) -> Any:
        evictor, schedule = SimpleNamespace(sinks=sinks), SimpleNamespace(held=(held, held - 1))
        reader = SimpleNamespace(evictor=evictor, schedule=schedule)
        return SimpleNamespace(reader=reader, trace=SimpleNamespace(read=read))

    long, short = memory(90, 9000), memory(30, 30)
    assert _shares(long, short, 120) == (90, 30)
    assert _shares(long, short, 100) == (90, 10)
    assert _shares(memory(90, 1000), memory(30, 9000), 100) == (70, 30)
    assert _shares(memory(90, 5000), memory(90, 5000), 100) == (50, 50)
    assert _shares(memory(90, 10), memory(90, 9990), 100) == (10, 90)
    assert _shares(long, short, 10) == (5, 5)  # each has its sinks and one more entry
    with pytest.raises(BudgetError, match="at least 10"):
        _shares(long, short, 9)


# An answer sees only the document that the question is about, as the whole model attends to it.


def test_an_answer_sees_one_document_and_memory_stays_whole(
    whole_session: Session, stories: list[Path], tmp_path: Path
) -> None:
    parts = [read(whole_session, path, "foresight") for path in stories]
    joined = join(join(parts[0], parts[1], 900), parts[2], 900)
    path = tmp_path / "joined.kvs"
    digest = saving.save(joined, path)
    for memory in (joined, whole_session.recall(saving.look(path), joined.run)):
        held = memory.reader.cache.size
        for number, seed in enumerate((3, 4, 5)):
            for asked in list(questions(facts=3, seed=seed))[: 3 if memory is joined else 1]:
                result = result_of(memory, asked["question"])[0]
                told = result.narrowed
                assert told is not None
                assert told["sources"] == [str(stories[number])]
                assert told["entries"] < told["held"] == held
                assert {c["source"] for c in result.citations} <= {str(stories[number])}
                assert result.peak_kv_tokens <= 900
        assert digest_of(memory) == digest


def test_a_document_answers_as_its_own_memory_does(
    whole_session: Session, stories: list[Path]
) -> None:
    asked = [list(questions(facts=3, seed=seed))[:2] for seed in (3, 4, 5)]
    parts = [read(whole_session, path, "foresight") for path in stories]
    alone = [
        [result_of(part, each["question"]) for each in own]
        for part, own in zip(parts, asked, strict=True)
    ]
    joined = join(parts[0], join(parts[1], parts[2], 900), 900)
    for own, answers in zip(asked, alone, strict=True):
        for each, (result, basis) in zip(own, answers, strict=True):
            found, seen = result_of(joined, each["question"])
            assert found.answer == result.answer
            assert seen.likelihood == pytest.approx(basis.likelihood, abs=1e-3)


def test_what_fits_whole_is_answered_as_the_plain_model_does(
    session: Session, write_story: Any
) -> None:
    paths = [write_story(tokens=60, seed=seed, facts=1) for seed in (1, 2)]
    for number, seed in enumerate((1, 2)):
        (asked,) = questions(facts=1, seed=seed)
        plain = read(session, paths[number], "full", budget=400)
        joined = join(*(read(session, path, "keydiff", budget=400) for path in paths), 400)
        found, basis = result_of(joined, asked["question"])
        assert found.narrowed is not None
        wanted, theirs = result_of(plain, asked["question"])
        assert found.answer == wanted.answer
        assert basis.likelihood == pytest.approx(theirs.likelihood, abs=1e-3)


def test_a_question_without_a_word_of_the_documents_sees_them_all(
    session: Session, stories: list[Path]
) -> None:
    joined = join(*(read(session, path) for path in stories[:2]), 640)
    for question in ("Qwxyz?", "What is it, and why?", "?"):
        assert result_of(joined, question)[0].narrowed is None


def test_a_refusal_names_the_document_that_was_seen(
    whole_session: Session, stories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstream.answer.answering.abstains", lambda text: True)
    joined = join(*(read(whole_session, path, "foresight") for path in stories[:2]), 640)
    asked = next(questions(facts=3, seed=3))
    result = result_of(joined, asked["question"])[0]
    assert f"not in what memory kept of {stories[0]}" in result.warnings[-1]


def together(session: Session, paths: list[Path], budget: int, *asked: str) -> Memory:
    run = RunSettings(Budget(tokens=budget), "foresight", max_tokens=8)
    sources = open_sources([str(path) for path in paths])
    return returned(session.read(sources, Request(asked, run, "remember")))


def test_several_sources_of_one_reading_are_told_apart(
    whole_session: Session, stories: list[Path], tmp_path: Path
) -> None:
    asked = [list(questions(facts=3, seed=seed)) for seed in (3, 4, 5)]
    memory = together(whole_session, stories, 600)
    assert memory.reader.cache.base
    path = tmp_path / "together.kvs"
    digest = saving.save(memory, path)
    for each in (memory, whole_session.recall(saving.look(path), memory.run)):
        for number, own in enumerate(asked):
            for row in own[: 3 if each is memory else 1]:
                told = result_of(each, row["question"])[0].narrowed
                assert told is not None
                assert told["sources"] == [str(stories[number])]
        assert digest_of(each) == digest
    known = asked[0][0]["question"]
    made_for_it = together(whole_session, stories, 600, known)
    assert result_of(made_for_it, known)[0].narrowed is None


def test_several_sources_that_fit_are_answered_as_the_plain_model_does(
    session: Session, write_story: Any
) -> None:
    paths = [write_story(tokens=60, seed=seed, facts=1) for seed in (1, 2)]
    memory = together(session, paths, 900)
    assert memory.reader.cache.base == 0
    (asked,) = questions(facts=1, seed=1)
    assert result_of(memory, asked["question"])[0].narrowed is None


def test_an_interrupted_reading_knows_the_sources_that_it_came_to(
    whole_session: Session, stories: list[Path], tmp_path: Path
) -> None:
    steps = 0
    long = tmp_path / "long.txt"
    long.write_text(stories[2].read_text() * 500)

    def interrupted() -> bool:
        nonlocal steps
        steps += 1
        return steps > 12

    run = RunSettings(Budget(tokens=320), "foresight", max_tokens=8)
    sources = open_sources([str(path) for path in (stories[0], long, stories[1])])
    request = Request((), run, "remember", interrupted=interrupted)
    memory = returned(whole_session.read(sources, request))
    assert len(memory.trace.bases) == 2
    assert len(memory.trace.names) == 3
    asked = next(questions(facts=3, seed=3))
    told = result_of(memory, asked["question"])[0].narrowed
    assert told is not None
    assert told["sources"] == [str(stories[0])]


def test_one_file_at_a_time_is_held_while_they_are_joined(
    session: Session, stories: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"{number}.kvs" for number in range(3)]
    for story, path in zip(stories, paths, strict=True):
        saving.save(read(session, story, "streaming"), path)
    look, held, most = saving.look, list[Any](), 0

    def looked(path: Path) -> Any:
        nonlocal most
        file = look(path)
        held.append(weakref.ref(max(file.content.tensors.values(), key=torch.numel)))
        most = max(most, sum(each() is not None for each in held))
        return file

    monkeypatch.setattr(saving, "look", looked)
    assert len(Model(session).merge(paths).sources) == 3
    assert (len(held), most) == (6, 1)
