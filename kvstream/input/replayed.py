"""A source that allows a look at its first blocks before it is read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from kvstream.input.blocks import TextBlock
from kvstream.input.source import RereadableSource, SourceOver, SourceRecord


class Replayed(SourceOver):
    """Yields the blocks that it gave while `looking` again, and releases them."""

    source: RereadableSource

    def __init__(self, source: RereadableSource) -> None:
        super().__init__(source)
        self.looking = True
        self._blocks = iter(source)
        self._seen: deque[TextBlock] = deque()

    def __iter__(self) -> Iterator[TextBlock]:
        if self.looking:
            for block in self._blocks:
                if block.text:  # an empty one is a pause, of which there may be any number
                    self._seen.append(block)
                yield block
            return
        while self._seen:
            yield self._seen.popleft()
        yield from self._blocks

    def again(self) -> RereadableSource:
        """Open the same texts again."""
        return self.source.again()

    def follow_on(self, earlier: Sequence[SourceRecord], *, ended_line: bool) -> None:
        """Count from the end of texts that were read before."""
        self.source.follow_on(earlier, ended_line=ended_line)
