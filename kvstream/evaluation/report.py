"""Rows of results as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvstream.errors import UsageError
from kvstream.evaluation.records import Record
from kvstream.evaluation.sweep import WHOLE
from kvstream.methods.base import Preset
from kvstream.methods.registry import preset
from kvstream.reporters import format as f
from kvstream.settings import PAPER

LABEL = 14
"""Minimum width of a label, in characters, however narrow the terminal is."""
# From red over yellow to green, as in the figures; readable on dark and on light terminals.
_COLORS = ("#b2182b", "#d6604d", "#e0a060", "#c8c050", "#80b050", "#1a9850")


def count(tokens: int) -> str:
    """Return ``32k`` for 32768; plain digits if k or M would not be exact."""
    for size, letter in ((1024**2, "M"), (1024, "k")):
        if tokens >= size and tokens % size == 0:
            return f"{tokens // size}{letter}"
    return f"{tokens:,}"


def budget(row: Record) -> str | None:
    """Return the row's budget in tokens; None if it has none, as a full KV cache."""
    return count(row["budget"]) if row["budget"] and row["method"] != WHOLE else None


def case_label(row: Record, rows: Sequence[Record]) -> str:
    """Return the method and the settings that differ between rows; ``paper`` for its preset."""
    if row.get("method") == WHOLE:  # a full KV cache has nothing to set
        return WHOLE
    rows = [r for r in rows if r.get("method") != WHOLE]
    settings: Record = row.get("settings") or {}
    paper = _paper(row)
    own = {k: v for k, v in settings.items() if paper is None or paper.settings.get(k) != v}
    options: Mapping[str, str] = {} if paper is None else paper.run
    parts = [str(row.get("method") or row.get("system"))]
    if paper is not None:
        parts.append(PAPER)
    for key, write in (("budget", count), ("budget_bytes", f.size)):
        if row.get(key) and len({r.get(key) for r in rows}) > 1:
            parts.append(write(row[key]))
    for key in ("schedule", "chunk", "keep", "start", "chunk_size"):
        differs = len({r.get(key) for r in rows}) > 1 and row.get(key) is not None
        if differs and options.get(key) != row[key]:
            parts.append(f"{key} {row[key]}")
    parts += [f"{k} {v}" for k, v in own.items()]
    return ", ".join(parts)


def _paper(row: Record) -> Preset | None:
    """Return the preset of the row's method, if the row used it; single settings may differ."""
    try:
        paper = preset(str(row.get("method")))
    except UsageError:  # a method without a preset, or no method
        return None
    given = paper.settings.keys() <= (row.get("settings") or {}).keys()
    return paper if given and all(row.get(k) == v for k, v in paper.run.items()) else None


def table(title: str, columns: Sequence[tuple[str, Callable[[Record], Any]]],
          rows: Sequence[Record]) -> Table:  # fmt: skip
    """Return a table of rows; numbers are right-aligned."""
    out = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    cells = [[pick(row) for _, pick in columns] for row in rows]
    for index, (name, _) in enumerate(columns):
        words = [word for line in cells for word in str(line[index] or "-").split()]
        longest = max(map(len, [*words, *name.split()]), default=1)
        texts = all(
            isinstance(line[index], str) and not line[index][:1].isdigit() for line in cells
        )
        out.add_column(
            name, justify="left" if texts and cells else "right", overflow="fold",
            min_width=longest if index else min(longest, LABEL),
        )  # fmt: skip
    for line in cells:
        out.add_row(*("-" if cell is None else str(cell) for cell in line))
    return out


def fit(table: Table, width: int) -> int:
    """Make a table narrower, the label last; return the least width that shows all of it."""
    console = Console(width=1000)
    if console.measure(table).maximum > width:
        table.collapse_padding = True
        for column in table.columns[1:]:
            column.max_width = column.min_width
    return console.measure(table).minimum


def grid(title: str, rows: Sequence[Record]) -> Table:
    """Return a table of depth by length for one case, with each cell colored by its share."""
    lengths = sorted({r["tokens"] for r in rows})
    depths = sorted({r["depth"] for r in rows})
    by_place = {(r["tokens"], r["depth"]): r for r in rows}
    out = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=0)
    out.add_column("depth", justify="right")
    for length in lengths:
        out.add_column(f" {count(length)} ", justify="center", min_width=7)
    for depth in depths:
        cells = (_cell(by_place.get((length, depth))) for length in lengths)
        out.add_row(f"{depth:g} ", *cells)
    return out


def _cell(row: Record | None) -> Text:
    if row is None or not row["trials"]:
        return Text("  -  ", justify="center")
    share = row["right"] / row["trials"]
    color = _COLORS[min(len(_COLORS) - 1, int(share * len(_COLORS)))]
    return Text(f"{share:^7.0%}", style=f"bold #ffffff on {color}")
