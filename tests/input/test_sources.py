"""Sources: what they open, what they refuse, and their byte offsets."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kvstream.api.logs import LogSummary, record
from kvstream.collection.serial import write_records
from kvstream.errors import SourceError, UsageError
from kvstream.input import pseudo
from kvstream.input.blocks import CONTROLS, BlockDecoder
from kvstream.input.encodings import OtherDecoder, encoding_of
from kvstream.input.inspection import NamedStream
from kvstream.input.sources import SourceSet, open_sources
from kvstream.memory.file import write
from kvstream.reporters.format import json_text


def text_of(sources: SourceSet) -> str:
    return "".join(block.text for block in sources)


class Drip(io.RawIOBase):
    """A pipe that returns its bytes in given pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = [piece for piece in pieces if piece]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:
        if not self.pieces:
            return 0
        piece = self.pieces.pop(0)
        head, rest = piece[: len(buffer)], piece[len(buffer) :]
        if rest:
            self.pieces.insert(0, rest)
        buffer[: len(head)] = head
        return len(head)


@given(st.binary(max_size=60) | st.text(max_size=30).map(str.encode), st.lists(st.integers(0, 60)))
def test_decoding_in_pieces_equals_python_and_keeps_offsets(data: bytes, cuts: list[int]) -> None:
    assume(not CONTROLS.search(data))  # these stay as they are, for the cleaning of terminal codes
    decoder = BlockDecoder(0, 0)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    blocks = [decoder.decode(data[a:b]) for a, b in pairwise(places)]
    blocks.append(decoder.decode(b"", final=True))
    found = [block for block in blocks if block is not None]
    expected = data.decode("utf-8", "replace")
    assert "".join(block.text for block in found) == expected.removeprefix("\ufeff")
    for block in found:
        offsets = block.offsets()
        assert len(offsets) == len(block.text) + 1
        for char, a, b in zip(block.text, offsets, offsets[1:], strict=False):
            piece = data[a:b]
            assert piece.decode("utf-8", "replace") == char
            assert char == "\ufffd" or piece == char.encode()
    ends = [int(block.offsets()[-1]) for block in found]
    starts = [block.start for block in found]
    assert starts[1:] == ends[:-1]
    assert not ends or ends[-1] == len(data)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, bytes])
def test_packed_files_are_known_by_content(tmp_path: Path, pack: object) -> None:
    text = "Zeile eins\r\nüber zwei\n" * 9000
    path = tmp_path / "no-suffix"
    path.write_bytes(pack(text.encode()))  # type: ignore[operator]
    sources = open_sources([str(path)])
    assert sources.size_hint() is not None
    blocks = list(sources)
    assert "".join(block.text for block in blocks) == text
    assert max(len(block.text) for block in blocks) <= 64 * 1024
    assert sources.bytes_read == sources.size_hint() == len(text.encode())
    assert sources.warnings == []


