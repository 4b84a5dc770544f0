"""``--report`` of a benchmark: its tables and plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table as RichTable
from rich.text import Text

from kvstream.cli.commands.bench import result_output
from kvstream.cli.shared.output import refuse_clashes
from kvstream.cli.shared.reports import PageFile, rendered
from kvstream.reporters.html.page import Bars, Chart, Table

Row = dict[str, Any]


def opened(values: dict[str, Any]) -> PageFile | None:
    """Open the file of ``--report``, if given. Raises UsageError if a file has two uses."""
    path: Path | None = values["report"]
    results = {"--report": path, "--save": values["save"]}
    inputs = {"--prompts": values.get("prompts"), "--model": Path(values.get("model") or "")}
    refuse_clashes(results, inputs, _read(values))
    if path is None:
        return None
    file = PageFile(path, quiet=values["quiet"])
    click.get_current_context().call_on_close(file.discard)
    return file


def _read(values: dict[str, Any]) -> list[str]:
    """Return the files that a benchmark reads, texts and records, from all its options."""
    data = values.get("data") or ()
    named = [(data,) if isinstance(data, str) else data]
    named += [values.get(name) or () for name in ("text", "more", "files")]
    return [path for paths in named for path in paths]


def write(
    file: PageFile | None,
    title: str,
    settings: Any,
    rows: Sequence[Row],
    tables: Iterable[Any],
    plots: Iterable[Chart | Bars] = (),
) -> None:
    """Write the page of a benchmark if it was requested and there are rows."""
    if file is None or not rows:
        return
    shown, drawn = list(tables), list(plots)
    methods = dict.fromkeys(str(r.get("method") or r.get("system")) for r in rows)
    page = rendered(
        title,
        tables=[as_table(each) for each in shown if isinstance(each, RichTable)],
        charts=[plot for plot in drawn if isinstance(plot, Chart)],
        bars=[plot for plot in drawn if isinstance(plot, Bars)],
        settings=[("model", settings.model), ("compared", ", ".join(methods))],
        warnings=[each for each in shown if isinstance(each, str)],
    )
    file.write_page(page)


def tell(
    file: PageFile | None,
    title: str,
    settings: Any,
    rows: Sequence[Row],
    tables: Callable[[Any], Iterable[Any]],
    plots: Callable[[Any], Iterable[Chart | Bars]] = lambda rows: (),
    *,
    as_json: bool,
) -> None:
    """Print the rows of a benchmark as JSON or as tables, and write its page."""
    result_output.show(rows, lambda: tables(rows), as_json=as_json)
    write(file, title, settings, rows, tables(rows), plots(rows))


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
    found: dict[str, dict[float, float | None]] = {}
    for row in rows:
        found.setdefault(label(row), {})[x[1](row)] = y[1](row)
    if len(places) < 2:
        return []
    drawn = [(name, [known.get(place) for place in places]) for name, known in found.items()]
    return [Chart(title, x[0], y[0], places, drawn, log=log)]


def bars(
    title: str,
    rows: Sequence[Row],
    label: Callable[[Row], str],
    value: Callable[[Row], tuple[float, float | None, float | None] | None],
) -> list[Bars]:
    """Return a bar for each row with a value: (value, low, high) as shares from 0 to 1."""
    found = [(label(row), known) for row in rows if (known := value(row)) is not None]
    return [Bars(title, [(name, *known) for name, known in found])] if found else []
