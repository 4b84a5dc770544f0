"""Malformed and hostile requests cause no status 500, no hang and no leak of others' texts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs the extra test")

from serve_attack import SECONDS, Attack, Neighbor


def attacked(server, count: int, seed: int) -> None:
    with Neighbor(server.url) as neighbor:
        attack = Attack(server.url, seed)
        attack.run(count)
    assert not attack.wrong, attack.wrong[:5]
    assert attack.slowest < SECONDS
    assert {"200", "400", "404", "raw"} <= set(attack.statuses)
    assert (neighbor.asked > 0, neighbor.wrong) == (True, 0)
    server.wait(lambda: not server.busy)
    assert server.service.bound.working == 0


def test_no_hostile_request_does_harm(server) -> None:
    attacked(server, 150, 1)


@pytest.mark.long
def test_no_hostile_request_does_harm_at_length(server) -> None:
    attacked(server, 2000, 2)


def schemathesis(server, examples: int, folder: Path) -> int:
    """Send requests generated from the server's OpenAPI description. Return their number."""
    pytest.importorskip("schemathesis", reason="needs the extra test")
    done = subprocess.run(
        [
            sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()",
            "run", f"{server.url}/openapi.json", "--checks", "not_a_server_error",
            "--max-examples", str(examples), "--seed", "1", "--no-color", "--request-timeout", "60",
        ],
        capture_output=True, text=True, timeout=280 + examples, cwd=folder, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    found = re.search(r"([\d,]+) generated", done.stdout)
    assert found, done.stdout
    return int(found[1].replace(",", ""))


@pytest.mark.long
def test_schemathesis_finds_no_server_error(server, tmp_path) -> None:
    assert schemathesis(server, 300, tmp_path) >= 600
