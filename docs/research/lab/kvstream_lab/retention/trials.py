"""Measure what methods keep of texts, step by step: a trial per text and case, a row per case.

The measures are those of four papers: the share of the most attended tokens that memory holds
(InfiniPot, figures 2 and 3), how much attention memory gets and how much of it stays (IMDC, figures
1, 6 and 7), its age and spread (BumbleBee, figures 6 and 7; Cascading KV Cache, figure 10).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial

from kvstream.errors import SourceError, UsageError
from kvstream.evaluation.confidence import mean_interval
from kvstream.evaluation.harness import open_reader
from kvstream.evaluation.perplexity import Text, text_trials
from kvstream.evaluation.records import CASE_KEYS, Record, Trial, grouped
from kvstream.evaluation.sweep import Case
from kvstream.methods.registry import available
from kvstream.session.session import Session
from kvstream_lab.retention.watch import MEASURES, Watch, mean
from kvstream_lab.retention.whole import Whole

SUMMARIZED = (*MEASURES, "chance")


def check(cases: Sequence[Case]) -> None:
    """Raise UsageError for a method that evicts nothing."""
    methods = available()
    for name in dict.fromkeys(case.run.method for case in cases):
        if not methods[name].evicts:
            evicting = ", ".join(n for n, method in methods.items() if method.evicts)
            raise UsageError(
                f"{name} evicts nothing, so there is nothing to measure; choose from {evicting}."
            )


def trials(
    session: Session,
    paths: Sequence[str],
    cases: Sequence[Case],
    limit: int | None,
    question: str | None,
) -> Iterator[Trial]:
    """Yield one trial for each text and case."""
    run = partial(_run, session, question)
    return text_trials("retention", session, paths, cases, limit, run, question=question)


def _run(session: Session, question: str | None, text: Text, case: Case) -> Record:
    ids = text.ids
    if not ids:
        raise SourceError(f"{text.path} has no text; leave it out.")
    reader, prompt = open_reader(session, [question] if question else [], case.run, len(ids))
    tail = prompt.tail(question) if question else []
    whole = Whole(session.model, prompt.head, len(ids) + len(tail))
    watch = Watch(ids, reader, whole, tail)
    for _ in reader.read(watch):
        watch.after_step()
    return {"tokens": len(ids), **watch.record()}


def rows(records: Sequence[Record]) -> list[Record]:
    """Return a row for each case: means over the texts, in total and by step."""
    return [_row(group) for group in grouped(records)]


def _row(group: list[Record]) -> Record:
    most = max(len(r["steps"]) for r in group)
    by_step = [[r["steps"][i] for r in group if i < len(r["steps"])] for i in range(most)]
    return {
        "bench": "retention",
        **{k: group[0].get(k) for k in CASE_KEYS},
        "question": group[0]["question"],
        "texts": len(group),
        "tokens": sum(r["tokens"] for r in group),
        "compared": sum(r["compared"] for r in group),
        **_means(group),
        "parts": [mean(column) for column in zip(*(r["parts"] for r in group), strict=True)],
        "steps": [
            {
                "texts": len(steps),
                **{name: mean(s[name] for s in steps) for name in steps[0]},
                "tokens": round(statistics.fmean(s["tokens"] for s in steps)),
            }
            for steps in by_step
        ],
    }


def _means(group: list[Record]) -> Record:
    """Return the mean of each measure over the steps of a text, then over texts, with its interval.

    Skip steps before the first eviction: there all heads hold all tokens.
    """
    found: Record = {}
    steps = [[s for s in r["steps"] if s["chance"] < 1] for r in group]
    values = {
        name: [v for of_text in steps if (v := mean(s[name] for s in of_text)) is not None]
        for name in SUMMARIZED
    }
    values["rise"] = [rise for of_text in steps if (rise := _rise(of_text)) is not None]
    for name, each in values.items():
        found[name] = mean(each)
        if len(set(each)) > 1:  # no interval for one text, or if the measure does not vary
            _, low, high = mean_interval(each)
            found[f"{name}_interval"] = [round(low, 5), round(high, 5)]
    return found


def _rise(steps: list[Record]) -> float | None:
    """Return the attention to memory in the second half of the steps, minus that in the first."""
    seen = [s["attention"] for s in steps if s["attention"] is not None]
    half = len(seen) // 2
    return statistics.fmean(seen[half:]) - statistics.fmean(seen[:half]) if half else None


def so_far(records: Sequence[Record]) -> str:
    """Return a line about the newest record, to show during the run."""
    last = records[-1]
    hits = mean(s["hit_chunk"] for s in last["steps"])
    told = "" if hits is None else f" {hits:.0%} of what is attended to"
    return f"{last['method']}: {last['text']}{told}"
