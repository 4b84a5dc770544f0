"""Text that knows which bytes of the source it came from, also where bytes were not UTF-8."""

from __future__ import annotations

import codecs
import threading
from dataclasses import dataclass, field

import numpy as np

BOM = "\ufeff"
_ERRORS = "kvstream.replace"
_found = threading.local()


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Python's own ``replace``, which also notes the bytes it took away."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    _found.spans.append((error.start, error.end))
    return "\ufffd", error.end


codecs.register_error(_ERRORS, _replace)


@dataclass(frozen=True)
class TextBlock:
    """A stretch of text and where its bytes lie."""

    text: str
    start: int
    """Byte offset of the first character in the concatenation of all sources (decompressed)."""
    source: int
    """Index of the source in the set."""
    widths: np.ndarray | None = field(default=None, repr=False, compare=False)
    """Source bytes of each character, int64 [len(text)]; None: those of its UTF-8 form."""

    place: int | str | None = None
    """The page (from 1) or the heading above (empty: none) in a document; None: plain text."""
    left_out: int = 0
    """Lines of the source before this block that are in no block."""

    def offsets(self) -> np.ndarray:
        """Global byte offset of every character and of the end, int64 [len(text) + 1]."""
        if self.widths is not None:
            return self.start + np.concatenate([[0], np.cumsum(self.widths)])
        return self.start + utf8_starts(self.text)


@dataclass(frozen=True)
class Part:
    """A stretch of the text of a document."""

    text: str
    place: int | str
    """As in TextBlock."""
    share: float
    """Of the document that has been converted, this part included: 0 to 1."""


def utf8_starts(text: str) -> np.ndarray:
    """Byte offset of every character of ``text`` in UTF-8, and its length: int64 [len + 1]."""
    if text.isascii():
        return np.arange(len(text) + 1, dtype=np.int64)
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
    return np.append(np.flatnonzero((data & 0xC0) != 0x80), len(data)).astype(np.int64)


class BlockDecoder:
    """Turns the bytes of one source into blocks; characters cut by a read wait for the rest."""

    encoding = "utf-8"

    def __init__(self, source: int, start: int) -> None:
        self.source = source
        self.position = start
        """Global byte offset of the next character."""
        self.replaced = 0
        """Bytes that were not UTF-8."""
        self.first_replaced: int | None = None
        """Global byte offset of the first of them."""
        self._rest = b""
        self._at_start = True

    def decode(self, data: bytes, *, final: bool = False) -> TextBlock | None:
        """The text of ``data``, or None where it completes no character."""
        data = self._rest + data
        spans: list[tuple[int, int]] = []
        _found.spans = spans
        text, used = codecs.utf_8_decode(data, _ERRORS, final)
        self._rest = data[used:]
        if not text:
            return None
        start, widths = self.position, None
        self.position += used
        if spans:
            widths = self._widths(data[:used], spans)
            self.replaced += sum(end - begin for begin, end in spans)
            if self.first_replaced is None:
                self.first_replaced = start + spans[0][0]
        if self._at_start:
            self._at_start = False
            if text[0] == BOM:
                text, start = text[1:], start + len(BOM.encode())
                widths = None if widths is None else widths[1:]
        return TextBlock(text, start, self.source, widths) if text else None

    @staticmethod
    def _widths(data: bytes, spans: list[tuple[int, int]]) -> np.ndarray:
        """Bytes of each character, where each of ``spans`` became one character."""
        raw = np.frombuffer(data, dtype=np.uint8)
        begins = (raw & 0xC0) != 0x80
        for begin, end in spans:
            begins[begin:end] = False
            begins[begin] = True
        return np.diff(np.append(np.flatnonzero(begins), len(data))).astype(np.int64)
