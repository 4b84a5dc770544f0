"""What to report about a log: findings about each template, and their order.

All tests compare a template with the log around it: a burst is a bucket of time with far more
lines than a Poisson process of the template's own rate gives, a silence is a gap that its share of
all lines makes improbable, a drift is a quantity whose late values lie far from its early ones.
"""

from __future__ import annotations

import math
import re
import time as clock
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from kvstream.logs.lines import SEVERE, message_of
from kvstream.logs.summary import RUSH, Component, Gap, LogSummary, Series, Shape, Variable
from kvstream.logs.swings import Swing
from kvstream.logs.templates import WILDCARD, shown

ROWS = 16
"""Rows of a page, where nobody names another number."""
FIRST = 8
"""Rows that errors and warnings get before the other sections, on a page with fewer than ROWS."""
RARE = 3
"""Most lines of a template that is rare."""
LATE = 0.25
"""Share of the log before a template, from which it may be new."""
CHANCE = 0.01
"""Chance at which lines spread over the whole log would all come that late."""
BEGUN = 8
"""Errors and warnings that may be listed in the order of time."""
HARMLESS = 10
"""Times its rate, at least, of a burst of lines with the level of information."""
FLOOD = 20
"""Times its rate of a burst that the lines before it may explain."""
MUCH = 0.05
"""Share of the log that it has, where its lines are no errors."""
LONGER = 2.5
"""Times the second longest gap of a component that a silence lasts."""
USUAL = 0.6
"""Share of the buckets of time in which a component writes, or its silence says little."""
LEAST = 30
"""Lines that are expected meanwhile, at least."""
ENOUGH_VALUES = 8
"""Values whose mean is compared with others; buckets with fewer are taken together."""
DEVIATIONS = 6.0
"""Median deviations of these means from which a short change is told."""
FARTHER = 1.4
"""Times the second one that a short change goes."""
LONGEST_GAP = 900.0
"""Seconds (lines, in a log without times) before a burst in which a line may explain it, and
between two bursts that tell the same."""
CAUSE = 5.0
"""What a rare line before a flood of errors scores; two less before another flood."""
TOGETHER = 4
"""Rare templates of one component, one after the other, that share one row."""
NEAR = 60
"""Lines, and seconds, between two of these."""
START, START_LINES = 12, 5
"""Rare templates in one row that may be a start of the system, and those that must tell it."""
_START = re.compile(r"\b(?:re)?start(?:s|ed|ing)?\b|\bboot(?:s|ed|ing)?\b|\bLinux version\b", re.I)
_WEIGHT = {"fatal": 4.0, "error": 3.0, "suspect": 2.0, "warning": 1.5}
SECTIONS = ("errors and warnings", "new or rare", "changes over time", "most lines")


@dataclass
class Finding:
    """One row of the page: a template or a component, and what is unusual about it."""

    section: str
    count: int
    level: str
    text: str
    first_line: int
    last_line: int
    first_time: float | None
    last_time: float | None
    low: float | None = None
    high: float | None = None
    """The earliest and the latest time, where the clock goes back."""
    example: str = ""
    message: str = ""
    trace: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    variables: list[dict[str, Any]] = field(default_factory=list)
    components: dict[str, int] = field(default_factory=dict)
    score: float = 0.0
    templates: int = 1
    """Templates of the row; 0: it is about a component."""
    together: tuple[str, int] | None = None
    """What happens, and in which bucket: findings that share it tell the same, if they begin near
    each other. A bucket of a log of months lasts hours."""
    begin: float = 0.0
    """When it happens, as exactly as that is known."""


@dataclass
class Report:
    """Everything to report about a log so far."""

    findings: list[Finding]
    begun: list[Finding]
    """The first errors and warnings that were missing in a quarter of the log, in the order of
    time; small screens have no room for the rows of all."""
    templates: int
    """Templates that could have been reported."""
    lines_told: int
    """Lines of the templates in `findings`."""
    lines: int
    """Lines of all templates."""
    left: dict[str, int]
    """Lines of other templates than those in `findings`, by level: errors and warnings."""


