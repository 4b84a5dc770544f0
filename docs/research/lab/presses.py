"""Compare kvstream under a budget with kvpress after a full prefill, on RULER.

    make kvpress
    python docs/research/lab/presses.py -m smollm2 --tokens 2048 --trials 10 \
        --tasks single,multikey --methods "full;auto" --save presses.jsonl \
        --kvpress-python .venv-kvpress/bin/python

Both get the same ids (prompt, text, question). Neither sees the question while it reads the text;
with `--known` both do: kvstream as in `ask`, and presses read it once more after the text. Both
hold the same number of entries when the question comes: an eighth of prompt and text (`--ratio`),
on average over the heads. kvstream never holds more than its budget; kvpress holds all of the text
first, in float32. `full` is kvstream with all of the text in memory, `none` is kvpress without a
press. `skim` is the model with `pocket`, which reads the text for it under the same budget and
keeps passages as text. The script prints the scores of each case by task. The same command resumes
a stopped run. See docs/research/answers.md.
"""

from __future__ import annotations

import argparse
import random
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from kvstream.api.options import request_of, with_method
from kvstream.evaluation import harness
from kvstream.evaluation.confidence import difference_interval
from kvstream.evaluation.filler import Filler
from kvstream.evaluation.harness import IdFeed, model_identity, room_for
from kvstream.evaluation.records import Record, Records, Trial, left_out, measure
from kvstream.events import Answered, returned
from kvstream.input.sources import open_sources
from kvstream.model.folders import folder
from kvstream.run.request import Request
from kvstream.session.scouting import Scouted, Scouting
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream_lab.speed.outside import KVPRESS, Process
from kvstream_lab.suites.ruler import TASKS
from kvstream_lab.suites.task import Sample, Task, score

WORKER = replace(KVPRESS, worker=KVPRESS.worker.with_name("presses_worker.py"))
FULL, SKIM = "full", "skim"


def run_of(session: Session, spec: str, max_tokens: int, brief: bool = False) -> RunSettings:
    """Return the settings of ``METHOD[:NAME=VALUE,...]``; `auto` chooses as without a question."""
    method, _, settings = spec.partition(":")
    given = {f"{method}.{pair}".partition("=")[::2] for pair in settings.split(",") if pair}
    options: dict[str, Any] = {"method": method, "set": dict(given), "max_tokens": max_tokens}
    options["brief"] = brief
    run: RunSettings = with_method(
        request_of(command="remember", **options), learned=session.foresees
    ).run
    return run


def holding(session: Session, run: RunSettings, held: int, questions: Sequence[str]) -> Request:
    """Return a request with `held` entries of memory and prompt when the question comes."""
    budget = 2 * held
    for _ in range(16):
        request = asking(replace(run, budget=Budget(tokens=budget)), questions)
        sizes = session.settle(request).sizes
        budget += held - sizes.prompt - sizes.final
        if sizes.prompt + sizes.final == held:
            break
    return request


def asking(run: RunSettings, questions: Sequence[str]) -> Request:
    return Request(tuple(questions), run, command="ask" if questions else "remember")


def kvstream(session: Session, spec: str, sample: Sample, task: Task, given: Namespace) -> Record:
    ids = session.tokenizer.encode(sample.text)
    run = run_of(session, spec, task.max_tokens, given.brief)
    questions = [sample.question] if given.known else []
    if spec == FULL:
        request = asking(room_for(session, run, len(ids)), questions)
    else:
        head = len(session.settle(asking(run, questions)).prompt.head)
        request = holding(session, run, round((head + len(ids)) / given.ratio), questions)
    plan = session.settle(request)
    reader, start = plan.reader(session.model, request.run, len(ids)), time.process_time()
    for _ in reader.read(IdFeed(ids)):
        pass
    seconds = round(time.process_time() - start, 1)
    held = max(store.used for store in reader.compressible)
    tail = plan.prompt.tail(sample.question, brief=given.brief)
    stop = frozenset(plan.prompt.stop_ids)
    said = list(reader.answer(tail, lambda logits: int(logits.argmax()), stop, task.max_tokens))
    answer = session.tokenizer.decode(said)
    return {
        "method": request.run.method, "read": len(plan.prompt.head) + len(ids), "held": held,
        "seconds": seconds, "answer": answer, "score": score(answer, sample.answers),
    }  # fmt: skip


@cache
def skimmer() -> Session:
    return Session.open(ModelSettings(model="pocket", threads=1))


def skim(session: Session, sample: Sample, task: Task, given: Namespace) -> Record:
    """Answer with two models; each has the budget that one model has in `kvstream`."""
    run = run_of(session, "keydiff:pool=15", task.max_tokens, given.brief)
    head = len(session.settle(Request((), run, command="remember")).prompt.head)
    tokens = len(session.tokenizer.encode(sample.text))
    request = holding(session, run, round((head + tokens) / given.ratio), ())
    assert request.run.budget is not None
    auto = run_of(skimmer(), "auto", task.max_tokens, given.brief)
    request = replace(request, run=replace(auto, budget=request.run.budget))
    both = Scouting(session, skimmer())
    with harness.document(sample.text) as path:
        skimmed = returned(both.read(open_sources([path], plain=True), request))
    assert isinstance(skimmed, Scouted)
    events = both.answer(skimmed, sample.question)
    told = next(event.result for event in events if isinstance(event, Answered))
    skimmed.memory.reader.release()
    assert told.skim is not None
    return {
        "method": auto.method, "read": head + tokens, "held": told.skim["tokens"],
        "kept": told.skim["kept"], "peak": told.skim["peak"],
        "answer": told.answer, "score": score(told.answer, sample.answers),
    }  # fmt: skip


