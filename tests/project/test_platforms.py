"""The package uses no name of Python's library that a platform lacks, unless it asks first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_types_are_right_for_other_platforms(platform: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--platform", platform, "--cache-dir", tmp_path, "kvstream"],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
