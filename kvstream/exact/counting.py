"""Count words in a stream of text blocks, in one pass and in memory that does not grow.

Matches may cross the border of two blocks. The first and the last place are citations, and a
histogram of fixed size, whose bins double as the text grows, has the places of all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from kvstream.exact.words import Window, Words
from kvstream.input.blocks import TextBlock
from kvstream.input.table_reader import without_names
from kvstream.tokenization.passages import Passage

BINS = 512
WINDOW = 1 << 20
"""Characters that are searched at once."""
_FREED = 16 << 20
"""Bytes that are freed at first: glibc then keeps freed arrays, which end page faults."""
FORMS = 1000
"""Maximum forms that are counted individually."""
EXCERPT = 200
"""Maximum characters of the line of a place, around the words."""
PLACES = 100
"""Maximum places of one count that are told."""


@dataclass(frozen=True)
class Place:
    """A place of the words in the text."""

    block: TextBlock
    char: int
    """Index of their first character in the block."""
    words: str
    """What was found, as it is spelled."""
    line: int
    text: str
    """The line, or the part of it around the words."""

    @classmethod
    def at(cls, block: TextBlock, char: int, line: int, text: str, begin: int, end: int) -> Place:
        """Return the place of `text` from `begin` to `end`, or if that is empty, of its line."""
        start = max(text.rfind("\n", 0, begin) + 1, begin - EXCERPT // 2)
        stop = text.find("\n", end)
        stop = max(min(len(text) if stop < 0 else stop, start + EXCERPT), end)
        excerpt = " ".join(text[start:stop].split())
        return cls(block, char, text[begin:end] or excerpt, line, excerpt)

    def to_json(self, names: Sequence[str], bases: Sequence[int]) -> dict[str, Any]:
        """Return the JSON object of a citation."""
        source, line, place = self.block.source, self.line, self.block.place
        offsets, inside = self.block.offsets() - bases[source], self.block.text[self.char :]
        begin, end = offsets[[self.char, self.char + min(len(self.words), len(inside))]].tolist()
        end += len(self.words[len(inside) :].encode("utf-8", "replace"))  # in the next block
        where = Passage(source, begin, end, line, line, self.text, place=place).where()
        name = names[source]
        return {"source": name, "byte_start": begin, "byte_end": end, **where, "text": self.text}


@dataclass
class Tally:
    """What was counted."""

    most: int = 1
    """How many of the first places are kept."""
    edges: Sequence[int] = ()
    """Global byte offsets, in their order, between which places are counted."""
    count: int = 0
    counts: list[int] = field(default_factory=list)
    """How often each of several words occurs."""
    forms: Counter[str] = field(default_factory=Counter)
    places: list[Place] = field(default_factory=list)
    last: Place | None = None
    between: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    """Counts before, between and behind the edges."""
    bins: np.ndarray = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    bin_bytes: int = 64
    end: int = 0
    """Global byte offset of the end of the text."""
    plain: int = 0
    """Lines of a log without a level."""
    uneven: int = 0
    """Rows with another number of cells than the first."""
    sources: Counter[bool] = field(default_factory=Counter)
    """How many sources have the structure for a unit, and how many do not."""

    def within(self, begin: int, end: int) -> int:
        """Return the number of places between two edges."""
        first, last = (1 + bisect_left(self.edges, edge) for edge in (begin, end))
        return int(self.between[first:last].sum()) if self.count else 0

    def mark(self, bytes: np.ndarray) -> None:
        """Note places in the histogram."""
        while bytes[-1] >= BINS * self.bin_bytes:
            self.bins[: BINS // 2] = self.bins[::2] + self.bins[1::2]
            self.bins[BINS // 2 :] = 0
            self.bin_bytes *= 2
        self.bins += np.bincount(bytes // self.bin_bytes, minlength=BINS)

    def add(self, byte: int, form: str = "") -> None:
        """Count a unit at a place, with words that are spelled in this form."""
        self.count += 1
        self.mark(np.array([byte]))
        if form:
            self.forms[" ".join(form.split())] += 1

    @property
    def spread(self) -> list[int]:
        """How often the words occur in parts of equal size, from the beginning to the end."""
        return self.bins[: max(1, -(-self.end // self.bin_bytes))].tolist()


def count_words(
    blocks: Iterable[TextBlock],
    *words: Words,
    lines: bool = False,
    tally: Tally | None = None,
    so_far: Callable[[Tally], None] | None = None,
) -> Tally:
    """Count the places of words in a text, or with `lines` the lines that have them.

    If several are given, the first is a phrase of the others, of which `Tally.count` is the sum.
    `so_far` gets the count in the whole lines at each pause of the text.
    """
    np.empty(_FREED, dtype=np.uint8)
    search = _Search(words, lines, tally or Tally(), [0] * len(words))
    search.tally.counts = [0] * len(words)
    for window in _windows(without_names(blocks), max(each.reach for each in words) + 2 * EXCERPT):
        if not window.paused:
            search.scan(window)
        elif so_far is not None:
            now = replace(search, tally=deepcopy(search.tally), begins=[*search.begins])
            now.scan(window)
            now.tally.last = now.latest()
            so_far(now.tally)
    search.tally.last = search.latest()
    return search.tally


def _windows(blocks: Iterable[TextBlock], overlap: int) -> Iterator[Window]:
    """Yield stretches of each source, with the last characters of the one before. At a pause also
    yield the whole lines that are in no stretch yet.
    """
    for _, own in groupby(blocks, key=lambda each: each.source):
        texts, raw, size, newlines, grown = list[str](), list[bytes](), 0, 0, False
        parts: list[tuple[int, TextBlock]] = []
        for block in own:
            if not block.text:
                text = "".join(texts) if grown else ""
                if end := text.rfind("\n") + 1:
                    yield Window([text[:end]], (), parts, end, newlines, final=True, paused=True)
                grown = False
                continue
            grown = True
            parts.append((size, block))
            texts.append(block.text)
            raw.append(block.raw)
            size += len(block.text)
            if size >= WINDOW:
                keep = max(0, size - overlap)
                window = Window(texts, raw, parts, keep, newlines)
                newlines += int(np.count_nonzero(window.lines[:keep]))
                texts, size = [window.tail(overlap)], size - keep
                raw = [texts[0].encode("utf-8", "surrogatepass")]
                parts = [(at - keep, each) for at, each in parts if at + len(each.text) > keep]
                yield window
        if parts:
            yield Window(texts, raw, parts, size, newlines, final=True)


@dataclass
class _Search:
    """Counts in windows over the text, from its beginning to its end."""

    words: Sequence[Words]
    lines: bool
    tally: Tally
    begins: list[int]
    """Where the search for each of the words continues."""
    latest: Callable[[], Place | None] = lambda: None
    in_line: int = -1
    """Index behind the last match, if its line has not ended before; else -1."""

    def scan(self, window: Window) -> None:
        """Search the part of a window in which matches are complete."""
        end, keep = window.keep + (0 if window.final else EXCERPT), window.keep
        spans = []
        for place, (words, begin) in enumerate(zip(self.words, self.begins, strict=True)):
            own = words.matches(window, begin, end)
            behind = max(end, int(own[-1, 1]) if len(own) else begin)
            self.begins[place] = 0 if window.final else behind - keep
            self.tally.counts[place] += len(own)
            spans.append(own)
        matches = np.concatenate(spans[1:] or spans)
        matches = matches if len(spans) < 3 else matches[np.argsort(matches[:, 0], kind="stable")]
        if self.lines and len(matches):
            matches = self._first_of_lines(matches, window)
        if len(matches):
            self._note(matches, window)
        if window.final:
            self.tally.end = int(window.blocks[-1][1].offsets()[-1])
            self.in_line = -1
            return
        if self.in_line >= 0:
            self.in_line = (
                -1 if window.lines[self.in_line : keep].any() else max(0, self.in_line - keep)
            )

    def _first_of_lines(self, matches: np.ndarray, window: Window) -> np.ndarray:
        """Return the first match of every line that has not been counted."""
        begins = matches[:, 0]
        before = window.lines[self.in_line : begins[0]]
        new = np.logical_or.reduceat(window.lines, begins)[:-1]
        self.in_line, here = int(matches[-1, 1]), self.in_line >= 0 and not before.any()
        return matches[np.concatenate([[not here], new])]

    def _note(self, matches: np.ndarray, window: Window) -> None:
        tally = self.tally
        tally.count += len(matches)
        for spelling, count in window.spelled(matches).items():
            form = " ".join(spelling.split())
            if form in tally.forms or len(tally.forms) < FORMS:
                tally.forms[form] += count
        starts = np.array([at for at, _ in window.blocks])
        blocks = np.searchsorted(starts, matches[:, 0], side="right") - 1
        own, first = np.unique(blocks, return_index=True)
        chars = np.split(matches[:, 0] - starts[blocks], first[1:])
        pairs = zip(own, chars, strict=True)
        bytes = np.concatenate([window.blocks[at][1].bytes_at(each) for at, each in pairs])
        tally.mark(bytes)
        if tally.edges:
            sections = np.searchsorted(tally.edges, bytes, side="right")
            sums = np.bincount(sections, minlength=len(tally.edges) + 1)
            sums[: len(tally.between)] += tally.between  # there may be more edges now
            tally.between = sums
        tally.places += [self._place(s, window) for s in matches[: tally.most - len(tally.places)]]
        # Only the last of all is wanted, and its line must be counted for.
        self.latest = partial(self._place, matches[-1], window)

    @staticmethod
    def _place(span: np.ndarray, window: Window) -> Place:
        begin, end = span.tolist()
        at, block = next(each for each in reversed(window.blocks) if each[0] <= begin)
        line = 1 + window.newlines + window.text.count("\n", 0, begin) + block.left_out
        return Place.at(block, begin - at, line, window.text, begin, end)
