"""A text in parts: nothing is lost or repeated, and places are those of the whole text."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.input.blocks import TextBlock
from kvstream.input.inspection import NamedStream
from kvstream.input.parts import WINDOW, PartOfText, stretches
from kvstream.input.sources import SourceSet, open_sources
from kvstream.tokenization.passages import Passages

PIECES = (
    b"a sentence. ", b"Another one.\n", "\u00e9\u8a9e\U0001f600".encode(), b"\n\n",
    b"x" * 700, b" ",
    b"\xff",
)  # fmt: skip


def whole(*texts: bytes) -> Callable[[], SourceSet]:
    return lambda: open_sources([NamedStream(str(n), t) for n, t in enumerate(texts)])


def letters(blocks: list[TextBlock]) -> list[tuple[str, int, int]]:
    """Return every character with its source and its byte offset."""
    return [
        (char, block.source, int(at))
        for block in blocks
        for char, at in zip(block.text, block.offsets(), strict=False)
    ]


@given(
    st.lists(
        st.lists(st.sampled_from(PIECES), min_size=1, max_size=40).map(b"".join),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 7),
)
def test_the_parts_are_the_whole(texts: list[bytes], count: int) -> None:
    opened = whole(*texts)
    parts = stretches(opened(), count)
    assert 1 <= len(parts) <= count
    assert [p.number for p in parts] == list(range(1, len(parts) + 1))
    found: list[TextBlock] = []
    for part in parts:
        source = PartOfText(opened(), part)
        blocks = list(source)
        assert blocks
        assert blocks[0].offsets()[0] == part.begin
        found += blocks
    assert letters(found) == letters(list(opened()))


def test_parts_are_about_equal_and_begin_behind_a_newline() -> None:
    text = b"".join(b"Line %d of the file.\n" % n for n in range(20_000))
    parts = stretches(whole(text)(), 8)
    assert len(parts) == 8
    ends = [part.end or len(text) for part in parts]
    for part, end in zip(parts, ends, strict=True):
        assert abs(end - part.begin - len(text) / 8) <= 2 * WINDOW
        assert part.begin == 0 or text[part.begin - 1 : part.begin] == b"\n"
        assert part.lines == text[: part.begin].count(b"\n")


def test_lines_of_a_part_are_those_of_its_file(tmp_path: Path) -> None:
    """The numbers are right in both files, of which the second is compressed."""
    texts = [
        "".join(f"File {n} has line {i}, which is this one.\n" for i in range(1, 400))
        for n in (0, 1)
    ]
    paths = [tmp_path / "a.txt", tmp_path / "b.txt.gz"]
    paths[0].write_text(texts[0])
    paths[1].write_bytes(gzip.compress(texts[1].encode()))
    opened = [str(path) for path in paths]
    parts = stretches(open_sources(opened), 3)
    assert len(parts) == 3
    lines = []
    for part in parts:
        passages = Passages("lines")
        for block in PartOfText(open_sources(opened), part):
            passages.feed(block)
        for found in passages.take(final=True):
            assert found.line_start == found.line_end
            assert found.text == texts[found.source].split("\n")[found.line_start - 1]
            lines.append((found.source, found.line_start))
    assert lines == [(n, i) for n in (0, 1) for i in range(1, 400)]


def test_sizes_and_records() -> None:
    text = b"A line of the text.\n" * 1000
    parts = stretches(whole(text)(), 2)
    first, last = (PartOfText(whole(text)(), part) for part in parts)
    assert first.size_hint() == parts[1].begin
    assert last.size_hint() == len(text)
    list(first)
    assert first.bytes_read == parts[1].begin
    list(last)
    ((record,),) = (last.records,)
    assert record.bytes == len(text)


def test_a_short_text_is_one_part() -> None:
    assert len(stretches(whole(b"A short text.")(), 8)) == 1


@pytest.mark.parametrize("text", [b"x" * 10_000, "\u8a9e".encode() * 5000])
def test_text_without_spaces_is_cut_between_characters(text: bytes) -> None:
    opened = whole(text)
    parts = stretches(opened(), 3)
    assert len(parts) == 3
    assert "".join(b.text for p in parts for b in PartOfText(opened(), p)) == text.decode()
