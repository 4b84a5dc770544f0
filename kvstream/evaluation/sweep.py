"""Which runs a benchmark compares: every combination of the methods, budgets and settings given."""

from __future__ import annotations

import hashlib
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

STREAM, WHOLE, NEAR, BM25 = "stream", "whole", "near", "bm25"
TEXT_SETTINGS = {"catalyst_text"}
"""Settings whose value may hold a comma of its own."""


@dataclass(frozen=True)
class Case:
    """One way to read: the settings of a run, and how much of the document it gets to see."""

    run: RunSettings
    view: str = STREAM
    """``stream``: all of it under the budget, as a user would; ``whole``: all of it in a cache
    that holds it; ``near``: only the surroundings of the answer, as much as the budget holds;
    ``bm25``: the pieces that have the question's words, as many as the budget holds."""
    reread: str | None = None
    """Answer from a second pass: by citations, by words, or by both."""

    @property
    def name(self) -> str:
        """The method, or what stands in its place."""
        return self.run.method if self.view == STREAM else self.view

    def seed(self) -> dict[str, int]:
        """The seed, if it is not 0: records of earlier versions have none."""
        return {"seed": self.run.seed} if self.run.seed else {}

    def identity(self) -> dict[str, Any]:
        """What a result depends on beside the seed, as plain JSON."""
        run = self.run
        return {
            "method": self.name,
            "settings": dict(sorted(run.method_settings.items())),
            "budget": None if run.budget is None else run.budget.tokens,
            **({"budget_bytes": run.budget.bytes} if run.budget and run.budget.bytes else {}),
            "schedule": run.growth,
            "chunk": run.chunk,
            "keep": run.keep,
            **({"start": run.start} if run.start else {}),
            "chunk_size": run.chunk_size,
            "max_tokens": run.max_tokens,
            **({"reread": self.reread} if self.reread else {}),
            **({"files": files} if (files := _files(run.method_settings)) else {}),
        }


def _files(settings: Mapping[str, Any]) -> dict[str, str]:
    """A digest of each file that a setting names: training may have written it anew since."""
    paths = {name: Path(str(value)).expanduser() for name, value in sorted(settings.items())}
    return {name: _digest(path, path.stat()) for name, path in paths.items() if path.is_file()}


@lru_cache(maxsize=64)
def _digest(path: Path, found: os.stat_result) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def parse_settings(given: Sequence[str], methods: Sequence[str]) -> list[dict[str, str]]:
    """Combinations of ``METHOD.NAME=VALUE[,VALUE...]``, keyed by ``METHOD.NAME``.

    Raises UsageError for what is not written so, or is for a method that does not take part.
    """
    choices: dict[str, list[str]] = {}
    for item in given:
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
    growths: Sequence[str | None] = (None,),
    chunks: Sequence[str | None] = (None,),
    keeps: Sequence[int | None] = (None,),
    chunk_sizes: Sequence[int | None] = (None,),
    starts: Sequence[int | str | None] = (None,),
    preset: bool = False,
    baselines: Sequence[str] = (),
    rereads: Sequence[str] = (),
) -> list[Case]:
    """Every combination once, each checked before anything is loaded; `baselines` are views.

    Each is measured once more for every one of `rereads`. With `preset` a method has the settings
    and the schedule of its paper, but for what `settings` and the sequences say.
    """
    found: dict[str, Case] = {}
    combinations = itertools.product(
        methods,
        budgets,
        growths,
        chunks,
        keeps,
        chunk_sizes,
        starts,
        parse_settings(settings, methods),
    )
    for method, budget, growth, chunk, keep, chunk_size, start, choice in combinations:
        own = {
            name.split(".", 1)[1]: value
            for name, value in choice.items()
            if name.split(".", 1)[0] == method
        }
        told: Mapping[str, str] = {}
        if preset:
            paper = paper_of(method)
            own, told = {**paper.settings, **own}, paper.run
        make(method, own)
        run = replace(
            base, method=method, method_settings=own, budget=budget,
            growth=growth or told.get("schedule", base.growth),
            chunk=chunk or told.get("chunk", base.chunk),
            keep=keep, chunk_size=chunk_size, start=start or told.get("start"),
        )  # fmt: skip
        # A setting of one method makes no second case of another.
        found.setdefault(repr(run), Case(run))
    extra = [
        Case(replace(base, method="full", budget=budget), view)
        for view in baselines
        for budget in (budgets if view in (NEAR, BM25) else budgets[:1])
    ]
    again = [replace(case, reread=by) for case in found.values() for by in rereads]
    return [*found.values(), *again, *extra]
