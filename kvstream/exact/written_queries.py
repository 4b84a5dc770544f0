"""Have a model write the query for a question about a table.

The model sees the columns with some of their values. A query is taken only if the model is sure of
it, and if the question confirms it (`query_checks.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

from kvstream.exact.plain_queries import core
from kvstream.exact.query_checks import QueryChecks, plain
from kvstream.exact.routing import iso_dates
from kvstream.exact.row_database import can_be_computed
from kvstream.exact.table_words import AGES, loose, words_of
from kvstream.exact.tables import Columns
from kvstream.reporters.format import shortened

Writer = Callable[[str, str], Iterable[tuple[str, float]]]
"""Writes on from the end of a prompt with a system text: texts, the likeliest first, each with its
mean log-probability."""

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
total sold of chairs: SELECT SUM(sold) FROM t WHERE kind = 'chair'
How many things were sold in all? SELECT SUM(sold) FROM t
median price of lamps: SELECT MEDIAN(price) FROM t WHERE kind = 'lamp'
Which item was sold longest ago? SELECT item FROM t ORDER BY day LIMIT 1
which kind do we sell most often? SELECT kind FROM t GROUP BY kind ORDER BY COUNT(*) DESC LIMIT 1
the highest price of a lamp: SELECT MAX(price) FROM t WHERE kind = 'lamp'"""  # noqa: E501
START = "SELECT"
CERTAIN = -0.2
"""Least mean log-probability of the tokens of a query (docs/research/answers.md)."""
MOST_COLUMNS, FEW, EXAMPLES = 60, 12, 3
"""Columns that a prompt describes; values of a column that it lists; values of any other column."""
MOST_TOKENS, OTHERS = 100, 2
"""Tokens of a query; other queries that are written if the first does not fit."""
_GROUPS = re.compile(
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
_CALL = re.compile(r"(?i)\b(COUNT|SUM|TOTAL|AVG|MEDIAN|MIN|MAX) ?\( ?")
_PART = re.compile(r"(?i)((?:strftime|substr)\([^()]*\) ?(?:[<>]=?|[!=]?=|<>) ?)(\d+)\b")
"""A part of a text that is compared with a number, which would be less than any text."""
_ASCENDING = re.compile(r"(?i)( ORDER BY (?:\w+|\w+\([^()]*\))(?: ASC)?)(?= LIMIT |$)")
_ALONE = re.compile(
    r"(?i)SELECT (?:DISTINCT )?(\w+)"
    r"( FROM t(?: WHERE .*)? ORDER BY \1(?: ASC| DESC)? LIMIT (?!1$)\d+$"
    r"| FROM t WHERE (?!.* ORDER BY )(?:\w+\()?\1\b.*)"
)
"""Several largest or smallest figures, or what must have a value, without the rest of the rows."""
_YEARS = re.compile(
    r"(?i)(\b\w+ ?(?:>=|<) ?'\d{4})-01-01'|(\b\w+ ?(?:<=|>) ?'\d{4})-12-31'"
    r"|(\b\w+ BETWEEN '\d{4})-01-01(' AND '\d{4})-12-31'"
)
"""Comparisons with the first or last day of a year, which are those with the year."""
_BY = re.compile(r"(?i)( ORDER BY (\w+))(?: ASC| DESC)?(?= LIMIT )")
_PERIOD = re.compile(
    r"(?i)\b(\w+) ?(>|<=|(NOT )?BETWEEN '?([\d-]+)'? AND) ?('?)(\d{4}(?:-\d\d){0,2})\5(?![\w-])"
)
"""A comparison with a year, month or day, all of which is before what is later."""
_NO_FIGURE = re.compile(
    r"\b(?:why|explain|recommend|suggest|advice|opinion|should|could (?:we|i|you explain)|worth"
    r"|do you (?:think|like)|write|describe|summari[sz]e|better|stand for)\b"
    r"|^(?:how (?:do|does|can|could|to)|what could)\b|\babout$",
    re.IGNORECASE,
)
"""Questions that no query answers."""


class QueryWriter:
    """Writes queries for questions about a table."""

    def __init__(self, columns: Columns, write: Writer) -> None:
        self.columns, self.write = columns, write
        self.checks = QueryChecks(columns)

    def query_of(self, question: str) -> str | None:
        """Return the query of a question; None if the model is not sure of one that fits it."""
        question = iso_dates(core(question))
        if len(self.columns.names) > MOST_COLUMNS or _NO_FIGURE.search(question):
            return None
        values = self.checks.values(question)
        prompt = f"{self.statement(values)}\n\nQuestion: {question}"
        for text, likely in self.write(SYSTEM, prompt):
            if likely < CERTAIN:
                continue
            sql = self._repair(self._read(text, question), question)
            if self.checks.fits(sql, question, likely):
                sql = _PERIOD.sub(self._whole, sql)
                if can_be_computed(sql, self.columns):
                    return sql
        return None

    def _read(self, text: str, question: str) -> str:
        """Return the query that a model wrote, in plain form."""
        sql = " ".join(re.split(r";|```|\n\n", f"{START}{text}")[0].split())
        sql = re.sub(r'"([^"]*)"', self._name_or_text, sql)
        sql = _PART.sub(r"\1'\2'", _CALL.sub(r"\1(", sql))
        if not re.search("-01-01|-12-31", question):
            sql = _YEARS.sub(r"\1\2\3\4'", sql)
        return _EQUAL.sub(self._having, sql)

    def statement(self, first: Collection[str] = ()) -> str:
        """Return the table as a statement that would make it, with some values, those of
        `first` before others.
        """
        lines = []
        for column, name in enumerate(self.columns.names):
            values = [*dict.fromkeys(self.columns.cells[column])]
            few = len(values) <= FEW and len(values) < len(self.columns.cells[column])
            number = self.columns.numbers[column]
            values.sort(key=lambda value: loose(value) not in first)
            some = [shortened(v, 40) for v in values[: FEW if few else EXAMPLES]]
            examples = ", ".join(some if number else [f"'{v}'" for v in some])
            kind = "NUMBER" if number else "TEXT"
            lines.append(f'  "{name}" {kind}, -- {"values" if few else "such as"} {examples}')
        return "CREATE TABLE t (\n" + "\n".join(lines) + "\n);"

    def _name_or_text(self, match: re.Match[str]) -> str:
        """Return what is in double quotes as the name of a column, or as a text."""
        known = self.columns.place(match[1]) is not None
        return match[1] if known else "'" + match[1].replace("'", "''") + "'"

    def _having(self, match: re.Match[str]) -> str:
        """Return the column of a comparison, or if it lacks the value, the only one that has it."""
        names = [self.columns.names[c] for c in self.columns.spellings(match[2])]
        return names[0] if len(names) == 1 else match[0]

    def _whole(self, match: re.Match[str]) -> str:
        """Return a comparison of a date with a year or month, in which all of it is equal."""
        begin, end = match[4] or match[6], match[6]
        if self.columns.place(match[1]) not in self.columns.dates or len(begin) != len(end):
            return match[0]
        sign = f"{match[3] or ''}BETWEEN '{begin}' AND" if match[4] else match[2]
        return f"substr({match[1]}, 1, {len(end)}) {sign} '{end}'"

    def _repair(self, sql: str, question: str) -> str:
        """Return a query with the figure that the question asks for, and all groups or rows of it,
        unless it asks for the first.
        """
        if (one := _OF_ONE.match(sql)) and re.search(
            rf"\b(?:by|per|each|every) {loose(one[2])}\b", loose(plain(question))
        ):  # the figure of each, not of one that the model has seen
            sql = f"SELECT {one[2]}, {one[1]} FROM t GROUP BY {one[2]}"
        sql = _GROUPS.sub(r"\1 \3, \2\3", sql)
        if not _FIRST.search(question):
            sql = re.sub(r"(?i) LIMIT 1$", "", sql)
        select = re.match(r"(?i)SELECT (\w+)(?= FROM t\b(?!.* (?:GROUP|ORDER) BY ))", sql)
        column = self.columns.place(select[1]) if select else None
        if select and column is not None and self.columns.numbers[column]:
            names = [name for words, name in _ASKS if re.search(words, question, re.IGNORECASE)]
            sql = f"SELECT {names[0]}({select[1]}){sql[select.end() :]}" if names else sql
        alone = _ALONE.match(sql)
        if alone and ("DISTINCT" not in sql or self.columns.place(alone[1]) in self.columns.times):
            sql = f"SELECT *{alone[2]}"
        by = _BY.search(sql)
        if by and self.columns.place(by[2]) in self.columns.times:
            words = {*re.findall(r"\w+", question.casefold())}
            signs = [sign for sign, some in AGES.items() if some & words]
            if len(signs) == 1:
                sql = f"{sql[: by.start()]}{by[1]}{signs[0]}{sql[by.end() :]}"
        if re.search(r"\bmedian\b", question, re.IGNORECASE):
            sql = re.sub(r"\bAVG\(", "MEDIAN(", sql, flags=re.IGNORECASE)

        sums = re.search(r"(?i)(?<= ORDER BY )(?:SUM|AVG)\((\w+)\)", sql)
        most = re.search(r"(?i)\b(?:most|fewest|least) [^\W\d_]+s\b", question)
        if sums and most and self.columns.place(sums[1]) not in self.checks.akin(loose(question)):
            sql = sql.replace(sums[0], "COUNT(*)")  # of rows: the fewest charges

        def different(match: re.Match[str]) -> str:
            column = self.columns.place(match[1])
            if column is None or column not in self.columns.repeats:
                return match[0]
            name = " ".join(words_of(self.columns.header[column]))
            many = rf"\b(?:how many|number of) (?:\w+ )?{re.escape(name)}\b"
            asks = re.search(many, loose(question))
            return f"COUNT(DISTINCT {match[1]})" if asks else match[0]

        sql = re.sub(r"(?i)\bCOUNT\((\w+)\)", different, sql)
        return _ASCENDING.sub(r"\1 NULLS LAST", sql)
