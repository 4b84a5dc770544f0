"""The second pass: excerpts, their ranking, and one budget for both passes."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream.answer.answering import NOT_SUPPORTED
from kvstream.answer.reread.excerpts import LENGTH, Excerpt, Excerpts, excerpts_of
from kvstream.answer.reread.ranking import Cited, Words, fused
from kvstream.answer.reread.second_pass import LEAST, answered_second, choose, fitting
from kvstream.answer.support import Support
from kvstream.errors import KvstreamError, SourceError
from kvstream.events import Answered, AnswerStarted, AnswerToken, Result
from kvstream.input.sources import open_sources
from kvstream.model.layer_store import LayerStore
from kvstream.run.request import Request
from kvstream.sample.document import generate, make_facts
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings
from kvstream.tokenization.passages import Passage
from kvstream.tokenization.sentences import MOST_CHARS

SEED, FACTS = 3, 6
FACT = make_facts(FACTS, SEED)[5]


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Path:
    return write_story(tokens=1500, seed=SEED, facts=FACTS)


def passage(start: int, weight: float) -> Passage:
    return Passage(0, start, start + 5, 1, 1, "", weight)


@given(st.text(max_size=3000), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_pieces_are_the_text(
    tmp_path_factory: pytest.TempPathFactory, text: str, copies: int
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    data = text.encode("utf-8", "replace") + b"x"
    names = []
    for number in range(copies):
        (folder / f"{number}.txt").write_bytes(data)
        names.append(str(folder / f"{number}.txt"))
    sources = open_sources(names, plain=True)
    cut = list(excerpts_of(sources))
    assert all(len({p.source for p in piece.passages}) == 1 for piece in cut)
    assert all(a.end <= b.start for a, b in itertools.pairwise(cut))
    assert all(piece.end - piece.start <= LENGTH + 4 * MOST_CHARS + 64 for piece in cut)
    said = "".join("".join(piece.text.split()) for piece in cut)
    # A byte order mark at the beginning does not belong to the text.
    once = "".join(data.decode().removeprefix("\ufeff").split())
    assert said == once * copies
    every = Excerpts(cut, sources.names, sources.bases)
    for block in every:
        offsets = block.offsets()
        assert len(offsets) == len(block.text) + 1
        assert (np.diff(offsets) >= 0).all()
    for told in every.to_json():
        assert 0 <= told["byte_start"] < told["byte_end"] <= len(data)


def test_bytes_that_are_no_text_keep_their_places(tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_bytes(b"One \xff\xfe two. Then came three.\n")
    [piece] = excerpts_of(open_sources([str(path)], plain=True))
    ends = [int(block.offsets()[-1]) for block in piece.blocks()]
    assert ends[-1] == piece.end == len(path.read_bytes()) - 1


def test_citations_weigh_the_pieces_they_lie_in() -> None:
    parts = [(0, 10), (12, 30), (31, 40)]
    cited = [passage(0, 0.5), passage(5, 0.25), passage(14, 0.125), passage(99, 1.0)]
    assert [Cited(cited).weight(*part) for part in parts] == [0.75, 0.125, 0.0]
    assert Cited([]).weight(0, 10) == 0.0


def test_words_find_the_piece_that_has_them() -> None:
    words = Words("Who hid the BRASS lamp?")
    for text in (
        "The dog slept.",
        "It was the brass lamp.",
        "The lamp fell.",
        "",
        "He hid behind the old garden wall.",
    ):
        words.add(text)
    scores = words.scores()
    assert scores.argmax() == 1
    assert scores[3] == 0
    assert len(scores) == 5
    everywhere = Words("lamp")
    for text in ("lamp", "a lamp", "lamp lamp", "none"):
        everywhere.add(text)
    scores = everywhere.scores()
    assert scores[2] > scores[0] > scores[1] > scores[3] == 0
    nothing = Words("?!")
    nothing.add("text")
    assert nothing.scores().tolist() == [0.0]


def test_fused_ranks_count_by_place_and_zero_counts_nothing() -> None:
    score = fused([np.array([9.0, 1.0, 0.0]), np.array([0.2, 0.1, 0.0])])
    assert score[0] > score[1] > score[2] == 0.0


@pytest.mark.parametrize("by", ["citations", "words", "both"])
@pytest.mark.parametrize("room", [20, 100, 700])
def test_what_is_chosen_fits_and_is_in_order(
    session: Session, story: Path, by: str, room: int
) -> None:
    at = story.read_bytes().index(FACT.sentence.encode())
    again = open_sources([str(story)]).again
    found = choose(
        again, FACT.question, session.tokenizer, (room, room), by=by, cited=[passage(at, 1.0)]
    )
    text = "".join(block.text for block in found)
    assert len(session.tokenizer.encode(text)) <= room
    starts = [told["byte_start"] for told in found.to_json()]
    assert starts == sorted(starts)
    assert FACT.sentence in text or room == 20


def test_excerpts_fill_the_room_to_the_last_token_or_until_it_is_enough() -> None:
    letters: Any = SimpleNamespace(encode=lambda text: list(text))
    pieces = [Excerpt((Passage(0, at, at + 3, 1, 1, "abc", 0.0),)) for at in (60, 20, 40)]

    def chosen(room: int, enough: int) -> list[int]:
        return [piece.start for piece in fitting(pieces, letters, (room, enough))]

    assert [chosen(room, 99) for room in (4, 5, 9, 10, 15)] == [
        [], [60], [60], [20, 60], [20, 40, 60],
    ]  # fmt: skip
    assert [chosen(99, enough) for enough in (5, 6, 10)] == [[60], [20, 60], [20, 60]]


def made_result(**known: Any) -> Result:
    """Return a result whose fields are 0, except those in `known`."""
    needed = [f.name for f in fields(Result) if f.default is MISSING]
    zeros: dict[str, Any] = dict.fromkeys(needed, 0)
    return Result(**{**zeros, **known})


def test_a_second_answer_brings_its_own_end_and_peaks_are_those_of_both() -> None:
    first = made_result(stopped="end", peak_kv_tokens=9, scratch_bytes=1, answer_s=2.0)
    second = made_result(stopped="budget", peak_kv_tokens=5, scratch_bytes=7, answer_s=9.0)
    for one, other in ((first, second), (second, first)):
        told = answered_second(one, other, 1.5)
        assert told.stopped == other.stopped
        assert (told.peak_kv_tokens, told.scratch_bytes) == (9, 7)
        assert told.answer_s == one.answer_s + 1.5


def test_a_long_best_piece_is_read_and_then_it_is_enough(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("First.\n" + "The lamp is brass " * 60 + ".\nLast comes the lamp again.\n" * 40)
    again, cited = open_sources([str(path)]).again, [passage(8, 1.0)]
    found = choose(again, "lamp?", session.tokenizer, (900, 50), by="words", cited=cited)
    assert len(found) == 1
    assert not choose(again, "lamp?", session.tokenizer, (9, 50), by="words", cited=cited)


def test_both_passes_stay_in_one_budget(
    session: Session, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pass frees its KV cache before the second pass allocates one."""
    made: list[LayerStore] = []
    held: list[int] = []
    first = LayerStore.__init__

    def counted(self: LayerStore, *args: Any) -> None:
        first(self, *args)
        made.append(self)
        held.append(sum(s.keys.nbytes + s.values.nbytes for s in made))

    monkeypatch.setattr(LayerStore, "__init__", counted)
    questions = tuple(f.question for f in make_facts(FACTS, SEED)[:2])
    run = RunSettings(Budget(tokens=512), max_tokens=16)
    request = Request(questions, run, reread="citations")
    events = list(session.ask(open_sources([str(story)]), request))
    layers = len(session.model.layers)
    assert len(made) == 3 * layers
    one = held[layers - 1]
    assert max(held) == one, "two caches were there at once"
    results = [e.result for e in events if isinstance(e, Answered)]
    assert tuple(r.question for r in results) == questions
    assert [e.number for e in events if isinstance(e, AnswerStarted)] == [0, 1]
    for r in results:
        assert r.peak_kv_tokens <= 512
        assert r.peak_kv_bytes <= r.budget_bytes
        assert r.reread["tokens"] <= LEAST + 2 * LENGTH
        assert r.reread["peak_kv_tokens"] <= 512
        assert r.reread["first"]["peak_kv_tokens"] <= 512
        assert r.read > r.reread["tokens"]
        assert r.method == "infinipot"


