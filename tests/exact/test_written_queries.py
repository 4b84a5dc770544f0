"""Queries that a model writes for tables, and what is refused of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvstream.cli.options.table import Options
from kvstream.errors import BudgetError
from kvstream.exact.row_database import RowDatabase, _text
from kvstream.exact.tables import Columns, _names
from kvstream.exact.written_queries import QueryWriter
from kvstream.input.sources import open_sources
from kvstream.input.table_reader import tables_of
from kvstream.store.offered import OFFERS
from kvstream.store.reader import QUERIES

ROWS = """Pet Name;kind;weight kg;born;chipped
Bello;dog;21,5;2019-04-01;yes
Mimi;cat;4,2;2020-01-15;no
Rex;dog;33,1;2017-11-30;yes
Tom;cat;5,0;2021-06-02;yes
Ida;hen;2,1;2022-03-09;no
Ada;cat;n/a;2018-07-19;no
"""


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that answers with a query which a pretended model writes."""
    (tmp_path / "pets.csv").write_text(ROWS)

    def ask(question: str, sql: str, likely: float = -0.05, file: str = "pets.csv") -> Any:
        sources = open_sources([str(tmp_path / file)])
        prompts: list[str] = []

        def write(system: str, text: str) -> tuple[str, float]:
            prompts.append(text)
            return sql, likely

        table = next(iter(tables_of(sources, sources.names)))
        query = QueryWriter(columns := Columns.of(table), write).query_of(question)
        with RowDatabase.of(table, columns) as rows:
            return rows.answer(query) if query else None, prompts

    return ask


