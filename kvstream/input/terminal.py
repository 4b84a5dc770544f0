"""Remove from a text what is for a terminal and not for a reader: control sequences, and NULs.

The sequences are those of ECMA-48, with 7 and with 8 bits. NULs fill the hole in a log that was cut
while a program wrote it, and in a file that was not stored completely.
"""

from __future__ import annotations

import re

import numpy as np

from kvstream.input.blocks import TextBlock

LONGEST = 4096
"""Maximum characters of a control string that has no end. What looks like a longer one has no
other text, so it is removed up to the end of its line."""
HOLE = 16
"""At least so many NULs within a line end it: they stand for the rest of it and for other lines."""
_SIGNS = "\0\x07\x0e\x0f\x1b\x90\x98\x9b\x9d\x9e\x9f"
"""Every sequence begins with one of these."""
_BODY = r"[^\x00-\x08\x0a-\x1f\x7f\x9c]"
"""A character of a control string. A string ends with its line at the latest."""
_STRING = rf"{_BODY}{{0,{LONGEST}}}+(?:\x1b\\|[\x07\x9c])"
_SEQUENCE = re.compile(
    r"\0+"
    r"|\x1b(?:\[[0-?]*+[ -/]*+[@-~]?"
    rf"|[PX\]^_](?:{_STRING}|{_BODY}{{{LONGEST + 1},}}+(?:\x1b\\|[\x07\x9c])?)?"
    r"|[ -/]*+[0-~]?)"
    # Text in a wrong encoding also has characters of this range: what has no end, stays.
    rf"|\x9b(?:[0-?]++[ -/]*+[@-~]|[@-~](?![A-Za-z]))|[\x90\x98\x9d-\x9f]{_STRING}"
    r"|[\x07\x0e\x0f]"
)
_UNFINISHED = re.compile(
    rf"(?:\x1b(?:\[[0-?]*+[ -/]*+|[PX\]^_]{_BODY}{{0,{LONGEST}}}+\x1b?|[ -/]*+)"
    rf"|\x9b(?:[0-?]*+[ -/]*+|[@-~])|[\x90\x98\x9d-\x9f]{_BODY}{{0,{LONGEST}}}+\x1b?"
    rf"|(?<!\0)\0{{1,{HOLE - 1}}})\Z"
)
_REST = re.compile(rf"{_BODY}*+\x9c?")


def without_controls(text: str) -> str:
    """Return a text without control sequences and NULs."""
    if text.isprintable():  # this is fast
        return text
    return _SEQUENCE.sub("", text) if any(map(text.__contains__, _SIGNS)) else text


class ControlFilter:
    """Removes control sequences and NULs from the blocks of one source.

    A sequence may begin in one block and end in another. The bytes of a sequence belong to the
    character before it.
    """

    def __init__(self) -> None:
        self.nuls = 0
        """Number of NULs so far."""
        self.first_nul = 0
        """Global byte offset of the first one."""
        self._held: TextBlock | None = None
        """The beginning of a sequence, at the end of the last block."""
        self._in_string = False
        """Whether the last block ended within a control string of more than LONGEST characters."""
        self._in_line = False
        """Whether the last character was not a newline."""

    def filtered(self, block: TextBlock, *, final: bool = False) -> TextBlock | None:
        """Return what remains of a block, or None. `final`: no other block follows."""
        held, text = self._held, block.text
        if held is None and not self._in_string and not any(map(text.__contains__, _SIGNS)):
            self._in_line = text[-1:] != "\n"
            return block
        offsets = block.offsets()
        if held is not None:
            text = held.text + text
            offsets = np.concatenate([held.offsets()[:-1], offsets])
        end = len(text)
        self._held = None
        if not final and (cut := _UNFINISHED.search(text, max(0, end - 2 * LONGEST))):
            end = cut.start()
            widths = np.diff(offsets[end:])
            self._held = TextBlock(text[end:], int(offsets[end]), block.source, widths)
        return self._without(text[:end], offsets[: end + 1], block.source)

    def _without(self, text: str, offsets: np.ndarray, source: int) -> TextBlock | None:
        """Return the block of a text without its sequences."""
        stays = np.ones(len(text), dtype=bool)
        parts: list[str] = []
        last = 0
        if self._in_string:
            last = _REST.match(text).end()  # type: ignore[union-attr]
            self._in_string = last == len(text)
            stays[:last] = False
        for found in _SEQUENCE.finditer(text, last):
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
