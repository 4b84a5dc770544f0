"""The page of a log: its head and a row for each finding; also as a record for ``--json``.

A wide page has the template with place and times in one line, and notes in a second one. A narrow
page has the template in the first line, and place, times and notes in the second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any

from kvstream.logs.containers import LONGEST_LINE
from kvstream.logs.findings import ROWS, Report, report
from kvstream.logs.levels import SEVERE
from kvstream.logs.summary import Clock, LogSummary
from kvstream.logs.unusual import SECTIONS, Finding
from kvstream.reporters.format import beginning, cells, counted, end_of, visible

WIDTH = 160
"""Columns of a page that is not for a terminal."""
NARROW = 120
BRIEF = 40
"""On a screen with fewer lines, a page may have short rows and no blank lines."""
BRIEF_ORDER = 2
"""Maximum number of lines for the errors in order of time on such a page."""
MORE = 30
"""Minimum number of rows in the hint how to see more rows."""
FEWEST = 4
TELLING = 0.1
"""Minimum share of the lines for which the most frequent value of a variable is shown."""
LONGEST_VALUE = 24
LONGEST_NAME = 40
"""Maximum number of cells of the name of a source; also at most a third of the page."""
LEAST_ROOM = 8
"""Minimum number of characters for the message, if the place is in the same line."""
BETWEEN = "  · "
_IDENTIFIERS = re.compile(r"(?:\[(?:-|[^\]:]*(?:<\*>|[0-9a-f]{8})[^\]:]*)\] ?)+(?=\S)")


def _fit(text: str, width: int) -> str:
    """Return a text without control characters; if it is too wide, without its middle."""
    text = _printable(text)
    if cells(text) <= width:
        return text
    end = max(width // 3, 1)
    begin = beginning(text, max(width - end - 1, 0))
    return beginning(f"{begin}…{beginning(text[::-1], end)[::-1]}", width)


def _without_ids(text: str) -> str:
    """Return a line without the request identifiers in brackets before it."""
    return _IDENTIFIERS.sub("", text.strip(), count=1) or text.strip()


def _short(component: str) -> str:
    """Return the name of a class without its package."""
    last = component.rpartition(".")[2]
    return last if component.count(".") > 1 and last[:1].isupper() else component


def _values(finding: Finding, room: int) -> str:
    """Return frequent values with their shares, as many as fit; ``~``: a share of a sample."""
    parts: list[tuple[float, str]] = []
    for variable in finding.variables:
        values, looked_at = variable["values"], variable["looked_at"]
        if variable["place"] in finding.same or not values or not values[0]["value"]:
            continue
        share = values[0]["lines"] / looked_at
        if share == 1:  # a constant says less
            share, value = 0.0, _fit(values[0]["value"], LONGEST_VALUE)
        elif values[0]["lines"] == 1 or share < TELLING:
            continue
        else:
            about = "~" if looked_at < finding.count else ""
            value = ", ".join(
                f"{_fit(v['value'], LONGEST_VALUE)} ({about}{v['lines'] / looked_at:.0%})"
                for v in values[:2]
                if v["lines"] > 1
            )
            value += ", …" if variable["different"] > 2 or variable["more_different"] else ""
        parts.append((-share, f"{variable['after']} = {value}"))
    text = ""
    for _, part in sorted(parts, key=lambda part: part[0]):
        more = f"{text}; {part}" if text else part
        if cells(more) <= room:
            text = more
    return text


def _printable(text: str, instead: str = " ") -> str:
    """Return the text with `instead` for each unprintable character, and without piles of marks."""
    return visible("".join(c if c.isprintable() else instead for c in text))


def head(log: LogSummary, width: int = WIDTH) -> str:
    """Return the head of the page: the span of time, the number of lines, and notes."""
    when, total = Clock(log), log.total
    text = counted(log.lines, "line")
    if not log.by_line and total.low is not None:
        text += f", {when(total.low, total.first_line, full=True)}"
        text += f" to {when(total.high, total.last_line, full=True)}"
    text += f"; {counted(len(log.tree), 'template')}"
    if levels := _levels(log.levels):
        text += f"; {levels}"
    notes = []
    if log.trails:
        notes.append(f"{counted(log.trails, 'line')} continue{'s'[: log.trails == 1]} another line")
    if log.jumps:
        times = "once, at" if log.jumps == 1 else f"{log.jumps:,} times, first at"
        line = log.first_jump
        place = _place(line, log, width) if log.several else f"line {log.where(line)[1]:,}"
        notes.append(f"the clock goes back {times} {place}")
    if log.overlaps:
        name = _source_name(log.where(log.first_overlap)[0], width)
        before = _source_name(log.overlapped_source, width)
        more = log.overlaps - 1
        others = f", as do{'es' * (more == 1)} {counted(more, 'other')}" if more else ""
        notes.append(f"{name} begins before the end of {before}{others}")
    if log.drops:
        notes.append(
            f"{counted(log.drops, 'template')} with {counted(log.tree.forgotten, 'line')} dropped, "
            "the least recent first"
        )
    if log.splitter.long_lines:
        notes.append(
            f"{counted(log.splitter.long_lines, 'line')} of more than {LONGEST_LINE:,} characters: "
            "only the beginning counts"
        )
    return text + (f"\n{'; '.join(notes)}" if notes else "")


def _levels(counts: Mapping[str, int], *, plural: bool = False) -> str:
    """Return the number of lines of each level of failure."""
    parts = []
    for level in ("fatal", "error", "warning", "suspect"):
        if count := counts.get(level):
            name = "with words of failure" if level == "suspect" else level
            several = plural and count > 1 and level in ("error", "warning")
            parts.append(f"{count:,} {name}{'s' * several}")
    return ", ".join(parts)


def page(
    log: LogSummary,
    rows: int = ROWS,
    *,
    news: bool = False,
    width: int = WIDTH,
    brief: bool = False,
) -> str:
    """Return the page: at most ``rows`` findings of two lines each, or three if not ``brief``."""
    when = Clock(log)
    facts = report(log, rows, news=news)
    lines = [line for part in head(log, width).split("\n") for line in _wrapped(part, width)]
    if len(facts.onsets) > 1:
        lines += _in_order(facts.onsets, when, width, BRIEF_ORDER if brief else None)
    section = ""
    for finding in facts.findings:
        if finding.section != section:
            section = finding.section
            lines += [section.capitalize()] if brief else ["", section.capitalize()]
        row = _row(finding, when, width, brief=brief)
        if brief and len(row) > 2:
            second = f"{row[1]} {' '.join(part.strip() for part in row[2:])}"
            fits = cells(second) <= width
            row[1:] = [second if fits else f"{beginning(second, width - 1)}…"]
        lines += row
    if facts.more_templates:
        lines += [] if brief else [""]
        lines += _wrapped(_left_out(facts, rows), width)
    return "\n".join(lines) + "\n"


def page_of_screen(log: LogSummary, height: int, *, news: bool = False, width: int = WIDTH) -> str:
    """Return a page with as many rows as fit on a screen, with blank lines if they fit."""
    small = height < BRIEF
    text = ""
    rows, most, size = FEWEST, ROWS, ROWS
    while size > rows:  # a binary search: with thousands of templates a page takes seconds
        attempt = page(log, size, news=news, width=width, brief=small)
        if attempt.count("\n") <= height:
            rows, text = size, attempt
        else:
            most = size - 1
        size = (rows + most + 1) // 2
    text = text or page(log, rows, news=news, width=width, brief=small)
    if small and text.count("\n") <= height:
        whole = page(log, rows, news=news, width=width)
        text = whole if whole.count("\n") <= height else text
    return text


def _left_out(facts: Report, rows: int) -> str:
    """Say what the page does not show, and how to see it."""
    levels = _levels(facts.rest, plural=True)
    more = MORE if rows < MORE else 2 * rows
    return (
        f"{counted(facts.more_templates, 'more template')} with {counted(facts.more_lines, 'line')}"
        f"{f' ({levels})' if levels else ''}: --passages {more} shows more."
    )


def _place(line: int, log: LogSummary, width: int) -> str:
    """Return the number of a line, with its source if there are several."""
    name, number = log.where(line)
    return f"{_source_name(name, width)}:{number}" if log.several else f"L{number}"


def _source_name(name: str, width: int) -> str:
    """Return the name of a source without control characters; of a long one, only the end."""
    # Not spaces: two spaces end the place.
    return end_of(_printable(name, "?"), min(LONGEST_NAME, width // 3))


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a text into lines of at most `width` cells."""
    padded = "".join(char + "\0" * (cells(char) - 1) for char in text)
    return [line.replace("\0", "") for line in wrap(padded, width)]


