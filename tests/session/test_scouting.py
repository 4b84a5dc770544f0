"""A scout reads all of the text, and the answering model the best passages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from adapters import tiny_reader
from cutting import excerpts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream.api.memories import memory_files, models_of
from kvstream.api.memory import MemoryFile
from kvstream.api.model import Model
from kvstream.errors import BudgetError, ModelError, UnsupportedModelError, UsageError
from kvstream.events import Answered, AnswerStarted, Event, Result, Started, StepDone, returned
from kvstream.input.blocks import TextBlock
from kvstream.input.inspection import NamedStream
from kvstream.input.source import Replay
from kvstream.input.sources import open_sources
from kvstream.model import placement
from kvstream.model.layer_store import LayerStore
from kvstream.passages.bm25 import QuestionWords, around, near_by
from kvstream.passages.excerpts import Excerpt, Excerpts
from kvstream.passages.memory import BYTES_A_TOKEN, PassageMemory, fitting, shares
from kvstream.passages.related import related
from kvstream.run.request import Request
from kvstream.sample.document import generate, make_facts
from kvstream.session.scouting import Scouting, choose_scout
from kvstream.session.session import MOST, SMALL, Session, enough
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream.store import pocket
from kvstream.tokenization.passages import Passage

SEED, FACTS = 3, 6
FACT = make_facts(FACTS, SEED)[5]
RUN = RunSettings(Budget(tokens=320), max_tokens=8)


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Path:
    return write_story(tokens=1300, seed=SEED, facts=FACTS)


@pytest.fixture
def pair(session: Session) -> Scouting:
    return Scouting(session, session)


def results(events: Any) -> list[Result]:
    return [event.result for event in events if isinstance(event, Answered)]


def ask(pair: Scouting, path: Path | str, *questions: str, run: RunSettings = RUN) -> list[Result]:
    return results(pair.ask(open_sources([str(path)]), Request(questions, run)))


@pytest.fixture(scope="module")
def asked(session: Session, story: Path) -> list[Event]:
    """The events of one run about the story."""
    request = Request((FACT.question,), RUN)
    return list(Scouting(session, session).ask(open_sources([str(story)]), request))


def test_what_is_read_is_bounded_and_counted(asked: list[Event], story: Path) -> None:
    [result] = results(asked)
    told = result.skim
    assert told is not None
    assert result.peak_kv_tokens <= 320
    assert told["peak"]["answer"]["kv_tokens"] <= 320
    assert result.peak_kv_tokens == max(p["kv_tokens"] for p in told["peak"].values())
    assert result.peak_kv_bytes == max(p["kv_bytes"] for p in told["peak"].values())
    kept = told["kept"]
    assert kept["room_bytes"] == 320 * BYTES_A_TOKEN
    assert 0 < kept["bytes"] <= kept["peak_bytes"] <= kept["room_bytes"]
    assert 0 < told["tokens"] <= SMALL[1] + 120
    assert result.read > 2 * told["tokens"]
    # All lost text is counted. White space between passages does not count as text.
    text = story.read_bytes()
    assert kept["bytes"] + kept["dropped_bytes"] <= len(text)
    assert kept["bytes"] + kept["dropped_bytes"] >= len(b"".join(text.split()))


@pytest.mark.parametrize("room", [BYTES_A_TOKEN, 8])
def test_a_refusal_tells_of_dropped_text_where_some_was_dropped(
    pair: Scouting, story: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr("kvstream.session.scouting.abstains", lambda text: True)
    monkeypatch.setattr("kvstream.session.scouting.BYTES_A_TOKEN", room)
    [result] = ask(pair, story, FACT.question)
    assert result.skim is not None
    dropped = result.skim["kept"]["dropped_bytes"]
    assert (dropped > 0) == (room == 8)
    told = f"{dropped:,} bytes were dropped" if dropped else "it may be in the rest of the text."
    assert told in result.warnings[-1]


def test_citations_and_pieces_are_of_the_source(asked: list[Event], story: Path) -> None:
    text = story.read_bytes()
    [result] = results(asked)
    assert result.skim is not None
    assert result.citations
    for cited in result.citations:
        assert text[cited["byte_start"] : cited["byte_end"]].decode() == cited["text"]
        assert cited["line_start"] == text[: cited["byte_start"]].count(b"\n") + 1
    starts = [piece["byte_start"] for piece in result.skim["pieces"]]
    assert starts == sorted(starts)
    at = text.index(FACT.sentence.encode())
    assert any(p["byte_start"] <= at < p["byte_end"] for p in result.skim["pieces"])


def test_a_pipe_and_a_file_give_the_same(pair: Scouting, asked: list[Event], story: Path) -> None:
    [file] = results(asked)
    with story.open("rb") as stream:
        source = open_sources([NamedStream(str(story), stream)])
        [pipe] = results(pair.ask(source, Request((FACT.question,), RUN)))
    assert pipe.skim is not None
    assert pipe.answer
    assert pipe.read == file.read
    assert pipe.skim["kept"]["room_bytes"] == file.skim["kept"]["room_bytes"]


def test_a_text_that_fits_is_read_by_the_answering_model_alone(
    pair: Scouting, session: Session, tmp_path: Path
) -> None:
    path = tmp_path / "short.txt"
    path.write_text("".join(generate(tokens=100, seed=1, facts=2)))
    question = make_facts(2, 1)[0].question
    [result] = ask(pair, path, question)
    [plain] = results(session.ask(open_sources([str(path)]), Request((question,), RUN)))
    assert result.skim is None
    for name in ("answer", "citations", "read", "evicted", "peak_kv_tokens", "support"):
        assert getattr(result, name) == getattr(plain, name), name
    assert result.evicted == 0


def test_the_memory_of_a_text_that_fits_is_recalled_by_the_answering_model(
    session: Session, tmp_path: Path
) -> None:
    skimmer = Session(replace(session.model, name="small"), session.tokenizer)
    model, path = Model(session, Scouting(session, skimmer)), tmp_path / "short.kvs"
    memory = model.read(text="Ada hid the letter.", budget=320, max_tokens=8)
    memory.save(path)
    recalled = model.recall(path)
    assert recalled.model == memory.model == session.model_name
    assert recalled.ask("Who?", max_tokens=4).text == memory.ask("Who?", max_tokens=4).text


@pytest.mark.parametrize("method", ["infinipot", "full", "window"])
def test_it_is_used_where_the_text_does_not_fit_and_nowhere_else(
    session: Session, tmp_path: Path, method: str
) -> None:
    run = replace(RUN, method=method)
    request = Request(("Who?",), run)
    sizes = session.settle(request).sizes
    for count in (sizes.budget + 300, 200, 220, 240, 260, 300):
        path = tmp_path / f"{count}.txt"
        path.write_text("red " * count)
        fits = session.fits(Replay(open_sources([str(path)])), request)
        plain = session.ask(open_sources([str(path)]), request)
        if method != "full":
            started = next(iter(plain))
            assert isinstance(started, Started)
            assert fits == started.lossless, count
            continue
        try:
            list(plain)
        except BudgetError:
            assert not fits, count
        else:
            assert fits, count


def test_the_small_models_cache_is_freed_first(
    pair: Scouting, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[LayerStore] = []
    held: list[int] = []
    first = LayerStore.__init__

    def counted(self: LayerStore, *args: Any) -> None:
        first(self, *args)
        made.append(self)
        held.append(sum(s.keys.nbytes + s.values.nbytes for s in made))

    monkeypatch.setattr(LayerStore, "__init__", counted)
    questions = [f.question for f in make_facts(FACTS, SEED)[:2]]
    found = ask(pair, story, *questions)
    assert [r.question for r in found] == questions
    layers = len(pair.answerer.model.layers)
    assert len(made) == 3 * layers
    assert max(held) == held[layers - 1], "two caches were there at once"


def test_events_come_in_order(pair: Scouting, asked: list[Event], story: Path) -> None:
    kinds = [type(event) for event in asked]
    started = next(event for event in asked if isinstance(event, AnswerStarted))
    assert started.kept is not None  # of the skimming model's memory, which is already released
    assert isinstance(asked[-1], Answered)
    assert len(started.kept().ordinals) == asked[-1].result.retained > 0
    assert kinds.count(Started) == kinds.count(AnswerStarted) == kinds.count(Answered) == 1
    assert kinds.index(Started) < kinds.index(StepDone) < kinds.index(AnswerStarted)
    assert kinds[-1] is Answered
    assert isinstance(asked[0], Started)
    assert asked[0].model == "pocket"
    request = Request((FACT.question,), RUN)
    assert pair.plan(open_sources([str(story)]), request).model == "pocket"


def matters(text: str) -> list[str]:
    return [word for word in text.split() if word not in ("the", "it", "who")]


WORDS = ["the", "brass", "lamp", "hid", "it", "who", "wall", "candle"]


@given(st.lists(st.sampled_from(WORDS), max_size=60))
@settings(max_examples=40, deadline=None)
def test_streamed_words_rank_as_bm25_does(words: list[str]) -> None:
    """The reference is the plain formula over all excerpts at once."""
    texts = [" ".join(words[i : i + 7]) for i in range(0, len(words), 7)]
    asked = QuestionWords("Who hid the BRASS lamp?")
    excerpts = [Excerpt((Passage(0, 9 * i, 9 * i + 8, 1, 1, t),)) for i, t in enumerate(texts)]
    found = asked.scores([asked.count(text) for text in texts], excerpts)
    assert len(found) == len(texts)
    mean = sum(len(matters(t)) for t in texts) / max(len(texts), 1) or 1e-9
    question = ("hid", "brass", "lamp")
    weights = {}
    for word in question:
        having = sum(word in matters(t) for t in texts)
        weights[word] = np.log(1 + (len(texts) - having + 0.5) / (having + 0.5))

    def at(i: int) -> list[str]:
        return texts[max(0, i - 1) : i + 2]

    def share(i: int) -> float:
        near = [word for text in at(i) for word in matters(text)]
        return sum(weights[word] for word in question if word in near) / sum(weights.values())

    strength = 0.6 * min(1, (1 - max([*map(share, range(len(texts)))], default=0)) / 0.3)

    def times(word: str, texts: list[str]) -> float:
        others = [other[:5] for text in texts for other in matters(text) if other != word]
        parts = sum(strength * related(word).get(other, 0) for other in others)
        return sum(matters(text).count(word) for text in texts) + parts

    def plain(often: dict[str, float], length: float) -> float:
        limit = 0.25 + 0.75 * length
        return sum(weights[word] * often[word] * 2 / (often[word] + limit) for word in question)

    def of(part: list[str], excerpts: int) -> float:
        length = sum(len(matters(text)) for text in part)
        return plain({word: times(word, part) for word in question}, length / mean / excerpts)

    plains, scenes = [], []
    for i, text in enumerate(texts):
        slow = sum(of([t], 1) * (1 if t is text else 0.4) for t in at(i))
        there = sum(weights[word] * min(1, times(word, at(i))) for word in question)
        plains.append(slow * (1 + 2 * there / sum(weights.values())) / 3)
        scenes.append(of(texts[max(0, i - 3) : i + 4], 7))
    if not any(plains):
        assert not any(found)
        return
    for score, own, scene in zip(found, plains, scenes, strict=True):
        assert score == pytest.approx((own + 0.4 * scene * max(plains) / max(scenes)) / 1.4)


def test_a_passage_without_the_words_of_a_question_ranks_by_related_words() -> None:
    passages = PassageMemory(10**6, ["Who stole the box?"])
    passages.feed(TextBlock("Hills are green. " * 40 + "Ada is a thief. " + "Rain. " * 90, 0, 0))
    passages.note(10**6, final=True)
    ranked = passages.ranked("Who stole the box?", None, ())()
    assert "thief" in ranked[0].own_text
    assert "thief" in passages.ranked("And who stole it?", None, ())()[0].own_text
    assert not passages.speaks("Who stole the box?")  # a warning says so
    assert passages.speaks("Where are the hills?")


def test_a_gap_parts_scenes() -> None:
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    near = np.array([True, False, True, True])
    assert around(values, near, 3).tolist() == [3.0, 3.0, 28.0, 28.0, 28.0]
    assert around(values, near, 1).tolist() == [3.0, 3.0, 12.0, 28.0, 24.0]
    pairs = np.stack([values, -values], axis=1)
    assert around(pairs, near, 3)[:, 1].tolist() == [-3.0, -3.0, -28.0, -28.0, -28.0]
    assert around(values[:1], near[:0], 3).tolist() == [1.0]


def test_only_excerpts_without_a_gap_between_them_are_near(story: Path) -> None:
    excerpts = list(excerpts_of(open_sources([str(story)])))[:9]
    del excerpts[4]
    assert near_by(excerpts).tolist() == [True, True, True, False, True, True, True]
    one = Excerpt((Passage(0, 0, 100, 1, 1, "Anna opened the gate"),))
    two = Excerpt((Passage(1, 101, 200, 1, 1, "nothing to see"),))
    assert near_by([one, two]).tolist() == [False]


def test_what_is_dropped_is_what_matters_least(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for few passages, one with the question's words stays and others are dropped."""
    monkeypatch.setattr("kvstream.session.scouting.BYTES_A_TOKEN", 16)
    path = tmp_path / "long.txt"
    parts = ["The sky was grey and nothing came of it at all that day. " * 5 + "\n"] * 30
    parts[10] = "Old Mr. Zorbak hid the brass lamp under the stairs of the mill. " * 4 + "\n"
    path.write_text("".join(parts))
    pair = Scouting(session, session)
    [result] = ask(pair, path, "Where did Zorbak hide the brass lamp?")
    assert result.skim is not None
    assert result.skim["kept"]["dropped_bytes"] > 0
    assert any(piece["line_start"] == 11 for piece in result.skim["pieces"])


