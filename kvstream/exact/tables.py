"""Compute figures of a table in one pass over its rows, in memory that does not grow.

Figures are decimal, so sums of prices have no rounding errors.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import chain
from pathlib import PurePath
from statistics import median

from kvstream.exact.table_questions import Condition, Query, Sample
from kvstream.exact.table_words import FLAGS, loose, singular
from kvstream.input.table_reader import CITED, HEAD, NotReadError, Row, Table

LONGEST_NUMBER = 60
"""Characters of a cell that may be a number."""
MOST_APART = 3
"""Mean distance of numbers that may be names."""
MOST_CELLS = 100_000
"""Cells that are looked at before a question is read."""
LONGEST_VALUE = 100
"""Characters of a value that a question may name."""
LISTED = 10_000
"""Rows whose values an answer lists. More are only counted."""
MOST_VALUES = 4_000_000
"""Figures of a median, and different values of a column, that are held at once."""
MOST_GROUPS = 100_000
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
ORDER = {">": (1,), "<": (-1,), ">=": (0, 1), "<=": (0, -1)}
ISO = re.compile(r"\d{4}-\d\d-\d\d")
"""How a date begins, whose text has the order of time."""
_NOTHING = frozenset(("", "-", "–", "n/a", "na", "nan", "null", "none", "#n/a"))


@dataclass
class Numbers:
    """How the numbers of a column are written, from its first values."""

    point: str = "."
    units: Counter[str] = field(default_factory=Counter)
    unsure: str = ""
    """A number whose comma may be a decimal point."""
    dated: bool = False
    """Whether the values are dates, which have no numbers but an order."""

    @classmethod
    def of(cls, values: Iterable[str]) -> Numbers:
        only: Counter[str] = Counter()
        unsure, dates, values = "", 0, [*values]
        for value in values:
            dates += ISO.match(value.strip()) is not None
            found = _UNIT.fullmatch(value.strip())
            fits = [p for p, s in _STYLES.items() if found and s.fullmatch(found[2].strip())]
            if len(fits) == 1:
                only[fits[0]] += 1
            elif len(fits) == 2 and "," in value and not unsure:
                unsure = value.strip()
        point = "," if only[","] and not only["."] else "."
        return cls(point, unsure="" if only else unsure, dated=2 * dates > len(values))

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
            self.shown.update(filter(None, [cell(row, query.show).strip()]))
        if query.operation == "list" and len(self.listed) < LISTED:
            self.listed.append(("" if query.show is None else cell(row, query.show), row))
        if query.of is None:
            self.cited += [row] * (len(self.cited) < CITED)
            return
        text = cell(row, query.of).strip()
        if text.casefold() in _NOTHING:
            self.empty += 1
            return
        value = numbers.parse(text)
        if value is None:
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
        if operation == "count":
            return self.rows
        if not self.numbers:
            return None
        if operation == "mean":
            return self.total / self.numbers
        if operation == "median":
            return median(self.values)
        return self.total if operation == "sum" else self.best


def compute(table: Table, queries: Sequence[Query]) -> list[Found]:
    """Read the rows once, and return what each query finds. Raises NotReadError."""
    head = [*table.head()]
    found = [Found(query, head, len(table.header)) for query in queries]
    for row in table:
        for each in found:
            each.take(row)
    return found


def sample_of(rows: Sequence[Row], width: int, names: Sequence[str], *, complete: bool) -> Sample:
    """Return what the first rows of `width` columns say. `complete`: there are no others; `names`:
    those of the files.
    """
    some = rows[: max(1, MOST_CELLS // max(1, width))]
    values: defaultdict[str, dict[int, str]] = defaultdict(dict)
    figures, numeric, shared, dates = set[int](), set[int](), set[int](), set[int]()
    flags: dict[int, dict[bool, str]] = {}
    for column in range(width):
        filled = [t for t in (cell(row, column).strip() for row in some) if t]
        filled = [text for text in filled if len(text) <= LONGEST_VALUE]
        spelled = [*map(loose, filled)]
        for value, text in zip(spelled, filled, strict=True):
            values[value].setdefault(column, text)
        style = Numbers.of(filled)
        dates |= {column} if style.dated else set()
        numbers = [n for n in map(style.parse, filled) if n is not None]
        apart = len(numbers) > 9 and len({*numbers}) == len(filled)  # as the numbers of orders
        whole = apart and all(n == n.to_integral_value() for n in numbers)
        named = whole and max(numbers) - min(numbers) < MOST_APART * len(numbers)
        if 2 * len(numbers) > len(filled):
            numeric.add(column)
            figures |= set() if named else {column}
        if len({*spelled}) < len(filled):
            shared.add(column)
        if filled and FLAGS.keys() >= {*map(str.casefold, filled)}:
            flags[column] = {FLAGS[text.casefold()]: text for text in filled}
    stems = (re.findall(r"[^\W_]+", PurePath(name).stem.casefold()) for name in names)
    return Sample(
        values, frozenset(figures), frozenset(numeric), flags, frozenset(dates), frozenset(shared),
        complete and len(some) == len(rows), frozenset(map(singular, chain.from_iterable(stems))),
    )  # fmt: skip


class Found:
    """The answer to a query, from the rows that were read."""

    def __init__(self, query: Query, head: Sequence[Row], width: int) -> None:
        self.query = query
        columns = {c for c in (query.of, *(w.column for w in query.where)) if c is not None}
        self.styles = {c: Numbers.of(cell(row, c) for row in head) for c in columns}
        self.numbers = Numbers() if query.of is None else self.styles[query.of]
        self.read = 0
        self._figures: defaultdict[int | None, Figures] = defaultdict(Figures)
        self.groups: defaultdict[str, Figures] = defaultdict(Figures)
        """The figures by the values of the column `Query.by`."""
        self.seen: Counter[str] = Counter()
        """Values of the column of the first condition, until a row meets it."""
        self.loose = loose(query.anywhere)
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
            columns = [i for i in range(self.width) if loose(cell(row, i)) == self.loose]
        for column in columns:
            figures = self._figures[column]
            figures.add(row, query, self.numbers)
            if query.by is not None:
                self.groups[cell(row, query.by).strip()].add(row, query, self.numbers)
                if len(self.groups) > MOST_GROUPS:
                    raise NotReadError(f"More than {MOST_GROUPS:,} groups are not computed.")
            if column is not None:
                spellings = [cell(row, column).strip()]
            for spelling in spellings if len(figures.spellings) < HEAD else ():
                figures.spellings[spelling] += 1


class _Test:
    """A condition, ready to be tested on many cells."""

    def __init__(self, condition: Condition, numbers: Numbers) -> None:
        self.condition, self.numbers = condition, numbers
        self.loose = loose(condition.value)
        self.value, self.end = (Numbers().parse(text) for text in (condition.value, condition.end))

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
        start = self.condition.value
        if ISO.match(start) or self.numbers.dated:
            if not ISO.match(text):
                return False
            have = text[: len(start)]
            if relation == "between":
                return have >= start and text[: len(self.condition.end)] <= self.condition.end
            return (have > start) - (have < start) in ORDER[relation]
        value = self.numbers.parse(text)
        if value is None or self.value is None:
            return False
        if relation == "between":
            return self.end is not None and self.value <= value <= self.end
        return (value > self.value) - (value < self.value) in ORDER[relation]

    def _equal(self, text: str) -> bool:
        if self.value is not None and (number := self.numbers.parse(text)) is not None:
            return number == self.value
        return loose(text) == self.loose


def computable(query: Query) -> bool:
    """Return whether the values of all comparisons are numbers."""
    some = [each for each in query.where if each.relation in (*ORDER, "between")]
    values = [value for each in some for value in (each.value, each.end or each.value)]
    return all(Numbers().parse(value) is not None or ISO.match(value) for value in values)


def cell(row: Row, column: int) -> str:
    """Return a cell of a row; empty if the row is too short."""
    return row.cells[column] if column < len(row.cells) else ""