def test_what_is_read_again_is_cited_at_its_own_lines(session: Session, tmp_path: Path) -> None:
    packed = tmp_path / "story.txt.gz"
    text = "".join(generate(tokens=3000, seed=SEED, facts=FACTS))
    packed.write_bytes(gzip.compress(text.encode()))
    run = RunSettings(Budget(tokens=512), max_tokens=24)
    request = Request((FACT.question,), run, reread="words")
    events = session.ask(open_sources([str(packed)]), request)
    result = next(e.result for e in events if isinstance(e, Answered))
    assert result.citations
    for cited in result.citations:
        assert text.encode()[cited["byte_start"] : cited["byte_end"]].decode() == cited["text"]
        line = text.encode()[: cited["byte_start"]].count(b"\n") + 1
        assert cited["line_start"] == line


def test_bm25_alone_reads_no_more_than_the_budget(session: Session, story: Path) -> None:
    run = RunSettings(Budget(tokens=512), max_tokens=24)
    events = session.ask_by_words(open_sources([str(story)]), Request((FACT.question,), run))
    result = next(e.result for e in events if isinstance(e, Answered))
    assert result.method == "bm25"
    assert result.read <= result.peak_kv_tokens <= 512
    assert result.evicted == 0


def test_bm25_answers_the_questions_whose_words_it_finds(session: Session, story: Path) -> None:
    pytest.importorskip("rank_bm25")
    request = Request(("Zyx?", FACT.question), RunSettings(Budget(tokens=512), max_tokens=8))
    events: list[Any] = []
    with pytest.raises(SourceError, match=r"a word of question 1; bm25"):
        events.extend(session.ask_by_words(open_sources([str(story)]), request))
    assert [e.result.question for e in events if isinstance(e, Answered)] == [FACT.question]


