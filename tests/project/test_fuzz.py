"""A small, fixed part of what ``python tests/support/fuzz.py`` does. ``-m long`` runs more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from fuzz import GROUPS, fuzz
from fuzz_documents import MISSING
from fuzz_parsers import altered
from make_documents import epub
from models import bounded, tokens

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.errors import UsageError
from kvstream.input.sources import open_sources
from kvstream.methods.registry import available
from kvstream.settings import Budget, RunSettings, count_of


@pytest.mark.parametrize(("group", "cases"), [("parsers", 300), ("engine", 15)])
def test_no_crash_no_hang_and_no_bound_passed(group: str, cases: int) -> None:
    torch.set_num_threads(1)
    assert fuzz(GROUPS[group], range(cases), seed=1) == 0


@pytest.mark.skipif(MISSING is not None, reason="needs kvstream[documents]")
def test_documents_are_read_or_refused() -> None:
    assert fuzz(["documents"], range(100), seed=1) == 0


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("group", "cases"), [("parsers", 100_000), ("engine", 3000)])
def test_the_same_for_longer(group: str, cases: int) -> None:
    assert fuzz(GROUPS[group], range(cases), seed=random.randrange(10**6)) == 0


def test_a_target_that_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    import fuzz as module

    def broken(rng: random.Random, folder: Path) -> None:
        if rng.random() < 0.5:
            raise ZeroDivisionError

    def endless(rng: random.Random, folder: Path) -> None:
        while True:
            rng.random()

    monkeypatch.setitem(module.TARGETS, "broken", broken)
    monkeypatch.setitem(module.TARGETS, "endless", endless)
    monkeypatch.setattr(module, "LIMIT", 0.05)
    assert 0 < fuzz(["broken"], range(20), seed=0) < 20
    assert fuzz(["endless"], range(1), seed=0) == 1


def test_alterations_alter() -> None:
    rng = random.Random(0)
    assert len({altered(rng, b"0123456789") for _ in range(100)}) > 50


# Defects that fuzzing found.


def test_a_budget_of_a_unit_that_is_none() -> None:
    with pytest.raises(UsageError, match="not a budget"):
        Budget.parse("5 ib")
    assert Budget.parse("5 b").bytes == 5


def test_a_number_that_no_machine_has() -> None:
    with pytest.raises(UsageError, match="400 digits"):
        count_of("9" * 400)
    with pytest.raises(UsageError):
        Budget.parse("9" * 400 + "GiB")


def test_full_ends_an_answer_where_the_budget_is_full_and_loses_nothing() -> None:
    model = bounded("llama")
    sizes = BudgetSplit(128, 0, 0, 8, 4)
    reader = Reader(model, available()["full"](), RunSettings(), sizes, [], estimate=116)
    reader.step(Chunk(tokens(116), 0), last=True)
    said = list(reader.answer(tokens(8, seed=1), lambda x: int(x.argmax()), frozenset(), 50))
    assert reader.stopped == "budget"
    assert len(said) == 128 - 116 - 8 + 1
    assert reader.retained().tolist() == list(range(116))


def test_a_temperature_that_is_no_number() -> None:
    with pytest.raises(UsageError, match="temp must be 0 or more"):
        RunSettings(temp=float("nan"))


@pytest.mark.skipif(MISSING is not None, reason="needs kvstream[documents]")
def test_a_chapter_in_utf_16_is_not_left_out(tmp_path: Path) -> None:
    path = tmp_path / "book.epub"
    path.write_bytes(epub(["<html><body><p>It rained.</p></body></html>".encode("utf-16")]))
    assert "".join(block.text for block in open_sources([str(path)])).strip() == "It rained."
