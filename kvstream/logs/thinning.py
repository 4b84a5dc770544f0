"""The lines of a log that a model reads: of lines that repeat, one once in a while.

The first lines of each template pass, then the ones whose number is a power of two, and behind
16,384 one in so many: of 10,000 lines 18. Where a line has a word of a question, eight lines of
each doubling pass, and one with a number or an identifier of a question always does. What goes on
from a line (a stack trace) goes with it. The others are counted. Offsets and line numbers stay
those of the source. All lines are searched for the words of the questions, those that do not pass
too.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from kvstream.input.blocks import TextBlock
from kvstream.input.source import LineCounts, Source, SourceRecord
from kvstream.logs.lines import (
    LONGEST_LINE,
    LineParser,
    component_of,
    continues,
    level_of,
    looks_like_log,
    message_of,
)
from kvstream.logs.summary import EXAMPLE
from kvstream.logs.templates import TemplateTree

HEAD = 32 * 1024
"""Characters of a source by which a log is recognized."""
FIRST = 8
"""Lines of a template that all pass."""
SELDOM = 1 << 14
"""Of so many lines of a template at least one passes."""
PER_ENTRY = 8
"""Characters for each entry of the budget that pass whole: a log that fits is not thinned."""
SILENT = 1 << 18
"""Characters of which nothing passes before a pause is told, so that a reading can be stopped."""
_WORD = re.compile(r"[\w.:/@-]*\w")
_COMMON = frozenset(
    """and are been could did does error errors first for from had happen happened has have how into
    last line lines many more much not that the then there they this was were what when where which
    who whose why will with
    """.split()  # noqa: SIM905
)
_MATCHES = 3
"""Maximum lines with words of a question that are shown."""
_KINDS = 64
"""Different sets of these words of which lines are held."""


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(sorted(map(re.escape, words)))})(?!\w)")


class Thinner:
    """Decides line by line what passes.

    Args:
        questions: lines that have their words pass more often.
    """

    def __init__(self, questions: Sequence[str] = ()) -> None:
        words = {word.casefold() for text in questions for word in _WORD.findall(text)} - _COMMON
        self._always = {w for w in words if len(w) > 2 and any(c.isdigit() for c in w)}
        asked = self._always | {w for w in words if len(w) > 2}
        self._asked = _any_of(asked) if asked else None
        self._seen = 0
        self._words: Counter[str] = Counter()
        self._lines: dict[frozenset[str], list[tuple[int, int, str]]] = {}
        self._parser = LineParser()
        self._tree = TemplateTree(
            split=lambda rest: (level_of(rest), message_of(rest)), name=component_of
        )
        self._passed = True

    def passes(self, line: str, source: int = 0, number: int = 0) -> bool:
        """Count a line, and say whether it is to be read."""
        self._seen += 1
        found = frozenset(self._asked.findall(line.casefold())) if self._asked is not None else None
        if found:
            self._note(found, source, number, line)
        time, rest = self._parser.parse(line)
        if time is None and (not line or line.isspace() or continues(line)):
            return self._passed
        count = self._tree.add(rest).count
        self._passed = (
            count <= FIRST
            or count % min(1 << (count.bit_length() - 1), SELDOM) == 0
            or (bool(found) and count % (1 << (count.bit_length() - 4)) == 0)
            or (bool(found) and not self._always.isdisjoint(found or ()))
        )
        return self._passed

    def _note(self, found: frozenset[str], source: int, number: int, line: str) -> None:
        """Hold the first lines of each set of words."""
        self._words.update(found)
        held = self._lines.get(found)
        if held is None and len(self._lines) < _KINDS:
            held = self._lines[found] = []
        if held is not None and len(held) < _MATCHES:
            held.append((source, number, line[:EXAMPLE]))

    def matches(self) -> list[tuple[int, int, str]]:
        """Source, number and text of the lines that have the rarest words of the questions."""
        weights = {
            found: sum(math.log2(2 * self._seen / self._words[word]) for word in found)
            for found in self._lines
        }
        best = sorted(self._lines, key=lambda found: (-weights[found], self._lines[found][0][:2]))
        return [line for found in best for line in self._lines[found]][:_MATCHES]


class ThinnedSource:
    """Sources whose logs are thinned; other texts pass as they are.

    Holds at most LONGEST_LINE characters of a line and a block.

    Args:
        source: what is thinned.
        whole: characters at the beginning that pass whole.
        questions: as for `Thinner`.
    """

    def __init__(self, source: Source, whole: int, questions: Sequence[str] = ()) -> None:
        self._source, self._whole = source, whole
        self._blocks = iter(source)
        self._ahead: list[TextBlock] = []
        self._thinner = Thinner(questions)
        self._number: int | None = None
        """The source that was looked at last."""
        self._begins = False
        self._is_log = False
        self._counts: LineCounts | None = None

    def __iter__(self) -> Iterator[TextBlock]:
        thinner = self._thinner
        lines: _Lines | None = None
        silent = 0
        while (block := self._next()) is not None:
            if self._begins:
                if lines is not None:
                    yield from self._counted(lines.close(whole=self._whole > 0), lines)
                lines = _Lines(thinner, block.source) if self._is_log else None
                self._begins = False
            if lines is None or not block.text:
                yield block
            else:
                made = self._counted(lines.feed(block, whole=self._whole > 0), lines)
                yield from made
                silent = 0 if made else silent + len(block.text)
                if silent > SILENT:  # whoever waits may want to stop
                    silent = 0
                    yield TextBlock("", block.start + len(block.text), block.source)
            self._whole -= len(block.text)
        if lines is not None:
            yield from self._counted(lines.close(whole=self._whole > 0), lines)

    def _next(self) -> TextBlock | None:
        """The next block; looks ahead where a source begins."""
        if not self._ahead:
            block = next(self._blocks, None)
            if block is None:
                return None
            self._ahead.append(block)
        if self._ahead[0].text and self._ahead[0].source != self._number:
            self._look()
        return self._ahead.pop(0)

    def _look(self) -> None:
        """Take in the beginning of a source; returns whether it is a log."""
        self._number, self._begins = self._ahead[0].source, True
        first = [b for b in self._ahead if b.source == self._number]
        held = sum(len(b.text) for b in first)
        while held < HEAD and len(first) == len(self._ahead):
            block = next(self._blocks, None)
            if block is None:
                break
            self._ahead.append(block)
            if not block.text or block.source != self._number:
                break
            first.append(block)
            held += len(block.text)
        text = "".join(b.text for b in first)[:HEAD]
        plain = all(b.place is None for b in first)
        self._is_log = plain and looks_like_log(text.split("\n"))

    def size_hint(self) -> int | None:
        """None for a log: nobody knows how much of it is read."""
        if self._number is None and not self._ahead and self._source.size_hint() is not None:
            block = next(self._blocks, None)
            if block is not None:
                self._ahead.append(block)
                self._look()
        return None if self._is_log else self._source.size_hint()

    @property
    def ends_on_interrupt(self) -> bool:
        """As the sources say."""
        return self._source.ends_on_interrupt

    def _counted(self, blocks: list[TextBlock], lines: _Lines) -> list[TextBlock]:
        before = self._counts or LineCounts()
        self._counts = LineCounts(before.lines + lines.seen, before.thinned + lines.left_out)
        lines.seen = lines.left_out = 0
        return blocks

    @property
    def bytes_read(self) -> int:
        return self._source.bytes_read

    @property
    def names(self) -> Sequence[str]:
        return self._source.names

    @property
    def bases(self) -> Sequence[int]:
        return self._source.bases

    @property
    def records(self) -> Sequence[SourceRecord]:
        return self._source.records

    @property
    def ended_line(self) -> bool:
        return self._source.ended_line

    @property
    def warnings(self) -> Sequence[str]:
        return self._source.warnings

    @property
    def notes(self) -> Sequence[str]:
        """As the source says."""
        return self._source.notes

    @property
    def line_counts(self) -> LineCounts | None:
        """Lines of logs, and those that were not read."""
        if self._counts is None:
            return None
        names = self._source.names
        found = [(names[source], line, text) for source, line, text in self._thinner.matches()]
        return replace(self._counts, matches=tuple(found))


class _Lines:
    """The lines of one source: cut, asked of a thinner, put together again."""

    def __init__(self, thinner: Thinner, source: int) -> None:
        self._thinner, self._source = thinner, source
        self._rest = ""
        self._offsets = np.zeros(1, dtype=np.int64)
        self._going: bool | None = None
        """Whether the line that is being read passes; None: that is not known yet."""
        self._number = 0
        self._left = 0
        """Lines of the source left out so far."""
        self.seen = 0
        self.left_out = 0

    def feed(self, block: TextBlock, *, whole: bool) -> list[TextBlock]:
        """The lines that end in a block, as far as they pass."""
        offsets = block.offsets()
        if self._rest:
            offsets = np.concatenate([self._offsets[:-1], offsets])
        text = self._rest + block.text
        end = text.rfind("\n") + 1
        if len(text) - end > LONGEST_LINE:  # no line is held whole, however long
            end = len(text)
        made = self._made(text[:end], offsets, whole=whole)
        self._rest, self._offsets = text[end:], offsets[end:]
        return made

    def close(self, *, whole: bool) -> list[TextBlock]:
        """The last line, where no newline ended it."""
        text, self._rest = self._rest, ""
        made = self._made(text, self._offsets, whole=whole)
        self._going = None
        return made

    def _made(self, text: str, offsets: np.ndarray, *, whole: bool) -> list[TextBlock]:
        made: list[TextBlock] = []
        start = at = 0  # of what passes and is not made yet; of the line

        def give(end: int) -> None:
            if end > start:
                widths = np.diff(offsets[start : end + 1])
                begin = int(offsets[start])
                made.append(
                    TextBlock(text[start:end], begin, self._source, widths, left_out=self._left)
                )

        for line in _cut(text):
            end = at + len(line)
            if self._going is None:
                self.seen += 1
                self._number += 1
                said = line.rstrip("\r\n")[:LONGEST_LINE]
                self._going = self._thinner.passes(said, self._source, self._number) or whole
                if not self._going:
                    give(at)
                    self._left += 1
                    self.left_out += 1
            if not self._going:
                start = end
            if line[-1] == "\n":
                self._going = None
            at = end
        give(at)
        return made


def _cut(text: str) -> list[str]:
    """Lines with their ends; a newline alone ends a line."""
    *lines, last = text.split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])
