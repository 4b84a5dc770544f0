"""Citations in a terminal: within its width, without control characters, few and short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kvstream.reporters.citation_lines import citation_lines


def cited(text: str, source: str = "book.txt", weight: float = 0.5) -> dict[str, object]:
    return {
        "source": source, "byte_start": 0, "byte_end": 9, "line_start": 12, "line_end": 14,
        "text": text, "weight": weight,
    }  # fmt: skip


def test_source_lines_weight_and_text() -> None:
    shown = citation_lines([cited("It was\nlate.", weight=0.714)] * 5, 80)
    assert shown[2:4] == ["[1] book.txt:12-14 (71%)", "    It was late."]
    assert len(shown) == 2 + 3 * 2


def test_pages_and_chapters_instead_of_lines() -> None:
    nothing = dict.fromkeys(("line_start", "line_end", "page", "page_end", "chapter"))

    def head(**place: object) -> str:
        return citation_lines([cited("It was late.") | nothing | place], 80)[2]

    assert head(page=212, page_end=212) == "[1] book.txt p. 212 (50%)"
    assert head(page=212, page_end=213) == "[1] book.txt pp. 212-213 (50%)"
    assert head(chapter="The\nGate") == "[1] book.txt, The Gate (50%)"
    assert head(chapter="x" * 60) == f"[1] book.txt, {'x' * 21}... (50%)"
    assert head() == "[1] book.txt (50%)"
    wide = cited("late", "long/" * 30) | nothing | {"chapter": "京都の駅と東京の空港の話"}
    assert cell_len(citation_lines([wide], 80)[2]) == 80


@given(st.text(max_size=400), st.text(min_size=1, max_size=120), st.integers(40, 120))
def test_no_line_is_wider_than_the_terminal(text: str, source: str, width: int) -> None:
    shown = citation_lines([cited(text, source)], width)
    assert all(cell_len(line) <= width for line in shown)
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for line in shown for char in line)


def test_what_is_left_out_is_marked() -> None:
    shown = citation_lines([cited("word " * 100)], 80)
    assert len(shown) == 5
    assert shown[-1].endswith(" ...")
    assert citation_lines([cited("漢" * 100)], 80)[-1].endswith(" ...")
    assert citation_lines([], 80) == []


def test_a_long_passage_is_cut_between_words() -> None:
    text = " ".join(f"extraordinary{n}" for n in range(40))
    for width in range(40, 100):
        *_, last = citation_lines([cited(text)], width)
        assert set(last.removesuffix(" ...").split()) <= set(text.split())


def test_a_long_passage_shows_the_words_of_the_answer() -> None:
    text = (
        "It was late. " * 30 + "The cab was driven by Jefferson Hope that night. " + "Rain. " * 60
    )
    shown = citation_lines([cited(text)], 80, "Jefferson Hope")
    assert len(shown) == 5
    assert "driven by Jefferson Hope that night" in " ".join(line.strip() for line in shown)
    assert shown[3].startswith("    ... ")
    assert shown[4].endswith(" ...")
    assert citation_lines([cited(text)], 80, "Nobody")[3].startswith("    It was late.")
