"""Suites of tasks with long texts, built from the descriptions in papers or from public data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvstream.errors import UsageError
from kvstream_lab.suites import babilong, ruler
from kvstream_lab.suites.task import Task

SUITES = {"ruler": tuple(ruler.TASKS), "babilong": babilong.TASKS}
"""The names of the tasks of each suite."""


def chosen(suite: str, names: Sequence[str] | None, data: str | None = None) -> list[Task]:
    """Return the tasks of these names, or all; those of babilong with the data of a folder.

    Raise UsageError for an unknown name, SourceError for damaged data.
    """
    for name in names or ():
        if name not in SUITES[suite]:
            raise UsageError(f"{suite} has no task {name!r}. It has: {', '.join(SUITES[suite])}.")
    every = names or SUITES[suite]
    if suite == "ruler":
        return [ruler.TASKS[name] for name in every]
    return [babilong.loaded(Path(data or ""), name) for name in every]
