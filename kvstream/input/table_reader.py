"""Read the rows of a table: CSV, TSV, JSON lines, and tables between other lines of a text.

Python's csv and json parse the rows: unlike a data frame they say which cell is no number, and
they need no extra.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, groupby, islice
from typing import NamedTuple

from kvstream.errors import SourceError
from kvstream.input.blocks import TextBlock
from kvstream.input.lines import LONGEST, Line, lines_of

csv.field_size_limit(LONGEST)
CITED = 5
"""Lines that are no row whose numbers are kept."""
HEAD = 1000
"""Rows that are looked at before the first is counted, to see how numbers are written."""
_NAME = re.compile(r"\s*[^\W\d][^.!?,;:|]{0,39}")
"""The name of a column in a header that a model reads before every passage."""
_SAID = re.compile(r"[:.!?…](?:\s|\Z)|[。！？：]|(?:^|\s)<[^<>]+>(?:\s|\Z)|(?:\S+\s+){6}")
_STAMP = re.compile(r"\s*(?:\[|<|\d{1,4}[-./:]\d{1,2}(?:[-./:]\d|\Z))")
"""What is in no name of a column, and begins none, but a line with a comma that somebody said."""
_IN_TABLE = re.compile(r" \| |^\|[-:| ]+$")
"""A row of a table between other lines."""
LONGEST_ROW = 10_000
"""Characters of a row of a table between other lines."""
NAMED = re.compile(r"\.(csv|tsv|tab|jsonl|ndjson)(?:\.(?:gz|bz2|xz|zst))?$", re.IGNORECASE)


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
    _failed: NotReadError | None = None

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
        self._first: list[Row] = []
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

        self._rest = self._read()

    def head(self) -> list[Row]:
        """Read at most HEAD rows; they come again when the table is iterated."""
        try:
            self._first += islice(self._rest, HEAD - len(self._first))
        except NotReadError as error:
            self._failed = error
        return self._first

    @property
    def complete(self) -> bool:
        """Whether the head has all rows."""
        return len(self._first) < HEAD and self._failed is None

    def __iter__(self) -> Iterator[Row]:
        yield from self._first
        if self._failed is not None:
            raise self._failed
        yield from self._rest

    def _read(self) -> Iterator[Row]:
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
        self._first = []
        texts = [line.text.strip() for line in lines]
        if all(text.startswith("|") for text in texts):  # else an empty cell may be the first
            texts = [text[1:].removesuffix("|") for text in texts]
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", text)] for text in texts]
        self.header = rows[0]
        found = [
            Row([c.removeprefix(f"{n}:").strip() for n, c in zip(self.header, cells, strict=False)],
                line.block.source, line.number, line.number)
            for line, cells in zip(lines[1:], rows[1:], strict=True)
            if not all(re.fullmatch(":?-+:?", cell) for cell in cells)
        ]  # fmt: skip
        names_it = any(rows[0]) and all(map(_NAME.fullmatch, filter(None, rows[0])))
        if len({*map(len, rows)}) > 1 or not names_it or not found:
            raise NotReadError("The lines are no table.")
        self._rest = iter(found)


def tables_of(blocks: Iterable[TextBlock], names: Sequence[str]) -> Iterator[Table]:
    """Yield the table that a text is, or the tables that it has between other lines."""
    searches = False  # a text that is one table has all of its lines
    lines, ahead = lines_of(_around_rows(blocks, lambda: searches)), []
    for line in islice(lines, 200):
        ahead.append(line)
        if len(line.text) > LONGEST:
            break
    with suppress(NotReadError):
        yield Table(ahead, lines, names)
        return
    searches = True
    for (inside, _), own in groupby(chain(ahead, lines), key=_row_of):
        rows = [*islice(own, HEAD)] if inside else []
        if 1 < len(rows) < HEAD:  # more are a log
            with suppress(NotReadError):
                yield InnerTable(rows, names)


def _around_rows(blocks: Iterable[TextBlock], searches: Callable[[], bool]) -> Iterator[TextBlock]:
    """Yield the blocks; if `searches`, without most lines of those that have no row of a table.

    A row may end in the first line of such a block or begin in its last; the second stays between.
    """
    left_out, source = 0, -1
    for block in blocks:
        text = block.text
        if block.source != source:
            left_out, source = 0, block.source
        elif searches() and text.count("\n") > 2 and " | " not in text and "\n|" not in text:
            end, tail = text.index("\n", text.index("\n") + 1) + 1, text.rindex("\n") + 1
            yield block.part(0, end, block.left_out + left_out)
            left_out += text.count("\n", end, tail)
            block = block.part(tail)
        yield replace(block, left_out=block.left_out + left_out) if left_out else block


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
    named = NAMED.search(name)
    if not sample:
        return None
    if sum(_object(line) is not None for line in sample[:20]) * 2 > len(sample[:20]):
        return "json"
    if named and named[1].lower() in ("tsv", "tab"):
        return "\t"
    for delimiter in "\t;,|" if not named else ",;\t|":
        rows = _parsed(sample[:50], delimiter)
        counts = {len(row) for row in rows if row} or {0}
        even = len(counts) < 4 if named else len(counts) == 1 and len(sample) > 2
        if not named and (
            any(map(_SAID.search, rows[0]))
            or _STAMP.match("".join(rows[0][:1]))
            or all(len(name.split()) > 3 for name in rows[0])
        ):
            continue
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
