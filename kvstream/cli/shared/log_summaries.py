"""``summarize`` for logs: recognition of logs, order of reading, and reports."""

from __future__ import annotations

import io
import math
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kvstream.api import logs, source_objects
from kvstream.cli.options.option import first_typed, option, typed
from kvstream.cli.options.table import OF_MEMORY, ROWS, Options
from kvstream.cli.shared.inputs import can_be_read_again, open_sources
from kvstream.cli.shared.interrupts import InterruptibleInput, Interrupts
from kvstream.cli.shared.model_choice import POCKET, open_model
from kvstream.cli.shared.output import refuse_closed
from kvstream.cli.shared.reports import PageFile, rendered
from kvstream.cli.shared.running import check_files, opened_output, reading, receipt
from kvstream.cli.shared.saying import say
from kvstream.errors import KvstreamError, UsageError
from kvstream.reporters.format import counted, in_lines, json_text, number, size
from kvstream.reporters.html.page import Bar, Table, Timeline, TimelineRow
from kvstream.reporters.plain import Teller

HEAD = 64 * 1024
"""Characters (bytes for standard input) used to recognize a log."""
NARROWEST = 40
"""Minimum width of a page in columns."""
LONGEST_HOLE = 64 * 1024**2
"""Maximum NULs at the beginning of a pipe that are held to recognize the log behind them."""
ENOUGH = 4
"""Number of lines of a slow pipe that are enough to recognize it."""
BARS = 120
"""Maximum number of bars of a timeline."""
IDLE_SECONDS = 1.0
"""Idle time of a pipe after which fewer lines are enough, if they look like a log."""
_OF_MODEL = frozenset((
    *OF_MEMORY, "stats", "checkpoint", "checkpoint_every", "system",
    *(row.key for row in ROWS.values() if row.per_answer or row.stored),
)) - {"passages"}  # fmt: skip
"""Options of a reading by a model. With one of them, ``auto`` chooses the model.

--passages is excluded, because it also sets the rows of a page, and --budget, because it is a bound
that a page without a model keeps, too.
"""

as_option = option(
    "--as", "kind", type=click.Choice(["auto", "prose", "log"]), default="auto",
    section="Answer",
    help="prose: summarize with the model. log: list the templates of the log's lines with counts, "
    "times, bursts and silences, without the model. auto: log if at least half of the first lines "
    "begin with a time, a level or the name of a container, and no option of the reading, such as "
    "--method, is given; else prose.",
)  # fmt: skip


width_option = option(
    "--width", type=click.IntRange(min=NARROWEST), metavar="N", section="Answer", advanced=True,
    help="Width of a log's page in columns. [default: that of the terminal; 160 in a pipe]",
)  # fmt: skip


def refuse_reading() -> None:
    """Refuse options of a reading by a model with --as log. Raises click's UsageError."""
    if option := first_typed(sorted((*_OF_MODEL, "shards"))):
        raise click.UsageError(
            f"{option} has no effect with --as log; leave {option} out, or let a model read the "
            "log with --as prose."
        )


def is_log(paths: Sequence[str], kind: str, *, plain: bool, follow: bool = False) -> bool:
    """Return whether to summarize the sources as logs."""
    if kind != "auto":
        return kind == "log"
    if _left_to_the_model():
        return False
    if follow and all(map(_is_empty, paths)):
        return True  # the content is unknown, and most growing files are logs
    first = next((path for path in paths if not _is_empty(path)), paths[0])
    if first == "-" or (Path(first).is_fifo() and not follow):
        path = None if first == "-" else Path(first)
        return logs.looks_like_log(head_of_pipe(path, plain=plain).splitlines())
    if not (os.path.isfile(first) or os.path.isdir(first)):
        return False
    least = 1 if follow or ".log" in os.path.basename(first) else 2  # it may be new
    return logs.looks_like_log(_head(first, plain=plain).splitlines(), least)


def _left_to_the_model() -> bool:
    pocket = click.get_current_context().params.get("model") == POCKET
    return (pocket and typed("model")) or any(map(typed, _OF_MODEL))


def tell_unrecognized(paths: Sequence[str], *, plain: bool) -> None:
    """Warn of the first file that is named like a log but does not look like one."""
    for path in () if _left_to_the_model() else paths:
        if ".log" in os.path.basename(path) and os.path.isfile(path):
            with suppress(KvstreamError):  # the reading reports it
                if _head(path, plain=plain).strip():
                    say(f"Warning: {path} does not look like a log, so the model reads it; --as "
                        "log shows its templates instead.")  # fmt: skip
                    return


