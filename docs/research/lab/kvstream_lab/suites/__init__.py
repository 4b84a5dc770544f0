"""Suites of tasks with long texts, built from the descriptions in papers or from public data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvstream_lab.suites import babilong, nolima, qmsum, ruler, squality
from kvstream_lab.suites.task import Task

SUITES: Mapping[str, tuple[Task, ...]] = {
    "ruler": ruler.TASKS,
    "nolima": nolima.TASKS,
    "babilong": babilong.TASKS,
    "qmsum": qmsum.TASKS,
    "squality": squality.TASKS,
}
"""The tasks of each suite, by name."""
Load = Callable[[str, Sequence[Task], int], list[Task]]
"""``(path, tasks, seed)``: return the tasks with the data of the path."""
LOADERS: Mapping[str, Load] = {
    "babilong": babilong.load,
    "qmsum": qmsum.load,
    "squality": squality.load,
}
"""Loaders of the suites whose tasks have no samples before the user's data are loaded."""
