"""The passages (sentences or lines) of the text that still contain retained tokens.

Nothing here grows with the document. ``prune`` removes passages without retained tokens, and
between two calls only the text read since is added.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np

from kvstream.input.blocks import TextBlock
from kvstream.tokenization.forms import words
from kvstream.tokenization.sentences import MOST_CHARS, lines, looks_like_lines, sentences
from kvstream.tokenization.stream import TokenBatch, joined

Mode = Literal["auto", "sentences", "lines"]
Cutter = Callable[..., Iterator[tuple[int, int]]]

SAMPLE = 8192
"""Characters at the start of a source by which ``auto`` chooses sentences or lines."""
BATCH = 4096
"""Characters to collect before they are cut, because a slow pipe sends only a few at a time."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A sentence or a line of a source."""

    source: int
    """Index of the source in its set."""
    start: int
    """Global byte offset of the first character."""
    end: int
    """Global byte offset after the last character."""
    line_start: int
    """Line of the first character in its source, from 1."""
    line_end: int
    text: str
    weight: float = 0.0
    """Sum of the weights of the retained tokens in the passage."""
    place: int | str | None = None
    """In a document: page of the first character, or the heading above it (empty: no heading)."""
    page_end: int | None = None
    """Page of the last character, if it is another page."""
    reach: int = field(default=0, compare=False)
    """Byte after the passage before: the white space between counts for this passage."""

    @property
    def spot(self) -> str:
        """The line, page or chapter in short form; ``text`` if a document has no headings."""
        if self.place is None:
            return str(self.line_start)
        if isinstance(self.place, str):
            return self.place or "text"
        return pages(self.place, self.page_end)

    def moved(self, sources: int, size: int) -> Passage:
        """Return the passage moved by the number of sources and bytes of a text before it."""
        return replace(
            self, source=self.source + sources, start=self.start + size, end=self.end + size,
            reach=self.reach + size,
        )  # fmt: skip

    def where(self) -> dict[str, Any]:
        """Return lines of a plain text, page or chapter of a document. Other values are None."""
        plain = self.place is None
        return {
            "line_start": self.line_start if plain else None,
            "line_end": self.line_end if plain else None,
            "page": self.place if isinstance(self.place, int) else None,
            "page_end": self.page_end or self.place if isinstance(self.place, int) else None,
            "chapter": self.place or None if isinstance(self.place, str) else None,
        }


def pages(first: int, last: int | None) -> str:
    """Return ``p. 212`` or ``pp. 212-213``."""
    return f"p. {first}" if last in (None, first) else f"pp. {first}-{last}"