def test_bm25_withholds_a_doubtful_answer_with_strict(
    session: Session, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Support, "doubts", property(lambda self: ("It is a guess",)))
    run = RunSettings(Budget(tokens=512), max_tokens=24)
    answers = {}
    for strict in (False, True):
        request = Request((FACT.question,), run, strict=strict)
        events = session.ask_by_words(open_sources([str(story)]), request)
        answers[strict] = next(e.result for e in events if isinstance(e, Answered))
    assert answers[False].withheld is None
    assert answers[True].withheld == answers[False].answer


def test_a_first_answer_is_withheld_with_strict_if_no_passage_is_found(
    session: Session, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Support, "doubts", property(lambda self: ("It is a guess",)))
    monkeypatch.setattr("kvstream.answer.answering.abstains", lambda answer: False)
    run = RunSettings(Budget(tokens=512), max_tokens=8)
    request = Request(("Zyx?",), run, reread="words", strict=True)
    events = list(session.ask(open_sources([str(story)]), request))
    result = next(e.result for e in events if isinstance(e, Answered))
    assert "No passage was found" in result.warnings[-1]
    assert result.withheld
    written = "".join(e.text for e in events if isinstance(e, AnswerToken))
    assert written == result.answer == NOT_SUPPORTED


def test_sources_that_shrank_in_between_are_noticed(session: Session, story: Path) -> None:
    texts = [story, story.with_name("short.txt")]
    texts[1].write_text("Gone.")

    def again() -> Any:
        return open_sources([str(texts.pop(0))])

    with pytest.raises(KvstreamError, match="changed"):
        choose(again, FACT.question, session.tokenizer, (400, 400), by="words")


def test_a_source_that_lost_its_end_in_between_is_noticed(session: Session, story: Path) -> None:
    """The change is noticed although the chosen excerpts are still there."""
    sources = open_sources([str(story)])
    list(sources)
    (record,) = sources.records
    longer = replace(record, bytes=record.bytes + 9, sha256="of another text")
    wanted = FACT.question, session.tokenizer, (400, 400)
    assert choose(sources.again, *wanted, by="words", records=[record])
    with pytest.raises(KvstreamError, match=r"has changed since it was read"):
        choose(sources.again, *wanted, by="words", records=[longer])


def test_a_source_that_was_altered_in_between_is_noticed(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "story.txt"
    path.write_text("".join(generate(tokens=1500, seed=SEED, facts=FACTS)))

    def altered() -> Any:
        path.write_text(path.read_text().replace("a", "b"))
        return open_sources([str(path)])

    run = RunSettings(Budget(tokens=512), max_tokens=4)
    sources = open_sources([str(path)])
    monkeypatch.setattr(sources, "again", altered)
    events = session.ask(sources, Request((FACT.question,), run, reread="words"))
    with pytest.raises(KvstreamError, match=r"story\.txt has changed"):
        list(events)


def test_a_pipe_is_refused_with_a_remedy(cli: Any) -> None:
    done = cli("ask", "--reread", FACT.question, "--threads", "1", stdin=b"Some text.")
    assert done.code == 2
    assert "file" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bare_reread_does_not_take_the_question(story: Path, cli: Any) -> None:
    done = cli(
        "ask", str(story), "--reread", FACT.question, "--budget", "512", "--json", "-n", "16",
        "--threads", "1",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert f'"question": "{FACT.question}"' in done.stdout
    assert '"by": "citations"' in done.stdout
