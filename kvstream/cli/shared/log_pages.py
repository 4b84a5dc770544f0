"""``--report`` of a log: its findings over time and as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvstream.api.logs import Clock, LogSummary, record
from kvstream.cli.shared.reports import rendered
from kvstream.reporters.format import number
from kvstream.reporters.html.page import Bar, Table, Timeline, TimelineRow


def log_page(log: LogSummary, rows: int) -> str:
    """Return the page of a log as HTML."""
    told = record(log, rows)
    names = [name for name, _ in log.sources]
    about = names[0] if len(names) == 1 else f"{len(names):,} logs"
    facts = [
        ("Lines", number(told["lines"]), ""),
        ("Templates", number(told["templates"]), "lines of one shape"),
        *((level.capitalize(), number(count), "lines") for level, count in told["levels"].items()),
    ]
    return rendered(
        f"Summary of {'standard input' if about == '-' else about}",
        facts=facts,
        timelines=_timelines(log, told),
        tables=_tables(log, told),
        settings=[("rows", str(rows))],
    )


BARS = 120
"""Maximum number of bars of a timeline."""


@dataclass(frozen=True)
class _Axis:
    """Range of a log: in seconds, or else in lines."""

    low: float
    high: float
    by_time: bool
    width: float
    """Width of a bucket in which `LogSummary` counts lines."""

    @classmethod
    def of(cls, log: LogSummary) -> _Axis:
        low, high = log.total.low, log.total.high
        if not log.by_line and low is not None and high is not None and high > low:
            return cls(low, high, True, log.width)
        return cls(1, max(2, log.lines), False, log.width)

    def share(self, at: float) -> float:
        return min(1.0, max(0.0, (at - self.low) / (self.high - self.low)))

    def bars(self, buckets: Mapping[int, int]) -> list[Bar]:
        """Return lines over the axis, in bars of equally many buckets. The highest has height 1."""
        first, last = (int(at // self.width) for at in (self.low, self.high))
        each = math.ceil((last - first + 1) / BARS)
        sums: Counter[int] = Counter()
        for bucket, count in buckets.items():
            sums[(min(last, max(first, bucket)) - first) // each] += count
        most = max(sums.values())
        edge = [self.share((first + i * each) * self.width) for i in range(max(sums) + 2)]
        return [(edge[i], edge[i + 1], count / most) for i, count in sorted(sums.items())]

    def ends(self, when: Clock) -> tuple[str, str]:
        if self.by_time:
            return when(self.low, 1, full=True), when(self.high, when.log.lines, full=True)
        return "line 1", f"line {self.high:,.0f}"


def _timelines(log: LogSummary, told: dict[str, Any]) -> list[Timeline]:
    """Return the number of lines of each finding along the axis of time, or else of lines."""
    axis = _Axis.of(log)
    shapes = {log.where(shape.first_line): shape for shape in log.shapes}
    key = "time" if axis.by_time else "line"
    found: dict[str, list[TimelineRow]] = {}
    # For a log within one second, the buckets are of time but the axis is of lines.
    counted = axis.by_time or log.by_line
    if counted:
        every = f"{told['lines']:,}"
        found["all lines"] = [("all lines", every, axis.bars(log.total.buckets))]
    for finding in told["findings"]:
        place = finding["first"]["source"] or "", finding["first"]["line"]
        shape = shapes.get(place) if finding["templates"] == 1 else None
        begin, end = finding["first"][key], finding["last"][key]
        if shape is not None and shape.buckets and counted:
            bars = axis.bars(shape.buckets)
        elif begin is not None and end is not None and (axis.by_time or len(log.sources) < 2):
            # For a component or several templates, only the first and the last place are known.
            first, last = sorted((axis.share(begin), axis.share(end)))
            bars = [(first, last, 0.5)]
        else:
            continue
        words = f"{finding['count']:,} {finding['level'] or ''}".strip()
        found.setdefault(finding["section"], []).append((finding["template"], words, bars))
    ends = axis.ends(Clock(log))
    return [Timeline(title.capitalize(), ends, rows) for title, rows in found.items()]


def _tables(log: LogSummary, told: dict[str, Any]) -> list[Table]:
    when = Clock(log)

    def written(place: dict[str, Any]) -> str:
        moment = place["time"]
        return "" if moment is None else when(moment, place["line"], full=True)

    rows = []
    for each in told["findings"]:
        first, last = each["first"], each["last"]
        place = f"{first['source'] or ''}:{first['line']}".lstrip(":")
        example, notes = each["example"] or each["template"], "; ".join(each["notes"])
        times = written(first), written(last)
        rows.append([number(each["count"]), each["level"] or "", *times, place, example, notes])
    columns = ["lines", "level", "first", "last", "first line", "example", "notes"]
    return [Table("Findings", columns, rows, [True, *[False] * 6])] if rows else []
