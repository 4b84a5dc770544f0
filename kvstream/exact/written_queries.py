"""Have a model write the query for a question about a table.

The model is trained for it (``docs/research/lab/reader_larger.py --queries``). It sees the columns
with some of their values, and writes NONE if they do not answer the question. A query is taken only
if the model is sure of it, and if it has the values and numbers that the question names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from itertools import islice

from kvstream.exact.plain_queries import core
from kvstream.exact.routing import iso_dates
from kvstream.exact.row_database import can_be_computed
from kvstream.exact.table_words import AGES, loose
from kvstream.exact.tables import Columns
from kvstream.reporters.format import shortened

Writer = Callable[[str, str], tuple[str, float]]
"""Answers a prompt with a system text; with the mean log-probability of the answer."""

SYSTEM = (
    "Write the SQLite query that answers the question about the table, or NONE if the table does "
    "not answer it."
)
CERTAIN = -0.07
"""Least mean log-probability of the tokens of a query (docs/research/answers.md)."""
MOST_COLUMNS, FEW, EXAMPLES = 60, 12, 3
"""Columns that a prompt describes; values of a column that it lists; values of any other column."""
MOST_TOKENS = 100
"""Tokens of a query."""
_NO_QUERY = re.compile(
    r"(?i)\b(?:why|explain|describe|summari[sz]e|recommend|suggest|advice|opinion|do you think"
    r"|mention\w*|occurs?|the word)\b|^how (?:do|does|can|could|to)\b"
)
"""Questions that no query answers, and those for words of the text."""
_EQUAL = re.compile(r"(?i)\b(?!NOT\b)(\w+)(?= (?:=|!=|<>|(?:NOT )?IN \() ?'([^']*)')")
"""The column that must equal, or not, a text."""
_PART = re.compile(r"(?i)((?:strftime|substr)\([^()]*\) ?(?:[<>]=?|[!=]?=|<>) ?)(\d+)\b")
"""A part of a text that is compared with a number, which would be less than any text."""
_ASCENDING = re.compile(r"(?i)( ORDER BY (?:\w+|\w+\([^()]*\))(?: ASC)?)(?= LIMIT |$)")
_END = re.compile(
    r"(?i) ORDER BY (?P<by>\w+)(?: ASC| DESC)?(?= LIMIT )|\bM(?:IN|AX)\((?P<of>\w+)\)"
)
"""The first or the last of an order."""
_PERIOD = re.compile(
    r"(?i)\b(\w+) ?(>|<=|(NOT )?BETWEEN '?([\d-]+)'? AND) ?('?)(\d{4}(?:-\d\d){0,2})\5(?![\w-])"
)
"""A comparison with a year, month or day, all of which is before what is later."""
_LITERAL = re.compile(r"'((?:[^']|'')*)'")
_FORMAT = re.compile(r"(?i)strftime\('[^']*'")
_OTHER_FORM = re.compile(
    r"(?i)--|/\*|'' FROM t\b|\b(?:GROUP|ORDER) BY .*''"
    r"|\bFROM (?!t(?: (?:WHERE|GROUP|ORDER|HAVING|LIMIT)\b| ?\)|$))"
    r"|\b(?:UNION|EXCEPT|INTERSECT|WITH|CASE|AS|rowid|oid|_rowid_)\b"
)
"""What no query of the rows needs, without its texts: other tables, joins, comments."""
_SUMS = re.compile(
    r"(?i)\b(?:SUM|TOTAL|AVG|MEDIAN)\((?:DISTINCT )?(\w+)\b(?! (?:[=<>!]|IS |IN |LIKE |NOT ))"
)
_SORTS = re.compile(
    r"(?i)\bM(?:IN|AX)\((\w+)\)|\b(\w+) ?(?:[<>]=?(?!>)|BETWEEN\b)|ORDER BY (\w+)(?=.* LIMIT )"
)
"""Columns that must have the order of numbers or of time."""
_DIVISION = re.compile(r"('(?:[^']|'')*')| ?/ ?")
"""A text, or a division, which SQLite would round between whole numbers."""


class QueryWriter:
    """Writes queries for questions about a table."""

    def __init__(self, columns: Columns, write: Writer) -> None:
        self.columns, self.write = columns, write

    def query_of(self, question: str) -> str | None:
        """Return the query of a question; None if the model is not sure of one that fits it."""
        if len(self.columns.names) > MOST_COLUMNS or _NO_QUERY.search(core(question)):
            return None
        text, likely = self.write(SYSTEM, self.prompt(question, self.named(question)))
        question, sql = iso_dates(core(question)), self._read(text)
        if likely < CERTAIN or not self._fits(sql, question):
            return None
        sql = _PERIOD.sub(self._whole, self._in_time(sql, question))
        sql = _DIVISION.sub(lambda match: match[1] or " * 1.0 / ", sql)
        return sql if can_be_computed(sql, self.columns) else None

    def prompt(self, question: str, values: Collection[str]) -> str:
        """Return the prompt for a question. It shows `values` before others: see `loose`."""
        lines = []
        for column, name in enumerate(self.columns.names):
            own = [*dict.fromkeys(self.columns.cells[column])]
            few = len(own) <= FEW and len(own) < len(self.columns.cells[column])
            number = self.columns.numbers[column]
            own.sort(key=lambda value: loose(value) not in values)
            most = FEW if few else max(EXAMPLES, sum(loose(value) in values for value in own))
            style = self.columns.styles[column]
            shown = (
                style.date(each) or each if style.day_first is not None else each for each in own
            )
            some = [shortened(value, 40) for value in islice(shown, most)]
            examples = ", ".join(some if number else [f"'{value}'" for value in some])
            kind = "NUMBER" if number else "TEXT"
            lines.append(f'  "{name}" {kind}, -- {"values" if few else "such as"} {examples}')
        table = "CREATE TABLE t (\n" + "\n".join(lines) + "\n);"
        return f"{table}\n\nQuestion: {iso_dates(core(question))}"

    def named(self, question: str) -> list[str]:
        """Return the values of texts of the table that a question names, as `loose` writes them."""
        words = loose(_plain(question)).split()
        names = {word for name in self.columns.names for word in re.findall(r"\w+", loose(name))}
        turned = {c for c, style in enumerate(self.columns.styles) if style.day_first is not None}
        values = []
        for begin in range(len(words)):
            for end in range(begin + 1, min(len(words), begin + 6) + 1):
                value = " ".join(words[begin:end]).strip(".,:")
                columns = self.columns.values.get(value, {}).keys() - self.columns.numeric - turned
                if columns - self.columns.flags.keys() and value not in names and len(value) > 2:
                    values.append(value)
        return values

    def _read(self, text: str) -> str:
        """Return the query that a model wrote, in plain form."""
        sql = re.sub(r'"([^"]*)"', self._name_or_text, " ".join(text.split()))
        return _EQUAL.sub(self._having, _PART.sub(r"\1'\2'", sql))

    def _fits(self, sql: str, question: str) -> bool:
        """Return whether a query only reads rows, adds up numbers alone, sorts numbers and dates
        alone, and has the values and numbers of the question.
        """
        bare, texts = _LITERAL.sub("", sql), " ".join(_LITERAL.findall(sql)).replace("''", "'")
        query = f" {loose(' '.join([texts.replace('%', ' '), bare]))} "
        place = self.columns.place
        sums = {*map(place, _SUMS.findall(bare))} - {None}
        sorts = {place(name) for names in _SORTS.findall(bare) for name in names} - {None}
        numbers = {column for column, number in enumerate(self.columns.numbers) if number}
        return (
            _OTHER_FORM.search(_LITERAL.sub("''", _FORMAT.sub("", sql))) is None
            and sums <= numbers
            and sorts <= numbers | self.columns.dates
            and all(f" {value} " in query for value in self.named(question))
            and _numbers(_plain(question)) <= _numbers(f"{bare} {texts}")
        )

    def _name_or_text(self, match: re.Match[str]) -> str:
        """Return what is in double quotes as the name of a column, or as a text."""
        known = self.columns.place(match[1]) is not None
        return match[1] if known else "'" + match[1].replace("'", "''") + "'"

    def _having(self, match: re.Match[str]) -> str:
        """Return the column of a comparison, or if it lacks the value, the only one that has it."""
        names = [self.columns.names[c] for c in self.columns.spellings(match[2])]
        return names[0] if len(names) == 1 else match[0]

    def _in_time(self, sql: str, question: str) -> str:
        """Return a query that has the end of time that the question names, empty cells last."""
        words = {*re.findall(r"\w+", question.casefold())}
        signs = [sign for sign, some in AGES.items() if some & words]
        ends = [
            each
            for each in _END.finditer(sql)
            if self.columns.place(each["by"] or each["of"]) in self.columns.times
        ]
        if len(signs) == len(ends) == 1:
            by, of = ends[0]["by"], ends[0]["of"]
            end = f" ORDER BY {by}{signs[0]}" if by else f"{'MAX' if signs[0] else 'MIN'}({of})"
            sql = f"{sql[: ends[0].start()]}{end}{sql[ends[0].end() :]}"
        return _ASCENDING.sub(r"\1 NULLS LAST", sql)

    def _whole(self, match: re.Match[str]) -> str:
        """Return a comparison of a date with a year or month, in which all of it is equal."""
        begin, end = match[4] or match[6], match[6]
        if self.columns.place(match[1]) not in self.columns.dates or len(begin) != len(end):
            return match[0]
        sign = f"{match[3] or ''}BETWEEN '{begin}' AND" if match[4] else match[2]
        return f"substr({match[1]}, 1, {len(end)}) {sign} '{end}'"


def _numbers(text: str) -> set[str]:
    """Return the numbers of a text, without separators of thousands and zeros before them."""
    numbers = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![^\W_])", text.replace("_", " "))
    return {each.replace(",", "").lstrip("0") for each in numbers}


def _plain(question: str) -> str:
    """Return the words of a question, with its dates as in ISO 8601."""
    return re.sub(r"['’]s\b|[^\w\s.,:%-]|[.,:]+(?=\s|$)", " ", iso_dates(question))