def _is_empty(path: str) -> bool:
    """Return whether a source is an empty file, such as a log that was just rotated."""
    return path != "-" and os.path.isfile(path) and not os.path.getsize(path)


def summarize(paths: Sequence[str], options: Options, *, width: int | None = None) -> int:
    """Read logs and print their page; at the time intervals of --every, also what is new."""
    request = options.request
    every, follow = request.every, request.follow
    if every is not None and every.seconds is None:
        raise UsageError(
            "Without a model, kvstream counts no tokens in a log, so --every N has no effect; use "
            "a time, such as --every 30s, or let the model read: --as prose."
        )
    rows = request.passages if "passages" in request.choices else None
    check_files(options, paths)
    with ExitStack() as stack:
        refuse_closed(options.output)
        out = opened_output(stack, options)
        page_file = None
        if options.report is not None:
            page_file = PageFile(options.report, quiet=options.quiet)
            stack.callback(page_file.discard)
        teller = Teller(sys.stderr)
        stack.callback(teller.close)
        interrupts = stack.enter_context(Interrupts(teller.tell))
        interrupts.reading, interrupts.gentle = True, follow or every is not None
        interrupts.then = "" if follow else "printing the page of what was read so far"
        untold = follow  # the first wait at the end of a followed log, which the user should know
        sources = open_sources(
            paths, options, interrupts, due=lambda: untold or request.due(), tell=teller.tell
        )
        if options.dry_run:
            out.write(_plan(sources, options))
            return 0
        before = paths[:-1] if follow else paths  # the followed log is read last
        if before and all(map(can_be_read_again, before)):
            names = sources.names[:-1] if follow else sources.names
            sources.reorder(in_order(names, plain=request.plain))
        log = logs.LogSummary()
        log.several = len(sources.names) > 1  # also if only one has lines of the part
        reports = _Reports(log, sources, out, options, rows, width, teller.tell)
        current = -1
        with reading(interrupts):
            for block in sources:
                # After a pause, the next text may be the newline that ends the previous source.
                if block.source != current and (block.text or not log.sources):
                    log.begin(sources.names[block.source])
                    current = block.source
                log.feed(block.text, block.left_out)
                if interrupts() and not (follow and sources.ends_on_interrupt):
                    break
                if not block.text and untold:
                    untold = False
                    if not options.quiet:
                        teller.tell(_following(paths[-1], log.lines, every))
                if every is not None and every.due(log.lines):
                    reports.tell()
        log.close()
        if log.blank == log.lines and not (follow or interrupts()):
            raise sources.nothing("only spaces and line ends")
        if follow and interrupts() and not options.quiet:
            teller.tell(reports.stopped())
        reports.tell(last=True, interrupted=interrupts() and not follow)
        if page_file is not None:
            page_file.write_page(log_page(log, rows or logs.ROWS))
        for warning in reports.warnings:
            teller.tell(f"Warning: {warning}")
        if not options.quiet:
            for note in sources.notes:
                teller.tell(note)
    return 0


def _following(name: str, lines: int, every: Any) -> str:
    """Describe the wait for more lines, and how to get a page."""
    how = "Ctrl-C prints the page; --every 30s prints it while you wait."
    if every is not None:
        seconds = f"{every.seconds:g} s"
        how = f"A report every {seconds} if there are new lines; Ctrl-C prints the last one."
    return f"Following {_shown_name(name)}: {counted(lines, 'line')} so far. {how}"


