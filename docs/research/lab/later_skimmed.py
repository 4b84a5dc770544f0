"""Measure what two models keep of a text for questions that were unknown while it was read.

See docs/research/skim.md.

    python docs/research/lab/later_skimmed.py --save later-skimmed.jsonl \
        --qa ../shared/data/qa/squadshifts_newwiki.jsonl.gz --text ../shared/data/books/*.gz

The texts and questions are those of later_questions.py. `pocket` reads a text once without a
question, keeps a memory and passages as text, and `reader` answers from the passages. `both`,
`words` and `memory` say how passages are chosen (`--skim-by`). `full` is `reader` with the whole
text in its KV cache. For each case the script prints right answers, F1, and the share of the F1 of
the last case; its interval is a bootstrap over the texts. The same command resumes a stopped run.
It needs `kvstream models get reader`.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import torch

import kvstream
from kvstream.evaluation import harness
from kvstream.evaluation.filler import Filler
from kvstream.evaluation.metrics import contains, f1
from kvstream.evaluation.records import Record, Records, Trial, measure
from kvstream.evaluation.synthetic.splits import is_heldout
from kvstream.session.session import Session
from kvstream.settings import ModelSettings
from later_questions import KINDS, Planted, Question, case, document, read_and_ask

FULL = "full"
WAYS = ("both", "words", "memory", FULL)
RESAMPLED = 10_000


def skimmed(
    model: kvstream.Model, session: Session, ids: list[int], asked: Sequence[Question], budget: int
) -> Record:
    started = time.process_time()
    with harness.document(session.tokenizer.decode(ids)) as path:
        memory = model.read(path, budget=budget, max_tokens=16)
    seconds = time.process_time() - started
    answers = []
    for question in asked:
        told = memory.ask(question.text)
        assert told.result.skim is not None
        answers.append(
            {
                "kind": question.kind,
                "question": question.text,
                "expected": question.answers[0],
                "answer": told.text,
                "right": any(contains(told.text, a) for a in question.answers),
                "f1": max(f1(told.text, a) for a in question.answers),
                "tokens": told.result.skim["tokens"],
            }
        )
    skim = told.result.skim
    assert skim is not None
    memory.release()
    return {
        "read": len(ids), "seconds": round(seconds, 2), "kept": skim["kept"], "peak": skim["peak"],
        "answers": answers,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=WAYS, default=["both", FULL])
    parser.add_argument("--quantize", default="int8", help="as in kvstream ask")
    parser.add_argument("--tokens", type=int, default=1900, help="of reader")
    parser.add_argument("--budget", type=int, default=340)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--first", type=int, default=310, help="number of the first text")
    parser.add_argument("--qa", nargs="+", required=True)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--save", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    texts = [text for text in given.text if is_heldout(Path(text).name.partition(".")[0])]
    settings = ModelSettings(model="reader", quantize=given.quantize, threads=1)
    session, filler, put = Session.open(settings), Filler.of(texts), Planted(2, 3, 3)
    made = cache(lambda trial: document(session, filler, given.qa, given.tokens, put, trial))
    trials = []
    for number in range(given.first, given.first + given.trials):
        for name in given.cases:
            identity: Record = {
                "case": name, "tokens": given.tokens, "budget": given.budget,
                "quantize": given.quantize, "trial": number,
            }  # fmt: skip

            def go(name: str = name, number: int = number) -> Record:
                ids, asked = made(number)
                if name == FULL:
                    return read_and_ask(session, case(FULL, given.budget), ids, asked)
                return skimmed(opened(name), session, ids, asked, given.budget)

            trials.append(Trial(identity, partial(go)))

    @cache
    def opened(way: str) -> kvstream.Model:
        return kvstream.load(
            "reader", skim="pocket", skim_by=way, quantize=given.quantize, threads=1
        )

    report([*measure(trials, Records(given.save))], given.cases)


def report(found: Sequence[Record], cases: Sequence[str]) -> None:
    """Print a row for each case, over the texts that all cases have."""
    by = {(r["case"], r["trial"]): r for r in found}
    numbers = sorted({n for _, n in by if all((name, n) in by for name in cases)})
    for name in cases:
        rows = [by[name, n] for n in numbers]
        line = f"{name:8} {len(rows)} texts, {sum(r['seconds'] for r in rows) / len(rows):.1f} s"
        for kind in (*KINDS, ""):
            some = [a for r in rows for a in r["answers"] if kind in ("", a["kind"])]
            right, score = sum(a["right"] for a in some), sum(a["f1"] for a in some) / len(some)
            line += f" | {kind or 'all'} {right} of {len(some)}, F1 {100 * score:.1f}"
        pairs = [
            [sum(a["f1"] for a in by[c, n]["answers"]) for c in (name, cases[-1])] for n in numbers
        ]
        rng, shares = random.Random(0), []
        for _ in range(RESAMPLED):
            drawn = rng.choices(pairs, k=len(pairs))
            shares.append(sum(a for a, _ in drawn) / max(sum(b for _, b in drawn), 1e-9))
        shares.sort()
        share = sum(a for a, _ in pairs) / max(sum(b for _, b in pairs), 1e-9)
        low, high = shares[RESAMPLED // 40], shares[-RESAMPLED // 40]
        print(f"{line} | share {share:.0%} ({low:.0%} to {high:.0%})", flush=True)


if __name__ == "__main__":
    main()
