"""Extract the visible text of HTML, and the heading above it, from a stream of markup.

lxml calls back for every tag, and no tree is built. With thousands of open tags, the time of its
parser grows with the square of the depth. So all open tags are closed from time to time.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lxml import etree

from kvstream.input.blocks import Part
from kvstream.input.encodings import UNDECODED, html_decoder
from kvstream.input.limits import Patience
from kvstream.input.tables import LONGEST_ROW, Cell, Table

BLOCK = 16 * 1024
"""Bytes to read and parse at a time."""
DECLARED = 4096
"""Bytes at the beginning of a page from which its encoding is read or guessed."""
DEEPEST = 1000
"""Maximum open tags at the end of a block. If there are more, all are closed."""
LONGEST_HEADING = 200
"""Maximum characters of a heading. Longer text is not a heading."""
LONGEST_LINE = 64 * 1024
"""Maximum characters of a line that are held until it ends."""
_DROPPED = frozenset(["script", "style", "template", "noscript", "head", "svg"])
_APART = frozenset(["p", "h1", "h2", "h3", "h4"])
_HEADINGS = frozenset(["h1", "h2", "h3"])
_BLOCKS = frozenset([
    "address", "article", "aside", "blockquote", "caption", "dd", "div", "dl", "dt", "figcaption",
    "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main",
    "nav", "ol", "p", "pre", "section", "table", "td", "th", "tr", "ul",
])  # fmt: skip
_GROUPS = frozenset(["thead", "tbody", "tfoot"])
_TABLES = frozenset(["table", "tr", "td", "th", *_GROUPS])
_SPACE = re.compile(r"[ \t\n\r\f\v]+")

Read = Callable[[int], bytes | None]
Piece = tuple[str, str]
"""Text, and the heading above it."""


@dataclass
class Undecoded:
    """Characters of pages that could not be decoded."""

    count: int = 0
    encoding: str = ""
    """The encoding of the first page with such characters."""

    def warnings(self, name: str) -> list[str]:
        """Return the warning about a document with this name, if there are such characters."""
        if not self.count:
            return []
        told = "1 character is" if self.count == 1 else f"{self.count:,} characters are"
        return [f"{name}: {told} unreadable as {self.encoding.upper()} and replaced by \ufffd."]


def html_parts(
    read: Read, patience: Patience, heading: str = "", undecoded: Undecoded | None = None
) -> Iterator[list[Piece] | None]:
    """Yield the pieces of a page's text, block by block; None when ``read`` has no data yet.

    ``heading`` applies until the first heading of the page. ``undecoded`` counts characters that
    cannot be decoded. Raises SourceError if the conversion takes too long.
    """
    target = _Page(heading)
    parser = _parser(target)
    decoder, held, begun, encoding = None, "", b"", ""
    while True:
        data = read(BLOCK)
        if data is None:
            yield None
            continue
        ended = not data
        if decoder is None:
            begun += data
            if not ended and len(begun) < DECLARED:
                continue
            (decoder, encoding), data = html_decoder(begun), begun
        with patience.counting():
            text = decoder.decode(data, ended)
            if undecoded is not None and (wrong := text.count(UNDECODED)):
                undecoded.count += wrong
                undecoded.encoding = undecoded.encoding or encoding
            text, held = held + text.replace(UNDECODED, "\ufffd"), ""
            close = ended or target.depth > DEEPEST
            if not ended and close and (tag := text.rfind("<")) > 0:  # do not split a tag
                text, held = text[:tag], text[tag:]
            # lxml refuses NUL and the surrogates of damaged UTF-16.
            parser.feed(text.replace("\0", "\ufffd").encode("utf-8", "replace"))
            if close:
                parser.close()
                parser = _parser(target)
        yield target.lines.take(final=ended)
        if ended:
            return


def parts(pieces: Sequence[Piece], before: float, after: float) -> Iterator[Part]:
    """Yield the pieces of one block. The converted share grows from `before` to `after`."""
    done, every = 0, sum(len(text) for text, _ in pieces)
    for text, heading in pieces:
        done += len(text)
        yield Part(text, heading, before + (after - before) * done / every)


def text_bytes(markup: bytes) -> int:
    """Return the bytes of text in a piece of HTML."""
    blocks = html_parts(io.BytesIO(markup).read, Patience("a sample"))
    return sum(len(text.encode("utf-8", "replace")) for block in blocks for text, _ in block or ())


def _parser(target: _Page) -> etree.HTMLParser:
    return etree.HTMLParser(target=target, encoding="utf-8", huge_tree=True)


class _Page:
    """The parser target that lxml calls; it collects the text."""

    def __init__(self, heading: str) -> None:
        self.depth = 0
        """Number of open tags."""
        self.lines = Lines(heading)
        self._dropped = 0
        self._pre = 0
        self._heading: list[str] | None = None
        self._in_head = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.depth += 1
        if tag in _DROPPED:
            self._dropped += 1
        if self._dropped:
            return
        if tag in _HEADINGS or tag == "pre":
            self.lines.loosen()
        if tag in _TABLES:
            self._table(tag, attributes)
        elif tag in _APART:
            self.lines.add("\n\n")
        elif tag in _BLOCKS:
            self.lines.end_line()
        elif tag == "br":
            self.lines.add("\n")
        if tag in _HEADINGS:
            self._heading = []
        elif self._heading is not None and (tag == "br" or tag in _BLOCKS):
            self._heading.append(" ")  # a new line, not the same word
        self._pre += tag == "pre"

    def end(self, tag: str) -> None:
        self.depth -= 1
        if self._dropped:
            self._dropped -= tag in _DROPPED
            return
        if tag in _HEADINGS:
            self._name()
        if tag == "table":
            self.lines.end_table()
        elif tag == "tr":
            self.lines.end_row()
        elif tag in _GROUPS:
            self._in_head = False
        if tag in _BLOCKS:
            self.lines.end_line()
        self._pre -= tag == "pre"

    def _table(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "table":
            self.lines.begin_table()
        elif tag == "tr":
            self.lines.begin_row(heads=self._in_head)
        elif tag in _GROUPS:
            self._in_head = tag == "thead"
            self.lines.divide()
        else:
            columns, rows = (_count(attributes.get(n)) for n in ("colspan", "rowspan"))
            self.lines.begin_cell(Cell("", max(columns, 1), rows, heading=tag == "th"))

    def data(self, text: str) -> None:
        if self._dropped:
            return
        text = text if self._pre else _SPACE.sub(" ", text)
        if self._heading is not None:
            self._heading.append(text)
            if sum(map(len, self._heading)) > LONGEST_HEADING:
                self._heading = None
        self.lines.add(text)

    def comment(self, text: str) -> None:
        """Ignore a comment."""

    def pi(self, target: str, data: str | None = None) -> None:
        """Ignore a processing instruction."""

    def close(self) -> None:
        """Return nothing: `lines` gives the text while it is parsed."""

    def _name(self) -> None:
        words = " ".join("".join(self._heading or ()).split())
        if words:
            self.lines.name(words)
        self._heading = None


def _count(value: str | None) -> int:
    """Return the number of columns or rows of a cell."""
    return int(value) if value is not None and re.fullmatch(r"[0-9]{1,5}", value) else 1


class Lines:
    """Collects and cleans text: strips lines, keeps at most one empty line in a row, and writes a
    row of a table as one line.
    """

    def __init__(self, heading: str = "") -> None:
        self.heading = heading
        """The heading above the next text."""
        self._new: list[str] = []
        self._rest = ""
        self._done: list[str] = []
        self._pieces: list[Piece] = []
        self._empty = 0
        self._begun = False
        self._cut = False
        self._open = False
        self._tables: list[Table] = []
        self._held = 0
        """Characters of the cells of open rows."""

    def add(self, text: str) -> None:
        for table in reversed(self._tables):
            if table.cells:
                table.cells[-1].text += text
                self._held += len(text)
                if self._held > LONGEST_ROW:
                    self.loosen()
                return
        self._new.append(text)
        line = text.rpartition("\n")[2]
        self._open = bool(line.strip()) or (self._open and len(line) == len(text))

    def end_line(self) -> None:
        """Begin a new line, unless one has just begun."""
        if self._open or self._held:
            self.add("\n")

    def begin_table(self) -> None:
        """Begin a table, which may be in a cell of another one."""
        self.end_line()
        self._tables.append(Table())

    def begin_row(self, *, heads: bool = False) -> None:
        """Begin a row; `heads`: it has the headings of the columns."""
        self.end_row()
        if self._tables:
            self._tables[-1].begin(heads=heads)

    def begin_cell(self, cell: Cell) -> None:
        """Begin a cell of the row."""
        if self._tables and not self._tables[-1].loose:
            self._tables[-1].cells.append(cell)
        else:
            self.end_line()

    def divide(self) -> None:
        """Begin a group of rows."""
        if self._tables:
            self._tables[-1].divide()

    def end_row(self) -> None:
        """Write the row as a line, into the cell around its table if there is one."""
        if self._tables and (table := self._tables[-1]).cells:
            self._held -= sum(len(cell.text) for cell in table.cells)
            text = table.row()
            self.end_line()
            self.add(text)
            self.end_line()

    def end_table(self) -> None:
        """End the table."""
        self.end_row()
        if self._tables:
            self._tables.pop()

    @property
    def table(self) -> Table | None:
        """The innermost table."""
        return self._tables[-1] if self._tables else None

    def loosen(self) -> None:
        """Write the cells of all open rows as lines of their own: they are no rows of data."""
        tables, self._tables, self._held = self._tables, [], 0
        for table in tables:
            for cell in table.cells:
                self.end_line()
                self.add(cell.text)
            table.loose = table.loose or bool(table.cells)
            table.cells = []
        self._tables = tables

    def name(self, heading: str) -> None:
        """Make the text after the last empty line a heading."""
        self.loosen()
        waiting = self._rest + "".join(self._new)
        before, _, own = waiting.rpartition("\n\n")
        self._rest, self._new = "", [before, "\n\n"]
        self._settle(final=False)
        self._finish()
        self.heading = heading
        self._new = [own]
        self._open = True

    def take(self, *, final: bool = False) -> list[Piece]:
        """Return the pieces that are complete; with ``final`` all of them."""
        if final:
            self.loosen()
        self._settle(final=final)
        if final and self._begun:
            self._done.append("\n")
        self._finish()
        found, self._pieces = self._pieces, []
        return found

    def _finish(self) -> None:
        text = "".join(self._done)
        self._done = []
        if text:
            self._pieces.append((text, self.heading))

    def _settle(self, *, final: bool) -> None:
        lines = (self._rest + "".join(self._new)).split("\n")
        self._new = []
        self._rest = "" if final else lines.pop()
        for line in lines:
            self._line(line)
            self._cut = False
        if len(self._rest) > LONGEST_LINE:
            self._line(self._rest)
            self._rest, self._cut = "", True

    def _line(self, line: str) -> None:
        if self._cut:  # the beginning of the line was returned before
            self._done.append(line)
            return
        line = line.strip(" \t")
        if not line:
            self._empty += 1
            return
        if self._begun:
            self._done.append("\n\n" if self._empty else "\n")
        self._done.append(line)
        self._begun, self._empty = True, 0