def kvpress(
    process: Process, session: Session, sample: Sample, task: Task, given: Namespace
) -> Record:
    """Return the answers of all presses; they share the prefill."""
    prompt = session.settle(Request((), RunSettings(), command="remember")).prompt
    ids = [*prompt.head, *session.tokenizer.encode(sample.text)]
    kept = round(len(ids) / given.ratio)
    if given.known:
        ids += session.tokenizer.encode(f"\n{sample.question}", continuing=True)
    found = process.ask(
        ask={
            "ids": ids, "question": prompt.tail(sample.question, brief=given.brief),
            "tokens": task.max_tokens, "stop": list(prompt.stop_ids),
            "kept": kept, "presses": given.presses.split(","), "head": len(prompt.head),
        }
    )  # fmt: skip
    answers = {name: session.tokenizer.decode(said) for name, said in found["answers"].items()}
    return {
        "read": len(ids), "held": found["held"], "seconds": found["seconds"], "answers": answers,
        "scores": {name: score(answer, sample.answers) for name, answer in answers.items()},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--quantize")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ratio", type=float, default=8)
    parser.add_argument("--brief", action="store_true", help="ask for a short phrase")
    parser.add_argument("--known", action="store_true", help="the question is known while reading")
    parser.add_argument("--tasks", default="single,multikey,multivalue,multiquery")
    parser.add_argument(
        "--methods", default="full;auto", help="METHOD[:NAME=VALUE,...];...; or skim"
    )
    parser.add_argument("--presses", default="none,keydiff,snapkv,expected,adakv,compactor,kvzip")
    parser.add_argument("--text", nargs="*", default=[], help="that fills up the tasks")
    parser.add_argument("--kvpress-python")
    parser.add_argument("--save", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = ModelSettings(model=given.model, quantize=given.quantize, threads=1)
    session, filler = Session.open(settings), Filler.of(given.text)
    tasks = [task for name, task in TASKS.items() if name in given.tasks.split(",")]
    presses, trials = given.presses.split(",") if given.kvpress_python else [], []
    with ExitStack() as stack:
        process = cache(partial(_opened, stack, given.model, given.kvpress_python))

        @cache
        def made(task: Task, number: int) -> Sample:
            rng = random.Random(f"{given.seed} ruler {task.name} {given.tokens} {number}")
            return task.make(session.tokenizer, filler, given.tokens, rng)

        same = {
            **model_identity(session), "tokens": given.tokens, "ratio": given.ratio,
            "seed": given.seed, "filler": filler.name, "quantize": given.quantize,
            **({"brief": True} if given.brief else {}), **({"known": True} if given.known else {}),
        }  # fmt: skip
        for number in range(given.trials):
            for task in tasks:
                for spec in given.methods.split(";"):
                    identity: Record = {**same, "task": task.name, "trial": number, "case": spec}

                    def go(spec: str = spec, task: Task = task, number: int = number) -> Record:
                        if spec == SKIM:
                            return skim(session, made(task, number), task, given)
                        return kvstream(session, spec, made(task, number), task, given)

                    trials.append(Trial(identity, go))
                if presses:
                    identity = {**same, "task": task.name, "trial": number, "presses": presses}

                    def pressed(task: Task = task, number: int = number) -> Record:
                        return kvpress(process(), session, made(task, number), task, given)

                    trials.append(Trial(identity, pressed))
        found = [*measure(trials, Records(given.save))]
    report(found)


def _opened(stack: ExitStack, model: str, python: str) -> Process:
    process = Process(WORKER, KVPRESS.check(python))
    stack.callback(process.close)
    # Of the number types, transformers reads all but our 8 bits.
    process.ask(model={"folder": folder(ModelSettings(model=model, dtype="float32"))})
    return process


def report(found: Sequence[Record]) -> None:
    """Print a row for each case, with scores by task; differences are paired with `auto`."""
    scores: dict[str, dict[tuple[str, int], float]] = {}
    if errors := left_out(found):
        print("{left_out} not measured: {error}".format(**errors))
    for r in found:
        if "error" in r:
            continue
        cases = {f"kvpress {n}": s for n, s in r["scores"].items()} if "scores" in r else None
        for case, value in (cases or {r["case"]: r["score"]}).items():
            scores.setdefault(case, {})[r["task"], r["trial"]] = value
    tasks = list(dict.fromkeys(r["task"] for r in found))
    for case, by in scores.items():
        cells = []
        for task in (*tasks, ""):
            own = [value for (name, _), value in by.items() if task in ("", name)]
            cells.append(f"{task or 'mean'} {100 * sum(own) / len(own):.0f}" if own else "")
        line = f"{case:24} {len(by):3} | {' | '.join(cells)}"
        both = sorted(set(by) & set(scores.get("auto", {})))
        if case != "auto" and both:
            less = [scores["auto"][key] - by[key] for key in both]
            mean, low, high = difference_interval(less, [f"{task} {n}" for task, n in both])
            line += f" | auto minus this {100 * mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        print(line, flush=True)


if __name__ == "__main__":
    main()
