"""The text that memory still touches: sentences or lines, and which retained tokens are in them.

Nothing here grows with the document: ``prune`` forgets what no retained token points into, and
between two calls there is only what was read since.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from kvstream.input.blocks import TextBlock
from kvstream.tokenization.sentences import MOST_CHARS, lines, looks_like_lines, sentences
from kvstream.tokenization.stream import TokenBatch

Mode = Literal["auto", "sentences", "lines"]
Cutter = Callable[..., Iterator[tuple[int, int]]]

SAMPLE = 8192
"""Characters of a source by which ``auto`` decides."""
BATCH = 4096
"""Characters that wait before they are cut; a slow pipe brings a few at a time."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A sentence or a line of a source."""

    source: int
    """Index of the source in its set."""
    start: int
    """Global byte offset of the first character."""
    end: int
    """Global byte offset behind the last one."""
    line_start: int
    """Line of the first character in its source, from 1."""
    line_end: int
    text: str
    weight: float = 0.0
    """Sum over the retained tokens that lie in it."""
    place: int | str | None = None
    """In a document: the page of the first character, or the heading above it (empty: none)."""
    page_end: int | None = None
    """The page of the last character, where it is another one."""

    @property
    def spot(self) -> str:
        """The line, page or chapter in short; a document without headings has none of them."""
        if self.place is None:
            return str(self.line_start)
        if isinstance(self.place, str):
            return self.place or "text"
        return pages(self.place, self.page_end)

    def moved(self, sources: int, size: int) -> Passage:
        """The same behind so many sources and bytes of another text."""
        return replace(
            self, source=self.source + sources, start=self.start + size, end=self.end + size
        )

    def where(self) -> dict[str, Any]:
        """Lines in a plain text, page or chapter in a document; what does not apply is None."""
        plain = self.place is None
        return {
            "line_start": self.line_start if plain else None,
            "line_end": self.line_end if plain else None,
            "page": self.place if isinstance(self.place, int) else None,
            "page_end": self.page_end or self.place if isinstance(self.place, int) else None,
            "chapter": self.place or None if isinstance(self.place, str) else None,
        }


def pages(first: int, last: int | None) -> str:
    """``p. 212``, or ``pp. 212-213``."""
    return f"p. {first}" if last in (None, first) else f"pp. {first}-{last}"


