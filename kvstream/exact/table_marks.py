"""Make queries of the marks of a question about a table, where its words alone do not fit."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvstream.exact.routing import iso_dates
from kvstream.exact.table_questions import (
    MOST_WORDS,
    AmbiguousError,
    Condition,
    Query,
    Sample,
    of_several,
    query_of,
    several,
)  # fmt: skip
from kvstream.exact.table_wording import MARKS, OPERATIONS, WEIGHTS, Columns, Mark, Question, Span
from kvstream.exact.table_words import POLITE, loose

CERTAIN = 0.9
"""Least probability of an operation. A model answers what is less certain."""
CERTAIN_ALL = 0.98
"""The same of a number of all rows: words that are not known may limit it."""
MOST_COLUMNS = 200
"""Columns of a table whose questions are read; the time grows with their square."""
LIKELY = 0.5
"""Least probability of operation, marks and columns together."""
RELATIONS = {"=": "=", "!": "!=", ">": ">", "<": "<", "G": ">=", "L": "<=", "~": "contains"}


def computed_query(question: str, header: Sequence[str], sample: Sample) -> Query | None:
    """Return what is computed for a question, or None: of its words, if all of them are known, or
    of its wording. Raises AmbiguousError.
    """
    query = query_of(question, header, sample)
    if query is None or query.anywhere:  # words that may be a value of later rows
        return marked_query(question, header, sample) or query
    return query


def marked_query(question: str, header: Sequence[str], sample: Sample) -> Query | None:
    """Return the query of the wording of a question, or None. Raises AmbiguousError."""
    text = cleaned(question)
    if not text or len(text.split()) > MOST_WORDS or len(header) > MOST_COLUMNS:
        return None
    table = Columns(header, sample)
    asked = read_marks(text, table)
    return None if asked is None else Marks(table, asked[1]).query(asked[0])


def read_marks(text: str, table: Columns) -> tuple[str, list[Mark]] | None:
    """Return the operation of a question and its marks; None: a model answers it."""
    own = Question(text, table)
    marks, share = own.read() if own.spans else ([], 1.0)
    rows = own.operation_features([span for span, *_ in marks], [column for _, column, _ in marks])
    shares = dict(zip(OPERATIONS, WEIGHTS.shares(rows, len(MARKS) + 1), strict=True))
    single = {c for span, c, _ in marks if span.mark == "s"} - table.sample.shared
    for name in ("max", "min") if single else ():  # the sum of one row is its value
        sign = "<>"[name == "max"]
        shares[name] += sum(shares.pop(f"{each}{sign}") for each in ("sum", "mean"))
    best = max(shares, key=shares.__getitem__)
    every = best in ("count", "distinct") and {span.mark for span, *_ in marks} <= {"r", "s"}
    certain = shares[best] >= (CERTAIN_ALL if every else CERTAIN)
    certain = certain and shares[best] * share >= LIKELY
    return (best, marks) if best != "other" and certain else None


def cleaned(question: str) -> str:
    """Return a question without polite words and final signs, its dates as in ISO 8601."""
    return iso_dates(
        re.sub(f"^{POLITE}", "", " ".join(question.split()).rstrip("?!. "), flags=re.IGNORECASE)
    )


class Marks:
    """The marks of a question with their columns."""

    def __init__(self, table: Columns, marks: Sequence[Mark]) -> None:
        self.table, self.sample = table, table.sample
        self.spans = [(span, column) for span, column, _ in marks if column is not None]
        self.anywhere = ""

    def query(self, operation: str) -> Query | None:
        """Return the query of an operation; None if the marks do not fit it."""
        if not all(self._is_held(span, c) for span, c in self.spans if span.mark in "fc"):
            return None
        found = [self._condition(span, c) for span, c in self.spans if span.mark not in "fsgc"]
        of, show, by = (self._column(mark) for mark in "fsg")
        where = tuple(each for each in found if each is not None and each.relation)
        name, best = operation.rstrip("<>"), {">": "max", "<": "min"}.get(operation[-1], "")
        selected = bool(where or self.anywhere)
        if best:
            show, by = None, show if by is None else by
        if name == "list" and show is not None and not selected:
            name = "distinct"
        numbers = self.sample.numeric | self.sample.figures
        fits = {
            "count": by in self.sample.shared if best else True,
            "list": selected,
            "distinct": show is not None,
        }.get(name, of in numbers and not (best and by is None))
        if None in found or not fits:
            return None
        of = None if name in ("count", "list", "distinct") else of
        show = show if by is None and name != "count" else None
        return Query(name, of, show, where, self.anywhere, by, best)

    def _is_held(self, span: Span, column: int) -> bool:
        """Return whether the table has the column of a mark, and the question a value for it."""
        values = [s for s, c in self.spans if s.mark not in "fsgc" and c == column]
        unit = any(value.last + 1 == span.first for value in values)
        return unit or ((span.mark == "f" or bool(values)) and self.table.means(span.text, column))

    def _column(self, mark: str) -> int | None:
        """Return the column of a mark. Raises AmbiguousError."""
        for span, column in self.spans:
            if span.mark == mark:
                self._check(span, column)
                return column
        return None

    def _check(self, span: Span, column: int) -> None:
        exact, having = self.table.named(span.text)
        same = [c for c in having if self.table.kinds[c] == self.table.kinds[column]]
        if not exact and len(same) > 1:
            raise AmbiguousError(several(span.text, same, self.table.header))

    def _condition(self, span: Span, column: int) -> Condition | None:
        """Return the condition of a mark; None if it cannot be tested. Raises AmbiguousError."""
        mark, text = span.mark, span.text
        if mark == "e":
            return Condition(column, "empty")
        if mark in "yn":
            known = self.sample.flags.get(column)
            return (
                None
                if known is None
                else Condition(column, "=", known.get(mark == "y", str(mark == "y")))
            )
        named = [s for s, _ in self.spans if s.mark == "c"]
        for beside in named:
            if column in self.table.named(beside.text)[1]:
                self._check(beside, column)
        stated = bool(named)
        held = self.sample.values.get(loose(text), {})
        dated = column in self.sample.dates
        if mark in "=!":
            if dated:
                value = iso_dates(text)
                ok = re.fullmatch(r"\d{4}(?:-\d\d){0,2}", value)
                return Condition(column, "starts", value) if ok and mark == "=" else None
            if len(held) > 1 and not stated:
                raise AmbiguousError(of_several(text, held, self.table.header))
            if column in held:
                return Condition(column, RELATIONS[mark], held[column], stated=stated)
            if stated:
                return Condition(column, RELATIONS[mark], text)
            if mark == "!" or self.sample.complete or self.anywhere:
                return None
            self.anywhere = text
            return Condition(column, "")
        if mark == "~":
            return Condition(column, "contains", text)
        return Condition(column, RELATIONS[mark], iso_dates(text) if dated else text)
