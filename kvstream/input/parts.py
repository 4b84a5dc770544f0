"""Divide one long text into parts, each of which is a source of its own.

A part has the byte offsets, line numbers and names of the whole text. So a place in the part is
also a place in the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvstream.input.blocks import TextBlock
from kvstream.input.source import Source, SourceOver

WINDOW = 1024
"""Bytes per stored cut place. No part is shorter."""


@dataclass(frozen=True)
class Stretch:
    """The limits of a part of a text; it is sent between processes."""

    number: int
    """Number of the part, from 1."""
    count: int
    begin: int
    """Global byte offset of the first character."""
    end: int | None
    """Global byte offset after the last character; None for the last part."""
    source: int
    """Index of the source in which the part begins."""
    lines: int
    """Newlines of this source before the part; 0 in documents, which have places."""

    def __str__(self) -> str:
        return f"part {self.number} of {self.count}"


def stretches(source: Source, count: int) -> list[Stretch]:
    """Divide a source into at most `count` parts of about equal size.

    Cuts are after a newline if there is one nearby. Reads all of `source`, in constant memory
    except for one place every `WINDOW` bytes. If the text has fewer places, there are fewer parts.
    """
    places: list[tuple[int, int, int]] = [(0, 0, 0)]
    size = lines = at = 0
    for block in source:
        if block.source != at:
            at, lines = block.source, 0
        offsets = block.offsets()
        places += _places(block, offsets, places[-1][0] + WINDOW, lines)
        size = int(offsets[-1])
        if block.place is None:
            lines += block.text.count("\n")
    begins = np.array([begin for begin, _, _ in places])
    targets = [round(size * part / count) for part in range(1, count)]
    nearest = {int(np.abs(begins - byte).argmin()) for byte in targets}
    cuts = [places[i] for i in sorted({0, *nearest})]
    ends = [*(begin for begin, _, _ in cuts[1:]), None]
    return [
        Stretch(number, len(cuts), begin, end, index, above)
        for number, ((begin, index, above), end) in enumerate(zip(cuts, ends, strict=True), 1)
    ]


def _places(
    block: TextBlock, offsets: np.ndarray, first: int, lines: int
) -> Iterator[tuple[int, int, int]]:
    """Yield a cut place for every window of a block: (byte, source, newlines before it)."""
    text, last = block.text, 0
    while True:
        char = int(np.searchsorted(offsets, first))
        if char >= len(text):
            return
        stop = int(np.searchsorted(offsets, first + WINDOW))
        for mark in ("\n", " "):
            if 0 <= (at := text.find(mark, char, stop)) < len(text) - 1:
                char = at + 1
                break
        if block.place is None:
            lines += text.count("\n", last, char)
            last = char
        begin = int(offsets[char])
        yield begin, block.source, lines
        first = begin + WINDOW


class PartOfText(SourceOver):
    """The part of a text between the limits of a stretch; the text before it is read, too."""

    def __init__(self, whole: Source, stretch: Stretch) -> None:
        super().__init__(whole)
        self.stretch = stretch

    def __iter__(self) -> Iterator[TextBlock]:
        begin, end = self.stretch.begin, self.stretch.end
        for block in self.source:
            offsets = block.offsets()
            if end is not None and offsets[0] >= end:
                return
            if not block.text or offsets[-1] <= begin:
                continue
            first = int(np.searchsorted(offsets[:-1], begin))
            last = len(block.text)
            if end is not None:
                last = int(np.searchsorted(offsets[:-1], end))
            inside = block.source == self.stretch.source and block.place is None
            yield block.part(first, last, block.left_out + inside * self.stretch.lines)

    def size_hint(self) -> int | None:
        """Return the global byte offset of the end of the part."""
        return self.source.size_hint() if self.stretch.end is None else self.stretch.end

    @property
    def bytes_read(self) -> int:
        """Global byte offset up to which the part was read."""
        read = self.source.bytes_read
        return read if self.stretch.end is None else min(read, self.stretch.end)
