"""Heatmaps of depth by length: one panel for each method and setting."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from kvstream.errors import KvstreamError, UsageError
from kvstream.evaluation.records import Record
from kvstream.evaluation.report import case_label, count
from kvstream.memory import file

FORMATS = (".png", ".svg", ".pdf")
MOST_COLUMNS = 3


def check(path: Path) -> None:
    """Check before the measurement that a figure can be written. Raise UsageError if not."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: the name must end in {', '.join(FORMATS)}.")
    if path.parent != Path() and not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}.")
    file.check_writable(path)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("--plot needs the extra: pip install 'kvstream[bench]'.") from None


def panels(rows: Sequence[Record]) -> dict[str, list[Record]]:
    """Return rows by case, in order of appearance."""
    found: dict[str, list[Record]] = {}
    for row in rows:
        found.setdefault(case_label(row, rows), []).append(row)
    return found


def draw(rows: Sequence[Record], path: Path, title: str) -> None:
    """Write the figure."""
    plt = pyplot()
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list(
        "shares", ["#b2182b", "#ef8a62", "#f4e285", "#a6d96a", "#1a9850"]
    )
    groups = panels(rows)
    lengths = sorted({r["tokens"] for r in rows})
    depths = sorted({r["depth"] for r in rows})
    columns = 2 if len(groups) == 4 else min(len(groups), MOST_COLUMNS)
    lines = -(-len(groups) // columns)
    width, height = 1.3 + 0.62 * len(lengths), 1.0 + 0.36 * len(depths)
    figure, axes = plt.subplots(
        lines, columns, squeeze=False, layout="constrained",
        figsize=(max(3.2, width) * columns + 0.9, max(1.9, height) * lines + 0.5),
    )  # fmt: skip
    image = None
    for axis in axes.flat[len(groups) :]:
        axis.axis("off")
    for axis, (label, group) in zip(axes.flat, groups.items(), strict=False):
        shares = [[float("nan")] * len(lengths) for _ in depths]
        for row in group:
            if row["trials"]:
                place = depths.index(row["depth"]), lengths.index(row["tokens"])
                shares[place[0]][place[1]] = row["right"] / row["trials"]
        image = axis.imshow(shares, cmap=shades, vmin=0, vmax=1, aspect="auto")
        for y, line in enumerate(shares):
            for x, share in enumerate(line):
                if share == share:
                    dark = share < 0.15 or share > 0.9
                    axis.text(
                        x, y, f"{100 * share:.0f}", ha="center", va="center", fontsize=8,
                        color="white" if dark else "black",
                    )  # fmt: skip
        axis.set_xticks(range(len(lengths)), [count(n) for n in lengths])
        axis.set_yticks(range(len(depths)), [f"{d:g}" for d in depths])
        axis.set_title(label, fontsize=10)
        axis.set_xlabel("tokens read", fontsize=9)
        axis.set_ylabel("depth of the needle", fontsize=9)
        axis.tick_params(length=0, labelsize=8)
        for spine in axis.spines.values():
            spine.set_visible(False)
    figure.suptitle(title, fontsize=11)
    if image is not None:
        bar = figure.colorbar(image, ax=axes, label="share right", shrink=0.9)
        bar.outline.set_visible(False)
    write(figure, path)


def pyplot() -> Any:
    """Return matplotlib's pyplot, for files only; equal figures give equal files."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "kvstream"
    from matplotlib import pyplot as plt

    return plt


def lined(axis: Any, label: str, title: str) -> None:
    """Apply the common style of line plots to a panel: a grid and no frame."""
    axis.set_xlabel(label, fontsize=9)
    axis.set_title(title, fontsize=10)
    axis.grid(visible=True, color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8, length=0)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def write(figure: Any, path: Path) -> None:
    """Write a figure without a date, and close it. An earlier file stays until it is complete.

    Raises KvstreamError.
    """
    from matplotlib import pyplot as plt

    kind, drawn = path.suffix[1:].lower(), BytesIO()
    undated = {"Date": None} if kind == "svg" else None
    figure.savefig(drawn, format=kind, dpi=160, metadata=undated)
    plt.close(figure)
    try:
        file.replace(path, lambda stream: stream.write(drawn.getvalue()))
    except OSError as error:
        raise KvstreamError(f"Cannot write {path}: {error.strerror or error}.") from error