def _in_order(findings: list[Finding], when: Clock, width: int, most: int | None) -> list[str]:
    """Say when and where these begin, in at most `most` lines."""
    parts: dict[tuple[str, str], str] = {}
    for finding in findings:
        by = _short(next(iter(finding.components), ""))
        at = when(finding.low, finding.first_line)
        place = _place(finding.first_line, when.log, width)
        parts.setdefault((at, by), f"{at} {place} {by}".strip())
    items = list(parts.values())
    lines = _wrapped(f"first seen, in order of time: {'; '.join(items)}", width)
    while most is not None and len(lines) > most and len(items) > 1:
        items.pop()
        lines = _wrapped(f"first seen, in order of time: {'; '.join(items)}; …", width)
    return lines


def _row(finding: Finding, when: Clock, width: int, *, brief: bool) -> list[str]:
    """Return the lines of a finding: only one for a single log line on a brief, narrow page."""
    place = _place(finding.first_line, when.log, width)
    named = finding.level in SEVERE and finding.level != "suspect"
    level = f" {finding.level.upper()}" if named else ""
    by = ", ".join(map(_short, list(finding.components)[:2]))
    by += ", …" if len(finding.components) > 2 else ""
    text = finding.message if finding.count == 1 and finding.message else finding.text
    shape = f"{by}: {_without_ids(text)}" if by else _without_ids(text)
    notes, several = [*finding.notes], finding.count > 1
    bulk, wide = finding.section == SECTIONS[3], width >= NARROW
    indent = " " * (11 if wide else 8)
    count = f"{finding.count:>{9 if wide else 7},}{level}"
    row = f"{count}  {finding.times(when)}  {place}  "

    def fitting(text: str, before: str = indent) -> str:
        return before + _fit(text, width - cells(before))

    single = not (wide or several or notes or finding.trace.first)
    if brief and single and width - cells(row) >= LEAST_ROOM:
        return [fitting(shape, row)]
    if wide:
        lines = [fitting(shape, row)]
        behind = lines[0] + BETWEEN if bulk else "; ".join([indent, *notes])
        values = _values(finding, width - cells(behind)) if several else ""
        if values and bulk:
            lines[0] += BETWEEN + values
        elif values:
            notes.append(values)
        if notes:
            lines.append(fitting("; ".join(notes)))
    else:
        if several and not bulk and (values := _values(finding, width)):
            notes.append(values)
        second = "; ".join([f"{place}  {finding.times(when)}", *notes])
        first, *others = _wrapped(_printable(second), width - len(indent))
        lines = [fitting(shape, f"{count} "), fitting(first)]
        if others:
            lines.append(fitting(" ".join(others)))
    if finding.section == SECTIONS[0]:
        lines += map(fitting, finding.trace.key_lines)
    return lines