def test_words_lead_where_a_question_was_not_known(session: Session, tmp_path: Path) -> None:
    lines = ("The mill by the river is old. ", "A stranger came to the inn. ")
    lines += ("The garden has apples in it. ", "Nobody saw the ferry leave. ")
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(line * 9 for line in lines))
    run = RunSettings(Budget(tokens=600))
    memory = returned(session.read(open_sources([str(path)]), Request((), run, "remember")))
    question, start = "Who came to the inn?", path.read_text().index(lines[2])
    cited = [Passage(0, start, start + 20, 1, 1, "", 1.0)]
    firsts = {}
    for questions in ((), (question,)):
        passages = PassageMemory(10_000, questions)
        for block in open_sources([str(path)]):
            passages.feed(block)
        passages.note(memory.trace.end, memory, final=True)
        assert len(passages) == len(lines)
        ranked = passages.ranked(question, memory, cited)
        [first] = fitting(ranked(None), session.tokenizer, (200, 1))
        firsts[bool(questions)] = first.passages[0].text.strip()
    assert firsts[False] == lines[1].strip()
    assert firsts[True] in (lines[1].strip(), lines[2].strip())


def test_a_larger_model_reads_more_passages() -> None:
    size, tokens = SMALL
    assert enough(1) == enough(size) == tokens
    assert tokens < enough(4 * size) < enough(20 * size) <= MOST
    assert enough(10**12) == MOST


