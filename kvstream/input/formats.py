"""Streams of plain bytes from files of many kinds, distinguished by content, not by name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import time
import zlib
from collections.abc import Callable
from typing import IO, Any, cast

from kvstream.errors import SourceError

# Kinds and their first bytes; longer than a format requires where text could begin alike.
MAGIC = {
    "gzip": b"\x1f\x8b",
    "bz2": b"BZh",
    "xz": b"\xfd7zXZ\x00",
    "zstd": b"\x28\xb5\x2f\xfd",
    "pdf": b"%PDF-",
    "zip": b"PK\x03\x04",
}
_BZ2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
COMPRESSED = ("gzip", "bz2", "xz", "zstd")
HEAD = 128
"""Bytes that tell every kind; an OpenDocument or EPUB file has its MIME type within them."""
SNIFF = 8192
"""Bytes in which a NUL means: not text."""
WAIT_SECONDS = 0.05
"""Between two tries to read compressed data from a stream that has nothing now."""
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def kind_of(head: bytes) -> str:
    """``gzip``, ``bz2``, ``xz``, ``zstd``, ``pdf``, ``epub``, ``html`` or ``plain``."""
    for kind, magic in MAGIC.items():
        if head.startswith(magic):
            if kind == "bz2" and head[4:10] not in _BZ2_BLOCKS:
                continue
            if kind == "zip":
                return "epub" if b"application/epub+zip" in head[:HEAD] else "plain"
            return kind
    beginning = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return "html" if beginning.startswith((b"<!doctype html", b"<html")) else "plain"


class PeekedStream(io.RawIOBase):
    """A stream whose first bytes were looked at and are read again; counts what is taken."""

    def __init__(self, stream: IO[bytes] | io.RawIOBase) -> None:
        self.stream = stream
        # One system call a read, where the stream can do that: a pipe must not be waited for.
        self._read: Callable[[int], bytes | None] = getattr(stream, "read1", stream.read)
        self._looked_at = b""
        self.taken = 0
        """Bytes of the stream that were handed on."""
        self.may_pause = False
        """Hand on None, which a stream gives that has nothing now; else wait for more."""

    def look(self) -> bytes:
        """The first bytes: as many as it takes to tell the kind, or all there is."""
        while len(self._looked_at) < HEAD and _undecided(self._looked_at):
            more = self._some(HEAD - len(self._looked_at))
            if not more:
                break
            self._looked_at += more
        return self._looked_at

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes | None:
        """At most ``size`` bytes: what is there, empty at the end; None see ``may_pause``."""
        if self._looked_at:
            size = len(self._looked_at) if size < 0 else size
            data: bytes | None
            data, self._looked_at = self._looked_at[:size], self._looked_at[size:]
        else:
            data = self._read(size) if self.may_pause else self._some(size)
        self.taken += len(data or b"")
        return data

    def _some(self, size: int) -> bytes:
        while (data := self._read(size)) is None:
            time.sleep(WAIT_SECONDS)
        return data

    def close(self) -> None:
        self.stream.close()
        super().close()


def _undecided(head: bytes) -> bool:
    if head[:3] == MAGIC["bz2"] and len(head) < 10:
        return True
    if head.startswith(MAGIC["zip"]):
        return True
    if head[:1] in (b"\xff", b"\xfe") and len(head) < 4:  # a byte order mark?
        return True
    return any(len(head) < len(magic) and magic.startswith(head) for magic in MAGIC.values())


def decompressed(head: PeekedStream, kind: str, name: str) -> Callable[[int], bytes | None]:
    """``read(n)``: at most n bytes of what ``head`` holds, unpacked; never more in memory."""
    reader: Any
    stream = cast(IO[bytes], head)
    if kind == "gzip":
        reader = gzip.GzipFile(fileobj=head, mode="rb")
    elif kind == "bz2":
        reader = bz2.BZ2File(stream)
    elif kind == "xz":
        reader = lzma.LZMAFile(stream)  # noqa: SIM115 -- ends with its stream
    elif kind == "zstd":
        return Unzstd(head, _zstd(name)).read
    else:
        head.may_pause = True
        return head.read
    read: Callable[[int], bytes] = getattr(reader, "read1", reader.read)
    return read


class Unzstd:
    """Unpacks zstd frames one after the other, and knows whether the last one is complete.

    The library's own reader does not: it takes a stream that is cut short for one that ends.
    """

    PIECE = 64
    """Packed bytes at once. A block of 128 KiB takes four bytes at least, so they unpack to a few
    MiB at most."""

    def __init__(self, head: PeekedStream, library: Any) -> None:
        self._head, self._library = head, library
        self._frame = library.decompressobj()
        self._open = False
        """The last frame is not complete."""
        self._packed = self._ready = b""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; b"" at the end. Raises EOFError where the last frame is cut."""
        while not self._ready:
            if not self._packed:
                self._packed = self._head.read(SNIFF) or b""
            if not self._packed:
                if self._open:
                    raise EOFError
                return b""
            piece, self._packed = self._packed[: self.PIECE], self._packed[self.PIECE :]
            self._ready = self._frame.decompress(piece)
            self._open = not self._frame.eof
            if self._frame.eof:
                self._packed = self._frame.unused_data + self._packed
                self._frame = self._library.decompressobj()
        out, self._ready = self._ready[:size], self._ready[size:]
        return out


def damage_errors() -> tuple[type[BaseException], ...]:
    """What decompressors raise on damaged data."""
    try:
        import zstandard
    except ImportError:
        return DAMAGE
    return (*DAMAGE, zstandard.ZstdError)


def _zstd(name: str) -> Any:
    try:
        import zstandard
    except ImportError:
        raise SourceError(
            f"{name} is compressed with zstd, which needs one more library: "
            "install kvstream[zstd], or unpack it with `zstd -dc FILE | kvstream ... -`."
        ) from None
    return zstandard.ZstdDecompressor()
