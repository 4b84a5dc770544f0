"""Cut sources into excerpts, as a reading does."""

from __future__ import annotations

from collections.abc import Iterator

from kvstream.input.source import Source
from kvstream.passages.excerpts import Excerpt, ExcerptCutter


def excerpts_of(sources: Source) -> Iterator[Excerpt]:
    """Yield the sources as excerpts, in order."""
    cutter = ExcerptCutter()
    for block in sources:
        cutter.feed(block)
        yield from cutter.take()
    yield from cutter.take(final=True)