class Clock:
    """Writes times: the day only where the log spans more than one."""

    def __init__(self, log: LogSummary) -> None:
        self.log = log
        first, last = log.total.low, log.total.high
        buckets = log.total.buckets
        self.days = self.years = False
        if first is not None and last is not None and buckets and not log.by_line:
            self.days = int(first // 86400) != int(last // 86400)
            self.days = self.days or (max(buckets) - min(buckets)) * log.width > 1.5 * 86400
            self.years = log.dated and clock.gmtime(_sane(first))[0] != clock.gmtime(_sane(last))[0]

    def __call__(self, time: float | None, line: int, *, full: bool = False) -> str:
        year = self.log.dated and (full or self.years)
        form = ("%Y-" if year else "") + "%m-%d " if self.days or full else ""
        return self._as(f"{form}%H:%M:%S", time, line)

    def _as(self, form: str, time: float | None, line: int) -> str:
        if time is None or self.log.by_line:
            return f"line {line:,}"
        try:
            return clock.strftime(form, clock.gmtime(time))
        except (ValueError, OverflowError, OSError):  # a year that no calendar has
            return f"line {line:,}"

    def span(self, finding: Finding) -> str:
        """From when to when."""
        low, high = finding.low, finding.high
        first, last = self(low, finding.first_line), self(high, finding.last_line)
        if finding.count == 1 or first == last:
            return first
        return f"{first} to {self.after(low, high, finding.last_line)}"

    def after(self, low: float | None, time: float | None, line: int) -> str:
        """A time behind another one that is written before it: the day only if it differs."""
        if low is None or time is None or low // 86400 != time // 86400:
            return self(time, line)
        return self._as("%H:%M:%S", time, line)

    def bucket(self, bucket: int) -> str:
        """When a bucket begins."""
        start = bucket * self.log.width
        return self(start, max(int(start), 1))


def _sane(time: float) -> float:
    """A time of a year that calendars have."""
    return min(max(time, 0.0), 2e11)


def report(log: LogSummary, rows: int = ROWS, *, news: bool = False) -> Report:
    """The `rows` findings that matter most, section by section.

    With ``news`` only templates with lines behind the last `LogSummary.mark`, and their counts
    since then.
    """
    when = Clock(log)
    order = sorted(log.total.buckets)
    shapes = [s for s in log.shapes if not news or s.count > s.reported]
    bursts = {s.first_line: _telling(s, _burst(s, log, order)) for s in shapes}
    onsets = [
        (start, shape)
        for shape in shapes
        if (start := _onset(shape, bursts[shape.first_line], log))
    ]
    found: list[Finding] = []
    for shape in shapes:
        found.append(_finding(shape, log, order, bursts[shape.first_line], onsets, when, news=news))
    found = _joined(found, when)
    if not news:
        found += _silent_components(log, order, when, found)
    chosen = _chosen(found, rows)
    if not news and 2 * sum("new" in f.notes for f in chosen) > len(chosen):
        for finding in chosen:  # what most rows have tells them not apart
            finding.notes = [note for note in finding.notes if note != "new"]
    told = sum(f.count for f in chosen if f.templates)
    every = sum(s.count - (s.reported if news else 0) for s in shapes)
    begun = [] if news or log.by_line else _begun(found, log)
    left: Counter[str] = Counter()
    for shape in shapes:
        left[shape.level] += shape.count - (shape.reported if news else 0)
    left.subtract({level: _told(chosen, level) for level in SEVERE})
    severe = {level: left[level] for level in _WEIGHT if left[level]}
    return Report(chosen, begun, len(shapes), told, every, severe)


def _told(found: list[Finding], level: str) -> int:
    """Lines of a level in rows of templates."""
    return sum(f.count for f in found if f.templates and f.level == level)


def _begun(found: list[Finding], log: LogSummary) -> list[Finding]:
    """The best errors and warnings that are missing at first, in the order of time."""
    late: list[tuple[float, int, Finding]] = []
    first = [f for f in found if f.section == SECTIONS[0]]
    for finding in sorted(first, key=lambda f: -f.score)[:BEGUN]:
        low = finding.low
        if low is not None:
            bucket = int(low // log.width)
            before = sum(n for b, n in log.total.buckets.items() if b < bucket)
            if before > LATE * log.total.count:
                late.append((low, finding.first_line, finding))
    return [finding for *_, finding in sorted(late, key=lambda each: each[:2])]


def _chosen(found: list[Finding], rows: int) -> list[Finding]:
    """The best of each section; what one section leaves goes to the others. Of few rows, errors
    and warnings get all but one.
    """
    by = {s: _ranked([f for f in found if f.section == s]) for s in SECTIONS}
    shares = dict(zip(SECTIONS, (0.4, 0.2, 0.25, 0.15), strict=True))
    take = {s: min(len(by[s]), max(1, round(rows * shares[s]))) for s in SECTIONS}
    severe, *others = SECTIONS
    if rows < ROWS:
        by[severe] = _repeated_first(by[severe])
        take[severe] = min(len(by[severe]), max(take[severe], min(rows - 1, FIRST)))
        # The bulk goes first, then the section whose best row tells less.
        others.sort(key=lambda s: (s != SECTIONS[3], by[s][0].score if by[s] else 0.0))
    else:
        others.reverse()
    while sum(take.values()) > rows:
        section = max(others, key=lambda s: take[s])
        take[section if take[section] else severe] -= 1
    for section in (*SECTIONS[:1], *SECTIONS[2:], SECTIONS[1]):
        take[section] += min(rows - sum(take.values()), len(by[section]) - take[section])
    return [finding for section in SECTIONS for finding in by[section][: take[section]]]


def _ranked(found: list[Finding]) -> list[Finding]:
    """From the highest score down; of findings that tell the same, all but two come later."""
    found = sorted(found, key=lambda f: -f.score)
    seen: dict[tuple[str, int], Counter[float]] = {}
    for finding in found:
        if finding.together is not None:
            begins = seen.setdefault(finding.together, Counter())
            near = (time for time in begins if abs(time - finding.begin) <= LONGEST_GAP)
            begin = next(near, finding.begin)
            begins[begin] += 1
            finding.score -= 4 * max(begins[begin] - 2, 0)
    return sorted(found, key=lambda f: -f.score)


def _repeated_first(found: list[Finding]) -> list[Finding]:
    """Errors in the places of their level: those with many lines come before rare ones, but for a
    rare one that a burst follows.
    """
    by_level: dict[str, list[Finding]] = {}
    for finding in found:
        by_level.setdefault(finding.level, []).append(finding)
    for findings in by_level.values():
        findings.sort(key=lambda f: f.count <= RARE and f.score < _explains(f.level))
    rest = {level: iter(findings) for level, findings in by_level.items()}
    return [next(rest[finding.level]) for finding in found]


def _explains(level: str) -> float:
    """What an error scores at least if a burst follows it."""
    return 2 * _WEIGHT[level] + CAUSE - 2


def _finding(
    shape: Shape,
    log: LogSummary,
    order: list[int],
    burst: tuple[int, int, int, float] | None,
    onsets: list[tuple[Onset, Shape]],
    when: Clock,
    *,
    news: bool,
) -> Finding:
    count = shape.count - shape.reported if news else shape.count
    rare = shape.count <= RARE
    score = 0.0
    notes: list[str] = []
    late = _lateness(shape, log)
    if news:
        if not shape.reported:
            notes.append("new")
            score += 2
    elif late > LATE:
        if _is_new(shape, log):
            notes.append("new")
        score += 1
    changed = False
    together: tuple[str, int] | None = None
    begin = 0.0
    if burst is not None:
        start, end, lines, factor = burst
        onset = _begin(shape, burst, log)
        together, begin = ("burst", start), onset.time
        if lines == shape.count:
            notes.append(f"one burst of {lines:,} lines")
        else:
            during = _from_to(shape, start, end, when)
            if start == end and onset.within <= RUSH and log.width > LONGEST_GAP:
                during = f"around {when(onset.time, int(onset.time))}"  # a bucket lasts hours
            how = (
                f"burst of {lines:,} of these lines {during}"
                if 2 * lines > shape.count
                else f"burst of {lines:,} lines {during} ({factor:.0f} times its rate)"
            )
            notes.append(how)
        score += 2 + min(math.log10(lines), 4)
        changed = True
    silence = None if rare else _silence(shape, log, order)
    if silence is not None:
        start, gap_end, expected = silence
        together = together or ("silence", start)  # which begins with its bucket
        until = "since" if gap_end is None else "from"
        to = "" if gap_end is None else f" to {when.bucket(gap_end)}"
        notes.append(
            f"silent {until} {when.bucket(start)}{to} (about {expected:,.0f} lines expected)"
        )
        score += 2 + min(math.log10(expected), 4)
        changed = True
    for place, variable in shape.variables.items():
        note, z = _changed_value(shape, place, variable, order, when)
        if note:
            notes.append(note)
            score += 3 + min(math.log10(z), 2)
            changed = True
    before = _before(shape, onsets, log) if rare else None
    if before is not None:
        gap, flood = before
        what = shown(message_of(flood.message), flood.template.words)[:60]
        notes.append(f"{gap:.0f} {'lines' if log.by_line else 's'} before a burst of: {what}")
        score += CAUSE if flood.level in SEVERE else CAUSE - 2
    if shape.level in SEVERE:
        section = SECTIONS[0]
        score += 2 * _WEIGHT[shape.level] + (0.5 if rare else 0)
        score += 0.2 * math.log10(shape.count)
    elif changed:
        section = SECTIONS[2]
    elif rare or (news and not shape.reported):
        section = SECTIONS[1]
        score += late
    else:
        section = SECTIONS[3]
        score = float(count)
    if shape.trace:
        notes.append(
            f"stack trace of {shape.continued:,} lines"
            if shape.count == 1
            else f"stack traces, {shape.continued:,} lines"
        )
    first_line = shape.since_line if news and shape.reported else shape.first_line
    first_time = shape.since_time if news and shape.reported else shape.first_time
    return Finding(
        section, count, shape.level, shown(message_of(shape.message), shape.template.words),
        first_line, shape.last_line, first_time, shape.last_time,
        first_time if news and shape.reported else shape.low, shape.high,
        shape.example, message_of(shape.message), shape.trace, notes,
        _variables(shape), dict(shape.components.most_common(3)), score,
        together=together, begin=begin,
    )  # fmt: skip


def _joined(found: list[Finding], when: Clock) -> list[Finding]:
    """Rare templates of one component that come one after the other, such as those of a start of
    the system, in one row.
    """
    kept: list[Finding] = []
    rare: list[Finding] = []
    for finding in found:
        other = finding.section != SECTIONS[1] or finding.score >= CAUSE - 2
        (kept if other or not finding.components else rare).append(finding)
    rare.sort(key=lambda f: f.first_line)
    runs: list[list[Finding]] = []
    latest: dict[str, list[Finding]] = {}
    for finding in rare:
        name = next(iter(finding.components))
        last = latest[name][-1] if name in latest else None
        near = last is not None and finding.first_line - last.last_line <= NEAR
        if last is not None and finding.low is not None and last.high is not None:
            near = near and finding.low - last.high <= NEAR
        if near:
            latest[name].append(finding)
        else:
            latest[name] = [finding]
            runs.append(latest[name])
    for run in runs:
        if len(run) < TOGETHER:
            kept += run
            continue
        first, last = run[0], max(run, key=lambda f: f.last_line)
        first.notes.insert(
            0,
            f"the first of {len(run):,} rare templates, counted together, until "
            f"{when(last.high, last.last_line)}",
        )
        if len(run) >= START and any(_START.search(f.message) for f in run[:START_LINES]):
            first.notes.insert(1, "looks like a start of the system")
        first.count, first.templates = sum(f.count for f in run), len(run)
        first.last_line, first.last_time, first.high = last.last_line, last.last_time, last.high
        first.score = max(f.score for f in run) + math.log10(len(run))
        first.variables = []
        kept.append(first)
    return kept


def _amount(number: float, unit: str = "") -> str:
    """A quantity for people, with three digits."""
    text = f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
    return f"{text} {unit}".rstrip()


def _from_to(shape: Shape, start: int, end: int, when: Clock) -> str:
    """From when to when buckets reach, as far as there are lines of the template."""
    low, high = start * when.log.width, (end + 1) * when.log.width
    if shape.low is not None and shape.high is not None:
        low, high = max(low, shape.low), min(high, shape.high)
    first, last = when(low, max(int(low), 1)), when(high, int(high))
    return (
        f"from {first}" if first == last else f"from {first} to {when.after(low, high, int(high))}"
    )


def _is_new(shape: Shape, log: LogSummary) -> bool:
    """Whether a template is missing at first: were its lines spread over the whole log, they would
    hardly all come behind LATE of it. Lines of one bucket count as one.
    """
    if not shape.buckets:
        return False
    begin = min(shape.buckets)
    before = sum(n for bucket, n in log.total.buckets.items() if bucket < begin)
    share = before / max(log.total.count, 1)
    return share > LATE and (1 - share) ** len(shape.buckets) < CHANCE


def _lateness(shape: Shape, log: LogSummary) -> float:
    """Where in the log a template is first seen, from 0 to 1."""
    return (shape.first_line - 1) / max(log.lines, 1)


def _burst(series: Series, log: LogSummary, order: list[int]) -> tuple[int, int, int, float] | None:
    """The strongest burst: first and last bucket, lines, and times the rate elsewhere."""
    if series.count < 10 or len(order) < 8 or not series.buckets:
        return None
    top, most = max(series.buckets.items(), key=lambda item: item[1])
    counts = [series.buckets.get(b, 0) for b in order]
    usual = median(counts)
    spread = median(abs(c - usual) for c in counts)
    elsewhere = max(usual, (series.count - most) / (len(order) - 1) if len(order) > 20 else usual)
    floor = usual + 8 * max(spread * 1.5, math.sqrt(max(usual, 0.1)), 1)
    # The whole log may be louder for a while: that is no burst of one template.
    total = log.total.buckets[top]
    share = series.count / log.total.count
    if most < 10 or most < floor or most < 3 * max(share * total, 0.1) * (1 - share) ** 2:
        return None
    place = order.index(top)
    start = end = place
    low = max(floor / 2, most / 8)
    while start > 0 and counts[start - 1] >= low:
        start -= 1
    while end + 1 < len(order) and counts[end + 1] >= low:
        end += 1
    if (end - start + 1) * 3 > len(order):
        return None
    lines = sum(counts[start : end + 1])
    rest = (series.count - lines) / max(len(order) - (end - start + 1), 1)
    factor = lines / (end - start + 1) / max(rest, elsewhere if rest == 0 else rest, 0.1)
    return order[start], order[end], lines, factor


def _telling(
    shape: Shape, burst: tuple[int, int, int, float] | None
) -> tuple[int, int, int, float] | None:
    """The burst, unless the lines say that they are harmless and there are not many more of them:
    what people do comes in small bursts.
    """
    harmless = shape.level in ("info", "debug")
    return None if burst is None or (harmless and burst[3] < HARMLESS) else burst


@dataclass(frozen=True)
class Onset:
    """When a burst begins."""

    time: float
    """Or the line, in a log without times."""
    within: float
    """How far from there it may begin."""
    line: int = 0
    """The first line, if the template is new then."""


def _onset(
    shape: Shape, burst: tuple[int, int, int, float] | None, log: LogSummary
) -> Onset | None:
    """When a burst begins that the lines before it may explain."""
    if burst is None or burst[2] < 30 or burst[3] < FLOOD:
        return None
    if shape.level not in SEVERE and burst[2] < MUCH * log.total.count:
        return None
    onset = _begin(shape, burst, log)
    return onset if onset.within <= LONGEST_GAP else None


def _begin(shape: Shape, burst: tuple[int, int, int, float], log: LogSummary) -> Onset:
    """When a burst begins, as exactly as that is known: with the first line of the template, in
    the minute with most of its lines, or somewhere in a bucket.
    """
    start, end = burst[0] * log.width, (burst[1] + 1) * log.width
    first = float(shape.first_line) if log.by_line else shape.first_time
    if first is not None and start <= first < start + log.width:
        return Onset(first, min(log.width / 2, LONGEST_GAP), shape.first_line)
    if shape.rush is not None and start <= shape.rush.begin < end:
        return Onset(shape.rush.begin, min(log.width / 2, RUSH))
    return Onset(start + log.width / 2, log.width / 2)


def _before(
    shape: Shape, onsets: list[tuple[Onset, Shape]], log: LogSummary
) -> tuple[float, Shape] | None:
    """The burst that a rare template comes shortly before, and by how much."""
    best: tuple[float, Shape] | None = None
    mine = float(shape.first_line) if log.by_line else shape.first_time
    if mine is None:
        return None
    for onset, flood in onsets:
        if flood is shape or (onset.line and shape.first_line > onset.line):
            continue
        gap = onset.time - mine
        if -onset.within <= gap <= min(max(1.5 * log.width, 30), LONGEST_GAP) and (
            best is None or gap < best[0]
        ):
            best = max(gap, 0.0), flood
    return best


def _silence(
    series: Series, log: LogSummary, order: list[int]
) -> tuple[int, int | None, float] | None:
    """The longest silence that is improbable: its beginning, its end, lines that were expected."""
    if series.count < 20 or len(order) < 8 or not series.buckets:
        return None  # or its lines came before any time
    places = [i for i, b in enumerate(order) if b in series.buckets]
    span = places[-1] - places[0] + 1
    if span < 4 or len(places) < 0.6 * span:
        return None  # it comes and goes
    totals = [log.total.buckets[b] for b in order]
    best: tuple[int, int | None, float] | None = None
    gaps = [(a + 1, b) for a, b in pairwise(places) if b - a > 1]
    gaps.append((places[-1] + 1, len(order)))
    inside = sum(totals[places[0] : places[-1] + 1])
    rate = series.count / max(inside, 1)
    for start, end in gaps:
        length = end - start
        # What floods the log must not raise what is expected of others.
        expected = min(rate * sum(totals[start:end]), length * series.count / len(places))
        if expected < 15 or length < 3 or length < 0.03 * len(order):
            continue
        if best is None or expected > best[2]:
            best = order[start], None if end == len(order) else order[end], expected
    if best is not None and best[1] is not None and len(gaps) > 6:
        return None
    return best


def _drift(variable: Variable, order: list[int]) -> tuple[float, float, float] | None:
    """Early and late mean of a quantity that drifts, and how far apart in deviations."""
    numbers = sum(int(held[0]) for held in variable.means.values())
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


def _changed_value(
    shape: Shape, place: int, variable: Variable, order: list[int], when: Clock
) -> tuple[str, float]:
    """How a quantity changes, and by how many deviations."""
    name = _name(shape, place)
    if (high := _deviation(variable, order)) is not None:
        usual, other, first, last, z = high
        during = _from_to(shape, first, last, when)
    elif (drift := _drift(variable, order)) is not None:
        usual, other, z = drift
        during = ""
    elif (swing := _swing(variable)) is not None:
        usual, other, z = math.expm1(swing.usual), math.expm1(swing.mean), swing.deviations
        start, end = when(swing.start, int(swing.start)), when(swing.end, int(swing.end))
        during = f"from {start} to {end}"
    else:
        return "", 0.0
    return (
        f"{name} goes from {_amount(usual)} to {_amount(other, variable.unit)} {during}".strip(),
        z,
    )


def _swing(variable: Variable) -> Swing | None:
    """A short change that goes far beyond all others."""
    swing = variable.swings and variable.swings.farthest(DEVIATIONS, FARTHER)
    if not swing:
        return None
    a, b = math.expm1(swing.usual), math.expm1(swing.mean)
    return swing if max(a, b) >= max(1.5 * min(a, b), 0.01) else None


def _deviation(variable: Variable, order: list[int]) -> tuple[float, float, int, int, float] | None:
    """The usual mean of a quantity and another one that it has for a short while: the values, the
    first and the last bucket, and how far apart they are in deviations.
    """
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
    counted = sum(held[0] for held in variable.means.values())
    if len(points) < 24 or variable.rises > 0.9 * counted:
        return None
    usual = median(mean for *_, mean in points)
    off = [mean - usual for *_, mean in points]
    within = sum(squares - total * total / n for n, total, squares in variable.means.values())
    chance = math.sqrt(max(within, 0.0) / max(counted - len(variable.means), 1) / ENOUGH_VALUES)
    spread = max(median(map(abs, off)) * 1.5, chance, 1e-3)
    first = last = max(range(len(off)), key=lambda i: abs(off[i]))
    most = off[first]
    if abs(most) < DEVIATIONS * spread:
        return None
    while first > 0 and off[first - 1] * most > abs(most) * DEVIATIONS / 2 * spread:
        first -= 1
    while last + 1 < len(off) and off[last + 1] * most > abs(most) * DEVIATIONS / 2 * spread:
        last += 1
    a, b = math.expm1(usual), math.expm1(usual + most)
    if (last - first + 1) * 5 > len(points) or max(a, b) < 1.25 * max(min(a, b), 1e-9):
        return None
    return (a, b, points[first][0], points[last][1], abs(most) / spread) if b >= 0.01 else None


def _gap(series: Component, log: LogSummary) -> tuple[Gap, float] | None:
    """A silence far longer than any other, however short it is in a long log; and the lines that
    were expected. A gap without an end lasts until now.
    """
    gap, second = series.longest, series.second
    low, high, now = series.first_time, series.high, log.total.high
    start, since = series.before
    if len(series.buckets) < USUAL * len(log.total.buckets):
        return None  # it comes and goes
    if low is None or high is None or now is None or since is None:
        return None
    last = Gap(now - since, log.lines - start, start, since)
    if last.length > gap.length:
        gap, second = last, gap.length
    if gap.length < LONGER * second:
        return None
    # What floods the log must not raise what is expected of others, nor a clock that jumps.
    share = min(gap.lines / max(log.total.count, 1), gap.length / max(now - low, 1.0))
    expected = share * series.count
    return (gap, expected) if expected >= LEAST else None


def _silent_components(
    log: LogSummary, order: list[int], when: Clock, found: list[Finding]
) -> list[Finding]:
    """Components that have gone silent, if no template shows it already."""
    rows: list[Finding] = []
    for name, series in log.components.items():
        silence = _silence(series, log, order)
        if silence is not None and silence[1] is None:
            start, _, expected = silence
            note = f"silent since {when.bucket(start)} (about {expected:,.0f} lines expected)"
        elif (found_gap := _gap(series, log)) is not None:
            gap, expected = found_gap
            until = "since" if gap.end is None else "from"
            to = "" if gap.end is None else f" to {when(gap.end, gap.line)}"
            note = (
                f"silent {until} {when(gap.start, gap.line)}{to} "
                f"(about {expected:,.0f} lines expected)"
            )
        else:
            continue
        for other in list(found):  # one row is enough
            if (
                list(other.components) == [name]
                and other.section == SECTIONS[2]
                and any(n.startswith("silent since") for n in other.notes)
            ):
                other.section, other.score = SECTIONS[3], float(other.count)
        rows.append(
            Finding(SECTIONS[2], series.count, "", f"all lines of {name}", series.first_line,
                    series.last_line, series.first_time, series.last_time, series.low, series.high,
                    notes=[note], score=5 + min(math.log10(expected), 4), templates=0)
        )  # fmt: skip
    return rows


def _name(shape: Shape, place: int) -> str:
    """What a variable is called: the words before it, if there are any."""
    named: list[str] = []
    for word in reversed(shape.template.words[max(place - 2, 0) : place]):
        if WILDCARD in word or not any(c.isalpha() for c in word):
            break
        named.insert(0, word)
    return " ".join(named) or WILDCARD


def _variables(shape: Shape) -> list[dict[str, Any]]:
    """The most frequent values of each variable."""
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
