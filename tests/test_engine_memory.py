"""The bound as the operating system sees it, not only by the engine's own count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
MARGIN = 1.3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("method", ["infinipot"])
def test_the_process_grows_by_the_budget_and_little_more(method: str) -> None:
    """Twenty budgets of a model whose every token takes a megabyte; activations counted too."""
    done = subprocess.run(
        [sys.executable, str(HERE / "fat_main.py"), method],
        capture_output=True, text=True, timeout=240, cwd=HERE.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["token"] == 2**20
    assert 0.9 * 128 < seen["peak_tokens"] <= 128
    assert 0.8 * seen["budget"] < seen["grown_peak"], "the measurement sees nothing"
    assert seen["grown"] <= MARGIN * seen["budget"]
    assert seen["grown_peak"] <= MARGIN * seen["budget"]
