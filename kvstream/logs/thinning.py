"""Thin a log: the model reads only a few of the lines that repeat.

The first 8 lines of each template pass, then those whose number is a power of two, and after 16,384
every 16,384th: 18 of 10,000 lines. Of lines with a word of a question, eight pass per doubling of
the count. A line with a number or an identifier of a question always passes. Lines that continue
another (a stack trace) pass with it. The others are only counted. Offsets and line numbers stay
those of the source. All lines are searched for the words of the questions, also those that do not
pass.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from kvstream.input.blocks import TextBlock
from kvstream.input.controls import without_controls
from kvstream.input.source import LineCounts, Source, SourceOver
from kvstream.logs.components import message_of
from kvstream.logs.containers import LONGEST_LINE
from kvstream.logs.levels import level_of
from kvstream.logs.line_parser import LineParser, looks_like_log
from kvstream.logs.template_tree import TemplateTree
from kvstream.logs.traces import EXAMPLE

HEAD = 32 * 1024
"""Number of first characters of a source by which a log is recognized."""
FIRST = 8
"""Number of first lines of a template that all pass."""
SELDOM = 1 << 14
"""At least one of this many lines of a template passes."""
PER_ENTRY = 8
"""Characters per entry of the budget that all pass, so that a log that fits is not thinned."""
SILENT = 1 << 18
"""Number of characters that do not pass after which an empty block follows, so that the user can
stop a reading."""
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_WORD = re.compile(r"[\w.:/@-]*\w")
_COMMON = frozenset(
    """and are been could did does error errors first for from had happen happened has have how into
    last line lines many more much not that the then there they this was were what when where which
    who whose why will with
    """.split()  # noqa: SIM905
)
_MATCHES = 3
"""Maximum number of lines with words of a question that are shown."""
_KINDS = 64
"""Maximum number of different sets of these words whose lines are held."""


class Thinner:
    """Decides which lines pass; those with words of the `questions` pass more often."""

    def __init__(self, questions: Sequence[str] = ()) -> None:
        words = {word.casefold() for text in questions for word in _WORD.findall(text)} - _COMMON
        self._always = {w for w in words if len(w) > 2 and any(c.isdigit() for c in w)}
        terms = self._always | {w for w in words if len(w) > 2}
        any_of = "|".join(sorted(map(re.escape, terms)))
        self._terms = re.compile(rf"(?<!\w)(?:{any_of})(?!\w)") if terms else None
        self.total = self.left_out = 0
        """Number of lines, and of those that were not read."""
        self._words: Counter[str] = Counter()
        self._lines: dict[frozenset[str], list[tuple[int, int, str]]] = {}
        self._parser = LineParser()
        self._tree = TemplateTree(split=lambda rest: (level_of(rest), message_of(rest)))
        self._passed = True

    def passes(self, line: str, source: int = 0, number: int = 0) -> bool:
        """Count a line, and return whether it passes."""
        self.total += 1
        line = without_controls(line)
        words = frozenset(self._terms.findall(line.casefold()) if self._terms else ())
        if words:
            self._note(words, source, number, line)
        entry = self._parser.entry(line)
        if entry is None or entry.pieces > 1:  # a line that a runtime split
            self._passed = self._passed or bool(words)
            return self._passed
        if entry.time is None and (not entry.text or entry.text.isspace() or entry.continues):
            return self._passed
        count = self._tree.add(entry.rest).count
        self._passed = (
            count <= FIRST
            or count % min(1 << (count.bit_length() - 1), SELDOM) == 0
            or (bool(words) and count % (1 << (count.bit_length() - 4)) == 0)
            or not self._always.isdisjoint(words)
        )
        return self._passed

    def _note(self, words: frozenset[str], source: int, number: int, line: str) -> None:
        """Hold the first lines of each set of words."""
        self._words.update(words)
        lines = self._lines.get(words)
        if lines is None and len(self._lines) < _KINDS:
            lines = self._lines[words] = []
        if lines is not None and len(lines) < _MATCHES:
            lines.append((source, number, line[:EXAMPLE]))

    def matches(self) -> list[tuple[int, int, str]]:
        """Return source, number and text of the lines with the rarest words of the questions."""
        weights = {
            words: sum(math.log2(2 * self.total / self._words[word]) for word in words)
            for words in self._lines
        }
        best = sorted(self._lines, key=lambda words: (-weights[words], self._lines[words][0][:2]))
        return [line for words in best for line in self._lines[words]][:_MATCHES]


class ThinnedSource(SourceOver):
    """Sources whose logs are thinned after `whole` characters; other texts pass unchanged.

    Holds at most LONGEST_LINE characters of a line and a block.
    """

    def __init__(self, source: Source, whole: int, questions: Sequence[str] = ()) -> None:
        super().__init__(source)
        self._whole = whole
        self._blocks = iter(source)
        self._ahead: list[TextBlock] = []
        self._thinner = Thinner(questions)
        self._number: int | None = None
        """Number of the source whose beginning was examined last."""
        self._begins = False
        self._is_log = False

    def __iter__(self) -> Iterator[TextBlock]:
        thinner = self._thinner
        lines: _Lines | None = None
        silent = 0
        while (block := self._next()) is not None:
            if self._begins:
                if lines is not None:
                    yield from lines.close(whole=self._whole > 0)
                lines = _Lines(thinner, block.source) if self._is_log else None
                self._begins = False
            if lines is None or not block.text:
                yield block
            else:
                blocks = lines.feed(block, whole=self._whole > 0)
                yield from blocks
                silent = 0 if blocks else silent + len(block.text)
                if silent > SILENT:
                    silent = 0
                    yield TextBlock("", block.start + len(block.text), block.source)
            self._whole -= len(block.text)
        if lines is not None:
            yield from lines.close(whole=self._whole > 0)

    def _next(self) -> TextBlock | None:
        """Return the next block. At the beginning of a source, read ahead to examine it."""
        if not self._ahead:
            self._ahead += islice(self._blocks, 1)
        if not self._ahead:
            return None
        if self._ahead[0].text and self._ahead[0].source != self._number:
            self._look()
        return self._ahead.pop(0)

    def _look(self) -> None:
        """Read the beginning of a source, and note whether it is a log."""
        self._number, self._begins = self._ahead[0].source, True
        first = [*self._ahead]  # one block: what follows is read ahead here alone
        while sum(len(b.text) for b in first) < HEAD and (block := next(self._blocks, None)):
            self._ahead.append(block)
            if not block.text or block.source != self._number:
                break
            first.append(block)
        text = "".join(b.text for b in first)[:HEAD]
        plain = all(b.place is None for b in first)
        self._is_log = plain and looks_like_log(text.split("\n"))

    def size_hint(self) -> int | None:
        """Return the size of the sources in bytes; None for a log, as the part read is unknown."""
        if self._number is None and not self._ahead and self.source.size_hint() is not None:
            self._ahead += islice(self._blocks, 1)
            if self._ahead:
                self._look()
        return None if self._is_log else self.source.size_hint()

    @property
    def line_counts(self) -> LineCounts | None:
        """Number of lines of logs, and of those that were not read; None if there is no log."""
        thinner = self._thinner
        if not thinner.total:
            return None
        names = self.source.names
        matches = [(names[source], line, text) for source, line, text in thinner.matches()]
        return LineCounts(thinner.total, thinner.left_out, tuple(matches))


class _Lines:
    """Splits the blocks of one source into lines, and joins the lines that a thinner passes."""

    def __init__(self, thinner: Thinner, source: int) -> None:
        self._thinner, self._source = thinner, source
        self._rest = ""
        self._offsets = np.zeros(1, dtype=np.int64)
        self._going: bool | None = None
        """Whether the current line passes; None: not known yet."""
        self._number = 0
        self._skips = self._before = 0
        """Number of lines of the source that do not pass, and that are before the part to read."""

    def feed(self, block: TextBlock, *, whole: bool) -> list[TextBlock]:
        """Return the passing lines that end in a block."""
        offsets = block.offsets()
        self._before = block.left_out
        if self._rest:
            offsets = np.concatenate([self._offsets[:-1], offsets])
        text = self._rest + block.text
        end = text.rfind("\n") + 1
        if len(text) - end > LONGEST_LINE:  # do not hold more of a long line
            end = len(text)
        blocks = self._passing(text[:end], offsets, whole=whole)
        self._rest, self._offsets = text[end:], offsets[end:]
        return blocks

    def close(self, *, whole: bool) -> list[TextBlock]:
        """Return the last line, if it has no newline and passes."""
        return self._passing(self._rest, self._offsets, whole=whole)

    def _passing(self, text: str, offsets: np.ndarray, *, whole: bool) -> list[TextBlock]:
        blocks: list[TextBlock] = []
        start = at = 0  # start of the passing text that is not in a block yet; start of the line

        def give(end: int) -> None:
            if end > start:
                widths = np.diff(offsets[start : end + 1])
                begin, out = int(offsets[start]), self._before + self._skips
                blocks.append(TextBlock(text[start:end], begin, self._source, widths, left_out=out))

        for line in _LINE.findall(text):
            end = at + len(line)
            if self._going is None:
                self._number += 1
                content = line.rstrip("\r\n")[:LONGEST_LINE]
                number = self._before + self._number
                self._going = self._thinner.passes(content, self._source, number) or whole
                if not self._going:
                    give(at)
                    self._skips += 1
                    self._thinner.left_out += 1
            if not self._going:
                start = end
            if line[-1] == "\n":
                self._going = None
            at = end
        give(at)
        return blocks
