"""Readers with `edgeinfinite` on tiny models, for the tests of the method and of its gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from models import bounded, tokens

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Reader
from kvstream.methods.edgeinfinite import EdgeInfinite
from kvstream.settings import RunSettings

HEAD = 4
METHOD = EdgeInfinite(sinks=8, window=12, segment=40, scale=False)
PAPER = replace(METHOD, form="paper")


def reader(
    method: Any = METHOD,
    kind: str = "llama",
    budget: int = 128,
    length: int | None = None,
    catalysts: Sequence[Sequence[int]] = (),
    **run: Any,
) -> Reader:
    sizes = BudgetSplit(budget, HEAD, sum(map(len, catalysts)), 8, 16)
    head = tokens(HEAD, 1)
    return Reader(bounded(kind), method, RunSettings(**run), sizes, head, catalysts, length)
