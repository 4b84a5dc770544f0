"""Output of a benchmark: progress on stderr, a table or rows of JSON on stdout, and its page."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from kvstream.cli.shared.output import refuse_clashes
from kvstream.cli.shared.reports import PageFile, rendered
from kvstream.cli.shared.running import can_be_live
from kvstream.cli.shared.saying import say
from kvstream.reporters.format import json_line
from kvstream.reporters.html.page import Bars, Chart, Table
from kvstream.streams import printing_to_stderr

if TYPE_CHECKING:
    from kvstream.evaluation.records import Records, Trial

PLAIN_SECONDS = 20.0
"""Minimum time between plain lines of progress."""
TOLD = 3
"""Maximum number of reasons for trials left out that are listed one by one."""
Row = dict[str, Any]


@contextmanager
def progress(kind: str, total: int, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function to call after each piece of work, with a line about it."""
    if quiet or kind == "none":
        yield lambda _: None
    elif kind == "live" or (kind == "auto" and can_be_live()):
        from rich import progress as rich

        bar = rich.Progress(
            rich.BarColumn(20), rich.MofNCompleteColumn(), rich.TimeRemainingColumn(),
            rich.TextColumn("{task.description}"), console=Console(stderr=True), transient=True,
        )  # fmt: skip
        with bar:
            task = bar.add_task("", total=total)
            yield lambda text: bar.update(task, advance=1, description=text)
    else:
        yield _Plain(total)


class _Plain:
    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.began = self.latest = time.monotonic()

    def __call__(self, text: str) -> None:
        self.done += 1
        now = time.monotonic()
        if now - self.latest < PLAIN_SECONDS and self.done < self.total:
            return
        self.latest = now
        rest = (now - self.began) / self.done * (self.total - self.done)
        say(f"{self.done:,} of {self.total:,}, about {rest:,.0f} s left: {text}")


def measured(
    trials: Iterable[Trial], total: int, records: Records, values: dict[str, Any],
    so_far: Callable[[list[Row]], str],
) -> tuple[list[Row], bool]:  # fmt: skip
    """Return the records of all trials and True, or after Ctrl-C those so far and False; show
    progress, and report errors.

    Trials that `records` has are not run again. Raises the first error if none could be measured.
    """
    from kvstream.evaluation.records import measure

    results: list[Row] = []
    complete = True
    with progress(values["progress"], total, quiet=values["quiet"]) as advance:
        try:
            with printing_to_stderr():
                for record in measure(trials, records):
                    results.append(record)
                    done = [each for each in results if "error" not in each]
                    left_out = "error" in record
                    advance(f"{record['method']}: left out" if left_out else so_far(done))
        except KeyboardInterrupt:
            say("Interrupted; these are the results so far.")
            complete = False
    if records.reuses and not values["quiet"]:
        say(f"{records.reuses:,} trials were taken from {values['save']}.")
    if complete and len(records.refusals) == len(results) > 0:
        raise records.refusals[0]
    messages = [record["error"] for record in results if "error" in record]
    different = list(dict.fromkeys(messages))
    for message in different if len(different) <= TOLD else ():
        say(f"Left out: {message}")
    if len(different) > TOLD:
        say(f"Left out {len(messages)} trials, the first for this reason: {different[0]}")
    return results, complete


def show(rows: Sequence[Row], tables: Callable[[], Iterable[Any]], *, as_json: bool) -> None:
    """Print rows as JSON, or the tables."""
    if as_json:
        for row in rows:
            click.echo(json_line(row, sys.stdout), nl=False)
        return
    from kvstream.evaluation import report

    class Stdout(Console):
        def on_broken_pipe(self) -> None:
            """Raise what a print raises: rich would end the program with exit code 1."""
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    width = None if sys.stdout.isatty() else 160
    console = Stdout(file=sys.stdout, width=width, highlight=False)
    for index, item in enumerate(tables()):
        if index:
            console.print()
        if isinstance(item, RichTable):
            # A table that is still too wide goes beyond the edge: rich would cut its figures off.
            wide = max(console.width, report.fit(item, console.width))
            Stdout(file=sys.stdout, width=wide, highlight=False).print(item)
        else:
            console.print(item)


