"""How likely memory makes the right words: cases, and the exact test of McNemar."""

from __future__ import annotations

import argparse
import itertools
from importlib import import_module

import pytest

from kvstream.settings import Budget


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (0, 5), (3, 1), (4, 4), (7, 2)])
def test_mcnemar_counts_the_ways_to_divide_the_differences(lost: int, gained: int) -> None:
    ways = [*itertools.product((-1, 1), repeat=lost + gained)]
    as_far = sum(abs(sum(way)) >= abs(lost - gained) for way in ways)
    assert import_module("likelihood").mcnemar(lost, gained) == pytest.approx(as_far / len(ways))


def test_a_case_names_method_settings_schedule_and_budget() -> None:
    given = argparse.Namespace(
        budget=512, keep=None, start=None, schedule="fixed", chunk="fixed", chunk_size=None
    )
    case_of = import_module("likelihood").case_of
    run = case_of("snapkv:window=16+sinks=2@linear^2048", given)
    assert (run.method, run.set) == ("snapkv", {"window": "16", "sinks": "2"})
    assert (run.schedule, run.budget) == ("linear", Budget(tokens=2048))
    run = case_of("snapkv", given)
    assert (run.schedule, run.budget) == ("fixed", Budget(tokens=512))
