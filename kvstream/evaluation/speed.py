"""Seconds and memory of reading: methods beside a floor and beside what people use instead.

All get the same token ids, in turns, round after round, so that a machine which is busy for a
while slows all of them. A ratio is the median of the ratios within a round; beside it stands that
of the processor times, which what else runs on the machine disturbs less.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from kvstream.errors import UsageError
from kvstream.evaluation.floor import FLOOR, SDPA, Clock, read_floor, read_plain, wait
from kvstream.evaluation.reading import IdFeed, open_reader
from kvstream.evaluation.records import Record
from kvstream.evaluation.sweep import Case
from kvstream.session import Session

SYSTEMS = ("floor", "floor-sdpa", "transformers")
QUESTION = "What is the passkey?"
PLAIN_CHUNK = 2048
"""Tokens a forward pass of the plain cache that is read in chunks."""
SAMPLE_SECONDS = 0.02


@dataclass(frozen=True)
class System:
    """Something that reads."""

    name: str
    """``kvstream``, ``floor``, ``floor-sdpa`` or ``transformers``."""
    case: Case | None
    """What kvstream does, and whose sizes the floor takes."""
    mode: str | None = None
    """How transformers reads: ``one shot`` or ``chunked``."""

    @property
    def method(self) -> str | None:
        return self.case.name if self.case is not None else None


def systems(cases: Sequence[Case], against: Sequence[str]) -> list[System]:
    """Every case with its floors behind it, then the plain caches."""
    for name in against:
        if name not in SYSTEMS:
            raise UsageError(f"Unknown system {name!r}; choose among {', '.join(SYSTEMS)}.")
    out = []
    for case in cases:
        out.append(System("kvstream", case))
        out += [System(name, case) for name in against if name != "transformers"]
    if "transformers" in against:
        out += [System("transformers", None, mode) for mode in ("one shot", "chunked")]
    return out


def measure(
    session: Session,
    ids: Sequence[int],
    every: Sequence[System],
    runs: int,
    limit_s: float,
    advance: Callable[[str], None],
) -> list[Record]:
    """A row for each system; those slower than `limit_s` are run once, and not at all after that.

    A first round, which is not counted, warms up libraries and caches of the processor.
    """
    taken: dict[int, list[Record]] = {index: [] for index in range(len(every))}
    warm = ids[: min(len(ids), 4096)]
    for number in range(-1, runs):
        steps: list[tuple[int, int]] = []
        for index, system in enumerate(every):
            known = taken[index]
            if known and known[0]["prefill_s"] > limit_s:
                advance(f"{_label(system)} takes too long to be repeated")
                continue
            with _memory() as peak:
                result = _run(session, ids if number >= 0 else warm, system, steps)
            result.update(peak_rss_bytes=peak.rss, peak_device_bytes=peak.device)
            if system.name == "kvstream":
                steps = result.pop("steps")
            if number >= 0:
                taken[index].append(result)
            advance(f"{_label(system)}: {result['prefill_s']:.2f} s")
    rows = [_row(session, len(ids), s, taken[i]) for i, s in enumerate(every)]
    _ratios(rows, every, taken)
    return _faster_plain(rows)


def _label(system: System) -> str:
    return " ".join(filter(None, (system.name, system.method, system.mode)))


def _run(
    session: Session, ids: Sequence[int], system: System, steps: list[tuple[int, int]]
) -> Record:
    if system.name == "kvstream":
        assert system.case is not None
        return _read(session, ids, system.case)
    if system.name == "transformers":
        chunk = PLAIN_CHUNK if system.mode == "chunked" else None
        spent, size = read_plain(session.model, ids, chunk)
        return {
            "prefill_s": spent.wall,
            "cpu_s": spent.cpu,
            "peak_kv_tokens": len(ids),
            "peak_kv_bytes": size,
        }
    name = FLOOR if system.name == "floor" else SDPA
    spent = read_floor(session.model, ids, steps, name)
    held, most = 0, 0
    for chunk, memory in steps:
        most, held = max(most, held + chunk), min(memory, held + chunk)
    each = sum(spec.entry_bytes for spec in session.model.layers)
    return {
        "prefill_s": spent.wall,
        "cpu_s": spent.cpu,
        "peak_kv_tokens": most,
        "peak_kv_bytes": most * each,
    }


def _read(session: Session, ids: Sequence[int], case: Case) -> Record:
    """One reading by the engine, without the text's way to ids, which others do not have either."""
    reader, _ = open_reader(session, [QUESTION], case.run, len(ids))
    reader.begin()
    started = Clock.now()
    reports = list(reader.read(IdFeed(ids)))
    wait(session.model.device)
    spent = Clock.now() - started
    return {
        "prefill_s": spent.wall,
        "cpu_s": spent.cpu,
        "select_s": reader.select_seconds,
        "peak_kv_tokens": reader.cache.peak.tokens,
        "peak_kv_bytes": reader.cache.peak.bytes,
        "scratch_bytes": reader.cache.peak.scratch,
        "budget": reader.sizes.budget,
        "steps": [(r.chunk, max(r.memory)) for r in reports],
        "chunks": len(reports),
        "mean_chunk": round(len(ids) / len(reports)),
        "mean_memory": round(statistics.fmean(max(r.memory) for r in reports)),
    }


