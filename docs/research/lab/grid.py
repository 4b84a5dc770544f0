"""Measure how methods find keys, facts and lists in texts of several lengths, at several budgets.

See docs/research/methods.md.

    python docs/research/lab/grid.py -m smollm2 --quantize int8 --save grid.jsonl \
        --cases infinipot! snapkv keydiff:pool=15 cascade@paper --text ../shared/data/books/*.gz

Each text is an excerpt of held-out novels with planted keys, facts and lists of eight pairs. A case
reads it once, without a question, and is then asked all of them. With ``!`` the questions of one
kind are known during a reading, so the text is read once for each kind. ``@paper`` takes the
settings of the method's paper. For each kind, the script prints how often the written answer
contains the right one, how often the right one is the likeliest of four, and its loss in nats per
token. The model writes an answer only if the right one is the likeliest. The same command resumes a
stopped run.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from kvstream.answer.sampling import make_sampler
from kvstream.api.options import request_of, settled
from kvstream.evaluation.confidence import difference_interval, wilson
from kvstream.evaluation.filler import Filler, insert
from kvstream.evaluation.harness import IdFeed, ModelIdentity, room_for
from kvstream.evaluation.metrics import contains
from kvstream.evaluation.needle import Plan, make_needles
from kvstream.evaluation.records import Record, Trial
from kvstream.evaluation.splits import is_heldout
from kvstream.run.request import Request
from kvstream.sample.document import Fact, make_facts
from kvstream.session.session import Session
from kvstream.settings import ModelSettings, RunSettings
from later_questions import within

NEEDLES = {"passkey": 4, "fact": 4, "kv": 2}
"""Number of needles of each kind in a text."""
CHOICES = 4
LONGEST = 20
"""Maximum number of tokens of an answer."""


def document(
    session: Session, filler: Filler, tokens: int, trial: int
) -> tuple[list[int], list[tuple[Fact, list[str]]]]:
    """Return the ids of a text, and its questions, each with wrong answers of its kind."""
    rng = random.Random(f"grid {tokens} {trial}")
    needles = [
        needle
        for kind, count in NEEDLES.items()
        for needle in make_needles(Plan(kind, (tokens,), (), needles=count), rng, trial)
    ]
    encode = session.tokenizer.encode
    taken = sum(len(encode(n.sentence)) for n in needles)
    text = filler.cut(session.tokenizer, tokens - taken, rng)
    order = rng.sample(needles, len(needles))
    # One needle in each part of the text, so that no single part decides the result.
    depths = [(i + rng.random()) / len(order) for i in range(len(order))]
    places = [(depth, n.sentence) for depth, n in zip(depths, order, strict=True)]
    ids = encode(insert(text, session.tokenizer, places))
    made = make_facts(60 * CHOICES, rng.randrange(2**31))
    asked = []
    for needle in needles:
        if needle.kind == "kv":  # other values of the same list
            others = [line.split(": ")[1] for line in needle.sentence.split("\n") if line]
        else:
            others = [f.answers[0] for f in made if f.kind == needle.kind]
        wrong = [other for other in others if other != needle.answers[0]][: CHOICES - 1]
        asked.append((needle, wrong))
    return ids, asked


def kind_of(fact: Fact) -> str:
    return fact.kind if fact.kind in ("passkey", "kv") else "fact"


def settings(spec: str, budget: int) -> tuple[RunSettings, bool]:
    """Return the settings of a case, and whether it knows the questions."""
    name, known = spec.removesuffix("!"), spec.endswith("!")
    name, _, preset = name.partition("@")
    name, _, text = name.partition(":")
    own = dict(pair.split("=") for pair in text.split(",")) if text else {}
    options: dict[str, Any] = {
        "budget": budget, "method": name, "max_tokens": LONGEST, "brief": True,
        "set": {f"{name}.{setting}": value for setting, value in own.items()},
    }  # fmt: skip
    if preset:
        options["preset"] = preset
    return settled(request_of(**options), known=known).run, known


def read_and_ask(
    session: Session,
    run: RunSettings,
    ids: Sequence[int],
    asked: Sequence[tuple[Fact, list[str]]],
    known: bool,
) -> Record:
    if run.method == "full":
        run = room_for(session, run, len(ids))
    answers: list[Record] = []
    seconds = 0.0
    kinds = list(NEEDLES) if known else [""]
    for kind in kinds:
        part = [pair for pair in asked if kind in ("", kind_of(pair[0]))]
        questions = tuple(fact.question for fact, _ in part) if known else ()
        request = Request(questions, run, command="ask" if known else "remember")
        plan = session.settle(request)
        reader = plan.reader(session.model, run, len(ids))
        began = time.process_time()
        for _ in reader.read(IdFeed(ids)):
            pass
        seconds += time.process_time() - began
        stop, encode = frozenset(plan.prompt.stop_ids), session.tokenizer.encode
        for fact, wrong in part:
            tail = plan.prompt.tail(fact.question)
            lead = "" if plan.prompt.style == "chat" else " "
            words = [encode(lead + one, continuing=True) for one in (fact.answers[0], *wrong)]
            right, *others = (float(reader.score(tail, one).mean()) for one in words)
            likeliest, answer = all(right < other for other in others), ""
            if likeliest:  # otherwise the model rarely writes it, and writing is slow
                said = list(reader.answer(tail, make_sampler(run), stop, run.max_tokens))
                answer = session.tokenizer.decode(said).strip()
            answers.append(
                {
                    "kind": kind_of(fact),
                    "expected": fact.answers[0],
                    "answer": answer,
                    "right": any(contains(answer, a) for a in fact.answers),
                    "likeliest": likeliest,
                    "loss": round(right, 4),
                }
            )
    return {"read": len(ids), "seconds": round(seconds, 1), "answers": answers}


def report(found: Sequence[Record], cases: Sequence[str]) -> None:
    """Print a row for each length, budget and case; differences in nats are from the first case."""
    by = {(r["tokens"], r["budget"], r["case"], r["trial"]): r for r in found}
    for tokens, budget in sorted({key[:2] for key in by}):
        print(f"{tokens:,} tokens, budget {budget:,}")
        for spec in cases:
            trials = sorted(key[3] for key in by if key[:3] == (tokens, budget, spec))
            base = cases[0]
            if not trials:
                continue
            records = [by[tokens, budget, spec, trial] for trial in trials]
            line = f"  {spec:32} {len(trials)} texts"
            line += f" {statistics.fmean(r['seconds'] for r in records):6.1f} s"
            for kind in (*NEEDLES, ""):
                rows = [a for r in records for a in r["answers"] if kind in ("", a["kind"])]
                n = len(rows)
                right, likeliest = (sum(a[key] for a in rows) for key in ("right", "likeliest"))
                line += f" | {kind or 'all'} {right}, {likeliest} of {n}"
                line += f", {statistics.fmean(a['loss'] for a in rows):.2f}"
                if not kind:
                    low, high = wilson(likeliest, n)
                    line += f" ({low:.0%} to {high:.0%})"
            pairs = [
                (t, a["loss"] - b["loss"])
                for t in trials
                if (tokens, budget, base, t) in by
                for a, b in zip(
                    by[tokens, budget, spec, t]["answers"],
                    by[tokens, budget, base, t]["answers"],
                    strict=True,
                )
            ]
            if spec != base and len({t for t, _ in pairs}) > 1:
                change = difference_interval([d for _, d in pairs], [str(t) for t, _ in pairs])
                line += "; {:+.2f} ({:+.2f} to {:+.2f})".format(*change)
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="pocket")
    parser.add_argument("--quantize", help="as in kvstream ask")
    parser.add_argument(
        "--cases", nargs="+", required=True, help="METHOD[:SETTING=VALUE,...][@paper][!]"
    )
    parser.add_argument("--tokens", default="4096,8192")
    parser.add_argument("--budget", default="512,1024,2048")
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="number of the first text")
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no reading after these")
    given = parser.parse_args()
    torch.set_num_threads(1)
    texts = [text for text in given.text if is_heldout(Path(text).name.partition(".")[0])]
    model = ModelSettings(model=given.model, quantize=given.quantize, threads=1)
    session, filler = Session.open(model), Filler.of(texts)
    made = cache(partial(document, session, filler))
    facts, trials = ModelIdentity.of(session).identity(), []
    lengths = [int(n) for n in given.tokens.split(",")]
    budgets = [int(n) for n in given.budget.split(",")]
    for number in range(given.first, given.first + given.trials):
        for tokens in lengths:
            for budget in budgets:
                for spec in given.cases:
                    identity: Record = {
                        **facts, "case": spec, "tokens": tokens, "budget": budget,
                        "quantize": given.quantize, "trial": number,
                    }  # fmt: skip

                    def go(at: Record = identity) -> Record:
                        run, known = settings(at["case"], at["budget"])
                        ids, asked = made(at["tokens"], at["trial"])
                        return read_and_ask(session, run, ids, asked, known)

                    trials.append(Trial(identity, go))
    report(within(trials, given.save, given.seconds), given.cases)


if __name__ == "__main__":
    main()
