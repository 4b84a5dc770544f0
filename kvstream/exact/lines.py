"""The lines of a stream of text blocks, with their places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvstream.input.blocks import TextBlock

LONGEST = 1 << 20
"""Characters of a line that are held until it ends."""


@dataclass(frozen=True)
class Line:
    """A line, with its newline if it has one."""

    text: str
    block: TextBlock
    """The block in which it begins."""
    char: int
    """Index of its first character in the block."""
    number: int
    """Number in the source, from 1."""

    @property
    def byte(self) -> int:
        """Global byte offset of the line."""
        if self.block.widths is None:
            return self.block.start + len(self.block.text[: self.char].encode("utf-8", "replace"))
        return int(self.block.offsets()[self.char])


def lines_of(blocks: Iterable[TextBlock]) -> Iterator[Line]:
    """Yield the lines of a text; a very long one in pieces of the same number."""
    rest, at, first, number, source = "", 0, None, 0, -1
    for block in blocks:
        if block.source != source:
            if rest and first is not None:
                yield Line(rest, first, at, number + first.left_out)
            rest, number, source = "", 1, block.source
        begin = 0
        for piece in _cut(block.text):
            if not rest:
                first, at = block, begin
            rest += piece
            begin += len(piece)
            if rest.endswith("\n") or len(rest) > LONGEST:
                assert first is not None
                yield Line(rest, first, at, number + first.left_out)
                number += rest.endswith("\n")
                rest = ""
    if rest and first is not None:
        yield Line(rest, first, at, number + first.left_out)


def _cut(text: str) -> list[str]:
    *lines, rest = text.split("\n")
    return [f"{line}\n" for line in lines] + [rest] * bool(rest)
