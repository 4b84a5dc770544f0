"""Read through a pipe that pauses, with kills; compare the result with an undisturbed run.

    python tests/support/soak.py --minutes 60
    python tests/support/soak.py --minutes 5 --seed 2 --method h2o

A generated text goes through a pipe into `kvstream remember` twice. The first time it comes as fast
as it is read. The second time it takes the minutes, in pieces of random size with pauses between
them, and the process is killed (SIGKILL) now and then and restarted from its checkpoint. Most of
the time it computes nothing. The script prints one line of JSON. The exit code is 1 if the result
differs from the undisturbed run, if a budget was exceeded, or if a process grew. Process sizes need
Linux's /proc; elsewhere they are left out.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kvstream.sample.document import generate

ROOT = Path(__file__).resolve().parents[2]
GROWTH = 16.0
"""MiB that a process may grow from the second quarter of its life to the last one."""
PACE = 6000
"""Tokens that arrive in a minute. One core reads them in seconds."""
PIECES = (1, 7, 300, 4000, 30_000, 100_000)
"""Sizes in bytes of the pieces that the writer sends."""
PAUSES = (0.05, 1.0, 10.0)
"""Mean pauses in seconds when the writer is ahead of its time."""


@dataclass(frozen=True)
class Plan:
    """Settings of the two runs."""

    minutes: float
    tokens: int
    kill_every: float
    """Mean seconds between two kills."""
    every: int
    """Tokens between two checkpoints."""
    budget: int
    method: str
    seed: int


class Writer(threading.Thread):
    """Sends a text into a pipe, at any moment no further than `pace` allows."""

    def __init__(self, pipe: Any, data: bytes, seed: str, pace: Any = None) -> None:
        super().__init__(daemon=True)
        self.pipe, self.data, self.pace = pipe, data, pace
        self.random = random.Random(seed)
        self.longest = 0.0
        """Seconds of the longest pause so far."""

    def run(self) -> None:
        at, waited = 0, time.monotonic()
        try:
            while at < len(self.data):
                size = self.random.choice(PIECES)
                allowed = len(self.data) if self.pace is None else self.pace()
                if at >= allowed:
                    time.sleep(self.random.expovariate(1 / self.random.choice(PAUSES)))
                    continue
                self.longest = max(self.longest, time.monotonic() - waited)
                self.pipe.write(self.data[at : min(at + size, allowed)])
                self.pipe.flush()
                at, waited = min(at + size, allowed), time.monotonic()
            self.pipe.close()
        except (BrokenPipeError, ValueError):  # the reader was killed
            pass


def remember(plan: Plan, folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start `kvstream remember` of standard input, into a file of that name."""
    command = [
        sys.executable, "-m", "kvstream", "remember", "-", "-o", str(folder / f"{name}.kvs"),
        "--budget", str(plan.budget), "--method", plan.method, "--threads", "1", "--json",
        "--progress", "none", "--checkpoint", str(folder / f"{name}.ckpt"),
        "--checkpoint-every", str(plan.every), "--stats", str(folder / f"{name}.stats"),
    ]  # fmt: skip
    pipe = subprocess.PIPE
    (folder / f"{name}.stats").unlink(missing_ok=True)
    with (folder / f"{name}.err").open("wb") as errors:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, cwd=ROOT)


