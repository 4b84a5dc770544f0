"""Sources that say the same sentence with another value."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import ANY

import pytest

from kvstream.answer.versions import disagreement, versions
from kvstream.tokenization.passages import Passage


def passages(*texts: tuple[int, str]) -> list[Passage]:
    return [
        Passage(source, 100 * n, 100 * n + len(text), n + 1, n + 1, text)
        for n, (source, text) in enumerate(texts)
    ]


@pytest.mark.parametrize(
    ("answer", "first", "second", "values"),
    [
        ("420 euros", "The oak table costs 420 euros.", "The oak table costs 495 euros.",
         ["420 euros", "495 euros"]),
        ("Anna Berg", "The manager of the mill is Anna Berg.", "The manager of the mill is Otto.",
         ["Anna Berg", "Otto"]),
        ("on 3 May", "The fair opens on 3 May 2025.", "The fair opens on 17 May 2025.",
         ["3 May", "17 May"]),
        ("4 euros", "The price is 4 euros.", "After the talk with us, the price is 5 euros.",
         ["4 euros", "5 euros"]),
        ("5 euros", "As we said, after all, the price is 5 euros.", "The price is 4 euros.",
         ["5 euros", "4 euros"]),
        ("3 May", "THE FAIR OPENS ON 3 MAY.", "- The fair opens on 4 May", ["3 MAY", "4 May"]),
    ],
)  # fmt: skip
def test_versions_of_a_sentence(answer: str, first: str, second: str, values: list[str]) -> None:
    found = versions(answer, passages((0, first), (0, "Something else stands here."), (1, second)))
    assert [value for value, _ in found] == values


@pytest.mark.parametrize(
    ("answer", "first", "second"),
    [
        ("420 euros", "The oak table costs 420 euros.", "The oak table costs 420 euros."),
        ("420 euros", "The oak table costs 420 euros.", "The pine table costs 495 euros."),
        ("420 euros", "The oak table costs 420 euros.", "The oak table costs too much."),
        ("4 euros", "In May, the price is 4 euros.", "In June, the price is 5 euros."),
        ("oak", "The oak table costs 420 euros.", "The oak table costs 495 euros."),
        ("in 1820", "Anna was born in 1820.", "Anna was born in Paris."),
        ("420", "oak: 420", "oak: 495"),
        ("9", "Room 12 opens at 9.", "Room 14 opens at 9."),
        ("", "The oak table costs 420 euros.", "The oak table costs 495 euros."),
    ],
)  # fmt: skip
def test_no_versions(answer: str, first: str, second: str) -> None:
    assert versions(answer, passages((0, first), (1, second))) == []
    # One source does not disagree with itself.
    assert versions("420 euros", passages((0, first), (0, second))) == []


def test_the_newest_is_first_and_only_some_are_named() -> None:
    names = ["list-2024.md", "list-2026.md", "list-2025.md", "old.md"]
    some = passages(
        *((i, f"The lamp costs {38 + i} euros today.") for i in range(4)), (3, "Of 2023-05-02.")
    )
    told = (
        "The sources disagree: 39 euros (list-2026.md:2); 40 euros (list-2025.md:3); 38 euros "
        "(list-2024.md:1); 1 more."
    )
    answer = "39 euros (list-2026.md:2); in an older source: 38 euros"
    assert disagreement("38 euros", some, names) == (told, answer)
    assert disagreement("38 euros", some, names, "What was the price?") == (told, "38 euros")
    assert disagreement("39 euros", some, names) == (told, "39 euros")
    assert disagreement("41 euros", [some[0], some[3], some[4]], names) == (
        "The sources disagree: 38 euros (list-2024.md:1); 41 euros (old.md:4, 2023-05-02).",
        "38 euros (list-2024.md:1); in an older source: 41 euros",
    )
    undated = [some[0], some[3]]  # the day of a sentence that is compared is not that of its source
    dated = passages((0, "The fair opens on 2 May 2025."), (3, "The fair opens on 7 May 2025."))
    for two, said in ((undated, "38 euros"), (dated, "2 May 2025")):
        assert disagreement(said, two, ["a.md"] * 4) == (ANY, said)
    assert disagreement("38 euros", some[:1], names) is None


def test_versions_may_go_on_in_other_words() -> None:
    some = passages(
        (0, "The summer meeting takes place on 14 June 2026 in the hall."),
        (1, "The summer meeting takes place on 21 June 2026, because the hall is being painted."),
    )
    assert [value for value, _ in versions("14 June 2026", some)] == ["14 June", "21 June"]
    some = passages((0, "The fee is 25 euros."), (1, "The fee is 32 euros, drinks included."))
    assert "32 euros" in [value for value, _ in versions("25 euros", some)]
    other = passages((0, "It costs 25 euros in May."), (1, "It costs 32 euros at the door."))
    assert versions("25 euros", other) == []


def test_many_sentences_take_no_time() -> None:
    many = passages(
        *((n % 7, f"The {n} lamps of room {n * n} cost {n} euros.") for n in range(3000))
    )
    began = time.process_time()
    assert versions("The lamps cost 5 euros", many) == []
    assert time.process_time() - began < 3


@pytest.mark.whole_pocket
def test_an_answer_from_a_folder_names_both(cli, tmp_path: Path) -> None:
    for year, price in ((2025, 420), (2026, 495)):
        (tmp_path / f"{year}.md").write_text(f"# Prices\n\nThe oak table costs {price} euros.\n")
    done = cli("ask", str(tmp_path), "What does the oak table cost?", "-m", "pocket")
    assert done.code == 0
    assert "Warning: The sources disagree: 495 euros (" in done.stderr
    assert done.stdout.startswith("495 euros (")
    assert "420 euros (" in done.stderr