class Passages:
    """Fed with the blocks of the sources, in order; cuts them into passages as they come."""

    def __init__(self, mode: Mode = "auto") -> None:
        self._mode = mode
        self._found: list[Passage] = []
        # Byte behind the passage before: white space counts for what follows it.
        self._reach: list[int] = []
        self._blocks: list[TextBlock] = []
        self._chars = 0
        self._wanted = BATCH
        self._source = 0
        self._line = 1
        self._behind = 0
        self._cut: Cutter | None = None
        # Where places of a document, and lines behind others that were left out, begin.
        self._marks: list[int] = []
        self._places: list[tuple[int | str | None, int]] = []

    def __len__(self) -> int:
        """Passages held."""
        return len(self._found)

    @property
    def held_chars(self) -> int:
        """Characters held, those not yet cut included."""
        return self._chars + sum(len(passage.text) for passage in self._found)

    def feed(self, block: TextBlock) -> None:
        """Take in the next block of text."""
        if block.source != self._source:
            self._settle(final=True)
            self._source, self._line, self._cut = block.source, 1, None
            self._marks, self._places = [], []
        if not self._places or self._places[-1] != (block.place, block.left_out):
            self._marks.append(block.start)
            self._places.append((block.place, block.left_out))
        self._blocks.append(block)
        self._chars += len(block.text)
        if self._chars >= max(self._wanted, SAMPLE if self._cut is None else 0):
            self._settle(final=False)

    def take(self, *, final: bool = False) -> list[Passage]:
        """The passages that are certain by now, handed out once; with ``final`` all that is left.

        For reading through a text without a memory; what is taken is no longer held.
        """
        self._settle(final=final)
        found, self._found, self._reach = self._found, [], []
        return found

    def prune(self, byte_starts: np.ndarray, read_to: int) -> None:
        """Forget the passages before ``read_to`` in which none of ``byte_starts`` lies.

        ``byte_starts`` int64 [any], in any order: where the retained tokens begin. ``read_to`` is
        the end of the last chunk: text behind it has been read, but its tokens not yet.
        """
        self._settle(final=False)
        if not self._found:
            return
        ends = np.array([passage.end for passage in self._found], dtype=np.int64)
        keep = ends > read_to
        keep[_places(byte_starts, np.array(self._reach), ends)[1]] = True
        kept = np.flatnonzero(keep).tolist()
        self._found = [self._found[index] for index in kept]
        self._reach = [self._reach[index] for index in kept]

    def score(self, byte_starts: np.ndarray, weights: np.ndarray) -> list[Passage]:
        """The passages that hold tokens, in document order, each with the sum of their weights.

        ``byte_starts`` int64 [n] and ``weights`` float [n] belong together, in any order; a token
        in the white space between passages counts for the next one.
        """
        found, reach = self.held()
        if not found:
            return []
        ends = np.array([passage.end for passage in found], dtype=np.int64)
        inside, places = _places(byte_starts, np.array(reach), ends)
        sums = np.bincount(places, np.asarray(weights, dtype=float)[inside], len(found))
        return [replace(found[i], weight=float(sums[i])) for i in np.unique(places).tolist()]

    def held(self) -> tuple[list[Passage], list[int]]:
        """All passages as if the text ended here, and the byte behind which each one begins."""
        self._settle(final=False)
        found, reach = list(self._found), list(self._reach)
        if self._blocks:
            text, offsets = self._waiting()
            cut = self._cut or self._suited(text)
            for passage, behind, _ in self._pieces(text, offsets, cut, final=True):
                found.append(passage)
                reach.append(behind)
        return found, reach

    def restore(self, found: Sequence[Passage], reach: Sequence[int]) -> None:
        """Go on behind passages that were ``held``: what is fed next belongs to other sources."""
        self._found, self._reach = list(found), list(reach)
        self._source = found[-1].source if found else 0

    def _settle(self, *, final: bool) -> None:
        """Cut what waits into passages, as far as their ends are certain."""
        if not self._blocks or (self._cut is None and self._chars < SAMPLE and not final):
            return
        text, offsets = self._waiting()
        self._cut = self._cut or self._suited(text)
        # Behind so much white space nothing goes on, and it need not be held until it ends.
        final = final or len(text) - len(text.rstrip()) > MOST_CHARS
        used = 0
        for passage, behind, end in self._pieces(text, offsets, self._cut, final=final):
            self._found.append(passage)
            self._reach.append(behind)
            self._line += text.count("\n", used, end)
            self._behind, used = passage.end, end
        rest = text[used:]
        if final or rest.isspace():
            self._line += rest.count("\n")
            used = len(text)
        # From the end of the last passage: the newlines behind it are still to be counted.
        widths = np.diff(offsets)[used:]
        rest = text[used:]
        self._blocks = [TextBlock(rest, int(offsets[used]), self._source, widths)] if rest else []
        self._chars = len(rest)
        passed = max(bisect_right(self._marks, self._behind) - 1, 0)
        self._marks, self._places = self._marks[passed:], self._places[passed:]
        self._wanted = self._chars + BATCH

    def _waiting(self) -> tuple[str, np.ndarray]:
        """The text that waits, and the byte offset of each of its characters and its end."""
        parts = [block.offsets() for block in self._blocks]
        offsets = np.concatenate([*(part[:-1] for part in parts), parts[-1][-1:]])
        return "".join(block.text for block in self._blocks), offsets

    def _suited(self, text: str) -> Cutter:
        if self._mode == "auto":
            return lines if looks_like_lines(text[:SAMPLE]) else sentences
        return lines if self._mode == "lines" else sentences

    def _pieces(
        self, text: str, offsets: np.ndarray, cut: Cutter, *, final: bool
    ) -> Iterator[tuple[Passage, int, int]]:
        """Passages in ``text``, the byte behind the one before, and the characters used."""
        line, counted, behind = self._line, 0, self._behind
        for start, end in cut(text, final=final):
            first = line + text.count("\n", counted, start)
            line, counted = first + text.count("\n", start, end), end
            begin, stop = int(offsets[start]), int(offsets[end])
            place, left_out = self._at(begin)
            last, left_out_end = self._at(max(begin, stop - 1))
            page_end = last if isinstance(last, int) and last != place else None
            found = Passage(
                self._source, begin, stop, first + left_out, line + left_out_end, text[start:end],
                place=place, page_end=page_end,
            )  # fmt: skip
            yield found, behind, end
            behind = stop

    def _at(self, byte: int) -> tuple[int | str | None, int]:
        """The place that a byte lies in, and the lines that were left out before it."""
        return self._places[max(bisect_right(self._marks, byte) - 1, 0)]