def test_packed_standard_input_and_several_members() -> None:
    data = gzip.compress(b"one\n") + gzip.compress(b"two\n")
    sources = open_sources(["-"], stdin=Drip([bytes([byte]) for byte in data]))
    assert text_of(sources) == "one\ntwo\n"


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress])
def test_packed_streams_one_after_the_other(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    first, second, path = pack(b"one\n"), pack(b"two\n"), tmp_path / "a"
    for data in (first + second, first + bytes(4) + second + bytes(8)):
        path.write_bytes(data)
        sources = open_sources([str(path)])
        assert text_of(sources) == "one\ntwo\n"
        assert sources.warnings == []
    path.write_bytes(first + second[:-3])
    sources = open_sources([str(path)])
    assert text_of(sources).startswith("one\n")
    assert "ends in the middle of its" in sources.warnings[0]
    assert sources.records[0].problem == sources.warnings[0]
    path.write_bytes(first + b"?" + second[1:])
    with pytest.raises(SourceError, match=r"damaged: .* after 4 bytes"):
        text_of(open_sources([str(path)]))


def test_zstd(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "a"
    path.write_bytes(zstandard.compress(b"hello " * 1000))
    assert text_of(open_sources([str(path)])) == "hello " * 1000


def test_zstd_frames_one_after_the_other(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    skipped = b"\x52\x2a\x4d\x18\x03\0\0\0xyz"  # a skippable frame
    path, large = tmp_path / "a", b"0" * 3_000_000
    frames = [skipped, zstandard.compress(b"one\n"), skipped, zstandard.compress(large), skipped]
    path.write_bytes(b"".join(frames))
    assert text_of(open_sources([str(path)])) == "one\n" + large.decode()


@pytest.mark.parametrize("missing", [1, 3, 1000])
def test_a_zstd_file_that_is_cut_short_is_told(missing: int, tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    text = " ".join(map(str, np.random.default_rng(0).integers(0, 10**6, 50_000)))
    first, path = zstandard.compress(b"one\n"), tmp_path / "a.zst"
    path.write_bytes(first + zstandard.compress(text.encode())[:-missing])
    sources = open_sources([str(path)])
    assert f"one\n{text}".startswith(text_of(sources))
    assert "ends in the middle of its zstd data" in sources.warnings[0]
    path.write_bytes(first + b"nothing that zstd packs")
    with pytest.raises(SourceError, match="damaged"):
        text_of(open_sources([str(path)]))


def test_zstd_without_the_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    path = tmp_path / "a"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 20)
    with pytest.raises(SourceError, match=r"kvstream\[zstd\]"):
        open_sources([str(path)])


def test_a_truncated_archive_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = " ".join(map(str, rng.integers(0, 10**6, 50_000))).encode()
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text)[:-1000])
    sources = open_sources([str(path)])
    assert text.decode().startswith(text_of(sources))
    assert "ends in the middle" in sources.warnings[0]


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = bytearray(gzip.compress(" ".join(map(str, rng.integers(0, 10**6, 90_000))).encode()))
    data[len(data) // 2 : len(data) // 2 + 50] = b"x" * 50
    path = tmp_path / "a.gz"
    path.write_bytes(data)
    with pytest.raises(SourceError, match="damaged"):
        text_of(open_sources([str(path)]))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("pipe", [False, True])
def test_an_archive_that_is_cut_before_any_text_is_damaged(
    tmp_path: Path, pack: Callable[[bytes], bytes], pipe: bool
) -> None:
    path = tmp_path / "a"
    path.write_bytes(pack(b"It rained. " * 9)[:11])
    with path.open("rb") as file, pytest.raises(SourceError, match=r"ends before any text; f"):
        text_of(open_sources(["-"], stdin=file) if pipe else open_sources([str(path)]))


def test_sources_are_joined_without_gluing_lines(tmp_path: Path) -> None:
    for name, data in {
        "a": b"\xef\xbb\xbfend",
        "b": b"",
        "c": b"\xef\xbb\xbfstart\n",
        "d": b"x",
    }.items():
        (tmp_path / name).write_bytes(data)
    sources = open_sources([str(tmp_path / name) for name in "abcd"])
    blocks = list(sources)
    assert "".join(block.text for block in blocks) == "end\nstart\nx"
    whole = b"\xef\xbb\xbfend" + b"\xef\xbb\xbfstart\n" + b"x"
    for block in blocks:
        offsets = block.offsets()
        covered = whole[int(offsets[0]) : int(offsets[-1])].decode()
        assert covered == block.text or (block.text == "\n" and covered == "")
    assert sources.bases == [0, 6, 6, 15]
    assert sources.size_hint() == len(whole) == sources.bytes_read


def test_invalid_bytes_are_replaced_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"ab\xff\xfecd\xe2\x82")
    sources = open_sources([str(path)])
    assert text_of(sources) == "ab\ufffd\ufffdcd\ufffd"
    assert sources.warnings == [
        f"{path}: 4 bytes are not UTF-8 and were replaced, the first at byte 2."
    ]
    path.write_bytes("é".encode() + b"\xff")
    sources = open_sources([str(path)])
    assert text_of(sources) == "é\ufffd"
    assert sources.warnings == [f"{path}: 1 byte is not UTF-8 and was replaced, at byte 2."]


def test_binary_is_refused_unless_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc\0def")
    with pytest.raises(SourceError, match="NUL at byte 3"):
        open_sources([str(path)])
    assert text_of(open_sources([str(path)], plain=True)) == "abcdef"
    with pytest.raises(SourceError, match="standard input is binary"):
        text_of(open_sources(["-"], stdin=io.BytesIO(b"a\0")))


def test_a_text_with_the_name_of_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_text("text\n")
    sources = open_sources([str(tmp_path / "a.pdf")])
    assert "".join(block.text for block in sources) == "text\n"
    assert sources.warnings == [f"{tmp_path / 'a.pdf'} is no PDF; it is read as text."]


def test_an_archive_is_named(tmp_path: Path) -> None:
    pages = {"a.zip": b"PK\x05\x06" + bytes(18), "b.pdf.gz": gzip.compress(b"%PDF-1.4\n1 0 obj\n")}
    pages["c.tgz"] = gzip.compress(
        b"a.txt".ljust(257, b"\0") + b"ustar".ljust(255, b"\0") + b"It\n"
    )
    pages["d.gz.xz"] = lzma.compress(gzip.compress(b"It rained.\n"))
    whats = ("an empty ZIP archive", "a compressed PDF", "a tar archive", "gzip, twice packed")
    for (name, data), what in zip(pages.items(), whats, strict=True):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SourceError, match=rf"{name} is binary \({what}\); unpack it first"):
            open_sources([str(tmp_path / name)])
        with pytest.raises(SourceError, match=rf"input is binary \({what}\)"):
            text_of(open_sources(["-"], stdin=io.BytesIO(data)))


def test_files_that_kvstream_wrote_are_left_out_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("It rained.\n")
    write_records(tmp_path / "b", "a.txt", ({"command": "ask", "answer": "Rain."},))
    write(tmp_path / "c", {"format": 1}, {}, {"x": torch.zeros(2)})
    (tmp_path / "d").write_text(json_text(record(LogSummary())))
    (tmp_path / "e.json").write_text('{"command": "ask", "mode": "x"}\n')
    sources = open_sources([str(tmp_path)])
    assert [Path(name).name for name in sources.names] == ["a.txt", "e.json"]
    assert (sources.warnings, sources.notes) == (
        [],
        [f"Left out of {tmp_path}: 2 × JSON file of kvstream, 1 × memory file of kvstream."],
    )


