"""The interface of sources for a reading: files, a pipe, or excerpts of them."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol

from kvstream.errors import SourceError
from kvstream.input.blocks import TextBlock

LISTED = 100
"""Maximum sources that a receipt lists one by one."""


@dataclass(frozen=True)
class SourceRecord:
    """Facts about a source that was read or begun."""

    name: str
    bytes: int
    """Decoded bytes."""
    sha256: str
    """SHA-256 of the decoded bytes, in hex."""
    part: int | None = field(default=None, compare=False)
    """Bytes of the part that was read, with --only, --since or --until."""
    begin: int | None = field(default=None, compare=False)
    end: int | None = field(default=None, compare=False)
    """Bytes of the text between which this part is."""
    file_sha256: str | None = field(default=None, compare=False)
    """SHA-256 of the file as it is, if its text is decompressed or converted."""
    problem: str | None = field(default=None, compare=False)
    """Why the source was not read, or not to its end."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are known."""
        return {name: value for name, value in vars(self).items() if value is not None}


def identity(records: Sequence[SourceRecord]) -> dict[str, Any]:
    """Return what identifies a text: bytes, digest (of several sources that of their digests, a
    line each), the first `LISTED` sources, and `part_bytes` if only a part was read."""
    digests = "".join(f"{record.sha256}\n" for record in records).encode()
    whole = records[0].sha256 if len(records) == 1 else hashlib.sha256(digests).hexdigest()
    read = sum(r.bytes if r.part is None else r.part for r in records)
    return {
        "bytes": sum(record.bytes for record in records),
        **({"part_bytes": read} if any(r.part is not None for r in records) else {}),
        "sha256": whole,
        "count": len(records),
        "sources": [record.to_json() for record in records[:LISTED]],
    }


@dataclass(frozen=True)
class LineCounts:
    """Counts of log lines."""

    lines: int = 0
    thinned: int = 0
    """Lines that were counted but not read, because they repeat others."""
    matches: tuple[tuple[str, int, str], ...] = ()
    """Lines with the rarest words of the questions: name of the source, line number, text."""

    def __add__(self, more: LineCounts) -> LineCounts:
        """Add the counts of two readings; the matches are those of the second one."""
        return LineCounts(self.lines + more.lines, self.thinned + more.thinned, more.matches)

    def to_json(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "read": self.lines - self.thinned,
            "thinned": self.thinned,
            "matches": [{"source": s, "line": n, "text": t} for s, n, t in self.matches],
        }


class Source(Protocol):
    """One or more texts, read once, in order, as blocks. `SourceSet` describes the properties."""

    def __iter__(self) -> Iterator[TextBlock]: ...
    def size_hint(self) -> int | None: ...
    @property
    def ends_on_interrupt(self) -> bool: ...
    @property
    def unread(self) -> int | None: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def bases(self) -> Sequence[int]: ...
    @property
    def records(self) -> Sequence[SourceRecord]: ...
    @property
    def ended_line(self) -> bool: ...
    @property
    def warnings(self) -> Sequence[str]: ...
    @property
    def notes(self) -> Sequence[str]: ...


class RereadableSource(Source, Protocol):
    """A source that can be opened again and can continue other sources."""

    def again(self) -> RereadableSource: ...
    def follow_on(self, earlier: Sequence[SourceRecord], *, ended_line: bool) -> None: ...


def _of_source(name: str) -> Any:
    return property(attrgetter(f"source.{name}"))


class SourceOver:
    """A source that reads another one, and has its properties unless a subclass has its own."""

    def __init__(self, source: Source) -> None:
        self.source = source

    size_hint = _of_source("size_hint")
    ends_on_interrupt = _of_source("ends_on_interrupt")
    unread = _of_source("unread")
    bytes_read = _of_source("bytes_read")
    names = _of_source("names")
    bases = _of_source("bases")
    records = _of_source("records")
    ended_line = _of_source("ended_line")
    warnings = _of_source("warnings")
    notes = _of_source("notes")


class Replay(SourceOver):
    """Yields the blocks that it gave while `looking` again, and releases them."""

    source: RereadableSource
    again = _of_source("again")
    follow_on = _of_source("follow_on")

    def __init__(self, source: RereadableSource) -> None:
        super().__init__(source)
        self.looking = True
        self._blocks = iter(source)
        self._ahead: deque[TextBlock] = deque()

    def __iter__(self) -> Iterator[TextBlock]:
        if self.looking:
            for block in self._blocks:
                if block.text:  # an empty one is a pause, of which there may be any number
                    self._ahead.append(block)
                yield block
            return
        while self._ahead:
            yield self._ahead.popleft()
        yield from self._blocks


class EmptyError(SourceError):
    """The sources contain no byte of text, and none of them is damaged."""


def nothing_in(names: Sequence[str], content: str) -> str:
    """Return the message for sources that contain only `content` and no text."""
    first = ", ".join(shown_name(name) for name in names[:3])
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    remedy = "name another file"
    if "-" in names:
        remedy = "name a file, or check the command before the pipe"
    return f"Nothing to read: {first}{more} held {content}; {remedy}."


def not_read(name: str, count: int) -> str:
    """Return the warning of a followed file that was not read to its end."""
    return f"The last {count:,} bytes of {name} were not read."


def shown_name(name: str) -> str:
    """Return the name of a source for a message."""
    return "standard input" if name == "-" else name.replace("\n", "␊")
