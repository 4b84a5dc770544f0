"""A part of a text is found by its structure, and keeps the places of the whole."""

from __future__ import annotations

import gzip
import json
import random
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from make_documents import chapter, docx, drawn, epub, pdf

from kvstream.api.options import Request
from kvstream.api.source_objects import Text, open_sources
from kvstream.cli.app import run
from kvstream.cli.options.table import Options
from kvstream.cli.shared.exact_answers import answer_exactly
from kvstream.errors import SourceError, UsageError
from kvstream.exact import scopes
from kvstream.exact.outline import in_english, number_of, outline
from kvstream.exact.scopes import Scope
from kvstream.exact.units import count_units
from kvstream.input.blocks import TextBlock
from kvstream.input.lines import lines_of
from kvstream.input.source import SourceRecord
from kvstream.settings import ModelSettings

BODY = "".join(f"The wind rose and the boat went on, said number {i}.\n" for i in range(40))


def book(*headings: str, contents: bool = False) -> str:
    """Return a book with these headings, each above text that names it."""
    listed = "CONTENTS\n\n" + "\n\n".join(headings) + "\n\n\n" if contents else ""
    return listed + "".join(f"{h}\n\nThis is below {h.lower()}.\n{BODY}\n" for h in headings)


def read(path: Path, **scope: str) -> str:
    """Return the text of a part, after a check of its places."""
    blocks = list(open_sources(str(path), **scope))  # type: ignore[arg-type]
    check(path, blocks)
    return "".join(block.text for block in blocks)


def check(path: Path, blocks: list[TextBlock]) -> None:
    """Check that offsets and line numbers are those of the whole file."""
    raw, newlines = path.read_bytes(), 0
    for block in blocks:
        offsets = block.offsets()
        if block.place is None:
            assert raw[offsets[0] : offsets[-1]].decode() == block.text
            assert block.left_out + newlines == raw[: offsets[0]].count(b"\n")
            newlines += block.text.count("\n")


@pytest.mark.parametrize(
    ("headings", "only"),
    [
        (("CHAPTER I", "CHAPTER II", "CHAPTER III"), "chapter 2"),
        (("CHAPTER ONE", "CHAPTER TWENTY-THREE", "CHAPTER FORTY"), "chapter twenty-three"),
        (("CHAPTER ONE", "CHAPTER TWENTY-THREE", "CHAPTER FORTY"), "chapter 23"),
        (("CHAPTER ONE", "CHAPTER TWENTY-THREE", "CHAPTER FORTY"), "chapter twenty three"),
        (
            ("CHAPTER I. HOME", f"CHAPTER II. IN WHICH{' THEY SAIL' * 8}", "CHAPTER III"),
            "chapter 2",
        ),
        (("CHAPTER I", "CHAPTER XL", "CHAPTER L"), "chapter forty"),
        (("Chapter 1. Home", "Chapter 2. Away", "Chapter 3. Back"), "the second chapter"),
        (("Chapter the First", "Chapter the Second", "Chapter the Third"), "chapter II"),
        (("CHAPTER ONE: HOME", "CHAPTER TWO: AWAY", "CHAPTER THREE"), 'chapter "Away"'),
        (("I", "II", "III"), "chapter two"),
        (("1. Introduction", "2. Methods", "3. Results"), "section Methods"),
        (("1 Introduction", "2 Methods", "3 Results"), "section 2"),
        (("1. Term", "2. Rent", "3. Keys"), "item 2"),
        (("# Clause 1: Term", "# Clause 2: Rent", "# Clause 2.1: Keys"), "clause 2"),
        (("# Introduction", "# Methods", "# Results"), "methods"),
        (("INTRODUCTION", "METHODS", "RESULTS"), "the Methods section"),
        (("ACT I", "ACT II", "ACT III"), "act 2"),
    ],
)
@pytest.mark.parametrize("contents", [False, True])
def test_headings(tmp_path: Path, headings: tuple[str, ...], only: str, contents: bool) -> None:
    path = tmp_path / "book.txt"
    path.write_text(book(*headings, contents=contents))
    text = read(path, only=only)
    assert text.strip() == book(headings[1]).strip()


@pytest.mark.parametrize(
    ("headings", "only"),
    [
        (("第一章 出発", "第二章", "第十三章 归来"), "第十三章"),
        (("제1장", "제2장", "제 13 장 귀환"), "제13장"),
        (("Erstes Kapitel", "Zweites Kapitel", "13. Kapitel"), "Kapitel 13"),
        (("Kapitel I", "Kapitel II: Fort", "Kapitel XIII"), "chapter xiii"),
        (("CHAPITRE PREMIER", "Chapitre deux", "Chapitre XIII. Étés"), "chapitre 13"),
        (("Chapitre premier", "Chapitre II : la mer", "Chapitre XIII\u00a0: Étés"), "chapitre 13"),
        (("Chapter 1 : Away", "Chapter II : the sea", "CHAPTER 13 : HOME"), "chapter 13"),
        (("Capítulo primero", "Capítulo 2", "Capítulo 13 Época"), "capítulo 13"),
        (("Capitolo primo", "Capitolo secondo", "Capitolo 13"), "capitolo 13"),
        (("Глава первая", "ГЛАВА ВТОРАЯ", "Глава 13. Ночь"), "глава 13"),
    ],
)  # fmt: skip
def test_headings_of_other_languages(tmp_path: Path, headings: tuple[str, ...], only: str) -> None:
    path = tmp_path / "book.txt"
    path.write_text(book(*headings))
    names = ("chapter 1", "chapter 2", "chapter 13", only)
    for heading, name in zip((*headings, headings[2]), names, strict=True):
        assert read(path, only=name).strip() == book(heading).strip(), name
    for prose in ("Kapitel 3 behandelt das", "第三章で述べたように、これは", "Eine Partie"):
        assert in_english(prose) == prose


