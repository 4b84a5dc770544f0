"""Seconds and memory against length, both axes logarithmic, with a line for each system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstream.evaluation.heatmap import lined, pyplot, write
from kvstream.evaluation.records import Record
from kvstream.evaluation.report import case_label, count

# Okabe and Ito's colors, which color-blind people can distinguish.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
OTHERS = {
    "full": ("#663333", "s"),
    "transformers": ("#000000", "D"),
    "kvpress": ("#aa3377", "^"),
    "llamacpp": ("#117733", "P"),
    "llamacpp sliding": ("#44bb99", "P"),
    "streamingllm": ("#888800", "v"),
    "reading": ("#aaaaaa", "."),
}
FLOORS = {"floor": ("x", ":"), "floor-sdpa": ("+", "-.")}
"""Mark and line style of floors. Their color is that of the method."""
MARKS = "osD^vP"
PANELS = (
    ("time to read", "prefill_s", 1.0, "s"),
    ("KV cache, at most", "peak_kv_bytes", 1024**2, "MiB"),
    ("whole process, at most", "peak_rss_bytes", 1024**2, "MiB"),
)
LEGEND_WIDTH = 150
"""Characters that fit in one row of the legend."""
DEVICE_PANEL = ("GPU memory, at most", "peak_device_bytes", 1024**2, "MiB")


def draw(rows: Sequence[Record], path: Path, title: str) -> None:
    """Write the figure. Fitted values have hollow marks and a dashed line."""
    plt = pyplot()
    on_gpu = any(r["peak_device_bytes"] for r in rows)
    panels = (*PANELS[:2], DEVICE_PANEL if on_gpu else PANELS[2])
    lines = _lines(rows)
    figure, axes = plt.subplots(
        1, len(panels), figsize=(13.5, 5 + len(lines) * 0.08), layout="constrained"
    )
    for axis, (name, key, unit, sign) in zip(axes, panels, strict=True):
        for label, line in lines.items():
            _draw_line(axis, label, line, key, unit)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        lengths = sorted({r["tokens"] for r in rows})
        axis.set_xticks(lengths, [count(n) for n in lengths])
        _ticks(axis, [r[key] / unit for r in rows if r.get(key)])
        axis.minorticks_off()
        lined(axis, "tokens read", f"{name} ({sign})")
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        columns = max(1, LEGEND_WIDTH // (max(map(len, labels)) + 8))
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(columns, len(labels)),
            fontsize=9, frameon=False,
        )  # fmt: skip
    figure.suptitle(title, fontsize=11)
    write(figure, path)


@dataclass
class _Line:
    """Style and rows of a system's line."""

    color: str
    mark: str
    width: float = 1.3
    style: str = "-"
    rows: list[Record] = field(default_factory=list)


def _lines(rows: Sequence[Record]) -> dict[str, _Line]:
    """Return the lines by label, in order of appearance."""
    ours = [r for r in rows if r["system"] == "kvstream"]
    names = list(dict.fromkeys(case_label(r, ours) for r in ours))
    found: dict[str, _Line] = {}
    for row in rows:
        label, system = line_label(row, ours), row["system"]
        if label not in found and system in OTHERS:
            found[label] = _Line(*OTHERS.get(f"{system} {row.get('mode')}", OTHERS[system]))
        elif label not in found:
            number = names.index(case_label(row, ours)) if names else 0
            color = COLORS[number % len(COLORS)]
            if system in FLOORS:
                mark, style = FLOORS[system]
                found[label] = _Line(color, mark, style=style)
            else:  # repeated colors get other marks
                mark = MARKS[(number + number // len(COLORS)) % len(MARKS)]
                found[label] = _Line(color, mark, 2.0)
        found[label].rows.append(row)
    return found


def line_label(row: Record, ours: Sequence[Record]) -> str:
    """Return the label of a row; `ours` are kvstream's rows, which decide what it must contain."""
    if row["system"] == "kvstream":
        return case_label(row, ours)
    several = len({r["budget"] for r in ours}) > 1
    name = {
        "full": "all of it, kvstream's attention",
        "transformers": "transformers, plain cache",
        "kvpress": "kvpress, SnapKV",
        "llamacpp": f"llama.cpp, {row.get('mode', 'full')}",
        "streamingllm": "StreamingLLM, token by token",
        "reading": "reading and tokenizing alone",
    }.get(row["system"])
    if name is None:
        name = f"floor of {case_label(row, ours)}"
        return f"{name}, SDPA" if row["system"] == "floor-sdpa" else name
    return f"{name}, {count(row['budget'])}" if several and row["budget"] else name


def _draw_line(axis: Any, label: str, line: _Line, key: str, unit: float) -> None:
    points = sorted((r for r in line.rows if r.get(key)), key=lambda r: r["tokens"])
    measured = [r for r in points if not r.get("fitted")]
    fitted = [r for r in points if r.get("fitted")]

    def plot(part: Sequence[Record], **style: Any) -> None:
        xs, ys = [r["tokens"] for r in part], [r[key] / unit for r in part]
        axis.plot(xs, ys, color=line.color, linewidth=line.width, markersize=5, **style)

    plot(measured, marker=line.mark, linestyle=line.style, label=label)
    if fitted:
        plot([*measured[-1:], *fitted], linestyle="--")
        plot(fitted, marker=line.mark, linestyle="", markerfacecolor="white")


def _ticks(axis: Any, values: Sequence[float]) -> None:
    """Set ticks of 1, 2, 5 around the values, which may be close together or decades apart."""
    if not values:
        return
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    every = [step * 10.0**power for power in range(low, high + 1) for step in (1, 2, 5)]
    first = max(i for i, tick in enumerate(every) if tick <= min(values) * 1.0001)
    last = min(i for i, tick in enumerate(every) if tick >= max(values) * 0.9999)
    last = max(last, first + 1)
    axis.set_ylim(every[first] * 0.93, every[last] * 1.07)
    axis.set_yticks(every[first : last + 1], [_number(t) for t in every[first : last + 1]])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
