"""Compute queries over the rows of a table with SQLite, in a temporary file, so that memory does
not grow. A query may only read the rows.
"""

from __future__ import annotations

import re
import sqlite3
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from functools import cache, partial
from itertools import islice
from statistics import median
from string import ascii_lowercase, ascii_uppercase
from time import monotonic
from typing import Any

from kvstream.exact.tables import NOTHING, Columns, cell, number_of
from kvstream.input.table_reader import CITED, VALUE, NotReadError, Row, Table
from kvstream.reporters.format import counted, shortened

MOST_ROWS = 10_000
"""Rows of a result that an answer lists."""
MOST_VALUES = 4_000_000
"""Figures of a median."""
LONGEST = 60.0
"""Seconds that a query may take."""
MOST_SPELLINGS = 100_000
BATCH = 1000
"""Rows that are copied at once."""
ROW = 200
"""Characters of a row that is shown."""
UNITS = 8
"""Units that a warning names."""
_FUNCTIONS = frozenset(re.findall(
    r"\w+",
    "count sum total avg median min max round abs lower upper length like substr substring instr "
    "trim coalesce ifnull nullif strftime date datetime julianday year month",
))  # fmt: skip
"""Functions whose results are small."""
_UPPER = str.maketrans(ascii_lowercase, ascii_uppercase)
"""Letters of a query whose upper case has as many characters, unlike that of ß."""
_FIGURE = re.compile(r"(?i)\b(?:SUM|TOTAL|AVG|MEDIAN|MIN|MAX)\((?:DISTINCT )?(\w+)")


_LITERAL = re.compile(r"'((?:[^']|'')+)'")
_EXTREME = re.compile(r"(?i)= ?\(SELECT M(?:AX|IN)\(")


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


class _Sum:
    """The exact sum, or mean: SQLite would round each step."""

    def __init__(self, *, mean: bool = False) -> None:
        self.sum, self.count, self.mean = Decimal(), 0, mean

    def step(self, value: float | None) -> None:
        if value is not None:
            self.sum += Decimal(repr(value))
            self.count += 1

    def finalize(self) -> float | None:
        return number_of(self.sum / (self.count if self.mean else 1)) if self.count else None