@pytest.mark.parametrize(
    ("headings", "only", "numbers"),
    [
        (("CHAPTER I", "CHAPTER II", "CHAPTER III"), "chapters 2-999999999999", (1, 2)),
        (("2.1 Oats", "2.2 Rye", "2.10 Peas", "3.1 Wheat"), "sections 2.2 to 2.10", (1, 2)),
        (("APPENDIX A", "APPENDIX B", "APPENDIX C"), "appendix b-c", (1, 2)),
        (("APPENDIX B", "APPENDIX C", "APPENDIX D"), "appendix c to appendix d", (1, 2)),
        (("APPENDIX B", "APPENDIX C", "APPENDIX D"), "appendix D", (2,)),
        (("CHAPTER ONE", "CHAPTER TWO", "CHAPTER THREE"), "chapters two and three", (1, 2)),
    ],
)
def test_a_range_of_parts(
    tmp_path: Path, headings: tuple[str, ...], only: str, numbers: tuple[int, ...]
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(book(*headings))
    text = read(path, only=only)
    below = [number for number, each in enumerate(headings) if f"below {each.lower()}." in text]
    assert below == [*numbers]


def test_the_same_number_twice(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    chapters = book("CHAPTER I", "CHAPTER II")
    path.write_text(f"PART ONE\n\n{chapters}PART TWO\n\n{chapters.replace('wind', 'rain')}")
    with pytest.raises(SourceError, match=r"2 parts are chapter 2: CHAPTER II \(lines .*of part 2"):
        read(path, only="chapter 2")
    assert "rain" in read(path, only="chapter 2 of part 2")
    assert "wind" in read(path, only="chapter 2 of part one")
    assert "rain" in read(path, only="Part II chapter ii")
    assert read(path, only="part 2").count("CHAPTER") == 2
    assert read(path, only="chapters 1-2 of part 2").count("CHAPTER") == 2


def test_the_same_heading_in_two_files(tmp_path: Path) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("# One\n\ntext\n\n# Two\n\nmore\n")
    paths = [str(tmp_path / name) for name in ("a.md", "b.md")]
    message = r"2 parts are One: One \(.*a.md, lines 1-4\), One \(.*b.md, .*of the files alone\.$"
    with pytest.raises(SourceError, match=message):
        open_sources(paths, only="One")


def test_what_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text(book("CHAPTER I", "CHAPTER II"))
    with pytest.raises(SourceError, match=r"has no chapter 7. It has CHAPTER I \(lines 1-44\), CH"):
        read(path, only="chapter 7")
    (tmp_path / "a.md").write_text("# III. The Search\n\nOne.\n")
    with pytest.raises(SourceError, match="has no chapter ²"):
        read(path, only="chapter ²")
    with pytest.raises(SourceError, match=r"has no 10:30\. For a time use --since"):
        read(path, only="10:30")
    with pytest.raises(SourceError, match=r'Did you mean "III. The Search"\? It has'):
        read(tmp_path / "a.md", only="The Serch")
    with pytest.raises(SourceError, match=r"No part of the text is lines 900-950: it has 88 lines"):
        read(path, only="lines 900-950")
    with pytest.raises(UsageError, match="lines and pages begin with 1"):
        read(path, only="lines 0-2")
    with pytest.raises(SourceError, match="it has no pages"):
        read(path, only="page 3")
    with pytest.raises(SourceError, match="it has no messages"):
        read(path, only="messages from Greta")
    with pytest.raises(SourceError, match="no times"):
        read(path, since="2024-05-01")
    with pytest.raises(SourceError, match="read only once"):
        open_sources(iter(["CHAPTER I\n\ntext\n"]), only="chapter 1")


def test_the_header_of_a_table_goes_with_its_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"2024-05-0{i} 10:00:00,item {i},{i * 10}\n" for i in range(1, 9)]
    for name, mark in (("a.csv", ","), ("a.tsv", "\t"), ("a.txt", ";")):
        table = tmp_path / name
        header, *lines = [row.replace(",", mark) for row in ("day,item,price\n", *rows)]
        table.write_text(header + "".join(lines))
        for scope, chosen in (
            ({"only": "lines 3-5"}, lines[1:4]),
            ({"since": "2024-05-07"}, lines[6:]),
        ):
            assert read(table, **scope) == header + "".join(chosen)
        assert read(table, only="lines 1-2") == header + lines[0]
        assert run(["ask", str(table), "What is the sum of price?", "--only", "lines 3-5"]) == 0
        shown = capsys.readouterr()
        assert shown.out == "90\n", name
        assert "The header of the table, line 1, is read with lines 3-5.\n" in shown.err
        assert (
            run(
                [
                    "ask",
                    str(table),
                    "Which row has the largest price?",
                    "--json",
                    "--only",
                    "lines 3-5",
                ]
            )
            == 0
        )
        assert json.loads(capsys.readouterr().out)["citations"][0]["line_start"] == 5
        for words, unit, count in (
            ("", "row", 3),
            ("", "line", 3),
            ("price", "line", 0),
            ("item 4", "row", 1),
        ):
            assert run(["count", str(table), words, "--unit", unit, "--only", "lines 3-5"]) == 0
            assert capsys.readouterr().out == f"{count}\n"
    prose = tmp_path / "b.txt"
    prose.write_text("Dear Anna, hello.\n" * 9)
    assert read(prose, only="lines 3-4") == "Dear Anna, hello.\n" * 2
    both = list(open_sources([str(tmp_path / "a.csv"), str(prose)], only="lines 9"))
    assert [block.source for block in both] == [0, 0, 1]


def test_a_header_below_a_title_or_of_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, rows = tmp_path / "a.csv", "Ben,Oslo\nCy,Bonn\n"
    for above, header in (
        ("Staff\n\n", "name,city\n"), ("sep=,\n", "name,city\n"), ("", 'name,"c\nd"\n'),
    ):  # fmt: skip
        table.write_text(f"{above}{header}Ann,Rome\n{rows}")
        only = f"lines {2 + f'{above}{header}'.count(chr(10))}-9"
        assert read(table, only=only) == header + rows
        for how in (["count", "", "--unit", "row"], ["ask", "How many rows?"]):
            assert run([how[0], str(table), *how[1:], "--only", only]) == 0
            assert capsys.readouterr().out == "2\n"


def test_a_part_ends_with_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What follows in the next file has no sender and no time of its own."""
    for name, text in (
        ("a.txt", "[13/03/2024, 10:11:12] Ben: fuse\n[13/03/2024, 10:12:12] Ann: fuse\n"),
        ("b.md", "# Wires\n\nfuse\n\n# Costs\n\nfuse\nfuse\n"), ("c.log", "10:12:12 INFO fuse\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    for part in (
        ("--only", "messages from Ann"), ("--only", "last message"),
        ("--since", "13/03/2024 10:12"),
    ):  # fmt: skip
        both = (str(tmp_path / name) for name in ("a.txt", "b.md"))
        assert run(["count", *both, "fuse", *part]) == 0
        assert capsys.readouterr().out == "1\n", part
    assert run(["count", str(tmp_path), "fuse", "--each", "--until", "2024-03-13"]) == 7
    assert capsys.readouterr().out == f"{tmp_path / 'a.txt'}:2\n"
    question = "How often is fuse mentioned in {}?"
    for title, times in (("Costs", 2), ("Ulysses", 3)):
        assert run(["ask", str(tmp_path / "b.md"), question.format(title)]) == 0
        assert capsys.readouterr().out == f'"fuse" occurs {times} times.\n'


def test_lines_of_a_stream() -> None:
    sources = open_sources(iter([f"line {i}\n" for i in range(1, 1000)]), only="lines 100-102")
    assert "".join(b.text for b in sources) == "line 100\nline 101\nline 102\n"


@pytest.mark.parametrize("which", ["first", "last"])
def test_lines_of_several_files(tmp_path: Path, which: str) -> None:
    for name, count in (("a.txt", 9), ("b.txt", 1), ("c.txt", 3)):
        (tmp_path / name).write_text("".join(f"{name[0]}{i}\n" for i in range(count)))
    text = "".join(block.text for block in open_sources(str(tmp_path), only=f"{which} 2 lines"))
    assert (
        text.split()
        == {"first": ["a0", "a1"], "last": ["a7", "a8"]}[which]
        + ["b0"]
        + ({"first": ["c0", "c1"], "last": ["c1", "c2"]}[which])
    )


def test_subheadings_stay_in_their_chapter(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("# One\n\na\n\n## Sub\n\nb\n\n```\n# no heading\n```\n\n# Two\n\nc\n")
    assert read(path, only="One").endswith("```\n\n")
    assert read(path, only="sub").startswith("## Sub")
    assert [part.title for part in outline(open_sources(str(path)))] == ["One", "Sub", "Two"]


def test_a_numbered_section_without_another_around_it_is_a_chapter(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("# 1. Costs\n\na\n\n# 2. Fire\n\nb\n\n## 2.1 Doors\n\nc\n\n# 3. Staff\n\nd\n")
    assert read(path, only="chapter 2") == "# 2. Fire\n\nb\n\n## 2.1 Doors\n\nc\n\n"
    assert read(path, only="chapter 3") == "# 3. Staff\n\nd\n"
    assert read(path, only="section 2.1") == "## 2.1 Doors\n\nc\n\n"


def test_a_title_below_a_number_belongs_to_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    parts = "".join(f"{n}.\n\nON THE {n} ROAD.\n\nIt rained.\n\n" for n in ("I", "II", "III"))
    path.write_text(f"BOOK ONE\n\nTHE STORM\n\n{parts}AN END\n\nIt froze.\n")
    assert read(path, only="chapter 2 of book 1") == "II.\n\nON THE II ROAD.\n\nIt rained.\n\n"
    assert read(path, only="on the ii road") == read(path, only="chapter 2")
    titles = [part.title for part in outline(open_sources(str(path)))]
    assert titles == [
        "BOOK ONE THE STORM", *(f"{n}. ON THE {n} ROAD." for n in ("I", "II", "III")), "AN END",
    ]  # fmt: skip


@pytest.mark.parametrize("gap", ["\n", "\n\n"])
def test_a_title_in_any_case_below_a_number_belongs_to_it(tmp_path: Path, gap: str) -> None:
    path = tmp_path / "a.txt"
    titles = ("The Boy in the Boat", "Mr. Fox Arrives", "“And" + " so they all sailed" * 9)
    texts = [f"Chapter {n}{gap}{t}\n\nIt rained.\n\n" for n, t in enumerate(titles, 1)]
    path.write_text("".join(texts) + "Chapter 4\n\nIt froze\nand snowed.\n")
    assert read(path, only="the boy in the boat") == texts[0]
    assert [part.title for part in outline(open_sources(str(path)))] == [
        "Chapter 1 The Boy in the Boat", "Chapter 2 Mr. Fox Arrives", "Chapter 3", "Chapter 4",
    ]  # fmt: skip


@pytest.mark.parametrize("gap", [" ", "\n"])
def test_contents_before_a_preface_have_no_chapters(tmp_path: Path, gap: str) -> None:
    path = tmp_path / "a.txt"
    names = [f"CHAPTER {n}{gap}{t}\n\n" for n, t in (("I", "I SET OFF"), ("II", "I COME HOME"))]
    chapters = [f"{name}It rained.\n\n" for name in names]
    preface = f"PREFACE\n\n{'It was so. ' * 40}\n\n"
    path.write_text(f"CONTENTS\n\n{''.join(names)}\n\n{preface}{''.join(chapters)}")
    for number in (1, 2):
        assert read(path, only=f"chapter {number}") == chapters[number - 1]
    assert read(path, only="preface") == preface


@pytest.mark.parametrize(
    ("name", "only", "own"),
    [
        (
            "a.py",
            "function main",
            'def main(\n    a,\n):\n    """Say.\nHi.\n"""\n\n    return a\n\n\n',
        ),
        ("a.py", "method main_of()", "    def main_of(main):\r\n        pass\r\n\r\n"),
        ("a.py", 'the class "A"', "class A:\n    def b(self): ...\n"),
        (
            "a.c",
            "function main",
            "int main(void)\n{\n#if X\n    goto out;\n#endif\nout:\n    x();\n}\n\n",
        ),
        ("a.go", "function main", "func (main *T) main() {\n}\n"),
        ("a.js", "function main", "const main = async (a) => {\n  print(a);\n};\n"),
        ("a.rb", "function main", "def self.main\n  1\nend\n"),
    ],
)
def test_a_definition_in_code(tmp_path: Path, name: str, only: str, own: str) -> None:
    after = {
        "py": "@main\ndef b(main): ...\n", "c": "static int main_x;\n",
        "go": "func b(main int) {}\n", "js": "let b = 1;\n", "rb": "B = 1\n",
    }  # fmt: skip
    path = tmp_path / name
    path.write_bytes(f"\n{own}{after[name.partition('.')[2]]}".encode())
    assert read(path, only=only) == own
    path.write_bytes((own + own).encode())
    with pytest.raises(SourceError, match="2 parts are"):
        read(path, only=only)
    with pytest.raises(SourceError, match="has no function other"):
        read(path, only="function other")


def test_an_initial_is_no_number_of_a_chapter(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("L. Frank Baum\n\na\n\n1. The Cyclone\n\nb\n\n2. The Road\n\nc\n")
    assert read(path, only="chapters 1-2") == "1. The Cyclone\n\nb\n\n2. The Road\n\nc\n"


def test_underlined_headings_and_code(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text(
        "One\n===\n\na\n\nSub\n---\n\nb\n\n    # code\n\n~~~\n```\n\n# code\n~~~\n\n"
        "===\nTwo\n===\nc\n\n a  b\n-----\n1  2\n"
    )
    parts = outline(open_sources([str(path)]))
    assert [(part.title, part.level) for part in parts] == [("One", 1), ("Sub", 2), ("Two", 1)]


def test_tildes_underline_in_a_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "a.rst"
    path.write_text("One\n===\n\na\n\nSub\n~~~~\n\nb\n\nTwo\n===\n\nc\n")
    assert read(path, only="Two") == "Two\n===\n\nc\n"


def test_a_title_with_signs(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("# Why C++ matters\n\na\n\n# Is it (really) so?\n\nb\n\n# C+++\n\nc\n")
    assert read(path, only="why C++").split()[-1] == "a"
    assert read(path, only="(really) so").split()[-1] == "b"


def test_headings_of_markdown_without_empty_lines_and_fences(tmp_path: Path) -> None:
    text = (
        f"# One\n## Two\na\n## Why {'is it ' * 20}so?\n```x``` b\n# Three\n"
        "````md\n```\n# no\n```\n# no\n````\n~~~\n# no\n~~~ x\n# no\n~~~\n# Four\n"
    )
    for name, count in (("a.md", 5), ("a.MD.gz", 5), ("a.txt", 1)):
        pack = gzip.compress if name.endswith(".gz") else bytes
        (tmp_path / name).write_bytes(pack(text.encode()))
        parts = outline(open_sources([str(tmp_path / name)]))
        assert [part.title[:5] for part in parts] == ["One", "Two", "Why i", "Three", "Four"][
            :count
        ]
    assert read(tmp_path / "a.md", only="Two") == "## Two\na\n"


def test_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text(
        "<html><h2>Chapter 1</h2><p>One.</p><h3>Aside</h3><p>Two.</p>"
        "<h2>Chapter 2</h2><p>Three.</p>"
    )
    whole = list(open_sources(str(path)))
    blocks = list(open_sources(str(path), only="chapter 1"))
    text = "".join(block.text for block in blocks)
    assert "Two." in text
    assert "Three." not in text
    assert {block.place for block in blocks if block.text.strip()} == {"Chapter 1", "Aside"}
    assert blocks[0].start == next(b for b in whole if b.place == "Chapter 1").start


@pytest.mark.parametrize("kind", ["html", "docx", "epub"])
def test_levels_of_headings(tmp_path: Path, kind: str) -> None:
    levels = {
        "Guide": 1,
        "Setup": 2,
        "Linux": 3,
        "Disks": 4,
        "Raid": 5,
        "Spares": 6,
        "Mac": 3,
        "Use": 2,
        "PART I": 2,
        "Chapter 1": 2,
        "Aside": 3,
        "PART II": 2,
        "End": 1,
    }
    path = tmp_path / f"a.{kind}"
    page = "".join(f"<h{n}>{name}</h{n}><p>In {name}.</p>" for name, n in levels.items())
    rows = [pair for name, n in levels.items() for pair in ((f"Heading{n}", name), ("", "Text."))]
    made = {"html": f"<html>{page}".encode(), "docx": docx(rows), "epub": epub([page.encode()])}
    path.write_bytes(made[kind])
    assert [part.title for part in outline(open_sources(str(path)))] == [*levels]
    for only, inside in (
        ("section Setup", ["Setup", "Linux", "Disks", "Raid", "Spares", "Mac"]),
        ("Linux", ["Linux", "Disks", "Raid", "Spares"]),
        ("Raid", ["Raid", "Spares"]), ("Mac", ["Mac"]), ("Guide", [*levels][:-1]),
        ("part 1", ["PART I", "Chapter 1", "Aside"]), ("chapter 1", ["Chapter 1", "Aside"]),
    ):  # fmt: skip
        blocks = open_sources(str(path), only=only)
        assert [*dict.fromkeys(b.place for b in blocks if b.text.strip())] == inside, only


@pytest.mark.parametrize("kind", ["html", "docx", "epub"])
@pytest.mark.parametrize("title", [False, True])
def test_chapters_that_a_document_does_not_mark(tmp_path: Path, kind: str, title: bool) -> None:
    texts = ["Chapter 1", "It rained.", "Chapter 2: Snow", "It snowed.", "In chapter 1, it rained."]
    page = "<h1>Boats</h1>" * title + "".join(f"<p><b>{text}</b></p>" for text in texts)
    rows = [("Heading1", "Boats")] * title + [("", text) for text in texts]
    path = tmp_path / f"a.{kind}"
    made = {"html": f"<html>{page}".encode(), "docx": docx(rows), "epub": epub([page.encode()])}
    path.write_bytes(made[kind])
    text = "".join(block.text for block in open_sources(str(path), only="chapter 2"))
    assert text.split("\n")[0] == "Chapter 2: Snow"
    assert text.strip().endswith(texts[-1])
    titles = [part.title for part in outline(open_sources(str(path)))]
    assert titles == ["Boats"] * title + ["Chapter 1", "Chapter 2: Snow"]
    path = tmp_path / "b.html"  # a document that marks its parts has no others
    path.write_text(f"<html><h2>Sea</h2>{page}<h2>Land</h2><p>Part 2</p><p>It froze.</p>")
    marked = [part.title for part in outline(open_sources(str(path)))]
    assert marked == ["Sea", *["Boats"] * title, "Land"]


def test_books_and_pages(tmp_path: Path) -> None:
    names = ["Chapter One", "Chapter Two", "Chapter Three"]
    book, document, paged = (tmp_path / f"a.{kind}" for kind in ("epub", "docx", "pdf"))
    book.write_bytes(epub([chapter(n, [f"It rained in {n}."] * 3) for n in names]))
    rows = [pair for n in names for pair in (("Heading1", n), ("", f"It rained in {n}."))]
    document.write_bytes(docx(rows))
    pages = [[name, f"It rained in {name} on page {i}."] for name in names for i in (1, 2)]
    paged.write_bytes(pdf([drawn(lines) for lines in pages]))
    for path in (book, document, paged):
        blocks = list(open_sources(str(path), only="chapter 2"))
        text = "".join(block.text for block in blocks)
        assert "It rained in Chapter Two" in text, path
        assert "One" not in text
        assert "Three" not in text
    assert {block.place for block in blocks if block.text.strip()} == {3, 4}
    text = "".join(block.text for block in open_sources(str(paged), only="pages 2-3"))
    assert "Chapter One on page 2" in text
    assert "Chapter Two on page 1" in text
    assert text.count("rained") == 2


def test_bookmarks_of_a_pdf(tmp_path: Path) -> None:
    names = ["Home", "Away", "Chapter 3: Back"]
    pages = [
        [name if i else "", f"It rained in {name}, page {i}."] for name in names for i in (1, 0)
    ]
    items = [(0, "Home", 0), (1, "The storm", 1), (0, "Away", 2), (0, "Chapter 3: Back", 4)]
    first = 4 + 2 * len(pages)
    second = first + 2
    marks = [
        b"<< /Title (%s) /Parent %d 0 R /Dest [%d 0 R /Fit] %s >>"
        % (title.encode(), first + 1 * (level > 0), 3 + 2 * page, links)
        for (level, title, page), links in zip(
            items,
            (
                b"/First %d 0 R /Last %d 0 R /Count 1 /Next %d 0 R" % (second, second, second + 1),
                b"", b"/Prev %d 0 R /Next %d 0 R" % (second - 1, second + 2),
                b"/Prev %d 0 R" % (second + 1),
            ), strict=True,
        )
    ]  # fmt: skip
    root = b"<< /Type /Outlines /First %d 0 R /Last %d 0 R /Count 4 >>" % (first + 1, first + 4)
    made = pdf([drawn(lines) for lines in pages], more=[root, *marks])
    catalog = b"/Type /Catalog /Pages 2 0 R"
    moved = made.replace(catalog, catalog + b" /Outlines %d 0 R" % first)
    path = tmp_path / "a.pdf"
    path.write_bytes(moved)
    parts = outline(open_sources(str(path)))
    assert [part.title for part in parts] == [title for _, title, _ in items]
    assert [part.place for part in parts] == ["pages 1-3", "pages 2-3", "pages 3-5", "pages 5-6"]
    for only, inside in (("section Home", {"Home"}), ("the storm", {"Home"}), ("away", {"Away"}),
                         ("chapter 3", {"Chapter 3: Back"})):  # fmt: skip
        text = "".join(block.text for block in open_sources(str(path), only=only))
        assert {name for name in names if f"in {name}, page" in text} == inside, only


def test_bookmarks_of_one_place_and_damaged_ones(tmp_path: Path) -> None:
    pages = [["", "It rained."], ["", "It snowed."]]
    titles = [(b"(Chapter 1)", 0), (b"(Chapter 2)", 0), (b"<FEFF0041D8>", 1), (b"( )", 1)]
    path = bookmarked(tmp_path, pages, titles)
    for only in ("chapter 1", "chapter 2"):
        text = "".join(block.text for block in open_sources(str(path), only=only))
        assert text.split() == ["It", "rained.", "It", "snowed."]


def test_a_running_header_ends_no_chapter_that_has_a_bookmark(tmp_path: Path) -> None:
    pages = [["1 Home", "It rained."], ["2 Away", "It snowed."], ["Chapter 2: Away 3", "It blew."]]
    path = bookmarked(tmp_path, pages, [(b"(1 Home)", 0), (b"(2 Away)", 1)])
    text = "".join(block.text for block in open_sources(str(path), only="Away"))
    assert text.split()[-2:] == ["It", "blew."]


def bookmarked(folder: Path, pages: list[list[str]], titles: list[tuple[bytes, int]]) -> Path:
    """Return a PDF with bookmarks of these titles and pages."""
    first = 4 + 2 * len(pages)
    marks = [
        b"<< /Title %s /Parent %d 0 R /Dest [%d 0 R /Fit] /Next %d 0 R >>"
        % (title, first, 3 + 2 * page, first + number + 1)
        for number, (title, page) in enumerate(titles, 1)
    ]
    marks[-1] = marks[-1].replace(b"/Next %d 0 R" % (first + len(marks) + 1), b"")
    root = b"<< /Type /Outlines /First %d 0 R /Last %d 0 R >>" % (first + 1, first + len(marks))
    catalog = b"/Type /Catalog /Pages 2 0 R"
    made = pdf([drawn(lines) for lines in pages], more=[root, *marks])
    path = folder / "a.pdf"
    path.write_bytes(made.replace(catalog, catalog + b" /Outlines %d 0 R" % first))
    return path


def test_cells_below_a_heading_of_a_notebook(tmp_path: Path) -> None:
    texts = ["# Rain", "a", "# Snow", "b", "c", "# Rain again"]
    cells = [{"cell_type": "markdown", "source": text} for text in texts]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    assert read(path, only="section Snow").split() == ["#", "Snow", "b", "c"]
    path.write_text(path.read_text().replace("# Snow", "## Part A"))
    assert read(path, only="part A").split() == ["##", "Part", "A", "b", "c"]
    path.write_text(path.read_text().replace("## Part A", "# Snow"))
    path.write_text(json.dumps({"cells": cells * 2, "nbformat": 4}))
    with pytest.raises(SourceError, match=r"Snow: Snow \(from cell 3\), Snow \(from cell 9\)"):
        read(path, only="Snow")
    assert read(path, only="Snow, cell 4").split() == read(path, only="cell 4").split() == ["b"]
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}).replace("# Snow", "## Snow"))
    assert read(path, only="cell 2").split() == ["a"]  # not with the part that it contains


def test_chapters_of_a_notebook(tmp_path: Path) -> None:
    texts = ["x", "# Chapter 1", "a", "# Chapter 2: Snow", "b", "c", "# Chapter 3", "d"]
    path = tmp_path / "a.ipynb"

    def write(texts: list[str]) -> None:
        cells = [{"cell_type": "markdown", "source": text} for text in texts]
        path.write_text(json.dumps({"cells": cells, "nbformat": 4}))

    def count(unit: str) -> int | None:
        sources = open_sources([str(path)])
        tally = count_units(sources, sources, unit, None)
        return tally and tally.count

    write(texts)
    assert read(path, only="chapter 2").split()[-2:] == ["b", "c"]
    assert read(path, only="chapters 1-2").split()[-2:] == ["b", "c"]
    assert count("chapter") == 3
    write(["# Rain", "a", "b", "# Snow", "c"])
    assert (count("chapter"), count("section")) == (2, 2)
    write(["a", "b", "c"])
    assert count("chapter") is None


def test_headings_within_a_cell_of_a_notebook(tmp_path: Path) -> None:
    texts = ["x\n# Rain\na\n```\n# no\n```\n## Drops ##\nb", "c", "# Snow\nd"]
    cells = [{"cell_type": "markdown", "source": text} for text in texts]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    places = ["cell 1", "Rain, cell 1", "Drops, cell 1", "Drops, cell 2", "Snow, cell 3"]
    assert [block.place for block in open_sources([str(path)])] == places
    assert "".join(read(path).split()) == "".join("".join(texts).split())
    assert "".join(read(path, only="Rain").split()) == "#Rain" + "a```#no```##Drops##bc"


@pytest.mark.parametrize("day", ["{}/03/2024", "{}-03-2024", "2024/03/{}", "2024-03-{}"])
@pytest.mark.parametrize("mark", ["", "\u200e"])
def test_times_of_chats_with_seconds_and_century(tmp_path: Path, day: str, mark: str) -> None:
    path = tmp_path / "a.txt"
    lines = [f"{mark}[{day.format(number)}, 10:11:12] Ann: x\n" for number in range(11, 16)]
    path.write_text("".join(lines), encoding="utf-8")
    assert read(path, since="2024-03-12", until="2024-03-13").splitlines(True) == lines[1:3]


@pytest.mark.parametrize("end", [" - Ann: x\n", ":30 ERROR x\n"])
def test_days_before_the_first_that_shows_the_order(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.txt"
    days = [f"{day}/03/2024{',' * (end[0] == ' ')} 10:1{day % 10}{end}" for day in range(11, 16)]
    path.write_text("".join(days))
    assert read(path, since="2024-03-12", until="2024-03-13").splitlines(True) == days[1:3]
    assert read(path, until="10:30") == days[0]
    assert not scopes.one_day(open_sources([str(path)]))
    path.write_text("".join(days[:3]))
    assert scopes.has_times(open_sources([str(path)]))


def test_the_mark_of_direction_before_a_message_with_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("[12.03.24, 10:15:33] Bo: hi\n\u200e[12.03.24, 10:16:00] Ann: \u200epicture\n")
    assert read(path, only="messages from Bo") == "[12.03.24, 10:15:33] Bo: hi\n"
    assert read(path, since="10:16").endswith("picture\n")
    assert read(path, until="10:15:40") == "[12.03.24, 10:15:33] Bo: hi\n"


def test_times_of_captions(tmp_path: Path) -> None:
    path = tmp_path / "a.srt"
    path.write_text("".join(f"{i}\n00:0{i}:00,000 --> 00:0{i}:01,000\nx{i}\n\n" for i in range(5)))
    assert read(path, since="00:02", until="00:03:30").split() == ["x2", "x3"]
    with pytest.raises(SourceError, match="its times are from 00:00:00 to 00:04:00"):
        read(path, since="00:05")


MAIL = "".join(
    f"From {name}@example.org Mon Jan  1 10:00:0{i} 2024\nFrom: {name} <{name}@e.org>\n"
    f"Subject: Plan\nDate: Mon, {i} Jan 2024 10:00:00 +0000\n\nI am {name}.\n\n"
    for i, name in enumerate(("Greta", "Paul", "Greta"), 1)
)


def test_messages(tmp_path: Path) -> None:
    path = tmp_path / "a.mbox"
    path.write_text(MAIL)
    blocks = list(open_sources(str(path), only="messages from Greta"))
    text = "".join(block.text for block in blocks)
    assert (text.count("I am Greta."), text.count("Paul")) == (2, 0)
    text = "".join(b.text for b in open_sources(str(path), since="2024-01-02", until="2024-01-02"))
    assert (text.count("Greta"), text.count("I am Paul.")) == (0, 1)
    with pytest.raises(SourceError, match=r"there are messages from Greta .*, Paul"):
        list(open_sources(str(path), only="message from Anna"))
    chat = tmp_path / "chat.txt"
    chat.write_text("12/03/24, 10:15 - Greta: one\nmore\n12/03/24, 10:16 - Paul: two\n")
    assert read(chat, only="messages from greta") == "12/03/24, 10:15 - Greta: one\nmore\n"
    text = "".join(block.text for block in open_sources(str(path), only="last mail from Greta"))
    assert (text.count("I am Greta."), text.count("Mon, 3 Jan")) == (1, 1)
    chat.write_text("".join(f"12/03/24, 10:1{i} - {n}: {i}\n" for i, n in enumerate("ABABC")))
    for only, kept in (("first", "0"), ("last", "2"), ("latest", "2")):
        assert read(chat, only=f"the {only} message from A")[-2:] == f"{kept}\n"
        assert read(chat, only=f"{only} message from C").count("\n") == 1
    with pytest.raises(SourceError, match="there are messages from A, B, C"):
        read(chat, only="last message from D")
    for name in ("+49 170 1234", "Anna ❤️", "Bob D.", "~ Mia"):
        chat.write_text(f"12/03/24, 10:15 - {name}: a\n12/03/24, 10:16 - x{name}y: b\n")
        assert read(chat, only=f"messages from {name}").count("\n") == 1
    chat.write_text("".join(f"12/03/24, 10:1{i} - {n}: {i}\n" for i, n in enumerate("ABABC")))
    with pytest.raises(SourceError, match="third message from A: there are messages from A, B, C"):
        read(chat, only="third message from A")
    for only, numbers in (("message 2", "1"), ("messages 2-3", "12"), ("mails 4 to 9", "34")):
        assert "".join(line[-1] for line in read(chat, only=only).splitlines()) == numbers
    with pytest.raises(SourceError, match="no message 6: it has 5 messages"):
        read(chat, only="message 6")
    chat.write_text("# Message 1\n\na\n\n# Message 2\n\nb\n")
    assert read(chat, only="message 2").split()[-1] == "b"


def test_some_at_the_beginning_and_at_the_end(tmp_path: Path) -> None:
    path, chat = tmp_path / "a.txt", tmp_path / "chat.txt"
    chat.write_text("".join(f"12/03/24, 10:1{i} - {n}: {i}\n" for i, n in enumerate("ABABA")))
    path.write_text("".join(f"CHAPTER {n}\n\na{n}\nb\n\nc{n}\n\n" for n in range(1, 6)))
    for only, digits in (
        ("the last two messages", "34"), ("first 3 messages", "012"), ("newest 2 mails", "34"),
        ("last two messages from A", "24"), ("second-last message by B", "1"),
        ("penultimate message", "3"), ("the very first message", "0"),
    ):  # fmt: skip
        assert "".join(line[-1] for line in read(chat, only=only).splitlines()) == digits, only
    for only, begin, end in (
        ("the first three chapters", "CHAPTER 1", "c3"), ("last 2 chapters", "CHAPTER 4", "c5"),
        ("the penultimate chapter", "CHAPTER 4", "c4"), ("the last ten lines", "c4", "c5"),
        ("the last line", "", ""), ("first two lines", "CHAPTER 1", "CHAPTER 1"),
        ("the first paragraph", "a1\nb", "b"), ("paragraphs 2-3", "c1", "b"),
        ("the last paragraph of chapter 2", "c2", "c2"), ("chapter 3, paragraph 1", "a3", "b"),
        ("the last two paragraphs", "a5", "c5"),
    ):  # fmt: skip
        text = read(path, only=only).strip()
        assert (text.startswith(begin), text.endswith(end)) == (True, True), only
    with pytest.raises(SourceError, match="no paragraph 11: it has 10 paragraphs"):
        read(path, only="paragraph 11")


def test_times(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(
        "".join(f"2024-05-0{d} 1{h}:00:00 x {d}{h}\n  more\n" for d in (1, 2) for h in (0, 5))
    )
    assert read(path, since="2024-05-01 12:00", until="2024-05-02 10:00").count("more") == 2
    assert read(path, since="2024-05-02").count("more") == 2
    assert read(path, until="2024-05-01").count("more") == 2
    assert read(path, until="10:30").count("more") == 1
    assert read(path, until="15:00").count("more") == 2
    assert read(path, until="15:00 exclusive").count("more") == 1
    with pytest.raises(SourceError, match="from 2024-05-01 10:00:00 to 2024-05-02 15:00"):
        read(path, since="2024-06-01")
    with pytest.raises(SourceError, match="is lines 1-2 in that time: its times are"):
        read(path, only="lines 1-2", since="2024-05-02")
    plain = tmp_path / "plain.txt"
    plain.write_text("one\ntwo\n")
    with pytest.raises(SourceError, match="is lines 1-2 in that time: its lines have no times"):
        read(plain, only="lines 1-2", since="10:00")
    with pytest.raises(UsageError, match="not a time"):
        read(path, since="yesterday")
    for since, hits in (("3 pm", 3), ("10:30 a.m.", 3), ("Thursday", 2), ("Thursday at 11am", 1)):
        assert read(path, since=since).count("more") == hits, since
    for since in ("2024-05-02 3 pm", "May 2 3 pm", "May 2 15:00"):
        assert read(path, since=since).count("more") == 1
    assert read(path, since="May 1 15:00", until="May 2").count("more") == 3
    with pytest.raises(UsageError, match="12:00 is later than --until 11:00; exchange"):
        read(path, since="12:00", until="11:00")
    for wrong in ("25:00", "10:77", "noon"):
        with pytest.raises(UsageError, match="not a time"):
            read(path, since=wrong)
    old = tmp_path / "old.log"
    old.write_text("Dec 31 23:00:00 h a: one\nJan  1 01:00:00 h a: two\n")
    assert read(old, since="Jan  1").endswith("two\n")
    assert read(old, since="Jan 1 00:30") == "Jan  1 01:00:00 h a: two\n"
    assert read(old, until="Dec 31") == "Dec 31 23:00:00 h a: one\n"
    with pytest.raises(SourceError, match="from Dec 31 23:00:00 to Jan  1 01:00:00"):
        read(old, since="Jan  2")
    old.write_text(
        "".join(f"2024-05-0{d} {h} x\n" for d in (1, 2) for h in ("00:00:00", "23:59:59"))
    )
    for day in ("2024-05-01", "May 1", "Wednesday"):
        assert read(old, since=f"{day} exclusive").count("05-02") == 2
    for day in ("2024-05-02", "May 2", "Thursday"):
        assert read(old, until=f"{day} exclusive").count("05-01") == 2
    diary = tmp_path / "diary.txt"
    diary.write_text("2024-05-01\nRain.\n2024-05-02\nSun.\n")
    assert read(diary, since="2024-05-02") == "2024-05-02\nSun.\n"


@pytest.mark.parametrize(
    "stamp",
    [
        "20.11.26, 10:3{} -", "[20.11.2026, 10:3{}:59]", "11/20/26, 10:3{}\u202fAM -",
        "20/11/2026, 10:3{} -", "20.11.26 10:3{}", "[2026-11-20, 10:3{}]", "2026-11-20 10:3{}",
    ],
)  # fmt: skip
def test_times_of_chats(tmp_path: Path, stamp: str) -> None:
    """They have no seconds, or no century."""
    path = tmp_path / "chat.txt"
    path.write_text("".join(f"{stamp.format(i)} {'AB'[i % 2]}: {i}\n" for i in range(6)))
    kept = lambda **part: "".join(line[-1] for line in read(path, **part).splitlines())  # noqa: E731
    assert kept(since="2026-11-20 10:32") == "2345"
    assert kept(until="10:33:59") == "0123"
    assert kept(since=stamp.format(4).strip("[] -")) == "45"
    if "," in stamp:  # else it is a line of a log
        assert kept(only="messages from A", since="10:32") == "24"
        told = (
            "messages from B in that time: there are messages from A, B, and its times are from 20"
        )
        with pytest.raises(SourceError, match=told):
            read(path, only="messages from B", since="11:00")


def test_the_second_of_a_time_is_whole(tmp_path: Path) -> None:
    """A page shows no fractions."""
    path = tmp_path / "a.log"
    path.write_text("".join(f"2024-05-01 10:00:0{i}.750 x {i}\n" for i in range(3)))
    assert read(path, since="10:00:01", until="10:00:01").endswith("x 1\n")
    with pytest.raises(UsageError, match="exchange them, or give both their days, as in"):
        read(path, since="23:50", until="00:10")


@pytest.mark.parametrize(
    "since", ["01:00", "2024-05-02", "Thursday", "May 2 01:00", "2024-05-01T23:00Z"]
)
def test_times_are_in_the_zone_of_the_first_one(tmp_path: Path, since: str) -> None:
    path = tmp_path / "a.log"
    times = ("05-02T00:30:00+02:00", "05-01T22:45:00Z", "05-02T01:00:00+02:00", "05-01T23:30:00Z")
    path.write_text("".join(f"2024-{time} said {i}\n" for i, time in enumerate(times)))
    said = read(path, since=since).count("said")
    assert said == (4 if since in ("2024-05-02", "Thursday") else 2)
    with pytest.raises(SourceError, match=r"from 2024-05-02 00:30:00 to 2024-05-02 01:30:00"):
        read(path, since="03:00")


def test_times_without_a_year_or_a_day(tmp_path: Path) -> None:
    """Their years are made up, so that no day of a user is before or after all of them."""
    path = tmp_path / "sys.log"
    path.write_text("".join(f"Jun {day} 06:10:00 h a[1]: user {day}\n" for day in (14, 15, 16)))
    for since in ("2025-06-15", "2025-06-15T06:10", "1990-06-15 06:10"):
        assert [read(path, since=since).count("user"), read(path, until=since)[4:6]] == [2, "14"]
    for text, day, says in (
        (path.read_text(), "Sunday", "have no year, so nothing shows which of them are of Sunday"),
        ("06:10:00 INFO user\n", "2025-06-15", "have no day"),
        ("[   12.3456] usb 1\n", "2025-06-15", "have no day"),
    ):
        path.write_text(text)
        with pytest.raises(SourceError, match=says):
            read(path, until=day)


def test_ranges_that_are_reversed(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text(book("CHAPTER I", "CHAPTER II"))
    for only in ("lines 200-100", "pages 9-3", "chapters 2-1", "chapters II to I"):
        with pytest.raises(UsageError, match=f"--only '{only}' ends before it begins"):
            open_sources(str(path), only=only)


@pytest.mark.parametrize("only", ["lines 2 and 9", "chapters 1 and 3", "chapter 1 and chapter 3"])
def test_parts_with_others_between_them(tmp_path: Path, only: str) -> None:
    path = tmp_path / "book.txt"
    path.write_text(book("CHAPTER I", "CHAPTER II", "CHAPTER III"))
    with pytest.raises(UsageError, match=f"--only '{only}' names two parts"):
        open_sources(str(path), only=only)


def test_numbers() -> None:
    for text, number in {
        "XIV": "14",
        "the third": "3",
        "Twelve": "12",
        "2.3": "2.3",
        "mixer": "",
    }.items():
        assert number_of(text) == number


def test_count_and_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "book.txt"
    path.write_text(book("CHAPTER I", "CHAPTER II"))
    assert run(["count", str(path), "wind", "--only", "chapter 2"]) == 0
    assert capsys.readouterr().out == "40\n"
    assert run(["ask", str(path), "How many times is wind mentioned in chapter 2?"]) == 0
    shown = capsys.readouterr()
    assert shown.out == '"wind" occurs 40 times.\n'
    assert "Reads only CHAPTER II, which the question names." in shown.err
    for number, hints in ((2, 1), (7, 0)):
        request = Request(questions=(f"Who wrote chapter {number}?",))
        options = Options(request, ModelSettings(), (), quiet=False, json=False, each=False)
        _, [(_, left)], _ = answer_exactly([str(path)], options)
        assert left.request.only == request.only
        said = f'--only "chapter {number}" reads it alone.'
        assert capsys.readouterr().err.count(said) == hints
    request = Request(questions=("What happens in chapter 2 before 10:00?",))
    _, [(_, left)], _ = answer_exactly([str(path)], replace(options, request=request))
    assert (left.request.only, left.request.until) == ("chapter 2", None)
    assert run(["ask", str(path), "--dry-run", "Who sails?", "--only", "chapter 9"]) == 3
    assert "has no chapter 9" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["# " + "# " * 100_000 + "x", "第" + "9" * 300_000 + "章"])
def test_a_long_line_is_no_heading_and_takes_no_time(line: str) -> None:
    began = time.process_time()
    assert not outline(open_sources(Text(f"One\n{line}\n\n{line}\nTwo\n", "a.md")))
    assert time.process_time() - began < 5


def test_lines_without_words_change_no_outline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined, they are as one; a file of newlines alone has as many lines as blocks."""
    parts = ("\n", "\n\n\n", " \n", "\t\r\n", "CHAPTER I\n", "Chapter 2. The Boat\n",
             "It rained.\n", "# A head\n", "```\n", "THE SEA\n", "x", "1. Intro\n",
             "\n" * 70_000)  # fmt: skip
    for seed in range(12):
        some = parts if seed % 4 == 0 else parts[:-1]  # those of more than a block take long
        text = "".join(random.Random(seed).choices(some, k=20)) + "."
        found = outline(open_sources(Text(text, "a")))
        with monkeypatch.context() as patched:
            patched.setattr("kvstream.exact.outline.lines_of", lambda of, joined: lines_of(of))
            assert found == outline(open_sources(Text(text, "a")))
    assert len(list(lines_of(open_sources(Text("\n" * 1_000_000, "a")), joined=True))) < 20


@pytest.mark.parametrize(
    "form",
    [
        'web-1  | {{"msg": "x", "ts": {1}, "level": "info"}}',
        "[pod/web/app] 01.05.2024 10:{0:02}:00 INFO x",
        "web-1  | 10:{0:02}:00 INFO x",
        "2024-05-01T10:{0:02}:00.123456789Z stdout F [09:00:00] [main/INFO]: x",
        '[{{"msg": "x", "ts": {1}, "level": "info"}},',
        'msg="{2}" time=2024-05-01T10:{0:02}:00Z level=info',
    ],
)
def test_lines_of_containers_and_long_records_have_times(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.log"
    lines = [form.format(n, 1714557600 + 60 * n, "y" * 600) for n in range(60)]
    path.write_text("".join(f"{line}\n" for line in lines))
    assert read(path, since="10:20", until="10:29:59").splitlines() == lines[20:30]


@pytest.mark.parametrize("only", ["Two", "lines 5-8", "second message"])
def test_a_part_behind_earlier_sources_is_the_same(tmp_path: Path, only: str) -> None:
    mail = "".join(f"[2024-05-0{i} 10:00] Ben: note {i}\n" for i in range(1, 4))
    text = mail if "message" in only else "# One\n\nAda.\n\n# Two\n\nBen.\n\n# Three\n\nCora.\n"
    (tmp_path / "a.md").write_text(text)
    alone = read(tmp_path / "a.md", only=only)
    behind = open_sources(str(tmp_path / "a.md"), only=only)
    behind.follow_on([SourceRecord("b", 21, "")], ended_line=True)
    assert "".join(block.text for block in behind) == alone
    assert behind.records[1].part == len(alone)


def test_many_parts_take_no_time_of_each_other() -> None:
    text = "12345\n678901234é\n" * 20_000
    size = len(text.encode())
    ranges = tuple((at, at + 6) for at in range(0, size, size // 20_000))
    began = time.process_time()
    blocks = [*Scope("", ranges=ranges).select(iter([TextBlock(text, 0, 0)]))]
    assert [(b.text, b.start) for b in blocks] == [("12345\n", begin) for begin, _ in ranges]
    assert time.process_time() - began < 5  # once it was a minute


def test_an_outline_does_not_hold_the_text(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("".join(f"# {i}\n\n{'some words ' * 6000}\n\n" for i in range(100)))
    sources = open_sources([str(path)])
    tracemalloc.start()
    try:
        assert len(outline(sources)) == 100
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size // 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "until", ["2024-05-01 12:00:01", "2024-05-01T12:00:01", "2024-05-01T14:00:01+0200", "12:00:01"]
)
def test_the_last_second_counts_whole(tmp_path: Path, until: str) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"2024-05-01 12:00:0{i}.700 order {i}\n" for i in range(5)))
    assert read(path, until=until).count("\n") == 2
    assert read(path, until="2024-05-01T12:00:01.2").count("\n") == 1
    assert read(path, until="20240501") == path.read_text()


def test_a_log_whose_years_have_two_digits(tmp_path: Path) -> None:
    path = tmp_path / "spark.log"
    path.write_text("".join(f"24/05/{day} 12:00:00 INFO a.B: x\n" for day in (30, 31)))
    assert read(path, since="2024-05-31") == "24/05/31 12:00:00 INFO a.B: x\n"
