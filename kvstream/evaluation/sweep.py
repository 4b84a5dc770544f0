"""Build the runs that a benchmark compares: every combination of methods, budgets and settings."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvstream.errors import UsageError
from kvstream.methods.registry import make
from kvstream.methods.registry import preset as paper_of
from kvstream.settings import Budget, RunSettings
from kvstream.store.writing import digest_of

STREAM, WHOLE, NEAR = "stream", "whole", "near"
TEXT_SETTINGS = {"catalyst_text"}
"""Settings whose value may contain a comma."""


@dataclass(frozen=True)
class Case:
    """One way to read: the settings of a run, and which part of the document it gets."""

    run: RunSettings
    view: str = STREAM
    """``stream``: the whole document under the budget, as a user reads it; ``whole``: the whole
    document in a cache that holds all of it; ``near``: only the text around the answer, as much
    as the budget holds."""

    @property
    def name(self) -> str:
        """The method, or the view if it is not ``stream``."""
        return self.run.method if self.view == STREAM else self.view

    def seed(self) -> dict[str, int]:
        """Return the seed if it is not 0; records of earlier versions have none."""
        return {"seed": self.run.seed} if self.run.seed else {}

    def identity(self) -> dict[str, Any]:
        """Return everything besides the seed that a result depends on, as plain JSON."""
        run = self.run
        return {
            "method": self.name,
            "settings": dict(sorted(run.set.items())),
            "budget": None if run.budget is None else run.budget.tokens,
            **({"budget_bytes": run.budget.bytes} if run.budget and run.budget.bytes else {}),
            "schedule": run.schedule,
            "chunk": run.chunk,
            "keep": run.keep,
            **({"start": run.start} if run.start else {}),
            "chunk_size": run.chunk_size,
            "max_tokens": run.max_tokens,
            **({"files": files} if (files := _files(run.set)) else {}),
        }


def _files(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each file that a setting names, because training may have changed it."""
    paths = {name: Path(str(value)).expanduser() for name, value in sorted(settings.items())}
    return {name: _digest(path, path.stat()) for name, path in paths.items() if path.is_file()}


@lru_cache(maxsize=64)
def _digest(path: Path, stat: os.stat_result) -> str:
    return digest_of(path)[:12]


def parse_settings(texts: Sequence[str], methods: Sequence[str]) -> list[dict[str, str]]:
    """Return combinations of ``METHOD.NAME=VALUE[,VALUE...]``. Raise UsageError."""
    choices: dict[str, list[str]] = {}
    for item in texts:
        path, equals, value = item.partition("=")
        owner, dot, name = path.strip().partition(".")
        name = name.replace("-", "_")
        if not (equals and dot and owner and name):
            raise UsageError(f"--set {item!r} is not METHOD.NAME=VALUE[,VALUE...].")
        if owner not in methods:
            raise UsageError(
                f"--set {item!r} is for the method {owner!r}, which is not measured here; "
                f"add it to --method ({', '.join(methods)})."
            )
        values = [value] if name in TEXT_SETTINGS else value.split(",")
        choices[f"{owner}.{name}"] = [v.strip() for v in values]
    return [
        dict(zip(choices, combination, strict=True))
        for combination in itertools.product(*choices.values())
    ]


def cases(
    base: RunSettings,
    *,
    methods: Sequence[str],
    budgets: Sequence[Budget | None],
    settings: Sequence[str] = (),
    preset: bool = False,
    baselines: Sequence[str] = (),
    **values: Sequence[Any],
) -> list[Case]:
    """Return every combination once, checked.

    `values` are those of other fields of the run; None leaves a field as it is. `preset`: as in the
    papers, where nothing else is given. `baselines`: views.
    """
    out: dict[str, Case] = {}
    choices = parse_settings(settings, methods)
    for method, budget, *row, choice in itertools.product(
        methods, budgets, *values.values(), choices
    ):
        own = {
            name.removeprefix(f"{method}."): value
            for name, value in choice.items()
            if name.startswith(f"{method}.")
        }
        fields = {k: v for k, v in zip(values, row, strict=True) if v is not None}
        if preset:
            paper = paper_of(method)
            own, fields = {**paper.settings, **own}, {**paper.run, **fields}
        make(method, own)
        run = replace(base, method=method, set=own, budget=budget, **fields)
        # Settings of one method do not make a second case of another.
        out.setdefault(repr(run), Case(run))
    extra = [
        Case(replace(base, method="full", budget=budget), view)
        for view in baselines
        for budget in (budgets if view == NEAR else budgets[:1])
    ]
    return [*out.values(), *extra]
