"""Which encoding a text is in, by its first bytes."""

from __future__ import annotations

import codecs
import re

import numpy as np

from kvstream.input.blocks import BOM, TextBlock

BOMS = (
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
"""The longer ones first; that of UTF-8 is left to the decoder."""
SAMPLE = 256 * 1024
"""Bytes by which an encoding is guessed."""
BEFORE = 16 * 1024
"""Of these, at most so many before the first that is not ASCII."""
GUESSED = (
    "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1257", "iso8859_2", "koi8_r", "cp866",
    "mac_roman", "cp932", "euc_jp", "gb18030", "big5", "cp949",
)  # fmt: skip
"""Encodings without a state, so that every character has bytes of its own."""
ENOUGH = 200
"""Bytes that are not ASCII of which a guess is hardly ever wrong."""
HIGH = bytes(range(0x80, 0x100))
FEW = 8
"""With fewer bytes that are not ASCII, nothing can be guessed from how often each one comes."""
ALIKE = 0.05
"""Scores of charset-normalizer that differ by less decide nothing: then it is Western."""
_WESTERN = frozenset([0x80, 0x85, *range(0x91, 0x98)])
"""What a Western text has of the bytes that are controls in Latin-1: quotes, dashes, the euro."""
_NOT_OF_PAGES = (
    "utf-16", "utf-32", "utf-7", "undefined", "idna", "punycode", "unicode-escape",
    "unicode_escape", "raw-unicode-escape", "raw_unicode_escape",
)  # fmt: skip
_CHARSET = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.I)


def by_mark(head: bytes) -> str | None:
    """The encoding that a byte order mark of UTF-16 or UTF-32 names."""
    return next((name for mark, name in BOMS if head.startswith(mark)), None)


def encoding_of(head: bytes, *, begins: bool = True) -> str:
    """``utf-8``, or the encoding that the first bytes of a text are in; a byte order mark counts
    only where the text `begins`."""
    marked = by_mark(head) if begins else None
    if marked is not None:
        return marked
    first = re.search(rb"[\x80-\xff]", head)
    begin = 0 if first is None else max(0, first.start() - BEFORE)
    sample = head[begin : begin + SAMPLE]
    try:
        codecs.utf_8_decode(sample, "strict", False)
    except UnicodeDecodeError:
        return _guess(sample) or "utf-8"
    return "utf-8"


def _guess(sample: bytes) -> str | None:
    """The likeliest encoding; None where it is damaged UTF-8, or nothing fits."""
    from charset_normalizer import from_bytes

    if _mostly_utf8(sample):
        return None
    high = [byte for byte in sample if byte > 127]
    western = all(byte >= 0xA0 or byte in _WESTERN for byte in high)
    if len(high) < FEW:
        # Too little to guess by: a name or two in a text of ASCII.
        return "cp1252" if western and len(high) * 4 <= len(sample) else None
    found = from_bytes(sample, cp_isolation=list(GUESSED), preemptive_behaviour=False)
    best = found.best()
    if best is None:
        return None
    alike = [match for match in found if match.chaos <= best.chaos + ALIKE]
    if western and any(
        "cp1252" in match.could_be_from_charset and match.coherence >= best.coherence - ALIKE
        for match in alike
    ):
        return "cp1252"
    return best.encoding


def _mostly_utf8(sample: bytes) -> bool:
    """Whether at least half of what is not ASCII is right as UTF-8, and so the rest is damage."""
    text = sample.decode("utf-8", "ignore")
    right = sum(len(char.encode()) for char in text if ord(char) > 127)
    wrong = len(sample) - len(text.encode())
    return right >= wrong


def html_decoder(head: bytes, encoding: str | None = None) -> codecs.IncrementalDecoder:
    """A decoder for a page that begins with ``head``; what is not right becomes U+FFFD."""
    name = encoding or by_mark(head) or _declared(head) or encoding_of(head)
    return codecs.getincrementaldecoder("utf-8-sig" if name == "utf-8" else name)("replace")


def _declared(head: bytes) -> str | None:
    """The encoding that the page names, if it can be true."""
    found = _CHARSET.search(head[:4096])
    if found is None:
        return None
    name = found[1].decode("ascii", "replace").lower()
    if name in ("iso-8859-1", "latin-1", "latin1", "us-ascii", "ascii"):
        return "cp1252"  # what browsers do: bytes that are controls there are quotes here
    try:
        known = codecs.lookup(name)
    except LookupError:
        return None
    # A name that could be read is not in UTF-16; some codecs are for bytes alone, or for no page.
    if known.name.startswith(_NOT_OF_PAGES) or not known._is_text_encoding:
        return None
    return known.name


class OtherDecoder:
    """As BlockDecoder, for a text that is not in UTF-8."""

    def __init__(self, source: int, start: int, encoding: str) -> None:
        self.source = source
        self.position = start
        """Global byte offset of the next character."""
        self.replaced = 0
        """Bytes that are not right in the encoding."""
        self.first_replaced: int | None = None
        """Global byte offset of the first of them."""
        self.encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._rest = b""
        self._at_start = True

    def decode(self, data: bytes, *, final: bool = False) -> TextBlock | None:
        """The text of ``data``, or None where it completes no character."""
        data, given = self._rest + data, data
        text = self._decoder.decode(given, final)
        self._rest = self._decoder.getstate()[0]
        used = len(data) - len(self._rest)
        if not text:
            return None
        widths = self._widths(data[:used], text, final=final)
        start = self.position
        self.position += used
        wrong = np.flatnonzero(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32) == 0xFFFD)
        if len(wrong):
            self.replaced += int(widths[wrong].sum())
            if self.first_replaced is None:
                self.first_replaced = start + int(widths[: wrong[0]].sum())
        if self._at_start:
            self._at_start = False
            if text[0] == BOM:
                text, start, widths = text[1:], start + int(widths[0]), widths[1:]
        return TextBlock(text, start, self.source, widths) if text else None

    def _widths(self, data: bytes, text: str, *, final: bool) -> np.ndarray:
        """Bytes of each character of ``text``, which ``data`` became: int64 [len(text)]."""
        if len(text) == len(data):
            return np.ones(len(text), dtype=np.int64)
        if self.encoding.startswith("utf-"):
            unit = 4 if "32" in self.encoding else 2
            codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
            found = np.where(codes > 0xFFFF, 4, unit).astype(np.int64)
            found[-1] += len(data) - found.sum()  # the file may end inside a character
            if found[-1] >= 0:
                return found
        sizes = {char: len(char.encode(self.encoding, "replace")) for char in set(text)}
        widths = np.array([sizes[char] for char in text], dtype=np.int64)
        if "\ufffd" not in sizes and widths.sum() == len(data):
            return widths
        # Damaged, or bytes of more than one form: byte by byte.
        decoder = codecs.getincrementaldecoder(self.encoding)("replace")
        each: list[int] = []
        waiting = 0
        for at in range(len(data)):
            waiting += 1
            new = len(decoder.decode(data[at : at + 1], final and at + 1 == len(data)))
            if new:
                # Where bytes are given up, those after them may be characters at once.
                each += [max(waiting - new + 1, 1), *[1] * (new - 1)][:waiting]
                each += [0] * (new - waiting)
                waiting = 0
        if len(each) == len(text) and sum(each) == len(data):
            return np.array(each, dtype=np.int64)
        # A codec that gives up other bytes where it sees more of them: spread evenly.
        return np.diff(np.arange(len(text) + 1) * len(data) // len(text))
