"""Remove from a text what is not for a reader: control sequences, NULs, files in base64, and
characters that others overstrike. Lines that end in a carriage return alone get a newline instead.

The sequences are those of ECMA-48, with 7 and with 8 bits. NULs fill the hole in a log that was cut
while a program wrote it, and in a file that was not stored completely.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import compress

import numpy as np

from kvstream.input import controls
from kvstream.input.blocks import TextBlock
from kvstream.input.controls import BASE64, FILTERED, HOLE, LONGEST, MOVE, RSYSLOG, UNFINISHED

_BACK = re.compile(r"\x08{2,}")
"""A move back before what a progress bar replaces."""

_BEGINNINGS = ("\r", "d", "da", "dat", "data", *(RSYSLOG[:n] for n in range(1, len(RSYSLOG))))


class ControlFilter:
    """Removes control sequences and NULs from the blocks of one source, also those of two blocks.

    The bytes of a sequence belong to the character before it.
    """

    def __init__(self, *, table: bool = False) -> None:
        """`table`: a carriage return ends lines only if the first block has no newline; else it is
        in a cell."""
        self.nuls = 0
        self.first_nul = 0
        """Global byte offset of the first one."""
        self._rest: TextBlock | None = None
        """The beginning of a sequence, at the end of the last block."""
        self.files = 0
        """Number of files in base64."""
        self._goes_on: re.Pattern[str] | None = None
        """The rest of the file, or of the control string of more than LONGEST characters, in which
        the last block ended.
        """
        self._last = "\n"
        """The last character."""
        self._returns = None if table else True
        """Whether a carriage return alone ends a line; None: no text yet."""
        self._strikes = False
        """Whether there was a backspace."""

    def filter(self, block: TextBlock, *, final: bool = False) -> TextBlock | None:
        """Return what remains of a block, or None. `final`: no other block follows."""
        rest = self._filter(block, final=final)
        if rest is not None and self._returns is None and rest.text:
            self._returns = "\n" not in rest.text
        if rest is None or not self._returns or "\r" not in rest.text:
            return rest
        return replace(rest, text=controls.LONE.sub(lambda match: "\n" * len(match[0]), rest.text))

    def _filter(self, block: TextBlock, *, final: bool) -> TextBlock | None:
        if (rest := self._rest) is not None:
            widths = None
            if rest.widths is not None or block.widths is not None:
                widths = np.diff(np.concatenate([rest.offsets()[:-1], block.offsets()]))
            block = TextBlock(rest.text + block.text, rest.start, block.source, widths)
            self._rest = None
        text = block.text
        end = len(text)
        signs = controls.ASCII_SIGNS if text.isascii() else controls.SIGNS
        special = _may_have_signs(block) and any(map(text.__contains__, signs))
        special = special or _has(block, RSYSLOG, BASE64)
        plain = not (self._goes_on or self._strikes or special)
        if plain and (final or not (text.endswith(_BEGINNINGS) or "data:" in text[-200:])):
            self._last = text[-1:] or self._last
            return block
        self._strikes = self._strikes or "\x08" in text
        if not final and self._strikes:  # the next block may begin with a backspace
            line = text.rfind("\n") + 1
            end = line if end - line < LONGEST else end
        if not final and (cut := UNFINISHED.search(text, max(0, end - 2 * LONGEST))):
            end = min(end, cut.start())
        if end < len(text):
            self._rest = block.part(end)
        if not plain:
            return self._without(text[:end], block.offsets()[: end + 1], block.source)
        self._last = text[:end][-1:] or self._last
        return block.part(0, end, start=block.start) if end else None

    def _without(self, text: str, offsets: np.ndarray, source: int) -> TextBlock | None:
        stays = np.ones(len(text), dtype=bool)
        parts: list[str] = []
        last, before = 0, self._last
        if self._goes_on is not None:
            last = self._goes_on.match(text).end()  # type: ignore[union-attr]
            self._goes_on = self._goes_on if last == len(text) else None
            stays[:last] = False
        for match in FILTERED.finditer(text, last):
            begin, end = match.span()
            parts.append(text[last:begin])
            before = text[begin - 1] if begin > last else before
            stays[begin:end] = False
            last = end
            if text[begin] == "\0":
                if not self.nuls:
                    self.first_nul = int(offsets[begin])
                self.nuls += end - begin
                ends = text[end : end + 1] in ("\r", "\n")
                if before != "\n" and end - begin >= HOLE and not ends:
                    parts.append(before := "\n")
                    stays[begin] = True
            elif not before.isspace() and MOVE.fullmatch(match[0]):
                parts.append(before := " ")
                stays[begin] = True
            elif text[begin] == "d":
                self.files += 1
                self._goes_on = controls.LETTERS if end == len(text) else None
            elif end == len(text) and end - begin > LONGEST and text[begin + 1] != "[":
                self._goes_on = None if text[-1] in "\x07\x9c\\" else controls.REST
        starts = offsets[:-1][stays]
        if not len(starts):
            return None
        parts.append(text[last:])
        rest = "".join(parts)
        if "\x08" in rest:
            rest, starts = _without_struck(rest, starts)
        if not rest:
            return None
        self._last = rest[-1]
        widths = np.diff(np.append(starts, offsets[-1]))
        return TextBlock(rest, int(starts[0]), source, widths)


def _may_have_signs(block: TextBlock) -> bool:
    """Return whether a text has a byte of control beside tabs and the ends of lines, or is not
    ASCII. Two passes take half the time of a search for each sign.
    """
    data = np.frombuffer(block.raw, np.uint8)
    least, behind = (each.min(initial=255) for each in (data, data - np.uint8(14)))
    return not block.text.isascii() or least < 9 or behind < 18


def _has(block: TextBlock, *signs: str) -> bool:
    """Return whether a text has one of some signs of ASCII. Most texts lack their ends at this
    distance, and to compare them takes a fifth of the time of a search.
    """
    data = np.frombuffer(block.raw, np.uint8)
    for sign in signs:
        if sign[0] in block.text:
            size = len(sign) - 1
            first, last = data[: max(0, len(data) - size)], data[size:]
            if ((first == ord(sign[0])) & (last == ord(sign[-1]))).any() and sign in block.text:
                return True
    return False


def _without_struck(text: str, starts: np.ndarray) -> tuple[str, np.ndarray]:
    """Return what is left of a text with backspaces, and the offsets of its characters."""
    for pattern in controls.STRUCK, _BACK:
        stays = np.ones(len(text), dtype=bool)
        for match in pattern.finditer(text):
            begin, end = match.span()
            if pattern is _BACK:
                begin = max(text.rfind("\n", 0, begin) + 1, 2 * begin - end)
            stays[begin:end] = False
        text, starts = "".join(compress(text, stays)), starts[stays]
    return text, starts
