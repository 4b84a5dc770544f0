"""Answers about a table in words, as JSON objects: figures, rows, and what was left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from kvstream.exact.table_questions import AmbiguousError, Query, of_several, query_of
from kvstream.exact.tables import (
    LISTED,
    Figures,
    Found,
    Numbers,
    cell,
    computable,
    compute,
    sample_of,
)
from kvstream.input.blocks import TextBlock
from kvstream.input.table_reader import NotReadError, Row, Table, tables_of
from kvstream.reporters.format import counted, number, shortened

WORDS = {"max": "largest", "min": "smallest", "sum": "sum of", "mean": "mean of",
         "median": "median of"}  # fmt: skip
IS = {"=": "is", "!=": "is not", "starts": "starts with", "empty": "is empty"}
ROW = 200
"""Characters of a row that is shown."""
_VALUE = re.compile(r"-?(?![12]\d{3}$)\d+(?:[.,]\d+)*|\d{4}-\d\d-\d\d.*")
"""What is hardly the name of a column: a number that is no year, or a date."""
VALUES = 8
"""Different values that a message names."""


class RowQuestions:
    """The questions that the rows of a table answer."""

    def __init__(
        self, blocks: Iterable[TextBlock], names: Sequence[str], questions: Sequence[str], *,
        whole: bool = True,
    ) -> None:  # fmt: skip
        """`whole`: the blocks are all of the text. Raises NotReadError for one without a table."""
        self.queries: dict[str, list[tuple[Table, Query]]] = {}
        """The first tables that fit a question. If two do, the rows do not answer it."""
        self._told: dict[str, dict[str, Any]] = {}
        """Answers that need no row: an ambiguous question names the columns."""
        self.header: Sequence[str] | None = None
        """Columns, if all of the text is one table."""
        for table in tables_of(blocks, names):
            self.header, head = table.header if table.whole else (), table.head()
            sample = sample_of(head, len(table.header), names, complete=table.complete and whole)
            for question in questions:
                try:
                    query = query_of(question, table.header, sample)
                except AmbiguousError as error:
                    self._told |= {question: _told(str(error))} if table.whole else {}
                    continue
                fitting = self.queries.get(question, [])
                if query is not None and computable(query) and len(fitting) < 2:
                    self.queries[question] = [*fitting, (table, query)]
        if self.header is None:
            raise NotReadError("The text has no table.")

    def __len__(self) -> int:
        return len(self.queries) + len(self._told)

    def answers(self) -> dict[str, dict[str, Any]]:
        """Read the rows; return the answers by question. Raises NotReadError, SourceError."""
        found: dict[str, dict[str, Any] | None] = {}
        single = {q: fits[0] for q, fits in self.queries.items() if len(fits) == 1}
        for table in dict.fromkeys(own for own, _ in single.values()):
            here = {q: query for q, (own, query) in single.items() if own is table}
            made = compute(table, list(here.values()))
            found |= {q: _record(each, table) for q, each in zip(here, made, strict=True)}
        return self._told | {q: record for q, record in found.items() if record}


def _told(answer: str, **more: Any) -> dict[str, Any]:
    return {"answer": answer, "value": None, "citations": [], "warnings": [], **more}


def _record(found: Found, table: Table) -> dict[str, Any] | None:
    """Return the answer to a query; None if the rows have none, so that the model is asked."""
    query, figures = found.query, found.figures
    if query.anywhere and not found.columns:
        return None
    if len(found.columns) > 1:
        return _told(of_several(query.anywhere, found.columns, table.header))
    value: Any = figures.value(query.operation) if query.of is not None else figures.rows
    cited = figures.cited
    if query.by is not None:
        groups = _groups(found)
        if query.best:
            value, cited = groups[0][1] if groups else None, groups[0][2].cited if groups else []
    if query.operation == "distinct":
        value = len(figures.shown)
    if query.of is not None and figures.wrong > figures.numbers:
        return None  # the column is none of numbers
    if not figures.rows and not all(each.stated for each in query.where):
        return None
    return {
        "answer": "\n".join(_sentences(found, table, value)),
        "value": _json(value),
        "rows": {
            "read": found.read,
            "matched": figures.rows if query.of is None else figures.numbers,
        },
        "citations": [_cited(row, table) for row in cited],
        "warnings": list(_warnings(found, table)),
    }


def _json(value: Decimal | float | None) -> float | None:
    """Return a number for JSON; as an integer if a float would round it."""
    if value is None or isinstance(value, int):
        return value
    exact = Decimal(value)
    return int(exact) if abs(exact) > 2**53 and exact == int(exact) else float(exact)


def _sentences(found: Found, table: Table, value: Any) -> Iterator[str]:
    query, figures, header = found.query, found.figures, table.header
    where, whole = _where(found, header), counted(found.read, "row")
    if query.by is not None:
        yield from _by_group(found, header, where)
    elif query.operation == "count":
        told = f"{number(figures.rows)} of {whole}" if where else whole
        yield f"{told}{where}."
        if query.show is not None and len(figures.shown) < figures.rows:
            different = counted(len(figures.shown), "different value")
            yield f"They have {different} of {header[query.show]}."
    elif query.operation == "distinct":
        yield f"{header[query.show or 0]} has {counted(value, 'different value')}{where}."
        yield ", ".join(f"{v} ({n:,})" for v, n in figures.shown.most_common(VALUES))
    elif query.operation == "list":
        yield f"{number(figures.rows)} of {whole}{where}:"
        for text, row in figures.listed:
            line = _row(row, table) if query.show is None else " ".join(text.split())
            yield f"{_place(row, table)}: {line}"
        if figures.rows > len(figures.listed):
            yield f"and {number(figures.rows - len(figures.listed))} more"
    elif value is None:
        yield f"No row{where}."
    elif query.operation in ("max", "min"):
        what = f"{WORDS[query.operation]} {header[query.of or 0]}{where}"
        places = ", ".join(_place(row, table) for row in figures.cited)
        others = figures.ties - len(figures.cited)
        more = f" and {others} more" if others > 0 else ""
        if query.show is not None:
            shown = dict.fromkeys(cell(row, query.show).strip() for row in figures.cited)
            yield f"{', '.join(shown)}: the {what} is {_figure(value, found)} ({places}{more})."
        else:
            yield f"The {what} is {_figure(value, found)} ({places}{more})."
            yield _row(figures.cited[0], table)
    else:
        what = f"{WORDS[query.operation]} {header[query.of or 0]}{where}"
        rows = counted(figures.numbers, "row")
        yield f"The {what} is {_figure(value, found)}, of {rows}."


def _groups(found: Found) -> list[tuple[str, Decimal | float, Figures]]:
    """Return name, figure and rows of the groups: the largest first, or the smallest for `min`."""
    every = ((name, own.value(found.query.operation), own) for name, own in found.groups.items())
    known = [(name, value, own) for name, value, own in every if value is not None]
    return sorted(known, key=lambda each: each[1], reverse=found.query.best != "min")


def _by_group(found: Found, header: Sequence[str], where: str) -> Iterator[str]:
    query, groups = found.query, _groups(found)
    name = "number of rows" if query.of is None else f"{WORDS[query.operation]} {header[query.of]}"
    name = f"{name} by {header[query.by or 0]}{where}"
    told = [f"{group or '(empty)'}: {_figure(value, found)}" for group, value, _ in groups]
    if not query.best:
        yield f"{name[0].upper()}{name[1:]}:"
        yield from told[:LISTED]
    elif told:
        first = [group for group, value, _ in groups if value == groups[0][1]]
        figure = f"the {WORDS[query.best]} {name} is {_figure(groups[0][1], found)}"
        yield f"{', '.join(first[:VALUES])}: {figure}."
        if told[len(first) :]:
            yield f"Then {', '.join(told[len(first) : len(first) + VALUES])}"
    else:
        yield f"No row{where}."


def _figure(value: Decimal | float, found: Found) -> str:
    """Return a figure with the unit of its column."""
    exact = Decimal(str(value))
    if found.query.operation in ("mean", "median"):
        exact = round(exact, 6).normalize()
    units = [unit for unit in found.numbers.units if unit]
    unit = units[0] if len(units) == 1 else ""
    text = f"{exact:,f}"
    return f"{text} {unit}" if unit.isalpha() or unit == "%" else f"{unit}{text}"


def _where(found: Found, header: Sequence[str]) -> str:
    told = [
        f"{header[each.column]} {IS.get(each.relation, each.relation)} {each.value}".strip()
        + (f" and {each.end}" if each.end else "")
        for each in found.query.where
    ]
    if found.columns:
        told.append(f"{header[found.columns[0]]} is {found.query.anywhere}")
    return f" where {' and '.join(told)}" if told else ""


def _warnings(found: Found, table: Table) -> Iterator[str]:
    """Yield what was left out of the figure, and what was decided about its cells."""
    query, figures, numbers = found.query, found.figures, found.numbers
    if query.of is not None:
        name = table.header[query.of]
        if figures.empty:
            yield f"Left out: {counted(figures.empty, 'row')} without {name}."
        if figures.wrong:
            text, line = figures.wrong_at
            yield (
                f"Left out: {counted(figures.wrong, 'row')} whose {name} is no number, the first "
                f"in line {line:,}: {shortened(text, 40)}"
            )
        yield from of_numbers(name, numbers)
    wanted = {each.value for each in query.where if each.relation == "="} | {query.anywhere}
    if set(figures.spellings) - wanted:
        yield f"Counted values: {_counts(figures.spellings)}."
    if not figures.rows and query.where and found.seen:
        name = table.header[query.where[0].column]
        yield f"Values of {name}: {_counts(found.seen)}."
    yield from of_table(table)


def of_numbers(name: str, numbers: Numbers) -> Iterator[str]:
    """Yield warnings about how the numbers of a column are written."""
    if len(numbers.units) > 1:
        named = {unit or "none": count for unit, count in numbers.units.items()}
        yield f"{name} has several units, which are not converted: {_counts(named)}."
    if numbers.unsure:
        yield f"In {name} a comma separates thousands: {numbers.unsure}."


def of_table(table: Table) -> Iterator[str]:
    """Yield what of a table that was read was left out, and what was decided about it."""
    if any(map(_VALUE.fullmatch, table.header)):
        shown = shortened(", ".join(table.header), ROW)
        yield f"The first line is read as the names of the columns: {shown}"
    if table.above:
        yield f"Left out: {counted(table.above, 'line')} above the names of the columns."
    if table.totals:
        yield f"Left out: the sums of other rows in line {table.totals[0]:,}."
    if table.uneven:
        yield f"{counted(table.uneven, 'row')} with another number of cells than the header."
    if table.lost:
        lines = ", ".join(f"{line:,}" for line in table.unparsed)
        yield f"Left out: {counted(table.lost, 'line')}, no JSON object (first: {lines})."


def _counts(counts: Mapping[str, int]) -> str:
    most = Counter(counts).most_common(VALUES)
    more = f", {len(counts) - VALUES:,} more" if len(counts) > VALUES else ""
    return ", ".join(f"{shortened(value, 40)} ({count:,})" for value, count in most) + more


def _place(row: Row, table: Table) -> str:
    name = f"{table.names[row.source]}:" if len(table.names) > 1 else "line "
    return f"{name}{row.line}"


def _row(row: Row, table: Table) -> str:
    cells = zip(table.header, row.cells, strict=False)
    return shortened(" | ".join(f"{name}: {value.strip()}" for name, value in cells), ROW)


def _cited(row: Row, table: Table) -> dict[str, Any]:
    name = table.names[row.source]
    lines = {"line_start": row.line, "line_end": row.last}
    return {"source": name, **lines, "text": _row(row, table)}
