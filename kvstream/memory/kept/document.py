"""The text that a page shows: what is near to kept tokens; the rest is folded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvstream.memory.kept.positions import Kept
from kvstream.memory.kept.reading import Piece, Reread, held_ends, held_pieces, reread
from kvstream.reporters.html.page import Document, Fold, Section, Shading, Span, Text
from kvstream.tokenization.sentences import looks_like_lines

WHOLE = 1_200_000
"""Bytes of text that a page holds whole; of a longer text only what is near to kept tokens."""
NEAR = (400, 250, 160, 100, 60, 30)
"""Characters around a kept token that are shown: the most for which the text fits."""
MARGIN = 200
"""Bytes more are looked at, so that a stretch begins and ends between two words."""
CHUNK = 2400
"""Characters of a stretch, at most."""
SECTION = 4000
"""Characters after which a new section begins."""
MOST_TOKENS = 300_000
"""Kept tokens that a page shows; those that most heads hold."""
WIDE = 160
"""Characters around a kept token that stay unfolded where the text is there."""
SHORTEST = 400
"""Fewer characters are not folded."""

Cited = tuple[str, int, int]
"""Name of a source, first byte, byte behind the last one: of a citation."""


def document_of(
    readings: Mapping[str, Kept],
    cited: Sequence[Cited],
    limit: int = 3_600_000,
    most: int = MOST_TOKENS,
) -> Document:
    """The text that several readings kept tokens of, which they read from the same sources.

    `cited` are shown too. `limit`: bytes of text at the most, and `most` kept tokens. What is not
    in a regular file, or changed since it was read, is shown from the passages that memory holds.
    """
    first = next((k for k in readings.values() if k.records), next(iter(readings.values())))
    every = _Tokens.of(readings)
    places = [_place(first, each) for each in cited]
    size = sum(record.bytes for record in first.records)
    near, tokens = every.fitting(limit, most)
    if whole := 0 < size <= min(WHOLE, limit):
        wanted = [(0, size + 1)]
    else:
        ends = [(a, b) for a, b in places if a < b]
        wanted = _ranges(tokens.starts, ends, near + MARGIN)
    found = reread(first, tokens.starts, wanted, first.bases)
    notes = []
    if isinstance(found, str):
        notes.append(
            f"{found} Only the passages that memory holds can be shown; the text between them is "
            "not in this file."
        )
        pieces = _united([held_pieces(each) for each in readings.values()])
        found = Reread(pieces, held_ends(first, tokens.starts, pieces))
        whole = False
    elif not whole:
        notes.append(
            f"The text has {size:,} bytes. This file holds what is near to kept tokens; the rest "
            "is folded and not in the file."
        )
    if len(tokens.starts) < len(every.starts):
        notes.append(
            f"The page has {len(tokens.starts):,} of the {len(every.starts):,} kept tokens: those "
            "that most heads hold. Folds, shares and the map are of these."
        )
    cutter = _Cutter(first, tokens.starts, found, places, min(near, WIDE), whole)
    sections = cutter.sections()
    sample = next((t.text for s in sections for t in s.items if isinstance(t, Text)), "")
    return Document(
        sections,
        cutter.marks,
        tokens.ordinals(found),
        first.read,
        [tokens.shading(name, each) for name, each in readings.items()],
        cutter.cited,
        notes,
        looks_like_lines(sample),
    )


def _place(of: Kept, cited: Cited) -> tuple[int, int]:
    """Global byte offsets of a citation; an empty range where its source is not known."""
    name, begin, end = cited
    if name not in of.names:
        return 0, 0
    index = list(of.names).index(name)
    base = of.bases[index] if index < len(of.bases) else 0
    return base + begin, base + end


def _ranges(
    starts: np.ndarray, more: Sequence[tuple[int, int]], around: int
) -> list[tuple[int, int]]:
    """Ranges of bytes around tokens and other ranges, sorted and apart."""
    every = [(int(s) - around, int(s) + around + 60) for s in starts]
    every += [(a - around, b + around) for a, b in more]
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(every):
        begin = max(begin, 0)
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def _united(every: Sequence[Sequence[Piece]]) -> list[Piece]:
    """The passages of several memories, each once."""
    pieces: list[Piece] = []
    for piece in sorted((p for each in every for p in each), key=lambda p: (p.start, -p.end)):
        if not pieces or piece.start >= pieces[-1].end:
            pieces.append(piece)
    return pieces


@dataclass(frozen=True)
class _Tokens:
    """The kept tokens of all readings."""

    starts: np.ndarray
    """int64 [U], sorted and distinct: where they begin."""
    known: tuple[np.ndarray, np.ndarray]
    """Where some tokens begin, and which ones they are."""
    counts: np.ndarray
    """int64 [U]: heads of all readings that hold each."""

    @classmethod
    def of(cls, readings: Mapping[str, Kept]) -> _Tokens:
        starts = np.unique(np.concatenate([each.starts for each in readings.values()]))
        counts = np.zeros(len(starts), dtype=np.int64)
        for each in readings.values():
            np.add.at(counts, np.searchsorted(starts, each.starts), each.counts())
        whole = [each for each in readings.values() if each.records] or list(readings.values())[:1]
        places = np.concatenate([each.starts for each in whole])
        places, first = np.unique(places, return_index=True)
        ordinals = np.concatenate([each.ordinals for each in whole])[first]
        return cls(starts, (places, ordinals), counts)

    def fitting(self, limit: int, most: int) -> tuple[int, _Tokens]:
        """How many characters around each are shown, and the tokens, `most` of them, so that
        `limit` bytes hold their text.
        """
        if len(self.starts) <= most:
            for near in NEAR:
                if _size(self.starts, near) <= limit:
                    return near, self
        order = np.argsort(-self.counts, kind="stable")
        low, high = 1, min(len(order), most)
        while low < high:
            middle = (low + high + 1) // 2
            if _size(np.sort(self.starts[order[:middle]]), NEAR[-1]) <= limit:
                low = middle
            else:
                high = middle - 1
        chosen = np.sort(order[:low])
        return NEAR[-1], _Tokens(self.starts[chosen], self.known, self.counts[chosen])

    def ordinals(self, found: Reread) -> np.ndarray:
        """int64 [U]: which token of the text each one is."""
        places, ordinals = self.known
        if np.isin(self.starts, places).all() or not len(found.tokens):
            return np.interp(self.starts, places, ordinals).astype(np.int64)
        return (np.searchsorted(found.tokens, self.starts, side="right") - 1) * found.stride

    def shading(self, name: str, of: Kept) -> Shading:
        """What one reading kept, among the tokens of all."""
        own = np.minimum(np.searchsorted(self.starts, of.starts), len(self.starts) - 1)
        there = self.starts[own] == of.starts
        # Two tokens of one character may begin at the same byte.
        heads = [[np.unique(own[h[there[h]]]) for h in layer] for layer in of.heads]
        counts = np.zeros(len(self.starts), dtype=np.int64)
        for layer in heads:
            for head in layer:
                counts[head] += 1
        return Shading(name, of.layers, heads, counts, len(of.ordinals))


def _size(starts: np.ndarray, near: int) -> int:
    """Bytes of text that show these tokens, roughly."""
    if not len(starts):
        return 0
    length = 2 * near + 100
    return int(np.minimum(np.diff(starts), length).sum()) + length


class _Cutter:
    """Cuts text into stretches that are shown and stretches that are folded."""

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
        """Only passages are there, which are shown whole."""
        self.starts, self.ends = starts, found.ends
        self.places = places
        self.cited: list[Span | None] = [None] * len(places)
        self.marks = np.zeros((len(starts), 3), dtype=np.int64)
        """Text, start and length of each kept token, filled by `sections`."""
        self.texts = 0

    def sections(self) -> list[Section]:
        """All of the text, in order."""
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
                span = (begin, end) if piece is None else _bytes(piece, begin, end)
                items.append(self._fold(*span, text))
                chars += 100
            else:
                items.append(self._text(piece, begin, end))
                chars += end - begin
        if items:
            made.append(Section(heading, items))
        return made

    def _stretches(self) -> Iterator[tuple[Piece | None, int, int, bool]]:
        """(piece, first character, end, shown); (None, byte, byte, False) where there is no text.

        Two stretches that are folded never follow on one another without a heading between them.
        """
        reached = 0
        for piece in self.found.pieces:
            for begin, end, shown in self._regions(piece):
                if not shown and not self.whole:
                    continue  # becomes part of what lies between
                behind = int(piece.offsets[begin])
                if behind > reached and self._worth(reached, behind):
                    yield None, reached, behind, False
                if shown:
                    yield from ((piece, a, b, True) for a, b in self._chunks(piece, begin, end))
                else:
                    yield piece, begin, end, False
                reached = int(piece.offsets[end])
        if self.of.end > reached and self._worth(reached, self.of.end):
            yield None, reached, self.of.end, False

    def _worth(self, begin: int, end: int) -> bool:
        """Whether something lies between two places that is no mere white space of the source."""
        return end - begin > 2

    def _regions(self, piece: Piece) -> Iterator[tuple[int, int, bool]]:
        """Characters of a piece that are shown, and those between them."""
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
        """Characters of a piece that must be shown: kept tokens and citations."""
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
        """A long stretch in parts that end between two lines or words, and in no kept token."""
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
        """A stretch that is shown; notes which kept tokens and citations are in it."""
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


def _bytes(piece: Piece, begin: int, end: int) -> tuple[int, int]:
    return int(piece.offsets[begin]), int(piece.offsets[end])


def _label(piece: Piece, begin: int) -> str:
    if piece.line is not None:
        return f"line {piece.line + piece.text.count(chr(10), 0, begin):,}"
    return f"page {piece.place}" if isinstance(piece.place, int) else piece.place or ""


def _after(text: str, place: int) -> int:
    """The first place from here on where a line, else a word begins."""
    for mark in ("\n", ". ", " "):
        found = text.find(mark, place, place + MARGIN // 2)
        if found >= 0:
            return found + len(mark)
    return min(place, len(text))


def _before(text: str, place: int) -> int:
    """The last place up to here where a line, else a word begins."""
    for mark in ("\n", ". ", " "):
        found = text.rfind(mark, max(0, place - MARGIN // 2), place)
        if found >= 0:
            return found + len(mark)
    return place


def _utf16(text: str) -> Any:
    """int64 [len + 1]: how many UTF-16 code units are in front of each character."""
    if text.isascii():
        return np.arange(len(text) + 1)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    return np.concatenate([[0], np.cumsum(1 + (codes > 0xFFFF))])
