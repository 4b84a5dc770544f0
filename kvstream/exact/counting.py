"""Count words in a stream of text blocks, in one pass and in memory that does not grow.

Matches may cross the border of two blocks. The first and the last place are citations, and a
histogram of fixed size, whose bins double as the text grows, has the places of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from kvstream.exact.words import Literal, Window, Words
from kvstream.input.blocks import TextBlock
from kvstream.tokenization.passages import Passage

BINS = 512
WINDOW = 1 << 20
"""Characters that are searched at once."""
KEPT = 1 << 24
FORMS = 1000
"""Maximum forms that are counted individually."""
COMPARED = 4
"""Forms of a window whose bytes are compared."""
SHOWN = 200
"""Maximum characters of the line of a place, around the words."""


@dataclass(frozen=True)
class Found:
    """A place of the words in the text."""

    block: TextBlock
    char: int
    """Index of their first character in the block."""
    length: int
    line: int
    text: str
    """The line, or the part of it around the words."""

    @classmethod
    def at(cls, block: TextBlock, char: int, line: int, text: str, begin: int, end: int) -> Found:
        """Return the place of `text` from `begin` to `end`, or if that is empty, of its line."""
        start = max(text.rfind("\n", 0, begin) + 1, begin - SHOWN // 2)
        stop = text.find("\n", end)
        stop = max(min(len(text) if stop < 0 else stop, start + SHOWN), end)
        shown = " ".join(text[start:stop].split())
        length = len((text[begin:end] or shown).encode("utf-8", "replace"))
        return cls(block, char, length, line, shown)

    def to_json(self, names: Sequence[str], bases: Sequence[int]) -> dict[str, Any]:
        """Return the JSON object of a citation."""
        source, line, place = self.block.source, self.line, self.block.place
        begin = int(self.block.offsets()[self.char]) - bases[source]
        end = begin + self.length
        where = Passage(source, begin, end, line, line, self.text, place=place).where()
        name = names[source]
        return {"source": name, "byte_start": begin, "byte_end": end, **where, "text": self.text}


@dataclass
class Tally:
    """What was counted."""

    count: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    first: Found | None = None
    last: Found | None = None
    bins: np.ndarray = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    bin_bytes: int = 64
    end: int = 0
    """Global byte offset of the end of the text."""

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


def count_words(blocks: Iterable[TextBlock], words: Words, *, lines: bool = False) -> Tally:
    """Count the places of words in a text, or with `lines` the lines that have them."""
    # glibc returns every freed window to the system at once, which takes as long as the search,
    # until a larger block has been freed.
    np.empty(KEPT, dtype=np.uint8)
    search = _Search(words, lines=lines)
    for block in blocks:
        if block.text:
            search.feed(block)
    return search.end()


class _Search:
    """A window over the text: the last block, and as much before it as a match may take."""

    def __init__(self, words: Words, *, lines: bool) -> None:
        self.tally = Tally()
        self._words, self._lines = words, lines
        self._size, self._begin, self._newlines, self._source = 0, 0, 0, -1
        self._new: list[str] = []
        self._latest: Callable[[], Found | None] = lambda: None
        self._blocks: list[tuple[int, TextBlock]] = []
        """The blocks of the window, with the indices at which they begin."""
        self._in_line = -1
        """Index behind the last match, if its line has not ended before; else -1."""

    def feed(self, block: TextBlock) -> None:
        """Add the next block, which has text."""
        if block.source != self._source:
            self.scan(final=True)
            self._new, self._size, self._begin, self._newlines = [], 0, 0, 0
            self._blocks, self._in_line, self._source = [], -1, block.source
        self._blocks.append((self._size, block))
        self._new.append(block.text)
        self._size += len(block.text)
        if self._size >= WINDOW:
            self.scan()

    def end(self) -> Tally:
        """Search the rest of the text."""
        self.scan(final=True)
        self.tally.last = self._latest()
        return self.tally

    def scan(self, *, final: bool = False) -> None:
        """Search the part of the window in which matches are complete, and forget it."""
        text = "".join(self._new)
        window = Window(text)
        end = len(text) if final else len(text) - self._words.reach - SHOWN
        found = self._words.matches(window, self._begin, end)
        behind = int(found[-1, 1]) if len(found) else self._begin
        if self._lines and len(found):
            found = self._first_of_lines(found, window)
        if len(found):
            self._note(found, window)
        if final and self._blocks:
            self.tally.end = int(self._blocks[-1][1].offsets()[-1])
        keep = max(0, end - SHOWN)  # what is shown of a line, and the border of a word
        self._newlines += int(np.count_nonzero(window.lines[:keep]))
        if self._in_line >= 0:
            ended = text.find("\n", self._in_line, keep) >= 0
            self._in_line = -1 if ended else max(0, self._in_line - keep)
        self._new, self._size = [text[keep:]], len(text) - keep
        self._begin = max(end, behind) - keep
        self._blocks = [(at - keep, b) for at, b in self._blocks if at + len(b.text) > keep]

    def _first_of_lines(self, found: np.ndarray, window: Window) -> np.ndarray:
        """Return the first match of every line that has not been counted."""
        begins = found[:, 0]
        before = window.lines[self._in_line : begins[0]]
        new = np.logical_or.reduceat(window.lines, begins)[:-1]
        self._in_line, here = int(found[-1, 1]), self._in_line >= 0 and not before.any()
        return found[np.concatenate([[not here], new])]

    def _note(self, found: np.ndarray, window: Window) -> None:
        tally, text = self.tally, window.text
        tally.count += len(found)
        for spelled, count in _forms(found, window).items():
            form = " ".join(spelled.split())
            if form in tally.forms or len(tally.forms) < FORMS:
                tally.forms[form] += count
        starts = np.array([at for at, _ in self._blocks])
        bases = np.array([block.start for _, block in self._blocks]) - starts
        blocks = np.searchsorted(starts, found[:, 0], side="right") - 1
        tally.mark(bases[blocks] + found[:, 0])
        if tally.first is None:
            tally.first = self._place(found[0], text, self._newlines, self._blocks)
        # Only the last of all is wanted, and its line must be counted for.
        self._latest = partial(self._place, found[-1], text, self._newlines, self._blocks)

    @staticmethod
    def _place(
        span: np.ndarray, text: str, newlines: int, blocks: list[tuple[int, TextBlock]]
    ) -> Found:
        begin, end = span.tolist()
        at, block = next(b for b in reversed(blocks) if b[0] <= begin)
        line = 1 + newlines + text.count("\n", 0, begin) + block.left_out
        return Found.at(block, begin - at, line, text, begin, end)


def _forms(found: np.ndarray, window: Window) -> Counter[str]:
    """Return the spellings of matches. Comparing letters is far faster than slices of text."""
    forms: Counter[str] = Counter()
    for _ in range(COMPARED if window.text.isascii() else 0):
        if not len(found):
            break
        begin, end = found[0].tolist()
        form = Literal(window.text[begin:end], cased=True)
        alike = form.at(window.data, found[:, 0]) & (found[:, 1] - found[:, 0] == form.size)
        forms[window.text[begin:end]] = int(np.count_nonzero(alike))
        found = found[~alike]
    forms.update(window.text[begin:end] for begin, end in found.tolist())
    return forms
