"""Tables of HTML and DOCX as rows, and the notes of DOCX at their marks."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from make_documents import docx

from kvstream.input.documents import parts_of
from kvstream.input.sources import open_sources

pytest.importorskip("lxml")

SPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def html(folder: Path, body: str) -> str:
    path = folder / "a.html"
    path.write_text(f"<html><body>{body}</body></html>", encoding="utf-8")
    return "".join(block.text for block in open_sources([str(path)]))


def docx_lines(
    folder: Path, body: str, warnings: list[str] | None = None, **members: str
) -> list[str]:
    """Return the lines of a DOCX with this body and other members, such as footnotes."""
    data = docx([], lambda whole: whole.replace(b"</w:body>", body.encode() + b"</w:body>"))
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name if "/" in name else f"word/{name}.xml", content)
    path = folder / "a.docx"
    path.write_bytes(buffer.getvalue())
    parts = parts_of("docx", path, [], [] if warnings is None else warnings)
    return "".join(part.text for part in parts).splitlines()


def rows(*lines: str, cell: str = "td") -> str:
    """Return rows of HTML, with cells separated by ``/``."""
    cells = ("".join(f"<{cell}>{text}</{cell}>" for text in line.split("/")) for line in lines)
    return "".join(f"<tr>{line}</tr>" for line in cells)


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        # Empty cells keep their place, and each value knows its column.
        (
            rows("Ship/Port/Crew", cell="th") + rows("Gull//12", "Tern/Oslo/", "/Bergen/3"),
            [
                "Ship | Port | Crew", "Ship: Gull | Port: | Crew: 12",
                "Ship: Tern | Port: Oslo | Crew:", "Ship: | Port: Bergen | Crew: 3",
            ],
        ),
        # A heading row without a mark is seen by its words above numbers.
        (
            rows("Ship/Port/Crew", "Gull/Oslo/12"),
            ["Ship | Port | Crew", "Ship: Gull | Port: Oslo | Crew: 12"],
        ),
        # The corner above the names of the rows may be empty.
        (
            "<tr><td></td><th>May</th><th>June</th></tr><tr><th>Gull</th><td>1</td><td></td></tr>",
            ["| May | June", "Gull | May: 1 | June:"],
        ),
        (rows("/May/June", "Gull/1/2"), ["| May | June", "Gull | May: 1 | June: 2"]),
        # A list of names and values has no heading row.
        (rows("Ship/Gull", "Crew/12"), ["Ship | Gull", "Crew | 12"]),
        (
            "<tr><th>Ship</th><td>Gull</td></tr><tr><th>Crew</th><td>12</td></tr>",
            ["Ship | Gull", "Crew | 12"],
        ),
        # Merged cells are repeated, also over columns and to the end of a group.
        (
            rows("Sea/Ship/Crew", cell="th")
            + '<tr><td rowspan="2">North</td><td>Gull</td><td>12</td></tr><tr><td>Tern</td>'
            '<td>9</td></tr><tr><td>South</td><td colspan="2">none</td></tr>',
            [
                "Sea | Ship | Crew", "Sea: North | Ship: Gull | Crew: 12",
                "Sea: North | Ship: Tern | Crew: 9", "Sea: South | Ship: none | Crew: none",
            ],
        ),
        # Also if the first row has nothing else.
        (
            rows("Sea/Ship/Crew", cell="th") + "<tr><td rowspan=2>North</td></tr>"
            + rows("Gull/12", "South/Tern/9"),
            [
                "Sea | Ship | Crew", "Sea: North", "Sea: North | Ship: Gull | Crew: 12",
                "Sea: South | Ship: Tern | Crew: 9",
            ],
        ),
        (
            "<tbody><tr><td rowspan=0>a</td><td>1</td></tr><tr><td>2</td></tr></tbody>"
            "<tbody><tr><td>b</td><td>3</td></tr></tbody>",
            ["a | 1", "a | 2", "b | 3"],
        ),
        # Two heading rows make one name for each column.
        (
            "<thead><tr><td rowspan=2>Ship</td><td colspan=2>2023</td></tr>"
            "<tr><td>crew</td><td>fish</td></tr></thead>" + rows("Gull/12/80"),
            [
                "Ship | 2023 | 2023", "Ship | crew | fish",
                "Ship: Gull | 2023 crew: 12 | 2023 fish: 80",
            ],
        ),
        # Headings in the middle replace those above.
        (
            rows("Ship/Crew", cell="th") + rows("Gull/12") + rows("Port/Depth", cell="th")
            + rows("Oslo/9"),
            [
                "Ship | Crew", "Ship: Gull | Crew: 12", "Port | Depth", "Port: Oslo | Depth: 9",
            ],
        ),
        # No end tags, a caption, a title over all columns, a line inside a cell.
        (
            "<caption>Fleet</caption><tr><td colspan=9>2024<tr><td>Gull<td>12<br>men",
            ["Fleet", "2024", "Gull | 12 men"],
        ),
        # A table in a cell stays in its row.
        (
            f"<tr><td>Gull</td><td><table>{rows('mate/Ole', 'cook/Liv')}</table></td>"
            "<td>Oslo</td></tr>",
            ["Gull | mate, Ole; cook, Liv | Oslo"],
        ),
        # A row may have fewer cells than merged cells need, or none.
        (
            rows("A/B/C", cell="th") + "<tr><td rowspan=2>1<td rowspan=2>2<td rowspan=3>3<tr></tr>"
            "<tr><td>4</tr>" + rows("5/6/7"),
            ["A | B | C", *["A: 1 | B: 2 | C: 3"] * 2, "A: 4 | B: | C: 3", "A: 5 | B: 6 | C: 7"],
        ),
        # A separator in a cell makes no column; a huge span makes no huge row.
        ("<tr><td>a|b</td><td colspan=60000>c</td></tr><tr><td>d</td><td>e</td></tr>", None),
    ],
)  # fmt: skip
def test_a_row_of_html_is_a_line(tmp_path: Path, table: str, lines: list[str] | None) -> None:
    found = html(tmp_path, f"<p>Before</p><table>{table}</table>After").split("\n")
    found = [line for line in found if line]
    if lines is None:
        assert found[1].startswith("a,b | c")
        assert len(found[1]) < 5000
    else:
        assert found == ["Before", *lines, "After"]


def test_tags_with_the_roles_of_a_table(tmp_path: Path) -> None:
    names = "".join(f'<i role="columnheader">{name}</i>' for name in ("Ship", "Port", "Crew"))
    cells = '<i role="cell">Gull</i><i role="cell"></i><i role="gridcell">12</i>'
    row = '<div role="row">'
    page = (
        f'<b role="heading" aria-level="3">Ships</b><div role="grid"><div role="rowgroup">{row}'
        f'{names}</div></div>{row}{cells}</div></div><table role="presentation"><td role="row">x'
    )
    (tmp_path / "a.html").write_text(f"<html><body>{page}")
    blocks = list(open_sources([str(tmp_path / "a.html")]))
    assert {str(block.place) for block in blocks} == {"Ships"}
    text = "".join(block.text for block in blocks)
    assert text == "Ships\nShip | Port | Crew\nShip: Gull | Port: | Crew: 12\n\nx\n"


def test_a_table_for_layout_keeps_its_lines(tmp_path: Path) -> None:
    prose = "It rained on the sea. " * 200
    page = f"<table><tr><td><p>{prose}</p><p>Then it stopped.</p></td><td>Menu</td></tr></table>"
    assert html(tmp_path, page).split("\n") == [prose.strip(), "", "Then it stopped.", "Menu", ""]
    page = "<table><tr><td>1</td><td><pre>if a:\n    b</pre></td></tr></table>"
    assert html(tmp_path, page).split() == ["1", "if", "a:", "b"]
    (tmp_path / "b.html").write_text(
        "<html><table><tr><td><h2>Rain</h2><p>It rained.</td><td>Menu</td></tr></table>"
    )
    places = {p.place for p in parts_of("html", tmp_path / "b.html", [], [])}
    assert places == {"Rain"}


def test_a_table_within_a_layout_has_no_empty_lines(tmp_path: Path) -> None:
    body = rows(*(f"G{i}/{i}" for i in range(300)))
    table = f"<table>{rows('Ship/Crew', cell='th')}{body}</table>"
    for page in (f"<tr><td>{table}</td></tr>", f"<tr><td>Menu</td><td>{table}</td></tr>"):
        lines = html(tmp_path, f"<table>{page}</table>").strip("\n").split("\n")
        assert "" not in lines
        assert lines[-1] == "Ship: G299 | Crew: 299"


def test_a_table_of_a_megabyte_is_not_held(tmp_path: Path) -> None:
    table = rows("Ship/Crew", cell="th") + rows(*(f"Gull {i}/{i}" for i in range(30_000)))
    (tmp_path / "a.html").write_text(f"<html><table>{table}</table>")
    texts = [part.text for part in parts_of("html", tmp_path / "a.html", [], [])]
    assert max(map(len, texts)) < 100_000
    assert "".join(texts).endswith("Ship: Gull 29999 | Crew: 29999\n")


def word(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def cell(text: str, properties: str = "") -> str:
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{word(text)}</w:tc>"


def row(*cells: str, properties: str = "") -> str:
    return f"<w:tr><w:trPr>{properties}</w:trPr>{''.join(cells)}</w:tr>"


def test_a_row_of_docx_is_a_line(tmp_path: Path) -> None:
    first = row(cell("Sea"), cell("Ship"), cell("Crew"))
    body = [
        row(cell("North", '<w:vMerge w:val="restart"/>'), cell("Gull"), cell("12")),
        row(cell("", "<w:vMerge/>"), cell("Tern"), cell("")),
        row(cell("none", '<w:gridSpan w:val="2"/>'), cell("0")),
        row(cell("all", '<w:hMerge w:val="restart"/>'), cell("", "<w:hMerge/>"), cell("1")),
        row(cell("Skua"), cell("7"), properties='<w:gridBefore w:val="1"/>'),
        row(cell("South", '<w:vMerge w:val="restart"/>')),
        row(cell("", "<w:vMerge/>"), cell("Auk"), cell("8")),
    ]
    table = f"<w:tbl>{first}{''.join(body)}</w:tbl>"
    assert docx_lines(tmp_path, word("Before") + table + word("After")) == [
        "Before", "Sea | Ship | Crew", "Sea: North | Ship: Gull | Crew: 12",
        "Sea: North | Ship: Tern | Crew:", "Sea: none | Ship: none | Crew: 0",
        "Sea: all | Ship: all | Crew: 1", "Sea: | Ship: Skua | Crew: 7",
        "Sea: South", "Sea: South | Ship: Auk | Crew: 8", "After",
    ]  # fmt: skip
    marked = row(cell("Ship"), cell("Port"), properties="<w:tblHeader/>")
    table = f"<w:tbl>{marked}{row(cell('Gull'), cell('Oslo'))}</w:tbl>"
    assert docx_lines(tmp_path, table) == ["Ship | Port", "Ship: Gull | Port: Oslo"]
    look = '<w:tblPr><w:tblLook w:val="04A0"/></w:tblPr>'
    first, second = (row(*map(cell, words)) for words in ("abc", "xyz"))
    table = f"<w:tbl>{look}{first}{second}</w:tbl>"
    assert docx_lines(tmp_path, table) == ["a | b | c", "a: x | b: y | c: z"]


def mark(kind: str, number: int) -> str:
    return f'<w:r><w:{kind}Reference w:id="{number}"/></w:r>'


def member(kind: str, notes: dict[int, str], more: str = "") -> str:
    inside = "".join(f'<w:{kind} w:id="{i}" {more}>{text}</w:{kind}>' for i, text in notes.items())
    return f'<w:{kind}s xmlns:w="{SPACE}">{inside}</w:{kind}s>'


def test_notes_of_a_docx_are_read_at_their_marks(tmp_path: Path) -> None:
    said = "<w:r><w:t>The bell</w:t></w:r>"
    body = (
        f"<w:p>{said}{mark('footnote', 2)}<w:r><w:t> rang</w:t></w:r>{mark('endnote', 2)}</w:p>"
        f"<w:p>{said}{mark('comment', 7)}{mark('footnote', 2)}{mark('footnote', 9)}</w:p>"
    )
    foot = f"{word('Cast in')}{word('Brno.')}<w:p>{mark('comment', 8)}</w:p>"
    found = docx_lines(
        tmp_path, body,
        footnotes=member("footnote", {-1: word("---"), 2: foot}),
        endnotes=member("endnote", {2: word("At noon.")}),
        comments=member("comment", {7: word("Sure?"), 8: word("Check.")}, 'w:author="Liv"'),
    )  # fmt: skip
    assert found == [
        "The bell [Footnote: Cast in Brno. [Comment by Liv: Check.]] rang [Endnote: At noon.]",
        "The bell [Comment by Liv: Sure?]",
    ]


@pytest.mark.parametrize("target", ["notes/two.xml", "/word/notes/two.xml"])
def test_notes_of_a_docx_are_found_by_their_relation(tmp_path: Path, target: str) -> None:
    relation = f'<R Type="http://a/officeDocument/footnotes" Target="{target}"/>'
    members = {
        "word/_rels/document.xml.rels": f"<Rs>{relation}</Rs>",
        "word/notes/two.xml": member("footnote", {1: word("Cast in Brno.")}),
    }
    body = f"<w:p><w:r><w:t>The bell</w:t></w:r>{mark('footnote', 1)}</w:p>"
    assert docx_lines(tmp_path, body, **members) == ["The bell [Footnote: Cast in Brno.]"]


def test_damaged_notes_of_a_docx_are_told(tmp_path: Path) -> None:
    warnings: list[str] = []
    body = word("It rained.") + f"<w:p>{mark('footnote', 1)}</w:p>"
    assert docx_lines(tmp_path, body, warnings, footnotes="<w:footnotes>") == ["It rained."]
    assert len(warnings) == 1
    assert "word/footnotes.xml" in warnings[0]