@pytest.mark.parametrize(
    ("question", "sql", "answer", "lines"),
    [
        ("how heavy are dogs on average", "SELECT AVG(weight_kg) FROM t WHERE kind = 'dog'", "27.3",
         [2, 4]),
        ("how many cats lack a chip",
         "SELECT COUNT(*) FROM t WHERE kind = \"cat\" AND chipped = 'no'",
         "2", [3, 7]),
        ("who came to us in 2020", "SELECT Pet_Name FROM t WHERE born LIKE '2020%'",
         "Mimi\nPet Name: Mimi | kind: cat | weight kg: 4,2 | born: 2020-01-15 | chipped: no", [3]),
        ("the mean body weight of pets of January 2020",
         "SELECT AVG(weight_kg) FROM t WHERE YEAR(born) = 2020 AND MONTH(born) = 1", "4.2\n"
         "Pet Name: Mimi | kind: cat | weight kg: 4,2 | born: 2020-01-15 | chipped: no", [3]),
        ("how heavy is Ida", "SELECT weight_kg FROM t WHERE Pet_Name = 'Ida'", "2.1\n"
         "Pet Name: Ida | kind: hen | weight kg: 2,1 | born: 2022-03-09 | chipped: no", [6]),
        ("how many were born before 2018", "SELECT COUNT(*) FROM t WHERE born < '2018-01-01'", "1\n"
         "Pet Name: Rex | kind: dog | weight kg: 33,1 | born: 2017-11-30 | chipped: yes", [4]),
        ("pets that were born in 2019 or 2020",
         "SELECT Pet_Name FROM t WHERE born BETWEEN '2019-01-01' AND '2020-12-31'", "Bello\nMimi",
         [2, 3]),
        ("who is our youngest", "SELECT Pet_Name FROM t ORDER BY born ASC LIMIT 1", "Ida\n"
         "Pet Name: Ida | kind: hen | weight kg: 2,1 | born: 2022-03-09 | chipped: no", [6]),
        ("who has been here longest", "SELECT Pet_Name FROM t ORDER BY born DESC LIMIT 1", "Rex\n"
         "Pet Name: Rex | kind: dog | weight kg: 33,1 | born: 2017-11-30 | chipped: yes", [4]),
        ("the Oldest pet", "SELECT Pet_Name FROM t ORDER BY born DESC LIMIT 1", "Rex\n"
         "Pet Name: Rex | kind: dog | weight kg: 33,1 | born: 2017-11-30 | chipped: yes", [4]),
        ("when was the last cat born", "SELECT MIN(born) FROM t WHERE kind = 'cat'", "2021-06-02\n"
         "Pet Name: Tom | kind: cat | weight kg: 5,0 | born: 2021-06-02 | chipped: yes", [5]),
        ("the first pet's kind of the last year", "SELECT kind FROM t ORDER BY born LIMIT 1",
         "dog\nPet Name: Rex | kind: dog | weight kg: 33,1 | born: 2017-11-30 | chipped: yes", [4]),
        ("how many doggish ones", "SELECT COUNT(*) FROM t WHERE kind = 'dog'", "2", [2, 4]),
        ("how many were born before 2018-01-01", "SELECT COUNT(*) FROM t WHERE born < '2018-01-01'",
         "1\nPet Name: Rex | kind: dog | weight kg: 33,1 | born: 2017-11-30 | chipped: yes", [4]),
        ("how many were not born between 2018 and 2021",
         "SELECT COUNT(*) FROM t WHERE born NOT BETWEEN '2018' AND '2021'", "2", [4, 6]),
        ("which kinds are not dogs", "SELECT DISTINCT kind FROM t WHERE kind != 'dog'",
         "cat\nhen", []),
        ("the heaviest", "SELECT MAX(weight_kg) FROM t",
         "33.1\nPet Name: Rex | kind: dog | weight kg: 33,1 | born: 2017-11-30 | chipped: yes",
         [4]),
        ("how heavy is a cat on average", "SELECT AVG(weight_kg) FROM t WHERE Pet_Name = 'cat'",
         "4.6", [3, 5, 7]),
        ("how many pets are neither cats nor hens",
         "SELECT COUNT(*) FROM t WHERE Pet_Name NOT IN ('cat', 'hen')", "2", [2, 4]),
        ("all hens", "SELECT * FROM t WHERE kind = 'hen'", "Ida | hen | 2.1 | 2022-03-09 | no\n"
         "Pet Name: Ida | kind: hen | weight kg: 2,1 | born: 2022-03-09 | chipped: no", [6]),
        ("the lightest", "SELECT Pet_Name FROM t ORDER BY weight_kg LIMIT 1",
         "Ida\nPet Name: Ida | kind: hen | weight kg: 2,1 | born: 2022-03-09 | chipped: no", [6]),
        ("names of those born after 2020", "SELECT Pet_Name FROM t WHERE born > '2020'", "Tom\nIda",
         [5, 6]),
        ("names of those born between 2019 and 2020",
         "SELECT Pet_Name FROM t WHERE born BETWEEN '2019' AND '2020'", "Bello\nMimi", [2, 3]),
        ("who was born since 2021",
         "SELECT Pet_Name FROM t WHERE strftime('%Y', born) >= 2021", "Tom\nIda", [5, 6]),
        ("who weighs over 20 kilos", "SELECT Pet_Name FROM t WHERE weight_kg > '20'",
         "Bello\nRex", [2, 4]),
        ("the heaviest dog", "SELECT weight_kg FROM t WHERE weight_kg = (SELECT "
         "MAX(weight_kg) FROM t WHERE kind = 'dog')",
         "33.1\nPet Name: Rex | kind: dog | weight kg: 33,1 | born: 2017-11-30 | chipped: yes",
         [4]),
        ("when was Ida born", "SELECT born FROM t WHERE Pet_Name = 'Ida'",
         "2022-03-09\nPet Name: Ida | kind: hen | weight kg: 2,1 | born: 2022-03-09 | chipped: no",
         [6]),
        ("the kind with the fewest animals",
         "SELECT kind FROM t GROUP BY kind ORDER BY SUM(weight_kg) LIMIT 1", "hen", []),
        ("share with a chip", "SELECT SUM(chipped = 'yes')/COUNT(*) FROM t", "0.5",
         [2, 3, 4, 5, 6]),
        ("animals of each sort", "SELECT kind, COUNT(*) FROM t GROUP BY kind",
         "cat | 3\ndog | 2\nhen | 1", []),
    ],
)  # fmt: skip
def test_rows_compute_the_query(
    asked: Callable[..., Any], question: str, sql: str, answer: str, lines: list[int]
) -> None:
    found, _ = asked(question, sql)
    assert found["answer"] == answer
    assert [cited["line_start"] for cited in found["citations"]] == lines
    assert found["rows"] == {"read": 6}