class Passages:
    """Takes the blocks of the sources in order and cuts them into passages."""

    def __init__(self, mode: Mode = "auto") -> None:
        self._mode = mode
        self._passages: list[Passage] = []
        self._blocks: list[TextBlock] = []
        self._chars = 0
        self._least = BATCH
        self._source = 0
        self._line = 1
        self._behind = 0
        self._cut: Cutter | None = None
        # First bytes of stretches with the same place and number of left-out lines.
        self._marks: list[int] = []
        self._places: list[tuple[int | str | None, int]] = []

    def __len__(self) -> int:
        return len(self._passages)

    @property
    def held_chars(self) -> int:
        """Characters held, including those not yet cut."""
        return self._chars + sum(len(passage.text) for passage in self._passages)

    def feed(self, block: TextBlock) -> None:
        if block.source != self._source:
            self._settle(final=True)
            self._source, self._line, self._cut = block.source, 1, None
            self._marks, self._places = [], []
        if not self._places or self._places[-1] != (block.place, block.left_out):
            self._marks.append(block.start)
            self._places.append((block.place, block.left_out))
        self._blocks.append(block)
        self._chars += len(block.text)
        if self._chars >= max(self._least, SAMPLE if self._cut is None else 0):
            self._settle(final=False)

    def take(self, *, final: bool = False) -> list[Passage]:
        """Return and remove the passages whose ends are certain; `final`: all of them."""
        self._settle(final=final)
        passages, self._passages = self._passages, []
        return passages

    def prune(self, byte_starts: np.ndarray, read_to: int) -> None:
        """Remove the passages before ``read_to`` that contain none of ``byte_starts``.

        ``byte_starts`` int64 [any]: first bytes of the retained tokens, in any order. ``read_to``
        is the end of the last chunk. Text after it was added, but its tokens were not read yet.
        """
        self._settle(final=False)
        if not self._passages:
            return
        holding = set(_places(byte_starts, self._passages)[1].tolist())
        every = enumerate(self._passages)
        self._passages = [p for i, p in every if p.end > read_to or i in holding]

    def score(self, byte_starts: np.ndarray, weights: np.ndarray) -> list[Passage]:
        """Return the passages that contain tokens, in document order, with their sums of weights.

        ``byte_starts`` int64 [n] and ``weights`` float [n] belong to the same tokens, in any order.
        A token in the white space between passages counts for the next passage.
        """
        passages = self.all()
        if not passages:
            return []
        inside, places = _places(byte_starts, passages)
        sums = np.bincount(places, np.asarray(weights, dtype=float)[inside], len(passages))
        return [replace(passages[i], weight=float(sums[i])) for i in np.unique(places).tolist()]

    def all(self) -> list[Passage]:
        """Return all passages as if the text ended here."""
        self._settle(final=False)
        if not self._blocks:
            return list(self._passages)
        text, offsets = joined(self._blocks)
        pieces = self._pieces(text, offsets, self._cut or self._suited(text), final=True)
        return [*self._passages, *(passage for passage, _ in pieces)]

    def restore(self, passages: Iterable[Passage]) -> None:
        """Continue after passages from `all`. The next blocks must belong to other sources."""
        self._passages = list(passages)
        self._source = self._passages[-1].source if self._passages else 0

    def _settle(self, *, final: bool) -> None:
        """Cut the waiting text into passages whose ends are certain."""
        if not self._blocks or (self._cut is None and self._chars < SAMPLE and not final):
            return
        text, offsets = joined(self._blocks)
        self._cut = self._cut or self._suited(text)
        # No passage continues after this much white space, so it need not be held until it ends.
        final = final or len(text) - len(text.rstrip()) > MOST_CHARS
        used = 0
        for passage, end in self._pieces(text, offsets, self._cut, final=final):
            self._passages.append(passage)
            self._line += text.count("\n", used, end)
            self._behind, used = passage.end, end
        rest = text[used:]
        if final or rest.isspace():
            self._line += rest.count("\n")
            used = len(text)
        # Keep the text from the end of the last passage: its newlines are not counted yet.
        widths = np.diff(offsets)[used:]
        rest = text[used:]
        self._blocks = [TextBlock(rest, int(offsets[used]), self._source, widths)] if rest else []
        self._chars = len(rest)
        first = max(bisect_right(self._marks, self._behind) - 1, 0)
        self._marks, self._places = self._marks[first:], self._places[first:]
        self._least = self._chars + BATCH

    def _suited(self, text: str) -> Cutter:
        if self._mode == "auto":
            return lines if looks_like_lines(text[:SAMPLE]) else sentences
        return lines if self._mode == "lines" else sentences

    def _pieces(
        self, text: str, offsets: np.ndarray, cut: Cutter, *, final: bool
    ) -> Iterator[tuple[Passage, int]]:
        """Yield passages in ``text``, and the characters used."""
        line, at, behind = self._line, 0, self._behind
        for start, end in cut(text, final=final):
            first = line + text.count("\n", at, start)
            line, at = first + text.count("\n", start, end), end
            begin, stop = int(offsets[start]), int(offsets[end])
            place, left_out = self._at(begin)
            last, left_out_end = self._at(max(begin, stop - 1))
            page_end = last if isinstance(last, int) and last != place else None
            passage = Passage(
                self._source, begin, stop, first + left_out, line + left_out_end, text[start:end],
                place=place, page_end=page_end, reach=behind,
            )  # fmt: skip
            yield passage, end
            behind = stop

    def _at(self, byte: int) -> tuple[int | str | None, int]:
        """Return the place of a byte, and the number of lines that were left out before it."""
        return self._places[max(bisect_right(self._marks, byte) - 1, 0)]


def _places(byte_starts: np.ndarray, passages: Sequence[Passage]) -> tuple[np.ndarray, np.ndarray]:
    """Return which of ``byte_starts`` are in a passage (bool), and the passage of each of those."""
    byte_starts = np.asarray(byte_starts, dtype=np.int64)
    reach, ends = np.array([(p.reach, p.end) for p in passages], dtype=np.int64).T
    places = np.searchsorted(ends, byte_starts, side="right")
    inside = places < len(ends)
    inside[inside] = byte_starts[inside] >= reach[places[inside]]
    return inside, places[inside]