class RowDatabase:
    """The rows of a table as ``t``, and their lines as ``places``."""

    def __init__(self, base: sqlite3.Connection, table: Table, columns: Columns) -> None:
        """Copy the rows. Raises NotReadError, SourceError."""
        self.base, self.table, self.columns = base, table, columns
        self.read = 0
        """Number of rows."""
        self.empty, self.wrong = [0] * len(columns.names), [0] * len(columns.names)
        """Cells of each column of numbers or dates that are empty, or none."""
        self.spellings: dict[str, str] = {}
        """One for each text of other letters than ASCII, whose cases SQLite does not know."""
        self.until = 0.0
        """When the query takes too long."""
        _create(base, columns)
        into = f"INSERT INTO t VALUES ({', '.join('?' * len(columns.names))})"
        rows = iter(table)
        while some := [*islice(rows, BATCH)]:
            base.executemany(into, map(self._values, some))
            places = ((r.source, r.line, r.last, _clean("\0".join(r.cells))) for r in some)
            base.executemany("INSERT INTO places VALUES (?, ?, ?, ?)", places)
            self.read += len(some)
        base.set_progress_handler(lambda: monotonic() > self.until, 100_000)
        base.set_authorizer(_only_reads)

    @classmethod
    @contextmanager
    def of(cls, table: Table, columns: Columns) -> Iterator[RowDatabase]:
        """Hold the rows while queries are computed. Raises NotReadError, SourceError."""
        with closing(sqlite3.connect("")) as base:  # a temporary file
            try:
                database = cls(base, table, columns)
            except sqlite3.Error as error:
                raise NotReadError(f"The rows cannot be copied: {error}.") from None
            yield database

    def answer(self, sql: str, *, zero: bool = False) -> dict[str, Any] | None:
        """Return the JSON object of an answer; None for a query that fails or finds nothing.

        `zero`: a figure of 0 is an answer.
        """
        wrong = (name for name, count in zip(self.columns.names, self.wrong, strict=True) if count)
        listed = _FIGURE.sub("", _parts(sql)[0])
        for name in wrong:
            shown = re.search(rf"(?i)\b{name}\b", listed) and f"{name} = (SELECT" not in sql
            if shown or f" {name} IS NULL" in sql:
                return None  # their cells are not empty, and a list or a count would lack them
        self.until = monotonic() + LONGEST
        try:
            spelled = _LITERAL.sub(self._spelled, sql)
            rows = self.base.execute(spelled).fetchmany(MOST_ROWS + 1)
            places = [*self._places(spelled)]
        except (sqlite3.Error, ValueError) as error:
            stopped = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT
            if stopped and monotonic() < self.until:  # SQLite drops what a signal raises
                raise KeyboardInterrupt from None
            return None
        if not any(value or (zero and value == 0) for row in rows for value in row):
            return None
        lines = [" | ".join(map(_text, row)) for row in rows[:MOST_ROWS]]
        if len({*rows}) == 1 and _EXTREME.search(sql):  # one figure, of one row or several
            lines = [*lines[:1], *(each["text"] for each in places if each["text"] not in lines)]
            lines += [f"and {len(rows) - len(places):,} more"] * (len(rows) > len(places))
        elif len(rows) == 1 and len(places) == 1 and "WHERE" not in _parts(sql)[0].upper():
            lines += [places[0]["text"]] * (places[0]["text"] not in lines)
        lines += ["and more"] * (len(rows) > MOST_ROWS)
        value = rows[0][0] if len(rows) == 1 and len(rows[0]) == 1 else None
        return {
            "answer": "\n".join(lines),
            "value": value if isinstance(value, (int, float)) else None,
            "query": sql,
            "rows": {"read": self.read},
            "citations": places,
            "warnings": [*self._warnings(sql), *of_table(self.table)],
        }

    def _values(self, row: Row) -> list[Any]:
        values: list[Any] = []
        for column, number in enumerate(self.columns.numbers):
            text = cell(row, column).strip()
            dated = column in self.columns.dates
            value: Any = self.columns.styles[column].value(text) if number else None
            if not number and text:
                value = _clean(self._spelling(text))
            if dated:
                value = self.columns.styles[column].date(text)
            if (number or dated) and value is None:
                empty = text.casefold() in NOTHING
                self.empty[column] += empty
                self.wrong[column] += not empty
            values.append(value)
        return values

    def _spelling(self, text: str) -> str:
        if text.isascii():
            return text
        if len(self.spellings) >= MOST_SPELLINGS:
            return self.spellings.get(text.casefold(), text)
        return self.spellings.setdefault(text.casefold(), text)

    def _spelled(self, literal: re.Match[str]) -> str:
        text = self._spelling(literal[1].replace("''", "'"))
        return "'" + text.replace("'", "''") + "'"

    def _warnings(self, sql: str) -> Iterator[str]:
        """Yield what was left out of the columns of a query."""
        figures = {name.casefold() for name in _FIGURE.findall(sql)}
        words = {*re.findall(r"\w+", sql.casefold())}
        for column, name in enumerate(self.columns.names):
            if name.casefold() in figures and self.empty[column]:
                yield f"Left out: {counted(self.empty[column], 'row')} without {name}."
            if name.casefold() in words:
                if self.wrong[column]:
                    rows = counted(self.wrong[column], "row")
                    kind = "number" if self.columns.numbers[column] else "date as in others"
                    yield f"Left out: {rows} whose {name} is no {kind}."
                style = self.columns.styles[column]
                if len(style.units) > 1:
                    most = style.units.most_common(UNITS)
                    units = ", ".join(f"{unit or 'none'} ({count:,})" for unit, count in most)
                    yield f"{name} has several units, which are not converted: {units}."
                if style.unsure:
                    mark = "comma" if "," in style.unsure else "point"
                    parts = "decimals" if style.point in style.unsure else "thousands"
                    yield f"In {name} a {mark} separates {parts}: {style.unsure}."

    def _places(self, sql: str) -> Iterator[dict[str, Any]]:
        """Yield the first rows that a query selects, or the one of a largest or smallest figure."""
        upper = sql.translate(_UPPER)
        if " GROUP BY " in upper or upper.startswith("SELECT DISTINCT") or " FROM T" not in upper:
            return
        select, behind = _parts(sql)
        select = select.upper()
        if len(re.findall(r"\bM(?:IN|AX)\(", select)) > 1:
            return  # of several rows
        whole = re.search(r"\b(?:COUNT|SUM|TOTAL|AVG|MEDIAN)\(", select)
        own = f"SELECT rowid{behind}" if whole else f"SELECT rowid,{sql[len('SELECT') :]}"
        for rowid, *_ in self.base.execute(own).fetchmany(CITED):
            [place] = self.base.execute("SELECT * FROM places WHERE rowid = ?", (rowid,))
            source, line, last, cells = place
            pairs = zip(self.table.header, cells.split("\0"), strict=False)
            text = shortened(" | ".join(f"{name}: {each.strip()}" for name, each in pairs), ROW)
            name = self.table.names[source]
            yield {"source": name, "line_start": line, "line_end": last, "text": text}


