"""Have a model write the query for a question about a table, and compute it with SQLite.

The model sees the columns with some of their values. It may not know the words of a question, so a
query is taken only if the model is sure of it, if the question names what it compares with, and if
it has what the question names. SQLite may only read the rows, which are in a temporary file.
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

from kvstream.exact.routing import iso_dates
from kvstream.exact.table_questions import core
from kvstream.exact.table_replies import of_numbers, of_table
from kvstream.exact.table_words import (
    EMPTY,
    FILLERS,
    FLAGS,
    IMPLIED,
    LINKS,
    OPERATION,
    OPERATIONS,
    QUANTITY,
    ROW_WORDS,
    SAME,
    TOTALLY,
    loose,
    words_of,
)
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
STEM = 4
"""Letters with which a column and a word of the same meaning begin."""
CLOSE = 0.7
"""Least likeness of the name of a column to one that the model writes."""
LONGEST = 60.0
"""Seconds that a query may take."""
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten".split()  # noqa: SIM905
_FIGURES = OPERATION.keys() - {*OPERATIONS["distinct"].split(), "count", *QUANTITY}
_FIGURE_OF = re.compile(
    rf"(?<!\d )\b(?:{'|'.join(_FIGURES)})(?: of)?(?: the| our| all)? ([^\W\d_]+)(?: ([^\W\d_]+))?"
)
"""A word for a figure, and the words for what it is of."""
_RESERVED = frozenset(re.findall(
    r"\w+",
    "add all and as asc between by case check column default desc end exists from group having in "
    "index into is join key like limit not null on or order select set table then to union unique "
    "update using values when where with rowid oid current_date current_time current_timestamp",
))  # fmt: skip
_SMALL = frozenset(("in", "for", "per", "by", "from", "at", "on", "to", "and", "or", "each"))
_LETTER = re.compile(r"[^\W\d_]")
_LITERAL = re.compile(r"'((?:[^']|'')*)'")
_GROUPED = re.compile(
    r"(?i)^(SELECT) ((?:COUNT|SUM|AVG|MAX|MIN)\([^()]*\) FROM t\b.* GROUP BY )(\w+)"
)
"""Figures of groups without their names."""
_OF_ONE = re.compile(r"(?i)SELECT (\w+\([^()]*\)) FROM t WHERE (\w+) = '[^']*'$")
_FIRST = re.compile(
    r"(?i)est\b|\b(?:most|least|first|last|top|best|worst|record|max\w*|min\w*|dear\w*)\b"
)
"""Words for the first of an order."""
_WHICH = re.compile(r"\b(?:which|what) (\w+)")
_NTH = re.compile(r"(?i)\b(?:second|third|fourth|fifth|2nd|3rd|[4-9]th)\b")
_ASKS = (
    (r"\b(?:average|mean|typical|typically|usual)\b", "AVG"),
    (r"\b(?:how many|how much|total|sum)\b", "SUM"),
)
"""Words for figures of a column that a query lists."""
_EQUAL = re.compile(r"(?i)\b(?!NOT\b)(\w+)(?= (?:=|!=|<>|(?:NOT )?IN \() ?'([^']*)')")
"""The column that must equal, or not, a text."""
_COMPARED = re.compile(r"(?:(\w+) (?:=|!=|<>) )?'((?:[^']|'')*)'")
"""A column, or nothing, and the text that it is compared with."""
_SPACED = re.compile(r"(?i)\b(COUNT|SUM|TOTAL|AVG|MEDIAN|MIN|MAX) ?\( ?")
_PART = re.compile(r"(?i)((?:strftime|substr)\([^()]*\) ?(?:[<>]=?|[!=]?=|<>) ?)(\d+)\b")
"""A part of a text that is compared with a number, which would be less than any text."""
_EMPTY = re.compile(r"(?i)\b(\w+) IS (NOT )?NULL\b")
_FORMAT = re.compile(r"(?i)strftime\('[^']*'")
_NUMBER = re.compile(r"(?<![\w.])\.?\d[\w.]*")
_OTHER_FORM = re.compile(
    r"(?i)--|/\*|'' FROM t\b|\b(?:GROUP|ORDER) BY .*''"
    r"|\bFROM (?!t(?: (?:WHERE|GROUP|ORDER|HAVING|LIMIT)\b| ?\)|$))"
    r"|\b(?:UNION|EXCEPT|INTERSECT|WITH|CASE|rowid|oid|_rowid_)\b"
)
"""What no query of the rows needs, without its texts: other tables, joins, comments."""
_FUNCTIONS = frozenset(re.findall(
    r"\w+",
    "count sum total avg median min max round abs lower upper length like substr substring instr "
    "trim coalesce ifnull nullif strftime date datetime julianday year month",
))  # fmt: skip
"""Functions whose results are small."""
_ADDED = re.compile(r"(?i)\b(?:SUM|TOTAL|AVG|MEDIAN)\((?:DISTINCT )?(\w+)")
_SORTED = re.compile(
    r"(?i)\bM(?:IN|AX)\((\w+)\)|\b(\w+) ?(?:[<>]=?(?!>)|BETWEEN\b)|ORDER BY (\w+)(?=.* LIMIT )"
)
"""Columns that must have the order of numbers or of time."""
_ASCENDING = re.compile(r"(?i)( ORDER BY (?:\w+|\w+\([^()]*\))(?: ASC)?)(?= LIMIT |$)")
_TWO = re.compile(r"(\w+) ?(?:[<>!]?=|<>|<|>) ?(\w+)")
_PERIOD = re.compile(
    r"(?i)\b(\w+) ?(>|<=|BETWEEN '?([\d-]+)'? AND) ?('?)(\d{4}(?:-\d\d){0,2})\4(?![\w-])"
)
"""A comparison with a year, month or day, all of which is before what is later."""
_SIGNS = {
    sign: re.compile(rf"(?i)\b(?:{words}) (?=\S?\d)")
    for sign, words in (
        (">", r"(?<!no )(?:great|larg|bigg|high|mor|long|heavi|tall|lat)e?r? than|above|over"
              r"|after"),
        ("<", r"(?<!no )(?:less|fewer|(?:low|small|short|light|earli|cheap)e?r) than|below|under"
              r"|before"),
        (">=", "at least|no (?:less|fewer) than|since"),
        ("<=", "at most|no more than|up to|until"),
    )
}  # fmt: skip
"""Words for comparisons with a number."""
_BUT = re.compile(
    r"(?i)\b(?:but|others?|besides|exclud\w*|ignor\w*|apart|outside|lack\w*|miss\w*|un\w+|non|rest)\b"
)
_NOT = re.compile(r"\b(?:not|no|never|without|except|neither|nor)\b|n['’]t\b", re.IGNORECASE)
_NO_FIGURE = re.compile(
    r"\b(?:why|explain|recommend|suggest|advice|opinion|should|could (?:we|i|you explain)|worth"
    r"|do you (?:think|like)|write|describe|summari[sz]e|better|stand for)\b"
    r"|^(?:how (?:do|does|can|could|to)|what could)\b|\babout$",
    re.IGNORECASE,
)
"""Questions that no query answers."""
_ENDS = {
    name: frozenset(OPERATIONS[name].split()).union(
        *(words.split("|") for own, words, _ in IMPLIED if own == name and "oldest" not in words)
    )
    for name in ("max", "min")
}
"""Words for the largest and the smallest."""


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
        named = self._values(question)
        prompt = f"{self.described(named)}\n\nQuestion: {question}"
        text, likely = self.write(SYSTEM, prompt)
        sql = " ".join(re.split(r";|```|\n\n", f"{START}{text}")[0].split())
        sql = re.sub(r'"([^"]*)"', self._quoted, sql)
        sql = _PART.sub(r"\1'\2'", _SPACED.sub(r"\1(", sql))
        sql = _EQUAL.sub(self._having, sql)
        sql = self._repaired(sql, question)
        if likely < CERTAIN or not self._fits(sql, question):
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
        known = found[1].casefold() in map(str.casefold, self.columns)
        return found[0] if known else "'" + found[1].replace("'", "''") + "'"

    def _having(self, found: re.Match[str]) -> str:
        """Return the column of a comparison, or if it lacks the value, the only one that has it."""
        held = [self.columns[c] for c in self.sample.values.get(loose(found[2]), ())]
        return held[0] if len(held) == 1 else found[0]

    def _whole(self, found: re.Match[str]) -> str:
        """Return a comparison of a date with a year or month, in which all of it is equal."""
        begin, end = found[3] or found[5], found[5]
        if self._place(found[1]) not in self.sample.dates or len(begin) != len(end):
            return found[0]
        sign = f"BETWEEN '{begin}' AND" if found[3] else found[2]
        return f"substr({found[1]}, 1, {len(end)}) {sign} '{end}'"

    def _place(self, name: str) -> int | None:
        """Return which column has a name, or None."""
        same = (c for c, own in enumerate(self.columns) if own.casefold() == name.casefold())
        return next(same, None)

    def _is_held(self, words: tuple[str, str]) -> bool:
        """Return whether a column may hold a figure that a question names: its mean race time."""
        columns = {each for name in self.table.header for each in words_of(name)}
        columns |= {each for group in SAME if group & columns for each in group}
        if words[0] in _SMALL | EMPTY | FILLERS | ROW_WORDS | {*LINKS} | OPERATION.keys():
            return True
        return any(word and word[:STEM] == each[:STEM] for each in columns for word in words)

    def _repaired(self, sql: str, question: str) -> str:
        """Return a query with the figure that the question asks for, and all groups or rows of it,
        unless it asks for the first.
        """
        if (one := _OF_ONE.match(sql)) and re.search(
            rf"\b(?:by|per|each|every) {loose(one[2])}\b", loose(_plain(question))
        ):  # the figure of each, not of one that the model has seen
            sql = f"SELECT {one[2]}, {one[1]} FROM t GROUP BY {one[2]}"
        sql = _GROUPED.sub(r"\1 \3, \2\3", sql)
        if not _FIRST.search(question):
            sql = re.sub(r"(?i) LIMIT 1$", "", sql)
        listed = re.match(r"(?i)SELECT (\w+)(?= FROM t\b(?!.* (?:GROUP|ORDER) BY ))", sql)
        every = zip(map(str.casefold, self.columns), self.numbers, strict=True)
        if listed and (listed[1].casefold(), True) in every:
            names = [name for words, name in _ASKS if re.search(words, question, re.IGNORECASE)]
            sql = f"SELECT {names[0]}({listed[1]}){sql[listed.end() :]}" if names else sql
        if re.search(r"\bmedian\b", question, re.IGNORECASE):
            sql = re.sub(r"\bAVG\(", "MEDIAN(", sql, flags=re.IGNORECASE)

        def different(found: re.Match[str]) -> str:
            column = self._place(found[1])
            if column is None or column not in self.sample.shared:
                return found[0]
            named = " ".join(words_of(self.table.header[column]))
            many = rf"\b(?:how many|number of) (?:\w+ )?{re.escape(named)}\b"
            asks = re.search(many, loose(question))
            return f"COUNT(DISTINCT {found[1]})" if asks else found[0]

        sql = re.sub(r"(?i)\bCOUNT\((\w+)\)", different, sql)
        return _ASCENDING.sub(r"\1 NULLS LAST", sql)

    def _fits(self, sql: str, question: str) -> bool:
        """Return whether the question has the values of the query, and the query those of it."""
        asked = loose(_plain(question))
        literals = [text.replace("''", "'").strip("%") for text in _LITERAL.findall(sql)]
        bare = re.sub(r"(?i) LIMIT 1$", "", _LITERAL.sub("", sql))
        said = loose(" ".join([*literals, re.sub(r"(?i) AS \w+", "", bare)]))
        words = {*re.findall(r"\w+", question.casefold())}
        words -= {word for name in self.table.header for word in words_of(name)}
        return (
            all(map(self._is_held, _FIGURE_OF.findall(asked)))
            and _OTHER_FORM.search(_LITERAL.sub("''", _FORMAT.sub("", sql))) is None
            and all(self._shows(bare, word) for word in _WHICH.findall(asked))
            and self._orders(_LITERAL.sub("", sql), asked)
            and self._compares(sql, bare, asked)
            and _agrees(bare, literals, question, words)
            and all(f" {value} " in f" {said} " for value in self._values(question))
        )

    def _shows(self, bare: str, word: str) -> bool:
        """Return whether a query has the column that a question asks for: which club."""
        names = zip(self.columns, self.table.header, strict=True)
        own = {name.casefold() for name, told in names if word in words_of(told)}
        return not own or not own.isdisjoint(re.findall(r"\w+", bare.casefold()))

    def _orders(self, bare: str, asked: str) -> bool:
        """Return whether a query adds up numbers, sorts numbers and dates, and compares only such
        columns with each other, or with nothing, that the question names.
        """
        added = {self._place(name) for name in _ADDED.findall(bare)} - {None}
        ordered = {self._place(name) for names in _SORTED.findall(bare) for name in names} - {None}
        numbers = {column for column, number in enumerate(self.numbers) if number}
        words = {word[:STEM] for word in re.findall(r"\w+", asked)}
        named = {
            column for column, name in enumerate(self.table.header)
            if any(part[:STEM] in words for part in words_of(name))
        }  # fmt: skip
        pairs = [{*map(self._place, names)} for names in _TWO.findall(bare)]
        used = {name.casefold() for name in re.findall(r"\w+", _EMPTY.sub("", bare))}
        pairs += [
            {self._place(name)} for name, some in _EMPTY.findall(bare)
            if not (some and name.casefold() in used)
        ]  # fmt: skip
        return (
            added <= numbers
            and ordered <= numbers | self.sample.dates
            and all(None in pair or pair <= named for pair in pairs)
        )

    def _compares(self, sql: str, bare: str, asked: str) -> bool:
        """Return whether a question has all that a query compares with."""
        words = {*re.findall(r"\w+", asked)}
        numbers = {each.replace(",", "") for each in re.findall(r"\d[\d,]*(?:\.\d+)?", asked)}
        numbers |= {each.lstrip("0") for each in numbers}
        numbers |= {str(n) for n, word in enumerate(_NUMBER_WORDS) if word in words}
        columns = {self.columns[c].casefold(): c for c in self.sample.flags}
        for name, text in _COMPARED.findall(_FORMAT.sub("", sql)):
            own = {*re.findall(r"\w+", loose(text))}
            if text.casefold() in FLAGS:
                column = columns.get(name.casefold())
                parts = () if column is None else words_of(self.table.header[column])
                if not any(part[:STEM] == word[:STEM] for part in parts for word in words):
                    return False
            elif not (own and own <= words | numbers):
                return False
        return {*_NUMBER.findall(bare)} <= numbers

    def _values(self, question: str) -> list[str]:
        """Return the values of texts of the table that a question names, as `loose` writes them."""
        words = loose(_plain(question)).split()
        names = {word for name in self.columns for word in re.findall(r"\w+", loose(name))}
        found = []
        for begin in range(len(words)):
            for end in range(begin + 1, min(len(words), begin + 6) + 1):
                value = " ".join(words[begin:end]).strip(".,:")
                held = self.sample.values.get(value, {}).keys() - self.sample.numeric
                if held - self.sample.flags.keys() and value not in names and len(value) > 2:
                    found.append(value)
        return found

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


def _agrees(bare: str, literals: Sequence[str], question: str, words: Collection[str]) -> bool:
    """Return whether a query denies, compares, adds up, and takes the largest or smallest as its
    question. `words`: those of the question that are in no name of a column.
    """
    denies = re.search(r"(?i)\bNOT\b|!=|<>|\bNULL\b", bare) or any(
        FLAGS.get(text.casefold()) is False for text in literals
    )
    if _NOT.search(question) and not denies:
        return False
    if re.search(r"(?i)\b(?:share|percentage|proportion)\b", question) and "/" not in bare:
        return False
    inverts = re.search(r"(?i)!=|<>|\bNOT\b(?! NULL)", bare)
    if inverts and not (_NOT.search(question) or _BUT.search(question)):
        return False
    either = re.search(r"(?i)(\w+) (?:=|LIKE) +OR \1\b", bare)
    if re.search(r"(?i)\bOR\b", bare) and not either and not {"or", "either"} & {*words}:
        return False
    compares = {sign for sign, some in _SIGNS.items() if some.search(_plain(question))}
    signs = {*re.findall(r"<>|!=|[<>]=?", bare)}
    if compares - signs and not inverts and "BETWEEN" not in bare.upper():
        return False
    if not _numbers(_plain(question)) <= _numbers(" ".join([bare, *literals])):
        return False
    if {"average", "mean"} & {*words} and not re.search(r"(?i)\b(?:AVG|MEDIAN)\(|/", bare):
        return False
    if _NTH.search(question) and "OFFSET" not in bare.upper():
        return False
    totals = any(phrase in question.casefold() for phrase in TOTALLY)
    if totals and not re.search(r"(?i)\b(?:SUM|COUNT)\(", bare):
        return False
    asked = {name for name, some in _ENDS.items() if some & {*words}}
    ends = {"max": r"(?i)\bMAX\(|\bDESC\b", "min": r"(?i)\bMIN\(|\bORDER BY (?!.*\bDESC\b)"}
    found = {name for name, end in ends.items() if re.search(end, bare)}
    return not asked or not found or asked <= found


def _numbers(text: str) -> set[str]:
    """Return the numbers of a text, without separators of thousands and zeros before them."""
    found = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![^\W_])", text.replace("_", " "))
    return {each.replace(",", "").lstrip("0") for each in found}


def _only_reads(action: int, name: str | None, called: str | None, *_: str | None) -> int:
    """Return whether a query may do something: only read the rows, and call some functions."""
    allowed = action == sqlite3.SQLITE_SELECT
    allowed |= action == sqlite3.SQLITE_READ and name in ("t", "places")
    allowed |= action == sqlite3.SQLITE_FUNCTION and str(called).lower() in _FUNCTIONS
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _plain(question: str) -> str:
    """Return the words of a question, with its dates as in ISO 8601."""
    return re.sub(r"['’]s\b|[^\w\s.,:%-]|[.,:]+(?=\s|$)", " ", iso_dates(question))


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
