"""Suites of tasks with long texts, made anew from the descriptions in papers."""

from __future__ import annotations

from collections.abc import Mapping

from kvstream.evaluation.suites import nolima, ruler
from kvstream.evaluation.suites.task import Task

SUITES: Mapping[str, tuple[Task, ...]] = {"ruler": ruler.TASKS, "nolima": nolima.TASKS}
"""The tasks of each suite, by name."""
