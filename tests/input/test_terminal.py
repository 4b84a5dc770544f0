"""Control sequences and NULs are removed before anything else looks at a text."""

from __future__ import annotations

import io
import random
import time
from pathlib import Path

import pytest

from kvstream.errors import SourceError
from kvstream.input import terminal
from kvstream.input.blocks import BlockDecoder, TextBlock
from kvstream.input.controls import without_controls
from kvstream.input.sources import open_sources
from kvstream.input.terminal import ControlFilter

SEQUENCES = {
    "color": "\x1b[0m\x1b[1;31m",
    "color with colons": "\x1b[38:2::255:0:0m",
    "cursor": "\x1b[2J\x1b[H\x1b[10;20f\x1b[?25l\x1b[1 q",
    "8-bit CSI": "\x9b31m\x9bK\x9b?7h",
    "title": "\x1b]0;a title: of 3 words\x07",
    "title with ST": "\x1b]2;title\x1b\\",
    "title of screen": "\x1bktitle\x1b\\",
    "title with 8-bit codes": "\x9d0;title\x9c",
    "link": "\x1b]8;;https://a.example/b\x1b\\",
    "picture": "\x1b]1337;File=inline=1:" + "QUJD" * 3000 + "\x07",
    "device control string": "\x1bP+q544e\x1b\\\x901$r0m\x9c",
    "application program command": "\x1b_Gi=1,a=T;AAAA\x1b\\\x9fx\x9c",
    "privacy message, start of string": "\x1b^secret\x1b\\\x1bXanything\x1b\\",
    "character sets": "\x1b(B\x1b)0\x1b%G\x1b*A\x0e\x0f\x1bn\x1b~",
    "two characters": "\x1b7\x1b8\x1bM\x1b=\x1b>\x1bc\x1bE",
    "line size": "\x1b#8\x1b F",
    "bell": "\x07",
    "soft hyphen": "\xad",
    "color of rsyslog": "#033[1;31m#033[0m",
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_word_is_whole_without_the_sequence_inside_it(name: str) -> None:
    sequence = SEQUENCES[name]
    assert without_controls(f"x ERR{sequence}OR y\n") == "x ERROR y\n"
    assert without_controls(f"{sequence}ERROR\n{sequence}") == "ERROR\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a\x1b]0;never ended\nERROR b\n\x1b]0;ended\x07c", "a0;never ended\nERROR b\nc"),
        ("a\x1bPnever\r\nERROR b\x1b\\c", "anever\r\nERROR bc"),
        ("a\x1b[31", "a"),
        ("a\x1b", "a"),
        ("a\x1b\nb", "a\nb"),
        (
            "\x93quoted\x94, don\x92t, \x9bso\x9b and \x9d",
            "\x93quoted\x94, don\x92t, \x9bso\x9b and \x9d",
        ),
        ("one\x85two\ttabs\x0bkept", "one\x85two\ttabs\x0bkept"),
    ],
)
def test_what_is_no_sequence_stays(text: str, left: str) -> None:
    assert without_controls(text) == left


