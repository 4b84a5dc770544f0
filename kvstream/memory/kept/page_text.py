"""The text of a page: it shows what is near kept tokens and folds the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kvstream.memory.kept.cutting import MARGIN, Cutter
from kvstream.memory.kept.positions import Kept
from kvstream.memory.kept.reread_text import Piece, Reread, held_ends, held_pieces, reread
from kvstream.memory.kept.tokens import KeptTokens
from kvstream.reporters.html.page import Document, Text
from kvstream.tokenization.sentences import looks_like_lines

WHOLE = 1_200_000
"""Maximum bytes of a text that a page holds whole. Of a longer text, it holds only what is near
kept tokens."""
MOST_TOKENS = 300_000
"""Maximum number of kept tokens on a page: those that most heads hold."""
WIDE = 160
"""Maximum number of characters around a kept token that are not folded."""

Cited = tuple[str, int, int]
"""A citation: name of the source, first byte, byte after the last."""


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
    cutter = Cutter(first, tokens.starts, found, places, min(near, WIDE), whole)
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
