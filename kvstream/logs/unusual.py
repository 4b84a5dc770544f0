"""Find what is unusual about a template or a component of a log: a finding with a score."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from kvstream.logs import bursts
from kvstream.logs.bursts import LONGEST_GAP, Burst, Onset
from kvstream.logs.components import message_of
from kvstream.logs.levels import SEVERE
from kvstream.logs.series import RUSH, Series, run_around
from kvstream.logs.shape import Shape, Variable
from kvstream.logs.summary import Clock, LogSummary
from kvstream.logs.swings import DEVIATIONS
from kvstream.logs.template_tree import WILDCARD
from kvstream.logs.traces import Trace
from kvstream.reporters.format import counted

RARE = 3
"""Maximum number of lines of a rare template."""
LATE = 0.25
"""A template may be new if more than this share of the log comes before it."""
CHANCE = 0.01
"""Maximum probability that randomly spread lines would all come so late, for a new template."""
CAUSE = 5.0
"""Score of a rare line before a flood of errors; two less before another flood."""
SEVERITY = {"fatal": 4.0, "error": 3.0, "suspect": 2.0, "warning": 1.5}
"""Half of what a level adds to the score."""
ENOUGH_VALUES = 8
"""Minimum number of values in a mean that is compared; buckets with fewer are joined."""
SECTIONS = ("errors and warnings", "new or rare", "changes over time", "most lines")


@dataclass(eq=False, kw_only=True)
class Finding(Series):
    """One row of the page: a template or a component, and what is unusual about it."""

    text: str
    level: str = ""
    section: str = ""
    example: str = ""
    message: str = ""
    """The message of `first_line`; empty for a component."""
    trace: Trace = field(default_factory=Trace)
    notes: list[str] = field(default_factory=list)
    variables: list[dict[str, Any]] = field(default_factory=list)
    same: set[int] = field(default_factory=set)
    """Places of the variables with a single value, which is in the text."""
    components: dict[str, int] = field(default_factory=dict)
    score: float = 0.0
    templates: int = 1
    """Number of templates in the row; 0 if it is about a component."""
    together: tuple[str, int] | None = None
    """Kind and bucket of an event. Findings with the same ones are about one event if their `begin`
    is also near: in a log of months a bucket lasts hours."""
    begin: float = 0.0
    """Time of the event, as exactly as it is known."""

    def change(self, note: str, score: float) -> None:
        """Note what changes over time."""
        self.notes.append(note)
        self.score += score
        self.section = SECTIONS[2]

    def times(self, when: Clock) -> str:
        """Format the times of the first and the last line."""
        first, last = when(self.low, self.first_line), when(self.high, self.last_line)
        if self.count == 1 or first == last:
            return first
        return f"{first} to {when.after(self.low, self.high, self.last_line)}"


class Unusual:
    """Creates the findings of a log. With `news`, only about lines after the last mark."""

    def __init__(self, log: LogSummary, shapes: list[Shape], *, news: bool) -> None:
        self.log, self.news, self.when = log, news, Clock(log)
        self.order = sorted(log.total.buckets)
        self.bursts = {s.first_line: bursts.burst_of(s, log, self.order) for s in shapes}
        self.onsets: list[tuple[Onset, Shape]] = [
            (start, shape)
            for shape in shapes
            if (start := bursts.onset_of(shape, self.bursts[shape.first_line], log))
        ]

    def count(self, shape: Shape) -> int:
        """Return the number of lines of a template; with `news`, of those after the last mark."""
        return shape.count - (shape.old_count if self.news else 0)

    def template(self, shape: Shape) -> Finding:
        """Return the finding with all that is unusual about a template."""
        rare = shape.count <= RARE
        since = shape.since if self.news and shape.old_count else None
        first = since or shape.first
        finding = Finding(
            **shape.span(),
            level=shape.level,
            text=shape.text,
            example=first.line,
            message=message_of(first.message),
            trace=first.trace,
            variables=_variables_of(shape),
            same=set(shape.same),
            components=dict(shape.components.most_common(3)),
        )
        finding.count = self.count(shape)
        if since is not None:
            finding.first_line = since.number
            finding.first_time = finding.low = since.time
        self._tell_news(shape, finding, first.number)
        burst = self.bursts[shape.first_line]
        if burst is not None and not bursts.is_steady(shape, burst, self.order):
            self._tell_burst(shape, burst, finding)
        if not rare:
            self._tell_silence(shape, finding)
        for place, variable in shape.variables.items():
            note, z = _changed_value(shape, place, variable, self.order, self.when)
            if note:
                finding.change(note, 3 + min(math.log10(z), 2))
        if rare:
            self._tell_cause(shape, finding)
        self._place(shape, finding)
        if shape.first.trace.is_stack and shape.trails:
            several = "stack traces, " if shape.count > 1 else "stack trace of "
            finding.notes.append(f"{several}{counted(shape.trails, 'line')}")
        elif shape.trails:
            finding.notes.append(counted(shape.trails, "continuation line"))
        return finding

    def _tell_news(self, shape: Shape, finding: Finding, first: int) -> None:
        if self.news:
            if first <= self.log.last_mark:
                finding.notes.append("reported before, without the lines that continue it")
            elif not shape.old_count:
                finding.notes.append("new")
                finding.score += 2
        elif _lateness(shape, self.log) > LATE:
            # Its lines, spread over the log, would hardly all come so late by chance.
            share = self.log.share_before(min(shape.buckets)) if shape.buckets else 0.0
            if share > LATE and (1 - share) ** len(shape.buckets) < CHANCE:
                finding.notes.append("new")
            finding.score += 1

    def _tell_burst(self, shape: Shape, burst: Burst, finding: Finding) -> None:
        onset = bursts.begin_of(shape, burst, self.log)
        finding.together, finding.begin = ("burst", burst.start), onset.time
        score = 2 + min(math.log10(burst.lines), 4)
        if burst.lines == shape.count:
            finding.change(f"one burst of {burst.lines:,} lines", score)
            return
        during = self.when.buckets(shape, burst.start, burst.end)
        if burst.start == burst.end and onset.within <= RUSH and self.log.width > LONGEST_GAP:
            # A bucket lasts hours.
            during = f"around {self.when(onset.time, int(onset.time))}"
        if 2 * burst.lines > shape.count:
            note = f"burst of {burst.lines:,} of these lines {during}"
        else:
            note = f"burst of {burst.lines:,} lines {during} ({burst.factor:.0f} times its rate)"
        finding.change(note, score)

    def _tell_silence(self, shape: Shape, finding: Finding) -> None:
        silence = bursts.silence_of(shape, self.log, self.order)
        if silence is None:
            return
        # The bucket of its beginning identifies a silence.
        finding.together = finding.together or ("silence", silence.start)
        end = None if silence.end is None else self.when.bucket(silence.end)
        note = _silent(self.when.bucket(silence.start), end, silence.expected)
        finding.change(note, 2 + min(math.log10(silence.expected), 4))

    def _tell_cause(self, shape: Shape, finding: Finding) -> None:
        """Note a burst that follows and that this line may explain."""
        before = bursts.burst_after(shape, self.onsets, self.log)
        if before is None:
            return
        gap, flood = before
        what = flood.text[:60]
        unit = "lines" if self.log.by_line else "s"
        finding.notes.append(f"{gap:.0f} {unit} before a burst of: {what}")
        finding.score += CAUSE if flood.level in SEVERE else CAUSE - 2

    def _place(self, shape: Shape, finding: Finding) -> None:
        """Set the section of a finding, and add the part of the score that depends on it."""
        rare = shape.count <= RARE
        if shape.level in SEVERE:
            finding.score += 2 * SEVERITY[shape.level] + (0.5 if rare else 0)
            finding.score += 0.2 * math.log10(shape.count)
            finding.section = SECTIONS[0]
        elif finding.section:
            return
        elif rare or (self.news and not shape.old_count):
            finding.score += _lateness(shape, self.log)
            finding.section = SECTIONS[1]
        else:
            finding.score = float(self.count(shape))
            finding.section = SECTIONS[3]

    def silent_components(self, findings: list[Finding]) -> list[Finding]:
        """Return findings about silent components, and move templates that say the same."""
        rows: list[Finding] = []
        for name, series in self.log.components.items():
            silence = bursts.silence_of(series, self.log, self.order)
            if silence is not None and silence.end is None:
                expected = silence.expected
                note = _silent(self.when.bucket(silence.start), None, expected)
            elif (found_gap := bursts.gap_of(series, self.log)) is not None:
                gap, expected = found_gap
                end = None if gap.end is None else self.when(gap.end, gap.line)
                note = _silent(self.when(gap.start, gap.line), end, expected)
            else:
                continue
            for other in findings:  # one row about this silence is enough
                if (
                    list(other.components) == [name]
                    and other.section == SECTIONS[2]
                    and any(n.startswith("silent since") for n in other.notes)
                ):
                    other.section, other.score = SECTIONS[3], float(other.count)
            rows.append(
                Finding(
                    **series.span(), text=f"all lines of {name}", section=SECTIONS[2], notes=[note],
                    score=5 + min(math.log10(expected), 4), templates=0,
                )
            )  # fmt: skip
        return rows


def _silent(begin: str, end: str | None, expected: float) -> str:
    """Describe a silence; without `end`, until the end of the log."""
    span = f"since {begin}" if end is None else f"from {begin} to {end}"
    return f"silent {span} (about {expected:,.0f} lines expected)"


def _lateness(shape: Shape, log: LogSummary) -> float:
    """Return where in the log a template is first seen, from 0 to 1."""
    return (shape.first_line - 1) / max(log.lines, 1)


def _changed_value(
    shape: Shape, place: int, variable: Variable, order: list[int], when: Clock
) -> tuple[str, float]:
    """Describe how a quantity changes, and by how many deviations; ("", 0) if it does not."""
    name = _name(shape, place)
    if (high := _deviation(variable, order)) is not None:
        usual, other, first, last, z = high
        during = when.buckets(shape, first, last)
    elif (drift := _drift(variable, order)) is not None:
        usual, other, z = drift
        during = ""
    elif variable.swings and (swing := variable.swings.farthest()) is not None:
        usual, other, z = math.expm1(swing.usual), math.expm1(swing.mean), swing.deviations
        start, end = when(swing.start, int(swing.start)), when(swing.end, int(swing.end))
        during = f"from {start} to {end}"
    else:
        return "", 0.0
    return (
        f"{name} goes from {_amount(usual)} to {_amount(other, variable.unit)} {during}".strip(),
        z,
    )


def _drift(variable: Variable, order: list[int]) -> tuple[float, float, float] | None:
    """Return early and late mean of a quantity that drifts, and their distance in deviations."""
    numbers = sum(int(sums[0]) for sums in variable.means.values())
    if numbers < 40 or len(variable.means) < 12:
        return None
    if variable.rises > 0.9 * numbers:  # a counter
        return None
    means = [variable.means[b][1] / variable.means[b][0] for b in order if b in variable.means]
    third = len(means) // 3
    early, late = median(means[:third]), median(means[-third:])
    noise = [abs(b - a) for a, b in pairwise(means)]
    spread = max(median(noise), 1e-3) / math.sqrt(third) * 1.5
    z = abs(late - early) / spread
    a, b = math.expm1(early), math.expm1(late)
    ratio = max(a, b) / max(min(a, b), 1e-9)
    if z < 6 or ratio < 1.5 or max(a, b) < 0.01:
        return None
    middle = median(means[third:-third])
    if not min(early, late) - spread <= middle <= max(early, late) + spread:
        return None
    return a, b, z


def _deviation(variable: Variable, order: list[int]) -> tuple[float, float, int, int, float] | None:
    """Return a short change: usual and other value, first and last bucket, deviations."""
    points: list[tuple[int, int, float]] = []  # first and last bucket, mean
    begin, numbers, total = 0, 0.0, 0.0
    for bucket in order:
        if bucket in variable.means:
            begin = begin if numbers else bucket
            numbers += variable.means[bucket][0]
            total += variable.means[bucket][1]
            if numbers >= ENOUGH_VALUES:
                points.append((begin, bucket, total / numbers))
                numbers = total = 0.0
    count = sum(sums[0] for sums in variable.means.values())
    if len(points) < 24 or variable.rises > 0.9 * count:
        return None
    usual = median(mean for *_, mean in points)
    off = [mean - usual for *_, mean in points]
    within = sum(squares - total * total / n for n, total, squares in variable.means.values())
    chance = math.sqrt(max(within, 0.0) / max(count - len(variable.means), 1) / ENOUGH_VALUES)
    spread = max(median(map(abs, off)) * 1.5, chance, 1e-3)
    most = max(off, key=abs)
    if abs(most) < DEVIATIONS * spread:
        return None
    far = [each * most > abs(most) * DEVIATIONS / 2 * spread for each in off]
    first, last = run_around(off.index(most), far)
    a, b = math.expm1(usual), math.expm1(usual + most)
    if (last - first + 1) * 5 > len(points) or max(a, b) < 1.25 * max(min(a, b), 1e-9):
        return None
    return (a, b, points[first][0], points[last][1], abs(most) / spread) if b >= 0.01 else None


def _amount(number: float, unit: str = "") -> str:
    """Format a quantity with three digits."""
    text = f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
    return f"{text} {unit}".rstrip()


def _name(shape: Shape, place: int) -> str:
    """Return the name of a variable: up to two words before it, or ``<*>``."""
    words: list[str] = []
    for word in reversed(shape.template.words[max(place - 2, 0) : place]):
        if WILDCARD in word or not any(c.isalpha() for c in word):
            break
        words.insert(0, word)
    return " ".join(words) or WILDCARD


def _variables_of(shape: Shape) -> list[dict[str, Any]]:
    """Return the most frequent values of each variable."""
    rows = []
    for place, variable in sorted(shape.variables.items()):
        top = variable.values.most_common(3)
        rows.append(
            {
                "place": place,
                "after": _name(shape, place),
                "values": [{"value": value, "lines": lines} for value, lines in top],
                "different": len(variable.values),
                "more_different": variable.other > 0,
                "looked_at": variable.looked_at,
            }
        )
    return rows