@pytest.mark.parametrize(
    ("question", "sql"),
    [
        # The query lacks what the question names.
        ("how heavy are dogs on average", "SELECT AVG(weight_kg) FROM t"),
        ("what is a cat", "SELECT 'cat' FROM t"),
        # It lacks a number of the question, adds up what is no number, or sorts what has no order.
        ("pets of 20 kilos or less", "SELECT Pet_Name FROM t WHERE weight_kg = 20"),
        ("how many weigh over 20 kilos", "SELECT COUNT(*) FROM t"),
        ("how many came in 2020", "SELECT COUNT(*) FROM t"),
        ("total weight", "SELECT SUM(born) FROM t"),
        ("the highest chip", "SELECT MAX(chipped) FROM t"),
        ("the last name", "SELECT kind FROM t ORDER BY Pet_Name DESC LIMIT 1"),
        # The table lacks the column.
        ("what is Rex's phone number", "SELECT phone_number FROM t WHERE Pet_Name = 'Rex'"),
        # It names a value beside its conditions.
        ("total weight of dogs", "SELECT SUM(weight_kg) FROM t -- WHERE kind = 'dog'"),
        ("total weight of dogs", "SELECT SUM(weight_kg) AS dog FROM t"),
        ("total weight of dogs", "SELECT SUM(weight_kg), 'dog' FROM t"),
        ("total weight of dogs", "SELECT SUM(weight_kg) FROM t ORDER BY kind = 'dog'"),
        # It reads something else, or much.
        ("the names", "SELECT line FROM places"),
        ("the names", "SELECT rowid FROM t"),
        ("the names", "SELECT a.kind FROM t a, t b, t c"),
        ("the names", "SELECT kind FROM t UNION SELECT line FROM places"),
        ("give 400000000", "SELECT zeroblob(400000000) FROM t"),
        # It fails, finds nothing, changes something, reads something else, or takes too long.
        ("mean age", "SELECT AVG(age) FROM t"),
        ("any horses", "SELECT Pet_Name FROM t WHERE kind = 'horses'"),
        ("the names", "SELECT 1; DROP TABLE t"),
        ("the names", "SELECT name FROM sqlite_master"),
        ("the names", "SELECT load_extension('names')"),
        ("the names", "SELECT `weight kg?`, kind FROM t"),
        ("the names", "SELECT \ud800 FROM t"),
    ],
)
def test_what_does_not_fit_is_left_to_the_model(
    asked: Callable[..., Any], question: str, sql: str
) -> None:
    assert asked(question, sql)[0] is None


def test_a_query_that_the_model_is_not_sure_of(asked: Callable[..., Any]) -> None:
    assert asked("the heaviest", "SELECT MAX(weight_kg) FROM t", -0.3)[0] is None
    assert asked("the heaviest", "SELECT MAX(weight_kg) FROM t", -0.05)[0]["value"] == 33.1
    assert asked("the heaviest", "NONE", 0.0)[0] is None


def test_the_model_sees_columns_and_the_values_that_the_question_names(
    asked: Callable[..., Any],
) -> None:
    _, [prompt] = asked("is Ada's chip there", "SELECT 1")
    assert "  \"Pet_Name\" TEXT, -- such as 'Ada', 'Bello', 'Mimi'" in prompt
    assert "\"kind\" TEXT, -- values 'dog', 'cat', 'hen'" in prompt
    assert '"weight_kg" NUMBER, -- such as 21,5, 4,2, 33,1' in prompt


