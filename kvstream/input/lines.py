"""The lines of a stream of text blocks, with their places."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvstream.input.blocks import TextBlock

LONGEST = 1 << 20
"""Characters of a line that are held until it ends."""
_PARTS = re.compile(r"(?:[ \t\r]*+\n){2,}+|[^\n]*\n|[^\n]+")
"""Several lines without words, one with words, or the beginning of one."""


class Line(NamedTuple):
    """A line, with its newline if it has one."""

    text: str
    pieces: tuple[tuple[TextBlock, int, int], ...]
    """The blocks that it is in, with the characters where its part begins and ends."""
    byte: int
    """Global byte offset."""
    number: int
    """Number in the source, from 1."""

    @property
    def block(self) -> TextBlock:
        """The block in which it begins."""
        return self.pieces[0][0]


def lines_of(blocks: Iterable[TextBlock], *, joined: bool = False) -> Iterator[Line]:
    """Yield lines, long ones in pieces; ``joined``: several lines without words as one."""
    texts: list[str] = []
    pieces: list[tuple[TextBlock, int, int]] = []
    byte, number, source, size = 0, 1, -1, 0

    def line() -> Line:
        return Line("".join(texts), tuple(pieces), byte, number + pieces[0][0].left_out)

    for block in blocks:
        if block.source != source:
            if pieces:
                yield line()
            texts, pieces, number, source, size = [], [], 1, block.source, 0
        offsets = None if block.widths is None and block.text.isascii() else block.offsets()
        begin = 0
        for part in _cut_joined(block.text, bool(pieces)) if joined else _cut(block.text):
            if not pieces:
                byte = block.start + begin if offsets is None else int(offsets[begin])
            texts.append(part)
            pieces.append((block, begin, begin + len(part)))
            begin += len(part)
            size += len(part)
            if part.endswith("\n") or size > LONGEST:
                yield line()
                number += part.count("\n")
                texts, pieces, size = [], [], 0
    if pieces:
        yield line()


def _cut(text: str) -> list[str]:
    *lines, rest = text.split("\n")
    return [f"{line}\n" for line in lines] + [rest] * bool(rest)


def _cut_joined(text: str, begun: bool) -> list[str]:
    """Cut as `lines_of` if `joined`; ``begun``: the text continues a line."""
    first = text.find("\n") + 1 if begun else 0
    return [text[:first]] * bool(first) + _PARTS.findall(text, first)
