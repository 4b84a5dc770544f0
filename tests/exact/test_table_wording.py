"""Questions about tables that are read by models of their wording, where rules do not fit."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.exact.table_marks import marked_query
from kvstream.exact.table_questions import AmbiguousError, Condition, Query
from kvstream.exact.table_replies import RowQuestions
from kvstream.exact.table_wording import CLASSES, OPERATIONS
from kvstream.exact.tables import sample_of
from kvstream.input.blocks import TextBlock
from kvstream.input.table_reader import Row

LAB = Path(__file__).parents[2] / "docs" / "research" / "lab"
HEADER = ["seller", "city", "boxes", "delivered", "cargo_kg", "sold_on"]
ROWS = [
    Row([name, city, f"{n}", ("yes", "no")[n % 2], f"{n * 7}.5", f"2024-0{n}-03"], 0, 0, 0)
    for n, (name, city) in enumerate((("Ada", "Oslo"), ("Bea", "Rome"), ("Cem", "Oslo")), 3)
]
SAMPLE = sample_of(ROWS, len(HEADER), ["sales.csv"], complete=True)


def test_held_out_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/research/answers.md says of them: many are computed, few of the others."""
    monkeypatch.syspath_prepend(str(LAB))
    lab = pytest.importorskip("table_wording")
    tables, questions = lab.read([LAB / "questions" / "held-out-tables.txt"])
    found = [(q.operation == "other", lab.query_right(q, tables[q.table])) for q in questions]
    others = [right for other, right in found if other]
    computable = [right for other, right in found if not other]
    assert len(others) - others.count(None) <= 3
    assert computable.count(True) >= 33
    assert computable.count(False) <= 7


def test_what_no_rule_reads() -> None:
    query = marked_query("How many boxes were shipped from Rome altogether?", HEADER, SAMPLE)
    where = (Condition(1, "=", "Rome", stated=False),)
    assert query == Query("sum", 2, where=where)
    assert marked_query("Why did Rome get so few?", HEADER, SAMPLE) is None


def test_what_the_table_does_not_have_is_no_query() -> None:
    """A column that is as numeric as the one that is asked for, or a value that no row has."""
    header = ["seller", "city", "boxes", "status"]
    rows = [
        Row([f"Ada {n}", ("Oslo", "Rome")[n % 2], f"{n}", ("paid", "open")[n % 2]], 0, 0, 0)
        for n in range(3, 9)
    ]
    sample = sample_of(rows, len(header), ["sales.csv"], complete=True)
    for question in (
        "What is the mean age?",
        "What was the total temperature in Rome?",
        "How many rows have status cancelled?",
    ):
        assert marked_query(question, header, sample) is None


def test_a_table_beside_other_text_is_read_by_rules_alone() -> None:
    every = [HEADER, *(row.cells for row in ROWS)]
    whole = "\n".join(",".join(row) for row in every)
    lines = [f"| {' | '.join(row)} |" for row in (every[0], ["---"] * len(HEADER), *every[1:])]
    beside = "\n".join(["# Rome", "", "It was late.", "", *lines, "", "She slept.", ""])
    for text, computed in ((whole, 1), (beside, 0)):
        blocks = [TextBlock(text, 0, 0)]
        asked = "How many boxes were shipped from Rome altogether?"
        assert len(RowQuestions(blocks, ["sales"], [asked])) == computed
        assert len(RowQuestions(blocks, ["sales"], ["What is the sum of boxes?"])) == 1


WORDS = st.lists(
    st.sampled_from([
        *CLASSES, *HEADER, *(cell for row in ROWS for cell in row.cells), "which", "who", "rows",
        "than", "how", "many", "where", "is", "and", "May 2024", "3 May 2024", '"x"', "?", "-",
    ]),
    max_size=12,
)  # fmt: skip


@given(words=WORDS, odd=st.booleans())
def test_no_words_end_in_an_error(words: list[str], odd: bool) -> None:
    header = ["", "per", "boxes", "-", "boxes", "city"] if odd else HEADER
    sample = sample_of(ROWS, len(header), ["boxes.csv"], complete=not odd)
    with suppress(AmbiguousError):
        if query := marked_query(" ".join(words), header, sample):
            columns = {query.of, query.show, query.by, *(each.column for each in query.where)}
            assert columns - {None} <= {*range(len(header))}
            assert query.operation in {each.rstrip("<>") for each in OPERATIONS}


def test_wide_tables_are_left_to_rules() -> None:
    header = [*HEADER, *(f"more {n}" for n in range(300))]
    assert marked_query("How many boxes were shipped from Rome?", header, SAMPLE) is None