def test_names_of_columns_need_no_quotes() -> None:
    header = ["Order", "size (cm)", "Size_cm", "2024", "", "größe", "rowid", "a_9", "a"]
    assert _names(header) == [
        "Order_1", "size_cm", "Size_cm_3", "c_2024", "column_5", "größe", "rowid_7", "a_9", "a",
    ]  # fmt: skip
    assert _names(["a", "a_3", "A"]) == ["a", "a_3", "A_3_3"]


def test_cells_that_are_no_numbers_are_left_out_and_counted(
    asked: Callable[..., Any], tmp_path: Path
) -> None:
    found, _ = asked("total weight", "SELECT SUM(weight_kg) FROM t")
    assert found["answer"] == "65.9"
    assert found["warnings"] == ["Left out: 1 row without weight_kg."]


def test_what_a_query_leaves_out_of_a_table_is_told(
    asked: Callable[..., Any], tmp_path: Path
) -> None:
    rows = "Fees\nsort,fee,when\nfood,$5,01/02/2023\ntoys,€2,31/01/2020\ntotal,7,\n"
    (tmp_path / "fees.csv").write_text(rows.replace("total", "rent,0.001,05/05/2021\ntotal"))
    found, _ = asked("how much is it", "SELECT SUM(fee) FROM t", file="fees.csv")
    assert found["answer"] == "7.001"
    assert found["warnings"] == [
        "fee has several units, which are not converted: $ (1), € (1), none (1).",
        "Left out: 1 line above the names of the columns.",
        "Left out: the sums of other rows in line 6.",
    ]
    last = "SELECT sort FROM t ORDER BY when_3 DESC LIMIT 1"
    found, _ = asked("the latest", last, file="fees.csv")  # its text is not the last
    assert found["answer"].split("\n")[0] == "food"


def test_cells_with_half_characters(asked: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "k": "\\ud800x"}\n{"n": 2, "k": "b"}\n')
    assert asked("all of k", "SELECT k FROM t", file="a.jsonl")[0]["answer"] == "?x\nb"


def test_figures_of_a_result() -> None:
    assert [*map(_text, (0.1 + 0.2, 1e-7, 2.0, 1e20, 0, None))] == [
        "0.3", "0.0000001", "2", "1e+20", "0", "",
    ]  # fmt: skip


SMALLEST, LARGEST = QUERIES


