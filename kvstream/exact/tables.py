"""Answer questions about a table in one pass over its rows, in memory that does not grow.

Python's csv and json parse the rows: unlike a data frame they say which cell is no number, and
they need no extra. Figures are decimal, so sums of prices have no rounding errors.
"""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import chain, groupby, islice
from statistics import median
from typing import NamedTuple

from kvstream.errors import SourceError
from kvstream.exact.table_questions import Condition, Query, singular
from kvstream.input.blocks import TextBlock
from kvstream.input.lines import LONGEST, Line, lines_of

csv.field_size_limit(LONGEST)
HEAD = 1000
"""Rows that are looked at before the first is counted, to see how numbers are written."""
_NAME = re.compile(r"\s*[^\W\d][^.!?,;:|]{0,39}")
"""The name of a column in a header that a model reads before every passage."""
_IN_TABLE = re.compile(r" \| |^\|[-:| ]+$")
"""A row of a table between other lines."""
LONGEST_ROW = 10_000
"""Characters of a row of a table between other lines."""
LONGEST_NUMBER = 60
"""Characters of a cell that may be a number."""
CITED = 5
LISTED = 10_000
"""Rows whose values an answer lists. More are only counted."""
MOST_VALUES = 4_000_000
"""Figures of a median, and different values of a column, that are held at once."""
_NAMED = re.compile(r"\.(csv|tsv|tab|jsonl|ndjson)(?:\.(?:gz|bz2|xz|zst))?$", re.IGNORECASE)
_SPACES = "'’ \u00a0\u202f"
_SIGNS = "[$€£¥₹₽₩₺₫₪₴%‰]|[A-Z]{3}"
_UNIT = re.compile(rf"({_SIGNS})?\s*([+-]?[\d.,{_SPACES}]*\d(?:[eE][+-]?\d{{1,2}})?)\s*({_SIGNS})?")
"""A sign or code before or behind a number."""
_NUMBER = (
    rf"[+-]?(?:\d+|\d{{{{1,3}}}}(?:[{{group}}{_SPACES}]\d{{{{3}}}})+)?"
    r"(?:{point}\d+)?(?:[eE][+-]?\d{{1,2}})?"
)
_PLAIN = re.compile(r"-?\d+(?:\.\d+)?")
_STYLES = {
    point: re.compile(_NUMBER.format(group=group, point=re.escape(point)))
    for point, group in ((".", ","), (",", "."))
}
"""How a number is written, by its decimal point."""
_NOTHING = frozenset(("", "-", "–", "n/a", "na", "nan", "null", "none", "#n/a"))


class Row(NamedTuple):
    """A row of a table."""

    cells: Sequence[str]
    source: int
    line: int
    """Line of the source at which it begins, from 1."""
    last: int


class NotReadError(SourceError):
    """The rows cannot be told apart, so that nothing can be computed."""


class Table:
    """The rows of one or several sources with the same header. Iterate once."""

    whole = True
    """Whether it is all of the text."""

    def __init__(self, ahead: Sequence[Line], lines: Iterator[Line], names: Sequence[str]) -> None:
        """Raises NotReadError if the lines `ahead` of others do not begin as a table does."""
        self.names = names
        self.unparsed: list[int] = []
        """Numbers of the first lines that are no row."""
        self.lost = 0
        """Number of these lines."""
        self.uneven = 0
        """Number of rows with another number of cells than the header."""
        self.header: list[str] = []
        self._ahead, self._lines = ahead, _checked(lines)
        source = self._ahead[0].block.source if self._ahead else 0
        texts = [line.text for line in self._ahead if line.block.source == source]
        sample = [line.text for line in _checked(ahead[: len(texts)]) if line.text.strip()]
        self.delimiter = delimiter_of(sample, names[source] if names else "")
        if self.delimiter is None:
            raise NotReadError("The text is no table.")
        if self.delimiter == "json":
            for line in sample:
                self.header += [key for key in _object(line) or {} if key not in self.header]
        else:
            self.header = [name.strip() for name in _parsed(sample, self.delimiter)[0]]

    def __iter__(self) -> Iterator[Row]:
        lines = chain(self._ahead, self._lines)
        for source, own in groupby(lines, key=lambda line: line.block.source):
            read = self._objects if self.delimiter == "json" else self._rows
            yield from read(own, source)

    def _rows(self, lines: Iterator[Line], source: int) -> Iterator[Row]:
        rows = rows_of(lines, str(self.delimiter), self.names[source], strict=True)
        header, _ = next(rows, ([], []))
        if [name.strip() for name in header] != self.header:
            raise NotReadError(f"{self.names[source]} has other columns.")
        for cells, own in rows:
            self.uneven += len(cells) != len(self.header)
            yield Row(cells, source, own[0].number, own[-1].number)

    def _objects(self, lines: Iterator[Line], source: int) -> Iterator[Row]:
        for line in lines:
            found, number = _object(line.text), line.number
            if found is not None:
                yield Row([_text(found.get(name)) for name in self.header], source, number, number)
            elif line.text.strip():
                self.lost += 1
                self.unparsed += [number] * (len(self.unparsed) < CITED)


