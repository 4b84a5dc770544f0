"""Count the templates of a log, in one pass and bounded memory.

Counts, first and last times and levels of the held templates and components are exact. If there are
too many (`capacity`, MOST_COMPONENTS), the one whose last line is the oldest is dropped; if it
occurs again, its count starts again. Values of variables are read from a part of the lines: the
first 16 of a template, then every 17th, or every 67th if a time bucket has more than 512 of them.
The steps are primes, because logs have periods. Reports say how many lines were read. The other
lines are also checked, by the text around it, for whether a value is the same in all lines. Time is
divided into buckets of one width for all templates. The width doubles when there are too many.
"""

from __future__ import annotations

import math
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvstream.logs.levels import LEVELS, SEVERE, level_of
from kvstream.logs.lines import LineParser, LineSplitter
from kvstream.logs.parts import component_of, is_trace, message_of
from kvstream.logs.swings import Swings
from kvstream.logs.templates import (
    WILDCARD,
    Template,
    TemplateTree,
    ValueReader,
    shown,
    values_of,
)

MOST_BUCKETS = 240
"""Maximum number of time buckets with lines."""
ALL_VALUES, MANY, STEPS = 16, 512, (17, 67)
"""Number of first lines of a template whose values are all read; then one line per step is read.
The first step is for the first MANY lines of each time bucket, the second for the others. Each
bucket has its own MANY, so that half a day in a log of months has enough values."""
MEASURED = 5
"""Step of the lines whose quantities are read for short changes."""
MOST_VALUES = 32
"""Maximum number of different values counted of a variable."""
MOST_VARIABLES = 8
"""Maximum number of variables of a template whose values are counted."""
MOST_SAME, LONGEST_SAME = 32, 80
"""Maximum number of values that may be the same in all lines of a template, and of characters of
one."""
MOST_COMPONENTS = 256
"""Maximum number of components held: those seen last."""
EXAMPLE = 400
"""Maximum number of characters of an example."""
TRACE_LINES = 12
"""Maximum number of lines of a stack trace held with the example."""
JUMP = 60.0
"""Maximum seconds by which a clock may go back without a jump."""
RUSH = 60.0
"""Seconds (lines, in a log without times) in which the lines of an error are counted together."""
UNTIMED = 1000
"""Number of lines without any time after which line numbers serve as the clock."""

_QUANTITY = re.compile(r"<?(-?\d+(?:\.\d+)?) ?([a-zA-Z%]{0,8})$")


def _split(rest: str) -> tuple[str, str]:
    return level_of(rest), message_of(rest)


def _add(means: dict[int, list[float]], more: Iterable[tuple[int, list[float]]]) -> None:
    """Add the sums of `more` to `means`, bucket by bucket."""
    for bucket, sums in more:
        held = means.get(bucket)
        means[bucket] = (
            list(sums) if held is None else [a + b for a, b in zip(held, sums, strict=True)]
        )


def _reader(message: str, words: tuple[str, ...], values: list[str]) -> ValueReader | None:
    """Return a reader of such lines; None if it does not read the values of this one."""
    if WILDCARD in message:  # the reader would take it for a value
        return None
    reader = ValueReader(message, words)
    return reader if reader.read(message) == values else None


