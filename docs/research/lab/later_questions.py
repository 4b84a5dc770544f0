"""Measure what memory is worth for questions that were unknown while the text was read.

See docs/research/answers.md.

    python docs/research/lab/later_questions.py -m reader --save later.jsonl \
        --cases keydiff:pool=15 streaming full \
        --qa ../shared/data/qa/squadshifts_newwiki.jsonl.gz --text ../shared/data/books/*.gz

Each text is an excerpt of held-out novels with planted keys, planted facts and paragraphs about
which people asked questions. Each case reads it once, without a question, and is then asked all of
them. For each kind of question the script prints the share of right answers (every word of the
reference in a row), F1, and the loss of the reference in nats per token. `full` holds the whole
text. The same command resumes a stopped run.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from kvstream.answer.answering import refusal_limit
from kvstream.answer.sampling import make_sampler
from kvstream.answer.support import abstains
from kvstream.evaluation.confidence import difference_interval
from kvstream.evaluation.datasets import load
from kvstream.evaluation.filler import Filler, insert
from kvstream.evaluation.harness import IdFeed, model_identity, room_for
from kvstream.evaluation.metrics import contains, f1
from kvstream.evaluation.records import Record, Records, Trial, measure
from kvstream.evaluation.splits import is_heldout
from kvstream.run.request import Request
from kvstream.sample.document import make_facts
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings

LONGEST = 900
"""Maximum number of characters of a paragraph."""
KINDS = ("key", "fact", "people")


@dataclass(frozen=True)
class Question:
    kind: str
    text: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Planted:
    """How much is planted in a text."""

    paragraphs: int
    questions: int
    """People's questions about each paragraph."""
    facts: int
    """Number of keys, and of other facts."""


@cache
def paragraphs(qa: tuple[str, ...], questions: int) -> list[tuple[str, list[Question]]]:
    """Return held-out paragraphs that are short enough, each with its questions."""
    found: dict[str, list[Question]] = {}
    for item in load(qa):
        if is_heldout(item.document) and len(item.context) < LONGEST:
            asked = [Question("people", q.text, q.answers) for q in item.questions if q.answers]
            found.setdefault(item.context.strip(), []).extend(asked)
    return [(text, asked) for text, asked in found.items() if len(asked) >= questions]


def document(
    session: Session, filler: Filler, qa: Sequence[str], tokens: int, put: Planted, trial: int
) -> tuple[list[int], list[Question]]:
    """Return the ids of a text and the questions about it."""
    rng = random.Random(f"later questions {tokens} {trial}")
    facts = make_facts(24, rng.randrange(2**31))
    planted, asked = [], []
    for kind, keys in (("key", True), ("fact", False)):
        for fact in [f for f in facts if (f.kind == "passkey") == keys][: put.facts]:
            planted.append(fact.sentence)
            asked.append(Question(kind, fact.question, tuple(fact.answers)))
    for paragraph, questions in rng.sample(paragraphs(tuple(qa), put.questions), put.paragraphs):
        planted.append(f"\n\n{paragraph}\n\n")
        asked += rng.sample(questions, put.questions)
    encode = session.tokenizer.encode
    taken = sum(len(encode(sentence)) for sentence in planted)
    rng.shuffle(planted)
    # One in each part of the text, so that no single part decides the result.
    depths = [(i + rng.random()) / len(planted) for i in range(len(planted))]
    text = filler.cut(session.tokenizer, tokens - taken, rng)
    places = zip(depths, planted, strict=True)
    return encode(insert(text, session.tokenizer, places)), asked


def case(spec: str, budget: int) -> RunSettings:
    method, _, settings = spec.partition(":")
    pairs = dict(pair.split("=") for pair in settings.split(",")) if settings else {}
    return RunSettings(Budget(tokens=budget), method, pairs, max_tokens=16)


