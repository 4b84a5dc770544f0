"""Measure what Ray's workers cost.

    python docs/research/lab/workers.py WHAT FOLDER

The script prints what WHAT names:

driver    the driver's RAM while it goes through 10,000 documents at 200 a second, with two workers
          that wait instead of reading: its own share of a run
fast      the same with workers that do not wait either
overhead  processor time of one worker, Ray's processes and the driver, compared with that of the
          readings
two       processor time of the readings by one worker and by two
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray

from kvstream.collection.documents import documents_in
from kvstream.collection.job import Job, Part
from kvstream.collection.running import Workers, run
from kvstream.collection.task import Task
from kvstream.events import DocumentDone, DocumentStarted, Outcome
from kvstream.run.request import Request
from kvstream.sample.document import generate
from kvstream.settings import Budget, ModelSettings, RunSettings

QUESTION = "Who opened the first school in Drerloton?"
DOCUMENTS = 10_000
MARKS = (100, 200, 500, 1000, 2000, 5000, 10_000)


class Nothing:
    """Reads a document in no time."""

    pause = 0.0

    def __init__(self, job: Job) -> None:
        pass

    def read(self, task: Task, path: str | None = None) -> Outcome:
        time.sleep(self.pause)
        record = {
            "command": "ask",
            "method": "none",
            "question": QUESTION,
            "answer": "An answer of some words. " * 4,
            "tokens": {"read": 10_000, "retained": 1_000, "evicted": 9_000},
            "budget": {"tokens": 1024, "bytes": 2**20},
            "peak": {"kv_tokens": 1024, "kv_bytes": 2**20},
            "citations": [{"text": "A sentence of the text. " * 5, "weight": 0.1}] * 10,
            "support": {"focus": 0.5},
            "warnings": [],
        }
        return DocumentDone(task.document.name, (record,), None)


class Slow(Nothing):
    """Reads slowly: two of them read 200 documents a second."""

    pause = 0.006


def job() -> Job:
    """Return a job: a question under a budget of 1,024 with pocket, on one thread."""
    settings = RunSettings(budget=Budget(tokens=1024), max_tokens=16)
    request = Request((QUESTION,), run=settings)
    return Job(ModelSettings(threads=1), (Part("infinipot", request),))


def driver(folder: Path, reader: type[Nothing] = Slow) -> None:
    """Print the resident memory of the driver at some numbers of documents."""
    from kvstream.reporters.tally import Tally

    for number in range(DOCUMENTS):
        (folder / f"{number:05}.txt").write_text(f"Document {number}.\n" * 4)
    documents, _ = documents_in([str(folder)])
    process, tally = psutil.Process(), Tally()
    worked = 0.0
    began, marks, first = 0.0, list(MARKS), 0
    outcomes = run(
        job(), documents, workers=Workers(2, open_reader=reader), tell=tally.add,
        interrupted=lambda: False,
    )  # fmt: skip
    for number, outcome in enumerate(outcomes, 1):
        tally.add(outcome)
        began = began or time.monotonic()
        worked = worked or time.process_time()
        if marks and number == marks[0]:
            marks.pop(0)
            held = process.memory_info().rss
            first = first or held
            speed = number / (time.monotonic() - began)
            change = 100 * (held / first - 1)
            cost = 1000 * (time.process_time() - worked) / number
            told = f"{number:>6,}  {held / 2**20:7.1f} MiB  {change:+.1f}%"
            print(f"{told}  {speed:,.0f}/s  {cost:.2f} ms of the driver each", flush=True)
    assert tally.done == DOCUMENTS


def fast(folder: Path) -> None:
    """Run the driver with workers that do not wait, as fast as Ray goes."""
    driver(folder, Nothing)


def texts(folder: Path, count: int, tokens: int) -> list[Any]:
    """Write and return documents of about `tokens` tokens."""
    for seed in range(count):
        (folder / f"{seed}.txt").write_text("".join(generate(tokens=tokens, seed=seed)))
    return documents_in([str(folder)])[0]


def measured(documents: list[Any], workers: int) -> dict[str, float]:
    """Return the processor time from the first document on, of the readings and of everything."""
    place = {"readings": 0.0, "tokens": 0.0, "wall": 0.0}
    by_worker: dict[int, float] = {}
    reads: dict[str, int] = {}
    before: dict[int, float] = {}
    wall = 0.0

    def tell(event: Any) -> None:
        nonlocal before, wall
        if isinstance(event, DocumentStarted):
            reads[event.name] = event.process
            if event.process not in by_worker:
                # Loading the model does not count.
                by_worker[event.process] = 0.0
                before[event.process] = spent(event.process)
            if not wall:
                wall = time.monotonic()
                before |= {p: spent(p) for p in others() if p not in by_worker}

    for outcome in run(
        job(), documents, workers=Workers(workers), tell=tell, interrupted=lambda: False
    ):
        assert isinstance(outcome, DocumentDone), outcome
        by_worker[reads[outcome.name]] += outcome.cpu_seconds
        place["readings"] += outcome.cpu_seconds
        place["tokens"] += outcome.tokens
        place["wall"] = time.monotonic() - wall
        grown = {p: spent(p) - before[p] for p in before}
        place["driver"] = grown.pop(psutil.Process().pid)
        place["workers"] = sum(grown.pop(p) for p in by_worker)
        place["ray"] = sum(max(0.0, each) for each in grown.values())
        place["slowest"] = max(by_worker.values())
    return place


def others() -> list[int]:
    """Return the ids of the driver and of Ray's processes, idle workers included."""
    me = psutil.Process()
    return [me.pid, *(child.pid for child in me.children(recursive=True))]


def spent(process: int) -> float:
    """Return the processor time of a process so far."""
    try:
        times = psutil.Process(process).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


def overhead(folder: Path, workers: int = 1, count: int = 4) -> dict[str, float]:
    """Print the cost beside the readings: relative to them, and of Ray as a share of a core."""
    found = measured(texts(folder, count, 10_000), workers)
    own = found["driver"] + found["workers"] - found["readings"]
    print(f"{workers} at once:", {name: round(value, 2) for name, value in found.items()})
    print(
        f"driver and workers beside the readings: {100 * own / found['readings']:.2f}%; "
        f"Ray's other processes: {100 * found['ray'] / found['wall']:.2f}% of a core",
        flush=True,
    )
    return found


def two(folder: Path) -> None:
    """Compare one worker with two."""
    one, both = overhead(folder), overhead(folder, 2)
    times = one["readings"] / both["slowest"]
    print(f"by processor time {times:.2f} times, by the clock {one['wall'] / both['wall']:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measures: dict[str, Callable[[Path], object]] = {
        "driver": driver,
        "fast": fast,
        "overhead": overhead,
        "two": two,
    }
    parser.add_argument("what", choices=measures)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    measures[options.what](options.folder)
