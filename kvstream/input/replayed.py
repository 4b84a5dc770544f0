"""A source that allows a look at its first blocks before it is read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from kvstream.input.blocks import TextBlock
from kvstream.input.source import RereadableSource, SourceRecord


class Replayed:
    """A source whose blocks, if iterated while `looking` is True, are yielded again later.

    Stored blocks are released as they are read again.
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
        """As for the source."""
        return self.source.size_hint()

    @property
    def ends_on_interrupt(self) -> bool:
        """As for the source."""
        return self.source.ends_on_interrupt

    @property
    def bytes_read(self) -> int:
        """Number of decoded bytes of the source so far, including blocks looked at."""
        return self.source.bytes_read

    @property
    def names(self) -> Sequence[str]:
        """Names of all texts."""
        return self.source.names

    @property
    def bases(self) -> Sequence[int]:
        """Global byte offset of the beginning of each text that was begun."""
        return self.source.bases

    @property
    def records(self) -> Sequence[SourceRecord]:
        """Records of all texts that were begun."""
        return self.source.records

    @property
    def ended_line(self) -> bool:
        """Whether the text read so far ends with a newline."""
        return self.source.ended_line

    @property
    def warnings(self) -> Sequence[str]:
        """As for the source."""
        return self.source.warnings

    @property
    def notes(self) -> Sequence[str]:
        """As for the source."""
        return self.source.notes

    def again(self) -> RereadableSource:
        """Open the same texts again."""
        return self.source.again()

    def follow_on(self, earlier: Sequence[SourceRecord], *, ended_line: bool) -> None:
        """Count from the end of texts that were read before."""
        self.source.follow_on(earlier, ended_line=ended_line)
