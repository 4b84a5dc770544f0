"""``--report`` of a log: its findings over time, and as a table."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from kvstream.api.logs import LogSummary, record
from kvstream.cli.shared.reports import command_line
from kvstream.reporters.format import number
from kvstream.reporters.html.page import Page, Table, Timeline
from kvstream.version import __version__


def log_page(log: LogSummary, rows: int) -> str:
    """The page of a log, as HTML."""
    from kvstream.reporters.html.render import render

    told = record(log, rows)
    levels = [(level, number(count)) for level, count in told["levels"].items()]
    names = [name for name, _ in log.sources]
    about = names[0] if len(names) == 1 else f"{len(names):,} logs"
    return render(
        Page(
            title=f"Summary of {'standard input' if about == '-' else about}",
            command=command_line(),
            made=f"{__version__} · {time.strftime('%Y-%m-%d %H:%M')}",
            facts=[
                ("Lines", number(told["lines"]), ""),
                ("Templates", number(told["templates"]), "lines of one shape"),
                *((level.capitalize(), count, "lines") for level, count in levels),
            ],
            timelines=_timelines(told),
            tables=_tables(told),
            settings=[("rows", str(rows))],
        )
    )


def _clock(seconds: float | None) -> str:
    """A time of the log, which has no zone or UTC."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _timelines(told: dict[str, Any]) -> list[Timeline]:
    """When each finding was there: by time, else by line."""
    first, last = told["first_time"], told["last_time"]
    by_time = first is not None and last is not None and last > first
    low, high = (first, last) if by_time else (1, max(2, told["lines"]))
    key = "time" if by_time else "line"
    found: dict[str, list[tuple[str, str, float, float]]] = {}
    for finding in told["findings"]:
        begin, end = finding["first"][key], finding["last"][key]
        if begin is None or end is None:
            continue
        shares = sorted(min(1.0, max(0.0, (at - low) / (high - low))) for at in (begin, end))
        words = f"{finding['count']:,} {finding['level'] or ''}".strip()
        found.setdefault(finding["section"], []).append((finding["template"], words, *shares))
    ends = (_clock(low), _clock(high)) if by_time else ("line 1", f"line {high:,}")
    return [Timeline(title.capitalize(), ends, rows) for title, rows in found.items()]


def _tables(told: dict[str, Any]) -> list[Table]:
    rows = [
        [
            f"{finding['count']:,}",
            finding["level"] or "",
            _clock(finding["first"]["time"]),
            _clock(finding["last"]["time"]),
            f"{finding['first']['source'] or ''}:{finding['first']['line']}".lstrip(":"),
            finding["example"] or finding["template"],
            "; ".join(finding["notes"]),
        ]
        for finding in told["findings"]
    ]
    columns = ["lines", "level", "first", "last", "first line", "example", "notes"]
    return [Table("Findings", columns, rows, [True, *[False] * 6])] if rows else []
