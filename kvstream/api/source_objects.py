"""Sources of the Python API: paths, open files and iterators of text, each with a name.

A ``str`` or ``PathLike`` is always a path. Text itself is passed as ``text=``.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from kvstream.api.checks import kind, text_of
from kvstream.errors import SourceError, UsageError
from kvstream.input import folders
from kvstream.run.request import Request
from kvstream.settings import MOST_UNPACKED, size_of
from kvstream.store.writing import same

if TYPE_CHECKING:
    from kvstream.input.inspection import NamedPath, NamedStream
    from kvstream.input.sources import SourceSet

TEXT = "text"
"""Name of a text without a name, in citations."""


@runtime_checkable
class Readable(Protocol):
    """An open file in binary or text mode, or another object with the same `read`."""

    def read(self, size: int = -1, /) -> str | bytes | None: ...


Content: TypeAlias = "str | os.PathLike[str] | Readable | Iterator[str] | Iterator[bytes]"
"""A path, an open file, or an iterator of pieces. Files and iterators are read once, in order."""


@dataclass(frozen=True)
class Source:
    """A source with its own name, which citations use."""

    content: Content
    name: str


@dataclass(frozen=True)
class Text:
    """Text with a name, which citations use. It is read as plain text in any case."""

    text: str
    name: str


SourceLike: TypeAlias = "Content | Source | Text | Sequence[Content | Source | Text] | SourceSet"
"""One source, or a list, tuple or other sequence of several sources, which are read in order."""


def would_read(folder: Path, path: Path, *, growing: bool = False) -> bool:
    """Return whether a reading of `folder` reads the file at `path`, or would, once it is there:
    also by a link, but not if kvstream wrote it, which nobody can tell while it is `growing`.
    """
    listed = folders.would_read(folder, path)
    if not listed and os.path.isfile(path):
        with suppress(OSError):  # the reading reports a folder that it cannot list
            listed = any(same(path, each) for each in folders.files_in(folder, Counter()))
    return listed and (growing or not folders.is_own(path))


def open_sources(
    source: SourceLike | None = None,
    *,
    text: str | Iterable[str] | None = None,
    plain: bool = False,
    max_unpacked: int | str | None = None,
    follow: bool = False,
    only: str | None = None,
    since: str | None = None,
    until: str | None = None,
    due: Callable[[], bool] = lambda: False,
    interrupted: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda _: None,
) -> SourceSet:
    """Check every source and prepare to read them in order, once.

    `source` is a path, an open file, an iterator of text or bytes, or a list of these; ``-`` is
    standard input. `text` is text itself, or an iterable of its pieces. With `plain`, files of any
    format are read as UTF-8 text. A compressed source that unpacks to more than `max_unpacked`
    bytes (default ``"16GB"``) is refused. With `follow`, the reading waits for more text at the end
    of the last file until `interrupted` returns True, and pauses while `due` returns True; `tell`
    gets a message if that file cannot be read any more. `only`, `since` and `until` choose a part
    of the text, as on the command line.

    Raises SourceError for a missing, unreadable or binary source, and UsageError if neither or both
    of `source` and `text` are given.
    """
    from kvstream.input.following import Follow
    from kvstream.input.sources import SourceSet
    from kvstream.input.sources import open_sources as open_each

    if isinstance(source, SourceSet) and text is None:
        return source
    items = several(source)
    if (text is None) == (not items):
        raise UsageError(
            "Nothing to read: give a path, an open file, or the text itself as text=."
            if text is None
            else "Give either a source or text=, not both."
        )
    paths = [_with_name(each) for each in items] if text is None else [_text(text)]
    sources = open_each(
        paths,
        plain=plain,
        max_unpacked=MOST_UNPACKED if max_unpacked is None else size_of(max_unpacked),
        follow=Follow(interrupted, due, tell) if follow else None,
    )
    if only or since or until:
        from kvstream.exact.scopes import restrict

        part = {"only": only, "since": since, "until": until}
        restrict(sources, *(text_of(name, value or "") for name, value in part.items()))
    return sources


def sources_for(
    request: Request, source: SourceLike | None, text: str | Iterable[str] | None = None, **how: Any
) -> SourceSet:
    """Open sources with the options of a request, and others of `open_sources`. Raises as it."""
    options = ("plain", "max_unpacked", "follow", "only", "since", "until", "interrupted")
    if request.checkpoint is not None:
        paths = (each.content if isinstance(each, Source) else each for each in several(source))
        refuse_over(request.checkpoint, filter(is_path, paths))
    how = {"due": request.due, **{name: getattr(request, name) for name in options}, **how}
    return open_sources(source, text=text, **how)


def several(source: SourceLike | None) -> list[Any]:
    """Return the sources of a sequence, or a single source, as a list."""
    if source is None:
        return []
    if isinstance(source, Sequence) and not isinstance(source, str | bytes | bytearray):
        return list(source)
    return [source]


def refuse_over(path: str | os.PathLike[str], sources: Iterable[Any]) -> None:
    """Raise UsageError if a file at `path` would replace one of the sources."""
    for source in sources if os.path.isfile(path) else ():
        with suppress(ValueError):  # a name that is no path
            if same(Path(path), Path(source)):
                raise UsageError(
                    f"{path} is a source, and the new file would destroy it; name another file."
                )


def is_path(source: object) -> bool:
    """Return whether a source is a path, which can be read again, and not standard input."""
    content = source.content if isinstance(source, Source) else source
    return isinstance(content, str | os.PathLike) and os.fspath(content) != "-"


def _with_name(source: Content | Source | Text) -> str | NamedPath | NamedStream:
    from kvstream.input.inspection import NamedPath, NamedStream

    if isinstance(source, Text | Source):
        text_of("name", source.name)
    if isinstance(source, Text):
        return NamedStream(source.name, _bytes(source.text), plain=True)
    name = source.name if isinstance(source, Source) else None
    content = source.content if isinstance(source, Source) else source
    if isinstance(content, str | os.PathLike):
        path = os.fspath(content)
        if not isinstance(path, str):
            raise UsageError(f"A path is text, not bytes: {path!r}.")
        return path if name is None else NamedPath(name, path)
    if isinstance(content, Readable):
        own = getattr(content, "name", None)
        name = name or (own if isinstance(own, str) else "stream")
        decoded = isinstance(content, io.TextIOBase)
        return NamedStream(name, _FileReader(content, name), plain=decoded)
    if isinstance(content, Iterator):
        return NamedStream(name or TEXT, _PieceReader(content))
    raise UsageError(
        f"The type {type(content).__name__} cannot be read. Give a path, an open file, an iterator "
        "of text or bytes, or the text itself as text=."
    )


def _text(text: str | Iterable[str]) -> NamedStream:
    from kvstream.input.inspection import NamedStream

    if isinstance(text, str):
        return NamedStream(TEXT, _bytes(text), plain=True)
    if not isinstance(text, Iterable) or isinstance(text, bytes | Mapping | Set):
        raise UsageError(f"text= is a str or an iterable of str, not {type(text).__name__}.")
    return NamedStream(TEXT, _PieceReader(iter(text)), plain=True)


def _bytes(piece: str | bytes) -> bytes:
    """Return a piece as UTF-8 bytes. A lone surrogate, which has none, becomes a question mark."""
    if isinstance(piece, str):
        return piece.encode("utf-8", "replace")
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    raise UsageError(f"A piece of a source is str or bytes, not {kind(piece)}.")


class _PieceReader:
    """Reads an iterator of text or bytes like a file."""

    _rest = b""
    _gave = False
    reason = ""
    """If the source was empty from the start: a likely reason, and what to do about it."""

    def __init__(self, pieces: Iterator[str] | Iterator[bytes]) -> None:
        self.pieces = pieces

    def read(self, size: int, /) -> bytes | None:
        """Return at most `size` bytes; empty at the end, None if there is nothing yet."""
        if not self._rest:
            piece = self._next(size)
            if not piece:
                if piece is not None and not self._gave:
                    self.reason = self._reason()
                return piece
            self._rest, self._gave = piece, True
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def _next(self, size: int) -> bytes | None:
        return next(filter(None, map(_bytes, self.pieces)), b"")

    def _reason(self) -> str:
        return "the iterator has no text, or was read to its end already; give a new one."


class _FileReader(_PieceReader):
    """Reads an open file in binary or text mode as bytes."""

    def __init__(self, file: Readable, name: str) -> None:
        from kvstream.input.formats import reader_of

        self._file, self._name = file, name
        self._take: Callable[[int], str | bytes | None] = reader_of(file)
        self.ends_on_interrupt = bool(getattr(file, "ends_on_interrupt", False))
        """Whether the file ends by itself when the run is interrupted."""

    def fileno(self) -> int:
        """Return the descriptor. Raises an error if the file has none."""
        return self._file.fileno()  # type: ignore[attr-defined, no-any-return]

    def _reason(self) -> str:
        with suppress(AttributeError, OSError, ValueError):  # a pipe
            if self._file.tell():  # type: ignore[attr-defined]
                return f"{self._name} was read to its end already; open it again, or give its path."
        return ""

    def _next(self, size: int) -> bytes | None:
        """Read from the file. Raises SourceError if it is closed or not in its encoding."""
        try:
            piece = self._take(size)
            return None if piece is None else _bytes(piece)
        except OSError:
            raise
        except ValueError as error:
            if getattr(self._file, "closed", False):
                raise SourceError(f"{self._name} is a closed file; open it again.") from None
            raise SourceError(
                f"{self._name} cannot be read: {error}. Open it in binary mode, or give its path."
            ) from error


def identity(sources: SourceSet) -> dict[str, Any]:
    """Return what identifies the text of sources, for a receipt."""
    from kvstream.input.source import identity

    return identity(sources.records)
