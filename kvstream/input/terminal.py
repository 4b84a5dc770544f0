"""Remove from a text what is for a terminal and not for a reader: control sequences, and NULs.
Lines of a file that end in a carriage return alone get a newline instead.

The sequences are those of ECMA-48, with 7 and with 8 bits. NULs fill the hole in a log that was cut
while a program wrote it, and in a file that was not stored completely.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from kvstream.input.blocks import TextBlock
from kvstream.input.controls import ASCII_SIGNS, HOLE, LONGEST, REST, SEQUENCE, SIGNS, UNFINISHED


class ControlFilter:
    """Removes control sequences and NULs from the blocks of one source, also those of two blocks.

    The bytes of a sequence belong to the character before it.
    """

    def __init__(self, *, returns: bool = False) -> None:
        """`returns`: lines may end in a carriage return. The first block tells, so it must not be
        the part of a pipe that came first.
        """
        self.nuls = 0
        self.first_nul = 0
        """Global byte offset of the first one."""
        self._held: TextBlock | None = None
        """The beginning of a sequence, at the end of the last block."""
        self._in_string = False
        """Whether the last block ended within a control string of more than LONGEST characters."""
        self._in_line = False
        """Whether the last character was not a newline."""
        self._returns: bool | None = None if returns else False
        """Whether lines end in a carriage return, as those of the first block do; None: no text."""

    def filtered(self, block: TextBlock, *, final: bool = False) -> TextBlock | None:
        """Return what remains of a block, or None. `final`: no other block follows."""
        left = self._filtered(block, final=final)
        if left is not None and self._returns is None and left.text:
            self._returns = "\n" not in left.text and "\r" in left.text[:-1]
        if left is None or not self._returns:
            return left
        return replace(left, text=re.sub(r"\r(?!\n)", "\n", left.text))

    def _filtered(self, block: TextBlock, *, final: bool) -> TextBlock | None:
        held, text = self._held, block.text
        signs = ASCII_SIGNS if text.isascii() else SIGNS
        if held is None and not self._in_string and not any(map(text.__contains__, signs)):
            self._in_line = text[-1:] != "\n"
            return block
        offsets = block.offsets()
        if held is not None:
            text = held.text + text
            offsets = np.concatenate([held.offsets()[:-1], offsets])
        end = len(text)
        self._held = None
        if not final and (cut := UNFINISHED.search(text, max(0, end - 2 * LONGEST))):
            end = cut.start()
            widths = np.diff(offsets[end:])
            self._held = TextBlock(text[end:], int(offsets[end]), block.source, widths)
        return self._without(text[:end], offsets[: end + 1], block.source)

    def _without(self, text: str, offsets: np.ndarray, source: int) -> TextBlock | None:
        stays = np.ones(len(text), dtype=bool)
        parts: list[str] = []
        last = 0
        if self._in_string:
            last = REST.match(text).end()  # type: ignore[union-attr]
            self._in_string = last == len(text)
            stays[:last] = False
        for found in SEQUENCE.finditer(text, last):
            begin, end = found.span()
            parts.append(text[last:begin])
            stays[begin:end] = False
            last = end
            if text[begin] == "\0":
                if not self.nuls:
                    self.first_nul = int(offsets[begin])
                self.nuls += end - begin
                in_line = text[begin - 1] != "\n" if begin else self._in_line
                if in_line and end - begin >= HOLE and text[end : end + 1] not in ("\r", "\n"):
                    parts.append("\n")
                    stays[begin] = True
            elif end == len(text) and end - begin > LONGEST and text[begin + 1] != "[":
                self._in_string = text[-1] not in "\x07\x9c\\"
        starts = offsets[:-1][stays]
        if not len(starts):
            return None
        parts.append(text[last:])
        left = "".join(parts)
        self._in_line = left[-1] != "\n"
        widths = np.diff(np.append(starts, offsets[-1]))
        return TextBlock(left, int(starts[0]), source, widths)
