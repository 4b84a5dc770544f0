"""Counts equal those of a slow, obvious count over the same text, whatever the blocks are."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from make_documents import docx

from kvstream.api.exact import Aim, count_of
from kvstream.cli.app import run
from kvstream.cli.shared import each, exact_answers
from kvstream.exact import counting
from kvstream.exact.counting import Tally, count_words
from kvstream.exact.scopes import restrict
from kvstream.exact.units import count_units
from kvstream.exact.words import OTHER, TWINS, Window, Words, inflections
from kvstream.input.blocks import TextBlock
from kvstream.input.sources import open_sources
from kvstream.input.table_reader import NotReadError
from kvstream.tokenization.forms import spaced

FRAGMENTS = [
    "error", "Error", "ERRORS", "err", "_error", "error7", "\n", " ", "disk", "full", "é", "-",
    "disk full", "Disk\nfull", "cafe\u0301", "café", "CAFÉ", "铜", "铜钥匙", "钥匙", "'", ".",
    "x" * 50,
]  # fmt: skip
PIECES = st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join)
WORDS = st.sampled_from(
    ["error", "e", "er", "disk", "disk full", "café", "铜钥匙", "error7", "x" * 5]
)


def blocks(text: str, size: int) -> Iterator[TextBlock]:
    """Yield a text in blocks of so many characters."""
    byte = 0
    for begin in range(0, len(text), size):
        piece = text[begin : begin + size]
        yield TextBlock(piece, byte, 0)
        byte += len(piece.encode())


def test_counts_of_many_chapters_take_no_time_of_each_other() -> None:
    edges = range(0, 400_000, 10)
    tally = count_words(
        blocks("Anna saw\n\n" * 40_000, 9999), Words("Anna"), tally=Tally(edges=[*edges])
    )
    began = time.process_time()
    assert all(tally.within(edge, edge + 10) == 1 for edge in edges[:-1])
    assert time.process_time() - began < 5  # it was half a minute


def test_many_small_blocks_take_no_time_of_each_other() -> None:
    began = time.process_time()
    assert count_words(blocks("Anna\n" * 50_000, 5), Words("Anna")).count == 50_000
    assert time.process_time() - began < 10  # it was half a minute


@pytest.mark.parametrize("window", [300, 1 << 20])
def test_counts_at_pauses(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(counting, "WINDOW", window)
    pieces = ["a fuse\nfu", "", "se fuse", "", "s\n", "", "", "x" * 290, "", "\nfuse\n", "", "fuse"]
    byte, made = 0, []
    for piece in pieces:
        made.append(TextBlock(piece, byte, 0))
        byte += len(piece)
    told: list[tuple[int, int]] = []
    tally = count_words(
        made, Words("fuse"), so_far=lambda now: told.append((now.count, now.last.line))
    )
    assert told == [(1, 1), (1, 1), (2, 2), (2, 2), (3, 4)]
    assert (tally.count, tally.last.line) == (4, 5)


def obvious(text: str, words: str) -> list[re.Match[str]]:
    """Find words slowly: each place alone, by the characters around it."""
    forms = {"café": "(?:café|cafe\u0301)"}.get(words) or r"\s+".join(map(re.escape, words.split()))
    if "铜" in words:
        return list(re.finditer("\n?".join(forms), text))
    letter = r"[^\W铜钥匙]|\u0301"
    return list(re.finditer(rf"(?<!{letter})(?:{forms})(?!{letter})", text, re.IGNORECASE))


@given(text=PIECES, words=WORDS, size=st.integers(1, 400))
def test_as_an_obvious_count(text: str, words: str, size: int) -> None:
    found = obvious(text, words)
    before, counting.WINDOW = counting.WINDOW, 300
    try:
        tally = count_words(blocks(text, size), Words(words))
        lines = count_words(blocks(text, size), Words(words), lines=True)
        several = [Words(each) for each in ("disk full", "disk", words)]
        edges = [len(text.encode()) // 3]
        both = count_words(blocks(text, size), *several, tally=Tally(9, edges))
    finally:
        counting.WINDOW = before
    assert tally.count == len(found) == sum(tally.bins)
    own = [
        [match.start() for match in obvious(text, each)] for each in ("disk full", "disk", words)
    ]
    assert both.counts == [*map(len, own)]
    places = [len(text[:at].encode()) for at in own[1] + own[2]]
    assert both.between.sum() == len(places) == both.count
    if places:
        assert both.between[0] == sum(place < edges[0] for place in places)
    assert [p.line for p in both.places] == sorted(p.line for p in both.places)
    if " " not in words:
        assert lines.count == len({text.count("\n", 0, match.start()) for match in found})
    if found:
        assert tally.places
        assert tally.last is not None
        for place, match in ((tally.places[0], found[0]), (tally.last, found[-1])):
            cited = place.to_json(["a"], [0])
            assert text.encode()[cited["byte_start"] : cited["byte_end"]].decode() == match[0]
            assert cited["line_start"] == 1 + text.count("\n", 0, match.start())


ODD = [*FRAGMENTS, "dıſK", "DİSK", "\u212a", "\u017f", "\u0131", "  ", "\t", "\xa0", "\x1c", "cry",
       "cries", "CRYING", "e", "a-a", "--", "error disk full", "disk  full", "\ud800"]  # fmt: skip


@given(
    st.lists(st.sampled_from(ODD), max_size=60).map("".join),
    st.sampled_from(
        ["cry", "disk", "disk full", "error disk full", "a-a", "--", "k", "s", "e e", "error7",
         "disk cry", "café", "ſ", "ı", "İ", "cafe\u0301", "_error", "x" * 50, "铜"]
    ),
    st.booleans(), st.booleans(), st.booleans(), st.integers(0, 9), st.integers(0, 9),
)  # fmt: skip
@example("Disk\nfull", "disk full", False, False, False, 0, 0)
@example("disk\xa0 full", "disk full", False, False, True, 0, 0)
@example("cafe\u0301", "café", False, False, False, 0, 0)
def test_bytes_find_what_the_pattern_finds(
    text: str, words: str, inflected: bool, cased: bool, in_line: bool, begin: int, rest: int
) -> None:
    sought = Words(words, inflected=inflected, cased=cased, in_line=in_line)
    end = len(text) - rest
    slow = [m.span() for m in sought.pattern.finditer(text, begin) if m.start() < end]
    window = Window([text[:7], text[7:]])
    spans = sought.matches(window, begin, end)
    assert spans.tolist() == [[*span] for span in slow]
    if slow:
        assert window.spelled(spans) == Counter(text[first:last] for first, last in slow)


def test_letters_beyond_ascii_that_match_one_of_it() -> None:
    others = "".join(map(chr, range(128, sys.maxunicode + 1)))
    found = re.findall("[a-z]", others, re.IGNORECASE)
    assert found == [letter for letter in others if letter in TWINS]


def test_case_and_inflections() -> None:
    text = "Cry, cried. She cries, crying; decry CRY stopped"
    assert count_words(blocks(text, 7), Words("cry")).count == 2
    assert count_words(blocks(text, 7), Words("CRY", cased=True)).count == 1
    forms = count_words(blocks(text, 7), Words("cry", inflected=True)).forms
    assert forms == {"Cry": 1, "cried": 1, "cries": 1, "crying": 1, "CRY": 1}
    assert inflections("stop") == ["stop", "stops", "stoped", "stoping", "stopped", "stopping"]
    assert inflections("love") == ["love", "loves", "loved", "loving"]
    assert inflections("church") == ["church", "churches", "churched", "churching"]
    text = "go goes seeing agreeing dyeing lying heroes photos e-mails equipped panicking cafés PCs"
    words = "go see agree dye lie hero photo e-mail equip panic café PC ie"
    counts = [count_words(blocks(text, 7), Words(w, inflected=True)).count for w in words.split()]
    assert counts == [2, *[1] * 11, 0]
    assert inflections("猫") + inflections("名前") + inflections("C++") == ["猫", "名前", "C++"]


@pytest.mark.parametrize("words", ["don't", "don’t", "Anna's boat", "'tis"])
def test_an_apostrophe_stands_for_that_of_books(words: str) -> None:
    text = "Don't, don’t; Anna's boat, Anna’s boat. 'Tis ’tis"
    assert count_words(blocks(text, 7), Words(words)).count == 2
    assert count_words(blocks(text, 7), Words("Don't", cased=True)).count == 1


def test_korean_words_have_particles() -> None:
    assert count_words(blocks("사과는 사과를 풋사과", 4), Words("사과")).count == 2


@pytest.mark.parametrize(
    ("text", "words", "count"),
    [
        ("我买了iPhone手机。这是iPhone。iPhones", "iPhone", 2),
        ("राम रामा रामों राम।", "राम", 2),
        ("चाबी चाबीवाला", "चाबी", 1),
        ("Café Cafés", "Cafe\u0301", 1),
        ("초등학교에 학교가", unicodedata.normalize("NFD", "학교"), 1),
        ("ใช้iPhoneดี, iPhone을 샀다, xiPhone", "iPhone", 2),
        ("从2024年3月5日, GPT-4模型", "2024", 1),
        ("从2024年3月5日, GPT-4模型", "GPT-4", 1),
        ("灯塔看\n守人, 看\r\n守人, 看 守人, 看\n\n守人", "看守人", 2),
        ("អាណា\u200bដុត អាណាដុត", "អាណាដុត", 2),
    ],
)
def test_words_beside_and_in_scripts_without_spaces(text: str, words: str, count: int) -> None:
    assert count_words(blocks(text, 7), Words(words)).count == count


def test_scripts_beside_which_a_word_ends() -> None:
    letters = [letter for letter in map(chr, range(0x10000)) if letter.isalnum()]
    ends = set(re.findall(f"[{OTHER}]", "".join(letters)))
    wanted = {each for each in letters if not spaced(each) or regex.match(r"\p{Hangul}", each)}
    assert wanted <= ends
    assert all(regex.match(r"\p{Common}", each) for each in ends - wanted)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_the_bytes_of_a_place_are_those_of_the_file(tmp_path: Path, encoding: str) -> None:
    text = "Der Käpt'n fährt über die Brücke.\n" * 9
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    sources = open_sources([str(tmp_path / "a.txt")])
    place = count_words(sources, Words("Brücke")).last
    assert place is not None
    cited = place.to_json(["a"], [0])
    begin, end = (len(text[:size].encode(encoding)) for size in (-8, -2))
    assert (cited["byte_start"], cited["byte_end"]) == (begin, end)
    assert count_words(blocks(f"{'字' * 20}  a\n" * 8, 999), Words("a")).spread == [1] * 8


def units(tmp_path: Path, name: str, text: str, unit: str, words: str = "") -> int | None:
    """Count units in a file of this name."""
    path = tmp_path / name
    path.write_text(text)
    sources = open_sources([str(path)])
    tally = count_units(sources, sources, unit, Words(words) if words else None)
    return None if tally is None else tally.count


@pytest.mark.parametrize("kind", ["html", "docx"])
def test_headings_that_a_converter_repeats_are_counted_once(tmp_path: Path, kind: str) -> None:
    heads, rows = ["Port/Crew/Crew", "Port/men/women"], ["Brno/3/4", "Oslo/5/Port"]
    if kind == "html":
        text = "".join(f"<tr><th>{row.replace('/', '<th>')}" for row in heads)
        text += "".join(f"<tr><td>{row.replace('/', '<td>')}" for row in rows)
        data = f"<html><p>A Port: big.</p><table>{text}</table></html>".encode()
    else:
        cell = "<w:tc><w:p><w:r><w:t>{}</w:t></w:r></w:p></w:tc>"
        marks = ["<w:tblHeader/>"] * 2 + [""] * 2
        text = "".join(
            f"<w:tr>{mark}{''.join(map(cell.format, row.split('/')))}</w:tr>"
            for mark, row in zip(marks, heads + rows, strict=True)
        )
        end = f"<w:tbl>{text}</w:tbl></w:body>".encode()
        data = docx([("N", "A Port: big.")], lambda whole: whole.replace(b"</w:body>", end))
    path = tmp_path / f"a.{kind}"
    path.write_bytes(data)
    assert "Crew women: 4" in "".join(block.text for block in open_sources([str(path)]))
    for word, count in (("Port", 4), ("Crew", 2), ("women", 1), ("Brno", 1)):
        assert count_words(open_sources([str(path)]), Words(word)).count == count


def test_rows_and_records(tmp_path: Path) -> None:
    rows = "".join(f'{i},"Smith, {i}\nof Berlin",{i % 7}\n' for i in range(366))
    assert units(tmp_path, "a.csv", "id,name,day\n" + rows, "row") == 366
    assert units(tmp_path, "a.csv", "id,name,day\n" + rows, "row", "Berlin") == 366
    assert units(tmp_path, "a.csv", "id,name,day\n" + rows, "record", "Smith, 7") == 1
    loose = 'id,name\n1, "a\n2,b\rc"\n\n3,"c\n4,d"\n'
    assert units(tmp_path, "a.csv", loose, "row") == 3
    assert units(tmp_path, "a.tsv", "1\t2\n3\t4\n", "row") == 2
    for header in (",name,n", "city,2023,2024", "n,%,1-5"):  # as `ask` counts them
        assert units(tmp_path, "a.csv", f"{header}\n0,A,5\n1,B,9\n", "row") == 2
    assert units(tmp_path, "a.json", '{"items":[{"a":1},{"a":2}],"n":2}', "record") == 2
    lines = "".join(
        json.dumps({"id": i, "city": "Rome" if i % 2 else "Bari"}) + "\n" for i in range(102)
    )
    assert units(tmp_path, "a.jsonl", lines, "record") == 102
    assert units(tmp_path, "a.jsonl", lines, "record", "Rome") == 51
    array = json.dumps({"records": [json.loads(line) for line in lines.splitlines()]}, indent=1)
    assert units(tmp_path, "a.json", array, "record") == 102
    assert units(tmp_path, "a.json", array, "record", "rome") == 51
    assert units(tmp_path, "a.json", array, "row") == 102
    for mark in ("[", ">", "1."):  # takes no time, as no word ends
        assert units(tmp_path, "a.json", mark * 90_000 + "\n2", "row") is None
    assert units(tmp_path, "a.jsonl", '{"a":1}\n# none\n\n{"a":2}\n', "row") == 2
    assert units(tmp_path, "a.csv", 'a,b\n1,"5" pipe\n2,"x\ny"\n', "row") == 2
    page = "<table><tr><th>A<th>B</tr>" + "<tr><td>Rome<td>5</tr>" * 30
    assert units(tmp_path, "a.html", f"<html><body>{page}</table><p>No row.", "row") is None
    assert units(tmp_path, "a.csv", "a,b\n1,2\n3,4\nNotes.\n", "row") == 3
    record = count_of(open_sources([str(tmp_path / "a.csv")]), Aim("count", unit="row"))
    told = "1 row with another number of cells than the first."
    assert (record or {})["warnings"] == [told]
    for odd in ('a,b\n1,"x\n2,y\n3,z\n', 'a,b\n1,"x\n2,y\n3,"z"\n4,q\n'):
        with pytest.raises(NotReadError, match=r"a\.csv:2: .*mark does not end"):
            units(tmp_path, "a.csv", odd, "row")
    assert units(tmp_path, "a.txt", "No table is here.\nOnly prose.\n", "row") is None
    long = f"a\n{'to be ' * 400_000}\nto b\n"
    assert units(tmp_path, "a.txt", long, "line") == 3
    assert units(tmp_path, "a.txt", long, "line", "to") == 2


def test_functions(tmp_path: Path) -> None:
    python = 'def a():\n    """def not_one(): pass"""\n\nclass B:\n    async def c(self): ...\n'
    python += "# def d():\n" + "".join(f"def f{i}(x):\n    return {i}\n\n" for i in range(62))
    assert units(tmp_path, "a.py", python, "function") == 64
    assert units(tmp_path, "a.py", python, "class") == 1
    assert units(tmp_path, "a.py", python, "function", "return") == 62
    script = (
        "function a(x) { if (x) { return 1 } }\nconst b = (x) => x\nclass C {\n  d() {\n  }\n}\n"
    )
    assert units(tmp_path, "a.js", script, "function") == 3
    java = (
        "class A {\n  // int no() {\n  public int a(int x) {\n    if (x > 1) { return b(); }\n  }\n"
    )
    assert units(tmp_path, "A.java", java + "  void b() {}\n}\n", "function") == 2
    cpp = "A::A() : x(1), y{2} {\n  B::g(1);\n}\nA::~A() {\n}\nint A::f() const {\n  A::g(f);\n}\n"
    assert units(tmp_path, "a.cpp", cpp, "function") == 3
    go = "package a\n\nfunc a() {}\n\nfunc (t T) b() int {\n}\n"
    assert units(tmp_path, "a.go", go, "function") == 2
    assert units(tmp_path, "a.py", python, "class", "nothing") == 0
    assert units(tmp_path, "b.py", "a = 1\n", "class") == 0
    assert units(tmp_path, "a.txt", "def a(): pass\n", "function") is None


def test_words_are_what_blanks_separate(tmp_path: Path) -> None:
    assert units(tmp_path, "a.txt", "## A well-known\n\n -- l'été, 3.5 --\n", "word") == 4
    assert units(tmp_path, "a.txt", "one 铜钥匙\n", "word") is None
    began = time.monotonic()
    assert units(tmp_path, "a.txt", f"one {'-' * 20_000} two\n", "word") == 2
    assert time.monotonic() - began < 2


def test_messages_and_paragraphs(tmp_path: Path) -> None:
    mbox = "".join(
        f"From a@example.org Mon Jan  1 10:00:0{i} 2024\nFrom: Ann <a@e.org>\n"
        f"Subject: Budget\nDate: Mon, 1 Jan 2024 10:00:00 +0000\n\nHello {i}\n\nFrom: no head\n\n"
        for i in range(3)
    )
    assert units(tmp_path, "a.mbox", mbox, "message") == 3
    assert units(tmp_path, "a.mbox", mbox, "message", "Hello 1") == 1
    chat = "12/03/24, 10:15 - Greta: hello\nmore of it\n12/03/24, 10:16 - Paul: the budget\n"
    assert units(tmp_path, "chat.txt", chat, "message") == 2
    assert units(tmp_path, "chat.txt", chat, "message", "budget") == 1
    assert units(tmp_path, "a.txt", "One\nof two.\n\n\nTwo.\n", "paragraph") == 2
    assert units(tmp_path, "a.txt", "One\nof two.\n", "message") is None
    book = "".join(f"CHAPTER {n}\n\n{'The wind rose. ' * 99}\n\n" for n in ("I", "II", "III"))
    assert units(tmp_path, "a.txt", book, "chapter") == 3
    assert units(tmp_path, "a.txt", f"{book}Anna came.\n", "chapter", "Anna") == 1
    assert units(tmp_path, "a.html", "<html><h2>One</h2>a<h2>Two</h2>b", "section") == 2
    assert units(tmp_path, "a.txt", "One\nof two.\n", "chapter") is None


def test_lines_of_a_log_by_their_level(tmp_path: Path) -> None:
    """With the lines that continue them, long ones too."""
    levels = ["INFO", "ERROR", "WARN", "FATAL", "INFO", "ERROR"] * 40
    log = "".join(
        f"2026-05-01 10:{n // 60:02}:{n % 60:02} {level} a.B: step {n} {'x' * 9_000 * (n == 7)}\n"
        + ("java.lang.Error: late\n\tat a.B.c(B.java:3)\n" if n % 6 == 1 else "")
        for n, level in enumerate(levels)
    )
    assert units(tmp_path, "a.log", log, "error") == sum(x in ("ERROR", "FATAL") for x in levels)
    assert units(tmp_path, "a.log", log, "warning") == levels.count("WARN")
    assert units(tmp_path, "a.log", log, "error", "late") == 40
    assert units(tmp_path, "a.log", log.replace("WARN", "INFO"), "warning") == 0
    few = "".join(f"May  1 10:00:{n:02} host app[7]: step {n}\n" for n in range(50))
    few += "May  1 10:01:00 host app[7]: ERROR: late\n"
    assert units(tmp_path, "a.log", few, "error") == 1
    doubt = "May  1 10:01:02 host app[7]: step 3 failed\n"
    assert units(tmp_path, "a.log", few + doubt, "error") is None
    trace = 'Traceback (most recent call last):\n  File "a.py"\nKeyError: 3\n'
    assert units(tmp_path, "a.log", few + doubt + trace, "error") == 2
    assert units(tmp_path, "a.txt", "An error.\nERROR: none.\n", "error") is None
    split = "".join(f"2026-05-01T10:00:{n:02}.123456789Z stdout F INFO up\n" for n in range(9))
    end = "2026-05-01T10:01:00.123456789Z stderr P ERROR the end is miss\n"
    assert units(tmp_path, "b.log", split + end, "error") == 1


def test_what_is_not_counted_is_told(tmp_path: Path) -> None:
    """Lines without a level, and files that have few levels, or no words between blanks."""
    logs = {
        "a.log": ("ERROR", "INFO", "more"),
        "b.log": ("ERROR", "x", "lost, y failed"),
        "c.txt": ("猫",),
    }
    for name, levels in logs.items():
        stamped = (f"2026-05-01 10:00:{n:02} {levels[n % len(levels)]} z\n\n" for n in range(30))
        (tmp_path / name).write_text("".join(stamped) if name != "c.txt" else "One cat\n猫\n")
    with (tmp_path / "a.log").open("a") as log:  # below a line of success
        log.write('2026-05-01 10:01:00 INFO z\nTraceback (most recent call last):\n  File "a"\n')
    for unit, count, told in (
        ("error", 11, ["Left out: 2 of 3 files, without errors that kvstream recognizes.",
                       "Not judged: 10 lines without a level."]),
        ("word", 271, ["Left out: 1 of 3 files, without words that kvstream recognizes."]),
        ("line", 125, []),
    ):  # fmt: skip
        record = count_of(
            open_sources([str(tmp_path / name) for name in logs]), Aim("count", "", unit)
        )
        assert record is not None
        assert (record["count"], record["warnings"]) == (count, told)


def test_the_structure_of_a_part_is_that_of_the_whole(tmp_path: Path) -> None:
    log, chat = tmp_path / "a.log", tmp_path / "chat.txt"
    log.write_text("".join(f"2026-05-01 10:00:{n:02} ERROR x\n" for n in range(9)))
    names = ("Greta", "Ben", "Ben") * 9
    chat.write_text("".join(f"1.5.24, 10:15 - {n}: a\n" + "b\n" * (n != "Ben") * 2 for n in names))
    for path, unit, only, count in (
        (log, "error", "line 7", 1),
        (chat, "message", "messages from Greta", 9),
        (chat, "message", "message 4", 1),
    ):
        record = count_of(restrict(open_sources([str(path)]), only), Aim("count", "", unit))
        assert record is not None
        assert record["count"] == count


def test_functions_behind_line_ends_of_windows_and_a_very_long_line(tmp_path: Path) -> None:
    bodies = "".join(
        f"def f{n}():\r\n    pass\r\n    {'pass' * (n % 2)}Anna()\r\n" for n in range(99)
    )
    (tmp_path / "a.py").write_bytes(f"x = '{'a' * 2_200_000}'\r\n{bodies}".encode())
    sources = open_sources([str(tmp_path / "a.py")])
    tally = count_units(sources, sources, "function", Words("Anna"), 99)
    assert tally is not None
    assert tally.count == 50
    assert [place.line for place in tally.places] == [*range(2, 299, 6)]


def test_the_place_of_a_unit_is_that_of_its_words(tmp_path: Path) -> None:
    """A line may be in several blocks, and a letter may have several bytes."""
    path = tmp_path / "a.txt"
    path.write_text("x" * 65_000 + " é" * 300 + " Zoë\nmore\n\n")
    sources = open_sources([str(path)])
    tally = count_units(sources, sources, "paragraph", Words("Zoë"))
    assert tally is not None
    assert tally.places
    found = tally.places[0].to_json(sources.names, sources.bases)
    assert path.read_bytes()[found["byte_start"] : found["byte_end"]] == "Zoë".encode()


def test_the_place_of_a_long_unit_is_its_first_line(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr("kvstream.exact.units.AT_ONCE", 100)
    (tmp_path / "a.txt").write_text("one\n\ntwo\n" + "more words\n" * 99)
    sources = open_sources([str(tmp_path / "a.txt")])
    tally = count_units(sources, sources, "paragraph", None, 9)
    assert tally is not None
    assert tally.last is not None
    assert [place.line for place in [*tally.places, tally.last]] == [1, 3, 3]


def test_a_unit_of_empty_lines_is_not_held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    held: list[int] = []
    monkeypatch.setattr("kvstream.exact.units.AT_ONCE", 1 << 14)
    monkeypatch.setattr(
        "kvstream.exact.units._close", lambda lines, *_, **__: held.append(len(lines)) or False
    )
    (tmp_path / "a.txt").write_text("a\n" + "\n" * 9999)
    sources = open_sources([str(tmp_path / "a.txt")])
    count_units(sources, sources, "paragraph", None)
    assert max(held) < 1000


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("Anna sees Anna.\nanna\n")
    assert run(["count", str(path), "Anna"]) == 0
    assert capsys.readouterr().out == "3\n"
    assert run(["count", str(path), str(path), "Anna", "--unit", "line", "--each", "--json"]) == 0
    [first] = map(json.loads, capsys.readouterr().out.splitlines())  # a file named twice is one
    assert (first["count"], first["unit"], first["forms"]) == (2, "line", {"Anna": 1, "anna": 1})
    assert [c["line_start"] for c in first["citations"]] == [1, 2]
    (tmp_path / "0.txt").write_bytes(b"")
    (tmp_path / "1.gz").write_bytes(b"\x1f\x8b\x08")
    assert run(["count", str(tmp_path), "Anna", "--each"]) == 7
    shown = capsys.readouterr()
    assert shown.out == f"{path}:3\n"
    assert "0.txt" in shown.err
    assert f"Failed: {tmp_path / '1.gz'} is damaged" in shown.err
    assert run(["count", str(tmp_path), "Anna", "--each", "--json"]) == 7
    assert "is damaged" in json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    assert run(["count", str(path), "Anna", "--unit", "message"]) == 3
    assert "has no messages" in capsys.readouterr().err
    assert run(["count", str(path), "", "--unit", "word"]) == 2
    capsys.readouterr()
    for words in ("B*", "line"):
        assert run(["count", str(path), words, "-q"]) == 0
        assert capsys.readouterr() == ("0\n", "")


@pytest.mark.parametrize(
    "command", [("count", "{}", "Ada"), ("ask", "{}", "How often is Ada mentioned?")]
)
def test_an_interrupt_ends_the_counts_of_each_file(
    tmp_path: Path, capsys: Any, monkeypatch: Any, command: tuple[str, ...]
) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("Ada sails.\n")
    count_of = exact_answers.count_of

    def interrupted(*sources: Any, **how: Any) -> Any:
        record = count_of(*sources, **how)
        signal.raise_signal(signal.SIGINT)
        return record

    monkeypatch.setattr(exact_answers, "count_of", interrupted)
    assert run([*(each.format(tmp_path) for each in command), "--each"]) == 130
    shown = capsys.readouterr()
    assert (shown.out.count("a.txt"), shown.out.count("b.txt")) == (1, 0)
    assert "Interrupted: 2 of 3 documents not read." in shown.err


def test_an_interrupt_ends_all_readings_of_a_model(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "a.csv").write_text("day,rain\n1,2\n")
    (tmp_path / "b.txt").write_text("Ada sails.\n")
    seen: list[Any] = []
    monkeypatch.setattr(each, "read_each", lambda paths, options: seen.append(paths) or 130)
    rows, who = "How many rows are there?", "Who sails?"
    assert run(["ask", str(tmp_path), "-Q", rows, "-Q", who, "--each"]) == 130
    assert len(seen) == 1


@pytest.mark.parametrize("what", [("", "--unit", "chapter"), ("Ada", "--only", "chapter 1")])
def test_each_file_has_its_own_parts(tmp_path: Path, capsys: Any, what: tuple[str, ...]) -> None:
    for name in ("a.csv", "b.txt", "c.txt"):
        text = "day,rain\n1,2\n" if name == "a.csv" else "Chapter 1\n\nAda sails.\n"
        (tmp_path / name).write_text(text)
    assert run(["count", str(tmp_path), *what, "--each"]) == 7
    shown = capsys.readouterr()
    assert shown.out == f"{tmp_path / 'b.txt'}:1\n{tmp_path / 'c.txt'}:1\n"
    assert shown.err.startswith(f"Failed: {tmp_path / 'a.csv'}")
    assert shown.err.count("a.csv") == 1


@pytest.mark.parametrize("option", ["--only", "--since", "--until"])
def test_an_empty_part_is_not_the_whole_text(tmp_path: Path, capsys: Any, option: str) -> None:
    (path := tmp_path / "a.txt").write_text("Anna\n")
    for nothing in ("", " "):
        assert run(["count", str(path), "Anna", option, nothing]) == 2
        assert f"'{option}': The value is empty" in capsys.readouterr().err


def test_without_a_model_there_is_no_page(tmp_path: Path, capsys: Any) -> None:
    (path := tmp_path / "a.txt").write_text("Anna\nBob\n")
    page = tmp_path / "run.html"
    assert run(["ask", str(path), "How many lines are there?", "-q", "--report", str(page)]) == 0
    assert not page.exists()
    assert "--report and --stats write nothing" in " ".join(capsys.readouterr().err.split())


def test_a_question_is_counted_before_a_model_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("kvstream.cli.shared.running.open_model", refuse)
    path = tmp_path / "a.txt"
    path.write_text("Anna sees Anna.\n" * 50)
    assert run(["ask", str(path), "How many times is Anna mentioned?"]) == 0
    assert capsys.readouterr().out == '"Anna" occurs 100 times.\n'
    assert run(["ask", str(path), "How many lines are there?", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 50
    for question in ("How many times does she cry?", "how many lines mention Anna and Ben?"):
        assert run(["ask", str(path), question]) == 1
        told = capsys.readouterr().err
        assert "the model estimates" in told
        assert "a model was loaded" in told
    # A memory file has no text to count, and methods are compared by what a model answers.
    for command in (["ask", "--memory"], ["compare", "--budget", "300"]):
        run([*command, str(path), "How many times is Anna mentioned?"])
        assert "The model estimates this count" in capsys.readouterr().err
    run(["ask", str(path), "How many times is Anna mentioned?", "--dry-run"])
    assert "counts this without one" in capsys.readouterr().err


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """Return the output of ``ask`` and its messages."""
    assert run(["ask", *arguments]) == 0
    shown = capsys.readouterr()
    return shown.out, shown.err


def test_no_model_guesses_a_count_of_a_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.txt"
    wind = "The wind rose.\n" * 99
    path.write_text("".join(f"CHAPTER {n}\n\nAnna.\n{wind}\n" for n in ("I", "II", "I", "II")))
    for number, told in ((2, "2 parts are chapter 2"), (9, "The text has no chapter 9.")):
        assert run(["ask", str(path), f"How often is Anna mentioned in chapter {number}?"]) != 0
        shown = capsys.readouterr()
        assert (shown.out, told in shown.err) == ("", True)


@pytest.mark.parametrize("option", [("--shards", "2"), ("--checkpoint", "c.kvs")])
def test_a_part_in_a_question_is_no_error_beside_an_option(
    tmp_path: Path, capsys: Any, monkeypatch: Any, option: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("CHAPTER I\n\nAnna won.\n\nCHAPTER II\n\nBen won.\n")
    out, _ = ask(capsys, "a.txt", "How often is Anna mentioned in chapter 1?", *option)
    assert out == '"Anna" occurs once.\n'
    _, told = ask(capsys, "a.txt", "Who wins in chapter 2?", "-m", "pocket", *option)
    assert f'All of the text is read for {option[0]}; --only "chapter 2" reads a part.' in told


def test_places_are_part_of_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.txt"
    wind = "The wind rose.\n" * 99
    book = [f"CHAPTER {n}\n\n{wind}\n" for n in ("I", "II", "III")]
    path.write_text(f"{book[0]}{book[1]}Anna came.\n\n{book[2]}Anna left.\n")
    out, _ = ask(capsys, str(path), "How often is Anna mentioned, and where?")
    assert out == (f'"Anna" occurs 2 times.\n{path}:205: Anna came.\n{path}:309: Anna left.\n')
    out, _ = ask(capsys, str(path), "How often is wind mentioned, and where?")
    assert len(out.splitlines()) == 103
    assert f"\nand 196 more; the last:\n{path}:307: The wind rose.\n" in out
    out, told = ask(capsys, str(path), "How often is Anna mentioned, and why does she come?")
    assert out == '"Anna" occurs 2 times.\n'
    assert 'Not answered: "why does she come"; ask it alone.' in told
    _, told = ask(capsys, str(path), "How often is Anna mentioned? And why?")
    assert 'Not answered: "why"; ask it alone.' in told
    out, _ = ask(capsys, str(path), "In which chapter is Anna first mentioned?")
    assert out == f'"Anna" occurs 2 times.\nfirst: {path}, CHAPTER II: Anna came.\n'
    out, told = ask(capsys, str(path), "How many chapters does the book have?")
    assert out == "There are 3 chapters.\n"
    assert (
        told == "Counted without a model: chapters by their headings, CHAPTER I to CHAPTER III.\n"
    )


def test_parts_and_their_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.txt"
    wind = "The wind röse.\n" * 99
    book = [f"CHAPTER {n}\n\n{wind}\n" for n in ("I", "II", "III")]
    path.write_text(f"Of Anna.\n\n{book[0]}{book[1]}Anna, Bea.\n\n{book[2]}Anna and Bea left.\n")
    out, _ = ask(capsys, str(path), "Which chapters are in the book?")
    assert out == (
        "There are 3 chapters:\nCHAPTER I (lines 3-104)\nCHAPTER II (lines 105-208)\n"
        "CHAPTER III (lines 209-311)\n"
    )
    out, _ = ask(capsys, str(path), "Which sections does it have?")
    assert out.startswith("There are 3 headings:\nCHAPTER I (")
    (tmp_path / "b.txt").write_text("Anna came.\n")
    out, _ = ask(capsys, str(tmp_path / "b.txt"), "What chapters are there?")
    assert out == "The text has no headings that kvstream recognizes.\n"
    assert run(["ask", str(path), "Which acts are there?", "-m", "none"]) != 0  # left to a model
    out, _ = ask(capsys, str(path), "In which chapters is Anna mentioned?")
    parts = "CHAPTER II (lines 105-208): 1\nCHAPTER III (lines 209-311): 1"
    parts = f"In 2 of 3 chapters:\n{parts}\noutside of them: 1\n"
    assert out == f'"Anna" occurs 3 times.\n{parts}'
    (tmp_path / "b.md").write_text("# Rivers\n\n## The Elbe\n\nAnna came.\n")
    out, _ = ask(capsys, str(tmp_path / "b.md"), "In which sections is Anna mentioned?")
    assert out.endswith("In 1 of 2 sections:\nThe Elbe (lines 3-5): 1\n")
    out, _ = ask(capsys, str(path), "How often are Anna, Bea and Cleo mentioned?", "--json")
    record = json.loads(out)
    assert (record["count"], record["counts"]) == (5, {"Anna": 3, "Bea": 2, "Cleo": 0})
    out, _ = ask(capsys, str(path), "In which chapters do Anna and Bea appear?")
    assert "In 2 of 3 chapters, summed up:\nCHAPTER II (lines 105-208): 2\n" in out
    out, _ = ask(capsys, str(path), "How often are Anna and Bea mentioned?")
    assert out == '"Anna" occurs 3 times.\n"Bea" occurs 2 times.\n"Anna and Bea" occurs once.\n'


def test_headings_of_all_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.html"
    path.write_text(
        "<h1>Part One</h1><h2>Chapter 1</h2><p>Rain<h2>Chapter 2</h2><h3>2.1 Sea</h3><p>Rain"
    )
    out, _ = ask(capsys, str(path), "How many headings are there?")
    assert out == "There are 4 headings.\n"
    out, _ = ask(capsys, str(path), "List all headings")
    assert out.split("\n")[:2] == ["There are 4 headings:", "Part One"]
    _, told = ask(capsys, str(path), "How many chapters are there?")
    assert "by their headings, Chapter 1 to Chapter 2." in told


def test_a_heading_has_only_its_own_words(tmp_path: Path) -> None:
    page = "# Results\n\nAnna\n\n# More Results\n\nx\n\n# Methods\n\nThe Results of Anna\n"
    assert units(tmp_path, "a.md", page, "heading", "results") == 2
    assert units(tmp_path, "a.md", page, "heading", "Anna") == 0
    assert units(tmp_path, "a.md", page, "section", "Anna") == 2


def test_headings_without_numbers_are_chapters(tmp_path: Path) -> None:
    page = "".join(f"# The {n}\n\n## Of it\n\ntext\n\n" for n in ("Storm", "Calm", "End"))
    assert units(tmp_path, "a.md", page, "chapter") == 3
    words = "He speaks.\n" * 99
    plays = "".join(f"ACT {n}\n\nSCENE I\n\n{words}\n" for n in ("I", "II"))
    assert units(tmp_path, "a.txt", plays, "act") == units(tmp_path, "a.txt", plays, "scene") == 2


def test_a_terminal_shows_the_words_and_equal_heights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(("x " * 200 + "Anna came. " + "x " * 33 + "\n") * 6)
    assert run(["count", str(path), "anna", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    lines = list(exact_answers._details(record, 70))
    assert all("Anna came" in line for line in lines if line.startswith("    ") and "..." in line)
    assert sum("Anna came" in line for line in lines) == 2
    # Equal counts have equal heights, whatever the width.
    sums = exact_answers._columns([1, 0, 0, 1, 0, 1, 0], 5)
    assert (sum(sums), set(sums)) == (3, {0.0, 1.0})
    assert run(["count", "nobody", str(path)]) == 2
    assert "the words come last" in capsys.readouterr().err
    assert run(["count", str(path), "Anna", "came"]) == 3
    assert 'several words in quotation marks: "Anna came".' in capsys.readouterr().err
    assert run(["ask", str(path), "Who", "is", "the", "captain"]) == 3
    assert 'several words in quotation marks: "Who is the captain".' in capsys.readouterr().err


def test_what_is_left_out_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"Anna\n\0\0\0Anna\n")
    assert run(["count", str(path), "Anna"]) == 0
    assert "3 NULs skipped" in capsys.readouterr().err
    assert run(["count", str(path), "Anna", "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_receipt_and_hints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("Anna sees Anna.\n")
    assert run(["count", str(path), "Anna", "--json"]) == 0
    receipt = json.loads(capsys.readouterr().out)["receipt"]
    assert receipt["input"]["bytes"] == 16
    assert receipt["input"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert receipt["notes"] == []
    assert "kvstream" in receipt
    assert run(["count", str(path), "An*"]) == 0
    assert "'An*' is counted literally." in capsys.readouterr().err
    assert run(["count", str(path), "chapters"]) == 0
    assert "--unit chapter counts the chapters" in capsys.readouterr().err


def test_a_time_of_a_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"2024-05-01 10:{m:02}:00 ERROR disk {m}\n" for m in range(60)))
    out, told = ask(capsys, str(path), "How many lines contain ERROR between 10:05 and 10:06?")
    assert out == '2 lines contain "ERROR".\n'
    assert "Reads only since 10:05 until 10:06, which the question names." in told
    question = "What happened after 10:50?"
    _, told = ask(capsys, str(path), question, "-m", "pocket", "-n", "2")
    assert "Reads only since 10:50, which the question names." in told
    _, told = ask(capsys, str(path), "What happened after 29:75?", "-m", "pocket", "-n", "2")
    assert "The question names since 29:75, but all of the text is read." in told
    with path.open("a") as file:
        file.write("2024-05-02 09:00:00 ERROR disk 99\n")
    _, told = ask(capsys, str(path), question, "-m", "pocket", "-n", "2")
    assert '--since "10:50" reads a part.' in told  # of which day?
    count_of = "How many lines contain ERROR between 10:05 and 10:06?"
    _, told = ask(capsys, str(path), count_of, "-m", "pocket", "-n", "2")
    assert told.count('--since "10:05" --until "10:06" reads a part.') == 1
    assert "Counted" not in told
    dated = "What happened on 2 May 2024?"
    _, told = ask(capsys, str(path), dated, "-m", "pocket", "-n", "2")
    assert "Reads only since 2024-05-02 until 2024-05-02, which the question names." in told
    path.write_text("He came at 10:50, and sat.\n" * 9)
    assert "--since" not in ask(capsys, str(path), question, "-m", "pocket", "-n", "2")[1]


def test_functions_are_listed_and_messages_have_senders_and_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, chat = tmp_path / "a.py", tmp_path / "a.txt"
    code.write_text("".join(f"def f{n}(): ...\n" for n in range(102)))
    out = ask(capsys, str(code), "list all functions")[0].splitlines()
    assert (len(out), out[0]) == (103, "There are 102 functions:")
    assert out[-2:] == ["and 1 more; the last:", f"{code}:102: def f101(): ..."]
    chat.write_text("".join(f"{day:02}.05.24, 10:00 - Ben: Hi Ana\n" for day in range(1, 10)))
    out, told = ask(capsys, str(chat), "How many messages of Ben are there after 4 May?")
    assert out == "There are 5 messages.\n"
    assert "Reads only messages from Ben, since May 4 exclusive, which" in told
    with chat.open("a") as file:
        file.write("".join(f"10.05.24, 10:0{minute} - Ana Ruiz: Ben: ho\n" for minute in range(4)))
    out, _ = ask(capsys, str(chat), "Who sent the most messages?")
    assert out == "There are 13 messages from 2 senders:\nBen: 9\nAna Ruiz: 4\n"
    chat.write_text("Who sent the most messages?\n")
    assert "senders" not in ask(capsys, str(chat), "List the senders", "-m", "pocket", "-n", "2")[0]


def test_a_file_of_a_model_loses_no_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, into = tmp_path / "a.txt", tmp_path / "out.txt"
    path.write_text("Anna came.\n")
    questions = ("-Q", "How often is Anna mentioned?", "-Q", "Who came?")
    out, _ = ask(capsys, str(path), *questions, "-m", "pocket", "-n", "2", "-o", str(into))
    assert '"Anna" occurs once.' in out
    assert "Anna" not in out.replace('"Anna"', "").replace("is Anna", "")
    assert into.read_text().strip()
    out, _ = ask(capsys, str(path), questions[1], "-o", str(into))
    assert (out, into.read_text()) == ("", '"Anna" occurs once.\n')


def test_a_count_in_a_title_from_a_pipe_says_that_it_counts_in_all(cli: Callable[..., Any]) -> None:
    text = b"# Plan\n\nThe roof leaks.\n\n# Costs\n\nA roof.\n"
    ran = cli("ask", "How often is the roof mentioned in Costs?", "--json", stdin=text)
    record = json.loads(ran.stdout)
    assert record["count"] == 2
    assert "all of the text" in record["warnings"][0]
    ran = cli("ask", "How often is the roof mentioned?", "--json", stdin=text)
    assert json.loads(ran.stdout)["warnings"] == []


def test_several_counts_of_a_pipe(cli: Callable[..., Any]) -> None:
    ran = cli("ask", "-Q", "How many lines are there?", "-Q", "How often is a mentioned?",
              stdin=b"a\nb\n")  # fmt: skip
    assert ran.code == 2
    assert "read only once" in ran.stderr


def test_the_files_that_have_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {"a.txt": "Salt, salt.\n", "b.txt": "None.\n", "c.md": "# Salt\n\nSea salt.\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    out, _ = ask(capsys, str(tmp_path), "Which files mention salt?")
    own = [f"{tmp_path / name}: 2" for name in ("a.txt", "c.md")]
    assert out.splitlines() == ['"salt" occurs 4 times.', "In 2 of 3 files:", *own]


def test_the_first_and_the_last_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    lines = [
        f"2026-05-01 10:00:{n:02} {'ERROR' if n % 7 == 3 else 'INFO'} step {n}" for n in range(40)
    ]
    path.write_text("\n".join(lines))
    for place, number in (("first", 3), ("last", 38)):
        out, _ = ask(capsys, str(path), f"What was the {place} error?")
        assert out == f"There are 6 errors:\n{place}: {path}:{number + 1}: {lines[number]}\n"
    out, _ = ask(capsys, str(path), "list all errors")
    assert [line.split(": ", 1)[1] for line in out.splitlines()[1:]] == lines[3::7]
    assert ask(capsys, str(path), "list all warnings")[0] == "There are 0 warnings.\n"