def test_missing_and_empty(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        open_sources([str(tmp_path / "none")])
    with pytest.raises(SourceError, match="no text files"):
        open_sources([str(tmp_path)])
    with pytest.raises(SourceError, match="standard input held 0 bytes"):
        text_of(open_sources(["-"], stdin=io.BytesIO(b"")))
    with pytest.raises(SourceError):
        open_sources(["a\0b"])
    with pytest.raises(SourceError):
        open_sources([])
    with pytest.raises(UsageError, match="twice"):
        open_sources(["-", "-"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("x")
    path.chmod(0)
    with pytest.raises(SourceError, match="Permission denied"):
        open_sources([str(path)])


def test_directories(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("no")
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n")
    tree = tmp_path / "tree"
    (tree / "sub" / "build").mkdir(parents=True)
    (tree / "sub" / ".gitignore").write_text("!kept.log\n/only-here\n")
    for name in ("b.txt", "a.txt", "x.log", ".hidden", "sub/kept.log", "sub/only-here",
                 "sub/build/out", "sub/z"):  # fmt: skip
        (tree / name).write_text(f"{name}\n")
    (tree / "binary").write_bytes(b"\0\1")
    os.mkfifo(tree / "fifo")
    os.symlink(tree, tree / "loop")
    os.symlink(tree / "nowhere", tree / "broken")
    sources = open_sources([str(tree)])
    assert [str(Path(n).relative_to(tree)) for n in sources.names] == [
        "a.txt", "b.txt", "sub/kept.log", "sub/z",
    ]  # fmt: skip
    assert sources.warnings == [
        f"Skipped in {tree}: 1 × broken link (the first: {tree}/broken), 1 × binary file (binary)."
    ]
    assert text_of(sources) == "a.txt\nb.txt\nsub/kept.log\nsub/z\n"


def test_a_pipe_delivers_what_is_there() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        blocks = iter(open_sources(["-"], stdin=stream))
        os.write(writing, b"first")
        assert next(blocks).text == "first"
        os.write(writing, b" second\xc3")
        assert next(blocks).text == " second"
        os.write(writing, b"\xa4")
        assert next(blocks).text == "ä"
        os.close(writing)
        assert list(blocks) == []
        assert not stream.closed


@pytest.mark.parametrize("buffering", [0, -1])
def test_a_pipe_that_does_not_block_is_waited_for_without_work(buffering: int) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)

    def write() -> None:
        for text in (b"first\n", b"second\n"):
            time.sleep(0.2)
            os.write(writing, text)
        os.close(writing)

    thread = threading.Thread(target=write)
    thread.start()
    with open(reading, "rb", buffering=buffering) as file:
        blocks = [block.text for block in open_sources([NamedStream("pipe", file)])]
    thread.join()
    assert [text for text in blocks if text] == ["first\n", "second\n"]
    assert blocks.count("") < 10


def test_a_named_pipe_as_source(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_text("through a pipe"))
    writer.start()
    sources = open_sources([str(path)])
    assert sources.size_hint() is None
    assert text_of(sources) == "through a pipe"
    assert sources.size_hint() == 14
    writer.join()


def test_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lxml")
    page = tmp_path / "a.html"
    page.write_text(
        "<html><head><style>p{}</style></head><p>One\n two</p><p>Three &amp; <b>4</b></p>"
    )
    assert text_of(open_sources([str(page)])) == "One two\n\nThree & 4\n"
    assert text_of(open_sources([str(page)], plain=True)).startswith("<html>")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SourceError, match=r"kvstream\[documents\]"):
        open_sources([str(page)])


def test_compressed_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lxml")
    markup = b"<!doctype html><h2>The Gate</h2><p>One &amp; two</p>" + b"<p>It rained.</p>" * 20_000
    plain = text_of(open_sources(["-"], stdin=io.BytesIO(markup)))
    assert plain.startswith("The Gate\n\nOne & two\n\nIt rained.")
    page = tmp_path / "a.html.gz"
    page.write_bytes(gzip.compress(markup))
    assert text_of(open_sources([str(page)])) == plain
    assert text_of(open_sources(["-"], stdin=io.BytesIO(bz2.compress(markup)))) == plain
    assert text_of(open_sources([str(page)], plain=True)) == markup.decode()
    with pytest.raises(SourceError, match="unpacks to more than 100,000 bytes"):
        text_of(open_sources([str(page)], max_unpacked=100_000))
    page.write_bytes(gzip.compress(markup)[:-100])
    cut = open_sources([str(page)])
    assert plain.startswith(text_of(cut).rstrip("\n"))
    assert "ends in the middle of its gzip data" in cut.warnings[0]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SourceError, match=r"kvstream\[documents\]"):
        open_sources([str(page)])


def html_text(folder: Path, page: bytes) -> str:
    (folder / "a.html").write_bytes(page)
    return text_of(open_sources([str(folder / "a.html")]))


def test_html_shows_no_comments_and_keeps_what_is_preformatted(tmp_path: Path) -> None:
    pytest.importorskip("lxml")
    page = b"<p>It  <!-- not\n this -->rained.<pre>a  b \n  c</pre><svg><p>x</p></svg>"
    assert html_text(tmp_path, page) == "It rained.\na  b\n  c\n"


@pytest.mark.parametrize(
    "page", [b"<div>x" * 20_000, b"<p>x</p>" * 20_000, b"x<pre>" + b" " * 10**5]
)
def test_html_takes_time_that_grows_with_the_page_alone(tmp_path: Path, page: bytes) -> None:
    """Manual fuzzing found pages that took minutes. They take tenths of a second now."""
    pytest.importorskip("lxml")
    began = time.process_time()
    assert html_text(tmp_path, page).count("x") == page.count(b"x")
    assert time.process_time() - began < 10


def test_documents_from_a_pipe_are_refused() -> None:
    with pytest.raises(SourceError, match="name the file"):
        text_of(open_sources(["-"], stdin=io.BytesIO(b"%PDF-1.7 ...")))


def test_damaged_pdf(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2")
    path = tmp_path / "a"
    path.write_bytes(b"%PDF-1.7\nnothing")
    with pytest.raises(SourceError, match="PDF"):
        text_of(open_sources([str(path)]))


def test_a_bomb_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(b"a" * 5_000_000))
    sources = open_sources([str(path)], max_unpacked=1_000_000)
    with pytest.raises(SourceError, match=r"more than 1,000,000 bytes.*--max-unpacked"):
        text_of(sources)


def test_size_hint_of_a_packed_file_follows_the_reading(tmp_path: Path) -> None:
    text = "".join(f"line {i} of a log\n" for i in range(60_000)).encode()
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(text))
    sources = open_sources([str(path)])
    hints = [sources.size_hint() for _ in sources]
    assert all(hint is not None and hint > 0 for hint in hints)
    assert hints[-1] == pytest.approx(len(text), rel=0.2)


