"""Measure what growing memory saves, compared with what IMDC's equations say.

See docs/research/schedules.md.

    python docs/research/lab/imdc.py --method snapkv --chunk-size 512 --keep 256,512,768

For each m_max, the script prints a row for memory that is fixed (FM), that grows (IM), and that
grows while chunks shrink (IMDC), with m_0 = m_max / n as in the paper. Times are processor times of
one thread, medians of rounds in which all take turns. Eq. 9 needs r, the share of the time that is
proportional to the entries attended to. In FM's time T, this share is the slope of T over m_max,
fitted to the FM runs, times (m_max + c) / T. But T_FM / T = r ((m_max + c) / (m + c) - 1) + 1 holds
with the share in IM's time T, which is smaller. The r in the table is that share, computed from the
FM runs alone.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "support"))

from imdc_equations import mean_memory, memory_sizes, time_ratio

from kvstream.evaluation.harness import IdFeed, open_reader
from kvstream.sample.document import generate
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings

SCHEDULES = ("linear", "sqrt", "square", "square-sqrt", "adaptive")
QUESTION = "What is the passkey?"


def sizes(growth: str, n: int, m_max: int) -> list[float]:
    """Return the size of memory after each step, as the mean over layers."""
    start = max(1, m_max // n)
    if growth == "square-sqrt":
        both = (memory_sizes(g, n, start, m_max) for g in ("square", "sqrt"))
        return [(a + b) / 2 for a, b in zip(*both, strict=True)]
    return [
        *map(float, memory_sizes("linear" if growth == "adaptive" else growth, n, start, m_max))
    ]


def read(session: Session, ids: list[int], run: RunSettings) -> tuple[float, int]:
    """Return the seconds of processor time, and the maximum number of entries in any head."""
    reader, _ = open_reader(session, [QUESTION], run, len(ids))
    started = time.process_time()
    for _ in reader.read(IdFeed(ids)):
        pass
    return time.process_time() - started, reader.cache.peak.tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--method", default="snapkv")
    parser.add_argument("--chunk-size", type=int, default=512)
    parser.add_argument("--keep", default="256,512,768")
    parser.add_argument("--budget", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--growths", default=",".join(SCHEDULES))
    parser.add_argument("--chunks", default="fixed,decremental")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    c, n = asked.chunk_size, asked.steps
    session = Session.open(ModelSettings(model=asked.model, threads=1))
    text = "".join(itertools.islice(generate(tokens=2 * n * c), 10**6))
    ids = session.tokenizer.encode(text)[: n * c]
    keeps = [int(k) for k in asked.keep.split(",")]
    grown = itertools.product(asked.growths.split(","), asked.chunks.split(","))
    kinds = [("fixed", "fixed"), *grown]
    taken: dict[tuple[int, str, str], list[float]] = {}
    peaks: dict[tuple[int, str, str], int] = {}
    for number in range(-1, asked.rounds):
        for m_max, (growth, chunk) in itertools.product(keeps, kinds):
            run = RunSettings(
                Budget(tokens=asked.budget), asked.method, keep=m_max, chunk_size=c,
                start=max(1, m_max // n), schedule=growth, chunk=chunk,
            )  # fmt: skip
            seconds, peak = read(session, ids, run)
            if number >= 0:  # the first round warms up
                taken.setdefault((m_max, growth, chunk), []).append(seconds)
                peaks[m_max, growth, chunk] = peak
    spent = {key: statistics.median(values) for key, values in taken.items()}
    fixed = [spent[m, "fixed", "fixed"] for m in keeps]
    slope = statistics.linear_regression(keeps, fixed).slope if len(keeps) > 1 else float("nan")
    print(f"{asked.method}, {len(ids):,} tokens, c {c}, {n} steps, {asked.rounds} rounds")
    print("m_max  memory       chunk        seconds  saved  eq. 9     r  peak less  eqs. 5-6")
    for (m_max, growth, chunk), seconds in spent.items():
        base = spent[m_max, "fixed", "fixed"]
        memory = sizes(growth, n, m_max)
        mean = mean_memory(memory)
        r = slope * (mean + c) / (base - slope * (m_max - mean))
        met = memory[-2] if chunk == "fixed" else mean
        faster = time_ratio(r, c, memory, m_max)
        less = peaks[m_max, "fixed", "fixed"] - peaks[m_max, growth, chunk]
        print(
            f"{m_max:5}  {growth:11}  {chunk:11}  {seconds:7.3f}  {1 - seconds / base:5.1%}  "
            f"{1 - 1 / faster:5.1%}  {r:4.2f}  {less:9}  {m_max - met:8.1f}"
        )


if __name__ == "__main__":
    main()
