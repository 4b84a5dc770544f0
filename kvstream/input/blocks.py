"""Blocks of text with the source bytes of every character, even if these were not UTF-8."""

from __future__ import annotations

import codecs
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

BOM = "\ufeff"
ERRORS = "kvstream.replace"
"""An error handler of codecs for `BlockDecoder.decode`."""
_notes = threading.local()
CONTROLS = re.compile(
    rb"\x9b(?:[0-?]++[ -/]*+[@-~]|[@-~](?![A-Za-z]))"
    rb"|(?:[\x90\x98\x9d-\x9f]|\x1b[PX\]^_])[^\x00-\x08\x0a-\x1f\x7f\x9c]{0,4096}+(?:\x1b\\|[\x07\x9c])"
)
"""The control sequences of a terminal of 8 bits, which are no UTF-8."""
_BEGUN = re.compile(rb"(?<![\x80-\xff])\x9b[0-?]*+[ -/]*+[@-~]?\Z")


def _replace(error: UnicodeError) -> tuple[str, int]:
    """As ``replace`` of Python; note the spans, and leave what is of a control sequence."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, place = error.object, error.start
    near = CONTROLS.finditer(data, max(0, place - 4096), place + 1) if data[place] == 0x9C else ()
    if CONTROLS.match(data, place) or any(match.end() == place + 1 for match in near):
        _notes.controls.append(place)
        return chr(data[place]), place + 1
    _notes.spans.append((error.start, error.end))
    return "\ufffd", error.end


codecs.register_error(ERRORS, _replace)


class Heading(str):
    """The heading above a text in a document."""

    level: int
    """From 1, the highest; 0 if the document does not say."""

    def __new__(cls, text: str, level: int = 0) -> Heading:
        heading = super().__new__(cls, text)
        heading.level = level
        return heading


@dataclass(frozen=True)
class TextBlock:
    """A stretch of text and the place of its bytes."""

    text: str
    start: int
    """Byte offset of the first character in the concatenation of all sources (decompressed)."""
    source: int
    """Index of the source in the set."""
    widths: np.ndarray | None = field(default=None, repr=False, compare=False)
    """Number of source bytes of each character, int64 [len(text)]; None: as in UTF-8."""

    place: int | str | None = None
    """In a document: the page (from 1) or the heading above (empty: none); None: plain text."""
    left_out: int = 0
    """Number of lines of the source before this block that are in no block."""

    @cached_property
    def raw(self) -> bytes:
        """The text in UTF-8."""
        return self.text.encode("utf-8", "surrogatepass")

    def offsets(self) -> np.ndarray:
        """Return the global byte offsets of all characters and the end, int64 [len(text) + 1]."""
        if self.widths is not None:
            offsets = np.zeros(len(self.widths) + 1, dtype=np.int64)
            np.cumsum(self.widths, out=offsets[1:])
            return offsets + self.start
        return self.start + utf8_starts(self.text)

    def bytes_at(self, chars: np.ndarray) -> np.ndarray:
        """Return the global byte offsets of some characters, int64 [n]."""
        if self.widths is None and self.text.isascii():  # this is fast
            return self.start + chars
        return self.offsets()[chars]

    def part(
        self, begin: int, end: int | None = None, left_out: int | None = None,
        start: int | None = None,
    ) -> TextBlock:  # fmt: skip
        """Return the block of some characters, with the lines that are left out before it. `start`:
        the byte at which it begins, if that is known."""
        return replace(
            self,
            text=self.text[begin:end],
            start=int(self.bytes_at(np.array([begin]))[0]) if start is None else start,
            widths=None if self.widths is None else self.widths[begin:end],
            left_out=self.left_out if left_out is None else left_out,
        )


@dataclass(frozen=True)
class Part:
    """A stretch of the text of a document."""

    text: str
    place: int | str
    share: float
    """Share of the document that has been converted, including this part: 0 to 1."""


def utf8_starts(text: str) -> np.ndarray:
    """Return the UTF-8 byte offsets of the characters of ``text`` and its end, int64 [len + 1]."""
    if text.isascii():
        return np.arange(len(text) + 1, dtype=np.int64)
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
    return np.append(np.flatnonzero((data & 0xC0) != 0x80), len(data)).astype(np.int64)


class BlockDecoder:
    """Decodes the bytes of one source to blocks. A character cut by a read waits for its rest."""

    encoding = "utf-8"

    def __init__(self, source: int, start: int) -> None:
        self.source = source
        self.position = start
        """Global byte offset of the next character."""
        self.invalid = 0
        """Number of bytes that are invalid in the encoding."""
        self.first_invalid: int | None = None
        """Global byte offset of the first of these bytes."""
        self.rest = b""
        """Bytes of a character whose other bytes are still to come."""
        self._at_start = True

    def decode(self, data: bytes, *, final: bool = False) -> TextBlock | None:
        """Return the text of ``data``, or None if it completes no character."""
        data = self.rest + data
        _notes.spans, _notes.controls = [], []
        text, widths, wrong = self._decode(data, final)
        start = self.position
        self.position += len(data) - len(self.rest)
        if not text:  # it may be an escape sequence of the encoding
            return None
        if wrong:
            self.invalid += sum(end - begin for begin, end in wrong)
            if self.first_invalid is None:
                self.first_invalid = start + wrong[0][0]
        if self._at_start:
            self._at_start = False
            if text[0] == BOM:
                start += len(BOM.encode()) if widths is None else int(widths[0])
                text, widths = text[1:], None if widths is None else widths[1:]
        block = TextBlock(text, start, self.source, widths)
        if widths is None and len(data) == self.position - start:
            block.__dict__["raw"] = data  # a long log need not be encoded again
        return block if text else None

    def _decode(
        self, data: bytes, final: bool
    ) -> tuple[str, np.ndarray | None, Sequence[tuple[int, int]]]:
        """Return text, bytes of each character (None: UTF-8), and replaced spans; update `rest`."""
        match = None if final else _BEGUN.search(data, max(0, len(data) - 64))
        text, end = codecs.utf_8_decode(data[: match.start()] if match else data, ERRORS, final)
        self.rest = data[end:]
        spans = _notes.spans + [(place, place + 1) for place in _notes.controls]
        return text, self._spread(data[:end], spans) if spans else None, _notes.spans

    @staticmethod
    def _spread(data: bytes, spans: list[tuple[int, int]]) -> np.ndarray:
        """Return the bytes of each character, if each of ``spans`` became one character."""
        raw = np.frombuffer(data, dtype=np.uint8)
        begins = (raw & 0xC0) != 0x80
        for begin, end in spans:
            begins[begin:end] = False
            begins[begin] = True
        return np.diff(np.append(np.flatnonzero(begins), len(data))).astype(np.int64)