def read(data: bytes, step: int, **options: bool) -> tuple[str, bytes, list[str]]:
    """Return the text of a pipe that gives `step` bytes at once, the bytes that its characters
    stand for, and the notes."""

    class Steps(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return super().read1(min(size or step, step))

        def read(self, size: int | None = -1, /) -> bytes:
            return self.read1(size)

    sources = open_sources(["-"], stdin=Steps(data), **options)
    text, spans = "", b""
    for block in sources:
        offsets = block.offsets()
        assert len(offsets) == len(block.text) + 1
        for char, start in zip(block.text, offsets, strict=False):
            width = len(char.encode("utf-8", "surrogatepass"))
            spans += data[int(start) : int(start) + width]
        text += block.text
    return text, spans, sources.notes


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
def test_sequences_across_blocks_are_removed_and_offsets_stay_right(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(step)
    words = ["ERROR", "ü", "漢字", "\n", " ", "day 3", "x\r\n", *SEQUENCES.values()]
    words.remove("\x9b31m\x9bK\x9b?7h")
    words.remove(SEQUENCES["picture"])  # a long one: one in each text
    for _ in range(min(step, 2) + 1):
        chosen = rng.choices(words, k=30)
        chosen[rng.randrange(30)] = SEQUENCES["picture"]
        text = "".join(chosen)
        got, spans, _ = read(text.encode(), step)
        assert got == without_controls(text)
        assert spans.decode() == got, "each character is at its offset"


@pytest.mark.parametrize("step", [1, 5, 100_000])
def test_a_move_to_a_column_parts_two_words(step: int) -> None:
    data = b"\x1b[5Cship\x1b[20Gport\x1b[40Gcrew\n\x1b[1mGull\x1b[0m\x1b[12COslo \x1b[3C9\n"
    assert read(data, step)[0] == "ship port crew\nGull Oslo 9\n"


@pytest.mark.parametrize("step", [1, 5, 100_000])
def test_codes_of_a_terminal_of_8_bits_need_not_be_utf8(step: int) -> None:
    data = b"x ERR\x9b0m\x9b31mOR y\n\x9b2Jday 4\n\x9d0;title\x07z\n"
    text, spans, _ = read(data, step)
    if step > 20:
        assert text == "x ERROR y\nday 4\nz\n"
        assert spans.decode() == text
    assert text.startswith("x ERROR y\nday 4\n")


def test_a_sequence_that_never_ends_takes_no_memory_and_no_other_line() -> None:
    data = b"one\n\x1b]52;" + b"A" * 300_000 + b"\ntwo\n" + b"\x1b[" + b"1;" * 100_000 + b"m\nend\n"
    text, *_ = read(data, 1000)
    assert text.startswith("one\n\ntwo\n")
    assert text.endswith("\nend\n")
    assert terminal.LONGEST <= 4096


@pytest.mark.parametrize("step", [1, 7, 64, 4096, 65_536])
def test_files_in_base64_are_left_out_and_counted(step: int) -> None:
    url = "data:image/png;name=a.png;base64,"
    short = "data: d data:text/plain;base64,SGVsbG8= dat"
    text = f"![p]({url}{'QUJD' * (20 if step < 64 else 40_000)}) x\n{short}\n{url}{'QUJD' * 30}=="
    got, spans, notes = read(text.encode(), step)
    assert got == f"![p]() x\n{short}\n"
    assert spans.decode() == got
    assert [note.split(": ")[1] for note in notes] == ["left out 2 × file in base64."]


HOLE = "\0" * 70_000


@pytest.mark.parametrize("step", [1000, 4096, 65_536])
@pytest.mark.parametrize("hole", ["\0", "\0" * 15, "\0" * 16, "\0" * 9000, HOLE, HOLE * 3])
@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("", "b 1\nc 1\n"),
        ("a 1\n", "b 1\nc 1\n"),
        ("a 1\r\n", "\r\nb 1\r\n"),
        ("a 1\nb 1\n", ""),
        ("a 1\n" * 5000, "b 1\n"),
    ],
)
def test_nuls_are_skipped_and_counted_once(before: str, behind: str, hole: str, step: int) -> None:
    text, spans, notes = read((before + hole + behind).encode(), step)
    assert text == before + behind
    assert spans.decode() == text
    count = f"{len(hole):,} NUL{'s' * (len(hole) > 1)}"
    assert notes == [f"standard input: {count} skipped, the first at byte {len(before):,}."]


def test_a_hole_in_a_line_ends_it_and_a_few_nuls_do_not() -> None:
    for step in (64, 1000, 65_536):
        data = b"one was cut" + bytes(5000) + b"ERROR two\nth" + bytes(3) + b"ree\n"
        assert read(data, step)[0] == "one was cut\nERROR two\nthree\n"


def test_each_line_may_have_a_nul() -> None:
    for data in (b"\0one\n\0two\n", b"one\0\ntwo\0\n", b"o\0ne\nt\0wo\n", b"one\r\0\ntwo\r\n"):
        assert read(data, 4)[0].replace("\r", "") == "one\ntwo\n"
    assert "2 NULs skipped" in read(b"\0one\n\0two\n", 4)[2][0]


