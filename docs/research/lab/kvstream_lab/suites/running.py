"""Trials of a suite's tasks, and their rows: task x method x budget."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

from kvstream.answer.support import abstains
from kvstream.errors import BudgetError
from kvstream.evaluation.confidence import mean_interval, wilson
from kvstream.evaluation.filler import Filler
from kvstream.evaluation.harness import ask, model_identity, room_for, too_long
from kvstream.evaluation.records import CASE_KEYS, Record, Trial, grouped
from kvstream.evaluation.sweep import WHOLE, Case
from kvstream.session.session import Session
from kvstream_lab.suites.task import Sample, Task

MEAN = "mean"
"""Name of the row of all tasks together."""


def trials(
    session: Session,
    filler: Filler,
    suite: str,
    tasks: Sequence[Task],
    cases: Sequence[Case],
    *,
    tokens: int,
    count: int,
    seed: int,
) -> Iterator[Trial]:
    """Yield the trials of `count` samples of each task; the tasks and the cases take turns."""
    facts = model_identity(session)
    for number in range(count):
        for task in tasks:
            # Made when the first case needs it.
            rng = random.Random(f"{seed} {suite} {task.name} {tokens} {number}")
            sample = cache(partial(task.make, session.tokenizer, filler, tokens, rng))
            for case in cases:
                each = replace(case, run=replace(case.run, max_tokens=task.max_tokens))
                identity: Record = {
                    "bench": "suite", **facts, "suite": suite, "task": task.name,
                    **each.identity(), "trial": number, "later": False, "seed": seed,
                    "tokens": tokens, "filler": filler.name,
                    **({"data": task.data} if task.data else {}),
                }  # fmt: skip
                yield Trial(identity, partial(_run, session, each, task, sample))


def _run(session: Session, case: Case, task: Task, made: Callable[[], Sample]) -> Record:
    sample, run = made(), case.run
    record: Record = {"document": sample.document} if sample.document else {}
    if case.view == WHOLE:
        run = room_for(session, run, len(session.tokenizer.encode(sample.text)))
    try:
        (result,) = ask(session, sample.text, [sample.question], run)
    except BudgetError as error:
        return {**record, "error": too_long(error) if case.view == WHOLE else str(error)}
    return {
        **record,
        "question": sample.question,
        "answers": list(sample.answers),
        "answer": result.answer,
        "score": round(task.score(result.answer, sample), 4),
        "refused": not result.answer or abstains(result.answer.strip()),
    }


def rows(records: Sequence[Record]) -> list[Record]:
    """Return a row for each case and task, and a mean row for a case with more than one task."""
    out = []
    for case in grouped([r for r in records if "error" not in r]):
        tasks = grouped(case, ("task",))
        out += [_row(task, task[0]["task"]) for task in tasks]
        if len(tasks) > 1:
            out.append(_row(case, MEAN))
    return out


def _row(group: Sequence[Record], task: str) -> Record:
    documents = [r.get("document", number) for number, r in enumerate(group)]
    mean, low, high = mean_interval([r["score"] for r in group], documents)
    if low == high:  # one document, or equal scores: they do not tell how scores vary
        count = len(set(documents))
        low, high = wilson(mean * count, count)
    return {
        "bench": "suite",
        "suite": group[0]["suite"],
        **{key: group[0].get(key) for key in CASE_KEYS},
        "task": task,
        "tokens": group[0]["tokens"],
        "n": len(group),
        "score": round(mean, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "refused": round(sum(r["refused"] for r in group) / len(group), 4),
    }


def so_far(records: Sequence[Record]) -> str:
    """Return a line about the newest record, to show during the run."""
    last = records[-1]
    same = [
        r["score"] for r in records if r["method"] == last["method"] and r["task"] == last["task"]
        and "score" in r
    ]  # fmt: skip
    mean = f"{100 * sum(same) / len(same):.0f}" if same else "does not fit"
    return f"{last['task']}, {last['method']} {mean}"
