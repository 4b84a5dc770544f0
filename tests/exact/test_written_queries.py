"""Queries that a model writes for tables, and what is refused of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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

    def ask(
        question: str, sql: str, likely: float = -0.1, file: str = "pets.csv", others: Any = ()
    ) -> Any:
        sources = open_sources([str(tmp_path / file)])
        prompts: list[str] = []

        def write(system: str, text: str) -> Iterator[tuple[str, float]]:
            prompts.append(text)
            for each in (sql, *others):
                yield each.removeprefix("SELECT"), likely

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
        ("what does a typical pet weigh, by median", "SELECT AVG(weight_kg) FROM t", "5",
         [2, 3, 4, 5, 6]),
        ("who came to us in 2020", "SELECT Pet_Name FROM t WHERE born LIKE '2020%'",
         "Mimi\nPet Name: Mimi | kind: cat | weight kg: 4,2 | born: 2020-01-15 | chipped: no", [3]),
        ("the mean body weight of pets of January 2020",
         "SELECT AVG(weight_kg) FROM t WHERE YEAR(born) = 2020 AND MONTH(born) = 1", "4.2\n"
         "Pet Name: Mimi | kind: cat | weight kg: 4,2 | born: 2020-01-15 | chipped: no", [3]),
        ("the 2 heaviest", "SELECT weight_kg FROM t ORDER BY weight_kg DESC LIMIT 2",
         "Rex | dog | 33.1 | 2017-11-30 | yes\nBello | dog | 21.5 | 2019-04-01 | yes", [4, 2]),
        ("all that came in 2019", "SELECT DISTINCT born FROM t WHERE born LIKE '2019%'",
         "Bello | dog | 21.5 | 2019-04-01 | yes\n"
         "Pet Name: Bello | kind: dog | weight kg: 21,5 | born: 2019-04-01 | chipped: yes", [2]),
        ("how heavy is Ida", "SELECT weight_kg FROM t WHERE Pet_Name = 'Ida'", "2.1\n"
         "Pet Name: Ida | kind: hen | weight kg: 2,1 | born: 2022-03-09 | chipped: no", [6]),
        ("how many were born before 2018", "SELECT COUNT(*) FROM t WHERE born < '2018-01-01'", "1\n"
         "Pet Name: Rex | kind: dog | weight kg: 33,1 | born: 2017-11-30 | chipped: yes", [4]),
        ("pets that were born in 2019 or 2020",
         "SELECT Pet_Name FROM t WHERE born BETWEEN '2019-01-01' AND '2020-12-31'", "Bello\nMimi",
         [2, 3]),
        ("what came in 2017", "SELECT born FROM t WHERE YEAR(born) = 2017",
         "Rex | dog | 33.1 | 2017-11-30 | yes\n"
         "Pet Name: Rex | kind: dog | weight kg: 33,1 | born: 2017-11-30 | chipped: yes", [4]),
        ("who is our youngest", "SELECT Pet_Name FROM t ORDER BY born ASC LIMIT 1", "Ida\n"
         "Pet Name: Ida | kind: hen | weight kg: 2,1 | born: 2022-03-09 | chipped: no", [6]),
        ("who has been here longest", "SELECT Pet_Name FROM t ORDER BY born DESC LIMIT 1", "Rex\n"
         "Pet Name: Rex | kind: dog | weight kg: 33,1 | born: 2017-11-30 | chipped: yes", [4]),
        ("the Oldest pet", "SELECT Pet_Name FROM t ORDER BY born DESC LIMIT 1", "Rex\n"
         "Pet Name: Rex | kind: dog | weight kg: 33,1 | born: 2017-11-30 | chipped: yes", [4]),
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
        ("how many kilos of dog do we have", "SELECT weight_kg FROM t WHERE kind = 'dog'", "54.6",
         [2, 4]),
        ("number of pets by kind",
         "SELECT COUNT(*) FROM t GROUP BY kind ORDER BY COUNT(*) DESC LIMIT 1",
         "cat | 3\ndog | 2\nhen | 1", []),
        ("all hens", "SELECT * FROM t WHERE kind = 'hen'", "Ida | hen | 2.1 | 2022-03-09 | no\n"
         "Pet Name: Ida | kind: hen | weight kg: 2,1 | born: 2022-03-09 | chipped: no", [6]),
        ("total weight per kind", "SELECT SUM(weight_kg) FROM t WHERE kind = 'dog'",
         "cat | 9.2\ndog | 54.6\nhen | 2.1", []),
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
        ("from the lightest to the heaviest weight",
         "SELECT MAX ( weight_kg ) - MIN(weight_kg) FROM t", "31", []),
        ("how many kinds do we keep", "SELECT COUNT(kind) FROM t", "3", [2, 3, 4, 5, 6]),
        ("the heaviest dog", "SELECT weight_kg AS most FROM t WHERE weight_kg = (SELECT "
         "MAX(weight_kg) FROM t WHERE kind = 'dog')",
         "33.1\nPet Name: Rex | kind: dog | weight kg: 33,1 | born: 2017-11-30 | chipped: yes",
         [4]),
        ("when was Ida born", "SELECT born FROM t WHERE Pet_Name = 'Ida'",
         "2022-03-09\nPet Name: Ida | kind: hen | weight kg: 2,1 | born: 2022-03-09 | chipped: no",
         [6]),
        ("the kind with the fewest animals",
         "SELECT kind FROM t GROUP BY kind ORDER BY SUM(weight_kg) LIMIT 1", "hen", []),
        ("animals of each sort", "SELECT kind, COUNT(*) FROM t GROUP BY kind",
         "cat | 3\ndog | 2\nhen | 1", []),
    ],
)  # fmt: skip
def test_rows_compute_the_query(
    asked: Callable[..., Any], question: str, sql: str, answer: str, lines: list[int]
) -> None:
    found, _ = asked(question, f"{sql};\n```")
    assert found["answer"] == answer
    assert [cited["line_start"] for cited in found["citations"]] == lines
    assert found["rows"] == {"read": 6}


@pytest.mark.parametrize(
    "other", ["SELECT item FROM t", "SELECT AVG(wight_kg) FROM t", "SELECT Pet_Name FROM", "?"]
)
def test_another_query_that_fits_is_taken(asked: Callable[..., Any], other: str) -> None:
    right = "SELECT Pet_Name FROM t WHERE kind = 'hen'"
    assert asked("the hens", other, others=[right])[0]["query"] == right
    assert asked("the hens", other)[0] is None


@pytest.mark.parametrize(
    ("question", "sql"),
    [
        # The question lacks what the query compares with, or the query what the question names.
        ("how heavy are they on average", "SELECT AVG(weight_kg) FROM t WHERE kind = 'dog'"),
        ("how many weigh a lot", "SELECT COUNT(*) FROM t WHERE weight_kg > 20"),
        ("how heavy are dogs on average", "SELECT AVG(weight_kg) FROM t"),
        ("how many dogs have no chip", "SELECT COUNT(*) FROM t WHERE kind = 'dog'"),
        ("the second heaviest", "SELECT Pet_Name FROM t ORDER BY weight_kg DESC LIMIT 1"),
        ("on average, which kind is heavy", "SELECT AVG(weight_kg) FROM t"),
        ("what share are cats", "SELECT COUNT(*) FROM t WHERE kind = 'cat'"),
        ("what is a cat", "SELECT 'cat' FROM t"),
        ("the lightest", "SELECT MAX(weight_kg) FROM t"),
        ("what is the mean age", "SELECT AVG(weight_kg) FROM t"),
        ("who has the largest income", "SELECT Pet_Name FROM t ORDER BY weight_kg DESC LIMIT 1"),
        # It denies, compares, sorts or sums up what the question does not.
        ("total weight of dogs", "SELECT SUM(weight_kg) FROM t WHERE kind != 'dog'"),
        ("how many chipped dogs", "SELECT COUNT(*) FROM t WHERE kind = 'dog' OR chipped = 'yes'"),
        ("who weighs over 20 kilos", "SELECT Pet_Name FROM t WHERE weight_kg < 20"),
        ("who weighs at least 20 kilos", "SELECT Pet_Name FROM t WHERE weight_kg > 20"),
        (
            "how many kinds have 2 animals",
            "SELECT kind, COUNT(*) FROM t GROUP BY kind HAVING COUNT(*) = 2",
        ),
        ("the lightest and the heaviest", "SELECT Pet_Name, MIN(weight_kg), MAX(weight_kg) FROM t"),
        ("leave out all except dogs", "SELECT Pet_Name FROM t WHERE kind != 'dog'"),
        ("pets born in 2020 or later", "SELECT Pet_Name FROM t WHERE born LIKE '2020%'"),
        ("pets of 20 kilos or less", "SELECT Pet_Name FROM t WHERE weight_kg = 20"),
        ("how many weigh over 20 kilos", "SELECT COUNT(*) FROM t"),
        ("how many came in 2020", "SELECT COUNT(*) FROM t"),
        ("how heavy is Bellona", "SELECT weight_kg FROM t WHERE Pet_Name = 'Bello'"),
        (
            "how many came from 2019-04-01 to the end of 2020",
            "SELECT COUNT(*) FROM t WHERE born BETWEEN '2019-04-01' AND '2020-12-31'",
        ),
        ("the heaviest", "SELECT Pet_Name FROM t ORDER BY weight_kg LIMIT 1"),
        ("the average of dogs", "SELECT SUM(weight_kg) FROM t WHERE kind = 'dog'"),
        ("total weight", "SELECT SUM(born) FROM t"),
        ("total weight", "SELECT SUM(weight_kg) FROM t WHERE weight_kg < born"),
        ("total weight", "SELECT SUM(weight_kg) + 1e3 FROM t"),
        ("the highest chip", "SELECT MAX(chipped) FROM t"),
        ("the last name", "SELECT kind FROM t ORDER BY Pet_Name DESC LIMIT 1"),
        ("how many pets are there", "SELECT COUNT(*) FROM t WHERE weight_kg IS NULL"),
        ("how many pets are there", "SELECT COUNT(*) FROM t WHERE weight_kg IS NOT NULL"),
        # It shows something beside what the question asks for.
        ("when does Ida go home", "SELECT born FROM t WHERE Pet_Name = 'Ida'"),
        ("whose weight is not known", "SELECT Pet_Name FROM t WHERE weight_kg IS NOT NULL"),
        ("what does Rex like to eat", "SELECT kind FROM t WHERE Pet_Name = 'Rex'"),
        ("who is the owner of Rex", "SELECT * FROM t WHERE Pet_Name = 'Rex'"),
        ("what is Rex's phone number", "SELECT phone_number FROM t WHERE Pet_Name = 'Rex'"),
        ("the longest pet", "SELECT Pet_Name FROM t ORDER BY weight_kg DESC LIMIT 1"),
        ("the cutest pet name", "SELECT Pet_Name FROM t ORDER BY weight_kg DESC LIMIT 1"),
        ("total and mean weight", "SELECT SUM(weight_kg) FROM t"),
        ("mean weight of dogs", "SELECT AVG(weight_kg * born) FROM t WHERE kind = 'dog'"),
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
        # No query answers such a question.
        ("why are dogs heavy", "SELECT Pet_Name FROM t WHERE kind = 'dog'"),
    ],
)
def test_what_does_not_fit_is_left_to_the_model(
    asked: Callable[..., Any], question: str, sql: str
) -> None:
    assert asked(question, sql)[0] is None


def test_a_query_that_the_model_is_not_sure_of(asked: Callable[..., Any]) -> None:
    assert asked("the heaviest", "SELECT MAX(weight_kg) FROM t", -0.3)[0] is None
    kind = "SELECT kind FROM t WHERE Pet_Name = 'Rex'"
    assert asked("Rex is what sort of creature", kind)[0] is None
    assert asked("Rex is what sort of creature", kind, -0.01)[0]["answer"].startswith("dog")


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
    assert asked("the latest", last, file="fees.csv")[0] is None  # the text has no order of time


def test_cells_with_half_characters(asked: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "k": "\\ud800x"}\n{"n": 2, "k": "b"}\n')
    assert asked("all of k", "SELECT k FROM t", file="a.jsonl")[0]["answer"] == "?x\nb"


def test_figures_of_a_result() -> None:
    assert [*map(_text, (0.1 + 0.2, 1e-7, 2.0, 1e20, 0, None))] == [
        "0.3", "0.0000001", "2", "1e+20", "0", "",
    ]  # fmt: skip


@pytest.fixture
def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that runs `ask` with a model that writes a query, or raises one."""
    (tmp_path / "pets.csv").write_text(ROWS)
    monkeypatch.chdir(tmp_path)
    loaded: list[str] = []

    def tell(
        query: str | Exception, *arguments: str, stdin: bytes = b""
    ) -> tuple[int, str, str, int]:
        def write(*args: Any, **more: Any) -> Iterator[tuple[str, float]]:
            if isinstance(query, Exception):
                raise query
            yield query.removeprefix("SELECT"), 0.0

        def load(options: Options) -> Any:
            loaded.append(options.model)
            return SimpleNamespace(name="mine", session=SimpleNamespace(write=write))

        loaded.clear()
        monkeypatch.setattr("kvstream.cli.shared.model_choice.open_model", load)
        ran = cli("ask", "-m", "mine/model", *arguments, stdin=stdin)
        return ran.code, ran.stdout, " ".join(ran.stderr.split()), len(loaded)

    return tell


