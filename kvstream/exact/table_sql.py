"""Have a model write the query for a question about a table, and compute it with SQLite.

The model sees the columns with some of their values. A query is taken only if the model is sure of
it, and if the question confirms it (`query_checks.py`). SQLite may only read the rows, which are in
a temporary file.
"""

from __future__ import annotations

import re
import sqlite3
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from difflib import get_close_matches
from statistics import median
from time import monotonic
from typing import Any

from kvstream.exact.query_checks import QueryChecks, plain
from kvstream.exact.routing import iso_dates
from kvstream.exact.table_questions import core
from kvstream.exact.table_replies import of_numbers, of_table
from kvstream.exact.table_words import loose, words_of
from kvstream.exact.tables import MOST_VALUES, Numbers, cell, sample_of
from kvstream.input.table_reader import CITED, NotReadError, Row, Table
from kvstream.reporters.format import counted, shortened

Writer = Callable[[str, str], tuple[str, float]]
"""Writes on from the end of a prompt with a system text: the text, and its mean log-probability."""

SYSTEM = """You write one SQLite query that answers the question about the table. Write only the query.
Examples for a table of sales (shop, item, kind, price, sold, day, paid):
Which shop sold the most altogether? SELECT shop FROM t GROUP BY shop ORDER BY SUM(sold) DESC LIMIT 1
average price by kind: SELECT kind, AVG(price) FROM t GROUP BY kind
How many lamps of May 2023 are not paid? SELECT COUNT(*) FROM t WHERE kind = 'lamp' AND day LIKE '2023-05%' AND paid = 'no'
Who had the dearest item? SELECT shop FROM t ORDER BY price DESC LIMIT 1
items without a price: SELECT item FROM t WHERE price IS NULL
How many kinds are there? SELECT COUNT(DISTINCT kind) FROM t
sales after 2023-05-03 above 20: SELECT item FROM t WHERE day > '2023-05-03' AND price > 20
all but lamps: SELECT item FROM t WHERE kind != 'lamp'
total sold of chairs: SELECT SUM(sold) FROM t WHERE kind = 'chair'"""  # noqa: E501
START = "SELECT"
CERTAIN = -0.2
"""Least mean log-probability of the tokens of a query (docs/research/answers.md)."""
MOST_COLUMNS, FEW, EXAMPLES = 60, 12, 3
"""Columns that a prompt describes; values of a column that it lists; values of any other column."""
MOST_TOKENS = 100
"""Tokens of a query."""
LISTED = 1000
"""Rows of a result that an answer lists."""
CLOSE = 0.7
"""Least likeness of the name of a column to one that the model writes."""
LONGEST = 60.0
"""Seconds that a query may take."""
_RESERVED = frozenset(re.findall(
    r"\w+",
    "add all and as asc between by case check column default desc end exists from group having in "
    "index into is join key like limit not null on or order select set table then to union unique "
    "update using values when where with rowid oid current_date current_time current_timestamp",
))  # fmt: skip
_LETTER = re.compile(r"[^\W\d_]")
_GROUPED = re.compile(
    r"(?i)^(SELECT) ((?:COUNT|SUM|AVG|MAX|MIN)\([^()]*\) FROM t\b.* GROUP BY )(\w+)"
)
"""Figures of groups without their names."""
_OF_ONE = re.compile(r"(?i)SELECT (\w+\([^()]*\)) FROM t WHERE (\w+) = '[^']*'$")
_FIRST = re.compile(
    r"(?i)est\b|\b(?:most|least|first|last|top|best|worst|record|max\w*|min\w*|dear\w*)\b"
)
"""Words for the first of an order."""
_ASKS = (
    (r"\b(?:average|mean|typical|typically|usual)\b", "AVG"),
    (r"\b(?:how many|how much|total|sum)\b", "SUM"),
)
"""Words for figures of a column that a query lists."""
_EQUAL = re.compile(r"(?i)\b(?!NOT\b)(\w+)(?= (?:=|!=|<>|(?:NOT )?IN \() ?'([^']*)')")
"""The column that must equal, or not, a text."""
_SPACED = re.compile(r"(?i)\b(COUNT|SUM|TOTAL|AVG|MEDIAN|MIN|MAX) ?\( ?")
_PART = re.compile(r"(?i)((?:strftime|substr)\([^()]*\) ?(?:[<>]=?|[!=]?=|<>) ?)(\d+)\b")
"""A part of a text that is compared with a number, which would be less than any text."""
_FUNCTIONS = frozenset(re.findall(
    r"\w+",
    "count sum total avg median min max round abs lower upper length like substr substring instr "
    "trim coalesce ifnull nullif strftime date datetime julianday year month",
))  # fmt: skip
"""Functions whose results are small."""
_ASCENDING = re.compile(r"(?i)( ORDER BY (?:\w+|\w+\([^()]*\))(?: ASC)?)(?= LIMIT |$)")
_PERIOD = re.compile(
    r"(?i)\b(\w+) ?(>|<=|BETWEEN '?([\d-]+)'? AND) ?('?)(\d{4}(?:-\d\d){0,2})\4(?![\w-])"
)
"""A comparison with a year, month or day, all of which is before what is later."""
_NO_FIGURE = re.compile(
    r"\b(?:why|explain|recommend|suggest|advice|opinion|should|could (?:we|i|you explain)|worth"
    r"|do you (?:think|like)|write|describe|summari[sz]e|better|stand for)\b"
    r"|^(?:how (?:do|does|can|could|to)|what could)\b|\babout$",
    re.IGNORECASE,
)
"""Questions that no query answers."""


