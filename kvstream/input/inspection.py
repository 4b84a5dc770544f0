"""Inspect files and folders before they are read: the kind of each file, and what is no text."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kvstream.errors import SourceError, UsageError
from kvstream.input import documents, formats, pseudo
from kvstream.input.encodings import by_mark
from kvstream.input.folders import FIRST, HIDDEN, files_in, name_of, output_in
from kvstream.input.formats import COMPRESSED, MAGIC, SNIFF, SUFFIXES, PeekedStream
from kvstream.input.source import shown_name

NAMED = 10
"""Most skipped files of one kind that a warning names."""
LONGEST_NAME = 300
"""Characters of a name in an error message."""


@dataclass
class OneSource:
    """A source, with what is known of it before and while it is read."""

    name: str
    path: Path | None = None
    """None: standard input."""
    size: int | None = None
    """Bytes of a regular file; None for a pipe, whose kind is detected when it is read."""
    kind: str = "plain"
    length: int | None = None
    """Decoded bytes, known after all have been read."""
    followed: bool = False
    """Whether to wait for more data that others write to it."""
    folder: str = ""
    """The named folder that contains the file; empty if the file itself was named."""
    estimate: int | None = None
    """Estimated bytes of text of a document, from its structure and a sample."""
    share: float = 0.0
    """Share of a document that has been converted: 0 to 1."""
    text_bytes: int = 0
    """Bytes of text that were converted from a document."""
    gave_text: bool = False
    """Whether the source gave text other than white space."""
    problem: str | None = None
    """Why it was not read, or not to its end."""
    digest: Any = field(default_factory=hashlib.sha256, repr=False)
    """SHA-256 of the decoded bytes so far."""
    file_sha256: str | None = None
    """SHA-256 of the file as it is, if it is not that of the text."""
    stream: ByteStream | bytes | None = None
    """The stream or text to read instead of a path."""
    plain: bool = False
    """Whether to read it as UTF-8 text, regardless of its first bytes."""
    output: str = ""
    """What the file is, if kvstream wrote it."""

    def digest_of_file(self) -> str | None:
        """Return the SHA-256 of a file that was read, None if it is that of the text."""
        if self.path is None or self.size is None or self.length is None or self.kind == "plain":
            return None
        if self.file_sha256 is None:
            with suppress(OSError), self.path.open("rb") as file:
                self.file_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return self.file_sha256 or None


class ByteStream(Protocol):
    """An open file: `read` returns at most `size` bytes, empty at the end, None: no data yet."""

    def read(self, size: int, /) -> bytes | None: ...


@dataclass(frozen=True)
class NamedStream:
    """An open file as a source, which is read once and left open; or bytes in memory."""

    name: str
    stream: ByteStream | bytes
    plain: bool = False
    """Whether it is UTF-8 text, so that nothing is unpacked or converted."""


@dataclass(frozen=True)
class NamedPath:
    """A file or folder under another name."""

    name: str
    path: str


def sources_of(
    item: str | NamedPath | NamedStream, warnings: list[str], notes: list[str], *, plain: bool
) -> list[OneSource]:
    """Return what was named as one source, or the files of a folder; ``-`` is standard input.

    Raises UsageError for an empty name, and SourceError for what cannot be read or is binary.
    """
    if isinstance(item, NamedStream):
        size = len(item.stream) if isinstance(item.stream, bytes) else None
        _refuse_endless(item.name, item.stream)
        return [OneSource(item.name, size=size, stream=item.stream, plain=item.plain)]
    name, place = (item, item) if isinstance(item, str) else (item.name, item.path)
    if place == "-":
        _refuse_endless("standard input", sys.stdin)
        return [OneSource("-")]
    if not place:  # as a path it would mean the current folder
        raise UsageError("The name of a source is empty; name a file or a folder.")
    path = Path(place)
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            return of_folder(path, warnings, notes, plain=plain)
        _refuse_endless(name, path)
        source, problem = look(path, name, plain=plain)
    except FileNotFoundError:
        raise SourceError(f"{quote(name)} does not exist; check the path.") from None
    except OSError as error:
        raise SourceError(f"{quote(name)} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:  # a NUL in the name
        raise SourceError(f"{name!r} is not a path: {error}.") from None
    if problem:
        raise SourceError(problem)
    return [source]


def _refuse_endless(name: str, place: Any) -> None:
    """Raise SourceError for a device such as /dev/zero. Terminals end, and /dev/null is empty."""
    if not isinstance(place, Path):
        try:
            place = place.fileno()
        except (AttributeError, OSError, ValueError):  # it is not a file, or closed
            return
    status = os.stat(place)
    if pseudo.kind(status) == "device" and not os.path.samestat(status, os.stat(os.devnull)):
        raise SourceError(
            f"{quote(shown_name(name))} is a device that may never end; write what you need of it "
            "to a file, as with head -c 1M, and name the file."
        )


def of_folder(
    folder: Path, warnings: list[str], notes: list[str], *, plain: bool
) -> list[OneSource]:
    """List the text files in a folder; name others in `warnings` and `notes`. SourceError."""
    sources: list[OneSource] = []
    counts: Counter[str] = Counter()
    own: Counter[str] = Counter()
    names: defaultdict[str, list[str]] = defaultdict(list)

    for path in files_in(folder, counts):
        try:
            source, problem = look(path, name_of(path), plain=plain)
        except OSError:
            names["unreadable file"].append(str(path.relative_to(folder)))
            continue
        if source.output:
            own[source.output] += 1
        elif not problem:
            source.folder = str(folder)
            sources.append(source)
        else:
            extra = re.search(r"kvstream\[\w+\]", problem)
            what = f"file that needs {extra[0]}" if extra else "binary file"
            what = "damaged file" if " is damaged: " in problem else what
            names[what].append(str(path.relative_to(folder)))
    hidden = counts.pop(HIDDEN, 0) > 0
    others, ours = ([f"{n:,} × {what}" for what, n in each.items()] for each in (counts, own))
    for what, files in names.items():
        more = f", {len(files) - NAMED:,} more" if len(files) > NAMED else ""
        others.append(f"{len(files):,} × {what} ({', '.join(map(quote, files[:NAMED]))}{more})")
    if not sources:
        raise SourceError(no_text_files([str(folder)], others + ours, hidden=hidden))
    if ours:
        notes.append(f"Left out of {folder}: {', '.join(ours)}.")
    if others:
        warnings.append(f"Skipped in {folder}: {', '.join(others)}.")
    return sources


def no_text_files(folders: Sequence[str], others: Sequence[str], *, hidden: bool) -> str:
    """Return the message for folders without text; `hidden`: some files are, or are ignored."""
    text = f"{', '.join(folders)} {'has' if len(folders) == 1 else 'have'} no text files"
    left_out = ", ".join([*(["hidden and ignored files"] if hidden else []), *others])
    if not left_out:
        return f"{text}; name another folder, or a file."
    return f"{text} (skipped: {left_out}); name the files themselves."


def look(path: Path, name: str, *, plain: bool) -> tuple[OneSource, str | None]:
    """Return the source of a file, and why it cannot be read as text, or None. Raises OSError."""
    status = path.stat()
    if pseudo.kind(status) is not None or not stat.S_ISREG(status.st_mode):
        return OneSource(name, path), None
    source = OneSource(name, path, size=status.st_size)
    with path.open("rb") as file:
        source.output = output_in(file.peek(FIRST))
        beginning = PeekedStream(formats.reader_of(file))
        head = beginning.look()
        source.kind = formats.kind_of(head)
        if head.startswith(MAGIC["zip"]) and not plain:
            try:
                source.kind = documents.kind_of_zip(path, name)
            except SourceError as error:
                return source, str(error)
        if source.kind == "plain" and not_text(head, name) is None:
            source.kind = SUFFIXES.get(path.suffix.lower(), "plain")
        if plain and source.kind not in COMPRESSED:
            source.kind = "plain"
        if source.kind in documents.LIBRARIES:
            return source, documents.missing_extra(source.kind, name)
        start, hole = b"", 0
        try:
            read = formats.decompressor(beginning, source.kind, name)
            # One read may return less, such as only the bytes peeked at to detect the kind.
            while len(start) < SNIFF and (more := read(SNIFF - len(start))):
                some = more if start or plain else without_hole(more)
                hole, start = hole + len(more) - len(some), start + some
        except SourceError as error:
            return source, str(error)
        except formats.damage_errors() as error:
            if not start:  # else truncated, or damaged later: the data before that will be read
                return source, damage_of(name, source.kind, 0, error)
    inside = formats.kind_inside(start, name)
    if source.kind in COMPRESSED and not plain and inside in documents.STREAMED:
        return source, documents.missing_extra(inside, name)
    return source, None if plain else not_text(start, name, hole)


_HOLE = re.compile(rb"(?<=[^\n\r\0])\0+(?=[^\n\r\0])")
_OF_NO_TEXT = re.compile(rb"[\x01-\x06\x10-\x17\x19\x1c-\x1f\x7f]")
_TAR = slice(257, 262)
"""The place of ``ustar`` in an archive, whose other bytes may be text and NULs."""
_PACKED = {
    b"PK\x03\x04": "a ZIP archive", b"PK\x05\x06": "an empty ZIP archive", b"\x1f\x9d": "compress",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive", b"Rar!\x1a\x07": "a RAR archive", b"]\0\0": "LZMA",
    b"\x04\x22\x4d\x18": "LZ4", MAGIC["pdf"]: "a compressed PDF",
    **{MAGIC[kind]: f"{kind}, twice packed" for kind in ("gzip", "xz", "zstd")},
}  # fmt: skip
"""What must be unpacked first, by its first bytes. `not_text` sees no PDF that is a file."""


def without_hole(first: bytes) -> bytes:
    """Return the first bytes of a file without NULs before them, which are no byte order mark."""
    return first if by_mark(first) else first.lstrip(b"\0")


def not_text(start: bytes, name: str, hole: int = 0) -> str | None:
    """Return why a file with these first bytes, behind `hole` NULs, is binary, or None."""
    what = next((each for magic, each in _PACKED.items() if start.startswith(magic)), "")
    if what or start[_TAR] == b"ustar":
        return f"{name} is binary ({what or 'a tar archive'}); unpack it first, and name the files."
    if start.startswith(b"{\\rtf1"):
        return f"{name} is RTF, which is not read; save it as DOCX first, or read it with --text."
    if (not hole and b"\0" not in start) or by_mark(start):
        return None
    lines = start.count(b"\n")
    holes = sum(1 for _ in _HOLE.finditer(start))
    if 0 < lines >= holes and not _OF_NO_TEXT.search(start):
        return None
    if name.endswith(".kvs"):
        return f"{name} is no text; if it is a memory file, ask it with --memory {quote(name)}."
    return (
        f"{name} is binary (a NUL at byte {0 if hole else start.index(0):,}); convert it to text "
        "first, or read it as it is with --text."
    )


def damage_of(name: str, kind: str, position: int, error: BaseException) -> str:
    if isinstance(error, EOFError):
        return f"{name} is damaged: its {kind} data ends before any text; fetch or pack it again."
    return (
        f"{name} is damaged: its {kind} data cannot be unpacked after {position:,} bytes "
        f"({error}); fetch or pack it again."
    )


def quote(name: str) -> str:
    """Return a name for an error message: short, and in quotes if it contains white space."""
    if len(name) > LONGEST_NAME:  # a text that was passed as a path
        name = f"{name[:LONGEST_NAME]}..."
    return repr(name) if any(c.isspace() for c in name) else name
