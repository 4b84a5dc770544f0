"""Passages: cuts do not depend on blocks, memory is bounded, and token offsets find them."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream.input.blocks import TextBlock
from kvstream.input.sources import open_sources
from kvstream.tokenization.loading import TokenBatch
from kvstream.tokenization.passages import Passage, Passages, TokenOrigins, extract
from kvstream.tokenization.sentences import MOST_CHARS, lines, looks_like_lines, sentences

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def split(text: str) -> list[str]:
    return [text[a:b] for a, b in sentences(text, final=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Mr. Pip met Dr. J. Gray of St. Ives. Go", ["Mr. Pip met Dr. J. Gray of St. Ives.", "Go"]),
        ('"Go!" said he. "No." And left.', ['"Go!" said he.', '"No."', "And left."]),
        ("It cost 3.50 in No. 7. I paid.", ["It cost 3.50 in No. 7.", "I paid."]),
        ("CHAPTER I\n\nIt was\nlate.\r\n\r\nEnd", ["CHAPTER I", "It was\nlate.", "End"]),
        ("He said no. Then he left.", ["He said no.", "Then he left."]),
        ("राम गया। सीता आई।", ["राम गया।", "सीता आई।"]),
        ("ماذا حدث؟ سقط المطر.", ["ماذا حدث؟", "سقط المطر."]),
        ("មេឃភ្លៀង។គាត់ទៅ។", ["មេឃភ្លៀង។", "គាត់ទៅ។"]),
        ("ฝนตก เขาไป abc", ["ฝนตก", "เขาไป abc"]),
        ("これは文です。「次です。」終わり", ["これは文です。", "「次です。」", "終わり"]),
        ("Wait... what? and so on, i.e. Nothing.", ["Wait... what? and so on, i.e. Nothing."]),
        ("It is I. He knows.", ["It is I.", "He knows."]),
        (" \n ", []),
    ],
)  # fmt: skip
def test_sentences(text: str, expected: list[str]) -> None:
    assert split(text) == expected


def test_long_sentences_are_cut() -> None:
    text = "word " * 3000
    pieces = split(text)
    assert max(map(len, pieces)) <= MOST_CHARS
    assert " ".join(pieces).split() == text.split()
    assert max(map(len, split("x" * 9000))) == MOST_CHARS


def blocks_of(data: bytes, size: int) -> list[TextBlock]:
    class Slow(io.BytesIO):
        def read1(self, _: int | None = -1, /) -> bytes:
            return self.read(size)

    return list(open_sources(["-"], stdin=Slow(data)))


def all_of(passages: Passages) -> list[Passage]:
    everything = np.arange(0, 200_000)
    return passages.score(everything, np.ones(len(everything)))


WORDS = st.sampled_from(
    [
        "the ",
        "Dr. ",
        "end. ",
        "End? ",
        '"Oh!" ',
        "\n",
        "\r\n",
        "\n\n",
        "  ",
        "é. ",
        "日本。",
        "A",
        "x",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, min_size=1), st.integers(1, 3000), st.integers(0, 99), st.booleans())
def test_cuts_do_not_depend_on_the_blocks(
    words: list[str], size: int, seed: int, as_lines: bool
) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice(words) for _ in range(1000))
    data = text.encode()
    passages = Passages("lines" if as_lines else "sentences")
    for block in blocks_of(data, size):
        passages.feed(block)
    if not text.strip():
        return
    found = all_of(passages)
    cut = lines if as_lines else sentences
    expected = list(cut(text, final=True))
    assert [p.text for p in found] == [text[a:b] for a, b in expected]
    assert [p.line_start for p in found] == [text.count("\n", 0, a) + 1 for a, _ in expected]
    assert [p.line_end for p in found] == [text.count("\n", 0, b) + 1 for _, b in expected]
    for passage in found:
        assert data[passage.start : passage.end].decode() == passage.text


def test_weights_go_to_the_passage_of_the_token() -> None:
    passages = Passages("sentences")
    passages.feed(TextBlock("One two. Three four. Five.", 0, 0))
    found = passages.score(np.array([4, 8, 14, 0]), np.array([1.0, 2.0, 0.5, 0.25]))
    assert [(p.text, p.weight) for p in found] == [("One two.", 1.25), ("Three four.", 2.5)]


def test_pruning_bounds_what_is_held() -> None:
    passages, most = Passages("auto"), 0
    rng = random.Random(0)
    kept: list[int] = []
    place = 0
    for _ in range(200):
        text = "".join(f"Sentence number {rng.random()} is here. " for _ in range(100))
        passages.feed(TextBlock(text, place, 0))
        kept.append(place + rng.randrange(len(text)))
        place += len(text)
        passages.prune(np.array(kept[-20:]), place)
        most = max(most, passages.held_chars)
    assert most < 12_000
    found = passages.score(np.array(kept[-20:]), np.ones(20))
    assert 18 <= len(found) <= 20
    assert all(any(p.start - 1 <= byte < p.end for byte in kept) for p in found)


def test_text_behind_the_last_token_is_not_forgotten() -> None:
    passages = Passages("lines")
    passages.feed(TextBlock("first\nsecond\nthird\n" * 500, 0, 0))
    passages.prune(np.array([], dtype=np.int64), 13)
    assert passages.score(np.array([14]), np.ones(1))[0].text == "third"
    assert passages.score(np.array([2]), np.ones(1)) == []


@pytest.mark.parametrize("char", [" ", "\n", "x", "."])
def test_endless_runs_do_not_pile_up(char: str) -> None:
    for mode in ("sentences", "lines", "auto"):
        passages, place = Passages(mode), 0  # type: ignore[arg-type]
        for _ in range(40):
            passages.feed(TextBlock(char * 20_000, place, 0))
            place += 20_000
            passages.prune(np.array([], dtype=np.int64), place)
            assert passages.held_chars <= 30_000
        passages.feed(TextBlock("\nlast one", place, 0))
        assert passages.score(np.array([place + 1]), np.ones(1))[0].text.endswith("last one")


def test_line_numbers_begin_anew_in_every_source(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text("one\ntwo")
    passages = Passages("lines")
    for block in open_sources([str(tmp_path / name) for name in "ab"]):
        passages.feed(block)
    assert [(p.source, p.line_start, p.text) for p in all_of(passages)] == [
        (0, 1, "one"), (0, 2, "two"), (1, 1, "one"), (1, 2, "two"),
    ]  # fmt: skip


def test_prose_and_logs_are_told_apart() -> None:
    if not DATA.is_dir():
        pytest.skip("needs ../shared/data with books and logs")
    logs = sorted((DATA / "logs").glob("*.gz"))
    books = sorted((DATA / "books").glob("*.gz"))[::12]
    assert logs
    assert books
    for path in [*logs, *books]:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            assert looks_like_lines(file.read(8192)) == (path in logs), path.name


def test_code_is_lines_and_wrapped_prose_is_not() -> None:
    assert looks_like_lines(Path(__file__).read_text("utf-8")[:8192])
    wrapped = (
        "It was the best of times, it was\nthe worst of times, it was the age\nof wisdom. " * 9
    )
    assert not looks_like_lines(wrapped)
    assert looks_like_lines("name,city\n" + "Ann,Rome\nBob,Oslo\n" * 30)


def test_token_origins() -> None:
    origins = TokenOrigins()
    ids = np.zeros(100, dtype=np.int32)
    for step in range(50):
        origins.append(TokenBatch(ids, np.arange(100, dtype=np.int64) * 3 + 300 * step, 0))
        kept = np.array([5, 7, 100 * step + 50])[: 3 if step else 2]
        assert origins.starts(kept).tolist() == (kept * 3).tolist()
        origins.prune(np.array([5, 7]))
        assert len(origins) == 2
    assert origins.appended == 5000
    assert origins.starts(np.array([[7, 5]])).tolist() == [[21, 15]]
    with pytest.raises(ValueError, match="Token 6"):
        origins.starts(np.array([5, 6]))


def passage(start: int, text: str, weight: float) -> Passage:
    return Passage(0, start, start + len(text), 1, 1, text, weight)


def test_extract_takes_alike_lines_last_and_keeps_their_order() -> None:
    found = [
        passage(0, "10:00:01 worker 17 connected from 10.0.0.1", 5),
        passage(50, "10:00:02 worker 18 connected from 10.0.0.2", 9),
        passage(100, "10:00:03 disk failure on /dev/sda, going down", 8),
        passage(150, "10:00:04 shutting down", 1),
        passage(200, "---------", 50),
    ]
    assert [p.start for p in extract(found, 2)[0]] == [50, 100]
    assert [p.start for p in extract(found, 3)[0]] == [50, 100, 150]
    assert [p.start for p in extract(found, 9)[0]] == [0, 50, 100, 150]
    assert extract(found, 2**64) == extract(found, 9)
    assert extract([], 3) == ([], 0)
    assert extract(found, 0) == ([], 0)


def test_extract_leaves_out_true_repeats_and_counts_them() -> None:
    texts = ("The fee is 25 crowns.", "The fee is 39 crowns.", "The  fee\nis 25 crowns.", "Rain.")
    found = [passage(100 * i, text, 5 - i) for i, text in enumerate(texts)]
    assert [p.start for p in extract(found, 9)[0]] == [0, 100, 300]
    assert extract(found, 9)[1] == 1
    assert extract(found, 2) == ([found[0], found[3]], 1)


def test_the_parts_of_a_document_take_turns() -> None:
    """Memory holds more of the newest text. A summary needs passages from the whole document."""
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    made = [
        Passage(0, 100 * i, 100 * i + 50, i, i, f"{w} {w[::-1]} {i}", weight=float(i + 1))
        for i, w in enumerate(words)
    ]
    assert [p.start for p in extract(made, 3)[0]] == [700, 800, 900]
    assert [p.start for p in extract(made, 2, parts=2)[0]] == [400, 900]
    assert [p.start for p in extract(made, 3, parts=2)[0]] == [400, 800, 900]
    assert extract(made, 20, parts=5) == (made, 0)
    assert extract([], 3, parts=3) == ([], 0)


def test_a_passage_across_pages_names_both() -> None:
    passages = Passages("sentences")
    pages = {211: "It rained. Ada hid ", 212: "the letter in ", 213: "the oak. It was late."}
    at = 0
    for place, text in pages.items():
        passages.feed(TextBlock(text, at, 0, place=place))
        at += len(text)
    first, second, third = passages.take(final=True)
    assert [first.spot, second.spot, third.spot] == ["p. 211", "pp. 211-213", "p. 213"]
    assert second.where()["page"] == 211
    assert second.where()["page_end"] == 213
    assert first.where()["page_end"] == 211


@pytest.mark.parametrize("mark", [".", "!", "…"])
def test_a_run_of_marks_takes_no_more_time_than_other_text(mark: str) -> None:
    import time

    text = "Wait" + mark * 60_000 + "what? And then."
    began = time.process_time()
    found = list(sentences(text, final=True))
    assert time.process_time() - began < 1
    assert "".join(text[a:b] for a, b in found).startswith("Wait" + mark)
    assert text[found[-1][0] : found[-1][1]] == "And then."


def test_white_space_without_end_is_not_held() -> None:
    passages = Passages()
    passages.feed(TextBlock("One word. " * 1000 + "Word", 0, 0))
    at = 10_004
    for _ in range(40):
        passages.feed(TextBlock(" " * 50_000, at, 0))
        at += 50_000
        assert passages.held_chars < 110_000
    passages.feed(TextBlock("and on. The end.", at, 0))
    found = passages.all()
    assert [p.text for p in found[-3:]] == ["Word", "and on.", "The end."]
    assert found[-1].start == at + 8
