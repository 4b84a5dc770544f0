"""The lines of one template of a log, and the values of its variables.

Values of variables are read from a part of the lines: the first 16 of a template, then every 17th,
or every 67th if a time bucket has more than 512 of them. The steps are primes, because logs have
periods. The other lines are also checked, by the text around it, for whether a value is the same in
all lines.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvstream.logs.components import message_of
from kvstream.logs.levels import LEVELS, SEVERE
from kvstream.logs.line_parser import Entry
from kvstream.logs.series import Rush, Series
from kvstream.logs.swings import Swings
from kvstream.logs.template_tree import WILDCARD, Template, ValueReader, display, values_of
from kvstream.logs.traces import EXAMPLE, TRACE, Trace

ALL_VALUES, MANY, STEPS = 16, 512, (17, 67)
"""Number of first lines of a template whose values are all read; then one line per step is read.
The first step is for the first MANY lines of each time bucket, the second for the others. Each
bucket has its own MANY, so that half a day in a log of months has enough values."""
MOST_VALUES = 32
"""Maximum number of different values counted of a variable."""
MOST_VARIABLES = 8
"""Maximum number of variables of a template whose values are counted."""
MOST_SAME, LONGEST_SAME = 32, 80
"""Maximum number of values that may be the same in all lines of a template, and of characters of
one."""
STEP = 5
"""Step of the lines whose quantities are read for short changes."""
_QUANTITY = re.compile(r"<?(?![-\d.]{10})(-?\d+(?:\.\d+)?) ?([a-zA-Z%]{0,8})$")
"""A number of at most nine characters, and its unit."""


def add_sums(means: dict[int, list[float]], more: Iterable[tuple[int, list[float]]]) -> None:
    """Add the sums of `more` to `means`, bucket by bucket."""
    for bucket, sums in more:
        before = means.get(bucket, (0.0, 0.0, 0.0))
        means[bucket] = [a + b for a, b in zip(before, sums, strict=True)]


def add_limited(counts: Counter[str], key: str, count: int = 1) -> bool:
    """Add to the count of a key, and return True, unless MOST_VALUES others are counted."""
    if key not in counts and len(counts) >= MOST_VALUES:
        return False
    counts[key] += count
    return True


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
        self.other += not add_limited(self.values, raw)
        match = _QUANTITY.match(raw)
        if match is None or bucket is None:
            return
        number = float(match.group(1))
        self.unit = match.group(2) or self.unit
        if self.swings is None and (self.unit or "." in match.group(1)):
            self.swings = Swings()
        if self.previous is not None and number > self.previous:
            self.rises += 1
        self.previous = number
        size = math.log1p(abs(number))
        add_sums(self.means, [(bucket, [1.0, size, size * size])])

    def measure(self, raw: str, at: float) -> None:
        """Add a quantity to the swings without counting it."""
        match = _QUANTITY.match(raw)
        if self.swings is not None and match is not None:
            self.swings.take(math.log1p(abs(float(match.group(1)))), at)

    def merge(self, other: Variable) -> None:
        """Add the counts of another variable."""
        self.swings = self.swings or other.swings
        self.looked_at += other.looked_at
        self.other += other.other
        self.rises += other.rises
        for value, count in other.values.items():
            self.other += 0 if add_limited(self.values, value, count) else count
        add_sums(self.means, other.means.items())


@dataclass
class FirstLine:
    """The first line of a template, of all or after a report."""

    number: int
    time: float | None
    line: str
    message: str
    """The line without its time."""
    trace: Trace
    """The first lines that continue a line of the template."""

    @classmethod
    def of(cls, entry: Entry, time: float | None) -> FirstLine:
        """Return the beginning of a line, which is at this time."""
        line, message = entry.text[:EXAMPLE], entry.rest[:EXAMPLE].strip()
        return cls(entry.number, time, line, message, Trace(line))


class Shape(Series):
    """The lines of one template."""

    def __init__(self, template: Template, level: str, first: FirstLine) -> None:
        super().__init__()
        self.template, self.level = template, level
        self.first = first
        self.trails = 0
        """Number of lines that continue lines of this template."""
        self.components: Counter[str] = Counter()
        """Number of lines by component, for the first MOST_VALUES components."""
        self.variables: dict[int, Variable] = {}
        """Variables by their place among the words."""
        self.same: dict[int, str] = {}
        """Values that have been the same in all lines, by place."""
        self.literals: tuple[str, ...] = ()
        self.end = ""
        """`literals` has the texts with the values of `same`, `end` the end of a line. A line with
        all of them has the same values."""
        self.odd = 0
        """Lines with the same values but without these texts: their punctuation differs."""
        self.words: tuple[str, ...] = ()
        """The words of the template when it was last read. Changed words are a new object."""
        self.places: list[int] = []
        """Places of the words with ``<*>``."""
        self.reader: ValueReader | None = None
        self.gauges: list[tuple[int, Variable]] = []
        """Variables with swings, each with the index of its value in the result of the reader."""
        self.rush = Rush() if level in SEVERE else None
        """The minute with most lines, for warnings and errors."""
        self.old_count = 0
        """Number of lines that reports have covered."""
        self.since: FirstLine | None = None
        """The first line after the last report."""

    @property
    def text(self) -> str:
        """The template for display, with the values that have been the same in all lines."""
        self._note_words()
        words = [self.same.get(place, word) for place, word in enumerate(self.words)]
        return display(message_of(self.first.message), words)

    def _note_words(self) -> None:
        """Update the words of a joined template; a changed word was another in earlier lines."""
        old, new = self.words, self.template.words
        if old is new:
            return
        self.same = {place: text for place, text in self.same.items() if old[place] == new[place]}
        self.words, self.reader, self.gauges = new, None, []
        self.places = [place for place, word in enumerate(new) if WILDCARD in word]

    def _compare(self, values: list[str]) -> None:
        """Note which values are still the same in all lines; only the first line adds some."""
        if self.count == 1:
            first = list(zip(self.places, values, strict=True))[:MOST_SAME]
            self.same = {place: text for place, text in first if 0 < len(text) <= LONGEST_SAME}
        elif self.same:
            for place, text in zip(self.places, values, strict=True):
                if self.same.get(place, text) != text:
                    del self.same[place]

    def _fix(self) -> None:
        """Find the texts of lines with the same values; none if too many such lines lack them."""
        self.literals, self.end = (), ""
        if not self.same or self.odd > ALL_VALUES:
            return
        line = f"\n{self.first.message}"
        # Include the character before: 11 also ends with 1.
        before = line[-1 - len(message_of(self.first.message))]
        *texts, end = f"{before}{self.text}".split(WILDCARD)
        if len(self.first.message) < EXAMPLE:
            self.end = end
        else:
            texts.append(end)
        values = set(self.same.values())
        self.literals = tuple(text for text in texts if any(value in text for value in values))

    def read(self, rest: str, near: int, bucket: int | None, at: float) -> None:
        """Read a line, at this time or with this number; ``near``: lines in its bucket."""
        if self.count <= ALL_VALUES or self.count % STEPS[near > MANY] == 0:
            self._look(rest, bucket)
        elif self.same:
            self._check(rest)
        if self.rush is not None:
            self.rush.take(at)
        if self.reader and self.gauges and self.count % STEP == 0:
            values = self.reader.read(message_of(rest))
            if values is not None:
                for place, variable in self.gauges:
                    variable.measure(values[place].lstrip(), at)

    def goes_well(self, line: str) -> bool:
        """Return whether several lines went well before one that a trace follows. The trace is then
        not theirs, and they are no errors."""
        well = ("", "info") if self.trails else ("", "info", "debug", "notice")
        begins = not line.startswith((" ", "\t", "Caused by:"))  # else it is of another thread
        return self.level in well and self.count > 1 and begins

    def report_again(self, last: FirstLine) -> None:
        """Count the last line, which was reported, for the next report: others continue it."""
        self.old_count -= 1
        self.since = self.first if self.first.number == last.number else last

    def trail(self, line: str) -> None:
        """Note a line that continues the last one."""
        for first in (self.first, None if self.since is self.first else self.since):
            if first is not None and first.trace.line in (0, self.last_line):
                first.trace.line = self.last_line
                first.trace.add(line)
        alone = self.level in ("", "info") and self.count == 1
        if (alone or self.level == "suspect") and TRACE.match(line):
            self.fail()

    def fail(self) -> None:
        """Count the lines as errors."""
        self.level, self.rush = "error", self.rush or Rush()

    def _check(self, rest: str) -> None:
        """Update `same` if a line whose values are not read has other values."""
        line = f"\n{rest.strip()}"
        if line.endswith(self.end) and all(text in line for text in self.literals):
            return
        self._note_words()
        every, size = values_of(message_of(rest)), len(self.same)
        if len(every) == len(self.words):
            self._compare([every[place] for place in self.places])
        self.odd += len(self.same) == size
        self._fix()

    def _look(self, rest: str, bucket: int | None) -> None:
        size = len(self.same)
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
            # The reader would take a wildcard in the message for a value.
            if self.reader is None and self.count > ALL_VALUES and WILDCARD not in message:
                reader = ValueReader(message, self.words)
                self.reader = reader if reader.read(message) == values else None
        self._compare(values)
        if self.count == ALL_VALUES or (self.count > ALL_VALUES and len(self.same) != size):
            self._fix()
        for place, value in zip(self.places, values, strict=True):
            if self.words[place] != WILDCARD:
                continue
            variable = self.variables.get(place)
            if variable is None:
                if len(self.variables) >= MOST_VARIABLES:
                    continue
                variable = self.variables[place] = Variable()
            variable.take(value.lstrip()[:80], bucket)
        if self.count > ALL_VALUES and self.reader is not None:
            self.gauges = [
                (at, self.variables[place])
                for at, place in enumerate(self.places)
                if place in self.variables and self.variables[place].swings is not None
            ]

    def take_over(self, other: Shape) -> None:
        """Add the counts of a template that has joined this one."""
        if other.first_line < self.first_line:
            self.first = other.first
        super().merge(other)
        self.trails += other.trails
        self.old_count += other.old_count
        for name, count in other.components.items():
            add_limited(self.components, name, count)
        if other.since and (not self.since or other.since.number < self.since.number):
            self.since = other.since
        if LEVELS.index(other.level) > LEVELS.index(self.level):
            self.level = other.level
        if other.rush is not None and (self.rush is None or other.rush.lines > self.rush.lines):
            self.rush = other.rush
        common = self.same.items() & other.same.items()
        self.same = dict(sorted(common))
        self._fix()
        for place, variable in other.variables.items():
            if place in self.variables:
                self.variables[place].merge(variable)
            elif len(self.variables) < MOST_VARIABLES:
                self.variables[place] = variable
