"""The program is killed while its workers read; the same command then continues."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvstream.api.memory import inspect
from kvstream.sample.document import generate

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 280


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_killed_driver_leaves_whole_files_and_no_process(
    tmp_path: Path, kvstream: Callable[..., Any]
) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'kvstream[ray]'")
    texts, into, alone = (tmp_path / name for name in ("texts", "spread", "alone"))
    texts.mkdir()
    for number in range(8):
        (texts / f"{number}.txt").write_text("".join(generate(tokens=2000, seed=number)))
    command = ["remember", str(texts), "--each", "--budget", "256", "--threads", "1", "-q", "-o"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvstream", *command, str(into), "--workers", "2"], cwd=ROOT
    )
    began = time.monotonic()
    while not (into.exists() and list(into.glob("*.kvs"))):
        assert process.poll() is None
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.05)
    behind = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(behind, timeout=PATIENCE)
    assert not alive, "Ray's processes end with the one that started them"
    whole = {path.name: path.stat().st_mtime_ns for path in into.glob("*.kvs")}
    assert 1 <= len(whole) < 8
    assert kvstream(*command, str(into), timeout=PATIENCE).code == 0
    assert kvstream(*command, str(alone), timeout=PATIENCE).code == 0
    assert {p.name for p in into.iterdir()} == {p.name for p in alone.iterdir()}
    for path in into.iterdir():
        assert inspect(path).digest == inspect(alone / path.name).digest
        if path.name in whole:
            assert path.stat().st_mtime_ns == whole[path.name], "it was read again"