DOGS = "SELECT AVG(weight_kg) FROM t WHERE kind = 'dog'"


def test_ask_computes_a_query(told: Callable[..., Any]) -> None:
    code, out, err, loads = told(DOGS, "pets.csv", "how heavy are dogs on average?", "--json")
    found = json.loads(out)
    assert (code, loads, found["answer"], found["query"]) == (0, 1, "27.3", DOGS)
    assert found["model"] == "mine"
    assert f"Written by mine, computed from the rows: {DOGS}" in err
    code, out, err, _ = told(DOGS, "pets.csv", "how heavy are dogs on average?", "--quiet")
    assert (code, out, err) == (
        0,
        "27.3\n",
        "Warning: Left out: 1 row without weight_kg.",
    )


def test_a_pipe_is_computed_with_the_query_for_its_beginning(told: Callable[..., Any]) -> None:
    rows = ROWS + "".join(f"Pup {i};dog;{i};2023-01-01;no\n" for i in range(1500))
    code, out, err, loads = told(DOGS, "how heavy are dogs on average?", stdin=rows.encode())
    assert (code, out, loads) == (0, f"{(54.6 + 1500 * 1499 / 2) / 1502:.15g}\n", 1)
    assert f"Written by mine, computed from the rows: {DOGS}" in err


def test_a_model_is_loaded_only_for_a_query(told: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text(
        ",".join(f"n{i}" for i in range(61)) + "\n" + "1," * 60 + "1\n"
    )
    for question, name in (("why is the total so large?", "pets.csv"), ("total heft", "wide.csv")):
        _, out, _, loads = told(DOGS, name, question)
        assert (out.startswith("No row, column or operation"), loads) == (True, 0)
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