class TokenOrigins:
    """The first bytes of the tokens that are still retained. The others are removed."""

    def __init__(self) -> None:
        self._ordinals = np.empty(0, dtype=np.int64)
        self._starts = np.empty(0, dtype=np.int64)
        self._new: list[np.ndarray] = []
        self.appended = 0
        """Number of tokens so far: the ordinal of the next one."""
        self.waiting = 0
        """Number of the newest tokens that the model has not read yet, so `prune` keeps them."""
        self._joined = 0

    def __len__(self) -> int:
        return len(self._ordinals) + self.appended - self._joined

    def append(self, chunk: TokenBatch) -> None:
        """Add the next tokens of the stream. The very first token has ordinal 0."""
        self._new.append(chunk.starts)
        self.appended += len(chunk)

    def prune(self, ordinals: np.ndarray) -> None:
        """Keep ``ordinals`` (int [n], sorted, unique) and those `waiting`. Raises ValueError."""
        waiting = np.arange(self.appended - self.waiting, self.appended, dtype=np.int64)
        ordinals = np.union1d(ordinals, waiting)
        self._starts = self.starts(ordinals)
        self._ordinals = ordinals

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (ordinals, byte starts) int64 [n] of all tokens that are known, in order."""
        self.starts(np.empty(0, dtype=np.int64))
        return self._ordinals, self._starts

    def restore(self, ordinals: np.ndarray, starts: np.ndarray, appended: int) -> None:
        """Continue after ``appended`` tokens, of which these are known."""
        self._ordinals, self._starts, self._new = ordinals, starts, []
        self.appended = self._joined = appended

    def starts(self, ordinals: np.ndarray) -> np.ndarray:
        """Return int64 global byte starts of ``ordinals`` (any shape). Raises ValueError."""
        if self._new:
            fresh = np.arange(self._joined, self.appended, dtype=np.int64)
            self._ordinals = np.concatenate([self._ordinals, fresh])
            self._starts = np.concatenate([self._starts, *self._new])
            self._new, self._joined = [], self.appended
        ordinals = np.asarray(ordinals, dtype=np.int64)
        places = np.searchsorted(self._ordinals, ordinals)
        known = places < len(self._ordinals)
        known[known] = self._ordinals[places[known]] == ordinals[known]
        if not known.all():
            raise ValueError(f"Token {ordinals[~known].flat[0]} of the stream is not known here.")
        return self._starts[places]


_VARIABLE = re.compile(r"0x[0-9a-f]+|\b(?=[0-9a-f-]*\d)[0-9a-f]{6,}(?:-[0-9a-f]{4,})*\b|\d+", re.I)
_ALIKE = 0.7
"""A passage that shares more of its words with a better one comes after those that do not."""


def extract(passages: Sequence[Passage], n: int, *, parts: int = 1) -> tuple[list[Passage], int]:
    """Return the ``n`` passages with the most weight in memory, in document order.

    Also return how many others repeat one of these. With ``parts`` the document is divided into
    parts of equal length, which take turns: memory holds more of the end. A passage that differs
    from a better one only in numbers, identifiers or few words comes after all others. Weights are
    divided by the square root of the length.
    """
    ranked = sorted(passages, key=lambda p: (-p.weight / max(len(p.text), 20) ** 0.5, p.start))
    if parts > 1 and passages:
        first, last = min(p.start for p in passages), max(p.start for p in passages)
        before: Counter[int] = Counter()
        turns = []
        for passage in ranked:
            part = (passage.start - first) * parts // (last - first + 1)
            turns.append(before[part])
            before[part] += 1
        ranked = [p for _, p in sorted(zip(turns, ranked, strict=True), key=lambda pair: pair[0])]
    best: dict[str, Passage] = {}
    alike: dict[str, Passage] = {}
    word_sets: list[frozenset[str]] = []
    texts = Counter(" ".join(p.text.split()) for p in ranked if any(map(str.isalnum, p.text)))
    for passage in ranked:
        text = " ".join(passage.text.split())
        if len(best) == n or text not in texts or text in best:
            continue
        own = frozenset(words(_VARIABLE.sub(" 0 ", text)))
        if any(len(own & other) > _ALIKE * len(own | other) for other in word_sets):
            alike.setdefault(text, passage)
            continue
        best[text] = passage
        word_sets.append(own)
    best |= dict(islice(alike.items(), min(n - len(best), len(alike))))
    repeats = sum(texts[text] - 1 for text in best)
    return sorted(best.values(), key=lambda passage: passage.start), repeats
