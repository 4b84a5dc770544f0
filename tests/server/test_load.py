"""Many clients at once: no request is lost, the bound holds, and the process does not grow."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs the extra test")

from serve_load import measure

GROWTH = 1.05
"""Limit of the RSS in the last tenth of a long run, as a multiple of that in the second tenth."""


def test_requests_of_eight_clients_at_once(memories, warm) -> None:
    found = measure(
        budget="300", clients=8, requests=16, minutes=0, parallel=3, quiet=0, lines=8,
        memories=memories, program=[*warm, "-mkvstream"],
    )  # fmt: skip
    assert (found["sent"], found["answered"], found["lost"]) == (16, 16, 0), found
    assert found["kv_bytes"]["times_over"] == 0
    assert 0 < found["kv_bytes"]["peak"] <= found["kv_bytes"]["bound"]
    assert found["requests"]["active"] == found["requests"]["waiting"] == 0
    assert found["exit_code"] == 0


@pytest.mark.long
@pytest.mark.timeout(6000)
def test_an_hour_of_load() -> None:
    found = measure(budget="1k", clients=8, requests=0, minutes=60, parallel=2, quiet=20)
    assert found["lost"] == 0, found
    assert found["kv_bytes"]["times_over"] == 0
    assert found["rss_mib"]["last_tenth"] < GROWTH * found["rss_mib"]["second_tenth"], found
    assert found["cache"]["bytes"] <= found["cache"]["bound"]
