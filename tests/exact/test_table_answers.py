"""Figures of tables equal those of a slow, obvious computation; questions go the right way."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.cli.shared.exact_answers import LARGER, NO_FIGURE
from kvstream.exact.table_questions import (
    AmbiguousError,
    Condition,
    Query,
    may_ask,
    query_of,
)
from kvstream.exact.table_words import EMPTY, GROUPS, LINKS, OPERATION, OPERATIONS
from kvstream.exact.table_words import PHRASES as PHRASES_OF
from kvstream.exact.tables import Found, Numbers, compute, sample_of
from kvstream.input import table_reader
from kvstream.input.blocks import TextBlock
from kvstream.input.sources import open_sources
from kvstream.input.table_reader import NotReadError, Row, Table, header_of, tables_of
from kvstream.passages.excerpts import Excerpts, excerpts_of
from kvstream.passages.memory import PassageMemory

HEADER = ["order_id", "Customer Name", "city", "UnitPrice", "total_price", "status", "qty", "note"]
ID, NAME, CITY, UNIT, TOTAL, STATUS, QTY, NOTE = range(8)


def where(*conditions: tuple[Any, ...]) -> tuple[Condition, ...]:
    return tuple(Condition(*each) for each in conditions)


OK = (STATUS, "=", "ok", "", False)
QUESTIONS = {
    "Which row has the largest unit price?": Query("max", UNIT),
    "which record has the smallest quantity": None,  # no such column: the model
    "What is the highest total_price?": Query("max", TOTAL),
    "What's the lowest unit price?": Query("min", UNIT),
    "Which city has the highest total price?": Query("max", TOTAL, CITY),
    "Which customer has the lowest qty?": Query("min", QTY, NAME),
    "Who has the highest total price?": Query("max", TOTAL),
    "In which city is the unit price the highest?": Query("max", UNIT, CITY),
    "Show me the row with the smallest total price": Query("min", TOTAL),
    "What is the name of the customer with the highest total price?": Query("max", TOTAL, NAME),
    "What is the maximum of the column 'UnitPrice'?": Query("max", UNIT),
    "max qty": Query("max", QTY),
    "What is the sum of total_price?": Query("sum", TOTAL),
    "sum of all unit prices": Query("sum", UNIT),
    "What is the total qty?": Query("sum", QTY),
    "How much is the total of the total price?": Query("sum", TOTAL),
    "What do the unit prices add up to?": Query("sum", UNIT),
    "Calculate the average unit price.": Query("mean", UNIT),
    "What's the mean qty in this table?": Query("mean", QTY),
    "Please give me the median of the total price": Query("median", TOTAL),
    "What is the average unit price where status is ok?":
        Query("mean", UNIT, where=where((STATUS, "=", "ok"))),
    "Total qty in Berlin": Query("sum", QTY, anywhere="Berlin"),
    "What is the average total price of laptops?": Query("mean", TOTAL, anywhere="laptops"),
    "How many rows are there?": Query("count"),
    "how many rows does the file have": Query("count"),
    "How many rows have status ok?": Query("count", where=where(OK)),
    "How many rows where the status is ok?": Query("count", where=where((STATUS, "=", "ok"))),
    "How many records have a unit price above 100?":
        Query("count", where=where((UNIT, ">", "100"))),
    "How many rows where qty >= 3 and status is not ok?":
        Query("count", where=where((QTY, ">=", "3"), (STATUS, "!=", "ok"))),
    "How many orders have status ok?": Query("count", show=ID, where=where(OK)),
    "Count the rows where city is 'New York'":
        Query("count", where=where((CITY, "=", "New York"))),
    "number of rows with qty between 3 and 5":
        Query("count", where=where((QTY, "between", "3", "5"))),
    "How many rows have an empty note?": Query("count", where=where((NOTE, "empty"))),
    "How many rows without a note?": Query("count", where=where((NOTE, "empty"))),
    "How many orders are from Berlin?": Query("count", show=ID, anywhere="Berlin"),
    "How many different cities are there?": Query("distinct", show=CITY),
    "List all cities where status is ok":
        Query("list", show=CITY, where=where((STATUS, "=", "ok"))),
    "list the customer names with unit price below 5":
        Query("list", show=NAME, where=where((UNIT, "<", "5"))),
    "List all rows where the note contains urgent":
        Query("list", where=where((NOTE, "contains", "urgent"))),
    "Which orders have status failed?":
        Query("list", show=ID, where=where((STATUS, "=", "failed", "", False))),
    "List all customers in the New York": Query("list", show=NAME, anywhere="New York"),
    "Which rows have qty at least 7?": Query("list", where=where((QTY, ">=", "7"))),
    "What is the biggest number of qty?": Query("max", QTY),
    "Who gets the lowest number of qty": Query("min", QTY),
    "what was the latest order id": Query("max", ID),
    "average unit price of a laptop": Query("mean", UNIT, anywhere="laptop"),
    "highest total price in the Rome city":
        Query("max", TOTAL, where=where((CITY, "=", "Rome", "", False))),
    "lowest qty for status failed":
        Query("min", QTY, where=where((STATUS, "=", "failed", "", False))),
    "What is the total qty of all the orders?": Query("sum", QTY),
    "What is the mean total price of all cities": Query("mean", TOTAL),
    "sum of the unit prices of all rows": Query("sum", UNIT),
    "What is the total number of qty for city Rome?":
        Query("sum", QTY, where=where((CITY, "=", "Rome", "", False))),
    "total number of rows": Query("count"),
    "How many rows are about laptops?": Query("count", anywhere="laptops"),
    "Show all order ids whose city starts with B":
        Query("list", show=ID, where=where((CITY, "starts", "B"))),
}  # fmt: skip
OTHERS = (
    "What is this table about?", "Why did order 3 fail?", "What is the status of order 3?",
    "Who is the customer of order 17?", "Summarize the notes.", "What city is order 3 in?",
    "What happened to the order of Ms. Ada?", "Which city is the capital of France?",
    "Is the unit price of order 5 right?", "What is the largest planet?", "When was it paid?",
    "What is the most surprising thing here?", "Describe the data", "How is the price computed?",
    "What is the best customer?", "Which orders are late?", "What does status ok mean?",
    "How many times is Berlin mentioned?", "What is the trend of the prices over time?",
    "What is the total number of planets?", "List all problems", "Which products sell best?",
    "How many people live in Paris?", "Compare Berlin and Paris", "What is the average rainfall?",
    "What is the correlation of qty and price?", "Do the notes mention a refund?",
    "What are the total orders?", "What is the largest order?", "List the problems in Berlin",
    "What is the sum of the squares of the planets?", "Who has the most to lose?",
)  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions(question: str) -> None:
    assert may_ask(question)
    assert query_of(question, HEADER) == QUESTIONS[question]


@pytest.mark.parametrize("question", OTHERS)
def test_others(question: str) -> None:
    assert query_of(question, HEADER) is None


STAFF = [
    ["Ada", "Oslo", "North", "12", "yes", "30.5", "41"],
    ["Bea", "Rome", "South", "7", "no", "12.25", "28"],
    ["Cem", "Oslo", "South", "40", "no", "99", "35"],
    ["Dee", "Bari", "North", "3", "yes", "7", "64"],
]
STAFF_ROWS = [Row(cells, 0, 0, 0) for cells in STAFF]
STAFF_HEADER = ["seller", "city", "region", "boxes", "delivered", "latency_ms", "age"]
SELLER, TOWN, REGION, BOXES, DELIVERED, LATENCY, AGE = range(7)
BY_WORDS = {
    "which city sold the most boxes over the whole year?": Query("sum", BOXES, by=TOWN, best="max"),
    "Who of the sellers has the most boxes": Query("max", BOXES, SELLER),
    "boxes per region": None,  # which figure of them is not said
    "total boxes per region?": Query("sum", BOXES, by=REGION),
    "I'd like to know the average age for each city": Query("mean", AGE, by=TOWN),
    "which region has the highest average latency?":
        Query("mean", LATENCY, by=REGION, best="max"),
    "how many rows per city": Query("count", by=TOWN),
    "How many boxes did Cem sell in total?":
        Query("sum", BOXES, where=where((SELLER, "=", "Cem", "", False))),
    "how many sellers are from the South region":
        Query("count", show=SELLER, where=where((REGION, "=", "South", "", False))),
    "how many orders came from Oslo, please":
        Query("count", where=where((TOWN, "=", "Oslo", "", False))),
    "how many of the boxes were sold in the north":
        Query("sum", BOXES, where=where((REGION, "=", "North", "", False))),
    "what's the total of all boxes of the Oslo people":
        Query("sum", BOXES, where=where((TOWN, "=", "Oslo", "", False))),
    "how many orders were signed by Bea":
        Query("count", where=where((SELLER, "=", "Bea", "", False))),
    "How many boxes haven't been delivered yet?":
        Query("sum", BOXES, where=where((DELIVERED, "=", "no"))),
    "how many sellers with more than 10 boxes":
        Query("count", show=SELLER, where=where((BOXES, ">", "10"))),
    "on how many days did we sell at least 7 boxes?":
        Query("count", where=where((BOXES, ">=", "7"))),
    "show me the slowest request": Query("max", LATENCY),
    "which seller is the oldest?": Query("max", AGE, SELLER),
    "smallest latency, and in which city?": Query("min", LATENCY, TOWN),
    "add up the ages of all the sellers": Query("sum", AGE),
    "what do the boxes of the north come to in total?":
        Query("sum", BOXES, where=where((REGION, "=", "North", "", False))),
    "count the orders that came in through Oslo":
        Query("count", where=where((TOWN, "=", "Oslo", "", False))),
    "how many boxes do all sellers in the north have together?":
        Query("sum", BOXES, where=where((REGION, "=", "North", "", False))),
    "list the sellers with a latency over 20 ms":
        Query("list", show=SELLER, where=where((LATENCY, ">", "20"))),
    "which city has the most sales": Query("count", by=TOWN, best="max"),
    "rows with boxes above 5": Query("list", where=where((BOXES, ">", "5"))),
}  # fmt: skip
NOT_BY_WORDS = (
    "how many sellers are younger than Ada", "how many people sell as much as Ada",
    "average age of the sellers who started with Ada", "how many sellers report to Ada",
    "total boxes of Ada and everyone in Oslo", "how many cities have more than 3 boxes",
    "how many regions have more than 2 rows", "what is the third highest age",
    "the two largest ages", "sum of boxes for all but Oslo", "what is the weighted mean of age",
    "how many rows where age is not above 30 or so", "how many other rows are there",
    "how many rows where age is from 20 to 40", "how many rows where age is negative",
    "how many rows where city is not after Oslo", "how many Oslo boxes were returned",
    "boxes per age on average", "average boxes per region per city",
    "which city has the most boxes per age", "how many boxes were lost by Ada",
    "how many sellers know Ada", "total latency of all the boxes",
    "Which city has the most complaints?", "How many people died in Oslo?",
    "How many orders were cancelled in Oslo?", "What is the most likely reason for the age of Ada?",
    "How many times did Ada visit Rome?", "how many boxes were not sold in the north",
    "average age of the pilots", "How many sellers from Oslo or Rome are there?",
    "Why did Oslo sell the most boxes?", "What is the average temperature in Oslo?",
    "Which seller should get the most boxes next year?", "total boxes of Ada and Bea",
    "How many children has Ada?", "how often is Oslo the first city", "the most important city",
    "Which region is between Oslo and Rome?", "mean boxes and ages", "who is older than Ada",
    "How many more boxes than Bea did Ada sell?", "what share of the boxes came from Rome",
)  # fmt: skip


@pytest.mark.parametrize("question", [*BY_WORDS, *NOT_BY_WORDS])
def test_values_of_the_first_rows_are_known(question: str) -> None:
    sample = sample_of(
        [Row(cells, 0, 0, 0) for cells in STAFF], len(STAFF_HEADER), ["sales.csv"], complete=True
    )
    assert query_of(question, STAFF_HEADER, sample) == BY_WORDS.get(question)
    assert may_ask(question) or BY_WORDS.get(question) is None


BOOKS = ["title", "author", "genre", "year", "pages", "rating", "humidity", "added", "lent"]
TITLE, AUTHOR, GENRE, YEAR, PAGES, RATING, HUMID, ADDED, LENT = range(9)
CREW = ["name", "team", "hired", "remote"]
KINDS = {
    "number of stolen crime books": None,
    "number of crime books": Query("count", where=where((GENRE, "=", "crime", "", False))),
    "how many books are not crime": Query("count", where=where((GENRE, "!=", "crime", "", False))),
    "how many books are not printed in crime": None,
    "how many books were not lent?": Query("count", where=where((LENT, "=", "no"))),
    "which authors have no lent book": None,  # a row without one says nothing of the others
    "how many people work remotely": Query("count", where=where((3, "=", "yes"))),
    "how many people work for Ada": None,
    "how many people read crime": None,  # rows are books
    "team with the most people": Query("count", by=1, best="max"),
    "genre with the most people": None,
    "which author has the most lent books":
        Query("count", where=where((LENT, "=", "yes")), by=AUTHOR, best="max"),
    "which author has the fewest lent books": None,  # one may have none
    "which genre is the most lent": None,
    "how many authors are there?": Query("distinct", show=AUTHOR),
    "how many ratings are there?": None,
    "how many books are there": Query("count"), "how many bad books are there": None,
    "If I burned every book, how many would be left": None,
    "who was hired first?": None, "who is the oldest": None, "who fell first": None,
    "who was hired first and last": None, "the last row in Sales": None,
    "what is the oldest book": Query("min", YEAR),
    "what is the newest rating": None,
    "list everyone in Sales": Query("list", where=where((1, "=", "Sales", "", False))),
    "list everyone in crime": None,
    "how humid did it get at most in crime":
        Query("max", HUMID, where=where((GENRE, "=", "crime", "", False))),
    "which genre is the most humid": None, "how many books have at least one rating": None,
    "Which novel has the best rating?": Query("max", RATING),
    "which novel has the best year": None, "Which actor has the best rating?": None,
    "If I read every book, how many pages would that be in total?": Query("sum", PAGES),
    "If I burned every second book, how many pages would that be in total?": None,
    "which books are by Bo Ek": Query("list", where=where((AUTHOR, "=", "Bo Ek", "", False))),
    "which books are about Bo Ek": None,
    "how many books are from after 1990": Query("count", where=where((YEAR, ">", "1990"))),
    "how many books after 12": None, "how many books from 1990 on": None,
    "how many books are older than 40 years": None,
    "how many books were added in 2020": Query("count", where=where((ADDED, "starts", "2020"))),
    "list the books shorter than 85 pages": Query("list", where=where((PAGES, "<", "85"))),
    "list the books shorter than 85 minutes": None,
    "who wrote Salt?": Query("list", show=AUTHOR, where=where((TITLE, "=", "Salt", "", False))),
    "who hired Ada": None, "who wrote the preface of Salt": None, "who should write Salt": None,
}  # fmt: skip


@pytest.mark.parametrize("question", KINDS)
def test_kinds_of_words_and_what_is_near_them(question: str) -> None:
    books = [
        [f"Book {i}", ("Bo Ek", "Al Moe")[i % 2], ("crime", "travel")[i // 2 % 2],
         f"{1950 + i * 9}", f"{80 + i * 31}", f"{i / 2}", f"{30 + i / 3}",
         f"202{i % 4}-03-0{i + 1}", ("yes", "no")[i // 3 % 2]] for i in range(8)
    ] + [["Salt", "Bo Ek", "crime", "1990", "99", "2.5", "40", "2021-01-01", "no"]]  # fmt: skip
    crew = [[name, team, f"201{i}-05-01", "yes" if i else "no"] for i, (name, team) in enumerate(
        (("Ada", "Sales"), ("Ben", "Sales"), ("Cem", "Stock")))]  # fmt: skip
    found = []
    for header, cells, name in ((BOOKS, books, "books.csv"), (CREW, crew, "staff.csv")):
        rows = [Row(each, 0, 0, 0) for each in cells]
        sample = sample_of(rows, len(header), [name], complete=True)
        found += filter(None, [query_of(question, header, sample)])
    assert found[:1] == [KINDS[question]] * (KINDS[question] is not None)
    assert may_ask(question) or KINDS[question] is None


PHRASES = st.lists(
    st.sampled_from([
        *" ".join([*EMPTY, *OPERATION, *PHRASES_OF, *LINKS, *GROUPS, *STAFF_HEADER]).split(),
        *(cell for row in STAFF for cell in row), "which", "all", "of", "in", "not", "or", '"x"',
        "more than 5", "between 3 and 9", ">= 7", "boxes", "pilots", "slowest", "'Oslo'", "-", "?",
    ]),
    max_size=12,
)  # fmt: skip


@given(words=PHRASES, odd=st.booleans())
def test_no_words_end_in_an_error(words: list[str], odd: bool) -> None:
    """They name columns that exist, or several columns fit."""
    header = ["", "per", "how many", "-", "boxes", "boxes", "city"] if odd else STAFF_HEADER
    sample = sample_of(
        [Row(cells, 0, 0, 0) for cells in STAFF], len(header), ["most boxes.csv"], complete=not odd
    )
    with suppress(AmbiguousError):
        if query := query_of(" ".join(words), header, sample):
            columns = {query.of, query.show, query.by, *(each.column for each in query.where)}
            assert columns - {None} <= {*range(len(header))}
            assert query.operation in {*OPERATIONS, "list"}


GROUPED = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-9, 99), st.sampled_from("xy")), min_size=1
)


@given(rows=GROUPED, operation=st.sampled_from(["sum", "mean", "count", "max", "median"]))
def test_groups_equal_an_obvious_computation(
    rows: list[tuple[str, int, str]], operation: str
) -> None:
    text = "who,n,place\n" + "".join(f"{who},{n},{place}\n" for who, n, place in rows)
    condition = where((2, "=", "x"))
    query = Query(operation, None if operation == "count" else 1, where=condition, by=0)
    computed = {name: own.value(operation) for name, own in found(text, query).groups.items()}
    obvious = {"sum": sum, "mean": lambda n: Decimal(sum(n)) / len(n), "count": len, "max": max,
               "median": median}[operation]  # fmt: skip
    expected = {
        who: obvious([n for w, n, place in rows if (w, place) == (who, "x")])
        for who in {w for w, _, place in rows if place == "x"}
    }
    assert computed == expected


def test_dates_have_the_order_of_time(ask: Callable[..., Any]) -> None:
    text = "day,city,rain\n2024-01-05,Oslo,3\n2024-02-01T10:00,Rome,5\n2025-01-01,Oslo,4\n,Bari,9\n"
    ran = ask(
        text, "How many rows where day is after 2024-01-05?", "total rain before 2025-01-01",
        "largest rain where day is between 2024-01-01 and 2024-12-31",
        "How many rows where city is after 3?",
        options=("-n", "2", "--budget", "300", "-m", "pocket"),
    )  # fmt: skip
    assert "2 of 4 rows where day > 2024-01-05." in ran.stdout
    assert "The largest rain where day between 2024-01-01 and 2024-12-31 is 5" in ran.stdout
    assert "rows where city is" not in ran.stdout.replace("How many rows where city is", "")


def test_groups_in_words(ask: Callable[..., Any]) -> None:
    text = "seller,city,boxes\nAda,Oslo,3\nBea,Rome,5\nAda,Rome,4\nCem,Oslo,1\nAda,Oslo,2\n"
    ran = ask(
        text,
        "Which seller sold the most boxes?",
        "total boxes per city",
        "how many rows per seller",
    )
    assert "Ada: the largest sum of boxes by seller is 9.\nThen Bea: 5, Cem: 1\n" in ran.stdout
    assert "Sum of boxes by city:\nRome: 9\nOslo: 6\n" in ran.stdout
    assert "Number of rows by seller:\nAda: 3\nBea: 1\nCem: 1\n" in ran.stdout


def test_ambiguous_columns_are_named() -> None:
    for question in ("What is the largest price?", "How many rows have price above 3?"):
        with pytest.raises(AmbiguousError, match=r"UnitPrice, total_price\. Name one"):
            query_of(question, HEADER)


def blocks(text: str, size: int = 7) -> Iterator[TextBlock]:
    for begin in range(0, len(text), size):
        yield TextBlock(text[begin : begin + size], begin, 0)


def found(text: str, query: Query, name: str = "a.csv") -> Found:
    return compute(next(tables_of(blocks(text), [name])), [query])[0]


CELLS = st.sampled_from(
    ["", "1", "2.5", "-3", "1,200", "$4.10", "7%", "n/a", "x", "ok", "OK", 'a "b"', "a,b", "c\nd"]
)
ROWS = st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=30)
VALUES = {"1": "1", "2.5": "2.5", "-3": "-3", "1,200": "1200", "$4.10": "4.10", "7%": "7"}


@given(rows=ROWS)
def test_figures(rows: list[tuple[str, str, str]]) -> None:
    file = io.StringIO()
    csv.writer(file).writerows([("a", "b", "c"), *rows])
    text = file.getvalue()
    rows = [row for row in rows if any(row)]
    numbers = [Decimal(VALUES[row[1]]) for row in rows if row[1] in VALUES]
    slow = {
        "sum": sum(numbers), "mean": sum(numbers) / len(numbers) if numbers else None,
        "max": max(numbers, default=None), "min": min(numbers, default=None),
        "median": median(map(float, numbers)) if numbers else None,
    }  # fmt: skip
    for operation, expected in slow.items():
        figures = found(text, Query(operation, 1)).figures
        assert figures.value(operation) == (expected if numbers else None)
        assert figures.numbers + figures.empty + figures.wrong == figures.rows == len(rows)
        assert figures.empty == sum(row[1] in ("", "n/a") for row in rows)
    best = found(text, Query("max", 1)).figures
    assert best.ties == numbers.count(max(numbers)) if numbers else best.cited == []
    for row in best.cited:  # the cited line has the row
        lines = text.split("\n")[row.line - 1 : row.last]
        assert next(csv.reader(io.StringIO("\n".join(lines)), lineterminator="\r\n")) == row.cells
    for relation, value, holds in (
        ("=", "ok", lambda t: t.lower() == "ok"), ("!=", "ok", lambda t: t.lower() != "ok"),
        ("=", "2.50", lambda t: t == "2.5"), ("empty", "", lambda t: t in ("", "n/a")),
        ("contains", "B", lambda t: "b" in t),
        (">", "2", lambda t: t in VALUES and Decimal(VALUES[t]) > 2),
        ("<=", "2.5", lambda t: t in VALUES and Decimal(VALUES[t]) <= Decimal("2.5")),
    ):  # fmt: skip
        query = Query("list", show=0, where=where((2, relation, value)))
        listed = [text for text, _ in found(text, query).figures.listed]
        assert listed == [row[0] for row in rows if holds(row[2])]


def test_how_numbers_are_written() -> None:
    for column, expected in (
        (["1,234.50", "12", "1,000,000"], ["1234.50", "12", "1000000"]),
        (["1.234,50", "12", "1.000"], ["1234.50", "12", "1000"]),
        (["3,5", "1.234"], ["3.5", "1234"]),
        (["€ 12", "-3 USD", "+4", "1e3", "(5)", "1 234", "12 kg", "2024-01-02", "1,23,4", "."],
         ["12", "-3", "4", "1E+3", "None", "1234", "None", "None", "None", "None"]),
    ):  # fmt: skip
        numbers = Numbers.of(column)
        assert [str(numbers.parse(text)) for text in column] == expected
    assert Numbers.of(["1,234", "5"]).unsure == "1,234"
    assert not Numbers.of(["1,234", "5.5"]).unsure


@pytest.fixture
def ask(cli: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    def asked(text: str, *questions: str, name: str = "a.csv", options: Any = ()) -> Any:
        (tmp_path / name).write_text(text)
        each = [item for question in questions for item in ("-Q", question)]
        return cli("ask", str(tmp_path / name), *each, *options)

    return asked


DAYS = "day,rain,place\n" + "".join(
    f"{i},{'' if i % 61 == 0 else i % 50 / 4},{('Bari', 'Rome', 'rome')[i % 3]}\n"
    for i in range(1, 367)
)


def test_366_rows(ask: Callable[..., Any]) -> None:
    ran = ask(
        DAYS, "How many rows have place Rome?", "Which day has the largest rain?", "sum of rain"
    )
    assert ran.code == 0
    rain = sum(Decimal(i % 50) / 4 for i in range(1, 367) if i % 61)
    assert f"The sum of rain is {rain:,f}, of 360 rows." in ran.stdout
    assert "244 of 366 rows where place is Rome." in ran.stdout
    lines = [i + 1 for i in range(1, 367) if i % 50 == 49]
    told = f"the largest rain is 12.25 (line {lines[0]}, line {lines[1]}"
    assert told in ran.stdout
    assert "Left out: 6 rows without rain." in ran.stderr
    assert "Counted values: Rome (122), rome (122)." in ran.stderr
    assert "Computed from the rows of " in ran.stderr


def test_json_lines(ask: Callable[..., Any]) -> None:
    text = "".join(
        json.dumps({"id": i, "ok": i % 2 == 0, "n": None if i == 4 else i}) + "\n"
        for i in range(102)
    )
    ran = ask(text + "{broken\n", "Which id has the highest n?", "How many rows where ok is true?",
              name="a.jsonl", options=("--json",))  # fmt: skip
    best, true = map(json.loads, ran.stdout.splitlines())
    assert (best["answer"], true["value"]) == ("101: the largest n is 101 (line 102).", 51)
    assert best["citations"][0]["line_start"] == 102
    assert "Left out: 1 line, no JSON object (first: 103)." in best["warnings"]
    assert best["model"] is None
    assert best["receipt"]["input"]["bytes"] == len(text) + len("{broken\n")


def test_ambiguity_is_named(ask: Callable[..., Any]) -> None:
    text = "origin,target,unit_price,total_price\nBerlin,Rome,1,2\nRome,Paris,3,4\nRome,Oslo,5,6\n"
    ran = ask(
        text,
        "What is the largest price?",
        "sum of total price for Rome",
        "How many rows have origin Rom?",
    )
    assert '"price" fits several columns: unit_price, total_price. Name one of them.' in ran.stdout
    assert '"Rome" is a value of several columns: origin, target.' in ran.stdout


def test_what_is_no_table_goes_to_the_model(ask: Callable[..., Any]) -> None:
    for name, text, question in (
        ("a.txt", "The largest city, by far, is Rome.\n" * 3, "What is the largest city?"),
        ("a.csv", 'a,b\n1,"2\n3,4\n' * 3, "What is the largest a?"),
        ("a.csv", "order,city\n1,Rome\n2,Bari\n", "Which orders have order late?"),
    ):  # fmt: skip
        ran = ask(text, question, name=name, options=("-n", "4", "--budget", "300", "--json"))
        assert json.loads(ran.stdout)["model"] == "pocket", (text, ran.stderr)


def test_a_pipe(cli: Callable[..., Any]) -> None:
    ran = cli("ask", "Which day has the largest rain?", "--json", stdin=DAYS.encode())
    assert json.loads(ran.stdout)["rows"] == {"read": 366, "matched": 360}  # 6 cells are empty
    ran = cli("ask", "Which town has the largest snow?", stdin=DAYS.encode())
    assert ran.stdout.startswith(NO_FIGURE)
    both = ("-Q", "Which day has the largest rain?", "-Q", "the largest snow", "-n", "4", "--json")
    assert NO_FIGURE not in cli("ask", *both, stdin=DAYS.encode()).stdout
    ran = cli("ask", "What is it about?", "-n", "4", "--json", stdin=DAYS.encode())
    assert json.loads(ran.stdout)["model"] == "pocket"


def test_each_file_is_computed(ask: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("city,price\nOslo,7\n")
    (tmp_path / "c.txt").write_text("Prices rose in Rome.\n")
    files = (str(tmp_path / "b.csv"), str(tmp_path / "c.txt"))
    question = "Which city has the largest price?"
    text = "city,price\nRome,3\nBari,5\n"
    ran = ask(text, question, options=(*files[:1], "--each"))
    assert f"==> {tmp_path / 'a.csv'} <==\nBari: the largest price is 5 (line 3).\n" in ran.stdout
    assert f"==> {files[0]} <==\nOslo: the largest price is 7 (line 2).\n" in ran.stdout
    ran = ask(text, question, "How many lines are there?", options=(*files, "--each", "--json"))
    records = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [record["document"] for record in records] == [str(tmp_path / "a.csv"), *files, files[1]]
    assert [len(record["answers"]) for record in records] == [2, 2, 1, 1]
    assert records[2]["answers"][0]["answer"] == "There is 1 line."
    assert records[3]["answers"][0]["question"] == question
    assert ran.code == 0


def test_words_that_imply_a_column_of_time(ask: Callable[..., Any]) -> None:
    table = "boat,hours,grade %\nHeron,3,12%\nOtter,9,80%\nSwan,5,31%\n"
    for question, name in (("which boat had the longest rental?", "Otter"),
                           ("the shortest hire", "Heron"), ("poorest grade", "Heron")):  # fmt: skip
        assert name in ask(table, question).stdout


def test_columns_that_do_not_exist_are_named(ask: Callable[..., Any]) -> None:
    for question in ("What is the largest town?", "How many rows where region is 3?",
                     "sum of price in Paris"):  # fmt: skip
        ran = ask("city,price\nRome,3\nBari,5\n", question, options=("--json",))
        answer = json.loads(ran.stdout)
        assert (answer["model"], answer["value"]) == (None, None)
        assert answer["answer"] == f"{NO_FIGURE} Columns: city, price.{LARGER}"
    options = ("-n", "2", "--budget", "300", "-m", "pocket")
    ran = ask("city,price\nRome,3\nBari,5\n", "Which city has a river?", options=options)
    told = 'Warning: nothing in the table fits "Which city has a river?", so the model guesses.'
    assert f"{told} Columns: city, price." in ran.stderr
    ran = ask("city,price\nRome,3\nBari,5\n", "How many rows contain Rome?")
    assert "fits" not in ran.stderr
    ran = ask("It is the largest town.\n", "What is the largest town?", options=options)
    assert "fits" not in ran.stderr


def test_several_files_have_one_header() -> None:
    def two(second: str) -> Table:
        both = [TextBlock("a,b\n1,2\n", 0, 0), TextBlock(second, 8, 1)]
        return next(tables_of(both, ["a.csv", "b.csv"]))

    [both] = compute(two("a,b\n5,x\n"), [Query("max", 0)])
    assert (both.figures.best, both.figures.cited[0].source, both.figures.cited[0].line) == (
        5,
        1,
        2,
    )
    with pytest.raises(NotReadError, match="has other columns"):
        compute(two("a,c\n5,x\n"), [Query("max", 0)])


def test_a_model_reads_the_header_before_every_passage(tmp_path: Path) -> None:
    table = "order,city,status\n" + "".join(f"{i},Rome,ok\n" for i in range(99))
    (tmp_path / "a.csv").write_text(table)
    (tmp_path / "b.txt").write_text("He came, and sat.\nShe left, and ran.\n" * 40)
    sources = open_sources([str(tmp_path / name) for name in ("a.csv", "b.txt")])
    cut = list(excerpts_of(sources))
    rows = [each for each in cut if each.passages[0].source == 0]
    assert len(rows) > 2
    assert all(each.text.startswith("order,city,status\n") for each in rows)
    assert not any("order" in each.own_text for each in rows[1:])
    assert not any(each.header for each in cut[len(rows) :])
    chosen = Excerpts([rows[1], rows[2], cut[-1]], sources.names, sources.bases)
    offsets = [offset for block in chosen for offset in block.offsets().tolist()]
    assert offsets == sorted(offsets)
    texts = "".join(block.text for block in chosen)
    assert texts.count("order,city,status") == 2


def test_kept_rows_keep_their_header(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = "".join(f"{i},{name},{'lost' if i == 70 else 'fine'}\n" for i in range(199))
        (tmp_path / f"{name}.csv").write_text(f"order {name},city,status\n{rows}")
    sources = open_sources([str(tmp_path / name) for name in ("a.csv", "b.csv")])
    memory = PassageMemory(2400, ["Which order was lost?"])
    for block in sources:
        memory.feed(block)
    memory.note(sources.bytes_read, final=True)
    assert memory.dropped
    restored = PassageMemory.of(memory.beside("m", "0", 320), ["Which order was lost?"])
    for held in (memory, restored):
        lost = [each.text for each in held.excerpts if "lost" in each.text]
        assert [text.partition(",")[0] for text in lost] == ["order a", "order b"]
    assert [each.header for each in restored.excerpts] == [e.header for e in memory.excerpts]


def test_lines_that_csv_refuses_have_no_header() -> None:
    for lines in (["a" * 200_000 + ",b,c", "c,d,e"], [""], [], ['"a,b\n', "c,d\n"], ["\n", "\n"]):
        assert header_of(lines) == ""
    assert not [*tables_of(blocks('a,b\nx,"' + "y" * 2_000_000 + '"\n', 50_000), ["a.csv"])]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sep=;\nship;crew;port\nGull;5;Oslo\nTern;7;Rome\n", "a.csv"),
        ("# made by x\nShips,,\n,,\nship,crew,port\nGull,5,Oslo\n,,\nTern,7,Rome\n", "a.csv"),
        ('ship\tcrew\tport\n"Gull\t5\tOslo\nTern"\t7\t"a\nb"\n', "a.tsv"),
        ("ship;crew;port\nGull;5,50;Oslo\nTern;6,50;Rome\n", "a.csv"),
        ("##made by x\n#ship;crew\nGull;5,50\nTern;6,50\n", "a.csv"),
        ("ship,crew,port\nGull,5,Oslo\nship,crew,port\nTern,7,Rome\n", "a.csv"),
        ('ship,"crew\n(men)",port\n"Gull", "5", "a, b"\nTern,7,Rome\nTotal,12,\n', "a.csv"),
        ("|ship|crew|port|\n|-|-|-|\n|Gull|5|Oslo|\n|Tern|**7**|[x](y)|\n", "a.md"),
        ("a\n\n ship | crew \n------+------\n Gull |    5 \n Tern |    7 \n(2 rows)\n", "a.txt"),
        (
            "a\n\n+---+---+\n| ship | crew |\n+---+---+\n| Gull | 5 |\n| Tern | 7 |\n+---+---+\n",
            "a",
        ),
        ("a\n\n> ship | crew\n> ---|---\n> Gull | 5\n> Tern | 7\n", "a.md"),
        ("a\nship | crew\nship: Gull | crew: 5\nNorth\nship: Tern | crew: 7\nTotal | 12\n", "a.md"),
    ],
)
def test_what_is_around_the_rows_of_a_table(text: str, name: str) -> None:
    figures = found(text, Query("sum", 1), name).figures
    assert figures.value("sum") == 12
    assert figures.rows == 2


def test_a_table_without_names_of_columns_is_told(ask: Callable[..., Any]) -> None:
    told = "The first line is read as the names of the columns: "
    ran = ask("Gull,5,Oslo\nTern,7,Rome\nOwl,1,Bari\n", "How many rows are there?")
    assert f"{told}Gull, 5, Oslo" in ran.stderr
    ran = ask("ship,2019,2020\nTern,7,3\nOwl,1,9\n", "How many rows are there?")
    assert told not in ran.stderr


def test_tables_one_after_the_other_are_not_one(tmp_path: Path) -> None:
    rows = "<table><tr><th>ship<th>crew<tr><td>Gull<td>5<tr><td>Tern<td>7</table>"
    (tmp_path / "a.html").write_text(f"<p>Ships</p>{rows}{rows}")
    sources = open_sources([str(tmp_path / "a.html")])
    assert [len(list(table)) for table in tables_of(sources, sources.names)] == [2, 2]


INNER = {
    "Which river has the highest length?": "Donge: the largest length is 230",
    "What is the mean depth of the rivers?": "The mean of depth is 4.5, of 2 rows.",
    "how many rows have bridges above 3": "1 of 2 rows where bridges > 3.",
}


@pytest.mark.parametrize("question", INNER)
@pytest.mark.parametrize("name", ["a.md", "a.html"])
def test_a_table_between_other_lines(ask: Callable[..., Any], question: str, name: str) -> None:
    rows = [row.split() for row in ("river length depth bridges", "Eem 18 4 9", "Donge 230 5 2")]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    table = "\n".join([lines[0], "|---|:-:|--:|---|", *lines[1:]])
    text = f"# Water\n\nRivers are long.\n\n{table}\n\nThe sea | is near.\n"
    if name.endswith("html"):
        cells = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows)
        text = f"<h1>Water</h1><p>Rivers are long.</p><table>{cells}</table><p>The sea.</p>"
    ran = ask(text, question, name=name)
    assert INNER[question] in ran.stdout
    other = f"| {' | '.join(rows[0])} |\n| Rhine | 1230 | 3 | 8 |\n"
    both = text.replace("The sea", f"Others\n\n{other}\nThe sea")
    if name.endswith("md"):  # which of two tables is meant, words do not say
        assert "without a model" not in ask(both, question, name=name).stderr


def test_an_empty_cell_of_a_table_in_a_document(ask: Callable[..., Any]) -> None:
    rows = ("", "mass", "moons"), ("Vega", "7", ""), ("", "12", "3"), ("Mira", "1", "1")
    cells = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows)
    text = f"<p>Stars.</p><table>{cells}</table><p>Others.</p>"
    assert "12" in ask(text, "What is the highest mass?", name="a.html").stdout
    assert "The sum of moons is 4, of 2 rows." in ask(text, "sum of moons", name="a.html").stdout


PARTS = [
    "word\n",
    "two words\n",
    "\n",
    "a | b\n",
    "1 | 2\n",
    "| a | b |\n",
    "|---|---|\n",
    " | ",
    "x",
    "|",
]


@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=12), max_size=8), st.booleans())
def test_lines_without_a_row_are_left_out_of_the_search_alone(
    cut: list[list[str]], two: bool
) -> None:
    blocks, at = [TextBlock("word\n" * 200, 0, 0)], 1000
    for number, parts in enumerate(cut):
        text = "".join(parts)
        blocks.append(TextBlock(text, at, int(two and number > 3)))
        at += len(text)

    def found() -> list[tuple[list[str], list[Any]]]:
        return [(table.header, list(table)) for table in tables_of(blocks, ["a", "b"])]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_reader, "_around_rows", lambda blocks, searches: blocks)
        slow = found()
    assert found() == slow
