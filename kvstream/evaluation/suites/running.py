"""Trials of a suite's tasks, and their rows: task x method x budget."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from kvstream.answer.support import abstains
from kvstream.errors import BudgetError, SourceError, UsageError
from kvstream.evaluation.filler import Filler
from kvstream.evaluation.harness import ModelIdentity, ask, ask_by_words, ask_later, room_for
from kvstream.evaluation.intervals import mean_interval, wilson
from kvstream.evaluation.records import CASE_KEYS, Record, Trial, grouped
from kvstream.evaluation.suites.task import Sample, Task, score
from kvstream.evaluation.sweep import BM25, STREAM, WHOLE, Case
from kvstream.session.session import Session

MEAN = "mean"
"""The row of all tasks together."""


def chosen(suite: str, tasks: Sequence[Task], names: Sequence[str] | None) -> list[Task]:
    """The tasks of these names, or all. Raises UsageError for one that the suite lacks."""
    known = {task.name: task for task in tasks}
    for name in names or ():
        if name not in known:
            raise UsageError(f"{suite} has no task {name!r}. It has: {', '.join(known)}.")
    return [known[name] for name in names] if names else list(tasks)


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
    later: bool,
) -> Iterator[Trial]:
    """`count` samples of each task; the cases take turns on each sample, and so do the tasks.

    `later`: methods read without the question, which comes behind the text.
    """
    facts = ModelIdentity.of(session)
    for number in range(count):
        for task in tasks:
            made: list[Sample] = []  # made when the first case asks for it

            def sample(
                made: list[Sample] = made, task: Task = task, number: int = number
            ) -> Sample:
                if not made:
                    rng = random.Random(f"{seed} {suite} {task.name} {tokens} {number}")
                    made.append(task.make(session.tokenizer, filler, tokens, rng))
                return made[0]

            for case in cases:
                run = replace(case.run, max_tokens=task.max_tokens)
                each = replace(case, run=run)
                identity: Record = {
                    "bench": "suite", **facts.identity(), "suite": suite, "task": task.name,
                    **each.identity(), "tokens": tokens, "trial": number, "later": later,
                    "filler": filler.name, "seed": seed,
                }  # fmt: skip
                yield Trial(identity, partial(_run, session, each, sample, later))


def _run(session: Session, case: Case, made: Callable[[], Sample], later: bool) -> Record:
    sample, run = made(), case.run
    way = ask_later if later else ask
    if case.view == WHOLE:
        run = room_for(session, run, len(session.tokenizer.encode(sample.text)))
    elif case.view == BM25:
        way = ask_by_words
    try:
        (result,) = way(session, sample.text, [sample.question], run)
        answer = result.answer
    except BudgetError as error:
        if case.view == STREAM and run.method != "full":
            raise
        return {"error": str(error)}
    except SourceError:  # no part of the text has a word of the question
        if case.view != BM25:
            raise
        answer = ""
    return {
        "question": sample.question,
        "answers": list(sample.answers),
        "answer": answer,
        "score": round(score(answer, sample.answers), 4),
        "refused": not answer or abstains(answer.strip()),
    }


def rows(records: Sequence[Record]) -> list[Record]:
    """A row for each case and task, and one for the mean of a case with more than one task."""
    out = []
    for case in grouped([r for r in records if "error" not in r]):
        tasks = grouped(case, ("task",))
        out += [_row(task, task[0]["task"]) for task in tasks]
        if len(tasks) > 1:
            out.append(_row(case, MEAN))
    return out


def _row(group: Sequence[Record], task: str) -> Record:
    scores = [r["score"] for r in group]
    mean, low, high = mean_interval(scores)
    if min(scores) == max(scores):  # which says nothing of how scores vary
        low, high = wilson(sum(scores), len(scores))
    first = group[0]
    return {
        "bench": "suite",
        "suite": first["suite"],
        **{key: first.get(key) for key in CASE_KEYS},
        "task": task,
        "tokens": first["tokens"],
        "later": first["later"],
        "n": len(group),
        "score": round(mean, 4),
        "low": round(max(0.0, low), 4),
        "high": round(min(1.0, high), 4),
        "refused": round(sum(r["refused"] for r in group) / len(group), 4),
    }


def so_far(records: Sequence[Record]) -> str:
    """What to say while it runs."""
    last = records[-1]
    same = [
        r["score"] for r in records if r["method"] == last["method"] and r["task"] == last["task"]
        and "score" in r
    ]  # fmt: skip
    mean = f"{100 * sum(same) / len(same):.0f}" if same else "does not fit"
    return f"{last['task']}, {last['method']} {mean}"