def read_and_ask(
    session: Session, run: RunSettings, made: Callable[[], tuple[list[int], list[Question]]]
) -> Record:
    ids, asked = made()
    if run.method == "full":
        run = room_for(session, run, len(ids))
    plan = session.settle(Request((), run, command="remember"))
    reader = plan.reader(session.model, run, len(ids))
    started = time.process_time()
    for _ in reader.read(IdFeed(ids)):
        pass
    seconds = time.process_time() - started
    stop, limit = frozenset(plan.prompt.stop_ids), refusal_limit(session.model, session.tokenizer)
    answers = []
    for question in asked:
        tail = plan.prompt.tail(question.text)
        said = list(reader.answer(tail, make_sampler(run, limit), stop, run.max_tokens))
        answer = session.tokenizer.decode(said).strip()
        lead = "" if plan.prompt.style == "chat" else " "
        words = session.tokenizer.encode(lead + question.answers[0], continuing=True)
        words = words[: run.max_tokens]  # the budget has no room for more
        answers.append(
            {
                "kind": question.kind,
                "question": question.text,
                "expected": question.answers[0],
                "answer": answer,
                "right": any(contains(answer, a) for a in question.answers),
                "f1": max(f1(answer, a) for a in question.answers),
                "refused": abstains(answer),
                "loss": float(reader.score(tail, words).mean()),
            }
        )
    held = max(store.used for store in reader.compressible)
    return {"read": len(ids), "held": held, "seconds": round(seconds, 2), "answers": answers}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="pocket")
    parser.add_argument("--quantize", help="as in kvstream ask")
    parser.add_argument("--cases", nargs="+", required=True, help="METHOD[:SETTING=VALUE,...]")
    parser.add_argument("--tokens", type=int, default=3072)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="number of the first text")
    parser.add_argument("--paragraphs", type=int, default=4, help="that people asked about")
    parser.add_argument("--questions", type=int, default=3, help="about each paragraph")
    parser.add_argument("--facts", type=int, default=3, help="planted; and as many keys")
    parser.add_argument("--qa", nargs="+", required=True)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--save", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    texts = [text for text in given.text if is_heldout(Path(text).name.partition(".")[0])]
    settings = ModelSettings(model=given.model, quantize=given.quantize, threads=1)
    session, filler = Session.open(settings), Filler.of(texts)
    put = Planted(given.paragraphs, given.questions, given.facts)
    made = cache(lambda trial: document(session, filler, given.qa, given.tokens, put, trial))
    facts, trials = model_identity(session), []
    for number in range(given.first, given.first + given.trials):
        for spec in given.cases:
            identity: Record = {
                **facts, "case": spec, "tokens": given.tokens, "budget": given.budget,
                **vars(put), "trial": number,
            }  # fmt: skip
            if given.quantize:
                identity["quantize"] = given.quantize
            run = partial(read_and_ask, session, case(spec, given.budget), partial(made, number))
            trials.append(Trial(identity, run))
    report([*measure(trials, Records(given.save))], given.cases)


def report(found: Sequence[Record], cases: Sequence[str]) -> None:
    """Print a row for each case; differences are paired with the first case."""
    by = {(r["case"], r["trial"]): r for r in found}
    first = cases[0]
    for spec in cases:
        trials = sorted(t for c, t in by if c == spec and (first, t) in by)
        if not trials:
            continue
        seconds = fmean(by[spec, t]["seconds"] for t in trials)
        line = f"{spec:44} {len(trials):3} texts {seconds:6.1f} s"
        for kind in (*KINDS, ""):
            pairs = [
                (t, a, b)
                for t in trials
                for a, b in zip(by[spec, t]["answers"], by[first, t]["answers"], strict=True)
                if kind in ("", a["kind"])
            ]

            def change(name: str, pairs: list[tuple[int, Record, Record]] = pairs) -> Any:
                less = [a[name] - b[name] for _, a, b in pairs]
                return difference_interval(less, [t for t, _, _ in pairs])

            right, score = (fmean(a[name] for _, a, _ in pairs) for name in ("right", "f1"))
            line += f" | {kind or 'all'} {right:.0%} F1 {100 * score:.1f}"
            line += " {:+.2f} ({:+.2f} to {:+.2f})".format(*change("loss"))
            if not kind:
                gain = (100 * x for x in change("f1"))
                line += "; F1 {:+.1f} ({:+.1f} to {:+.1f})".format(*gain)
        print(line, flush=True)


if __name__ == "__main__":
    main()