class Series:
    """How often something occurs, over time."""

    __slots__ = (
        "buckets", "count", "first_line", "first_time", "high", "last_line", "last_time", "low",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = 0
        self.buckets: Counter[int] = Counter()
        self.first_time: float | None = None
        self.last_time: float | None = None
        self.low: float | None = None
        self.high: float | None = None
        """`low` and `high` are the earliest and the latest time, because clocks can go back."""
        self.first_line = 0
        self.last_line = 0

    def begin(self, line: int, time: float | None) -> None:
        """Note the first line."""
        self.first_line = line
        self.first_time = self.low = self.high = time

    def merge(self, other: Series) -> None:
        """Add the counts of another series."""
        self.count += other.count
        self.low = min((t for t in (self.low, other.low) if t is not None), default=None)
        self.high = max((t for t in (self.high, other.high) if t is not None), default=None)
        self.buckets.update(other.buckets)
        if other.first_line < self.first_line or not self.first_line:
            self.first_line, self.first_time = other.first_line, other.first_time
        if other.last_line > self.last_line:
            self.last_line, self.last_time = other.last_line, other.last_time


@dataclass
class Variable:
    """The values in one place of a template."""

    values: Counter[str] = field(default_factory=Counter)
    looked_at: int = 0
    other: int = 0
    """Number of values that were not counted separately, because MOST_VALUES others were."""
    means: dict[int, list[float]] = field(default_factory=dict)
    """For a quantity, by bucket: number of lines, and the sums of log(1 + x) and its square."""
    previous: float | None = None
    rises: int = 0
    unit: str = ""
    swings: Swings | None = None
    """For a quantity with a unit or decimals; other numbers may be names."""

    def take(self, raw: str, bucket: int | None) -> None:
        """Count a value."""
        self.looked_at += 1
        if raw in self.values or len(self.values) < MOST_VALUES:
            self.values[raw] += 1
        else:
            self.other += 1
        found = _QUANTITY.match(raw)
        if found is None or bucket is None or len(found.group(1)) > 9:
            return
        number = float(found.group(1))
        self.unit = found.group(2) or self.unit
        if self.swings is None and (self.unit or "." in found.group(1)):
            self.swings = Swings()
        if self.previous is not None and number > self.previous:
            self.rises += 1
        self.previous = number
        size = math.log1p(abs(number))
        held = self.means.setdefault(bucket, [0.0, 0.0, 0.0])
        held[0] += 1
        held[1] += size
        held[2] += size * size

    def measure(self, raw: str, at: float) -> None:
        """Add a quantity to the swings without counting it."""
        found = _QUANTITY.match(raw)
        if self.swings is not None and found is not None and len(found.group(1)) <= 9:
            self.swings.take(math.log1p(abs(float(found.group(1)))), at)

    def merge(self, other: Variable) -> None:
        """Add the counts of another variable."""
        self.swings = self.swings or other.swings
        self.looked_at += other.looked_at
        self.other += other.other
        self.rises += other.rises
        for value, count in other.values.items():
            if value in self.values or len(self.values) < MOST_VALUES:
                self.values[value] += count
            else:
                self.other += count
        _add(self.means, other.means.items())


@dataclass
class Gap:
    """A span of time in which a component wrote at most one line."""

    length: float = 0.0
    """Seconds (lines, in a log without times)."""
    lines: int = 0
    """Lines of the log in this time."""
    line: int = 0
    """Number of the last line before."""
    start: float | None = None
    end: float | None = None


class Component(Series):
    """The lines of one program, service or class."""

    __slots__ = ("before", "longest", "second")

    def __init__(self) -> None:
        super().__init__()
        self.before: tuple[int, float | None] = 0, None
        """Number and time of the line before the last one."""
        self.longest = Gap()
        self.second = 0.0
        """Length of the second longest gap that does not overlap the longest."""

    def gap(self, line: int, time: float | None) -> None:
        """Note the time since the line before the last one, as one line does not end a silence."""
        start, since = self.before
        self.before = self.last_line, self.last_time
        if not start:
            return
        length = line - start if time is None or since is None else time - since
        if length <= self.second:
            return
        apart = start >= self.longest.line + self.longest.lines
        if length > self.longest.length:
            if apart:
                self.second = self.longest.length
            self.longest = Gap(length, line - start, start, since, time)
        elif apart:
            self.second = length


class Rush:
    """The minute with the most lines of a template.

    It says when a burst begins if time buckets last hours.
    """

    __slots__ = ("_lines", "_since", "begin", "lines")

    def __init__(self) -> None:
        self._since, self._lines = -math.inf, 0
        self.begin = 0.0
        self.lines = 0

    def take(self, at: float) -> None:
        """Count a line at this time (or with this number). A minute begins with a line."""
        if not 0 <= at - self._since < RUSH:
            self._since, self._lines = at, 0
        self._lines += 1
        if self._lines > self.lines:
            self.lines, self.begin = self._lines, self._since


class Shape(Series):
    """The lines of one template."""

    __slots__ = (
        "components",
        "continued",
        "end",
        "example",
        "fixed",
        "level",
        "measured",
        "message",
        "odd",
        "places",
        "reader",
        "reported",
        "rush",
        "same",
        "since_line",
        "since_time",
        "template",
        "trace",
        "variables",
        "words",
    )

    def __init__(self, template: Template, level: str, example: str, message: str) -> None:
        super().__init__()
        self.template = template
        self.level = level
        self.example = example[:EXAMPLE]
        self.message = message[:EXAMPLE].strip()
        """The example without its time."""
        self.trace: list[str] = []
        """Lines that continue the example."""
        self.continued = 0
        """Number of lines that continue lines of this template."""
        self.components: Counter[str] = Counter()
        """Number of lines by component, for the first MOST_VALUES components."""
        self.variables: dict[int, Variable] = {}
        """Variables by their place among the words."""
        self.same: dict[int, str] = {}
        """Values that have been the same in all lines, by place."""
        self.fixed: tuple[str, ...] = ()
        self.end = ""
        """`fixed` has the texts with the values of `same`, `end` the end of a line. A line with all
        of them has the same values."""
        self.odd = 0
        """Lines with the same values but without these texts: their punctuation differs."""
        self.words: tuple[str, ...] = ()
        """The words of the template when it was last read. Changed words are a new object."""
        self.places: list[int] = []
        """Places of the words with ``<*>``."""
        self.reader: ValueReader | None = None
        self.measured: list[tuple[int, Variable]] = []
        """Variables with swings, each with the index of its value in the result of the reader."""
        self.rush = Rush() if level in SEVERE else None
        """The minute with most lines, for warnings and errors."""
        self.reported = 0
        """Number of lines that reports have covered."""
        self.since_time: float | None = None
        self.since_line = 0
        """`since_time` and `since_line` are those of the first line after the last report."""

    @property
    def told(self) -> list[str]:
        """The words of the template, with those values that have been the same in all lines."""
        self._note_words()
        return [self.same.get(place, word) for place, word in enumerate(self.words)]

    def _note_words(self) -> None:
        """Update the words if the template has changed by joining another one.

        Where a word has changed, earlier lines may have had other words.
        """
        old, new = self.words, self.template.words
        if old is new:
            return
        self.same = {place: text for place, text in self.same.items() if old[place] == new[place]}
        self.words, self.reader, self.measured = new, None, []
        self.places = [place for place, word in enumerate(new) if WILDCARD in word]

    def _compare(self, values: list[str]) -> None:
        """Note which values are still the same in all lines.

        Only the first line adds values: a place that becomes a variable later has had others.
        """
        if self.count == 1:
            first = list(zip(self.places, values, strict=True))[:MOST_SAME]
            self.same = {place: text for place, text in first if 0 < len(text) <= LONGEST_SAME}
        elif self.same:
            for place, text in zip(self.places, values, strict=True):
                if self.same.get(place, text) != text:
                    del self.same[place]

    def _fix(self) -> None:
        """Find the texts of lines with the same values; none if too many such lines lack them."""
        self.fixed, self.end = (), ""
        if not self.same or self.odd > ALL_VALUES:
            return
        message = message_of(self.message)
        line = f"\n{self.message}"
        start = len(line) - len(message) - 1  # include the character before: 11 also ends with 1
        before = line[start : start + 1] if line.endswith(message) else ""
        *texts, end = f"{before}{shown(message, self.told)}".split(WILDCARD)
        if len(self.message) < EXAMPLE:
            self.end = end
        else:
            texts.append(end)
        values = set(self.same.values())
        self.fixed = tuple(text for text in texts if any(value in text for value in values))

    def check(self, rest: str) -> None:
        """Update `same` if a line whose values are not read has other values."""
        for text in self.fixed:
            if text not in rest:
                break
        else:
            if rest.endswith(self.end):
                return
        line = f"\n{rest.strip()}"
        if line.endswith(self.end) and all(text in line for text in self.fixed):
            return
        self._note_words()
        every, held = values_of(message_of(rest)), len(self.same)
        if len(every) == len(self.words):
            self._compare([every[place] for place in self.places])
        self.odd += len(self.same) == held
        self._fix()

    def look(self, rest: str, bucket: int | None) -> None:
        """Read the values of a line."""
        held = len(self.same)
        self._note_words()
        if not self.places:
            return
        message = message_of(rest)
        values = None if self.reader is None else self.reader.read(message)
        if values is None:
            every = values_of(message)
            if len(every) != len(self.words):
                return
            values = [every[place] for place in self.places]
            if self.reader is None and self.count > ALL_VALUES:
                self.reader = _reader(message, self.words, values)
        self._compare(values)
        if self.count == ALL_VALUES or (self.count > ALL_VALUES and len(self.same) != held):
            self._fix()
        for place, value in zip(self.places, values, strict=True):
            if self.words[place] != WILDCARD:
                continue
            variable = self.variables.get(place)
            if variable is None:
                if len(self.variables) >= MOST_VARIABLES:
                    break
                variable = self.variables[place] = Variable()
            variable.take(value.lstrip()[:80], bucket)
        if self.count > ALL_VALUES and self.reader is not None:
            self.measured = [
                (at, self.variables[place])
                for at, place in enumerate(self.places)
                if place in self.variables and self.variables[place].swings is not None
            ]

    def measure(self, rest: str, at: float) -> None:
        """Add the quantities of a line at this time (or line) to their swings."""
        values = None if self.reader is None else self.reader.read(message_of(rest))
        if values is not None:
            for place, variable in self.measured:
                variable.measure(values[place].lstrip(), at)

    def take_over(self, other: Shape) -> None:
        """Add the counts of a template that has joined this one."""
        if other.first_line < self.first_line:
            self.example, self.message, self.trace = other.example, other.message, other.trace
        super().merge(other)
        self.continued += other.continued
        self.reported += other.reported
        for name, count in other.components.items():
            if name in self.components or len(self.components) < MOST_VALUES:
                self.components[name] += count
        if other.since_line and (not self.since_line or other.since_line < self.since_line):
            self.since_line, self.since_time = other.since_line, other.since_time
        if LEVELS.index(other.level) > LEVELS.index(self.level):
            self.level = other.level
        if other.rush is not None and (self.rush is None or other.rush.lines > self.rush.lines):
            self.rush = other.rush
        held = self.same.items() & other.same.items()
        self.same = dict(sorted(held))
        self._fix()
        for place, variable in other.variables.items():
            if place in self.variables:
                self.variables[place].merge(variable)
            elif len(self.variables) < MOST_VARIABLES:
                self.variables[place] = variable


class LogSummary:
    """Counts the templates of a log, whose text it gets in pieces.

    ``lines`` is the sum of the lines of all held templates, of `TemplateTree.forgotten`, of lines
    that continue others (`continued`), and of blank lines.

    Args:
        capacity: maximum number of templates held. The least recently seen one is dropped.
    """

    def __init__(self, *, capacity: int = 4096) -> None:
        self.tree = TemplateTree(
            capacity=capacity,
            on_join=self._on_join,
            on_evict=self._on_evict,
            split=_split,
            name=component_of,
        )
        self.total = Series()
        """All lines except blank ones and those that continue others."""
        self.lines = 0
        self.blank = 0
        self.continued = 0
        self.left = 0
        """Number of templates that were dropped."""
        self.left_levels: Counter[str] = Counter()
        """Lines of dropped templates, by level."""
        self.components: OrderedDict[str, Component] = OrderedDict()
        """Components, ordered by their last line, oldest first."""
        self.jumped = 0
        """How often the clock goes back within a source."""
        self.first_jump = 0
        """Number of the first line at which it goes back."""
        self.overlapped = 0
        """Number of sources that begin before the end of the previous one."""
        self.first_overlap = 0
        """Number of the first line with a time in the first of these sources."""
        self.overlapped_source = ""
        """Name of the source that ends later than this line."""
        self.width = 1.0
        """Seconds (lines, in a log without times) of a bucket."""
        self.by_line = False
        """Whether line numbers serve as the clock."""
        self.splitter = LineSplitter()
        self.sources: list[tuple[str, int]] = []
        """Names of the sources, and the number of lines before each."""
        self._parser = LineParser()
        self._time: float | None = None
        self._shape: Shape | None = None
        self._container = ""
        """The container of the last line that does not continue another."""
        self._begins = False
        """Whether no line of this source has had a time so far."""
        self._timed = ""
        """Name of the source of the last line with a time."""

    @property
    def dated(self) -> bool:
        """Whether the times have a year."""
        return self._parser.dated

    @property
    def has_days(self) -> bool:
        """Whether a time names a day."""
        return self._parser.has_days

    @property
    def levels(self) -> Counter[str]:
        """Number of lines by level."""
        lines = Counter(self.left_levels)
        for shape in self.shapes:
            lines[shape.level] += shape.count
        return lines

    @property
    def shapes(self) -> list[Shape]:
        """The `Shape` of each held template."""
        return [template.data for template in self.tree]

    def begin(self, name: str) -> None:
        """Begin another source."""
        self._lines(self.splitter.close())
        self.sources.append((name, self.lines))
        self._shape = None
        self._begins = True

    def feed(self, text: str) -> None:
        """Read more text of the log."""
        self._lines(self.splitter.feed(text))

    def close(self) -> None:
        """Read the last line at the end of the text."""
        self._lines(self.splitter.close())

    def where(self, line: int) -> tuple[str, int]:
        """Return the source of a line and its number in this source, from 1."""
        name, before = "", 0
        for each, lines in self.sources:
            if lines < line:
                name, before = each, lines
        return name, line - before

    def mark(self) -> None:
        """Mark all lines that were read as reported."""
        for shape in self.shapes:
            shape.reported, shape.since_line, shape.since_time = shape.count, 0, None

    def _go_back(self, time: float, number: int) -> None:
        """Note if the clock goes back, or if a source begins before the end of the previous one."""
        if self._time is None or time >= self._time - JUMP:
            return
        if self._begins:
            self.overlapped += 1
            if not self.first_overlap:
                self.first_overlap, self.overlapped_source = number, self._timed
        else:
            self.jumped += 1
            self.first_jump = self.first_jump or number

    def _lines(self, lines: list[str]) -> None:
        for line in lines:
            self._line(line)

    def _line(self, line: str) -> None:
        self.lines += 1
        number = self.lines
        line, time, rest, container, continued = self._parser.entry(line)
        if time is None:
            if not line or line.isspace():
                self.blank += 1
                return
            if self._shape is not None and container == self._container and continued:
                self._continue(self._shape, line)
                return
            time = self._time
        else:
            self._go_back(time, number)
            self._begins = False
            self._timed = self.sources[-1][0] if self.sources else ""
        self._time = time
        if self.by_line or (time is None and number > UNTIMED):
            self.by_line, time = True, None
            bucket: int | None = int(number // self.width)
        else:
            bucket = None if time is None else int(time // self.width)
        template, component = self.tree.add_named(rest)
        shape: Shape = template.data
        if shape is None:
            shape = template.data = Shape(template, level_of(rest), line, rest)
            shape.begin(number, time)
        shape.count += 1
        shape.last_line, shape.last_time = number, time
        if not shape.since_line:
            shape.since_line, shape.since_time = number, time
        self._shape, self._container = shape, container
        total = self.total
        total.count += 1
        total.last_line, total.last_time = number, time
        if total.first_time is None:
            total.begin(number, time)
        if time is not None:
            if shape.low is None or shape.high is None:  # lines without a time came first
                shape.low = shape.high = time
            elif time > shape.high:
                shape.high = time
            elif time < shape.low:
                shape.low = time
            if total.low is None or total.high is None:  # lines without a time came first
                total.low = total.high = time
            elif time > total.high:
                total.high = time
            elif time < total.low:
                total.low = time
        near = shape.count
        if bucket is not None:
            near = shape.buckets[bucket] + 1
            shape.buckets[bucket] = near
            total.buckets[bucket] += 1
            if len(total.buckets) > MOST_BUCKETS:
                self._widen()
                bucket = int((number if time is None else time) // self.width)
        if component is not None:
            self._component(component, number, time, bucket)
            if component in shape.components or len(shape.components) < MOST_VALUES:
                shape.components[component] += 1
        if shape.count <= ALL_VALUES or shape.count % STEPS[near > MANY] == 0:
            shape.look(rest, bucket)
        elif shape.same:
            shape.check(rest)
        if shape.rush is not None:
            shape.rush.take(number if time is None else time)
        if shape.measured and shape.count % MEASURED == 0:
            shape.measure(rest, number if time is None else time)

    def _component(self, name: str, number: int, time: float | None, bucket: int | None) -> None:
        series = self.components.get(name)
        if series is None:
            series = self.components[name] = Component()
            series.begin(number, time)
            if len(self.components) > MOST_COMPONENTS:
                self.components.popitem(last=False)
        else:
            self.components.move_to_end(name)
            series.gap(number, time)
        series.count += 1
        series.last_line, series.last_time = number, time
        if time is not None and (series.high is None or time > series.high):
            series.high = time
        if bucket is not None:
            series.buckets[bucket] += 1

    def _continue(self, shape: Shape, line: str) -> None:
        """Count a line that continues the previous one."""
        self.continued += 1
        shape.continued += 1
        if shape.count == 1 and len(shape.trace) < TRACE_LINES:
            shape.trace.append(line[:EXAMPLE])
        if shape.level in ("", "info", "suspect") and is_trace(line):
            shape.level, shape.rush = "error", shape.rush or Rush()

    def _widen(self) -> None:
        """Double the width of the buckets until there are at most MOST_BUCKETS / 2."""
        while len(self.total.buckets) > MOST_BUCKETS // 2:
            self.width *= 2
            for series in [self.total, *self.components.values(), *self.shapes]:
                halved: Counter[int] = Counter()
                for bucket, count in series.buckets.items():
                    halved[bucket // 2] += count
                series.buckets = halved
            for shape in self.shapes:
                for variable in shape.variables.values():
                    wide: dict[int, list[float]] = {}
                    _add(wide, ((b // 2, sums) for b, sums in variable.means.items()))
                    variable.means = wide

    def _on_join(self, into: Template, gone: Template) -> None:
        if gone.data is None:
            return
        if into.data is None:
            into.data = gone.data
            into.data.template = into
            return
        into.data.take_over(gone.data)

    def _on_evict(self, template: Template) -> None:
        self.left += 1
        if template.data is not None:
            self.left_levels[template.data.level] += template.count