@dataclass
class _Reports:
    """Prints the page, later what is new. A model that writes adds a paragraph above."""

    _log: logs.LogSummary
    _sources: Any
    _out: Any
    _options: Options
    _rows: int | None
    _width: int | None
    _tell: Callable[[str], None]
    _lines: int = 0
    """Lines."""
    _time: str = ""
    _model: Any = None

    def tell(self, *, last: bool = False, interrupted: bool = False) -> None:
        """Write a report if there are new lines. `interrupted`: the log has more lines."""
        log, lines = self._log, self._log.whole_lines
        if lines == self._lines and (self._lines or not last):
            return
        news = self._lines > 0
        writes = self._options.model != POCKET
        paragraph, removed = self._paragraph(news=news) if writes else ("", [])
        if self._options.json:
            record = {
                **logs.record(log, self._rows or logs.ROWS, news=news),
                "new_lines": lines - self._lines, "interrupted": interrupted,
                "warnings": self.warnings, "receipt": receipt(self._sources),
            }  # fmt: skip
            if writes:
                record |= {"paragraph": paragraph, "removed_from_paragraph": removed}
            self._out.write(json_text(record) + "\n")
        else:
            above = ""
            if news:
                now = time.strftime("%Y-%m-%d %H:%M:%S")
                above = f"\n--- {now}: {counted(lines - self._lines, 'new line')} ---\n"
            if writes:
                above += f"{in_lines(paragraph or logs.NOTHING_LEFT)}\n\n"
            self._out.write(above + self._page(above.count("\n"), news=news))
        self._out.flush()
        if removed and not self._options.quiet:
            self._tell(
                f"Removed from the paragraph: {len(removed)} of its sentences, which name no "
                "line, or have numbers or names that are not in the rows of these lines."
            )
        log.mark()
        self._lines, self._time = lines, time.strftime("%H:%M:%S")

    @property
    def warnings(self) -> list[str]:
        """Reasons why a page may be wrong."""
        return [*self._sources.warnings, *self._sources.unread_warnings]

    def stopped(self) -> str:
        if self._lines and self._lines == self._log.whole_lines:
            return f"Stopped following. No new lines since {self._time}."
        return f"Stopped following; the last {'report' if self._options.json else 'page'}:"

    def _page(self, above: int, *, news: bool) -> str:
        """Return the page; `above` lines stand above it."""
        terminal = self._out.isatty()
        screen = shutil.get_terminal_size()
        width = self._width or (screen.columns if terminal else logs.WIDTH)
        width = max(width, NARROWEST)
        if terminal and self._rows is None:
            return logs.page_of_screen(self._log, screen.lines - 1 - above, news=news, width=width)
        return logs.page(self._log, self._rows or logs.ROWS, news=news, width=width)

    def _paragraph(self, *, news: bool) -> tuple[str, list[str]]:
        """Return the model's paragraph on the table, and the sentences that the check removed."""
        if self._model is None:
            if not self._options.quiet:
                self._tell(f"Loading {self._options.model} ...")
            self._model = open_model(self._options)
        table = logs.page(self._log, logs.ROWS_READ, news=news)
        answer = self._model.ask(
            text=table, question=logs.QUESTION, max_tokens=logs.MOST_TOKENS, thin="off"
        )
        return logs.check(answer.text, table)


def _shown_name(name: str) -> str:
    return "standard input" if name == "-" else name


def _plan(sources: Any, options: Options) -> str:
    """Return what --dry-run prints for logs: their size, and that no model reads them."""
    writes = options.model if options.model != POCKET else None
    total = sources.size_hint()
    if options.json:
        return json_text({"kind": "log", "dry_run": True, "bytes": total, "model": writes}) + "\n"
    length = "of unknown size" if total is None else f"of about {size(total)}"
    files = len(sources.names)
    text = f"{_shown_name(sources.names[0])}: a log {length}. No model reads it"
    if files > 1:
        text = f"{files:,} files: logs {length}. No model reads them"
    page = f", but {writes} reads the page" if writes else ""
    return f"{text}{page}. For the plan of a reading by a model, add --as prose.\n"


def in_order(names: Sequence[str], *, plain: bool) -> list[int]:
    """Return the order of several logs by the times of their first lines, as indices of `names`.

    A rotated log continues from file to file. If the times have no year, use the time of the last
    change of each file. If a file that is not empty has no time, keep the given order.
    """
    order = list(range(len(names)))
    if len(names) < 2:
        return order
    keys: list[tuple[float, float]] = []
    dated = True
    for name in names:
        parser = logs.LineParser()
        first = math.inf if _is_empty(name) else _first_time(parser, name, plain=plain)
        if first is None:
            return order
        keys.append((first, os.stat(name).st_mtime))
        dated = dated and parser.dated
    return sorted(order, key=lambda i: keys[i] if dated else keys[i][::-1])


def _first_time(parser: logs.LineParser, name: str, *, plain: bool) -> float | None:
    with suppress(KvstreamError):
        lines = _head(name, plain=plain).splitlines()
        entries = (parser.entry(line) for line in lines)
        return next((e.time for e in entries if e is not None and e.time is not None), None)
    return None


def _head(source: str | source_objects.Source, *, plain: bool) -> str:
    head = ""
    for block in source_objects.open_sources(source, plain=plain):
        head += block.text
        if len(head) >= HEAD:
            break
    return head[:HEAD]


