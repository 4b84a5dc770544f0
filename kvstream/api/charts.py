"""The sizes of a reading over its steps, and charts of one or several readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvstream.events import StepDone
from kvstream.reporters.html.page import Chart

Row = tuple[int, int, int, int, int, int]
"""Sizes after a step: tokens read; entries of memory, chunk, in flight and budget; kept tokens."""
POINTS = 400
"""Maximum number of steps in a chart. Longer runs show every second, fourth, ... step."""


@dataclass
class Series:
    """Sizes over a reading, for a bounded number of steps."""

    stride: int = 1
    rows: list[Row] = field(default_factory=list)
    last: StepDone | None = None

    def add(self, step: StepDone) -> None:
        self.last = step
        if (step.step - 1) % self.stride:
            return
        self.rows.append(_row(step))
        if len(self.rows) > POINTS:
            self.stride *= 2
            self.rows = self.rows[::2]

    def end(self) -> None:
        """Add the last step in any case. Call this while the reading still has its memory."""
        if self.last is not None and (not self.rows or self.rows[-1][0] != self.last.seen):
            self.rows.append(_row(self.last))
        self.last = None


def _row(step: StepDone) -> Row:
    held = max(step.memory, default=0)
    return (
        step.seen, held, step.chunk, step.in_flight_tokens, step.budget_tokens, step.retained()
    )  # fmt: skip


def charts_of(readings: Sequence[tuple[str, Series]]) -> list[Chart]:
    """Return the charts of one reading, or of a comparison; a reading of one step has none."""
    drawn = [(name, series.rows) for name, series in readings if len(series.rows) > 1]
    if len(drawn) == 1:
        seen, held, chunk, flight, budget, kept = zip(*drawn[0][1], strict=True)
        lines = [("memory", held), ("chunk", chunk), ("in flight", flight), ("budget", budget)]
        return [
            Chart(
                "Memory and chunk", "tokens read", "entries a head", seen, lines,
                note="In flight: memory, chunk and catalyst together, which never exceed the "
                "budget.",
            ),
            Chart("Kept tokens", "tokens read", "tokens", seen, [("kept", kept)],
                  note="Different tokens that at least one head holds."),
        ]  # fmt: skip
    charts = []
    x = sorted({row[0] for _, rows in drawn for row in rows})
    for title, column, label in (("Kept tokens", 5, "tokens"), ("Memory", 1, "entries a head")):
        values = [(n, _filled(x, {row[0]: row[column] for row in rows})) for n, rows in drawn]
        charts.append(Chart(title, "tokens read", label, x, values))
    return charts if drawn else []


def _filled(x: list[int], known: dict[int, int]) -> list[float | None]:
    """Return at each of `x` the value so far; None before the first step and after the last one."""
    filled: list[float | None] = []
    value, end = None, max(known)
    for place in x:
        value = known.get(place, value)
        filled.append(value if place <= end else None)
    return filled
