"""What a reading needs of its sources, whatever they are: files, a pipe, excerpts of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvstream.errors import SourceError
from kvstream.input.blocks import TextBlock


@dataclass(frozen=True)
class SourceRecord:
    """What is known of a source that was read, or begun."""

    name: str
    bytes: int
    """Decoded."""
    sha256: str
    """Of the decoded bytes, in hex."""


@dataclass(frozen=True)
class LineCounts:
    """Lines of logs."""

    lines: int = 0
    thinned: int = 0
    """Counted, but not read: they repeat others."""
    matches: tuple[tuple[str, int, str], ...] = ()
    """Name of the source, number and text of the lines with the rarest words of the questions."""

    def __add__(self, more: LineCounts) -> LineCounts:
        """Those of two readings, and the matches of the second one."""
        return LineCounts(self.lines + more.lines, self.thinned + more.thinned, more.matches)

    def to_json(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "read": self.lines - self.thinned,
            "thinned": self.thinned,
            "matches": [{"source": s, "line": n, "text": t} for s, n, t in self.matches],
        }


class Source(Protocol):
    """One or more texts, read once, in order, as blocks."""

    def __iter__(self) -> Iterator[TextBlock]: ...

    def size_hint(self) -> int | None:
        """Decoded bytes in all, at least roughly; None for a pipe."""

    @property
    def ends_on_interrupt(self) -> bool:
        """Whether what is read now ends by itself, and soon, when the run is interrupted.

        A pipe does: what it has brought already comes first. A file does not.
        """

    @property
    def bytes_read(self) -> int:
        """Decoded bytes so far."""

    @property
    def names(self) -> Sequence[str]:
        """Of each text."""

    @property
    def bases(self) -> Sequence[int]:
        """Global byte offset of the beginning of each text that was begun; grows as they are."""

    @property
    def records(self) -> Sequence[SourceRecord]:
        """Of every text that was begun."""

    @property
    def ended_line(self) -> bool:
        """Whether what was read so far ends with a newline."""

    @property
    def warnings(self) -> Sequence[str]:
        """Why an answer may be wrong; complete when all has been read."""

    @property
    def notes(self) -> Sequence[str]:
        """What else the user should know; complete when all has been read."""


class RereadableSource(Source, Protocol):
    """A source that can be opened anew, and can follow on others."""

    def again(self) -> RereadableSource:
        """The same texts, opened anew. Raises SourceError where they can be read only once."""

    def follow_on(self, earlier: Sequence[SourceRecord], *, ended_line: bool) -> None:
        """Count from behind texts that were read before.

        `ended_line`: whether they ended with a newline.
        """


class EmptyError(SourceError):
    """The sources hold no byte of text, and nothing in them is damaged."""


def nothing_in(names: Sequence[str], held: str) -> str:
    """What to tell of sources that hold no text, but `held`."""
    shown = ", ".join(shown_name(name) for name in names[:3])
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    remedy = "name another file"
    if "-" in names:
        remedy = "name a file, or check the command before the pipe"
    return f"Nothing to read: {shown}{more} held {held}; {remedy}."


def shown_name(name: str) -> str:
    """The name of a source for a message."""
    return "standard input" if name == "-" else name