def test_the_scout_is_chosen_by_what_reading_costs(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    later, known = Request(command="chat"), Request(("Who?",))
    monkeypatch.setattr(Session, "speed", None)  # not timed
    short = choose_scout(session, 3000, known)
    assert short is not None
    assert short.scout is session
    monkeypatch.setattr(Session, "speed", 1000.0)
    quick = choose_scout(session, 4300 * 59, known)
    assert quick is not None
    assert quick.scout is session
    assert "in about 59 s" in quick.why
    monkeypatch.setattr(Session, "speed", 10.0)
    slow = choose_scout(session, 4300 * 59, known)
    assert slow is not None
    assert slow.scout is None
    assert "98 minutes" in slow.why
    unknown = choose_scout(session, None, later)
    assert unknown is not None
    assert "length of the text is unknown" in unknown.why
    small = replace(known, run=replace(RUN, budget=Budget(tokens=200)))
    assert choose_scout(session, 4300 * 59, small) is None, "no room for passages"


# Chat and memory files.


def test_the_budget_of_a_memory_of_two_models_is_that_of_both_caches(
    session: Session, story: Path
) -> None:
    """The skimming model's cache has smaller entries, and fills more of its budget."""
    skimmer = Session(session.model.storing(torch.bfloat16), session.tokenizer)
    model = Model(session, Scouting(session, skimmer))
    memory = model.read(story, questions=[FACT.question], budget=640, max_tokens=8)
    result = memory.ask(FACT.question).result
    assert result.budget_bytes == memory.budget[1] + session.kv_bytes(
        RunSettings(Budget(tokens=640), "full")
    )


def test_a_memory_of_two_models_is_asked_saved_and_recalled(
    session: Session, story: Path, tmp_path: Path
) -> None:
    model = Model(session, Scouting(session, session))
    memory = model.read(story, questions=[FACT.question], budget=320, max_tokens=8)
    first = memory.ask(FACT.question)
    assert first.result.skim is not None
    # Memory stays while the answering model has its cache. The bytes of both count.
    beside = first.result.skim["peak"]["answer"]["kv_bytes"] + memory.budget[1]
    assert first.result.peak_kv_bytes == beside <= first.result.budget_bytes
    other = memory.ask(make_facts(FACTS, SEED)[2].question)
    assert other.result.skim is not None
    path = tmp_path / "two.kvs"
    digest = memory.save(path)
    recalled = model.recall(path)
    assert recalled.file is not None
    assert recalled.file.answering == "pocket"
    assert recalled.file.digest == digest
    again = recalled.ask(FACT.question, max_tokens=8)
    assert again.result.skim is not None
    assert again.result.skim["kept"] == first.result.skim["kept"]
    assert again.result.skim["pieces"] == first.result.skim["pieces"]
    assert again.text == first.text
    alone = Model(session).recall(path).ask(FACT.question, max_tokens=8)
    assert "the passages kept for pocket were not used" in alone.warnings[-1]
    assert not any("were not used" in warning for warning in again.warnings)
    assert alone.result.skim is None


def test_words_of_dropped_passages_count_in_a_file(
    session: Session, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rarity of a word depends on the whole text, and the file lacks most of the text."""
    monkeypatch.setattr("kvstream.session.scouting.BYTES_A_TOKEN", 8)
    model = Model(session, Scouting(session, session))
    memory = model.read(story, questions=[FACT.question], budget=320, max_tokens=8)
    memory.save(tmp_path / "two.kvs")
    recalled = model.recall(tmp_path / "two.kvs")
    said = [m.ask(FACT.question, max_tokens=8) for m in (memory, recalled)]
    pieces = [each.result.skim["pieces"] for each in said if each.result.skim]
    assert pieces[0] == pieces[1]
    assert said[0].text == said[1].text
    beside = memory._engine.beside
    assert beside is not None
    whole = QuestionWords(FACT.question)
    for excerpt in excerpts_of(open_sources([str(story)])):
        whole.count(excerpt.text)
    assert beside.dropped > 0
    assert beside.words == [whole.totals]
    kept = PassageMemory.of(beside, [FACT.question])
    assert kept.beside("", "", 0).words == [whole.totals]
    older = PassageMemory.of(replace(beside, words=[]), [FACT.question])
    assert older.beside("", "", 0).words[0][0] == len(beside.excerpts) < whole.totals[0]
    assert beside.excerpts
    for wrong in (
        [0] * len(whole.totals),
        [1, 5],
        [5, 9, *whole.totals[2:], 0],
        [1, 9, *(2 for _ in whole.totals[2:])],
    ):
        with pytest.raises(ValueError, match="counted wrongly"):
            PassageMemory.of(replace(beside, words=[wrong]), [FACT.question])


def test_a_budget_past_the_small_models_training_is_refused(
    session: Session, tmp_path: Path
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("The sun rose over the town, and nobody came.\n" * 900)
    trained = session.model.trained_length
    run = replace(RUN, budget=Budget(tokens=trained))
    pair = Scouting(session, session)
    skims = pair.scouts(Request(("Who?",), run))
    assert skims.run.budget == run.budget
    past = Request(("Who?",), replace(run, budget=Budget(tokens=trained + 1)))
    with pytest.raises(BudgetError, match="let pocket read everything: --skim none"):
        pair.scouts(past)


def test_the_last_page_of_a_passage_is_told_and_saved(session: Session, story: Path) -> None:
    from kvstream.memory.packing import beside_of
    from kvstream.memory.saving import memory_state

    first = Passage(0, 0, 5, 1, 1, "It is", place=3)
    last = Passage(0, 6, 12, 1, 1, "night.", place=3, page_end=4)
    [told] = Excerpts([Excerpt((first, last))], ["a.pdf"], [0]).to_json()
    assert (told["page"], told["page_end"], told["line_end"]) == (3, 4, None)
    memory = Model(session, Scouting(session, session)).read(story, budget=320, max_tokens=8)
    assert memory._engine.beside is not None
    memory._engine.beside = replace(memory._engine.beside, excerpts=[(first, last)])
    state, tensors = memory_state(memory._engine)
    found = beside_of(json.loads(json.dumps(state)), tensors)
    assert found is not None
    assert found.excerpts == [(first, last)]


def test_more_is_read_into_a_memory_of_two_models(session: Session, story: Path) -> None:
    model = Model(session, Scouting(session, session))
    memory = model.read(story, questions=["Where is the zinc box?"], budget=320, max_tokens=8)
    before = memory.read_tokens
    memory.read(text="Years later the zinc box was found in the boat house. " * 3)
    assert memory.read_tokens > before
    answer = memory.ask("Where is the zinc box?")
    assert answer.result.skim is not None
    assert any(p["source"] == "text" for p in answer.result.skim["pieces"])


@pytest.fixture(scope="module")
def two_files(
    session: Session, write_story: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Path, Path]]:
    """Return stories, each with a memory file of two models."""
    model, folder = Model(session, Scouting(session, session)), tmp_path_factory.mktemp("two")
    found = []
    for seed in (SEED, SEED + 1):
        text, file = write_story(tokens=3000, seed=seed, facts=FACTS), folder / f"{seed}.kvs"
        model.read(text, budget=320, max_tokens=8).save(file)
        found.append((text, file))
    return found


def test_a_folder_is_asked_by_the_models_of_its_files(
    session: Session, two_files: list[tuple[Path, Path]], story: Path, tmp_path: Path
) -> None:
    """Files of two models use their passages. A file of only the skimming model answers too."""
    two, files = Model(session, Scouting(session, session)), [file for _, file in two_files]
    for number, file in enumerate(files):
        shutil.copy(file, tmp_path / f"two-{number}.kvs")
    assert models_of(memory_files(tmp_path)) == ("pocket", "pocket")
    Model(session).read(story, budget=320, method="keydiff").save(tmp_path / "alone.kvs")
    (tmp_path / "broken.kvs").write_bytes(b"no memory")
    assert models_of(memory_files(tmp_path)) == ("pocket", "pocket")
    assert models_of([tmp_path / "broken.kvs"]) is None
    memories = two.memories(tmp_path)
    found = memories.answers(FACT.question, best=9, max_tokens=4)
    assert len(memories.problems) == 1
    by_name = {each.path.name: answer.result for each, answer in found}
    assert {name: result.skim is not None for name, result in by_name.items()} == {
        "alone.kvs": False, **{f"two-{n}.kvs": True for n in range(len(files))},
    }  # fmt: skip
    for name, result in by_name.items():
        own = two if result.skim is not None else Model(session)
        assert result.answer == own.recall(tmp_path / name).ask(FACT.question, max_tokens=4).text
        assert result.prefill_s == 0, "nothing was read now"


def test_a_file_of_the_answering_model_is_asked_by_it() -> None:
    held = Mock(beside=None, warnings=())
    scout, answerer = (Mock(model_name=n, recall=lambda *_: held) for n in ("pocket", "reader"))
    two = Model(answerer, Mock(reader=scout))
    for name, by in ("reader", answerer), ("pocket", scout), ("another", scout):
        file = Mock(spec=MemoryFile, whole=True, model={"name": name})
        assert two.recall(file)._session is by, "the scout says that another model made it"


def test_counts_of_words_are_joined_by_question(session: Session, tmp_path: Path) -> None:
    """The order of the questions in each file does not matter."""
    asked = ["Who painted the old boat red?", "Where did Ada go?"]
    model, files, totals = Model(session, Scouting(session, session)), [], []
    for number, questions in enumerate((asked, asked[::-1])):
        text = "".join(generate(tokens=2000, seed=number, facts=2))
        memory = model.read(text=text, questions=questions, budget=320, max_tokens=8)
        beside = memory._engine.beside
        assert beside is not None
        totals.append(dict(zip(questions, beside.words, strict=True)))
        memory.save(tmp_path / f"{number}.kvs")
        files.append(tmp_path / f"{number}.kvs")
    joined = model.merge(files)._engine.beside
    assert joined is not None
    expected = [[a + b for a, b in zip(totals[0][q], totals[1][q], strict=True)] for q in asked]
    assert joined.words == expected


def test_memories_of_two_models_are_joined(
    session: Session, two_files: list[tuple[Path, Path]], tmp_path: Path
) -> None:
    model, (texts, files) = Model(session, Scouting(session, session)), zip(*two_files, strict=True)
    before = [model.recall(file).answering for file in files]
    memory = model.merge(files)
    kept = memory.answering
    assert kept is not None
    assert kept["model"] == "pocket"
    assert kept["room_bytes"] == 320 * BYTES_A_TOKEN
    assert 0.9 * kept["room_bytes"] < kept["bytes"] <= kept["room_bytes"]
    # All lost text is counted.
    counted = sum(part["bytes"] + part["dropped_bytes"] for part in before if part is not None)
    assert kept["bytes"] + kept["dropped_bytes"] == counted
    assert memory._skim is not None
    excerpts = memory._skim[1].passages.excerpts
    assert {e.passages[0].source for e in excerpts} == {0, 1}
    bases = memory._engine.trace.bases
    for passage in (p for excerpt in excerpts for p in excerpt.passages):
        raw = texts[passage.source].read_bytes()
        start = passage.start - bases[passage.source]
        assert raw[start : start + passage.end - passage.start].decode() == passage.text
        assert passage.line_start == raw[:start].count(b"\n") + 1
    path = tmp_path / "both.kvs"
    memory.save(path)
    for each in (memory, model.recall(path)):
        for number, text in enumerate(texts):
            wanted = next(e for e in excerpts if e.passages[0].source == number)
            result = each.ask(" ".join(wanted.text.split()[:12]), max_tokens=8).result
            assert result.narrowed is None, "passages are those of all texts"
            assert result.skim is not None
            assert result.skim["first"]["narrowed"]["sources"] == [str(text)]
            found = [(piece["source"], piece["byte_start"]) for piece in result.skim["pieces"]]
            assert (str(text), wanted.start - bases[number]) in found
            assert result.skim["kept"]["bytes"] == kept["bytes"]
    alone = Model(session).merge(files).ask("Who?", max_tokens=4)
    assert alone.result.skim is None


def test_the_budget_of_joined_memories_is_that_of_both_models(
    session: Session, two_files: list[tuple[Path, Path]], story: Path, tmp_path: Path
) -> None:
    model, files = Model(session, Scouting(session, session)), [file for _, file in two_files]
    memory = model.merge(files, "640")
    assert memory.budget[0] == 640
    assert memory.answering is not None
    assert (memory.answering["budget"], memory.answering["room_bytes"]) == (640, 40960)
    assert memory.answering["dropped_bytes"] == 0
    other = tmp_path / "other.kvs"
    model.read(story, budget=400, max_tokens=8).save(other)
    with pytest.raises(UsageError, match=r"a budget of 320 in .* and of 400 in .* --budget"):
        model.merge([files[0], other])
    assert model.merge([files[0], other], 400).budget[0] == 400


def test_files_that_were_not_read_alike_are_refused(
    session: Session, two_files: list[tuple[Path, Path]], story: Path, tmp_path: Path
) -> None:
    model, first = Model(session, Scouting(session, session)), two_files[0][1]
    alone = tmp_path / "alone.kvs"
    Model(session).read(story, budget=320, method="keydiff").save(alone)
    for files in ((first, alone), (alone, first)):
        with pytest.raises(UsageError, match="pocket alone") as refused:
            model.merge(files)
        assert "pocket for pocket" in str(refused.value)


@given(
    st.lists(st.tuples(st.integers(0, 999), st.integers(1, 99)), min_size=1, max_size=5),
    st.integers(0, 2000),
)
def test_shares_fill_the_room(texts: list[tuple[int, int]], room: int) -> None:
    sizes, weights = [size for size, _ in texts], [weight for _, weight in texts]
    found = shares(room, sizes, weights)
    assert all(0 <= share <= size for share, size in zip(found, sizes, strict=True))
    assert sum(found) <= room
    assert sum(found) > min(room, sum(sizes)) - len(texts)
    # Per weight, a shortened text has at least as much as a text that keeps everything.
    short = [s / w for s, size, w in zip(found, sizes, weights, strict=True) if s < size]
    whole = [s / w for s, size, w in zip(found, sizes, weights, strict=True) if s == size]
    assert not short or not whole or min(short) + 1 >= max(whole)


def test_a_damaged_file_of_two_models(session: Session, story: Path, tmp_path: Path) -> None:
    from kvstream.memory.packing import beside_of
    from kvstream.memory.saving import memory_state

    model = Model(session, Scouting(session, session))
    memory = model.read(story, questions=["Who?"], budget=320, max_tokens=8)
    state, tensors = memory_state(memory._engine)
    state = json.loads(json.dumps(state))
    found = beside_of(state, tensors)
    assert found is not None
    assert sum(len(p.text) for e in found.excerpts for p in e) > 0
    with pytest.raises(ValueError, match="kept passages"):
        beside_of(state | {"answering": state["answering"] | {"room": 0}}, tensors | {
            "trace.kept": tensors["trace.kept"][:-9]})  # fmt: skip
    with pytest.raises(KeyError):
        beside_of(state, {})


def test_a_word_search_that_was_stopped_says_how_much_it_read(
    session: Session, tmp_path: Path
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("The ship sailed to the port of Ostend with salt.\n" * 9000)
    asked = iter((False, False, True))
    answer = Model(session).ask(
        path, "Which port?", method="passages", budget=512, max_tokens=4,
        interrupted=lambda: next(asked, True),
    )  # fmt: skip
    read, waiting = answer.result.bytes_read[0], answer.result.waiting
    assert waiting > 0
    assert read + waiting == (answer.result.receipt or {})["input"]["bytes"]


def test_short_lines_that_were_kept_can_be_read_again() -> None:
    from kvstream.memory.packing import beside_of, packed_kept

    passages = PassageMemory(4096, ["Which is 7?"])
    passages.feed(TextBlock("7\n" * 4096, 0, 0))
    passages.note(8192, final=True)
    beside = passages.beside("reader", "0", 64)
    assert len(beside.excerpts) > 10
    state = {"answering": vars(beside) | {"name": "reader"}, "trace": {"sources": [{}]}}
    del state["answering"]["model"], state["answering"]["excerpts"]
    assert beside_of(state, {"trace.kept": packed_kept(beside)}) == beside


def test_options_for_one_model_are_refused(session: Session, story: Path) -> None:
    model = Model(session, Scouting(session, session))
    for options in ({"extract": True}, {"every": 1000}):
        with pytest.raises(UsageError, match="--skim none"):
            model.ask(story, "Who?", budget=320, **options)
    assert model.summarize(story, budget=320, max_tokens=8).result.skim is None


@pytest.mark.parametrize("command", ["ask", "remember"])
def test_a_plan_is_what_is_run(session: Session, story: Path, command: Any) -> None:
    """This holds for a budget in bytes too, which is halved if both caches stay."""
    model = Model(session, Scouting(session, session))
    entry = model.kv_bytes(budget=2) - model.kv_bytes(budget=1)
    begun: list[Event] = []
    options: dict[str, Any] = {"budget": f"{900 * entry}B", "max_tokens": 8}
    planned = model.plan(story, question="Who?", command=command, **options)
    if command == "ask":
        model.ask(story, "Who?", progress=begun.append, **options)
    else:
        model.read(story, questions=["Who?"], progress=begun.append, **options)
    [started] = [event for event in begun if isinstance(event, Started)]
    assert replace(planned, answering=None) == started
    assert planned.answering is not None  # the same model here, so the same sizes
    assert planned.answering.budget_bytes == planned.budget_bytes
    assert planned.budget_tokens in ((900,) if command == "ask" else (449, 450))
    assert planned.unused is None


# Models that cannot work together.


def test_a_skim_model_that_cannot_be_bounded(
    tmp_path: Path, story: Path, cli: Callable[..., Any]
) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path / "gpt2"
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=8192, n_positions=64)
    GPT2LMHeadModel(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((pocket.path() / name).read_bytes())
    with pytest.raises(UnsupportedModelError, match="cannot scout"):
        Scouting.open(ModelSettings(), ModelSettings(model=str(folder)))
    done = cli("ask", str(story), "Q?", "--skim", str(folder), "-q")
    assert done.code == 4
    assert "--skim none" in done.stderr


def test_two_models_that_do_not_fit_together(
    monkeypatch: pytest.MonkeyPatch, story: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in pocket.path().iterdir():
        if file.is_file():
            (copy / file.name).symlink_to(file)
    cpu, full = placement.device_of("cpu"), ModelSettings(dtype="float32")
    one = placement.loaded_size(str(copy), full, cpu, torch.float32)
    assert one
    monkeypatch.setattr(placement, "free_memory", lambda device: int(1.4 * one))
    done = cli("ask", str(story), "Q?", "--skim", str(copy), "--dtype", "float32", "-q")
    assert done.code == ModelError.exit_code
    assert f"pocket with {copy} needs about" in done.stderr
    assert "--skim none" in done.stderr


def test_a_budget_too_small_for_the_answering_model(pair: Scouting, story: Path) -> None:
    with pytest.raises(BudgetError, match="Use --budget"):
        ask(pair, story, "Who?", run=RunSettings(Budget(tokens=70)))


# The command line.


def test_the_command_line_with_another_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: Path, cli: Callable[..., Any]
) -> None:
    """Once fetched, ``reader`` (a tiny model here) answers without -m. A report needs a memory."""
    tiny = tiny_reader(tmp_path, monkeypatch)
    page = str(tmp_path / "page.html")
    arguments = (
        "--budget", "500", "-n", "40", "--json", "-v", "--skim", "pocket", "--report", page,
    )  # fmt: skip
    done = cli("ask", str(story), FACT.question, *arguments)
    assert done.code == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["model"] == "reader"
    assert said["skim"]["model"] == "pocket"
    assert said["receipt"]["settings"]["max_tokens"] == 40, "not that of the scout"
    assert said["peak"]["kv_tokens"] <= 500
    assert "cannot be read again" in done.stderr or not said["skim"]["kept"]["dropped_bytes"]
    assert "passages kept as text" in done.stderr
    piped = cli("ask", FACT.question, *arguments, stdin=story.read_bytes()[:30000])
    assert json.loads(piped.stdout)["skim"]["model"] == "pocket"
    tiny.base.unlink()
    alone = json.loads(cli("ask", str(story), FACT.question, *arguments[:-4]).stdout)
    assert alone["model"] == "pocket"
    assert alone["skim"] is None


def test_who_answers_is_decided_by_what_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: Path, cli: Callable[..., Any]
) -> None:
    tiny_reader(tmp_path, monkeypatch)
    path = str(story)

    def models(*arguments: str) -> tuple[str, Any]:
        done = cli(*arguments, "--budget", "500", "-n", "4", "--json", "--dry-run")
        assert done.code == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["model"].endswith(said.get("answering", said)["model"])
        return said["model"], done.stderr

    assert models("ask", path, "Q?")[0] == "reader"  # a tiny model, which reads in no time
    assert models("ask", path, "Q?", "--skim", "pocket")[0] == "pocket for reader"
    assert models("ask", path, "Q?", "--skim", "words")[0] == "word search for reader"
    for about in (("--method", "h2o"), ("--keep", "100")):
        assert models("ask", path, "Q?", *about)[0] == "pocket for reader"
        useless = cli("ask", path, "Q?", "--skim", "words", *about)
        assert useless.code == 2
        assert f"{about[0]} has no effect with --skim words" in useless.stderr
    assert models("ask", path, "Q?", "--skim", "none")[0] == "reader"
    assert models("ask", path, "Q?", "-m", "pocket")[0] == "pocket"
    assert models("ask", path, "Q?", "-m", "smollm2", "--skim", "pocket")[0] == "pocket for smollm2"
    assert models("ask", path, "Q?", "--extract")[0] == "pocket"
    assert models("summarize", path, "--as", "prose")[0] == "pocket"
    name, said = models("summarize", path, "--as", "prose", "-m", "reader")
    assert name == "smollm2"
    assert "smollm2, the model below it, summarizes" in said
    refused = cli("summarize", path, "--skim", "pocket")
    assert refused.code == 2
    assert "one model reads here" in refused.stderr
    same = cli("ask", path, "Q?", "-m", "pocket", "--skim", "pocket")
    assert same.code == 2
    assert "--skim self" in same.stderr
    follows = cli("ask", path, "Q?", "--skim", "pocket", "--follow")
    assert follows.code == 2
    assert "--follow is for one model" in follows.stderr
    alone = cli("ask", "--each", path, "-Q", "Q?", "--skim", "none", "-n", "2", "--budget", "500")
    assert alone.code == 0, alone.stderr
    assert "choose another with -m" in alone.stderr


def test_memory_files_and_chats_of_two_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: Path, cli: Callable[..., Any]
) -> None:
    tiny_reader(tmp_path, monkeypatch)
    file = str(tmp_path / "two.kvs")
    scouted = ("--skim", "pocket", "--budget", "500", "-q")
    done = cli("remember", str(story), "-Q", FACT.question, "-o", file, *scouted)
    assert done.code == 0, done.stderr
    asked = cli("ask", "--memory", file, FACT.question, "-n", "4", "--json")
    assert asked.code == 0, asked.stderr
    said = json.loads(asked.stdout)
    assert (said["model"], said["skim"]["model"]) == ("reader", "pocket")
    alone = cli("ask", "--memory", file, FACT.question, "-n", "4", "--json", "-m", "pocket")
    assert json.loads(alone.stdout)["skim"] is None
    wrong = cli("ask", "--memory", file, FACT.question, "--skim", "smollm2")
    assert wrong.code == 2
    assert "was read by pocket for reader" in wrong.stderr
    talk = cli("chat", "--memory", file, "--json", "-n", "4", stdin=b"Who was it?\nAnd when?\n")
    assert talk.code == 0, talk.stderr
    assert [json.loads(x)["model"] for x in talk.stdout.splitlines()] == ["reader"] * 2
    short, both = str(tmp_path / "second.kvs"), str(tmp_path / "both.kvs")
    text = tmp_path / "second.txt"
    text.write_text("".join(generate(tokens=900, seed=SEED + 1, facts=2)))
    second = ("remember", str(text), "-Q", FACT.question, "-o", short, *scouted)
    assert cli(*second).code == 0
    joined = cli("merge", file, short, "-o", both, "--json")
    assert joined.code == 0, joined.stderr
    assert json.loads(joined.stdout)["answering"]["model"] == "reader"
    assert "Kept for reader: " in joined.stderr
    assert "pocket is a small model" not in joined.stderr
    asked = cli("ask", "--memory", both, FACT.question, "-n", "4", "--json")
    assert asked.code == 0, asked.stderr
    assert json.loads(asked.stdout)["skim"]["model"] == "pocket"
    one = str(tmp_path / "one.kvs")
    assert cli("remember", str(story), "-m", "pocket", "-o", one, "--budget", "500").code == 0
    assert (
        json.loads(cli("ask", "--memory", one, "Q?", "--json", "-n", "4").stdout)["model"]
        == "pocket"
    )
