"""Long runs with pauses and kills, e.g. ``KVSTREAM_SOAK_MINUTES=60 pytest -m long``."""

from __future__ import annotations

import os

import pytest
from soak import PACE, Plan, growth, soak

MINUTES = float(os.environ.get("KVSTREAM_SOAK_MINUTES", "5"))


@pytest.mark.long
@pytest.mark.timeout(180 * MINUTES + 1200)
@pytest.mark.parametrize("method", ["infinipot", "h2o"])
def test_pauses_and_kills_leave_no_trace(method: str) -> None:
    plan = Plan(MINUTES, int(PACE * MINUTES), 60, 2048, 512, method, seed=7)
    told = soak(plan)
    assert told["failures"] == []
    assert told["kills"]


def test_a_process_that_grows_is_seen() -> None:
    flat = [{"rss_bytes": 2**28}] * 64
    assert growth(flat) == 0
    assert growth([{"rss_bytes": 2**28 + i * 2**20} for i in range(64)]) == 32
    assert growth(flat[:20]) is None
