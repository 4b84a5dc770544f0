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

import numpy as np

from kvstream.errors import SourceError
from kvstream.input.blocks import TextBlock
from kvstream.input.lines import LONGEST, Line, lines_of
from kvstream.input.table_rows import MOST_HEADING_ROWS

csv.field_size_limit(LONGEST)
CITED = 5
"""Lines that are no row whose numbers are kept."""
HEAD = 1000
"""Rows that are looked at before the first is counted, to see how numbers are written."""
MOST_ROWS = 100_000
"""Rows of a table between other lines from which it is none: they are held."""
_NAME = re.compile(r"\s*[^\W\d][^.!?,;:|]{0,39}")
"""The name of a column in a header that a model reads before every passage."""
_SAID = re.compile(r"[:.!?…](?:\s|\Z)|[。！？：]|(?:^|\s)<[^<>]+>(?:\s|\Z)|(?<!\S)(?:\S+\s+){6}")
_STAMP = re.compile(r"\s*(?:\[|<|\d{1,4}[-./:]\d{1,2}(?:[-./:]\d|\Z))")
"""What is in no name of a column, and begins none, but a line with a comma that somebody said."""
_RULE = r"[ >]*+(?=[^-=\n]*[-=])(?=[^|+\n]*[|+])[-=:|+ ]+"
"""The line between the header and the rows of a table between other lines."""
_IN_TABLE = re.compile(rf" \| |^\|.*\|\s*$|^{_RULE}$")
"""A row of a table between other lines."""
_SEPARATOR = re.compile(r'"?sep=(.)"?\s*')
"""The line before a table with which Excel names what separates its cells."""
MOST_ABOVE = 10
"""Maximum lines above the header of a table, such as its title."""
_TOTAL = re.compile(
    r"(?:(?:grand|sub) ?)?totale?s?|sums?|summe|gesamt|somme|suma|soma|celkem|razem|итого"
    r"|合[計计]|[總总][計计]",
    re.IGNORECASE,
)
"""The first cell of a last row that has the sums of the others."""
_MARKED = re.compile(r"(\*\*|__|[*_`])(.+)\1")
_LINK = re.compile(r"\[([^\[\]]*)\]\([^()\s]*\)")
VALUE = re.compile(r"-?(?![12]\d{3}$)\d+(?:[.,]\d+)*|\d{4}-\d\d-\d\d.*")
"""What is hardly the name of a column: a number that is no year, or a date."""
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
    between = 0
    """Number of lines between the rows that are none, such as the cells of a very long row."""
    failure: NotReadError | None = None
    """Why one of the first rows cannot be read."""

    def __init__(self, ahead: Sequence[Line], lines: Iterator[Line], names: Sequence[str]) -> None:
        """Raises NotReadError if the lines `ahead` of others do not begin as a table does."""
        self.names = names
        self.strays: list[int] = []
        """Numbers of the first lines that are no row."""
        self.stray_count = 0
        """Number of these lines."""
        self.uneven = 0
        """Number of rows with another number of cells than the header."""
        self.above = 0
        """Number of lines above the header."""
        self.totals: list[int] = []
        """Lines of last rows with the sums of the others, which are left out."""
        self.sums: list[int] = []
        """Lines of other rows that may have sums."""
        self.header: list[str] = []
        self._first: list[Row] = []
        source = ahead[0].block.source if ahead else 0
        first = _check(line for line in ahead if line.block.source == source)
        sample = [line.text for line in first if line.text.strip()]
        self.delimiter = delimiter_of(sample, names[source] if names else "")
        if self.delimiter is None:
            raise NotReadError("The text is no table.")
        if self.delimiter == "json":
            self.header = [*dict.fromkeys(chain.from_iterable(_object(t) or {} for t in sample))]
        else:
            rows = [row for row in _rows_in(sample, self.delimiter) if any(map(str.strip, row))]
            self.above = _above(rows)
            self.header = _names(rows[self.above]) if rows else []
            self.above -= _SEPARATOR.fullmatch(sample[0]) is not None if self.above else 0
        self._rest = self._read(chain(ahead, _check(lines)))

    def head(self) -> list[Row]:
        """Read at most HEAD rows; they come again when the table is iterated."""
        try:
            self._first += islice(self._rest, HEAD - len(self._first))
        except NotReadError as error:
            self.failure = error
        return self._first

    @property
    def complete(self) -> bool:
        """Whether the head has all rows."""
        return len(self._first) < HEAD and self.failure is None

    def __iter__(self) -> Iterator[Row]:
        yield from self._first
        if self.failure is not None:
            raise self.failure
        yield from self._rest

    def _read(self, lines: Iterator[Line]) -> Iterator[Row]:
        for source, own in groupby(lines, key=lambda line: line.block.source):
            read = self._objects if self.delimiter == "json" else self._rows
            yield from read(own, source)

    def _rows(self, lines: Iterator[Line], source: int) -> Iterator[Row]:
        rows = rows_of(lines, str(self.delimiter), self.names[source], strict=True)
        header, _ = next(rows, ([], []))
        if _names(header) != self.header:
            raise NotReadError(f"{self.names[source]} has other columns.")
        body = (Row(cells, source, own[0].number, own[-1].number) for cells, own in rows)
        for row in self._without_total(body):
            self.uneven += len(row.cells) != len(self.header)
            yield row

    def _without_total(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows; not the last one if it has the sums of several others."""
        before, count = None, 0
        for row in rows:
            if before is not None:
                self.sums += [before.line] if _is_total(before) else []
                yield before
            before, count = row, count + 1
        if before is None:
            return
        if _is_total(before):
            (self.totals if count > 2 else self.sums).append(before.line)
            if count > 2:
                return
        yield before

    def _objects(self, lines: Iterator[Line], source: int) -> Iterator[Row]:
        for line in lines:
            values, number = _object(line.text), line.number
            if values is not None:
                yield Row([_text(values.get(name)) for name in self.header], source, number, number)
            elif line.text.strip():
                self.stray_count += 1
                self.strays += [number] * (len(self.strays) < CITED)


def _is_total(row: Row) -> bool:
    first = next((cell.strip(" :") for cell in row.cells if cell.strip()), "")
    return _TOTAL.fullmatch(first) is not None


class InnerTable(Table):
    """A table between other lines: of Markdown, or as the converters of documents write it."""

    whole, delimiter = False, "|"

    def __init__(self, lines: Sequence[Line], names: Sequence[str]) -> None:
        """Raises NotReadError for lines that are no rows with a header."""
        self.names, self.strays, self.stray_count, self.uneven, self.above = names, [], 0, 0, 0
        self._first, self.totals, self.sums = [], [], []
        self.between = lines[-1].number - lines[0].number + 1 - len(lines)
        lines = [line for line in lines if not re.fullmatch(_RULE, line.text.strip())]
        texts = [line.text.strip(" >\n\r\t") for line in lines]
        if all(text.startswith("|") for text in texts):  # else an empty cell may be the first
            texts = [text[1:].removesuffix("|") for text in texts]
        rows = [[_plain(cell) for cell in re.split(r"(?<!\\)\|", text)] for text in texts]
        self.header = rows[0] if rows else []
        body = [
            Row([c.removeprefix(f"{n}:").strip() for n, c in zip(self.header, cells, strict=False)],
                line.block.source, line.number, line.number)
            for line, cells in zip(lines[1:], rows[1:], strict=True) if cells != self.header
        ]  # fmt: skip
        names_it = any(self.header) and all(map(_NAME.fullmatch, filter(None, self.header)))
        if len({*map(len, rows)}) > 1 or not names_it or not body:
            raise NotReadError("The lines are no table.")
        self._rest = self._without_total(body)


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
    table: list[Line] = []
    for (inside, _), own in groupby(chain(ahead, lines), key=_row_of):
        rows = [*islice(own, MOST_ROWS)] if inside else []
        if rows and table and _goes_on(table[0], rows[0]):  # below a row that is one cell
            table += rows
        elif rows:
            yield from _inner(table, names)
            table = rows
        if len(table) >= MOST_ROWS:  # it is a log
            table = []
    yield from _inner(table, names)


def _inner(lines: Sequence[Line], names: Sequence[str]) -> Iterator[InnerTable]:
    if len(lines) > 1:
        with suppress(NotReadError):
            yield InnerTable(lines, names)


def _goes_on(header: Line, row: Line) -> bool:
    """Return whether the values of a row have the names of a header before them."""
    names, cells = ([cell.strip() for cell in line.text.split("|")] for line in (header, row))
    if header.block.source != row.block.source or len(names) != len(cells):
        return False
    pairs = [(name, cell) for name, cell in zip(names, cells, strict=True) if name]
    return bool(pairs) and all(cell.startswith(f"{name}:") for name, cell in pairs)


def _plain(cell: str) -> str:
    """Return a cell without the signs of Markdown for emphasis, code and links."""
    cell = _LINK.sub(r"\1", cell.strip())
    match = _MARKED.fullmatch(cell)
    return match[2] if match else cell


def without_names(blocks: Iterable[TextBlock]) -> Iterator[TextBlock]:
    """Yield the blocks with spaces for the headings that a converter repeats in each row."""
    heads: list[set[str]] = []
    rows = 0  # of headings, one below the other
    for block in blocks:
        if not isinstance(block.place, str) or " |" not in block.text:
            yield block
            continue
        texts = []
        for line in block.text.split("\n"):
            cells = line.split("|")
            if len(cells) > 1:
                sizes = _name_sizes(cells, heads)
                rows = 0 if any(sizes) else rows % MOST_HEADING_ROWS + 1
                if rows:
                    above = heads if rows > 1 and len(heads) == len(cells) else [set()] * len(cells)
                    heads = [own | {*cell.split()} for own, cell in zip(above, cells, strict=True)]
                else:
                    cells = [" " * n + cell[n:] for n, cell in zip(sizes, cells, strict=True)]
            texts.append("|".join(cells))
        yield replace(block, text="\n".join(texts), widths=np.diff(block.offsets()))


def _name_sizes(cells: Sequence[str], heads: Sequence[set[str]]) -> list[int]:
    """Return the characters of the heading before each value; zeros if one has none."""
    sizes = []
    for cell, words in zip(cells, heads, strict=False):
        name, colon, _ = cell.partition(":")
        known = colon and name.strip() and words.issuperset(name.split())
        sizes.append(len(name) + 1 if known else 0)
        if words and cell.strip() and not known:
            return []
    return sizes if len(cells) == len(heads) else []


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
    short = len(line.text) <= LONGEST_ROW or line.text[0] == "|"
    looks = short and _IN_TABLE.search(line.text) is not None
    return looks, line.block.source


def rows_of(
    lines: Iterator[Line], delimiter: str, name: str, *, strict: bool = False
) -> Iterator[tuple[list[str], list[Line]]]:
    """Yield cells and lines of each row, first of the header, without what is above it.

    A header that comes again is no row. ``strict`` refuses other quotes also in rows of one line.
    Raises NotReadError.
    """
    own, parsed = list[Line](), list[str]()
    space = f'{delimiter} "'
    gap = re.compile(rf'({re.escape(delimiter)}) +(?="[^"]*"\s*(?:{re.escape(delimiter)}|$))')
    first: list[tuple[list[str], list[Line]]] = []
    header: list[str] | None = None
    last = ""

    def texts() -> Iterator[str]:
        for line in lines:
            own.append(line)
            text = re.sub(r"\r(?!\n)", " ", line.text) if "\r" in line.text else line.text
            if delimiter == "\t" and header is not None and '"' in text:
                text = _literal(text, len(header))
            parsed.append(gap.sub(r"\1", text) if space in text else text)
            yield parsed[-1]

    reader = csv.reader(texts(), delimiter=delimiter, strict=strict)
    while True:
        own = []
        parsed.clear()
        try:
            cells = next(reader, None)
            if len(own) > 1:  # a mark that does not end takes other rows
                next(csv.reader([*parsed], delimiter=delimiter, strict=True))
        except csv.Error as error:
            raise NotReadError(
                f"{name}:{own[0].number}: the row cannot be read ({error}); perhaps a quotation "
                "mark does not end."
            ) from None
        if cells is not None and not any(map(str.strip, cells)):
            continue
        if header is None:
            first += [] if cells is None else [(cells, own)]
            if cells is not None and _count_filled(cells) < 2 and len(first) <= MOST_ABOVE:
                continue
            first = first[_above([each for each, _ in first]) :]
            header = _names(first[0][0]) if first else []
            last = first[0][0][-1].strip() if first else ""
            yield from first
        elif cells is not None and (
            len(cells) < 2 or cells[-1].strip() != last or _names(cells) != header
        ):
            yield cells, own
        if cells is None:
            return


def _literal(text: str, width: int) -> str:
    """Return a row of TSV in one line, with marks doubled that begin a cell and do not end it."""
    cells = text.split("\t")
    opens = [at for at, cell in enumerate(cells) if cell[:1] == '"' and cell.count('"') % 2]
    if len(cells) != width or not opens or opens[-1] == width - 1:  # the last one may go on
        return text
    for at in opens:
        cells[at] = '"' + cells[at].replace('"', '""') + '"'
    return "\t".join(cells)


def _count_filled(cells: Sequence[str]) -> int:
    return sum(map(bool, map(str.strip, cells)))


def _names(cells: Sequence[str]) -> list[str]:
    return [" ".join(name.split()) for name in cells]


def _above(rows: Sequence[Sequence[str]]) -> int:
    """Return how many rows are above the header: one that names a separator, or titles."""
    begin = bool(rows) and "".join(rows[0][:1]).startswith("sep=") and len(rows) > 1
    for place, row in enumerate(rows[begin : MOST_ABOVE + 1], begin):
        if _count_filled(row) > 1:
            names = all(_NAME.fullmatch(cell.lstrip("#")) for cell in row if cell.strip())
            return place if names else begin
    return int(begin)


def _check(lines: Iterable[Line]) -> Iterator[Line]:
    for line in lines:
        if line.block.place is not None:
            raise NotReadError("The source is a document.")
        if len(line.text) > LONGEST:
            raise NotReadError(f"A line has more than {LONGEST:,} characters.")
        yield line


def delimiter_of(sample: Sequence[str], name: str) -> str | None:
    """Return what separates the cells, ``json`` for JSON lines; None for other texts."""
    suffix = NAMED.search(name)
    if not sample:
        return None
    objects = sum(_object(line) is not None for line in sample[:20])
    if 2 * objects > len(sample[:20]) and (suffix or len(sample) > 1):  # else one document
        return "json"
    if suffix and suffix[1].lower() in ("tsv", "tab"):
        return "\t"
    if suffix and (match := _SEPARATOR.fullmatch(sample[0])):
        return match[1]
    ruled = any(re.fullmatch(_RULE, line.strip()) for line in sample[:3])
    for place, delimiter in enumerate("\t;,|" if not suffix else ";,;\t|"):
        rows = _rows_in(sample[:50], delimiter)
        pairs = [*zip(*rows[:2], strict=False)] if len(rows) > 1 else []
        named_each = bool(pairs) and all(b.strip().startswith(f"{a.strip()}:") for a, b in pairs)
        if delimiter == "|" and (ruled or named_each):
            continue  # a table of Markdown, or of a document
        counts = {len(row) for row in rows if row} or {0}
        even = len(counts) < (4 if suffix and place else 2) and (suffix or len(sample) > 2)
        if not suffix and (
            any(map(_SAID.search, rows[0]))
            or _STAMP.match("".join(rows[0][:1]))
            or all(len(name.split()) > 3 for name in rows[0])
        ):
            continue
        if even and min(counts) > 1:
            return delimiter
    if not suffix or suffix[1].lower() != "csv" or (ruled and sample[0].count("|") > 1):
        return None
    choices = (d for d in ",;\t|" if _above(_rows_in(sample[:50], d)))
    return next(choices, ",")


def _rows_in(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """Return the rows up to one that cannot be parsed; at least one, which may be empty."""
    rows: list[list[str]] = []
    with suppress(csv.Error):
        rows.extend(csv.reader(lines, delimiter=delimiter))
    return rows or [[]]


def header_of(lines: Sequence[str]) -> str:
    """Return the first line of a text if it names the columns of the lines below it, else empty."""
    lines = lines[1:] if lines and _SEPARATOR.fullmatch(lines[0]) else lines
    for delimiter in "\t;,|":
        rows = _rows_in(lines, delimiter)
        width = len(rows[0])
        even = width > 1 and len(rows) + width > 4 and all(len(row) == width for row in rows)
        if even and len(rows) > 1 and all(map(_NAME.fullmatch, rows[0])):
            return lines[0].strip()
    return ""


def header_lines(lines: Sequence[Line], name: str) -> list[Line]:
    """Return which of the first lines of a text name the columns of the lines below them."""
    texts = [line.text for line in lines]
    if not NAMED.search(name):
        return [*lines[:1]] if header_of(texts[:5]) else []
    delimiter = delimiter_of([text for text in texts if text.strip()], name)
    with suppress(NotReadError):
        rows = rows_of(iter(lines), delimiter, name) if delimiter not in (None, "json") else ()
        for cells, own in rows:
            return [] if any(VALUE.fullmatch(cell.strip()) for cell in cells) else own
    return []


def _object(line: str) -> dict[str, object] | None:
    with suppress(ValueError, RecursionError):
        if line.lstrip()[:1] == "{" and isinstance(value := json.loads(line), dict):
            return value
    return None


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value.replace("\0", "")  # as in other texts
    return json.dumps(value, ensure_ascii=False)
