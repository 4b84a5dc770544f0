"""The text of a page: it shows what is near kept tokens and folds the rest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvstream.memory.snapshot.positions import Snapshot, counts_of
from kvstream.memory.snapshot.reread_text import PageText, Piece, held_ends, held_pieces, reread
from kvstream.reporters.html.page import Document, Fold, Section, Shading, Span, Text
from kvstream.tokenization.sentences import looks_like_lines

WHOLE = 1_200_000
"""Maximum bytes of a text that a page holds whole. Of a longer text, it holds only what is near
kept tokens."""
MOST_TOKENS = 300_000
"""Maximum number of kept tokens on a page: those that most heads hold."""
WIDE = 160
"""Maximum number of characters around a kept token that are not folded."""

NEAR = (400, 250, 160, 100, 60, 30)
"""Characters to show around a kept token; the largest with which the text fits is used."""
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

Cited = tuple[str, int, int]
"""A citation: name of the source, first byte, byte after the last."""


@dataclass(frozen=True)
class KeptTokens:
    """The kept tokens of several readings, at most as many as a page can show."""

    starts: np.ndarray
    """int64 [U], sorted and distinct: global byte offset of each token."""
    table: tuple[np.ndarray, np.ndarray]
    """(offsets, ordinals) of the tokens whose ordinal is known."""
    counts: np.ndarray
    """int64 [U]: number of heads, of all readings, that hold each token."""

    @classmethod
    def of(cls, readings: Mapping[str, Snapshot]) -> KeptTokens:
        starts = np.unique(np.concatenate([each.starts for each in readings.values()]))
        counts = np.zeros(len(starts), dtype=np.int64)
        for each in readings.values():
            np.add.at(counts, np.searchsorted(starts, each.starts), each.counts())
        whole = [each for each in readings.values() if each.records] or list(readings.values())[:1]
        places = np.concatenate([each.starts for each in whole])
        places, first = np.unique(places, return_index=True)
        ordinals = np.concatenate([each.ordinals for each in whole])[first]
        return cls(starts, (places, ordinals), counts)

    def fitting(self, limit: int, most: int) -> tuple[int, KeptTokens]:
        """Return the characters around tokens, and tokens, that fit `limit` bytes."""
        if len(self.starts) <= most:
            for near in NEAR:
                if _size(self.starts, near) <= limit:
                    return near, self
        order = np.argsort(-self.counts, kind="stable")
        fitting = bisect_left(
            range(1, min(len(order), most) + 1), True,
            key=lambda count: _size(np.sort(self.starts[order[:count]]), NEAR[-1]) > limit,
        )  # fmt: skip
        best = np.sort(order[: max(1, fitting)])
        return NEAR[-1], KeptTokens(self.starts[best], self.table, self.counts[best])

    def ordinals(self, text: PageText) -> np.ndarray:
        """Return the ordinal of each token: int64 [U]."""
        places, ordinals = self.table
        if np.isin(self.starts, places).all() or not len(text.tokens):
            return np.interp(self.starts, places, ordinals).astype(np.int64)
        return (np.searchsorted(text.tokens, self.starts, side="right") - 1) * text.stride

    def shading(self, name: str, of: Snapshot) -> Shading:
        """Return which of all tokens one reading kept."""
        own = np.minimum(np.searchsorted(self.starts, of.starts), len(self.starts) - 1)
        there = self.starts[own] == of.starts
        # Two tokens can begin at the same byte if they share a character.
        heads = [[np.unique(own[h[there[h]]]) for h in layer] for layer in of.heads]
        counts = counts_of(heads, len(self.starts))
        return Shading(name, of.layers, heads, counts, len(of.ordinals))


def document_of(
    readings: Mapping[str, Snapshot],
    cited: Sequence[Cited],
    limit: int = 3_600_000,
    most: int = MOST_TOKENS,
) -> Document:
    """Return the text around the kept tokens of several readings of the same sources.

    Shows the citations `cited` too. The document has at most `limit` bytes of text and `most` kept
    tokens. If a source is not a regular file, or has changed since, the text comes from the
    passages that memory holds.
    """
    first = next((k for k in readings.values() if k.records), next(iter(readings.values())))
    every = KeptTokens.of(readings)
    places = [_place(first, each) for each in cited]
    size = sum(record.bytes for record in first.records)
    near, tokens = every.fitting(limit, most)
    if whole := 0 < size <= min(WHOLE, limit):
        ranges = [(0, size + 1)]
    else:
        ends = [(a, b) for a, b in places if a < b]
        ranges = _ranges(tokens.starts, ends, near + MARGIN)
    text = reread(first, tokens.starts, ranges)
    notes = []
    if isinstance(text, str):
        notes.append(
            f"{text} Only the passages that memory holds can be shown; the text between them is "
            "not in this file."
        )
        pieces = _united([held_pieces(each) for each in readings.values()])
        text = PageText(pieces, held_ends(first, tokens.starts, pieces))
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
    cutter = Cutter(first, tokens.starts, text, places, min(near, WIDE), whole)
    sections = cutter.sections()
    sample = next((t.text for s in sections for t in s.items if isinstance(t, Text)), "")
    shadings = [tokens.shading(name, each) for name, each in readings.items()]
    return Document(
        sections, cutter.marks, tokens.ordinals(text), first.read, shadings, cutter.cited, notes,
        looks_like_lines(sample),
    )  # fmt: skip


def _place(of: Snapshot, cited: Cited) -> tuple[int, int]:
    """Return the global byte offsets of a citation; an empty range if its source is unknown."""
    name, begin, end = cited
    if name not in of.names:
        return 0, 0
    index = list(of.names).index(name)
    base = of.bases[index] if index < len(of.bases) else 0
    return base + begin, base + end


def _ranges(
    starts: np.ndarray, more: Sequence[tuple[int, int]], around: int
) -> list[tuple[int, int]]:
    """Return ranges of bytes around tokens and around other ranges, sorted and disjoint."""
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
    pieces: list[Piece] = []
    for piece in sorted((p for each in every for p in each), key=lambda p: (p.start, -p.end)):
        if not pieces or piece.start >= pieces[-1].end:
            pieces.append(piece)
    return pieces


def _size(starts: np.ndarray, near: int) -> int:
    """Return roughly how many bytes of text show these tokens."""
    if not len(starts):
        return 0
    length = 2 * near + 100
    return int(np.minimum(np.diff(starts), length).sum()) + length


@dataclass
class Cutter:
    """Cuts the text into stretches that are shown and stretches that are folded."""

    of: Snapshot
    starts: np.ndarray
    text: PageText
    places: Sequence[tuple[int, int]]
    near: int
    whole: bool

    def __post_init__(self) -> None:
        self.only_passages = not len(self.text.tokens)
        """Whether there are only passages, which are shown whole."""
        self.ends = self.text.ends
        self.cited: list[Span | None] = [None] * len(self.places)
        self.marks = np.zeros((len(self.starts), 3), dtype=np.int64)
        """Index of the text, start and length of each kept token; `sections` fills it."""
        self.texts = 0

    def sections(self) -> list[Section]:
        sections: list[Section] = []
        items: list[Text | Fold] = []
        source, heading, chars = -1, None, 0
        for piece, begin, end, shown in self._stretches():
            turn = piece is not None and shown and piece.source != source
            if items and (turn or chars >= SECTION):
                sections.append(Section(heading, items))
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
            sections.append(Section(heading, items))
        return sections

    def _stretches(self) -> Iterator[tuple[Piece | None, int, int, bool]]:
        """Yield (piece, first character, end, shown), or (None, byte, byte, False) without text."""
        byte = 0
        for piece in self.text.pieces:
            for begin, end, shown in self._regions(piece):
                if not shown and not self.whole:
                    continue  # becomes part of the next stretch without text
                behind = int(piece.offsets[begin])
                if behind - byte > WHITE:
                    yield None, byte, behind, False
                if shown:
                    yield from ((piece, a, b, True) for a, b in self._chunks(piece, begin, end))
                else:
                    yield piece, begin, end, False
                byte = int(piece.offsets[end])
        if self.of.end - byte > WHITE:
            yield None, byte, self.of.end, False

    def _regions(self, piece: Piece) -> Iterator[tuple[int, int, bool]]:
        """Yield (first character, end, shown) of the parts of a piece that are shown or folded."""
        size = len(piece.text)
        if self.only_passages:
            yield 0, size, True
            return
        spans = sorted(self._spans(piece))
        if not spans:
            yield 0, size, False
            return
        at, behind = 0, -self.near - MARGIN
        for first, last in [*spans, (size + self.near + MARGIN, size)]:
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

    def _spans(self, piece: Piece) -> list[tuple[int, int]]:
        """Return the characters of a piece that must be shown: kept tokens and citations."""
        first, last = np.searchsorted(self.starts, [piece.start, piece.end])
        begins = np.searchsorted(piece.offsets, self.starts[first:last], side="right") - 1
        ends = np.searchsorted(piece.offsets, self.ends[first:last])
        spans = list(zip(begins.tolist(), ends.tolist(), strict=True))
        for begin, end in self.places:
            low, high = max(begin, piece.start), min(end, piece.end)
            if low < high:
                a, b = np.searchsorted(piece.offsets, [low, high])
                spans.append((int(a), int(b)))
        return spans

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
        count, stride = None, self.text.stride
        if not self.only_passages:
            first, last = np.searchsorted(self.text.tokens, [begin, end])
            count = int(last - first) * stride
        return Fold(count, stride > 1, end - begin, text)


def _label(piece: Piece, begin: int) -> str:
    if piece.line is not None:
        return f"line {piece.line + piece.text.count(chr(10), 0, begin):,}"
    return f"page {piece.place}" if isinstance(piece.place, int) else piece.place or ""


def _after(text: str, place: int) -> int:
    """Return the next place where a line begins, or else a sentence or a word."""
    for mark in ("\n", ". ", " "):
        at = text.find(mark, place, place + MARGIN // 2)
        if at >= 0:
            return at + len(mark)
    return min(place, len(text))


def _before(text: str, place: int) -> int:
    """Return the last place up to here where a line begins, or else a sentence or a word."""
    for mark in ("\n", ". ", " "):
        at = text.rfind(mark, max(0, place - MARGIN // 2), place)
        if at >= 0:
            return at + len(mark)
    return place


def _utf16(text: str) -> Any:
    """Return how many UTF-16 code units are before each character: int64 [len + 1]."""
    if text.isascii():
        return np.arange(len(text) + 1)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    return np.concatenate([[0], np.cumsum(1 + (codes > 0xFFFF))])