class _Median:
    """The aggregate that SQLite lacks."""

    def __init__(self) -> None:
        self.values = array("d")

    def step(self, value: float | None) -> None:
        if len(self.values) == MOST_VALUES:
            raise OverflowError
        if value is not None:
            self.values.append(value)

    def finalize(self) -> float | None:
        return median(self.values) if self.values else None


class WrittenQueries:
    """Queries that a model writes for questions about a table, and their answers."""

    def __init__(self, table: Table, write: Writer) -> None:
        self.table, self.write = table, write
        self.head, width = [*table.head()], len(table.header)
        self.sample = sample_of(self.head, width, table.names, complete=table.complete)
        self.columns = _names(table.header)
        self.filled = [
            [text for row in self.head if (text := cell(row, column).strip())]
            for column in range(width)
        ]
        self.styles = [*map(Numbers.of, self.filled)]
        self.numbers = [
            column in self.sample.figures
            or (column in self.sample.numeric and not any(map(_LETTER.search, self.filled[column])))
            for column in range(width)
        ]
        """Whether each column has numbers, and no names such as A17."""
        self.checks = QueryChecks(table.header, self.columns, self.sample, self.numbers)
        self.wrong = [0] * width
        """Cells of each column of numbers that are none."""
        self.until = 0.0
        """When the query takes too long."""

    def answers(self, questions: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the answers by question. Raises NotReadError, SourceError."""
        if len(self.columns) > MOST_COLUMNS or not self.head:
            return {}
        written = {q: sql for q in questions if (sql := self.query_of(q)) is not None}
        if not written:
            return {}
        with closing(sqlite3.connect("")) as base:  # a temporary file
            try:
                read = self._fill(base)
            except sqlite3.Error as error:
                raise NotReadError(f"The rows cannot be copied: {error}.") from None
            found = {q: self._answer(base, sql, read) for q, sql in written.items()}
        return {q: record for q, record in found.items() if record is not None}

    def query_of(self, question: str) -> str | None:
        """Return the query of a question; None if the model is not sure of one that fits it."""
        question = iso_dates(core(question))
        if _NO_FIGURE.search(question):
            return None
        named = self.checks.values(question)
        prompt = f"{self.described(named)}\n\nQuestion: {question}"
        text, likely = self.write(SYSTEM, prompt)
        sql = " ".join(re.split(r";|```|\n\n", f"{START}{text}")[0].split())
        sql = re.sub(r'"([^"]*)"', self._quoted, sql)
        sql = _PART.sub(r"\1'\2'", _SPACED.sub(r"\1(", sql))
        sql = _EQUAL.sub(self._having, sql)
        sql = self._repaired(sql, question)
        if likely < CERTAIN or not self.checks.fits(sql, question):
            return None
        return _PERIOD.sub(self._whole, sql)

    def described(self, named: Collection[str] = ()) -> str:
        """Return the table as a statement that would make it, with some values, first the `named`
        ones.
        """
        lines = []
        for column, name in enumerate(self.columns):
            values = [*dict.fromkeys(self.filled[column])]
            few = len(values) <= FEW and len(values) < len(self.filled[column])
            number = self.numbers[column]
            values.sort(key=lambda value: loose(value) not in named)
            some = [shortened(v, 40) for v in values[: FEW if few else EXAMPLES]]
            told = ", ".join(some if number else [f"'{v}'" for v in some])
            kind = "NUMBER" if number else "TEXT"
            lines.append(f'  "{name}" {kind}, -- {"values" if few else "such as"} {told}')
        return "CREATE TABLE t (\n" + "\n".join(lines) + "\n);"

    def _quoted(self, found: re.Match[str]) -> str:
        """Return what is in double quotes as the name of a column, or as a text."""
        known = self.checks.place(found[1]) is not None
        return found[0] if known else "'" + found[1].replace("'", "''") + "'"

    def _having(self, found: re.Match[str]) -> str:
        """Return the column of a comparison, or if it lacks the value, the only one that has it."""
        held = [self.columns[c] for c in self.sample.values.get(loose(found[2]), ())]
        return held[0] if len(held) == 1 else found[0]

    def _whole(self, found: re.Match[str]) -> str:
        """Return a comparison of a date with a year or month, in which all of it is equal."""
        begin, end = found[3] or found[5], found[5]
        if self.checks.place(found[1]) not in self.sample.dates or len(begin) != len(end):
            return found[0]
        sign = f"BETWEEN '{begin}' AND" if found[3] else found[2]
        return f"substr({found[1]}, 1, {len(end)}) {sign} '{end}'"

    def _repaired(self, sql: str, question: str) -> str:
        """Return a query with the figure that the question asks for, and all groups or rows of it,
        unless it asks for the first.
        """
        if (one := _OF_ONE.match(sql)) and re.search(
            rf"\b(?:by|per|each|every) {loose(one[2])}\b", loose(plain(question))
        ):  # the figure of each, not of one that the model has seen
            sql = f"SELECT {one[2]}, {one[1]} FROM t GROUP BY {one[2]}"
        sql = _GROUPED.sub(r"\1 \3, \2\3", sql)
        if not _FIRST.search(question):
            sql = re.sub(r"(?i) LIMIT 1$", "", sql)
        listed = re.match(r"(?i)SELECT (\w+)(?= FROM t\b(?!.* (?:GROUP|ORDER) BY ))", sql)
        column = self.checks.place(listed[1]) if listed else None
        if listed and column is not None and self.numbers[column]:
            names = [name for words, name in _ASKS if re.search(words, question, re.IGNORECASE)]
            sql = f"SELECT {names[0]}({listed[1]}){sql[listed.end() :]}" if names else sql
        if re.search(r"\bmedian\b", question, re.IGNORECASE):
            sql = re.sub(r"\bAVG\(", "MEDIAN(", sql, flags=re.IGNORECASE)

        def different(found: re.Match[str]) -> str:
            column = self.checks.place(found[1])
            if column is None or column not in self.sample.shared:
                return found[0]
            named = " ".join(words_of(self.table.header[column]))
            many = rf"\b(?:how many|number of) (?:\w+ )?{re.escape(named)}\b"
            asks = re.search(many, loose(question))
            return f"COUNT(DISTINCT {found[1]})" if asks else found[0]

        sql = re.sub(r"(?i)\bCOUNT\((\w+)\)", different, sql)
        return _ASCENDING.sub(r"\1 NULLS LAST", sql)

    def _fill(self, base: sqlite3.Connection) -> int:
        """Copy the rows to a database, and return their number."""
        kinds = ["NUMERIC" if number else "TEXT" for number in self.numbers]
        every = [
            f'"{name}" {kind} COLLATE NOCASE'
            for name, kind in zip(self.columns, kinds, strict=True)
        ]
        base.execute(f"CREATE TABLE t ({', '.join(every)})")
        base.execute("CREATE TABLE places (source, line, last)")
        base.create_function("YEAR", 1, lambda date: date and int(date[:4]))
        base.create_function("MONTH", 1, lambda date: date and int(date[5:7]))
        base.create_aggregate("MEDIAN", 1, _Median)  # type: ignore[arg-type]
        into = f"INSERT INTO t VALUES ({', '.join('?' * len(every))})"
        read = 0
        for row in self.table:
            base.execute(into, [self._value(row, column) for column in range(len(every))])
            base.execute("INSERT INTO places VALUES (?, ?, ?)", (row.source, row.line, row.last))
            read += 1
        base.set_progress_handler(lambda: monotonic() > self.until, 100_000)
        base.set_authorizer(_only_reads)
        return read

    def _value(self, row: Row, column: int) -> Any:
        text = cell(row, column).strip()
        if not self.numbers[column] or not text:
            return text.encode(errors="replace").decode() or None  # JSON may have half characters
        number = self.styles[column].parse(text)
        self.wrong[column] += number is None
        whole = number is not None and number == int(number) and abs(number) < 2**63
        return None if number is None else int(number) if whole else float(number)

    def _answer(self, base: sqlite3.Connection, sql: str, read: int) -> dict[str, Any] | None:
        """Return the JSON object of an answer; None for a query that fails or finds nothing."""
        self.until = monotonic() + LONGEST
        dates = [self.columns[c] for c in self.sample.dates]
        try:
            rows = base.execute(sql).fetchmany(LISTED + 1)
            cited = [*self._cited(base, sql)]
        except (sqlite3.Error, ValueError) as error:
            stopped = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT
            if stopped and monotonic() < self.until:  # SQLite drops what a signal raises
                raise KeyboardInterrupt from None
            wrong = str(error).removeprefix("no such column: ")
            close = get_close_matches(wrong, self.columns, 1, CLOSE)
            if not close and wrong.casefold() in ("day", "date", "month") and len(dates) == 1:
                close = dates
            if not close and sql.startswith(f"{START} {wrong} FROM "):
                close = ["*"]
            known = re.sub(rf"\b{re.escape(wrong)}\b", close[0], sql) if close else sql
            return None if known == sql else self._answer(base, known, read)
        if not any(value for row in rows for value in row):
            return None
        lines = [" | ".join(map(_text, row)) for row in rows[:LISTED]]
        if len(rows) == 1 and len(cited) == 1 and "WHERE" not in sql.upper().split(" FROM ")[0]:
            lines += [cited[0]["text"]] * (cited[0]["text"] not in lines)
        lines += ["and more"] * (len(rows) > LISTED)
        value = rows[0][0] if len(rows) == 1 and len(rows[0]) == 1 else None
        return {
            "answer": "\n".join(lines),
            "value": value if isinstance(value, (int, float)) else None,
            "query": sql,
            "rows": {"read": read},
            "citations": cited,
            "warnings": [*self._warnings(sql)],
        }

    def _warnings(self, sql: str) -> Iterator[str]:
        """Yield what was left out of the columns of a query, and of the table."""
        named = {*re.findall(r"\w+", sql.casefold())}
        columns = zip(self.columns, self.wrong, self.styles, strict=True)
        for name, wrong, numbers in (each for each in columns if each[0].casefold() in named):
            if wrong:
                yield f"Left out: {counted(wrong, 'row')} whose {name} is no number."
            yield from of_numbers(name, numbers)
        yield from of_table(self.table)

    def _cited(self, base: sqlite3.Connection, sql: str) -> Iterator[dict[str, Any]]:
        """Yield the first rows that a query selects, or the one of a largest or smallest figure."""
        upper = sql.upper()
        if " GROUP BY " in upper or upper.startswith("SELECT DISTINCT") or " FROM T" not in upper:
            return
        listed, behind = upper.split(" FROM ", 1)[0], sql[upper.index(" FROM ") :]
        if len(re.findall(r"\bM(?:IN|AX)\(", listed)) > 1:
            return  # of several rows
        whole = re.search(r"\b(?:COUNT|SUM|TOTAL|AVG|MEDIAN)\(", listed)
        own = f"SELECT rowid{behind}" if whole else f"SELECT rowid,{sql[len(START) :]}"
        for rowid, *_ in base.execute(own).fetchmany(CITED):
            [place] = base.execute("SELECT * FROM places WHERE rowid = ?", (rowid,))
            [row] = base.execute("SELECT * FROM t WHERE rowid = ?", (rowid,))
            cells = zip(self.columns, map(_text, row), strict=True)
            text = shortened(" | ".join(f"{name}: {each}" for name, each in cells), 200)
            name = self.table.names[place[0]]
            yield {"source": name, "line_start": place[1], "line_end": place[2], "text": text}


def _only_reads(action: int, name: str | None, called: str | None, *_: str | None) -> int:
    """Return whether a query may do something: only read the rows, and call some functions."""
    allowed = action == sqlite3.SQLITE_SELECT
    allowed |= action == sqlite3.SQLITE_READ and name in ("t", "places")
    allowed |= action == sqlite3.SQLITE_FUNCTION and str(called).lower() in _FUNCTIONS
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _names(header: Sequence[str]) -> list[str]:
    """Return the names of columns as a query writes them without quotes, each once."""
    names: list[str] = []
    for place, name in enumerate(header, 1):
        plain = re.sub(r"\W+", "_", name).strip("_") or "column"
        plain = plain if plain[0].isalpha() else f"c_{plain}"
        while plain.casefold() in _RESERVED.union(map(str.casefold, names)):
            plain = f"{plain}_{place}"
        names.append(plain)
    return names


def _text(value: Any) -> str:
    """Return a value of a result; a figure without the error of a binary fraction."""
    if isinstance(value, float):
        digits = 6 if abs(value) >= 0.001 else 12
        return f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return "" if value is None else str(value)
