"""Rounds in which every system takes its turn, and the rows of their results.

All systems take turns in every round, so that a machine that is busy for a while slows down all of
them. A ratio is the median over the rounds, of wall times and of processor times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kvstream.errors import KvstreamError, is_out_of_memory
from kvstream.evaluation.records import Record
from kvstream.evaluation.speed.systems import System, Task, run
from kvstream.evaluation.speed.timing import reading_flops, watch_memory
from kvstream.session.session import Session

MEDIANS = (
    "prefill_s", "first_token_s", "total_s", "decode_tokens_per_s", "decode_cpu_tokens_per_s",
    "cpu_s", "select_s",
    "peak_kv_tokens", "peak_kv_bytes", "peak_rss_bytes", "peak_device_bytes",
)  # fmt: skip
FACTS = (
    "load_s", "versions", "chunks", "mean_chunk", "mean_memory", "measured_tokens", "text_bytes",
    "system_info", "setting", "tried",
)  # fmt: skip
"""Values that are the same in every round."""


@dataclass
class Bench:
    """Measurements of one length after another. A system that failed does not run again."""

    session: Session
    every: Sequence[System]
    runs: int
    repeat_s: float
    """A slower system runs only once per length; a token-by-token reading is extrapolated."""
    give_up_s: float
    """A system that is expected to be slower, from the length before, does not run at all."""
    peak_flops: float
    advance: Callable[[str], None]
    out: dict[System, str] = field(default_factory=dict)
    """Systems that failed or became too slow, and why."""
    last: dict[System, tuple[int, float]] = field(default_factory=dict)
    """Tokens and seconds of the length before."""
    records: dict[System, list[Record]] = field(default_factory=dict)
    """Results of each round of this length."""
    steps: dict[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """Steps of kvstream's last reading, by the id of its case. Systems beside it repeat them."""

    def measure(self, task: Task) -> list[Record]:
        """Return a row for each system at the length of ``task.ids``."""
        tokens = len(task.ids)
        for system, (before, seconds) in self.last.items():
            estimate = seconds * (tokens / before) ** system.growth
            if estimate > self.give_up_s:
                self.out.setdefault(system, f"would take about {estimate:,.0f} s")
        self.records, self.steps = {system: [] for system in self.every}, {}
        for number in range(-1, self.runs):
            for system in self.every:
                self.advance(self._turn(system, task, warm=number < 0))
        if self.session.model.device.type == "cuda":
            self._select_exactly(task)
        for system, records in self.records.items():
            if records:
                self.last[system] = tokens, statistics.median(r["prefill_s"] for r in records)
        rows = [self._row(system, tokens, self.records[system]) for system in self.every]
        self._ratios(rows)
        return _faster_plain(rows)

    def _turn(self, system: System, task: Task, *, warm: bool) -> str:
        if system in self.out:
            return f"{system.label}: {self.out[system]}"
        records = self.records[system]
        if records and records[0]["prefill_s"] > self.repeat_s:
            return f"{system.label} takes too long to be repeated"
        if warm:
            task = replace(task, ids=task.ids[: system.kind.warm])
        if system.name != "kvstream":
            task = replace(task, steps=self.steps.get(id(system.case), ()))
            if system.case is not None and not task.steps:
                return f"{system.label}: kvstream itself failed"
        try:
            with watch_memory(self.session.model.device) as peak:
                result = run(system, task)
        except KvstreamError as error:
            self.out[system] = str(error)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self.out[system] = "out of memory"
        if system in self.out:
            return f"{system.label}: {self.out[system]}"
        if system.name == "kvstream":
            self.steps[id(system.case)] = task.steps
        if not warm:
            own = {"peak_rss_bytes": peak.rss, "peak_device_bytes": peak.device}
            records.append({**own, **result})
        return f"{system.label}: {result['prefill_s']:.2f} s"

    def _select_exactly(self, task: Task) -> None:
        """Measure the share of selection in one more reading, if there is memory for it."""
        for system, records in self.records.items():
            if system.name != "kvstream" or not records:
                continue
            share = None
            if records[0]["prefill_s"] <= self.repeat_s:
                try:
                    waiting = run(system, replace(task, exact_times=True))
                    share = waiting["select_s"] / waiting["prefill_s"]
                except (MemoryError, RuntimeError) as error:
                    if not is_out_of_memory(error):
                        raise
            for record in records:
                record["select_s"] = None if share is None else share * record["prefill_s"]

    def _row(self, system: System, tokens: int, results: Sequence[Record]) -> Record:
        model = self.session.model
        identity = {} if system.case is None else system.case.identity()
        for name in ("max_tokens", "files"):
            identity.pop(name, None)
        row: Record = {
            "bench": "speed",
            "system": system.name,
            **identity,
            "method": system.method,
            "model": self.session.model_name,
            "tokens": tokens,
            "budget": system.budget,
            "load_s": round(self.session.load_s, 3),
            **{key: _median(results, key) for key in MEDIANS},
            "runs": len(results),
            "threads": torch.get_num_threads(),
            "dtype": str(model.dtype).removeprefix("torch."),
            "kv_dtype": str(model.kv_dtype).removeprefix("torch."),
            "precision": model.precision,
            "device": model.device.type,
        }
        if system.mode:
            row["mode"] = system.mode
        if not results:
            row["error"] = self.out.get(system, "was not run")
            row["tokens_per_s"] = None
            return row
        prefill = row["prefill_s"]
        row["fastest_s"] = round(min(r["prefill_s"] for r in results), 4)
        row["tokens_per_s"] = round(tokens / prefill, 1)
        if row["select_s"] is not None:
            row["select_share"] = round(row["select_s"] / prefill, 4)
        row.update({key: results[0][key] for key in FACTS if key in results[0]})
        if "text_bytes" in row:
            row["text_mb_per_s"] = round(row["text_bytes"] / row["cpu_s"] / 1e6, 2)
        if system.name == "kvstream":
            share = reading_flops(model, self.steps[id(system.case)]) / prefill / self.peak_flops
            row["peak_share"] = round(share, 4)
        return row

    def _ratios(self, rows: list[Record]) -> None:
        """Add to each row of kvstream its seconds as a multiple of the others', round by round."""
        for index, system in enumerate(self.every):
            for rival in self.every:
                if system.name != "kvstream" or not system.beside(rival):
                    continue
                pairs = list(zip(self.records[system], self.records[rival], strict=False))
                if not pairs:
                    continue
                name = "_".join(filter(None, (rival.name, rival.mode)))
                name = name.replace(" ", "_").replace("-", "_")
                for kind, clock in (("ratio", "prefill_s"), ("cpu_ratio", "cpu_s")):
                    ratio = statistics.median(a[clock] / b[clock] for a, b in pairs)
                    rows[index][f"{kind}_to_{name}"] = round(ratio, 4)


def _median(results: Sequence[Record], key: str) -> Any:
    values = [r[key] for r in results if r.get(key) is not None]
    if not values:
        return None
    middle = statistics.median(values)
    return round(middle, 6) if isinstance(middle, float) else middle


def _faster_plain(rows: list[Record]) -> list[Record]:
    """Keep the faster of the two modes of a plain cache; its row names the other one."""
    plain = [r for r in rows if r["system"] == "transformers"]
    plain.sort(key=lambda r: r["prefill_s"] if r["runs"] else float("inf"))
    for slower in plain[1:]:
        value = slower["prefill_s"] if slower["runs"] else slower["error"]
        plain[0]["other_mode"] = {slower["mode"]: value}
        rows.remove(slower)
    for row in rows:
        for kind in ("ratio", "cpu_ratio"):
            keys = [k for k in row if k.startswith(f"{kind}_to_transformers")]
            largest = max((row.pop(k) for k in keys), default=None)
            if largest is not None:
                row[f"{kind}_to_transformers"] = largest
    return rows
