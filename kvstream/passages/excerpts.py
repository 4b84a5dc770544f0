"""Cut the sources into excerpts of a few sentences, and use some of them as a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvstream.input.blocks import TextBlock, utf8_starts
from kvstream.input.source import SourceRecord
from kvstream.input.table_reader import header_of
from kvstream.tokenization.passages import Passage, Passages

LENGTH = 240
"""Bytes of an excerpt, about 64 tokens. It ends with the sentence that reaches this size."""


@dataclass(frozen=True)
class Excerpt:
    """Consecutive sentences or lines of one source."""

    passages: tuple[Passage, ...]
    header: str = ""
    """For later rows of a table: its first line, which the model reads before the rows."""
    names_columns: bool = False
    """Whether it begins with this line."""

    @property
    def start(self) -> int:
        """Global byte offset of the first character."""
        return self.passages[0].start

    @property
    def end(self) -> int:
        return self.passages[-1].end

    @property
    def bytes(self) -> int:
        """Bytes of its text in UTF-8."""
        return sum(len(passage.text.encode("utf-8", "replace")) for passage in self.passages)

    def blocks(self) -> Iterator[TextBlock]:
        """Yield the text, with a space, one newline or two between sentences, as in the source."""
        last: Passage | None = None
        if self.header:  # it takes no bytes of the source here
            text = f"{self.header}\n"
            yield TextBlock(text, self.start, self.passages[0].source, _widths(text, 0))
        for passage in self.passages:
            if last is not None:
                lines = passage.line_start - last.line_end
                between = "\n" * min(lines, 2) or " "
                yield TextBlock(between, last.end, passage.source, _widths(between, 0))
            size = passage.end - passage.start
            plain = len(passage.text.encode("utf-8", "replace")) == size
            widths = None if plain else _widths(passage.text, size)
            yield TextBlock(passage.text, passage.start, passage.source, widths)
            last = passage

    @property
    def text(self) -> str:
        """What the model reads."""
        return "".join(block.text for block in self.blocks())

    @property
    def own_text(self) -> str:
        """The text without the header, which is that of other excerpts."""
        return self.text[len(self.header) + 1 :] if self.header else self.text


def _widths(text: str, size: int) -> np.ndarray:
    """Spread `size` source bytes over the characters, in proportion to their UTF-8 bytes."""
    ends = utf8_starts(text)[1:]
    return np.diff(np.minimum(ends * size // max(int(ends[-1]), 1), size), prepend=0)


class ExcerptCutter:
    """Cuts the blocks of the sources into excerpts, as they are fed in order."""

    def __init__(self) -> None:
        self._passages = Passages()
        self._waiting: list[Passage] = []
        self._source, self._header = -1, ""

    def feed(self, block: TextBlock) -> None:
        """Add the next block of text."""
        self._passages.feed(block)

    def take(self, *, final: bool = False) -> Iterator[Excerpt]:
        """Yield the excerpts that are complete, each once; with `final` also the rest."""
        waiting = self._waiting
        for passage in self._passages.take(final=final):
            if waiting and waiting[0].source != passage.source:
                yield self._cut()
            waiting.append(passage)
            if sum(p.end - p.start for p in waiting) >= LENGTH:
                yield self._cut()
        if final and waiting:
            yield self._cut()

    def _cut(self) -> Excerpt:
        passages, self._waiting[:] = tuple(self._waiting), []
        return self.excerpt(passages)

    def excerpt(self, passages: tuple[Passage, ...]) -> Excerpt:
        """Return the next excerpt of a source; those after its first one get its header."""
        first = passages[0]
        if first.source == self._source:
            return Excerpt(passages, self._header)
        lines = [passage.text for passage in passages] if first.line_start <= 1 else []
        self._source, self._header = first.source, header_of(lines)
        return Excerpt(passages, names_columns=self._header != "")


class Excerpts:
    """Excerpts as a source, with their byte offsets in the original sources."""

    ends_on_interrupt, ended_line = False, True
    unread: int | None = None
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    records: Sequence[SourceRecord] = ()

    def __init__(
        self, excerpts: Sequence[Excerpt], names: Sequence[str], bases: Sequence[int]
    ) -> None:
        self.names, self.bases, self._excerpts = list(names), list(bases), list(excerpts)
        self.bytes_read = 0

    @property
    def passages(self) -> Passages:
        """Their passages, cut as in the first pass."""
        parts = [p for excerpt in self._excerpts for p in excerpt.passages]
        passages = Passages()
        ends = (0, *(p.end for p in parts))
        passages.restore([replace(p, reach=end) for p, end in zip(parts, ends, strict=False)])
        return passages

    def size_hint(self) -> int:
        """Return the bytes of all excerpts."""
        return sum(excerpt.end - excerpt.start for excerpt in self._excerpts)

    def __iter__(self) -> Iterator[TextBlock]:
        last: Excerpt | None = None
        for excerpt in self._excerpts:
            if last is not None:
                gap = "\n" if excerpt.start <= last.end + 2 else "\n\n"
                yield TextBlock(gap, last.end, excerpt.passages[0].source, _widths(gap, 0))
            for block in excerpt.blocks():
                self.bytes_read += len(block.text)
                yield block
            last = excerpt

    def to_json(self) -> list[dict[str, Any]]:
        """Return the places of the excerpts in their sources."""
        return [
            {
                "source": self.names[excerpt.passages[0].source],
                "byte_start": excerpt.start - self.bases[excerpt.passages[0].source],
                "byte_end": excerpt.end - self.bases[excerpt.passages[0].source],
                **_extent(excerpt).where(),
            }
            for excerpt in self._excerpts
        ]


def _extent(excerpt: Excerpt) -> Passage:
    """Return a passage that spans the lines or pages of the whole excerpt."""
    first, last = excerpt.passages[0], excerpt.passages[-1]
    page = last.page_end or last.place
    return replace(first, line_end=last.line_end, page_end=page if isinstance(page, int) else None)