@pytest.fixture
def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that runs `ask` with a model that writes a query, or raises one."""
    (tmp_path / "pets.csv").write_text(ROWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVSTREAM_CACHE", str(tmp_path / "cache"))
    base = OFFERS[SMALLEST].path
    base.parent.mkdir(parents=True)
    base.touch()
    loaded: list[str] = []

    def tell(
        query: str | Exception,
        *arguments: str,
        stdin: bytes = b"",
        model: Sequence[str] = ("-m", "pocket"),
    ) -> tuple[int, str, str, int]:
        def write(*args: Any) -> tuple[str, float]:
            if isinstance(query, Exception):
                raise query
            return query, 0.0

        def load(options: Options) -> Any:
            assert options.loading.revision is None
            loaded.append(options.model)
            return SimpleNamespace(session=SimpleNamespace(write=write))

        loaded.clear()
        monkeypatch.setattr("kvstream.cli.shared.model_choice.open_model", load)
        ran = cli("ask", *model, *arguments, stdin=stdin)
        return ran.code, ran.stdout, " ".join(ran.stderr.split()), len(loaded)

    return tell


DOGS = "SELECT AVG(weight_kg) FROM t WHERE kind = 'dog'"


def test_ask_computes_a_query(told: Callable[..., Any]) -> None:
    code, out, err, loads = told(DOGS, "pets.csv", "how heavy are dogs on average?", "--json")
    found = json.loads(out)
    assert (code, loads, found["answer"], found["query"]) == (0, 1, "27.3", DOGS)
    assert found["model"] == SMALLEST
    assert f"Written by qwen-0.5b, computed from the rows: {DOGS}" in err
    question = "how heavy are dogs on average?"
    code, out, err, _ = told(DOGS, "pets.csv", question, "--quiet", "--revision", "main")
    assert (code, out, err) == (
        0,
        "27.3\n",
        "Warning: Left out: 1 row without weight_kg.",
    )


def test_the_model_that_answers_writes_the_query(told: Callable[..., Any]) -> None:
    arguments = ("pets.csv", "how heavy are dogs on average?", "-m", LARGEST)
    assert f"Written by {SMALLEST}, " in told(DOGS, *arguments)[2]  # the other was not fetched
    OFFERS[LARGEST].path.parent.mkdir(parents=True)
    OFFERS[LARGEST].path.touch()
    assert f"Written by {LARGEST}, " in told(DOGS, *arguments)[2]
    assert f"Written by {SMALLEST}, " in told(DOGS, *arguments[:2])[2]
    OFFERS[SMALLEST].path.unlink()
    assert f"Written by {LARGEST}, " in told(DOGS, *arguments[:2])[2]


def test_the_default_model_writes_the_query(
    told: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    OFFERS[LARGEST].path.parent.mkdir(parents=True)
    OFFERS[LARGEST].path.touch()
    monkeypatch.setattr("kvstream.api.models.default_model", lambda: LARGEST)
    arguments = ("pets.csv", "how heavy are dogs on average?")
    assert f"Written by {LARGEST}, " in told(DOGS, *arguments, model=())[2]
    monkeypatch.setattr("kvstream.api.models.default_model", lambda: "reader-0.5b")
    assert f"Written by {SMALLEST}, " in told(DOGS, *arguments, model=())[2]


def test_a_pipe_is_computed_with_the_query_for_its_beginning(told: Callable[..., Any]) -> None:
    rows = ROWS + "".join(f"Pup {i};dog;{i};2023-01-01;no\n" for i in range(1500))
    code, out, err, loads = told(DOGS, "how heavy are dogs on average?", stdin=rows.encode())
    assert (code, out, loads) == (0, f"{(54.6 + 1500 * 1499 / 2) / 1502:.15g}\n", 1)
    assert f"Written by qwen-0.5b, computed from the rows: {DOGS}" in err


def test_a_model_is_loaded_only_for_a_query(told: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text(
        ",".join(f"n{i}" for i in range(61)) + "\n" + "1," * 60 + "1\n"
    )
    for question, name in (("why is the total so large?", "pets.csv"), ("total heft", "wide.csv")):
        _, out, _, loads = told(DOGS, name, question)
        assert (out.startswith("No row, column or operation"), loads) == (True, 0)
    assert told(DOGS, "pets.csv", "how often is Rex mentioned?")[1:4:2] == (
        '"Rex" occurs once.\n',
        0,
    )
    (tmp_path / "more.csv").write_text(ROWS)
    assert told(DOGS, "pets.csv", "more.csv", "how heavy are dogs on average?")[3] == 1
    each = told(DOGS, "pets.csv", "more.csv", "how heavy are dogs on average?", "--each")
    assert each[1].count("27.3") == 2
    assert each[3] == 1


def test_what_stops_a_query_is_told(told: Callable[..., Any], tmp_path: Path) -> None:
    question = "how heavy are dogs on average?"
    code, out, err, _ = told(BudgetError("No room."), "pets.csv", question)
    assert code == 0
    assert out.startswith("No row, column or operation")
    assert "Warning: no query was computed. No room." in err
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert (
        "the table cannot be computed: other.csv has other columns."
        in told(DOGS, "pets.csv", "other.csv", question)[2]
    )