def test_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("x")
    sources = open_sources([str(path)])
    assert text_of(sources) == "x"
    with pytest.raises(UsageError, match="once"):
        iter(sources)


def test_a_fifo_for_an_ignore_file_and_folders_without_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".gitignore")
    (tmp_path / "z.txt").write_text("And more.")
    deep = str(tmp_path)
    while len(deep) < 3900:
        deep += "/d"
        os.mkdir(deep)
    Path(deep, "a.txt").write_text("Text.\n")
    assert text_of(open_sources([str(tmp_path)])) == "Text.\nAnd more."
    while deep != str(tmp_path):  # the cleanup of pytest may not reach so deep
        for entry in os.listdir(deep):
            os.unlink(f"{deep}/{entry}")
        os.rmdir(deep)
        deep = os.path.dirname(deep)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark(tmp_path: Path, encoding: str) -> None:
    text = "It rained in Köln.\r\nAnd more’.\n" * 9
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding))
    for place, stdin in ((str(path), None), ("-", io.BytesIO(path.read_bytes()))):
        sources = open_sources([place], stdin=stdin)
        assert text_of(sources) == text
        name = "standard input" if stdin else place
        assert sources.warnings == [f"{name} is not UTF-8; it was read as {encoding}."]
    path.write_bytes(b"a\0b\0\1\0c\0d\0e\0f\0g\0")
    with pytest.raises(SourceError, match="is binary"):
        open_sources([str(path)])


def test_an_unreadable_ignore_file_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / ".gitignore").write_text("*.txt\n")
    (tmp_path / "z.txt").write_text("And more.")
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=PermissionError))
    sources = open_sources([str(tmp_path)])
    assert text_of(sources) == "And more."
    assert f"(the first: {tmp_path}/.gitignore)" in sources.warnings[0]


def ignoring(folder: Path, pattern: str, names: list[str]) -> list[str]:
    """Return the names of the files that are read with this pattern in .gitignore."""
    (folder / ".gitignore").write_text(pattern + "\n")
    for name in names:
        (folder / name).write_text("It rained.")
    return [Path(name).name for name in open_sources([str(folder)]).names]


@pytest.mark.parametrize("pattern", ["*a" * 30 + "*b", "[a-z]*" * 30 + "!", "**/" * 5 + "*a" * 30])
def test_ignore_patterns_take_no_time(tmp_path: Path, pattern: str) -> None:
    began = time.perf_counter()
    names = ["a" * 200, "z.txt"]
    assert "z.txt" in ignoring(tmp_path, pattern, names)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("pattern", ["[z-a]", "\\", "[[:nope:]]x", "["])
def test_what_is_no_pattern_ignores_nothing_and_hides_no_other(
    tmp_path: Path, pattern: str
) -> None:
    assert ignoring(tmp_path, f"{pattern}\n*.log", ["a.txt", "b.log"]) == ["a.txt"]


def test_patterns_mean_what_they_mean_in_git(tmp_path: Path) -> None:
    names = ["a.txt", "ab.txt", "c1", "c2", "cx", "keep.log", "x.log", "ä.md"]
    patterns = "a?.*\nc[!0-9]\n*.log\n!keep.log\n# no\n?.md"
    assert ignoring(tmp_path, patterns, names) == ["a.txt", "c1", "c2", "keep.log"]
    (tmp_path / "b").mkdir()
    read = ignoring(tmp_path, "\ufeff*\n!*/\n!*.txt", ["a.txt", "b/c.txt", "b/d.log", "e.log"])
    assert read == ["a.txt", "ab.txt", "c.txt"]
    assert ignoring(tmp_path, "a.txt\t\n!b\t \n*.log  \nc*", []) == ["a.txt", "ab.txt", "ä.md"]


def test_patterns_reach_a_folder_by_any_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "real" / "inside"
    (tmp_path / "real" / ".git").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    inside.mkdir()
    (tmp_path / "real" / ".gitignore").write_text("/inside/b.txt\n")
    for name in ("a.txt", "b.txt"):
        (inside / name).write_text("It rained.")
    monkeypatch.chdir(inside)
    for path in (inside, tmp_path / "link" / "inside", "../inside", "."):
        assert [Path(name).name for name in open_sources([str(path)]).names] == ["a.txt"]