def _row(session: Session, tokens: int, system: System, results: Sequence[Record]) -> Record:
    def median(key: str) -> Any:
        values = [r[key] for r in results if r.get(key) is not None]
        return statistics.median(values) if values else None

    prefill = median("prefill_s")
    identity = {} if system.case is None else system.case.identity()
    identity.pop("max_tokens", None)
    budget = results[0].get("budget") or identity.get("budget")
    row = {
        "bench": "speed",
        "system": system.name,
        **identity,
        "method": system.method,
        "model": session.model_name,
        "tokens": tokens,
        "budget": budget,
        "load_s": round(session.load_s, 3),
        "prefill_s": round(prefill, 4),
        "fastest_s": round(min(r["prefill_s"] for r in results), 4),
        "cpu_s": round(median("cpu_s"), 4),
        "select_s": median("select_s"),
        "tokens_per_s": round(tokens / prefill, 1),
        "peak_kv_tokens": median("peak_kv_tokens"),
        "peak_kv_bytes": median("peak_kv_bytes"),
        "peak_rss_bytes": median("peak_rss_bytes"),
        "peak_device_bytes": median("peak_device_bytes"),
        "runs": len(results),
        "threads": torch.get_num_threads(),
        "dtype": str(session.model.layers[0].dtype).removeprefix("torch."),
    }
    if system.mode:
        row["mode"] = system.mode
    for key in ("chunks", "mean_chunk", "mean_memory"):
        if results[0].get(key) is not None:
            row[key] = results[0][key]
    return row


def _ratios(rows: list[Record], every: Sequence[System], taken: dict[int, list[Record]]) -> None:
    """To each row of kvstream its seconds as a multiple of those that follow it, round by round."""
    for index, system in enumerate(every):
        if system.name != "kvstream":
            continue
        for other, rival in enumerate(every):
            if rival.case not in (None, system.case) or other == index:
                continue
            if rival.name == "kvstream":
                continue
            name = "_".join(filter(None, (rival.name, rival.mode)))
            name = name.replace(" ", "_").replace("-", "_")
            for kind, clock in (("ratio", "prefill_s"), ("cpu_ratio", "cpu_s")):
                pairs = zip(taken[index], taken[other], strict=False)
                ratio = statistics.median(a[clock] / b[clock] for a, b in pairs)
                rows[index][f"{kind}_to_{name}"] = round(ratio, 4)


def _faster_plain(rows: list[Record]) -> list[Record]:
    """Of the two ways of a plain cache the faster one counts; the other is named in its row."""
    plain = sorted((r for r in rows if r["system"] == "transformers"), key=lambda r: r["prefill_s"])
    for slower in plain[1:]:
        plain[0]["other_mode"] = {slower["mode"]: slower["prefill_s"]}
        rows.remove(slower)
    if plain:
        for row in rows:
            for kind in ("ratio", "cpu_ratio"):
                keys = [k for k in row if k.startswith(f"{kind}_to_transformers")]
                largest = max((row.pop(k) for k in keys), default=None)
                if largest is not None:
                    row[f"{kind}_to_transformers"] = largest
    return rows


@dataclass
class Peak:
    """The most memory seen while something ran."""

    rss: int = 0
    device: int | None = None


@contextmanager
def _memory() -> Iterator[Peak]:
    """Watches the process from a thread; on a GPU its allocator counts."""
    import psutil

    process, peak, stop = psutil.Process(os.getpid()), Peak(), threading.Event()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()

    def watch() -> None:
        while True:
            peak.rss = max(peak.rss, process.memory_info().rss)
            if stop.wait(SAMPLE_SECONDS):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()
        if cuda:
            peak.device = torch.cuda.max_memory_allocated()
