"""Detect the kind of a file by its content, and unpack it to a stream of plain bytes."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import IO, Any, cast

from kvstream.errors import SourceError
from kvstream.input.encodings import by_mark

# Kinds and their first bytes: more than a format requires if a text could begin with the same.
MAGIC = {
    "gzip": b"\x1f\x8b",
    "bz2": b"BZh",
    "xz": b"\xfd7zXZ\x00",
    "zstd": b"\x28\xb5\x2f\xfd",
    "pdf": b"%PDF-",
    "zip": b"PK\x03\x04",
}
SUFFIXES = {
    ".html": "html", ".htm": "html", ".xhtml": "html", ".eml": "mail", ".mbox": "mail",
    ".mht": "mail", ".mhtml": "mail", ".emlx": "mail", ".ipynb": "notebook",
    ".ttml": "captions", ".dfxp": "captions",
}  # fmt: skip
"""Names that show the kind of a file whose first bytes do not."""
_TIME = r"(?:\d{1,4}:)?\d{1,2}:\d\d[.,]\d{1,3}"
_TEXTS = {
    "html": re.compile(
        r"(?:\s++|<\?xml[^>]*+>|(?><!--.*?-->))*+<(?:!doctype html|html|body)[\s>]",
        re.IGNORECASE | re.DOTALL,
    ),
    "captions": re.compile(
        r"\s*(?:<\?xml[^>]*>\s*)?<(?:\w+:)?tt[\s>]"
        rf"|WEBVTT(?:\s|\Z)|\s*(?:\d+\s+)?(?:{_TIME}|\d+:\d\d:\d\d)[ \t]*--+>[ \t]*\d"
        rf"|\s*{_TIME},{_TIME}\s*\n"
    ),
    "mail": re.compile(
        r"From \S*.*\b\w{3} \w{3} {1,2}\d{1,2} \d\d:\d\d.* \d{4}\r?\n"
        r"|(?:Return-Path|Received|Delivered-To|X-Original-To|ARC-Seal|X-Received"
        r"|X-Mozilla-Status): "
        r"|(?:[a-z][\w-]*:(?: .*)?\r?\n(?:[ \t].*\r?\n)*+)*?"
        r"(?:MIME-Version|Message-ID|DKIM-Signature|Content-Transfer-Encoding): "
        r"|From: <Saved by "
        r"|From: .*@.*\r?\n(?:To|Cc|Subject|Date|MIME-Version|Message-ID|Content-Type|Reply-To): ",
        re.IGNORECASE,
    ),
    "notebook": re.compile(
        r'\s*\{\s*"(?:(?:cells|worksheets|nbformat(?:_minor)?)"\s*:'
        r'|metadata"\s*:.*?"(?:kernelspec|language_info|nbformat)")',
        re.DOTALL,
    ),
}
_OTHER_CAPTIONS = re.compile(
    r"\s*(?:(?P<ASS>\[Script Info\])|(?P<JSON>\{\s*\"wireMagic\")|(?P<SAMI><SAMI>)"
    r"|(?P<SCC>Scenarist_SCC)|(?P<MicroDVD>\{\d+\}\{\d+\})"
    r"|(?P<LRC>(?:\[[a-z]+:[^\n\]]*+\]\s*+)++\[\d+:\d\d)"
    r"|(?:<\?xml[^>]*>\s*)?(?P<XML><(?:timedtext|transcript>\s*<text start)\b))"
)
"""Captions that are read as text, with their codes."""
_BZ2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
_SKIPPED = re.compile(rb"[P-_]\*M\x18")
"""A frame of zstd without text, which may come first."""
COMPRESSED = ("gzip", "bz2", "xz", "zstd")
DOCX_BODY = re.compile(r"word/document\d*\.xml")
"""The member of a DOCX with its text."""
HEAD = 4096
"""Bytes that determine every kind. They include the headers of most mail."""
SNIFF = 8192
"""Bytes at the beginning in which a NUL means that a file is not text."""
WAIT_SECONDS = 0.05
"""Seconds between two attempts to read from a stream that has no data yet."""
ZSTD_PIECE = 64
"""Packed bytes of zstd to unpack at once. A block of 128 KiB takes at least four bytes, so they
unpack to at most a few MiB."""
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def kind_of(head: bytes) -> str:
    """Return the kind of a file by its first bytes; ``plain`` for a text of no other kind."""
    kind = next((kind for kind, magic in MAGIC.items() if head.startswith(magic)), "")
    if kind == "zip":
        first = head[:128]  # the first member of an EPUB is its MIME type
        return "epub" if b"application/epub+zip" in first else "plain"
    if _SKIPPED.match(head):
        return "zstd"
    if kind and (kind != "bz2" or head[4:10] in _BZ2_BLOCKS):
        return kind
    text = head.decode(by_mark(head) or "utf-8-sig", "replace").removeprefix("\ufeff")
    return next((kind for kind, begin in _TEXTS.items() if begin.match(text)), "plain")


def other_captions(head: bytes) -> str | None:
    """Return the form of captions whose codes are not known, or None."""
    match = _OTHER_CAPTIONS.match(head.decode(by_mark(head) or "utf-8-sig", "replace"))
    return match and match.lastgroup


def kind_inside(data: bytes, name: str) -> str:
    """Return the kind of a packed text by its first bytes, else by the name of the file."""
    kind = kind_of(data[:HEAD])
    kinds = (SUFFIXES[s] for s in PurePath(name.lower()).suffixes[-2:] if s in SUFFIXES)
    return next(kinds, "plain") if kind == "plain" else kind


def reader_of(stream: Any) -> Callable[[int], Any]:
    """Return the function of a stream that reads with one system call, if it has one, so that a
    pipe need not be waited for.

    It returns None if the stream has no data yet. The `read1` of a buffered stream that does not
    block returns the same for that as at the end.
    """
    read: Callable[[int], Any] = getattr(stream, "read1", stream.read)
    raw = getattr(stream, "raw", None)
    if raw is None or sys.platform == "win32":  # whose streams always block
        return read
    with suppress(OSError, ValueError, AttributeError):  # no file
        if not os.get_blocking(raw.fileno()):
            return lambda size: read(size) or raw.read(size)
    return read


class PeekedStream:
    """A stream that allows a look at its first bytes before they are read; counts bytes read."""

    def __init__(self, read: Callable[[int], bytes | None]) -> None:
        """`read`: as `reader_of` returns it, or one that may return more bytes than requested."""
        self._read = read
        self._looked_at = b""
        self.offset = 0
        self.may_pause = False
        """Whether `read` returns None if the stream has no data yet. Otherwise it waits."""

    def look(self) -> bytes:
        """Return the first bytes: as many as determine the kind, or all that exist."""
        while len(self._looked_at) < HEAD and _undecided(self._looked_at):
            more = self._some(HEAD - len(self._looked_at))
            if not more:
                break
            self._looked_at += more
        return self._looked_at

    def read(self, size: int) -> bytes | None:
        """Return at most ``size`` bytes, empty at the end; None as described for `may_pause`."""
        data = self._looked_at or (self._read(size) if self.may_pause else self._some(size))
        if data is not None:
            data, self._looked_at = data[:size], data[size:]
            self.offset += len(data)
        return data

    def _some(self, size: int) -> bytes:
        while (data := self._read(size)) is None:
            time.sleep(WAIT_SECONDS)
        return data


def stream_of(pieces: Iterator[bytes]) -> PeekedStream:
    """Return a stream of pieces of bytes."""
    parts = filter(None, pieces)
    return PeekedStream(lambda _: next(parts, b""))


def _undecided(head: bytes) -> bool:
    return (
        head.startswith(MAGIC["zip"])
        or (head[:3] == MAGIC["bz2"] and len(head) < 10)
        or (head[:1] in (b"\xff", b"\xfe") and len(head) < 4)  # a byte order mark?
        or any(len(head) < len(magic) and magic.startswith(head) for magic in MAGIC.values())
    )


def decompressor(head: PeekedStream, kind: str, name: str) -> Callable[[int], bytes | None]:
    """Return a function ``read(n)`` that unpacks ``head`` and returns at most n bytes at a time."""
    if kind == "gzip":
        return gzip.GzipFile(fileobj=cast(IO[bytes], head), mode="rb").read1
    if kind == "bz2":
        return Unpacker(head, bz2.BZ2Decompressor).read
    if kind == "xz":
        return Unpacker(head, partial(lzma.LZMADecompressor, lzma.FORMAT_XZ)).read
    if kind == "zstd":
        return Unpacker(head, _zstd(name).decompressobj, ZSTD_PIECE).read
    head.may_pause = True
    return head.read


class Unpacker:
    """Unpacks streams of one format, one after the other, with NULs as padding between them.

    The readers of the libraries end without an error at padding, at a stream that is damaged at its
    beginning, or in a cut stream of zstd: all text after that would be lost without a message.
    """

    def __init__(self, head: PeekedStream, new: Callable[[], Any], piece: int = 0) -> None:
        """`new` makes what unpacks one stream, `piece` packed bytes at once if it has no limit."""
        self._head, self._new, self._piece = head, new, piece
        self._stream = new()
        self._open = False
        """Whether the last stream is incomplete."""
        self._data = self._ready = b""

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; b"" at the end. Raises EOFError and `damage_errors`."""
        while not self._ready:
            if self._stream.eof:
                self._data = self._stream.unused_data + self._data
                self._stream, self._open = self._new(), False
            if not self._open:
                self._data = self._data.lstrip(b"\0")
            if not self._data and getattr(self._stream, "needs_input", True):
                self._data = self._head.read(SNIFF) or b""
                if self._data:
                    continue
                if self._open:
                    raise EOFError
                return b""
            self._open = True
            count = self._piece or len(self._data)
            data, self._data = self._data[:count], self._data[count:]
            limit = () if self._piece else (size,)
            self._ready = self._stream.decompress(data, *limit)
        out, self._ready = self._ready[:size], self._ready[size:]
        return out


def damage_errors() -> tuple[type[BaseException], ...]:
    """Return the errors that decompressors raise for damaged data."""
    with suppress(ImportError):
        import zstandard

        return (*DAMAGE, zstandard.ZstdError)
    return DAMAGE


def _zstd(name: str) -> Any:
    try:
        import zstandard
    except ImportError:
        raise SourceError(
            f"{name} is compressed with zstd, which needs one more library: "
            "install kvstream[zstd], or unpack it with `zstd -dc FILE | kvstream ... -`."
        ) from None
    return zstandard.ZstdDecompressor()
