"""What the first rows of a table say about its columns, and how their numbers are written."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import cached_property
from itertools import chain
from pathlib import PurePath

from kvstream.exact.routing import MONTH, MONTHS
from kvstream.exact.table_words import FLAGS, loose, singular, words_of
from kvstream.input.table_reader import Row, Table

LONGEST_NUMBER = 60
"""Characters of a cell that may be a number."""
MOST_DIGITS = 18
"""Characters of a number that SQLite certainly holds."""
MOST_APART = 3
"""Mean distance of numbers that may be names."""
MOST_CELLS = 100_000
"""Cells that are looked at before a question is read."""
LONGEST_VALUE = 100
"""Characters of a value that a question may name."""
NOTHING = frozenset(("", "-", "–", "n/a", "na", "nan", "null", "none", "#n/a"))
"""Cells without a number."""
_SPACES = "'’ \u00a0\u202f"
_SIGNS = (
    "[$€£¥₹₽₩₺₫₪₴%‰]|AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|IDR|ILS|INR|JPY|KRW|MXN|MYR|NOK|NZD"
    "|PHP|PLN|RON|RUB|SEK|SGD|THB|TRY|TWD|UAH|USD|ZAR"
)
"""What may stand before a number; other letters make a name: RTR-05."""
_UNIT = re.compile(
    rf"({_SIGNS})?\s*([+-]?[\d.,{_SPACES}]*\d(?:[eE][+-]?\d{{1,2}})?)\s*({_SIGNS}|[A-Z]{{3}})?"
)
"""A sign or code before or behind a number."""
_OUTER_SIGN = re.compile(rf"^([+-])\s*({_SIGNS})\s*")
_NUMBER = (
    rf"[+-]?(?:\d+|[1-9]\d{{{{0,2}}}}(?:[{{group}}{_SPACES}]\d{{{{3}}}})+)?"
    r"(?:{point}\d+)?(?:[eE][+-]?\d{{1,2}})?"
)
_PLAIN = re.compile(r"-?\d+(?:\.\d+)?")
_STYLES = {
    point: re.compile(_NUMBER.format(group=group, point=re.escape(point)))
    for point, group in ((".", ","), (",", "."))
}
"""How a number is written, by its decimal point."""
DATE = re.compile(
    r"\d{4}-\d\d-\d\d(?:([T ])\d\d(?::?\d\d(?::?\d\d(?:[.,]\d+)?)?)?\s?(Z|UTC|[+-]\d\d:?\d\d)?)?"
)
"""A date as in ISO 8601, whose text has the order of time."""
_WRITTEN_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?:,? (\d\d:\d\d(?::\d\d)?))?")
"""Day and month, or month and day, before the year; perhaps with a time."""
_NAMED_DATE = re.compile(
    rf"(?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)?[ .-]+(?P<month>{MONTH})"
    rf"|(?P<month2>{MONTH}) (?P<day2>\d{{1,2}})(?:st|nd|rd|th)?,?)[ .-]+(?P<year>\d{{4}}|\d\d)",
    re.IGNORECASE,
)
"""A date with the name of its month: 4-Mar-24, March 4th, 2024."""
_YEAR = re.compile(r"[12]\d{3}$")
_PADDED = re.compile(r"0\d")
"""How a number begins that is a name."""
_LETTER = re.compile(r"[^\W\d_]")
_KEYWORDS = frozenset(re.findall(
    r"\w+",
    "add all alter and as asc between by case check collate column commit constraint create "
    "default delete desc distinct drop else end escape except exists foreign from group having if "
    "in index insert intersect into is isnull join key like limit not notnull nothing null on or "
    "order primary references returning select set table then to transaction union unique update "
    "using values when where with rowid oid autoincrement deferrable current_date current_time "
    "current_timestamp",
))  # fmt: skip


def _number(text: str) -> re.Match[str] | None:
    """Return the match of a number, also of -$5 and with the minus of typography."""
    return _UNIT.fullmatch(_OUTER_SIGN.sub(r"\2\1", text.replace("\u2212", "-")))


def _of_named(text: str) -> str:
    """Return a date with the name of its month as in ISO 8601; any other text as it is."""
    date = _NAMED_DATE.fullmatch(text)
    if date is None:
        return text
    month = 1 + MONTHS.index((date["month"] or date["month2"])[:3].lower())
    year = date["year"]
    century = "" if len(year) > 2 else "19" if year > "69" else "20"
    return f"{century}{year}-{month:02}-{date['day'] or date['day2']:0>2}"


def _day_first(values: Sequence[str]) -> bool | None:
    """Return whether the day stands before the month in most of these dates; None: this is open, or
    they are no dates. The name of a month leaves nothing open.
    """
    if 2 * sum(map(bool, map(_NAMED_DATE.fullmatch, values))) > len(values):
        return True
    found = filter(None, map(_WRITTEN_DATE.fullmatch, values))
    dates = [date for date in found if min(int(date[1]), int(date[3])) < 13]
    if 2 * len(dates) <= len(values):
        return None
    first, second = (max(int(date[part]) for date in dates) > 12 for part in (1, 3))
    if first == second:
        return True if not first and all(date[2] == "." for date in dates) else None
    return first


def _turned(text: str, *, day_first: bool) -> str:
    """Return a date with the year at its end as in ISO 8601, and any other text as it is."""
    date = _WRITTEN_DATE.fullmatch(text)
    if date is None:
        return _of_named(text)
    day, month = (date[1], date[3]) if day_first else (date[3], date[1])
    possible = 0 < int(month) < 13 and 0 < int(day) < 32
    return f"{date[4]}-{month:0>2}-{day:0>2}{' ' * bool(date[5])}{date[5] or ''}" * possible


@dataclass
class Numbers:
    """How the numbers of a column are written, from its first values."""

    point: str = "."
    units: Counter[str] = field(default_factory=Counter)
    unsure: str = ""
    """A number whose comma or point may separate thousands, or decimals."""
    dated: bool = False
    """Whether the values are dates, which have no numbers but an order."""
    day_first: bool | None = None
    """For dates with the year at their end. None: the year is the first."""
    form: tuple[str, ...] = ()
    """What separates their times, and the zone; others would have another order."""

    @classmethod
    def of(cls, values: Iterable[str]) -> Numbers:
        only: Counter[str] = Counter()
        unsure, dates, values = "", list[tuple[str, ...]](), [*values]
        for value in values:
            dates += [date.groups("")] if (date := DATE.fullmatch(value)) else []
            match = _number(value) if len(value) <= LONGEST_NUMBER else None
            fits = [p for p, s in _STYLES.items() if match and s.fullmatch(match[2].strip())]
            if len(fits) == 1:
                only[fits[0]] += 1
            elif len(fits) == 2 and re.search("[.,]", value) and not unsure:
                unsure = value
        point = "," if only[","] and not only["."] else "."
        day_first = _day_first(values)
        dated = 2 * len(dates) > len(values) and len({*filter(any, dates)}) < 2
        return cls(
            point,
            unsure="" if only else unsure,
            dated=dated or day_first is not None,
            day_first=day_first,
        )

    def date(self, text: str) -> str | None:
        """Return a date for SQLite; None: it is none, or has another order as text."""
        if self.day_first is not None:
            text = _turned(text, day_first=self.day_first)
        match = DATE.fullmatch(text)
        form = match.groups("") if match else ()
        self.form = self.form or (form if any(form) else ())
        return text if match and (not any(form) or form == self.form) else None

    def parse(self, value: str) -> Decimal | None:
        """Return the number of a cell, without sign of a currency or percent; None: it is none."""
        if len(value) > LONGEST_NUMBER:
            return None
        if self.point == "." and _PLAIN.fullmatch(value):  # the usual case, which is quick
            self.units[""] += 1
            return Decimal(value)
        match = _number(value.strip())
        if match is None or not _STYLES[self.point].fullmatch(number := match[2].strip()):
            return None
        self.units[match[1] or match[3] or ""] += 1
        group = "," if self.point == "." else "."
        plain = re.sub(rf"[{group}'’\s]", "", number).replace(self.point, ".")
        try:
            return Decimal(plain)
        except InvalidOperation:
            return None

    def value(self, text: str) -> int | float | None:
        """Return the number of a cell for SQLite; None: it is none."""
        if self.point == "." and len(text) < MOST_DIGITS and _PLAIN.fullmatch(text):
            self.units[""] += 1
            return float(text) if "." in text else int(text)
        if (number := self.parse(text)) is None:
            return None
        return number_of(number)


@dataclass(frozen=True)
class Columns:
    """The columns of a table, and what its first rows say about them."""

    header: Sequence[str]
    names: Sequence[str]
    """Their names in queries, which need no quotes."""
    cells: Sequence[Sequence[str]]
    """The cells of each that are not empty."""
    styles: Sequence[Numbers]
    numbers: Sequence[bool]
    """Whether each has numbers, and no names such as A17."""
    values: Mapping[str, Mapping[int, str]]
    """Values as `loose` writes them, with their columns and a spelling in each."""
    numeric: frozenset[int]
    """Those whose cells are numbers, also if they name the rows."""
    flags: Mapping[int, Mapping[bool, str]]
    """Those whose cells say yes or no, with the words for it."""
    dates: frozenset[int]
    """Those whose cells are dates."""
    repeats: frozenset[int]
    """Those in which rows have the same value."""
    complete: bool
    """Whether these are all rows."""
    about: frozenset[str]
    """Words of the names of the files, which stand for the rows."""

    @classmethod
    def of(cls, table: Table, *, whole: bool = True) -> Columns:
        """Read the first rows of a table. `whole`: the text does not go on behind them."""
        head, width = table.head(), len(table.header)
        some = head[: max(1, MOST_CELLS // max(1, width))]
        values: defaultdict[str, dict[int, str]] = defaultdict(dict)
        figures, numeric, repeats, dates = set[int](), set[int](), set[int](), set[int]()
        flags: dict[int, dict[bool, str]] = {}
        every = [[t for row in some if (t := cell(row, c).strip())] for c in range(width)]
        styles = [*map(Numbers.of, every)]
        comma = any(style.point == "," for style in styles)
        for style in (each for each in styles if "." in each.unsure):
            style.point = "," if comma else "."
            usual = table.delimiter != ";" and _PLAIN.fullmatch(style.unsure)
            style.unsure *= comma or not usual
        for column, cells in enumerate(every):
            texts = [text for text in cells if len(text) <= LONGEST_VALUE]
            forms = [*map(loose, texts)]
            for value, text in zip(forms, texts, strict=True):
                values[value].setdefault(column, text)
            for text in texts:
                values[text.casefold()][column] = text
            style = styles[column]
            dates |= {column} if style.dated else set()
            numbers = [n for n in map(style.parse, texts) if n is not None]
            style.units.clear()  # those of all rows are counted
            apart = len(numbers) > 9 and len({*numbers}) == len(texts)  # as the numbers of orders
            named = (
                apart
                and all(n == n.to_integral_value() for n in numbers)
                and max(numbers) - min(numbers) < MOST_APART * len(numbers)
            )
            if 2 * len(numbers) > len(texts) and not any(map(_PADDED.match, texts)):
                numeric.add(column)
                figures |= set() if named else {column}
            if len({*forms}) < len(texts):
                repeats.add(column)
            if texts and FLAGS.keys() >= {*map(str.casefold, texts)}:
                flags[column] = {FLAGS[text.casefold()]: text for text in texts}
        stems = (re.findall(r"[^\W_]+", PurePath(n).stem.casefold()) for n in table.names)
        return cls(
            table.header, _names(table.header), every, styles,
            [c in figures or (c in numeric and not any(map(_LETTER.search, every[c])))
             for c in range(width)],
            values, frozenset(numeric), flags, frozenset(dates), frozenset(repeats),
            whole and table.complete and len(some) == len(head),
            frozenset(map(singular, chain.from_iterable(stems))),
        )  # fmt: skip

    @cached_property
    def times(self) -> frozenset[int]:
        """The columns of dates or years."""
        years = (c for c, cells in enumerate(self.cells) if cells and all(map(_YEAR.match, cells)))
        return self.dates.union(years)

    def spellings(self, text: str) -> dict[int, str]:
        """Return the columns with a value, and how it is spelled: in this way if it can be."""
        return {**self.values.get(loose(text), {}), **self.values.get(text.casefold(), {})}

    def place(self, name: str) -> int | None:
        """Return which column has a name in queries, or None."""
        same = (c for c, own in enumerate(self.names) if own.casefold() == name.casefold())
        return next(same, None)

    def by_name(self, phrase: str) -> list[int]:
        """Return the columns with these words alone; if there are none, all that have them."""
        words = words_of(phrase)
        exact = [column for column, name in enumerate(self.header) if words_of(name) == words]
        some = (c for c, name in enumerate(self.header) if {*words} <= {*words_of(name)})
        return (exact or [*some]) if len({*words}) == len(words) > 0 else []


def number_of(number: Decimal) -> int | float:
    """Return a number as SQLite holds it."""
    return int(number) if number == int(number) and abs(number) < 2**63 else float(number)


def cell(row: Row, column: int) -> str:
    """Return a cell of a row; empty if the row is too short."""
    return row.cells[column] if column < len(row.cells) else ""


def _names(header: Sequence[str]) -> list[str]:
    """Return the names of columns as a query writes them without quotes, each once."""
    names, taken = list[str](), {*_KEYWORDS}
    for place, name in enumerate(header, 1):
        plain = re.sub(r"\W+", "_", name).strip("_") or "column"
        plain = plain if plain[0].isalpha() else f"c_{plain}"
        while plain.casefold() in taken:
            plain = f"{plain}_{place}"
        names.append(plain)
        taken.add(plain.casefold())
    return names
