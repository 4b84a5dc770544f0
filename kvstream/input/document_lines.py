"""Decode the text of documents from a stream, and collect it as clean lines below headings."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvstream.input.blocks import Part
from kvstream.input.encodings import UNDECODED, html_decoder
from kvstream.input.table_rows import LONGEST_ROW, Cell, Table

BLOCK = 16 * 1024
DECLARED = 4096
"""Bytes at the beginning of a text from which its encoding is read or guessed."""
INDENT = "\x1f"
"""A space at the beginning of a line that stays, as in code."""
LONGEST_LINE = 64 * 1024
"""Maximum characters of a line that are held until it ends."""

Read = Callable[[int], bytes | None]
Piece = tuple[str, str]
"""Text, and the heading above it."""


@dataclass
class Losses:
    """Characters of pages that could not be decoded."""

    count: int = 0
    encoding: str = ""
    """The encoding of the first page with such characters."""
    guess: str = ""
    """The encoding of the first page whose encoding is guessed."""

    def warnings(self, name: str) -> list[str]:
        """Return the warning about a document with this name, if there are such characters."""
        guess = f"{name} is not UTF-8 and declares no other encoding; read as {self.guess}."
        guesses = [guess] * bool(self.guess)
        if not self.count:
            return guesses
        amount = "1 character is" if self.count == 1 else f"{self.count:,} characters are"
        as_what = f"unreadable as {self.encoding.upper()} and replaced by \ufffd"
        return [*guesses, f"{name}: {amount} {as_what}."]


def texts_of(read: Read, losses: Losses, charset: str | None = None) -> Iterator[str | None]:
    """Yield decoded text, with ``\\n`` at the end of lines; None when ``read`` has no data yet.

    Without a ``charset``, the text declares its encoding, or it is guessed. ``losses`` counts
    characters that cannot be decoded.
    """
    decoder, head, encoding = None, b"", ""
    while True:
        data = read(BLOCK)
        if data is None:
            yield None
            continue
        ended = not data
        if decoder is None:
            head += data
            if not ended and len(head) < DECLARED:
                continue
            (codec, encoding, guessed), data = html_decoder(head, charset), head
            losses.guess = losses.guess or (encoding if guessed else "")
            decoder = io.IncrementalNewlineDecoder(codec, translate=True)
        text = decoder.decode(data, ended)
        if wrong := text.count(UNDECODED):
            losses.count += wrong
            losses.encoding = losses.encoding or encoding
        yield text.replace(UNDECODED, "\ufffd")
        if ended:
            return


def parts(pieces: Sequence[Piece], before: float, after: float) -> Iterator[Part]:
    """Yield the pieces of one block. The converted share grows from `before` to `after`."""
    size, every = 0, sum(len(text) for text, _ in pieces)
    for text, heading in pieces:
        size += len(text)
        yield Part(text, heading, before + (after - before) * size / every)


def bytes_in(blocks: Iterable[Sequence[Piece] | None]) -> int:
    return sum(len(text.encode("utf-8", "replace")) for block in blocks for text, _ in block or ())


class Lines:
    """Collects text as stripped lines, rows of tables as one, with at most one empty in a row."""

    def __init__(self, heading: str = "") -> None:
        self.heading = heading
        self._new: list[str] = []
        self._rest = ""
        self._parts: list[str] = []
        self._pieces: list[Piece] = []
        self._empty = 0
        self._begun = False
        self._cut = False
        self._open = False
        self._tables: list[Table] = []
        self._ended = False
        """Whether a table has just ended."""
        self._size = 0
        """Characters of the cells of open rows."""

    def add(self, text: str) -> None:
        self._ended = self._ended and not text.strip()
        if (cell := self._cell()) is not None:
            cell.text += text
            self._size += len(text)
            if self._size > LONGEST_ROW:
                self.loosen()
            return
        self._new.append(text)
        line = text.rpartition("\n")[2]
        self._open = bool(line.strip()) or (self._open and len(line) == len(text))

    def end_line(self) -> None:
        """Begin a new line, unless one has just begun."""
        cell = self._cell()
        if self._open if cell is None else cell.text[-1:] not in ("", "\n"):
            self.add("\n")

    def _cell(self) -> Cell | None:
        """Return the open cell of the innermost row that is held."""
        return next((table.cells[-1] for table in reversed(self._tables) if table.cells), None)

    def begin_table(self) -> None:
        """Begin a table, which may be in a cell of another one."""
        self.end_line()
        if self._ended:  # it is no part of the table before
            self.add("\n")
        self._tables.append(Table())

    def begin_row(self, *, heads: bool = False) -> None:
        """Begin a row; `heads`: it has the headings of the columns."""
        self.end_row()
        if self._tables:
            self._tables[-1].begin(heads=heads)

    def begin_cell(self, cell: Cell) -> None:
        if self._tables and not self._tables[-1].loose:
            self._tables[-1].cells.append(cell)
        else:
            self.end_line()

    def divide(self) -> None:
        if self._tables:
            self._tables[-1].divide()

    def end_row(self) -> None:
        """Write the row as a line, into the cell around its table if there is one."""
        if self._tables and (table := self._tables[-1]).has_row:
            self._size -= sum(len(cell.text) for cell in table.cells)
            text = table.row()
            self.end_line()
            self.add(text)
            self.end_line()

    def end_table(self) -> None:
        self.end_row()
        if self._tables:
            self._tables.pop()
            self._ended = not self._tables

    @property
    def table(self) -> Table | None:
        """The innermost table."""
        return self._tables[-1] if self._tables else None

    def loosen(self) -> None:
        """Write the cells of all open rows as lines of their own: they are no rows of data."""
        tables, self._tables, self._size = self._tables, [], 0
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
            self._parts.append("\n")
        self._finish()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _finish(self) -> None:
        text = "".join(self._parts)
        self._parts = []
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
            self._parts.append(line.replace(INDENT, " "))
            return
        line = line.strip(" \t").replace(INDENT, " ").rstrip(" ")
        if not line:
            self._empty += 1
            return
        if self._begun:
            self._parts.append("\n\n" if self._empty else "\n")
        self._parts.append(line)
        self._begun, self._empty = True, 0
