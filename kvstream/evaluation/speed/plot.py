"""Seconds and memory against length, both axes logarithmic, a line for each system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvstream.errors import KvstreamError
from kvstream.evaluation.heatmap import undated
from kvstream.evaluation.records import Record
from kvstream.evaluation.report import case_label, count

# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
GREYS = {"floor": "#444444", "floor-sdpa": "#999999"}
OTHERS = {
    "transformers": "#000000",
    "kvpress": "#aa3377",
    "streamingllm": "#888800",
    "reading": "#aaaaaa",
}
MARKS = "osD^vP"
PANELS = (
    ("time to read", "prefill_s", 1.0, "s"),
    ("KV cache, at most", "peak_kv_bytes", 1024**2, "MiB"),
    ("whole process, at most", "peak_rss_bytes", 1024**2, "MiB"),
)
DEVICE_PANEL = ("GPU memory, at most", "peak_device_bytes", 1024**2, "MiB")


def draw(rows: Sequence[Record], path: Path, title: str) -> None:
    """Write the picture. What was not measured but fitted is hollow, on a dashed line."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "kvstream"  # equal pictures are equal files
    from matplotlib import pyplot as plt

    on_gpu = any(r["peak_device_bytes"] for r in rows)
    panels = (*PANELS[:2], DEVICE_PANEL if on_gpu else PANELS[2])
    lines = _lines(rows)
    figure, axes = plt.subplots(1, len(panels), figsize=(13.5, 5.2), layout="constrained")
    for axis, (name, key, unit, sign) in zip(axes, panels, strict=True):
        for label, (group, colour, mark, width) in lines.items():
            _line(axis, label, group, key, unit, colour, mark, width)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        lengths = sorted({r["tokens"] for r in rows})
        axis.set_xticks(lengths, [count(n) for n in lengths])
        _ticks(axis, [r[key] / unit for r in rows if r.get(key)])
        axis.minorticks_off()
        axis.set_xlabel("tokens read", fontsize=9)
        axis.set_title(f"{name} ({sign})", fontsize=10)
        axis.grid(visible=True, color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8, length=0)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=9,
            frameon=False,
        )  # fmt: skip
    figure.suptitle(title, fontsize=11)
    try:
        figure.savefig(path, dpi=160, metadata=undated(path))
    except OSError as error:
        raise KvstreamError(f"Cannot write {path}: {error.strerror}.") from error
    finally:
        plt.close(figure)


def _lines(rows: Sequence[Record]) -> dict[str, tuple[list[Record], str, str, float]]:
    """Rows, colour, mark and width of each line, in order of appearance."""
    ours = [r for r in rows if r["system"] == "kvstream"]
    found: dict[str, tuple[list[Record], str, str, float]] = {}
    for row in rows:
        label = line_label(row, ours)
        if label not in found:
            system, number = row["system"], len(found)
            if system == "kvstream":
                style = (COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)], 2.0)
            else:
                colour = GREYS.get(system) or OTHERS[system]
                style = (colour, "x" if system in GREYS else MARKS[number % len(MARKS)], 1.3)
            found[label] = ([], *style)
        found[label][0].append(row)
    return found


def line_label(row: Record, ours: Sequence[Record]) -> str:
    """What a row is called; `ours` are kvstream's rows, which settle what needs to be told."""
    if row["system"] == "kvstream":
        return case_label(row, ours)
    several = len({r["budget"] for r in ours}) > 1
    name = {
        "transformers": "transformers, plain cache",
        "kvpress": "kvpress, SnapKV",
        "streamingllm": "StreamingLLM, token by token",
        "reading": "reading and tokenizing alone",
        "floor": f"floor of {row['method']}",
        "floor-sdpa": f"floor of {row['method']}, SDPA",
    }[row["system"]]
    return f"{name}, {count(row['budget'])}" if several and row["budget"] else name


def _line(
    axis: Any, label: str, group: Sequence[Record], key: str, unit: float, colour: str, mark: str,
    width: float,
) -> None:  # fmt: skip
    points = sorted((r for r in group if r.get(key)), key=lambda r: r["tokens"])
    measured = [r for r in points if not r.get("fitted")]
    fitted = [r for r in points if r.get("fitted")]
    axis.plot(
        [r["tokens"] for r in measured], [r[key] / unit for r in measured],
        color=colour, marker=mark, markersize=5, linewidth=width, label=label,
    )  # fmt: skip
    if fitted:
        joined = [*measured[-1:], *fitted]
        axis.plot(
            [r["tokens"] for r in joined], [r[key] / unit for r in joined],
            color=colour, linestyle="--", linewidth=width,
        )  # fmt: skip
        axis.plot(
            [r["tokens"] for r in fitted], [r[key] / unit for r in fitted],
            color=colour, marker=mark, markersize=5, linestyle="", markerfacecolor="white",
        )  # fmt: skip


def _ticks(axis: Any, values: Sequence[float]) -> None:
    """Steps of 1, 2, 5 around the values, which may be close together or decades apart."""
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
