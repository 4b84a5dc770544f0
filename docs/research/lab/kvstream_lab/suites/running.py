"""Trials of a suite's tasks, and their rows: task x method x budget."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

from kvstream.answer.answering import answers
from kvstream.answer.support import abstains
from kvstream.errors import BudgetError, UsageError
from kvstream.evaluation.confidence import mean_interval, wilson
from kvstream.evaluation.filler import Filler
from kvstream.evaluation.harness import (
    ModelIdentity,
    ask,
    document,
    results_of,
    room_for,
    too_long,
)
from kvstream.evaluation.records import CASE_KEYS, Record, Trial, grouped
from kvstream.evaluation.sweep import WHOLE, Case
from kvstream.events import Result, returned
from kvstream.input.sources import open_sources
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import RunSettings
from kvstream_lab.suites.task import Sample, Task
from kvstream_lab.summary import ROUGE

MEAN = "mean"
"""Name of the row of all tasks together."""
KNOWN, LATER, OTHER = "known", "later", "other"
"""The question that is known while a text is read: its own, none, or only another one."""


def chosen(suite: str, tasks: Sequence[Task], names: Sequence[str] | None) -> list[Task]:
    """Return the tasks of these names, or all. Raise UsageError for an unknown name."""
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
    mode: str,
) -> Iterator[Trial]:
    """Yield the trials of `count` samples of each task; the tasks and the cases take turns.

    `mode` is KNOWN, LATER or OTHER. `tokens` and `filler` do not apply to samples of a data set.
    """
    facts = ModelIdentity.of(session)
    for number in range(count):
        for task in tasks:
            if number >= task.count(count):
                continue
            # Made when the first case needs it.
            rng = random.Random(f"{seed} {suite} {task.name} {tokens} {number}")
            sample = cache(partial(_sample, session, filler, task, number, tokens, rng))
            for case in cases:
                run = replace(case.run, max_tokens=task.max_tokens)
                each = replace(case, run=run)
                identity: Record = {
                    "bench": "suite", **facts.identity(), "suite": suite, "task": task.name,
                    **each.identity(), "trial": number, "later": mode == LATER, "seed": seed,
                    **({"tokens": tokens, "filler": filler.name} if task.make else {}),
                    **({"data": task.data} if task.data else {}),
                    **({"other": True} if mode == OTHER else {}),
                }  # fmt: skip
                yield Trial(identity, partial(_run, session, each, task, sample, mode))


def _sample(
    session: Session, filler: Filler, task: Task, number: int, tokens: int, rng: random.Random
) -> Sample:
    """Return a sample of a data set, or make one."""
    if task.make is None:
        return task.given[number]
    return task.make(session.tokenizer, filler, tokens, rng)


def _run(session: Session, case: Case, task: Task, made: Callable[[], Sample], mode: str) -> Record:
    sample = made()
    record: Record = {"document": sample.document} if sample.document else {}
    if task.make is None:
        record["tokens"] = len(session.tokenizer.encode(sample.text))
    try:
        answer = _answer(session, case, sample, mode)
    except BudgetError as error:
        return {**record, "error": too_long(error) if case.view == WHOLE else str(error)}
    return {
        **record,
        "question": sample.question,
        **({"known": sample.other} if mode == OTHER else {}),
        "answers": list(sample.answers),
        "answer": answer,
        **{name: round(value, 4) for name, value in task.score(answer, sample).items()},
        "refused": not answer or abstains(answer.strip()),
    }


def _answer(session: Session, case: Case, sample: Sample, mode: str) -> str:
    text, asked, run = sample.text, [sample.question], case.run
    if case.view == WHOLE:
        run = room_for(session, run, len(session.tokenizer.encode(text)))
    if mode == KNOWN:
        (result,) = ask(session, text, asked, run)
    elif mode == LATER:
        (result,) = ask_later(session, text, asked, run)
    elif sample.other:
        (result,) = ask_later(session, text, asked, run, known=[sample.other])
    else:
        raise UsageError(
            "--other needs data with more than one question; add some, or leave it out."
        )
    return result.answer


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
    first = group[0]
    return {
        "bench": "suite",
        "suite": first["suite"],
        **{key: first.get(key) for key in CASE_KEYS},
        "task": task,
        "tokens": round(sum(r["tokens"] for r in group) / len(group)),
        "later": first["later"],
        "other": first.get("other", False),
        "n": len(group),
        "score": round(mean, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        **{
            name: round(sum(r[name] for r in group) / len(group), 4)
            for name in ROUGE
            if name in first
        },
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


def ask_later(
    session: Session,
    text: str,
    questions: Sequence[str],
    run: RunSettings,
    known: Sequence[str] = (),
) -> list[Result]:
    """Answer questions after a reading of `text` that does not know them, only the `known` ones."""
    with document(text) as path:
        reading = Request(tuple(known), run, command="remember")
        memory = returned(session.read(open_sources([path], plain=True), reading))
        return results_of(answers(memory, Request(tuple(questions), run)))
