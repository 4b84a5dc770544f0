"""Cut the text of a page into stretches that are shown and stretches that are folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvstream.memory.kept.positions import Kept
from kvstream.memory.kept.reread_text import Piece, Reread
from kvstream.reporters.html.page import Fold, Section, Span, Text

MARGIN = 200
"""Extra bytes around a stretch, so that it can begin and end between two words."""
CHUNK = 2400
"""Maximum number of characters of a shown stretch."""
SECTION = 4000
"""Number of characters after which a new section begins."""
WHITE = 2
"""Bytes between two stretches that are only white space of the source."""
SHORTEST = 400
"""Minimum number of characters of a fold."""


class Cutter:
    def __init__(
        self,
        of: Kept,
        starts: np.ndarray,
        found: Reread,
        places: Sequence[tuple[int, int]],
        near: int,
        whole: bool,
    ) -> None:
        self.of, self.found, self.near, self.whole = of, found, near, whole
        self.held = not len(found.tokens)
        """Whether there are only passages, which are shown whole."""
        self.starts, self.ends = starts, found.ends
        self.places = places
        self.cited: list[Span | None] = [None] * len(places)
        self.marks = np.zeros((len(starts), 3), dtype=np.int64)
        """Index of the text, start and length of each kept token; `sections` fills it."""
        self.texts = 0

    def sections(self) -> list[Section]:
        made: list[Section] = []
        items: list[Text | Fold] = []
        source, heading, chars = -1, None, 0
        for piece, begin, end, shown in self._stretches():
            turn = piece is not None and shown and piece.source != source
            if items and (turn or chars >= SECTION):
                made.append(Section(heading, items))
                items, heading, chars = [], None, 0
            if turn:
                assert piece is not None
                source = piece.source
                heading = self.of.names[source] if source < len(self.of.names) else None
            if piece is None or not shown:
                text = None if piece is None or not self.whole else piece.text[begin:end]
                if piece is not None:
                    begin, end = int(piece.offsets[begin]), int(piece.offsets[end])
                items.append(self._fold(begin, end, text))
                chars += 100
            else:
                items.append(self._text(piece, begin, end))
                chars += end - begin
        if items:
            made.append(Section(heading, items))
        return made

    def _stretches(self) -> Iterator[tuple[Piece | None, int, int, bool]]:
        """Yield (piece, first character, end, shown), or (None, byte, byte, False) without text."""
        reached = 0
        for piece in self.found.pieces:
            for begin, end, shown in self._regions(piece):
                if not shown and not self.whole:
                    continue  # becomes part of the next stretch without text
                behind = int(piece.offsets[begin])
                if behind - reached > WHITE:
                    yield None, reached, behind, False
                if shown:
                    yield from ((piece, a, b, True) for a, b in self._chunks(piece, begin, end))
                else:
                    yield piece, begin, end, False
                reached = int(piece.offsets[end])
        if self.of.end - reached > WHITE:
            yield None, reached, self.of.end, False

    def _regions(self, piece: Piece) -> Iterator[tuple[int, int, bool]]:
        """Yield (first character, end, shown) of the parts of a piece that are shown or folded."""
        size = len(piece.text)
        if self.held:
            yield 0, size, True
            return
        taken = sorted(self._taken(piece))
        if not taken:
            yield 0, size, False
            return
        at, behind = 0, -self.near - MARGIN
        for first, last in [*taken, (size + self.near + MARGIN, size)]:
            low = 0 if behind < 0 else _after(piece.text, min(behind + self.near, size))
            high = size if first > size else _before(piece.text, max(first - self.near, 0))
            if high - low >= SHORTEST:
                if low > at:
                    yield at, low, True
                yield low, high, False
                at = high
            behind = max(behind, last)
        if at < size:
            yield at, size, True

    def _taken(self, piece: Piece) -> list[tuple[int, int]]:
        """Return the characters of a piece that must be shown: kept tokens and citations."""
        first, last = np.searchsorted(self.starts, [piece.start, piece.end])
        begins = np.searchsorted(piece.offsets, self.starts[first:last], side="right") - 1
        ends = np.searchsorted(piece.offsets, self.ends[first:last])
        found = list(zip(begins.tolist(), ends.tolist(), strict=True))
        for begin, end in self.places:
            low, high = max(begin, piece.start), min(end, piece.end)
            if low < high:
                a, b = np.searchsorted(piece.offsets, [low, high])
                found.append((int(a), int(b)))
        return found

    def _chunks(self, piece: Piece, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Split a long stretch between two lines or words, and never inside a kept token."""
        while end - begin > CHUNK:
            text, low = piece.text, begin + CHUNK // 2
            cut = text.rfind("\n", low, begin + CHUNK) + 1
            cut = cut or text.rfind(" ", low, begin + CHUNK) + 1 or begin + CHUNK
            place = int(piece.offsets[cut])
            inside = int(np.searchsorted(self.starts, place)) - 1
            if inside >= 0 and self.starts[inside] < place < self.ends[inside]:
                token = int(np.searchsorted(piece.offsets, self.starts[inside], side="right")) - 1
                cut = token if token > begin else cut
            yield begin, cut
            begin = cut
        yield begin, end

    def _text(self, piece: Piece, begin: int, end: int) -> Text:
        """Return a shown stretch, and note which kept tokens and citations are in it."""
        offsets, text = piece.offsets[begin : end + 1], piece.text[begin:end]
        units = _utf16(text)
        low, high = int(offsets[0]), int(offsets[-1])
        first, last = np.searchsorted(self.starts, [low, high])
        begins = np.searchsorted(offsets, self.starts[first:last], side="right") - 1
        ends = np.searchsorted(offsets, np.minimum(self.ends[first:last], high))
        begins = np.clip(begins, 0, max(len(text) - 1, 0))
        ends = np.clip(ends, begins + 1, len(text))
        self.marks[first:last, 0] = self.texts
        self.marks[first:last, 1] = units[begins]
        self.marks[first:last, 2] = units[ends] - units[begins]
        for index, (begin_byte, end_byte) in enumerate(self.places):
            if self.cited[index] is None and low <= begin_byte < min(end_byte, high):
                a, b = np.searchsorted(offsets, [begin_byte, min(end_byte, high)])
                self.cited[index] = Span(self.texts, int(units[a]), int(units[b] - units[a]))
        self.texts += 1
        return Text(text, _label(piece, begin))

    def _fold(self, begin: int, end: int, text: str | None) -> Fold:
        count, stride = None, self.found.stride
        if not self.held:
            first, last = np.searchsorted(self.found.tokens, [begin, end])
            count = int(last - first) * stride
        return Fold(count, stride > 1, end - begin, text)


def _label(piece: Piece, begin: int) -> str:
    if piece.line is not None:
        return f"line {piece.line + piece.text.count(chr(10), 0, begin):,}"
    return f"page {piece.place}" if isinstance(piece.place, int) else piece.place or ""


def _after(text: str, place: int) -> int:
    """Return the next place where a line begins, or else a sentence or a word."""
    for mark in ("\n", ". ", " "):
        found = text.find(mark, place, place + MARGIN // 2)
        if found >= 0:
            return found + len(mark)
    return min(place, len(text))


def _before(text: str, place: int) -> int:
    """Return the last place up to here where a line begins, or else a sentence or a word."""
    for mark in ("\n", ". ", " "):
        found = text.rfind(mark, max(0, place - MARGIN // 2), place)
        if found >= 0:
            return found + len(mark)
    return place


def _utf16(text: str) -> Any:
    """Return how many UTF-16 code units are before each character: int64 [len + 1]."""
    if text.isascii():
        return np.arange(len(text) + 1)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    return np.concatenate([[0], np.cumsum(1 + (codes > 0xFFFF))])