def head_of_pipe(path: Path | None, *, plain: bool) -> str:
    """Return the first characters of a pipe (None: stdin), which its next reader also gets.

    A hole of up to LONGEST_HOLE bytes at the beginning does not count.
    """
    data, hole, last = bytearray(), 0, time.monotonic()

    def clear() -> bool:
        """Return whether an idle pipe has given enough lines to recognize a log."""
        idle = time.monotonic() > last + IDLE_SECONDS
        return idle and logs.looks_like_log(data.decode("utf-8", "replace").splitlines())

    source = InterruptibleInput(lambda: False, due=clear, path=path)
    while len(data) - hole < HEAD and data.count(b"\n", hole) < ENOUGH and hole < LONGEST_HOLE:
        piece = source.read(HEAD)
        if not piece:
            break
        if hole == len(data):
            hole += len(piece) - len(piece.lstrip(b"\0"))
        data += piece
        last = time.monotonic()
    source.put_back(data)
    with suppress(KvstreamError):  # a part of a packed file
        return _head(source_objects.Source(io.BytesIO(data), "-"), plain=plain)
    return ""


def log_page(log: logs.LogSummary, rows: int) -> str:
    """Return the page of a log as HTML."""
    record = logs.record(log, rows)
    names = [name for name, _ in log.sources]
    about = names[0] if len(names) == 1 else f"{len(names):,} logs"
    facts = [
        ("Lines", number(record["lines"]), ""),
        ("Templates", number(record["templates"]), "lines of one shape"),
        *((level.capitalize(), number(n), "lines") for level, n in record["levels"].items()),
    ]
    return rendered(
        f"Summary of {_shown_name(about)}",
        facts=facts,
        timelines=_timelines(log, record),
        tables=_tables(log, record),
        settings=[("rows", str(rows))],
    )


@dataclass(frozen=True)
class _Axis:
    """Range of a log: in seconds, or else in lines."""

    low: float
    high: float
    by_time: bool
    width: float
    """Width of a bucket in which `LogSummary` counts lines."""

    @classmethod
    def of(cls, log: logs.LogSummary) -> _Axis:
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

    def ends(self, when: logs.Clock) -> tuple[str, str]:
        if self.by_time:
            return when(self.low, 1, full=True), when(self.high, when.log.lines, full=True)
        return "line 1", f"line {self.high:,.0f}"


def _timelines(log: logs.LogSummary, record: dict[str, Any]) -> list[Timeline]:
    """Return the number of lines of each finding along the axis of time, or else of lines."""
    axis = _Axis.of(log)
    shapes = {log.where(shape.first_line): shape for shape in log.shapes}
    key = "time" if axis.by_time else "line"
    sections: dict[str, list[TimelineRow]] = {}
    # For a log within one second, the buckets are of time but the axis is of lines.
    bucketed = axis.by_time or log.by_line
    if bucketed:
        every = f"{record['lines']:,}"
        sections["all lines"] = [("all lines", every, axis.bars(log.total.buckets))]
    for finding in record["findings"]:
        place = finding["first"]["source"] or "", finding["first"]["line"]
        shape = shapes.get(place) if finding["templates"] == 1 else None
        begin, end = finding["first"][key], finding["last"][key]
        if shape is not None and shape.buckets and bucketed:
            bars = axis.bars(shape.buckets)
        elif begin is not None and end is not None and (axis.by_time or len(log.sources) < 2):
            # For a component or several templates, only the first and the last place are known.
            first, last = sorted((axis.share(begin), axis.share(end)))
            bars = [(first, last, 0.5)]
        else:
            continue
        words = f"{finding['count']:,} {finding['level'] or ''}".strip()
        sections.setdefault(finding["section"], []).append((finding["template"], words, bars))
    ends = axis.ends(logs.Clock(log))
    return [Timeline(title.capitalize(), ends, rows) for title, rows in sections.items()]


def _tables(log: logs.LogSummary, record: dict[str, Any]) -> list[Table]:
    when = logs.Clock(log)

    def time_of(place: dict[str, Any]) -> str:
        moment = place["time"]
        return "" if moment is None else when(moment, place["line"], full=True)

    rows = []
    for each in record["findings"]:
        first, last = each["first"], each["last"]
        place = f"{first['source'] or ''}:{first['line']}".lstrip(":")
        example, notes = each["example"] or each["template"], "; ".join(each["notes"])
        times = time_of(first), time_of(last)
        rows.append([number(each["count"]), each["level"] or "", *times, place, example, notes])
    columns = ["lines", "level", "first", "last", "first line", "example", "notes"]
    return [Table("Findings", columns, rows, [True, *[False] * 6])] if rows else []
