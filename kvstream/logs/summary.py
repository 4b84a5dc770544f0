"""Count the templates of a log, in one pass and bounded memory.

Counts, first and last times and levels of the held templates and components are exact. If there are
too many (`capacity`, MOST_COMPONENTS), the one whose last line is the oldest is dropped; if it
occurs again, its count starts again. Values of variables are read from a part of the lines
(`logs/shape.py`). Time is divided into buckets of one width for all templates. The width doubles
when there are too many.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict
from time import gmtime, strftime

from kvstream.logs.components import component_of, message_of
from kvstream.logs.containers import LONGEST_LINE, MOST_STREAMS
from kvstream.logs.levels import level_of
from kvstream.logs.line_parser import Entry, LineParser, LineSplitter
from kvstream.logs.series import Component, Series
from kvstream.logs.shape import FirstLine, Shape, add_limited, add_sums
from kvstream.logs.template_tree import Template, TemplateTree
from kvstream.logs.traces import TRACE

MOST_BUCKETS = 240
"""Maximum number of time buckets with lines."""
MOST_COMPONENTS = 256
"""Maximum number of components held: those seen last."""
JUMP = 60.0
"""Maximum seconds by which a clock may go back without a jump."""
NO_CLOCK = 1000
"""Number of lines without any time after which line numbers serve as the clock."""


class LogSummary:
    """Counts the templates of a log, whose text it gets in pieces; holds at most `capacity`.

    ``lines`` is the sum of the lines of all held templates, of `TemplateTree.forgotten`, of lines
    that continue others (`trails`), and of blank lines.
    """

    def __init__(self, *, capacity: int = 4096) -> None:
        self.tree = TemplateTree(
            capacity=capacity,
            on_join=self._on_join,
            on_evict=self._on_evict,
            split=lambda rest: (level_of(rest), message_of(rest)),
            name=component_of,
        )
        self.total = Series()
        """All lines except blank ones and those that continue others."""
        self.lines = 0
        self.blank = 0
        self.trails = 0
        self.without_time = 0
        """Lines without a time that do not continue another line."""
        self.drops = 0
        """Number of templates that were dropped."""
        self.drop_levels: Counter[str] = Counter()
        """Lines of dropped templates, by level."""
        self.components: OrderedDict[str, Component] = OrderedDict()
        """Components, ordered by their last line, oldest first."""
        self.jumps = 0
        """How often the clock goes back within a source."""
        self.first_jump = 0
        """Number of the first line at which it goes back."""
        self.overlaps = 0
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
        self.several = False
        """Whether places have the name of their source."""
        self.sources: list[tuple[str, int]] = []
        """Names of the sources, and the number of lines before each."""
        self.gaps = array("q"), array("q")
        """Numbers of lines after which lines are left out; how many of the source up to there."""
        self.parser = LineParser()
        self.zone = 0
        """Seconds by which the clock of the first time is ahead of UTC."""
        self._time: float | None = None
        self._before: dict[str, tuple[Shape, Entry, float | None]] = {}
        """The last line of each writer that does not continue another, and its time; the latest
        last."""
        self.last_mark = 0
        """Number of lines at the last mark."""
        self._begins = False
        """Whether no line of this source has had a time so far."""
        self._last_source = ""
        """Name of the source of the last line with a time."""

    @property
    def levels(self) -> Counter[str]:
        """Number of lines by level."""
        lines = Counter(self.drop_levels)
        for shape in self.shapes:
            lines[shape.level] += shape.count
        return lines

    @property
    def shapes(self) -> list[Shape]:
        """The `Shape` of each held template."""
        return [template.data for template in self.tree]

    def begin(self, name: str) -> None:
        """Begin another source."""
        self.close()
        self.sources.append((name, self.lines))
        self.several |= len(self.sources) > 1
        self.parser.begin()
        self._before.clear()
        self._begins = True

    def feed(self, text: str, left_out: int = 0) -> None:
        """Read more text of the log; `left_out`: lines of its source before it, not read."""
        if left_out != (self.gaps[1][-1] if self.gaps[1] else 0):
            self.gaps[0].append(self.lines)
            self.gaps[1].append(left_out)
        self._read(self.splitter.feed(text))

    def close(self) -> None:
        """Read the last line at the end of the text, and lines whose end is missing."""
        self._read(self.splitter.close())
        for entry in self.parser.rest():
            self._count(entry)

    def where(self, line: int) -> tuple[str, int]:
        """Return the source of a line and its number in this source, from 1."""
        name, before = "", 0
        for each, lines in self.sources:
            if lines < line:
                name, before = each, lines
        at = bisect_left(self.gaps[0], line)
        return name, line - before + (self.gaps[1][at - 1] if at else 0)

    def share_before(self, bucket: int) -> float:
        """Return the share of the lines that come before a bucket."""
        before = sum(n for each, n in self.total.buckets.items() if each < bucket)
        return before / max(self.total.count, 1)

    @property
    def whole_lines(self) -> int:
        """Number of lines without the pieces of those whose end is still to come."""
        return self.lines - sum(line.pieces for line in self.parser.split_lines.held)

    def mark(self) -> None:
        """Mark all lines that were read as reported."""
        held = (line.number - 1 for line in self.parser.split_lines.held)
        self.last_mark = min(held, default=self.lines)
        for shape in self.shapes:
            shape.old_count, shape.since = shape.count, None

    def _go_back(self, time: float, number: int) -> None:
        """Note if the clock goes back, or if a source begins before the end of the previous one."""
        if self._time is None or time >= self._time - JUMP:
            return
        if self._begins:
            self.overlaps += 1
            if not self.first_overlap:
                self.first_overlap, self.overlapped_source = number, self._last_source
        else:
            self.jumps += 1
            self.first_jump = self.first_jump or number

    def _read(self, lines: list[str]) -> None:
        for line in lines:
            self.lines += 1
            entry = self.parser.entry(line, self.lines)
            if entry is not None:
                self._count(entry)

    def _count(self, entry: Entry) -> None:
        """Count a line for its template and its component."""
        text, time, rest, _, writer, continues, more, number, pieces = entry
        if pieces > 1:
            self.trails += pieces - 1
            self.splitter.long_lines += len(text) == LONGEST_LINE
        apart = False
        if time is None:
            if not text or text.isspace():
                self.blank += 1
                return
            last = self._before.get(writer) if continues else None
            before = None if last is None else last[0]
            apart = bool(before and TRACE.match(text) and before.goes_well(text))
            if last is not None and before is not None and not apart:
                self.trails += 1
                before.trails += 1
                if before.since is None:
                    before.report_again(FirstLine.of(*last[1:]))
                for line in (text, *more):
                    before.trail(line)
                return
            time = None if self._begins else self._time  # that of another source says nothing
            self.without_time += 1
        else:
            self._go_back(time, number)
            if self._time is None:
                self.zone = self.parser.zone or 0
            self._begins = False
            self._last_source = self.sources[-1][0] if self.sources else ""
            self._time = time
            if not rest or rest.isspace():  # the time is that of the next lines, as Oracle has it
                self.blank += 1
                self._before.pop(writer, None)
                return
        if self.by_line or (self._time is None and number > NO_CLOCK):
            self.by_line, time = True, None
        at = number if time is None else time
        bucket = int(at // self.width) if self.by_line or time is not None else None
        template, component = self.tree.add_named(rest)
        if template.data is None:
            template.data = Shape(template, level_of(rest), FirstLine.of(entry, time))
        shape: Shape = template.data
        self._before.pop(writer, None)
        self._before[writer] = shape, entry, time
        if len(self._before) > MOST_STREAMS:
            del self._before[next(iter(self._before))]
        if apart:
            shape.fail()
        if shape.since is None:
            shape.since = FirstLine.of(entry, time)
        shape.take(number, time, bucket)
        self.total.take(number, time, bucket)
        near = 0 if bucket is None else shape.buckets[bucket]
        if len(self.total.buckets) > MOST_BUCKETS:
            self._widen()
            bucket = int(at // self.width)
        if component is not None:
            if component not in self.components:
                self.components[component] = Component()
                if len(self.components) > MOST_COMPONENTS:
                    self.components.popitem(last=False)
            self.components.move_to_end(component)
            self.components[component].take(number, time, bucket)
            add_limited(shape.components, component)
        shape.read(rest, near, bucket, at)
        for line in more:
            shape.trail(line)

    def _widen(self) -> None:
        """Double the width of the buckets until there are at most MOST_BUCKETS / 2."""
        while len(self.total.buckets) > MOST_BUCKETS // 2:
            self.width *= 2
            for series in [self.total, *self.components.values(), *self.shapes]:
                buckets: Counter[int] = Counter()
                for bucket, count in series.buckets.items():
                    buckets[bucket // 2] += count
                series.buckets = buckets
            for shape in self.shapes:
                for variable in shape.variables.values():
                    wide: dict[int, list[float]] = {}
                    add_sums(wide, ((b // 2, sums) for b, sums in variable.means.items()))
                    variable.means = wide

    def _on_join(self, into: Template, old: Template) -> None:
        if old.data is not None and into.data is not None:
            into.data.take_over(old.data)
        elif old.data is not None:
            into.data, old.data.template = old.data, into

    def _on_evict(self, template: Template) -> None:
        self.drops += 1
        if template.data is not None:
            self.drop_levels[template.data.level] += template.count


class Clock:
    """Formats times in the zone of the first one, with the day only if the log spans several."""

    def __init__(self, log: LogSummary) -> None:
        self.log = log
        first, last = self._local(log.total.low), self._local(log.total.high)
        buckets = log.total.buckets
        self.days = self.years = False
        if first is not None and last is not None and buckets and not log.by_line:
            self.days = int(first // 86400) != int(last // 86400)
            self.days = self.days or (max(buckets) - min(buckets)) * log.width > 1.5 * 86400
            # Only of years that gmtime supports.
            years = {gmtime(min(max(at, 0.0), 2e11)).tm_year for at in (first, last)}
            self.years = log.parser.dated and len(years) > 1

    def _local(self, moment: float | None) -> float | None:
        return None if moment is None else moment + self.log.zone

    def __call__(self, moment: float | None, line: int, *, full: bool = False) -> str:
        full = full and self.log.parser.has_days
        year = self.log.parser.dated and (full or self.years)
        form = ("%Y-" if year else "") + "%m-%d " if self.days or full else ""
        return self._as(f"{form}%H:%M:%S", moment, line)

    def _as(self, form: str, moment: float | None, line: int) -> str:
        local = self._local(moment)
        if local is None or self.log.by_line:
            return f"line {line:,}"
        try:
            return strftime(form, gmtime(local))
        except (ValueError, OverflowError, OSError):  # the year is out of range
            return f"line {line:,}"

    def after(self, low: float | None, moment: float | None, line: int) -> str:
        """Format a time that is shown after the time `low`, with the day only if it differs."""
        first, last = self._local(low), self._local(moment)
        if first is None or last is None or first // 86400 != last // 86400:
            return self(moment, line)
        return self._as("%H:%M:%S", moment, line)

    def bucket(self, bucket: int) -> str:
        """Format the beginning of a bucket."""
        start = bucket * self.log.width
        return self(start, max(int(start), 1))

    def buckets(self, shape: Shape, start: int, end: int) -> str:
        """Format the span of buckets, limited to the lines of the template."""
        low, high = start * self.log.width, (end + 1) * self.log.width
        if shape.low is not None and shape.high is not None:
            low, high = max(low, shape.low), min(high, shape.high)
        first, last = self(low, max(int(low), 1)), self(high, int(high))
        if first == last:
            return f"from {first}"
        return f"from {first} to {self.after(low, high, int(high))}"