class InnerTable(Table):
    """A table between other lines: of Markdown, or as the converters of documents write it."""

    whole = False

    def __init__(self, lines: Sequence[Line], names: Sequence[str]) -> None:
        """Raises NotReadError for lines that are no rows with a header."""
        self.names, self.unparsed, self.lost, self.uneven = names, [], 0, 0
        texts = [line.text.strip().removeprefix("|").removesuffix("|") for line in lines]
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", text)] for text in texts]
        self.header = rows[0]
        self._found = [
            Row([c.removeprefix(f"{n}:").strip() for n, c in zip(self.header, cells, strict=False)],
                line.block.source, line.number, line.number)
            for line, cells in zip(lines[1:], rows[1:], strict=True)
            if not all(re.fullmatch(":?-+:?", cell) for cell in cells)
        ]  # fmt: skip
        if len({*map(len, rows)}) > 1 or not all(map(_NAME.fullmatch, rows[0])) or not self._found:
            raise NotReadError("The lines are no table.")

    def __iter__(self) -> Iterator[Row]:
        return iter(self._found)


def tables_of(blocks: Iterable[TextBlock], names: Sequence[str]) -> Iterator[Table]:
    """Yield the table that a text is, or the tables that it has between other lines."""
    lines, ahead = lines_of(blocks), []
    for line in islice(lines, 200):
        ahead.append(line)
        if len(line.text) > LONGEST:
            break
    with suppress(NotReadError):
        yield Table(ahead, lines, names)
        return
    for (inside, _), own in groupby(chain(ahead, lines), key=_row_of):
        rows = [*islice(own, HEAD)] if inside else []
        if 1 < len(rows) < HEAD:  # more are a log
            with suppress(NotReadError):
                yield InnerTable(rows, names)


def _row_of(line: Line) -> tuple[bool, int]:
    """Return whether a line looks like a row of a table between other lines, and its source."""
    looks = len(line.text) <= LONGEST_ROW and _IN_TABLE.search(line.text) is not None
    return looks, line.block.source


def rows_of(
    lines: Iterator[Line], delimiter: str, name: str, *, strict: bool = False
) -> Iterator[tuple[list[str], list[Line]]]:
    """Yield cells and lines of each row; ``strict`` refuses other quotes. Raises NotReadError."""
    own: list[Line] = []

    def texts() -> Iterator[str]:
        for line in lines:
            own.append(line)
            yield re.sub(r"\r(?!\n)", " ", line.text) if "\r" in line.text else line.text

    reader = csv.reader(texts(), delimiter=delimiter, strict=strict)
    while True:
        own = []
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise NotReadError(
                f"{name}:{own[0].number}: the row cannot be read ({error}); perhaps a quotation "
                "mark does not end."
            ) from None
        if cells is None:
            return
        if any(map(str.strip, cells)) or len(cells) > 1:
            yield cells, own


def _checked(lines: Iterable[Line]) -> Iterator[Line]:
    for line in lines:
        if line.block.place is not None:
            raise NotReadError("The source is a document.")
        if len(line.text) > LONGEST:
            raise NotReadError(f"A line has more than {LONGEST:,} characters.")
        yield line


def delimiter_of(sample: Sequence[str], name: str) -> str | None:
    """Return what separates the cells, ``json`` for JSON lines; None for other texts."""
    named = _NAMED.search(name)
    if not sample:
        return None
    if sum(_object(line) is not None for line in sample[:20]) * 2 > len(sample[:20]):
        return "json"
    if named and named[1].lower() in ("tsv", "tab"):
        return "\t"
    for delimiter in "\t;,|" if not named else ",;\t|":
        counts = {len(row) for row in _parsed(sample[:50], delimiter) if row} or {0}
        even = len(counts) < 4 if named else len(counts) == 1 and len(sample) > 2
        if even and min(counts) > 1:
            return delimiter
    return "," if named and named[1].lower() == "csv" else None


