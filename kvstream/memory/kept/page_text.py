"""The text of a page: it shows what is near kept tokens and folds the rest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvstream.memory.kept.cutting import MARGIN, Cutter
from kvstream.memory.kept.positions import Kept, counts_of
from kvstream.memory.kept.reread_text import Piece, Reread, held_ends, held_pieces, reread
from kvstream.reporters.html.page import Document, Shading, Text
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

Cited = tuple[str, int, int]
"""A citation: name of the source, first byte, byte after the last."""


@dataclass(frozen=True)
class KeptTokens:
    """The kept tokens of several readings, at most as many as a page can show."""

    starts: np.ndarray
    """int64 [U], sorted and distinct: global byte offset of each token."""
    known: tuple[np.ndarray, np.ndarray]
    """(offsets, ordinals) of the tokens whose ordinal is known."""
    counts: np.ndarray
    """int64 [U]: number of heads, of all readings, that hold each token."""

    @classmethod
    def of(cls, readings: Mapping[str, Kept]) -> KeptTokens:
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
        chosen = np.sort(order[: max(1, fitting)])
        return NEAR[-1], KeptTokens(self.starts[chosen], self.known, self.counts[chosen])

    def ordinals(self, found: Reread) -> np.ndarray:
        """Return the ordinal of each token: int64 [U]."""
        places, ordinals = self.known
        if np.isin(self.starts, places).all() or not len(found.tokens):
            return np.interp(self.starts, places, ordinals).astype(np.int64)
        return (np.searchsorted(found.tokens, self.starts, side="right") - 1) * found.stride

    def shading(self, name: str, of: Kept) -> Shading:
        """Return which of all tokens one reading kept."""
        own = np.minimum(np.searchsorted(self.starts, of.starts), len(self.starts) - 1)
        there = self.starts[own] == of.starts
        # Two tokens can begin at the same byte if they share a character.
        heads = [[np.unique(own[h[there[h]]]) for h in layer] for layer in of.heads]
        counts = counts_of(heads, len(self.starts))
        return Shading(name, of.layers, heads, counts, len(of.ordinals))


def document_of(
    readings: Mapping[str, Kept],
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
        wanted = [(0, size + 1)]
    else:
        ends = [(a, b) for a, b in places if a < b]
        wanted = _ranges(tokens.starts, ends, near + MARGIN)
    found = reread(first, tokens.starts, wanted)
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
    cutter = Cutter(first, tokens.starts, found, places, min(near, WIDE), whole)
    sections = cutter.sections()
    sample = next((t.text for s in sections for t in s.items if isinstance(t, Text)), "")
    shadings = [tokens.shading(name, each) for name, each in readings.items()]
    return Document(
        sections, cutter.marks, tokens.ordinals(found), first.read, shadings, cutter.cited, notes,
        looks_like_lines(sample),
    )  # fmt: skip


def _place(of: Kept, cited: Cited) -> tuple[int, int]:
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
