"""Read the sources again for the text around kept tokens, if they are files that did not change."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kvstream.errors import KvstreamError
from kvstream.input.blocks import TextBlock, utf8_starts
from kvstream.input.source import SourceOver, SourceRecord
from kvstream.input.sources import SourceSet, open_sources
from kvstream.memory.snapshot.positions import Snapshot
from kvstream.tokenization.loading import TokenStream

MOST_STARTS = 1 << 22
"""Maximum number of token starts to hold. Of a longer text, every second, third, ... is held."""


@dataclass
class Piece:
    """Consecutive text of one source."""

    source: int
    text: str
    offsets: np.ndarray
    """int64 [len(text) + 1]: global byte offset of each character and of the end."""
    line: int | None
    """Line of the first character, from 1; None in a document."""
    place: int | str | None
    """Page or heading, in a document."""

    @property
    def start(self) -> int:
        """Global byte offset of the first character."""
        return int(self.offsets[0])

    @property
    def end(self) -> int:
        """Global byte offset after the last character."""
        return int(self.offsets[-1])


@dataclass
class PageText:
    pieces: list[Piece] = field(default_factory=list)
    """The requested text, in order."""
    ends: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """int64 [U]: global byte offset after the token at each of the given `starts`."""
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """int64: global byte offset of every `stride`-th token."""
    stride: int = 1


def reread(of: Snapshot, starts: np.ndarray, spans: Sequence[tuple[int, int]]) -> PageText | str:
    """Read the sources again. If that is impossible, return a sentence with the reason.

    `starts` int64 [U], sorted: where kept tokens begin. `spans`: sorted, disjoint ranges of bytes
    whose text is returned; no other text is held. Digests show whether the sources have changed.
    """
    if not of.records:
        return "The sources are not known."
    for record in of.records:
        if not os.path.isfile(record.name):
            name = "Standard input" if record.name == "-" else record.name
            return f"{name} cannot be read a second time."
    why = ""
    for plain in (False, True):  # it is unknown whether --text was given
        try:
            sources = open_sources([record.name for record in of.records], plain=plain)
            text = _Rereader(of, starts, spans, sources).read()
        except (KvstreamError, OSError) as error:
            why = why or str(error)
            continue
        changed = first_changed(of.records, sources.records)
        if changed is None and list(sources.bases) == list(of.bases):
            return text
        why = why or f"{changed or 'A source'} changed after it was read."
    return why


def first_changed(before: Sequence[SourceRecord], now: Sequence[SourceRecord]) -> str | None:
    """Return the first source that changed. Text appended after what was read does not count."""
    if len(now) < len(before):
        return before[len(now)].name
    for old, new in zip(before, now, strict=False):
        if old.sha256 == new.sha256:
            continue
        if new.bytes <= old.bytes or _prefix(Path(old.name), old.bytes) != old.sha256:
            return old.name
    return None


def _prefix(path: Path, size: int) -> str:
    """Return the SHA-256 of the first `size` bytes of a file; of none if it was removed."""
    digest = hashlib.sha256()
    with suppress(OSError), path.open("rb") as file:
        while size and (data := file.read(min(size, 1 << 20))):
            digest.update(data)
            size -= len(data)
    return digest.hexdigest()


class _Before(SourceOver):
    """Sources as far as a first reading, even an interrupted one: digests are of the same bytes."""

    def __init__(self, of: Snapshot, source: SourceSet) -> None:
        super().__init__(source)
        self._begun, self._size = len(of.records), sum(record.bytes for record in of.records)

    def __iter__(self) -> Iterator[TextBlock]:
        for block in self.source:
            yield block
            if self.bytes_read >= self._size and len(self.bases) >= self._begun:
                return


class _Rereader:
    def __init__(
        self, of: Snapshot, starts: np.ndarray, spans: Sequence[tuple[int, int]], sources: SourceSet
    ) -> None:
        self.of, self.starts, self.spans, self.sources = of, starts, spans, sources
        self.text = PageText(ends=starts + 1)
        self.range = 0
        self.source = -1
        self.line = 1

    def read(self) -> PageText:
        stream = TokenStream(self.of.tokenizer, _Before(self.of, self.sources), self._take)
        parts, seen, text = [], 0, self.text
        text.stride = -(-self.of.read // MOST_STARTS) or 1
        while len(batch := stream.block()):
            parts.append(batch.starts[-seen % text.stride :: text.stride])
            self._ends(batch.starts, batch.end)
            seen += len(batch)
        text.tokens = np.concatenate(parts) if parts else text.tokens
        text.pieces = _joined(text.pieces)
        return text

    def _ends(self, starts: np.ndarray, end: int) -> None:
        """Note the ends of the kept tokens among those that begin at `starts`."""
        first, last = np.searchsorted(self.starts, [starts[0], max(end, starts[-1] + 1)])
        if first == last:
            return
        own = self.starts[first:last]
        behind = np.append(starts[1:], end)
        places = np.searchsorted(starts, own, side="right") - 1
        self.text.ends[first:last] = np.maximum(behind[places], own + 1)

    def _take(self, block: TextBlock) -> None:
        """Keep the requested parts of a block of text."""
        if block.source != self.source:
            self.source, self.line = block.source, 1
        offsets: np.ndarray | None = None
        at = 0
        while self.range < len(self.spans) and block.text:
            if offsets is None:
                offsets = block.offsets()
            begin, end = self.spans[self.range]
            first, last = (int(i) for i in np.searchsorted(offsets, [begin, end]))
            last = min(last, len(block.text))
            if first < last:
                self.line += block.text.count("\n", at, first)
                at = first
                text, line = block.text[first:last], self.line if block.place is None else None
                piece = Piece(block.source, text, offsets[first : last + 1], line, block.place)
                self.text.pieces.append(piece)
            if end > int(offsets[-1]):
                break
            self.range += 1
        self.line += block.text.count("\n", at)


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Join pieces that are adjacent and in the same place of a source."""
    runs: list[list[Piece]] = []
    for piece in pieces:
        place, last = (piece.source, piece.place, piece.start), runs[-1][-1] if runs else None
        if last is not None and (last.source, last.place, last.end) == place:
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return [
        replace(
            run[0],
            text="".join(piece.text for piece in run),
            offsets=np.concatenate([*(p.offsets[:-1] for p in run), run[-1].offsets[-1:]]),
        )
        for run in runs
    ]


