"""The bytes of each source: opened, unpacked, and checked to be text."""

from __future__ import annotations

import io
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from kvstream.errors import SourceError
from kvstream.input import documents, formats
from kvstream.input.blocks import Part
from kvstream.input.following import Follow, FollowedFile
from kvstream.input.formats import COMPRESSED, SNIFF, PeekedStream
from kvstream.input.inspection import OneSource, damage_of, not_text, without_hole
from kvstream.input.messages import Messages
from kvstream.input.source import shown_name

BLOCK = 64 * 1024
"""Bytes to request in one read."""
LARGE = 4 * BLOCK
"""The same where only the speed of a long text matters."""


@dataclass
class SourcePieces:
    """Reads one source after the other, in pieces; the options are those of `open_sources`."""

    messages: Messages
    plain: bool
    stdin: BinaryIO | io.RawIOBase | None
    max_unpacked: int | None
    follow: Follow | None
    large: bool = False
    """Whether pieces are of LARGE bytes."""
    followed_file: FollowedFile | None = None
    _stream: PeekedStream | None = None

    @property
    def offset(self) -> int:
        """Bytes of the open source so far, as they are stored; 0 if none is open."""
        return 0 if self._stream is None else self._stream.offset

    def of(self, source: OneSource) -> Generator[bytes | Part, None, None]:
        """Yield a source in pieces, empty at a pause, or as parts."""
        name = shown_name(source.name)
        try:
            if source.kind in documents.LIBRARIES and source.path is not None:
                yield from documents.parts_of(
                    source.kind, source.path, self.messages.notes, self.messages.general
                )
                return
            with self._open(source) as head:
                as_it_is = self.plain or source.plain or source.followed
                kind = "plain" if source.followed or source.plain else formats.kind_of(head.look())
                if kind in documents.STREAMED and not as_it_is:
                    head.may_pause = kind == "html"
                    yield from self._document(kind, head, name)
                    return
                if kind in documents.LIBRARIES and not as_it_is:
                    raise SourceError(
                        f"{name} is {kind.upper()}, which is not read from a pipe: name the file."
                    )
                suffix = "" if source.path is None else source.path.suffix.lower()
                text = kind == "plain" and not as_it_is
                if text and suffix in (".pdf", ".epub", ".docx"):
                    message = f"{name} is no {suffix[1:].upper()}; it is read as text."
                    self.messages.general.append(message)
                if text and (form := formats.other_captions(head.look())):
                    message = "which are read as text with their codes; save them as WebVTT first."
                    self.messages.general.append(f"{name} has captions in {form}, {message}")
                file = source.path is not None and source.path.is_file()
                fill = file and not source.followed and kind == "plain"
                plain = self._plain(head, kind, source, as_it_is=as_it_is, fill=fill)
                if kind in COMPRESSED and not as_it_is:
                    first = next(plain, b"")
                    plain = chain([first] if first else [], plain)
                    inside = formats.kind_inside(first, source.name)
                    if inside in documents.STREAMED:
                        yield from self._document(inside, formats.stream_of(plain), name)
                        return
                yield from plain
                if kind == "plain" and source.path is not None and source.size is not None:
                    self._warn_if_cut(source, source.path, source.size)
        except SourceError as error:
            if not source.folder:
                raise
            self.messages.damage(source, error)
        except OSError as error:
            failure = SourceError(f"{name} cannot be read: {error.strerror or error}.")
            if not source.folder:
                raise failure from error
            self.messages.damage(source, failure)
        finally:
            self._stream = None

    def _warn_if_cut(self, source: OneSource, path: Path, size: int) -> None:
        """Warn of a file that has become shorter than its size at first. Files of the kernel have
        a size that says nothing, but it stays."""
        if self.offset < size and path.exists() and path.stat().st_size < size:
            self.messages.ended_early(
                source,
                f"{shown_name(source.name)} was cut while it was read: of {size:,} bytes, "
                f"{self.offset:,} were read.",
            )

    def _document(self, kind: str, head: PeekedStream, name: str) -> Iterator[bytes | Part]:
        """Yield the text of a document. Raises SourceError without the extra for it."""
        problem = documents.missing_extra(kind, name)
        if problem:
            raise SourceError(problem)
        messages = self.messages
        for part in documents.stream_parts(kind, head, name, messages.notes, messages.general):
            yield part or b""

    def _plain(
        self, head: PeekedStream, kind: str, source: OneSource, *, as_it_is: bool, fill: bool
    ) -> Iterator[bytes]:
        """Unpack ``head``; ``fill`` the first piece, to guess its encoding. Raises SourceError."""
        name = shown_name(source.name)
        read = formats.decompressor(head, kind, name)
        damage, limit = formats.damage_errors() if kind in COMPRESSED else (), self.max_unpacked
        position, start, hole, size = 0, b"", 0, LARGE if self.large else BLOCK
        while True:
            try:
                data = read(size)
                if data is None:
                    yield b""
                    continue
            except EOFError as error:
                if not position:
                    raise SourceError(damage_of(name, kind, 0, error)) from error
                self.messages.ended_early(
                    source,
                    f"{name} ends in the middle of its {kind} data, after {position:,} bytes of "
                    "text; everything before that was read.",
                )
                return
            except damage as error:
                raise SourceError(damage_of(name, kind, position, error)) from error
            if fill and not position:
                while len(data) < size and (more := read(size - len(data))):
                    data += more
            if len(start) < SNIFF and not as_it_is:
                some = data if start else without_hole(data)
                hole, start = hole + len(data) - len(some), start + some[: SNIFF - len(start)]
                ends = not data or len(start) == SNIFF  # before that, a line may be incomplete
                problem = not_text(start if ends else start + b"\n", name, hole if ends else 0)
                if problem:
                    raise SourceError(problem)
            if not data:
                return
            position += len(data)
            if kind in COMPRESSED and limit is not None and position > limit:
                raise SourceError(
                    f"{name} unpacks to more than {limit:,} bytes, if it ever ends; raise "
                    "--max-unpacked if that is right."
                )
            yield data

    @contextmanager
    def _open(self, source: OneSource) -> Iterator[PeekedStream]:
        """Open a source. Streams of the caller are not closed."""
        stream: Any = source.stream if source.stream is not None else self.stdin
        if source.followed and source.path is not None and self.follow is not None:
            stream = self.followed_file = FollowedFile(source.path, self.follow)
        elif source.path is not None:
            stream = source.path.open("rb")
        elif isinstance(stream, bytes):
            stream = io.BytesIO(stream)
        elif stream is None and sys.stdin is None:
            raise SourceError("Standard input is closed; name a file instead.")
        own = source.path is not None
        with stream if own else nullcontext(sys.stdin.buffer if stream is None else stream) as file:
            self._stream = PeekedStream(formats.reader_of(file))
            yield self._stream