def _parts(sql: str) -> tuple[str, str]:
    """Return what a query selects, with the queries in it, and all behind."""
    outer, count = sql.translate(_UPPER), 1
    while count:
        outer, count = re.subn(r"\([^()]*\)", lambda match: "_" * len(match[0]), outer)
    at = outer.find(" FROM ") % (len(sql) + 1)
    return sql[:at], sql[at:]


def _create(base: sqlite3.Connection, columns: Columns) -> None:
    """Make the tables without rows, and the functions that SQLite lacks."""
    kinds = ["NUMERIC" if number else "TEXT" for number in columns.numbers]
    pairs = zip(columns.names, kinds, strict=True)
    every = ", ".join(f'"{name}" {kind} COLLATE NOCASE' for name, kind in pairs)
    base.execute(f"CREATE TABLE t ({every})")
    base.execute("CREATE TABLE places (source, line, last, cells)")
    base.create_function("LIKE", 2, _is_like)
    base.create_function("YEAR", 1, lambda date: date and int(date[:4]))
    base.create_function("MONTH", 1, lambda date: date and int(date[5:7]))
    for name, figure in (("MEDIAN", _Median), ("SUM", _Sum), ("AVG", partial(_Sum, mean=True))):
        base.create_aggregate(name, 1, figure)  # type: ignore[arg-type]


def can_be_computed(sql: str, columns: Columns) -> bool:
    """Return whether a query has the columns of a table, and only what a query may do."""
    with closing(sqlite3.connect(":memory:")) as base:
        _create(base, columns)
        base.set_authorizer(_only_reads)
        try:
            base.execute(f"EXPLAIN {sql}")
        except (sqlite3.Error, ValueError):
            return False
    return True


def _only_reads(action: int, name: str | None, function: str | None, *_: str | None) -> int:
    """Return whether a query may do something: only read the rows, and call some functions."""
    allowed = action == sqlite3.SQLITE_SELECT
    allowed |= action == sqlite3.SQLITE_READ and name in ("t", "places")
    allowed |= action == sqlite3.SQLITE_FUNCTION and str(function).lower() in _FUNCTIONS
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def of_table(table: Table) -> Iterator[str]:
    """Yield what of a table that was read was left out, and what was decided about it."""
    if any(map(VALUE.fullmatch, table.header)):
        names = shortened(", ".join(table.header), ROW)
        yield f"The first line is read as the names of the columns: {names}"
    if table.above:
        yield f"Left out: {counted(table.above, 'line')} above the names of the columns."
    if table.between:
        yield f"Left out: {counted(table.between, 'line')} between the rows."
    if table.sums:
        yield f"Line {table.sums[0]:,} may have the sum of other rows; it counts as a row."
    if table.totals:
        yield f"Left out: the sums of other rows in line {table.totals[0]:,}."
    if table.uneven:
        yield f"{counted(table.uneven, 'row')} with another number of cells than the header."
    if table.stray_count:
        lines = ", ".join(f"{line:,}" for line in table.strays)
        yield f"Left out: {counted(table.stray_count, 'line')}, no JSON object (first: {lines})."


def _is_like(pattern: str, value: object) -> bool | None:
    """Return what LIKE does, also for letters beyond ASCII."""
    return None if value is None else _pattern(pattern).fullmatch(str(value)) is not None


@cache
def _pattern(like: str) -> re.Pattern[str]:
    signs = {"%": ".*", "_": "."}
    pattern = "".join(signs.get(sign) or re.escape(sign) for sign in like)
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def _clean(text: str) -> str:
    if text.isascii():
        return text
    return text.encode(errors="replace").decode()  # JSON may have half characters


def _text(value: Any) -> str:
    """Return a value of a result; a figure without the error of a binary fraction."""
    if isinstance(value, float):
        text = f"{value:.15g}"
        return f"{Decimal(text):f}" if 1e-9 <= abs(value) < 1 else text
    return "" if value is None else str(value)