def record(log: LogSummary, rows: int = ROWS, *, news: bool = False) -> dict[str, Any]:
    """Return the page for ``--json``; times are seconds since 1970, and ISO 8601 in UTC."""
    facts = report(log, rows, news=news)
    findings = [
        {
            "section": finding.section,
            "count": finding.count,
            "level": finding.level or None,
            "template": finding.text.strip(),
            "templates": finding.templates,
            "first": _at(finding.first_time, finding.first_line, log),
            "last": {**_time(finding.last_time), "line": log.where(finding.last_line)[1]},
            "example": finding.example or None,
            "trace": finding.trace.lines,
            "notes": finding.notes,
            "variables": finding.variables,
            "components": finding.components,
        }
        for finding in facts.findings
    ]
    onsets = [
        {
            **_at(finding.low, finding.first_line, log),
            "level": finding.level,
            "template": finding.text.strip(),
            "components": finding.components,
        }
        for finding in facts.onsets
    ]
    return {
        "kind": "log",
        "lines": log.lines,
        "blank_lines": log.blank,
        "continued_lines": log.trails,
        "shortened_lines": log.splitter.long_lines,
        "untimed_lines": log.without_time,
        **_time(log.total.low, "first_time"),
        **_time(log.total.high, "last_time"),
        "clock_jumps": log.jumps,
        "overlapping_sources": log.overlaps,
        "bucket": {"width": log.width, "unit": "lines" if log.by_line else "s"},
        "levels": {level: count for level, count in log.levels.items() if level and count},
        "templates": len(log.tree),
        "templates_let_go": log.drops,
        "lines_let_go": log.tree.forgotten,
        "more_templates": facts.more_templates,
        "more_lines": facts.more_lines,
        "first_seen": onsets,
        "findings": findings,
    }


def _at(time: float | None, line: int, log: LogSummary) -> dict[str, Any]:
    """Return the time and the place of a line."""
    source, number = log.where(line)
    return {**_time(time), "line": number, "source": source or None}


def _time(seconds: float | None, name: str = "time") -> dict[str, Any]:
    text = None
    if seconds is not None:
        with suppress(ValueError, OverflowError, OSError):  # the year is out of range
            unit = "milliseconds" if seconds % 1 else "seconds"
            text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec=unit)
            text = text.replace("+00:00", "Z")
    return {name: seconds, f"{name}_iso": text}