def held_pieces(of: Snapshot) -> list[Piece]:
    """Return the passages that memory holds as pieces, for use without the sources."""
    pieces = []
    for passage in sorted(of.passages, key=lambda p: p.start):
        size, own = passage.end - passage.start, utf8_starts(passage.text)
        if int(own[-1]) != size:  # replaced bytes, or another encoding
            own = own * size // max(int(own[-1]), 1)
        line = passage.line_start if passage.place is None else None
        pieces.append(Piece(passage.source, passage.text, passage.start + own, line, passage.place))
    return pieces


def held_ends(of: Snapshot, starts: np.ndarray, pieces: Sequence[Piece]) -> np.ndarray:
    """Return where kept tokens end, by encoding each passage alone: int64 [U]."""
    ends = starts + 1
    for piece in pieces:
        first, last = np.searchsorted(starts, [piece.start, piece.end])
        if first == last:
            continue
        own = of.tokenizer.spans(piece.text, continuing=True).starts
        chars = np.searchsorted(utf8_starts(piece.text), own, side="right") - 1
        borders = np.unique(
            np.concatenate([piece.offsets[chars], starts[first:last], piece.offsets[-1:]])
        )
        behind = np.searchsorted(borders, starts[first:last], side="right")
        ends[first:last] = borders[np.minimum(behind, len(borders) - 1)]
    return ends