def _places(
    byte_starts: np.ndarray, reach: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which of ``byte_starts`` lie in a passage (bool), and in which one each of those lies."""
    byte_starts = np.asarray(byte_starts, dtype=np.int64)
    places = np.searchsorted(ends, byte_starts, side="right")
    inside = places < len(ends)
    inside[inside] = byte_starts[inside] >= reach[places[inside]]
    return inside, places[inside]


class TokenOrigins:
    """Where in the sources the tokens begin that are still retained; the others are forgotten."""

    def __init__(self) -> None:
        self._ordinals = np.empty(0, dtype=np.int64)
        self._starts = np.empty(0, dtype=np.int64)
        self._new: list[np.ndarray] = []
        self.appended = 0
        """Tokens so far: the ordinal of the next one."""
        self._joined = 0

    def __len__(self) -> int:
        """Tokens known."""
        return len(self._ordinals) + self.appended - self._joined

    def append(self, chunk: TokenBatch) -> None:
        """The next tokens of the stream; the first one of all has ordinal 0."""
        self._new.append(chunk.starts)
        self.appended += len(chunk)

    def prune(self, ordinals: np.ndarray) -> None:
        """Forget all but ``ordinals`` (int [n], sorted, unique). Raises ValueError on others."""
        starts = self.starts(ordinals)
        self._ordinals = np.array(ordinals, dtype=np.int64)
        self._starts = starts

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        """(ordinals, byte starts) int64 [n] of all tokens that were not forgotten, in order."""
        self.starts(np.empty(0, dtype=np.int64))
        return self._ordinals, self._starts

    def restore(self, ordinals: np.ndarray, starts: np.ndarray, appended: int) -> None:
        """Go on after ``appended`` tokens, of which these are known."""
        self._ordinals, self._starts, self._new = ordinals, starts, []
        self.appended = self._joined = appended

    def starts(self, ordinals: np.ndarray) -> np.ndarray:
        """Global byte starts int64 of ``ordinals`` (any shape and order). Raises ValueError."""
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
"""Share of words that two passages may have in common before one of them is enough."""


def extract(
    passages: Sequence[Passage], n: int, *, max_chars: int | None = None, parts: int = 1
) -> list[Passage]:
    """The ``n`` passages that memory held on to most, in document order.

    With ``parts`` the document's parts of equal length take turns: memory holds more of what it has
    read last, and all of a summary would be from there.

    Passages that say the same, numbers and identifiers aside (log lines!), count once.  A long
    passage gathers weight by its length alone, so weights are divided by the root of it.
    ``max_chars`` bounds their text together; the first is always there.
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
    chosen: list[Passage] = []
    words: list[frozenset[str]] = []
    masks: set[str] = set()
    chars = 0
    for passage in ranked:
        if len(chosen) == n:
            break
        mask = _VARIABLE.sub("#", passage.text.casefold())
        if mask in masks or not any(char.isalnum() for char in passage.text):
            continue
        masks.add(mask)
        own = frozenset(re.findall(r"\w+|#", mask))
        if any(len(own & other) > _ALIKE * len(own | other) for other in words):
            continue
        if chosen and max_chars is not None and chars + len(passage.text) > max_chars:
            continue
        chosen.append(passage)
        words.append(own)
        chars += len(passage.text)
    return sorted(chosen, key=lambda passage: passage.start)
