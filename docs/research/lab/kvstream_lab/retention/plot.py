"""Plots of what methods keep: by step, by layer, by place in the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstream.evaluation.heatmap import lined, pyplot, write
from kvstream.evaluation.records import Record
from kvstream.evaluation.report import case_label
from kvstream.evaluation.speed.plot import COLORS, MARKS
from kvstream_lab.retention.shares import PARTS

Points = list[tuple[float, float | None]]


def _by_step(name: str) -> Callable[[Record], Points]:
    return lambda row: [(s["tokens"], s[name]) for s in row["steps"]]


def _by_layer(row: Record) -> Points:
    return [(layer["layer"], layer["attention"]) for layer in row["layers"]]


def _by_part(row: Record) -> Points:
    return [(i + 1, share) for i, share in enumerate(row["parts"])]


@dataclass(frozen=True)
class Panel:
    """One plot. All its values are shares."""

    title: str
    axis: str
    points: Callable[[Record], Points]
    chance: bool = False
    """Whether to draw the share that heads with a random choice would have."""


PANELS = (
    Panel(
        "held of what the question attends to", "tokens read", _by_step("hit_question"), chance=True
    ),
    Panel(
        "held of what the next chunk attends to", "tokens read", _by_step("hit_chunk"), chance=True
    ),
    Panel("held by two heads, of what either holds", "tokens read", _by_step("jaccard")),
    Panel("attention of the next chunk to memory", "tokens read", _by_step("attention")),
    Panel("the same by layer", "layer", _by_layer),
    Panel("where memory is from at the end", f"part of the text, of {PARTS}", _by_part),
)
COLUMNS = 3


def draw(rows: Sequence[Record], path: Path, title: str) -> None:
    """Write the figure. Leave out panels without any measured value."""
    plt = pyplot()
    from matplotlib.ticker import PercentFormatter

    drawn = [p for p in PANELS if any(y is not None for row in rows for _, y in p.points(row))]
    columns = min(COLUMNS, len(drawn))
    lines = -(-len(drawn) // columns)
    figure, axes = plt.subplots(
        lines, columns, squeeze=False, layout="constrained",
        figsize=(4.5 * columns, 3.1 * lines + 0.3 * (2 + len(rows) // 6)),
    )  # fmt: skip
    for axis in axes.flat[len(drawn) :]:
        axis.axis("off")
    for axis, panel in zip(axes.flat, drawn, strict=False):
        if panel.chance:  # of the first case; memory of the others has about the same size
            _draw_line(axis, "by chance", _by_step("chance")(rows[0]), "#999999", "", ":")
        for number, row in enumerate(rows):
            mark = MARKS[(number + number // len(COLORS)) % len(MARKS)]
            color = COLORS[number % len(COLORS)]
            _draw_line(axis, case_label(row, rows), panel.points(row), color, mark, "-")
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        lined(axis, panel.axis, panel.title)
    handles = {
        label: handle
        for axis in axes.flat
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center",
        ncols=min(6, len(handles)), fontsize=9, frameon=False,
    )  # fmt: skip
    figure.suptitle(title, fontsize=11)
    write(figure, path)


def _draw_line(axis: Any, label: str, points: Points, color: str, mark: str, style: str) -> None:
    known = [(x, y) for x, y in points if y is not None]
    if known:
        xs, ys = zip(*known, strict=True)
        axis.plot(
            xs, ys, color=color, linewidth=1.6, markersize=4, marker=mark, linestyle=style,
            label=label,
        )  # fmt: skip
