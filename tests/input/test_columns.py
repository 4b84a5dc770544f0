"""Columns of a PDF that are drawn row by row, and tables, which stay as they are."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from make_documents import pdf

from kvstream.input.documents import parts_of

pytest.importorskip("pypdfium2")

LEFT = (
    "The harbor master of Tolvik kept a book in which every boat had a page of its own. He wrote "
    "down when it left, who was on board and what it carried. In the winter of the great ice "
    "nobody sailed for nine weeks, and the book has one line for each of these days."
)
RIGHT = (
    "His daughter found the book in an attic when she was already old. She gave it to the museum "
    "in the town, where a student copied it by hand. The copy is all that is left today, because "
    "the museum burned down in the year after, together with the boats in its yard."
)
THIRD = (
    "Nobody knows why the master stopped in the middle of a page. Some say that he saw a ship "
    "that he could not name. Others say that he had run out of ink, and that the shop was closed "
    "until the ice was gone."
)
Text = tuple[float, float, str]
"""Left, baseline and text."""


def shown(texts: list[Text]) -> bytes:
    drawn = (
        b"1 0 0 1 %.1f %.1f Tm (%s) Tj"
        % (x, y, text.replace("(", r"\(").replace(")", r"\)").encode("latin-1"))
        for x, y, text in texts
    )
    return b"BT /F1 9 Tf " + b" ".join(drawn) + b" ET"


def by_row(*columns: list[str], step: float = 240, top: float = 700) -> list[Text]:
    """Return the lines of columns, row by row."""
    return [
        (50 + step * place, top - 12 * row, column[row])
        for row in range(max(map(len, columns)))
        for place, column in enumerate(columns)
        if row < len(column) and column[row]
    ]


def read(folder: Path, *pages: list[Text]) -> tuple[list[str], list[str]]:
    """Return the pages and the notes."""
    path, notes = folder / "a.pdf", []
    path.write_bytes(pdf([shown(page) for page in pages]))
    return [part.text for part in parts_of("pdf", path, notes, [])], notes


def lines(text: str, width: int = 42) -> list[str]:
    return textwrap.wrap(text, width)


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [30, 42])
def test_columns_that_are_drawn_row_by_row_are_read_one_after_the_other(
    tmp_path: Path, width: int
) -> None:
    title: Text = (120, 740, "The book of the harbor, a history in two columns of text")
    end: Text = (
        50,
        200,
        "This line below the columns goes from one side to the other, as it does.",
    )
    page = [title, *by_row(lines(LEFT, width), lines(RIGHT, width)), end]
    [text], notes = read(tmp_path, page)
    assert flat(text) == f"{title[2]} {LEFT} {RIGHT} {end[2]}"
    assert not notes


def test_three_columns_and_words_that_are_drawn_alone(tmp_path: Path) -> None:
    columns = [lines(text, 26) for text in (LEFT, RIGHT, THIRD)]
    [text], _ = read(tmp_path, by_row(*columns, step=170))
    assert flat(text) == f"{LEFT} {RIGHT} {THIRD}"
    single = [
        (x + 5.2 * at, y, word)
        for x, y, line in by_row(lines(LEFT), lines(RIGHT))
        for at, word in ((line.index(word), word) for word in dict.fromkeys(line.split()))
    ]
    [text], notes = read(tmp_path, single)
    assert text.index("His daughter") > text.index("each of")
    assert not notes


def test_lines_that_are_drawn_from_the_bottom_are_read_from_the_top(tmp_path: Path) -> None:
    columns = by_row(lines(LEFT), lines(RIGHT))
    pages = [by_row(lines(LEFT)), columns, by_row(["Ship", "Gull", "Tern"] * 2, list("123456"))]
    falling, _ = read(tmp_path, *pages)
    rising, notes = read(tmp_path, *(page[::-1] for page in pages))
    assert rising[0].splitlines() == lines(LEFT)
    assert (rising[1:], notes) == (falling[1:], [])


def test_columns_that_are_drawn_one_after_the_other_stay(tmp_path: Path) -> None:
    page = sorted(by_row(lines(LEFT), lines(RIGHT)), key=lambda text: text[0])
    [text], notes = read(tmp_path, page)
    assert flat(text) == f"{LEFT} {RIGHT}"
    assert not notes


TABLES = {
    "numbers": (["Boat", "Gull", "Tern", "Skua"], ["Length", "12.5", "9.0", "7.25"],
                ["Crew of the boat", "4", "3", "2"]),
    "phrases": (["the mast of the old boat", "sails for a storm", "the anchor and its chain",
                 "two oars of ash", "a lamp for the night watch"],
                ["was repaired in May", "are in the loft behind the house", "lost near Tolvik",
                 "borrowed by the master of the port", "works well"]),
    "sentences": (["Where is the mast?", "Who has the sails?", "Is the anchor lost?",
                   "And the oars?"],
                  ["It is in the loft.", "Ole has all of them.", "Yes, near the port.",
                   "Liv took both of them."]),
    "names": (["Liv Berg, the owner", "Ole Dahl, her mate", "Kari Moe, the cook"],
              ["lives in Tolvik since 1999", "moved to the islands", "left for the south in May"]),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_not_torn_apart(tmp_path: Path, name: str) -> None:
    columns = TABLES[name]
    [text], _ = read(tmp_path, by_row(*columns))
    assert [flat(line) for line in text.strip().split("\n")] == [
        " | ".join(row) for row in zip(*columns, strict=True)
    ]


def test_cells_of_several_lines_stay_together(tmp_path: Path) -> None:
    page: list[Text] = []
    cells = [LEFT[:110], RIGHT[:110]], [RIGHT[110:200], THIRD[:110]], [THIRD[110:], LEFT[110:200]]
    for number, (left, right) in enumerate(cells):
        page += by_row(lines(left), lines(right), top=700 - 80 * number)
    [text], _ = read(tmp_path, page)
    places = [flat(text).index(" ".join(lines(cell))) for row in cells for cell in row]
    assert places == sorted(places)


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_a_page_that_is_turned_keeps_the_order_of_its_lines(tmp_path: Path, turn: int) -> None:
    lines = [f"Line {number} of the text." for number in range(9)]
    shown = b"".join(
        b"BT /F1 10 Tf 50 %d Td (%s) Tj ET " % (700 - 12 * number, line.encode())
        for number, line in enumerate(lines)
    )
    page = pdf([shown]).replace(b"/MediaBox", b"/Rotate %d /MediaBox" % turn)
    (tmp_path / "a.pdf").write_bytes(page)
    found = [part.text for part in parts_of("pdf", tmp_path / "a.pdf", [], [])]
    assert "".join(found).splitlines() == lines


def test_a_doubtful_order_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    mixed = [line if i % 3 else "an item of it" for i, line in enumerate(lines(LEFT))]
    [text], notes = read(tmp_path, by_row(mixed, lines(RIGHT)))
    assert sorted("".join(text.replace("|", "").split())) == sorted(
        "".join([*mixed, *lines(RIGHT)]).replace(" ", "")
    )
    assert notes == [f"{tmp_path / 'a.pdf'}: the order of the columns is doubtful on 1 of 1 pages."]


def test_columns_of_other_heights_that_are_drawn_in_turn_are_told(tmp_path: Path) -> None:
    page = [(x, y - 6 * (x > 60), text) for x, y, text in by_row(lines(LEFT), lines(RIGHT))]
    told = f"{tmp_path / 'a.pdf'}: the order of the columns is doubtful on 1 of 1 pages."
    assert read(tmp_path, page)[1] == [told]
    assert read(tmp_path, sorted(page))[1] == []


@pytest.mark.parametrize("turn", [b"0 1 -1 0 750 0 cm ", b"0 -1 1 0 -150 750 cm "])
def test_text_that_runs_upward_or_downward_is_read_as_if_it_were_upright(
    tmp_path: Path, turn: bytes
) -> None:
    rows = by_row(["Ship", "Gull", "Swan"], ["Crew", "12", "33"], ["Port", "Brno", "Riga"], step=90)
    prose = [(50, 700 - 12 * number, line) for number, line in enumerate(lines(LEFT))]
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf([turn + shown(page) for page in (prose, rows)]))
    text, table = (part.text for part in parts_of("pdf", path, [], []))
    assert text.splitlines() == lines(LEFT)
    assert table.splitlines() == ["Ship | Crew | Port", "Gull | 12 | Brno", "Swan | 33 | Riga"]
