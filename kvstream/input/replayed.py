"""A source whose first blocks were looked at before it is read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from kvstream.input.blocks import TextBlock
from kvstream.input.source import RereadableSource, SourceRecord


class Replayed:
    """Whoever iterates while it is `looking` leaves the blocks for the next one.

    Blocks that were looked at are given back as they are read again.
    """

    def __init__(self, source: RereadableSource) -> None:
        self.source = source
        self.looking = True
        self._blocks = iter(source)
        self._seen: deque[TextBlock] = deque()

    def __iter__(self) -> Iterator[TextBlock]:
        if self.looking:
            for block in self._blocks:
                self._seen.append(block)
                yield block
            return
        while self._seen:
            yield self._seen.popleft()
        yield from self._blocks

    def size_hint(self) -> int | None:
        """As the source says."""
        return self.source.size_hint()

    @property
    def ends_on_interrupt(self) -> bool:
        """As the source says."""
        return self.source.ends_on_interrupt

    @property
    def bytes_read(self) -> int:
        """Of the source, what was looked at included."""
        return self.source.bytes_read

    @property
    def names(self) -> Sequence[str]:
        """Of each text."""
        return self.source.names

    @property
    def bases(self) -> Sequence[int]:
        """Where each text that was begun begins."""
        return self.source.bases

    @property
    def records(self) -> Sequence[SourceRecord]:
        """Of every text that was begun."""
        return self.source.records

    @property
    def ended_line(self) -> bool:
        """Whether what was read so far ends with a newline."""
        return self.source.ended_line

    @property
    def warnings(self) -> Sequence[str]:
        """As the source says."""
        return self.source.warnings

    @property
    def notes(self) -> Sequence[str]:
        """As the source says."""
        return self.source.notes

    def again(self) -> RereadableSource:
        """The same texts, opened anew."""
        return self.source.again()

    def follow_on(self, earlier: Sequence[SourceRecord], *, ended_line: bool) -> None:
        """Count from behind texts that were read before."""
        self.source.follow_on(earlier, ended_line=ended_line)
