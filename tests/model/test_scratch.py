"""Scratch memory: all of it is reported, and it is small."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from models import FAMILIES, fresh, tokens

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.eviction import Evictor
from kvstream.engine.reader import Chunk, Reader
from kvstream.methods.base import Method
from kvstream.methods.registry import available, make
from kvstream.model import hook
from kvstream.model.bounded import BoundedModel
from kvstream.model.probe import bound
from kvstream.model.scratch import Meter, Scratch
from kvstream.settings import RunSettings

WIDE = {"hidden_size": 64, "head_dim": 64}
CASES = [
    *((name, {}) for name in sorted(available()) if make(name, {}).evicts),
    *(("bumblebee", {"algorithm": name}) for name in ("fast", "streaming")),
    pytest.param("bumblebee", {"algorithm": "lazy"}, marks=pytest.mark.long),
    ("cascade", {"contest": "attention"}),
    ("edgeinfinite", {"form": "paper"}),
    ("infinipot", {"alpha": "0.5"}),
]


@cache
def wide(kind: str, dtype: torch.dtype) -> BoundedModel:
    """Return a model of two layers with heads as wide as those of real models."""
    model = fresh(FAMILIES[kind].config(**WIDE)).to(dtype)
    return bound(model, kind)


def read(model: BoundedModel, method: Method, budget: int = 512, length: int = 640) -> Reader:
    catalysts = [tokens(40, 2)] if method.catalyst(["?"]) else []
    sizes = BudgetSplit(budget, 2, sum(map(len, catalysts)), 20, 20)
    reader = Reader(model, method, RunSettings(), sizes, tokens(2, 1), catalysts, length)
    text = tokens(length, 3)
    while reader.seen < length:
        piece = Chunk(text[reader.seen :][: reader.schedule.chunk()], reader.seen)
        reader.step(piece, last=reader.seen + len(piece.ids) == length)
    return reader


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float32, id="float32", marks=pytest.mark.long),
        pytest.param(torch.bfloat16, id="bfloat16"),
    ],
)
@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_scratch_is_counted_and_bounded(
    name: str, settings: dict[str, str], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A meter measures every pass. The reported peak, plus 10 percent, covers it."""
    most = {"taken": 0}

    def metered(owner: Any, attribute: str, kept: int = 0) -> None:
        called = getattr(owner, attribute)

        def call(*args: Any, **more: Any) -> Any:
            with Meter() as meter:
                result = called(*args, **more)
            activations = result[0].nbytes if kept else 0
            most["taken"] = max(most["taken"], meter.most - activations)
            return result

        monkeypatch.setattr(owner, attribute, call)

    metered(hook, "attend", kept=1)
    metered(hook, "evidence")
    metered(Evictor, "absorb")
    metered(Evictor, "evict")
    method = make(name, settings)
    reader = read(wide("llama", dtype), method)
    reported = reader.cache.peak.scratch
    assert reader.steps >= 2
    assert most["taken"] <= 1.1 * reported
    rotated = reader.cache.scratch(reader.compressible[0].spec).nbytes
    assert rotated < reported, "nothing but rotated keys was counted"
    assert reported <= 2 * 512 * reader.compressible[0].spec.entry_bytes


@pytest.mark.parametrize("kind", ["gemma2", "mistral-sliding"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_scores_that_are_written_out_are_in_blocks(kind: str, dtype: torch.dtype) -> None:
    """Softcaps and windows, for which no kernel avoids writing the scores to memory."""
    reader = read(wide(kind, dtype), make("h2o", {}))
    assert reader.cache.peak.scratch <= 2 * 512 * reader.cache.stores[0].spec.entry_bytes


def test_a_meter_counts_what_is_there_at_once() -> None:
    before = torch.ones(1000)
    with Meter() as meter:
        view = before[:500]
        doubled = before * 2  # 4,000 bytes
        part = doubled[:10]
        before.add_(1)
        del doubled
        assert meter.now == 4000  # the part keeps the whole tensor alive
        del part
        assert meter.now == 0
        _ = (view + 1).sum()
    assert meter.most == 4000


def test_passes_are_metered_where_they_grow() -> None:
    scratch = Scratch()
    seen = []
    for size in (10, 10, 10, 10, 11, 12, 12, 5, 14):
        scratch.due(size)
        seen.append(scratch.on)
    assert seen == [True, True, True, False, False, True, False, False, True]