def test_places_on_no_disk_are_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("It rained.")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "up").write_text("never")
    (tmp_path / "up").write_text("never")
    known = {(tmp_path / name).stat().st_ino for name in ("made", "up")}
    monkeypatch.setattr(pseudo, "kind", lambda s: "sysfs" if s.st_ino in known else None)
    sources = open_sources([str(tmp_path)])
    assert text_of(sources) == "It rained."
    assert sources.warnings == [
        f"Skipped in {tmp_path}: 1 × folder on no disk (sysfs), 1 × file on no disk (sysfs)."
    ]


def test_the_folder_of_the_kernel_is_refused() -> None:
    if not Path("/sys/kernel").is_dir() or not pseudo.kind(Path("/sys/kernel").stat()):
        pytest.skip("needs a /sys of Linux")
    told = r"no text files \(skipped: .*1 × folder on no disk \(sysfs\)"
    with pytest.raises(SourceError, match=told):
        open_sources(["/sys/kernel"])
    assert "Linux" in text_of(open_sources(["/proc/version"]))


GERMAN = "Der Bürgermeister grüßt die Königin, und die Mädchen hören zu. " * 40
WORDS = {
    "cp1252": GERMAN,
    "cp1251": "Все счастливые семьи похожи друг на друга. " * 40,
    "cp932": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 40,
    "gb18030": "人人生而自由,在尊严和权利上一律平等。" * 40,
    "utf-16-le": "\ufeffIt rained. Ünd 漢字 😀. " * 40,
    "utf-16-be": "\ufeffIt rained. Ünd 漢字 😀. " * 40,
    "utf-32-le": "\ufeffIt rained. " * 40,
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cp932", "灯台守の手紙。\n机の上の手紙を読む。\n"),
        ("euc_jp", "お知らせ\n会議は明日の午前十時に始まります。\n"),
        ("cp949", "안녕하세요 ㅋㅋㅋㅋㅋㅋㅋㅋ 회의는 내일이에요 ㅠㅠㅠㅠ\n" * 9),
        ("cp1255", "המגדלור האיר את הלילה.\n" * 20),
        ("cp1256", "أضاءت المنارة الليل ودخلت السفينة.\n" * 20),
        ("cp874", "ผู้ดูแลประภาคารจุดตะเกียง\n" * 20),
        ("cp1252", "Två små åar på ön.\n"),
        ("gb18030", "钥匙藏在磨坊旁边的石头下面。第二年没有人敢去那里寻找它。\n"),
    ],
)
def test_short_texts_and_those_of_few_letters_beyond_them(name: str, text: str) -> None:
    assert encoding_of(text.encode(name)) == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gb18030", "人人生而自由，在尊严和权利上一律平等。" * 2),
        ("big5", "今天天氣很好，安娜去學校上課。她在圖書館裡看了一本書。"),
        ("cp949", "안나는 아침에 학교에 갔다가 저녁에 돌아왔습니다."),
        ("cp1251", "Все счастливые семьи похожи друг на друга."),
    ],
)
def test_letters_are_known_behind_ascii_and_if_the_sample_ends_in_one(name: str, text: str) -> None:
    ascii = b"A line of a manual.\n"
    lines = (ascii + f"{text}\n".encode(name)) * 900
    assert encoding_of(ascii * 999 + text.encode(name)) == name
    assert {encoding_of(lines[: len(lines) // 2 - cut]) for cut in range(9)} == {name}


@pytest.mark.parametrize("size", [9, 999])
def test_korean_of_7_bits(size: int) -> None:
    text = "열쇠는 돌 아래에 있다.\nread on\n" * 9
    data = text.encode("iso2022_kr")
    cuts = [data[at : at + size] for at in range(0, len(data), size)]
    sources = open_sources(["-"], stdin=Drip(cuts))
    assert text_of(sources) == text
    assert sources.warnings == ["standard input is not UTF-8; it was read as iso2022_kr."]


def test_japanese_of_7_bits(tmp_path: Path) -> None:
    text = "灯台守の手紙\nread on\n机の上\n" * 7
    data = text.encode("iso2022_jp")
    (tmp_path / "a").write_bytes(data)
    for sources in (
        open_sources([str(tmp_path / "a")]),
        open_sources(["-"], stdin=Drip([data[:200], data[200:213], data[213:]])),
    ):
        ends = [(block, block.offsets()) for block in sources]
        assert "".join(block.text for block, _ in ends) == text
        assert ends[-1][1][-1] == len(data)
        begin, whole = ends[0][1][text.index("手紙") : text.index("紙") + 2][[0, -1]]
        assert (b"\x1b$B" + data[begin:whole]).decode("iso2022_jp") == "手紙"


def test_damaged_or_slow_japanese_of_7_bits() -> None:
    data = "灯台守の手紙\nread on\n机の上\n".encode("iso2022_jp")
    begin = data.index(b"\x1b(B")
    for damage in (b"\x94", b"\0", b"\x1b"):
        damaged = data[: begin + 2] + damage + data[begin + 3 :]
        assert text_of(open_sources(["-"], stdin=Drip([damaged]))).startswith("灯台守の手紙")
    cuts = [data[:begin], data[begin : begin + 3], data[begin + 3 :]]
    blocks = list(open_sources(["-"], stdin=Drip(cuts)))
    assert blocks[-1].offsets()[-1] == len(data)


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("pipe", [False, True])
def test_other_encodings_are_known_and_told(tmp_path: Path, name: str, pipe: bool) -> None:
    data = WORDS[name].encode(name)
    path = tmp_path / "a"
    path.write_bytes(data)
    cuts = [data[:2000], *(data[i : i + 7] for i in range(2000, len(data), 7))]
    sources = open_sources(["-"], stdin=Drip(cuts)) if pipe else open_sources([str(path)])
    blocks = list(sources)
    assert "".join(block.text for block in blocks) == WORDS[name].removeprefix("\ufeff")
    for block in blocks:
        for char, a, b in zip(block.text, block.offsets(), block.offsets()[1:], strict=False):
            assert data[a:b].decode(name) == char
    shown = "standard input" if pipe else str(path)
    assert sources.warnings == [f"{shown} is not UTF-8; it was read as {name}."]
    if not pipe:
        assert text_of(open_sources([str(path)], plain=True)) == data.decode(
            "utf-8", "replace"
        ).replace("\0", "")


@pytest.mark.parametrize(
    ("begins", "text", "warned"),
    [("Ein Café", "Ein Café", False), ("Ein Café ist ", "Ein Caf\ufffd ist ", True)],
)
def test_a_byte_before_the_encoding_is_known_is_not_lost(
    begins: str, text: str, warned: bool
) -> None:
    """A pipe whose first letter with an accent is too little for a guess."""
    pieces = [b"Plain text. ", begins.encode("cp1252"), (" " + GERMAN).encode("cp1252")]
    sources = open_sources(["-"], stdin=Drip(pieces))
    blocks = list(sources)
    assert "".join(block.text for block in blocks) == "Plain text. " + text + " " + GERMAN
    for block, after in pairwise(blocks):
        assert block.offsets()[-1] == after.start
    assert blocks[-1].offsets()[-1] == sources.bytes_read == len(b"".join(pieces))
    *first, last = sources.warnings
    assert last == "standard input is not UTF-8; it was read as cp1252."
    assert [told.endswith("at byte 19.") for told in first] == [True] * warned


def test_a_few_words_of_latin_1(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("Ein Café in Köln.\n".encode("latin-1"))
    assert text_of(open_sources([str(tmp_path / "a")])) == "Ein Café in Köln.\n"


def test_encodings_in_a_folder_are_counted(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(GERMAN.encode("cp1252"))
    (tmp_path / "d").write_bytes("Es regnet.".encode("utf-16"))
    sources = open_sources([str(tmp_path)])
    text_of(sources)
    assert sources.warnings == [
        "4 files are not UTF-8; they were read as: 3 × cp1252, 1 × utf-16-le."
    ]


def test_damage_in_other_encodings_is_replaced_in_its_place(tmp_path: Path) -> None:
    data = "ab漢".encode("utf-16") + b"\x00\xd8" + "cd".encode("utf-16-le") + b"e"
    path = tmp_path / "a"
    path.write_bytes(data)
    sources = open_sources([str(path)])
    blocks = list(sources)
    assert "".join(block.text for block in blocks) == "ab漢\ufffdcd\ufffd"
    assert np.concatenate([block.offsets()[:-1] for block in blocks]).tolist() == [
        2, 4, 6, 8, 10, 12, 14,
    ]  # fmt: skip
    assert sources.warnings[0] == (
        f"{path}: 3 bytes are not UTF-16-LE and were replaced, the first at byte 8."
    )


@given(
    st.binary(max_size=60) | st.text(max_size=30).map(lambda t: t.encode("utf-16-le")),
    st.lists(st.integers(0, 60)),
    st.sampled_from(["utf-16-le", "utf-32-be", "cp1252", "cp932", "gb18030", "big5"]),
)
def test_other_decoders_keep_offsets(data: bytes, cuts: list[int], name: str) -> None:
    decoder = OtherDecoder(0, 0, name)
    at = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    blocks = [decoder.decode(data[a:b]) for a, b in pairwise(at)]
    blocks.append(decoder.decode(b"", final=True))
    found = [block for block in blocks if block is not None]
    end = None
    for block in found:
        offsets = block.offsets()
        assert len(offsets) == len(block.text) + 1
        assert (np.diff(offsets) >= 0).all()
        assert end is None or int(offsets[0]) == end
        end = int(offsets[-1])
    assert end in (None, len(data))


def damaged_archive() -> bytes:
    """Return a gzip file with 600,000 bytes of text, followed by damage."""
    text = random.Random(0).randbytes(300_000).hex().encode()
    return gzip.compress(text) + b"\x1f\x8b" + b"\xff" * 200


def test_damaged_archives_in_a_folder_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(damaged_archive())
    (tmp_path / "b.txt.gz").write_bytes(b"\x1f\x8b\x08\x00" + b"\xff" * 200)  # all damaged
    (tmp_path / "c.txt").write_text("Ada hid the letter.\n")
    sources = open_sources([str(tmp_path)])
    text = text_of(sources)
    assert text.endswith("\nAda hid the letter.\n")
    assert text.index("\n") == 600_000
    [skipped, partly] = sources.warnings
    assert skipped == f"Skipped in {tmp_path}: 1 × damaged file (b.txt.gz)."
    name = f"{tmp_path}/a.txt.gz"
    assert partly.startswith(
        f"Only the first 600,000 bytes of text of {name} were read: {name} is damaged: its gzip "
        "data cannot be unpacked after 600,000 bytes ("
    )
    with pytest.raises(SourceError, match="is damaged"):
        list(open_sources([name]))


def test_a_file_that_is_removed_from_a_folder_while_it_is_read_is_told(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.txt" for name in "abc"]
    for path in paths:
        path.write_text(f"It rained on {path.stem}.\n")
    sources = open_sources([str(tmp_path)])
    blocks = iter(sources)
    texts = [next(blocks).text]
    paths[1].unlink()
    texts += [block.text for block in blocks]
    assert "".join(texts) == "It rained on a.\nIt rained on c.\n"
    [told] = sources.warnings
    assert told == (
        f"Skipped in {tmp_path}: 1 × document that cannot be read (the first: {paths[1]} cannot "
        "be read: No such file or directory.)"
    )
    sources = open_sources([str(path) for path in (paths[0], paths[2])])
    paths[2].unlink()
    with pytest.raises(SourceError, match=r"c\.txt cannot be read"):
        list(sources)


def test_many_damaged_archives_in_a_folder_are_counted(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.gz").write_bytes(damaged_archive())
    sources = open_sources([str(tmp_path)])
    text_of(sources)
    [told] = sources.warnings
    assert told.startswith(
        f"4 files in {tmp_path} were read only in part (the first: {tmp_path}/a.gz is damaged: its "
        "gzip data cannot be unpacked after 600,000 bytes "
    )


def test_sources_are_opened_again_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<p>One.</p>")
    sources = open_sources([str(path)], plain=True)
    first = "".join(block.text for block in sources)
    assert "".join(block.text for block in sources.again()) == first == "<p>One.</p>"


def test_standard_input_is_not_opened_again() -> None:
    sources = open_sources(["-"], stdin=io.BytesIO(b"One."))
    with pytest.raises(SourceError, match="only once; write it to a file"):
        sources.again()


@pytest.mark.parametrize("lines", [0, 3, 40, 900])
def test_latin_1_is_found_behind_a_beginning_in_ascii(lines: int, tmp_path: Path) -> None:
    path = tmp_path / "letters.txt"
    text = "a plain line of words.\n" * lines + "Z\u00fcrich caf\u00e9, a plain line of words\n" * 3
    path.write_bytes(text.encode("latin-1"))
    assert "".join(block.text for block in open_sources([str(path)])) == text


@pytest.mark.parametrize("place", [8, 130, 5200])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_folder_skips_a_binary_file_whose_first_nul_comes_late(
    tmp_path: Path, place: int, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "a.txt").write_text("Some text.\n")
    data = b"x" * place + b"\0" + b"x" * 4000
    (tmp_path / "b.dat").write_bytes(pack(data))
    sources = open_sources([str(tmp_path)])
    assert sources.warnings == [f"Skipped in {tmp_path}: 1 × binary file (b.dat)."]
    assert text_of(sources) == "Some text.\n"
    with pytest.raises(SourceError, match=rf"is binary \(a NUL at byte {place:,}\)"):
        open_sources([str(tmp_path / "b.dat")])


def test_a_memory_file_as_a_source_is_told_its_option(tmp_path: Path) -> None:
    path = tmp_path / "book.kvs"
    path.write_bytes(b"x" * 8 + bytes(8))
    with pytest.raises(SourceError, match=r"book\.kvs is no text; .* with --memory .*book\.kvs\.$"):
        open_sources([str(path)])


LATE = "A plain opening without any special letters. " * 40 + "Élodie ging über die Straße. " * 60


@pytest.mark.parametrize("form", ["pipe", "gz", "xz", "file"])
@pytest.mark.parametrize("before", [1, 60])
def test_an_encoding_is_guessed_by_the_first_letters_that_are_not_ascii(
    tmp_path: Path, form: str, before: int
) -> None:
    """A pipe may return little at first, and a book may begin with a lot of ASCII."""
    import gzip
    import lzma

    text = LATE[:1800] * before + LATE
    data = text.encode("cp1252")
    path = tmp_path / "text"
    if form == "pipe":
        pieces = [data[i : i + 500] for i in range(0, len(data), 500)]
        sources = open_sources(["-"], stdin=Drip(pieces))
    else:
        packed = {"gz": gzip.compress, "xz": lzma.compress}.get(form, bytes)
        path.write_bytes(packed(data))
        sources = open_sources([str(path)])
    assert text_of(sources) == text
    assert any("cp1252" in warning.lower() for warning in sources.warnings)


def test_the_encoding_that_a_page_names_late_is_its_own() -> None:
    pytest.importorskip("lxml", reason="needs the extra documents")
    page = (
        "<!doctype html><html><head><title>A page about places that people like to see</title>"
        + "<link rel=stylesheet href=a.css>" * 9
        + "<meta charset=iso-8859-1></head><body><p>"
        + "Élodie ging über die Straße. " * 20
        + "</body></html>"
    )
    data = page.encode("cp1252")
    found = text_of(open_sources(["-"], stdin=Drip([data[:200], data[200:900], data[900:]])))
    assert "\ufffd" not in found
    assert "Élodie ging über" in found


@pytest.mark.parametrize("name", ["undefined", "idna", "punycode", "unicode_escape"])
def test_a_codec_that_no_page_is_in_is_not_believed(name: str) -> None:
    pytest.importorskip("lxml", reason="needs the extra documents")
    page = f"<!doctype html><meta charset={name}><p>A mill stood here. \\u0041</p>".encode()
    assert "A mill stood here. \\u0041" in text_of(open_sources(["-"], stdin=Drip([page])))


def test_a_file_that_is_named_twice_or_cut_while_it_is_read_is_told(tmp_path: Path) -> None:
    path, link = tmp_path / "a.txt", tmp_path / "link"
    path.write_text("A mill stood here.\n" * 100_000)
    link.symlink_to(path)
    assert open_sources([str(tmp_path)]).warnings == []
    assert open_sources([str(tmp_path), str(link)]).warnings == [
        f"{path} and {link} are one file, which is read 2 times."
    ]
    sources = open_sources([str(path)])
    blocks = iter(sources)
    next(blocks)
    os.truncate(path, 10)
    list(blocks)
    [told] = sources.warnings
    assert f"{path} was cut while it was read: of 1,900,000 bytes, " in told


def test_links_that_lead_nowhere_are_named_and_hide_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A mill stood here.")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "moved").symlink_to(tmp_path / "nowhere")
    sources = open_sources([str(tmp_path)])
    assert "A mill stood here." in text_of(sources)
    told = f"Skipped in {tmp_path}: 2 × broken link (the first: {tmp_path}/loop)."
    assert sources.warnings == [told]


def test_a_link_to_a_file_of_the_folder_is_not_read_a_second_time(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for place in (folder / "app-1.log", folder / ".hidden.log", tmp_path / "other.log"):
        place.write_text(f"{place.name}\n")
    for name, target in {
        "app": "app-1.log",
        "hidden": ".hidden.log",
        "other": "../other.log",
    }.items():
        (folder / name).symlink_to(target)
    sources = open_sources([str(folder)])
    assert text_of(sources) == "app-1.log\n.hidden.log\nother.log\n"
    assert sources.warnings == []


def test_links_to_other_folders_are_counted(tmp_path: Path) -> None:
    for name in ("here/sub", "there"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.txt").write_text("A mill stood here.")
    here = tmp_path / "here"
    for name, target in (("up", tmp_path), ("in", here / "sub"), ("out", tmp_path / "there")):
        (here / name).symlink_to(target)
    assert open_sources([str(here)]).warnings == [f"Skipped in {here}: 1 × link to another folder."]


GOOD = "aus Köln, schöne Straße – “ja”\n"


def test_a_cut_character_does_not_decide_about_what_follows() -> None:
    """Logs of containers have cut characters, because lines are cut by bytes."""
    plain = b"a line of ASCII\n" * 40
    pieces = [plain, b"cut \xe2\x80\n", plain, *[GOOD.encode()] * 50]
    found = text_of(open_sources(["-"], stdin=Drip(list(pieces))))
    assert found.endswith(GOOD * 50)
    marked = [plain, b"\xff\xfe binary\n", plain]
    assert text_of(open_sources(["-"], stdin=Drip(marked))).endswith(plain.decode())


def test_damage_before_the_letters_of_a_file_does_not_make_it_another_encoding(
    tmp_path: Path,
) -> None:
    path = tmp_path / "long.txt"
    plain = b"a line of ASCII\n"
    path.write_bytes(plain * 4500 + b"cut \xe2\x80\n" + plain * 7000 + GOOD.encode() * 500)
    assert text_of(open_sources([str(path)])).endswith(GOOD * 500)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="devices of Unix")
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full", "/dev/urandom"])
def test_a_device_without_end_is_refused(tmp_path: Path, device: str) -> None:
    link = tmp_path / "link"
    link.symlink_to(device)
    with open(device, "rb", buffering=0) as file:
        for given_ in (device, str(link), f"/dev/fd/{file.fileno()}", NamedStream("-", file)):
            with pytest.raises(SourceError, match="is a device that may never end"):
                open_sources([given_])


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="descriptors of Unix")
def test_pipes_terminals_and_the_null_device_are_read() -> None:
    begin, end = os.pipe()
    os.write(end, b"Ada hid the letter.\n")
    os.close(end)
    assert text_of(open_sources([f"/dev/fd/{begin}"])) == "Ada hid the letter.\n"
    os.close(begin)
    ours, terminal = os.openpty()
    os.write(ours, b"Ada hid it.\n\x04")
    with open(terminal, "rb", buffering=0) as file:
        assert text_of(open_sources([NamedStream("-", file)])) == "Ada hid it.\n"
    os.close(ours)
    with pytest.raises(SourceError, match="Nothing to read"):
        text_of(open_sources([os.devnull]))


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("iso8859_2", "Klíč ležel ukrytý za kamenem. Nikdo však nevěděl, že má chuť odejít."),
        ("iso8859_2", "Klucz leżał ukryty za kamieniem. Nikt nie wiedział, że źródło wyschło."),
        ("cp1250", "A kulcs a kő mögött volt elrejtve. Senki sem tudta, hogy már őnála van."),
        ("cp1250", "Ključ je bio skriven iza kamena. Začuđeno je upitao gdje je."),
        ("cp1254", "Anahtar taşın arkasında, kapının yanında gizliydi. Şaşırdı."),
        ("cp1257", "Raktas buvo paslėptas už akmens prie durų. Jis paklausė, kur jis."),
        ("cp850", "Der Schlüssel lag hinter dem Stein neben der Tür. Größe zählt."),
        ("cp1252", "La clé était cachée derrière la pierre. « Où est-elle ? » — à côté, 5 €."),
        ("cp1255", "המפתח הוסתר מאחורי האבן ליד הדלת. כולם הלכו הביתה לישון."),
        ("koi8_u", "Ключ був захований за каменем біля дверей. Є ще її ґанок."),
        ("cp866", "Ключ был спрятан за камнем у двери. Он спросил, где он."),
    ],
)
def test_short_texts_in_old_encodings(tmp_path: Path, encoding: str, text: str) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    sources = open_sources([str(tmp_path / "a.txt")])
    assert "".join(block.text for block in sources) == text