def test_a_long_hole_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(bytes(20_000_000) + b"2025-01-01 10:00:00 ERROR one\n")
    began = time.process_time()
    assert "one" in "".join(block.text for block in open_sources([str(path)]))
    assert time.process_time() - began < 5  # 1; it was 15


@pytest.mark.parametrize("plain", [True, False])
def test_a_file_with_a_hole_is_read(tmp_path: Path, *, plain: bool) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(bytes(3_000_000) + b"2025-01-01 10:00:00 ERROR one\n" * 3)
    sources = open_sources([str(path)], plain=plain)
    assert "".join(block.text for block in sources) == "2025-01-01 10:00:00 ERROR one\n" * 3
    assert sources.notes == [f"{path}: 3,000,000 NULs skipped, the first at byte 0."]


@pytest.mark.parametrize(
    "data",
    [
        bytes(100_000),
        b"one\0two\0three\n",
        b"one\n" * 9 + b"\0\1\2\n",
        b"a.txt" + bytes(95) + b"0000644\0" + bytes(149) + b"ustar\x0000" + b"one\ntwo\n" * 100,
        bytes(5000) + b"one\0two",
    ],
    ids=["zeros", "a list", "controls", "tar", "no line"],
)
def test_binary_stays_binary(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.dat"
    path.write_bytes(data)
    with pytest.raises(SourceError, match="is binary"):
        open_sources([str(path)])
    with pytest.raises(SourceError, match="is binary"):
        read(data, 1000)


@pytest.mark.parametrize(
    "sequence",
    [b"\x9d0;title\x07", b"\x9d0;title\x1b\\", b"\x90q\x07", b"\x9d0;title\x9c", b"\x90q#\x9c",
     b"\x1b]0;title\x9c"],
)  # fmt: skip
def test_8_bit_strings_in_another_encoding_than_utf_8(tmp_path: Path, sequence: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(b"El ni\xf1o %sy la se\xf1ora.\n" % sequence * 9)
    sources = open_sources([str(tmp_path / "a.txt")])
    assert "".join(block.text for block in sources) == "El niño y la señora.\n" * 9
    assert sources.warnings == [f"{tmp_path / 'a.txt'} is not UTF-8; it was read as cp1252."]


def test_lines_that_end_in_a_carriage_return(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes("Ünd\rtwo\r\x1b[1mthree\r".encode())
    assert "".join(block.text for block in open_sources([str(path)])) == "Ünd\ntwo\nthree\n"
    for step in (1, 2, 3, 64):
        assert read(b"a\n10%\r20%\r\r\x1b[K30%\r", step)[0] == "a\n10%\n20%\n\n30%\n"
        assert read(b"one\r\ntwo\r\r\n", step)[0] == "one\r\ntwo\r\r\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("N\bN\bNA\bA_\bM\bME\b_ +\bo b_\b_c", "NAME o b_c"),
        ("\u5b57\b\b\u5b57 _\bé\bé", "\u5b57 é"),
        ("x 5%\b\b17%\b\b\b99% |\b/\b-\bok\n\b\b\b\bz", "x 99% ok\nz"),
        (r"\section" "\begin{a}", r"\section" "\begin{a}"),
    ],
)
def test_overstruck_characters_are_left_out(text: str, left: str) -> None:
    for step in (1, 3, 100):
        got, spans, _ = read(f"\bhead\n{text}\n\b\b".encode(), step)
        assert got == spans.decode() == f"\bhead\n{left}\n"


def test_a_held_back_end_of_ascii_needs_no_widths() -> None:
    """They took eight bytes for each character of the next block."""
    control, data = ControlFilter(), b"one two\r" + b"\nthree data:"
    decoder = BlockDecoder(0, 5)
    pieces = [decoder.decode(data[:8]), decoder.decode(data[8:]), TextBlock("", 5 + len(data), 0)]
    got = [control.filter(piece, final=piece is pieces[-1]) for piece in pieces if piece]
    blocks = [block for block in got if block]
    assert "".join(block.text for block in blocks).encode() == data
    assert [(block.start, block.widths) for block in blocks] == [(5, None), (12, None), (20, None)]
    assert all(block.raw == block.text.encode() for block in blocks)