def open_page(values: dict[str, Any]) -> PageFile | None:
    """Open the file of ``--report``, if given. Raises UsageError if a file has two uses."""
    path: Path | None = values["report"]
    results = {"--report": path, "--save": values["save"]}
    inputs = {"--model": Path(values.get("model") or "")}
    data = values.get("data") or ()
    read = [(data,) if isinstance(data, str) else data]
    read += [values.get(name) or () for name in ("text", "more", "files")]
    refuse_clashes(results, inputs, [*chain(*read)])
    if path is None:
        return None
    file = PageFile(path, quiet=values["quiet"])
    click.get_current_context().call_on_close(file.discard)
    return file


def tell(
    file: PageFile | None,
    title: str,
    settings: Any,
    rows: Sequence[Row],
    tables: Callable[[Any], Iterable[Any]],
    plots: Callable[[Any], Iterable[Chart | Bars]] = lambda rows: (),
    *,
    as_json: bool,
    printed: bool = False,
) -> None:
    """Print the rows of a benchmark as JSON or as tables, unless they are `printed`, and write its
    page if it was requested and there are rows."""
    if not printed:
        show(rows, lambda: tables(rows), as_json=as_json)
    if file is None or not rows:
        return
    items, charts = list(tables(rows)), list(plots(rows))
    methods = dict.fromkeys(str(r.get("method") or r.get("system")) for r in rows)
    page = rendered(
        title,
        tables=[as_table(each) for each in items if isinstance(each, RichTable)],
        charts=[plot for plot in charts if isinstance(plot, Chart)],
        bars=[plot for plot in charts if isinstance(plot, Bars)],
        settings=[("model", settings.model), ("compared", ", ".join(methods))],
        warnings=[each for each in items if isinstance(each, str)],
    )
    file.write_page(page)


def as_table(table: RichTable) -> Table:
    """Convert a table for a terminal to one for a page. Cells with a color become shares."""
    columns = [list(column.cells) for column in table.columns]
    cells = list(zip(*columns, strict=True))
    return Table(
        title=str(table.title or ""),
        columns=[str(column.header).strip() for column in table.columns],
        rows=[[_plain(cell) for cell in line] for line in cells],
        right=[column.justify == "right" for column in table.columns],
        shares=[[_share(cell) for cell in line] for line in cells],
    )


def _plain(cell: Any) -> str:
    return (cell.plain if isinstance(cell, Text) else str(cell)).strip()


def _share(cell: Any) -> float | None:
    text = _plain(cell)
    return float(text[:-1]) / 100 if isinstance(cell, Text) and text.endswith("%") else None


def lines(
    title: str,
    rows: Sequence[Row],
    x: tuple[str, Callable[[Row], float]],
    y: tuple[str, Callable[[Row], float | None]],
    label: Callable[[Row], str],
    *,
    log: bool = False,
) -> list[Chart]:
    """Return a chart with a line per label; none with fewer than two places on the axis."""
    places = sorted({x[1](row) for row in rows})
    points: dict[str, dict[float, float | None]] = {}
    for row in rows:
        points.setdefault(label(row), {})[x[1](row)] = y[1](row)
    if len(places) < 2:
        return []
    curves = [(name, [values.get(place) for place in places]) for name, values in points.items()]
    return [Chart(title, x[0], y[0], places, curves, log=log)]


def bars(
    title: str,
    rows: Sequence[Row],
    label: Callable[[Row], str],
    value: Callable[[Row], tuple[float, float | None, float | None] | None],
) -> list[Bars]:
    """Return a bar for each row with a value: (value, low, high) as shares from 0 to 1."""
    items = [(label(row), shares) for row in rows if (shares := value(row)) is not None]
    return [Bars(title, [(name, *shares) for name, shares in items])] if items else []
