"""Measure F1 and refusals of a model on people's questions about single paragraphs, for each limit.

    python docs/research/lab/reader_limit.py reader --part 0:80 --questions 3

The model answers each question without a refusal, and the script records the log-odds of a
refusal's first token. So one run shows what every limit would do (`refusal_limit` in support.json).
The paragraphs are of held-out documents, in an order with a fixed seed; each fits the budget.
``--part 0:80`` takes the first 80 of each set. The script prints a line of JSON for each limit. See
docs/research/answers.md.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kvstream.evaluation import metrics
from kvstream.evaluation.confidence import mean_interval, wilson
from kvstream.evaluation.harness import ask
from kvstream.run.prompt import REFUSAL
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream_lab.synthetic.corpus import Corpus, HumanContext, QuestionAnswer
from support import Refusing, area

SETS = ("squadshifts_newwiki", "fairytaleqa_train", "nq_oracle_train", "squad2_unanswerable")
LIMITS = (0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5)


def collected(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a record of each question; write it to ``--out`` as soon as it is known."""
    session = Session.open(
        ModelSettings(model=asked.model, dtype=asked.dtype, threads=asked.threads)
    )
    corpus, first, end = Corpus(asked.data, heldout=True), *map(int, asked.part.split(":"))
    run = RunSettings(budget=Budget(tokens=2048), max_tokens=32)
    records = []
    for name in SETS:
        for context, some in drawn(corpus.human(name), first, end, asked.questions):
            for question, answer in some:
                with Refusing(session.tokenizer, banned=True) as refusing:
                    said = ask(session, context.text, [question], run)[0].answer
                records.append(
                    {
                        "set": name,
                        "document": context.doc_id,
                        "question": question,
                        "expected": answer,
                        "answer": said,
                        "odds": refusing.odds,
                        "f1": (
                            metrics.best(metrics.f1, said, context.accepted[question])
                            if answer != REFUSAL
                            else None
                        ),
                    }
                )
                if asked.out:
                    with asked.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(records[-1]) + "\n")
    return records


def drawn(
    contexts: list[HumanContext], first: int, end: int, most: int
) -> Iterator[tuple[HumanContext, list[QuestionAnswer]]]:
    """Yield the paragraphs from `first` to before `end` in a random order, each with questions."""
    shuffled = list(contexts)
    random.Random(7).shuffle(shuffled)
    draw = random.Random(first)
    for context in shuffled[first:end]:
        yield context, draw.sample(context.questions, min(most, len(context.questions)))


def row(records: list[dict[str, Any]], limit: float) -> dict[str, Any]:
    """Return what a limit does: F1 of each set, and shares of refusals, with 95% intervals."""
    found: dict[str, Any] = {"limit": limit}
    answerable = [r for r in records if r["f1"] is not None]
    for name in SETS[:3]:
        of_set = [r for r in answerable if r["set"] == name]
        scores = [0.0 if r["odds"] > limit else r["f1"] for r in of_set]
        interval = mean_interval(scores, [r["document"] for r in of_set])
        found[name] = [round(100 * v, 1) for v in interval]
    others = [r for r in records if r["f1"] is None]
    for name, some in (("adversarial", others), ("answerable", answerable)):
        refused = sum(r["odds"] > limit for r in some)
        low, high = wilson(refused, len(some))
        found[f"{name} refused"] = f"{refused} of {len(some)} ({low:.0%} to {high:.0%})"
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--part", default="0:80")
    parser.add_argument("--questions", type=int, default=1, help="of a paragraph, at most")
    parser.add_argument("--limits", default=",".join(map(str, LIMITS)))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write each question there, as JSON")
    asked = parser.parse_args()
    records = collected(asked)
    for limit in asked.limits.split(","):
        print(json.dumps(row(records, float(limit))))
    odds = np.array([r["odds"] for r in records])
    adversarial = np.array([r["f1"] is None for r in records])
    print(f"area under the ROC curve: {area(odds, adversarial):.2f}")


if __name__ == "__main__":
    main()