def steps(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the steps that the latest process reported; a kill may cut the last line."""
    path = folder / f"{name}.stats"
    told = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            told.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return [step for step in told if step["event"] == "step"]


def result(process: subprocess.Popen[bytes], folder: Path, name: str) -> dict[str, Any]:
    """Return what a process printed, once it ends. Raises RuntimeError if it fails."""
    assert process.stdout is not None
    out = process.stdout.read()
    if process.wait():
        raise RuntimeError((folder / f"{name}.err").read_text()[-2000:])
    return json.loads(out)  # type: ignore[no-any-return]


def answer(folder: Path, name: str, question: str) -> dict[str, Any]:
    """Return the result of `kvstream ask --memory`."""
    command = [
        sys.executable, "-m", "kvstream", "ask", "--memory", str(folder / f"{name}.kvs"), question,
        "--threads", "1", "--json", "--progress", "none",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, cwd=ROOT, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def growth(life: list[dict[str, Any]]) -> float | None:
    """Return the MiB that a process grew from the second quarter of its steps to the last one.

    Returns None if it reported too few steps.
    """
    sizes = [step["rss_bytes"] for step in life if step["rss_bytes"]]
    quarter = len(sizes) // 4
    if quarter < 8:
        return None
    return float(median(sizes[-quarter:]) - median(sizes[quarter : 2 * quarter])) / 2**20


def disturbed(plan: Plan, data: bytes, folder: Path) -> dict[str, Any]:
    """Run with pauses and kills; return the program's result and what happened on the way."""
    draw = random.Random(plan.seed)
    began, seconds = time.monotonic(), 60 * plan.minutes

    def pace() -> int:
        return int(len(data) * min(1.0, (time.monotonic() - began) / seconds))

    kills, lives, longest, told = 0, [], 0.0, {}
    while not told:
        process = remember(plan, folder, "disturbed")
        writer = Writer(process.stdin, data, f"{plan.seed} {kills}", pace)
        writer.start()
        left = seconds - (time.monotonic() - began)
        wait = draw.expovariate(1 / plan.kill_every)
        if wait < left:
            try:
                process.wait(wait)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
        if process.returncode != -9:
            told = result(process, folder, "disturbed")
        writer.join()
        longest = max(longest, writer.longest)
        lives.append(steps(folder, "disturbed"))
    seen = [step for life in lives for step in life]
    grown = [g for life in lives if (g := growth(life)) is not None]
    return {
        "told": told,
        "seconds": round(time.monotonic() - began),
        "kills": kills,
        "resumed_at": [life[0]["seen"] for life in lives[1:] if life],
        "longest_pause_s": round(longest, 1),
        "peak_kv_tokens": max(step["peak_tokens"] for step in seen),
        "peak_rss_mib": round(max(step["rss_bytes"] or 0 for step in seen) / 2**20),
        "grown_mib": round(max(grown), 1) if grown else None,
    }


def soak(plan: Plan) -> dict[str, Any]:
    """Run both; return what was measured, and under ``failures`` what must not happen."""
    text = "".join(generate(tokens=plan.tokens, seed=plan.seed))
    data = text.encode()
    question = "What is the passkey for the old mill?"
    with tempfile.TemporaryDirectory(prefix="kvstream-soak-") as name:
        folder = Path(name)
        process = remember(plan, folder, "whole")
        Writer(process.stdin, data, "").start()
        whole = result(process, folder, "whole")
        first = steps(folder, "whole")
        then = disturbed(plan, data, folder)
        answers = [answer(folder, name, question) for name in ("whole", "disturbed")]
    told = then.pop("told")
    peaks = [then["peak_kv_tokens"], *(a["peak"]["kv_tokens"] for a in (told, *answers))]
    failures = [
        what
        for what, wrong in {
            "the memory is another": told["memory"]["sha256"] != whole["memory"]["sha256"],
            "the answer is another": answers[0]["answer"] != answers[1]["answer"],
            "the budget was passed": max(peaks) > told["budget"]["tokens"],
            "a process grew": (then["grown_mib"] or 0) > GROWTH,
        }.items()
        if wrong
    ]
    return {
        **{k: getattr(plan, k) for k in ("minutes", "method", "budget", "seed")},
        "tokens": told["tokens"]["read"],
        **then,
        "undisturbed_rss_mib": round(max(s["rss_bytes"] or 0 for s in first) / 2**20),
        "sha256": told["memory"]["sha256"],
        "undisturbed_sha256": whole["memory"]["sha256"],
        "failures": failures,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--tokens", type=int, help=f"of the text; default: {PACE:,} a minute")
    parser.add_argument("--kill-every", type=float, default=90, help="seconds, on the average")
    parser.add_argument("--checkpoint-every", type=int, default=4096)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--method", default="infinipot")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    plan = Plan(
        minutes=given.minutes,
        tokens=given.tokens or int(PACE * given.minutes),
        kill_every=given.kill_every,
        every=given.checkpoint_every,
        budget=given.budget,
        method=given.method,
        seed=given.seed,
    )
    told = soak(plan)
    print(json.dumps(told))
    return 1 if told["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