def _parsed(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """Return the rows up to one that cannot be parsed; at least one, which may be empty."""
    rows: list[list[str]] = []
    with suppress(csv.Error):
        rows.extend(csv.reader(lines, delimiter=delimiter))
    return rows or [[]]


def header_of(lines: Sequence[str]) -> str:
    """Return the first line of a text if it names the columns of the lines below it, else empty."""
    for delimiter in "\t;,|":
        rows = _parsed(lines, delimiter)
        width = len(rows[0])
        even = width > 1 and len(rows) + width > 4 and all(len(row) == width for row in rows)
        if even and len(rows) > 1 and all(map(_NAME.fullmatch, rows[0])):
            return lines[0].strip()
    return ""


def _object(line: str) -> dict[str, object] | None:
    if line.lstrip()[:1] != "{":
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass
class Numbers:
    """How the numbers of a column are written, from its first values."""

    point: str = "."
    units: Counter[str] = field(default_factory=Counter)
    unsure: str = ""
    """A number whose comma may be a decimal point."""

    @classmethod
    def of(cls, values: Iterable[str]) -> Numbers:
        only: Counter[str] = Counter()
        unsure = ""
        for value in values:
            found = _UNIT.fullmatch(value.strip())
            fits = [
                p for p, style in _STYLES.items() if found and style.fullmatch(found[2].strip())
            ]
            if len(fits) == 1:
                only[fits[0]] += 1
            elif len(fits) == 2 and "," in value and not unsure:
                unsure = value.strip()
        point = "," if only[","] and not only["."] else "."
        settled = only[","] or any(only[p] for p in ".")
        return cls(point, unsure="" if settled else unsure)

    def parse(self, value: str) -> Decimal | None:
        """Return the number of a cell, without sign of a currency or percent; None: it is none."""
        if len(value) > LONGEST_NUMBER:
            return None
        if self.point == "." and _PLAIN.fullmatch(value):  # the usual case, which is quick
            self.units[""] += 1
            return Decimal(value)
        found = _UNIT.fullmatch(value.strip())
        if found is None or not _STYLES[self.point].fullmatch(number := found[2].strip()):
            return None
        self.units[found[1] or found[3] or ""] += 1
        group = "," if self.point == "." else "."
        plain = re.sub(rf"[{group}'’\s]", "", number).replace(self.point, ".")
        try:
            return Decimal(plain)
        except InvalidOperation:
            return None


@dataclass
class Figures:
    """What is known of the rows of one query so far."""

    rows: int = 0
    cited: list[Row] = field(default_factory=list)
    """The first rows, or the best ones."""
    numbers: int = 0
    total: Decimal = Decimal(0)
    best: Decimal | None = None
    ties: int = 0
    values: array[float] = field(default_factory=lambda: array("d"))
    empty: int = 0
    wrong: int = 0
    wrong_at: tuple[str, int] = ("", 0)
    """The first cell that is no number, and its line."""
    shown: Counter[str] = field(default_factory=Counter)
    listed: list[tuple[str, Row]] = field(default_factory=list)
    spellings: Counter[str] = field(default_factory=Counter)
    """Of the cells that a condition ``=`` accepted."""

    def add(self, row: Row, query: Query, numbers: Numbers) -> None:
        """Count a row that meets the conditions."""
        self.rows += 1
        if query.show is not None and len(self.shown) < MOST_VALUES:
            self.shown[cell(row, query.show).strip()] += 1
        if query.operation == "list" and len(self.listed) < LISTED:
            self.listed.append(("" if query.show is None else cell(row, query.show), row))
        if query.of is None:
            self.cited += [row] * (len(self.cited) < CITED)
            return
        text = cell(row, query.of).strip()
        value = None if text.casefold() in _NOTHING else numbers.parse(text)
        if value is None:
            if text.casefold() in _NOTHING:
                self.empty += 1
            else:
                self.wrong += 1
                self.wrong_at = self.wrong_at if self.wrong > 1 else (text, row.line)
            return
        self.numbers += 1
        if query.operation == "median":
            if len(self.values) == MOST_VALUES:
                raise NotReadError(
                    f"A median of more than {MOST_VALUES:,} figures is not computed."
                )
            self.values.append(float(value))
        elif query.operation in ("max", "min"):
            better = self.best is None or (value > self.best) == (query.operation == "max")
            if value == self.best:
                self.ties += 1
                self.cited += [row] * (len(self.cited) < CITED)
            elif better:
                self.best, self.ties, self.cited = value, 1, [row]
        else:
            self.total += value
        if query.operation not in ("max", "min"):
            self.cited += [row] * (len(self.cited) < CITED)

    def value(self, operation: str) -> Decimal | float | None:
        """Return the figure of an operation; None if the column has no number."""
        if not self.numbers:
            return None
        if operation == "mean":
            return self.total / self.numbers
        if operation == "median":
            return median(self.values)
        return self.total if operation == "sum" else self.best


def compute(table: Table, queries: Sequence[Query]) -> list[Found]:
    """Read the rows once, and return what each query finds. Raises NotReadError."""
    rows = iter(table)
    head = list(islice(rows, HEAD))
    found = [Found(query, head, len(table.header)) for query in queries]
    for row in chain(head, rows):
        for each in found:
            each.take(row)
    return found


class Found:
    """The answer to a query, from the rows that were read."""

    def __init__(self, query: Query, head: Sequence[Row], width: int) -> None:
        self.query = query
        columns = {c for c in (query.of, *(w.column for w in query.where)) if c is not None}
        self.styles = {c: Numbers.of(cell(row, c) for row in head) for c in columns}
        self.numbers = Numbers() if query.of is None else self.styles[query.of]
        self.read = 0
        self._figures: defaultdict[int | None, Figures] = defaultdict(Figures)
        self.seen: Counter[str] = Counter()
        """Values of the column of the first condition, until a row meets it."""
        self.loose = _loose(query.anywhere)
        self.width = width
        self.tests = [_Test(each, self.styles[each.column]) for each in query.where]

    @property
    def columns(self) -> list[int]:
        """Columns that have the value of `Query.anywhere`; several: the question is ambiguous."""
        return sorted(column for column in self._figures if column is not None)

    @property
    def figures(self) -> Figures:
        """The figures of the rows with this value in the first of these columns."""
        return self._figures.get(self.columns[0] if self.columns else None, Figures())

    def take(self, row: Row) -> None:
        """Look at the next row."""
        query = self.query
        self.read += 1
        spellings = []
        for number, test in enumerate(self.tests):
            text = cell(row, test.condition.column).strip()
            if number == 0 and not self._figures and len(self.seen) < HEAD:
                self.seen[text] += 1
            if not test.holds(text):
                return
            if test.condition.relation == "=":
                spellings.append(text)
        columns: Iterable[int | None] = (None,)
        if query.anywhere:
            columns = [i for i in range(self.width) if _loose(cell(row, i)) == self.loose]
        for column in columns:
            figures = self._figures[column]
            figures.add(row, query, self.numbers)
            if column is not None:
                spellings = [cell(row, column).strip()]
            for spelling in spellings if len(figures.spellings) < HEAD else ():
                figures.spellings[spelling] += 1


class _Test:
    """A condition, ready to be tested on many cells."""

    def __init__(self, condition: Condition, numbers: Numbers) -> None:
        self.condition, self.numbers = condition, numbers
        self.loose = _loose(condition.value)
        self.value, self.end = (_asked(text) for text in (condition.value, condition.end))

    def holds(self, text: str) -> bool:
        """Return whether a cell meets the condition."""
        relation = self.condition.relation
        if relation == "empty":
            return text.casefold() in _NOTHING
        if relation in ("contains", "starts"):
            have, want = text.casefold(), self.condition.value.casefold()
            return want in have if relation == "contains" else have.startswith(want)
        if relation in ("=", "!="):
            return self._equal(text) == (relation == "=")
        value = self.numbers.parse(text)
        if value is None or self.value is None:
            return False
        if relation == "between":
            return self.end is not None and self.value <= value <= self.end
        order = (value > self.value) - (value < self.value)
        return order in {">": (1,), "<": (-1,), ">=": (0, 1), "<=": (0, -1)}[relation]

    def _equal(self, text: str) -> bool:
        if self.value is not None and (number := self.numbers.parse(text)) is not None:
            return number == self.value
        return _loose(text) == self.loose


def computable(query: Query) -> bool:
    """Return whether the values of all comparisons are numbers."""
    return all(
        _asked(value) is not None
        for each in query.where
        if each.relation in (">", "<", ">=", "<=", "between")
        for value in (each.value, each.end or each.value)
    )


def _asked(text: str) -> Decimal | None:
    """Return a number of a question, which writes it in the English way."""
    return Numbers().parse(text)


@lru_cache(maxsize=4096)
def _loose(text: str) -> str:
    """Return a value for comparison: without case, underscores and the s of a plural."""
    return " ".join(singular(word) for word in re.split(r"[\s_-]+", text.casefold().strip()))


def cell(row: Row, column: int) -> str:
    """Return a cell of a row; empty if the row is too short."""
    return row.cells[column] if column < len(row.cells) else ""
