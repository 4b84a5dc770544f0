"""Select and order the findings to report about a log."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

from kvstream.logs.bursts import LONGEST_GAP
from kvstream.logs.summary import Clock, LogSummary
from kvstream.logs.unusual import CAUSE, LATE, RARE, SECTIONS, SEVERITY, Finding, Unusual

ROWS = 16
FIRST = 8
"""Rows that errors and warnings get before other sections, on a page with fewer than ROWS rows."""
MOST = 8
"""Maximum number of errors and warnings in the list in order of time."""
TOGETHER = 4
"""Minimum number of adjacent rare templates of one component that share a row."""
NEAR = 60
"""Maximum distance of two of these, in lines and in seconds."""
START, START_LINES = 12, 5
"""A row of at least so many rare templates may be a start of the system; one of the first few must
say so."""
_START = re.compile(r"\b(?:re)?start(?:s|ed|ing)?\b|\bboot(?:s|ed|ing)?\b|\bLinux version\b", re.I)


@dataclass
class Report:
    """Everything to report about a log so far."""

    findings: list[Finding]
    onsets: list[Finding]
    """The most important errors and warnings that do not occur in the first quarter of the log, in
    order of time. Small screens have no room for the rows of all."""
    more_templates: int
    """Number of templates that are not in `findings`."""
    more_lines: int
    """Their lines."""
    rest: dict[str, int]
    """Their lines by level, for errors and warnings."""


def report(log: LogSummary, rows: int = ROWS, *, news: bool = False) -> Report:
    """Return the `rows` most important findings; with ``news``, of lines after the last mark."""
    shapes = [s for s in log.shapes if not news or s.count > s.old_count]
    unusual = Unusual(log, shapes, news=news)
    findings = _join([unusual.template(shape) for shape in shapes], unusual.when)
    if not news:
        findings += unusual.silent_components(findings)
    best = _best(findings, rows)
    if not news and 2 * sum("new" in f.notes for f in best) > len(best):
        for finding in best:  # a note that most rows have does not distinguish them
            finding.notes = [note for note in finding.notes if note != "new"]
    onsets = [] if news or log.by_line else _onsets(findings, log)
    rest: Counter[str] = Counter()
    for shape in shapes:
        rest[shape.level] += unusual.count(shape)
    for finding in best:
        rest[finding.level] -= finding.count if finding.templates else 0
    severe = {level: rest[level] for level in SEVERITY if rest[level]}
    count = sum(finding.templates for finding in best)
    return Report(best, onsets, len(shapes) - count, rest.total(), severe)


def _onsets(findings: list[Finding], log: LogSummary) -> list[Finding]:
    """Return the most important errors and warnings that begin late, in order of time."""
    first = sorted((f for f in findings if f.section == SECTIONS[0]), key=lambda f: -f.score)[:MOST]
    late = [
        f for f in first if f.low is not None and log.share_before(int(f.low // log.width)) > LATE
    ]
    return sorted(late, key=lambda f: (f.low or 0.0, f.first_line))


def _best(findings: list[Finding], rows: int) -> list[Finding]:
    """Return the best of each section; rows that one leaves free go to others, first to errors."""
    by = {s: _rank([f for f in findings if f.section == s]) for s in SECTIONS}
    shares = dict(zip(SECTIONS, (0.4, 0.2, 0.25, 0.15), strict=True))
    take = {s: min(len(by[s]), max(1, round(rows * shares[s]))) for s in SECTIONS}
    severe, *others = SECTIONS
    if rows < ROWS:
        by[severe] = _repeated_first(by[severe])
        take[severe] = min(len(by[severe]), max(take[severe], min(rows - 1, FIRST)))
        # Drop rows of the last section first, then of the section with the lower best score.
        others.sort(key=lambda s: (s != SECTIONS[3], by[s][0].score if by[s] else 0.0))
    else:
        others.reverse()
    while sum(take.values()) > rows:
        section = max(others, key=lambda s: take[s])
        take[section if take[section] else severe] -= 1
    for section in (*SECTIONS[:1], *SECTIONS[2:], SECTIONS[1]):
        take[section] += min(rows - sum(take.values()), len(by[section]) - take[section])
    return [finding for section in SECTIONS for finding in by[section][: take[section]]]


def _rank(findings: list[Finding]) -> list[Finding]:
    """Sort by score, highest first. Of findings about the same event, move all but two down."""
    findings = sorted(findings, key=lambda f: -f.score)
    events: dict[tuple[str, int], Counter[float]] = {}
    for finding in findings:
        if finding.together is not None:
            begins = events.setdefault(finding.together, Counter())
            near = (time for time in begins if abs(time - finding.begin) <= LONGEST_GAP)
            begin = next(near, finding.begin)
            begins[begin] += 1
            finding.score -= 4 * max(begins[begin] - 2, 0)
    return sorted(findings, key=lambda f: -f.score)


def _repeated_first(every: list[Finding]) -> list[Finding]:
    """Within each level, move rare errors back, unless a burst follows them."""
    by_level: dict[str, list[Finding]] = {}
    for finding in every:
        by_level.setdefault(finding.level, []).append(finding)
    for findings in by_level.values():
        findings.sort(key=lambda f: f.count <= RARE and f.score < 2 * SEVERITY[f.level] + CAUSE - 2)
    rest = {level: iter(findings) for level, findings in by_level.items()}
    return [next(rest[finding.level]) for finding in every]


def _join(findings: list[Finding], when: Clock) -> list[Finding]:
    """Join adjacent rare templates of one component, such as a start of the system, in one row."""
    rows: list[Finding] = []
    rare: list[Finding] = []
    for finding in findings:
        other = finding.section != SECTIONS[1] or finding.score >= CAUSE - 2
        (rows if other or not finding.components else rare).append(finding)
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
            rows += run
            continue
        first, last = run[0], max(run, key=lambda f: f.last_line)
        first.notes.insert(
            0,
            f"the first of {len(run):,} rare templates, counted together, until "
            f"{when(last.high, last.last_line)}",
        )
        if len(run) >= START and any(_START.search(f.message or f.text) for f in run[:START_LINES]):
            first.notes.insert(1, "looks like a start of the system")
        first.count, first.templates = sum(f.count for f in run), len(run)
        first.last_line, first.last_time, first.high = last.last_line, last.last_time, last.high
        first.score = max(f.score for f in run) + math.log10(len(run))
        first.variables = []
        rows.append(first)
    return rows
