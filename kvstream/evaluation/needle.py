"""Needles in a haystack: is a sentence at a known depth found after reading?

A needle is a sentence about an invented thing, inserted between two sentences of a long text. Every
method reads the same documents, and knows the question, as in ``kvstream ask``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from kvstream.errors import BudgetError, UsageError
from kvstream.evaluation.confidence import mean_interval, wilson
from kvstream.evaluation.filler import Filler, around, insert
from kvstream.evaluation.harness import ask, model_identity, room_for, too_long
from kvstream.evaluation.metrics import contains, digit_accuracy, exact_match, f1
from kvstream.evaluation.records import CASE_KEYS, Record, Trial, grouped
from kvstream.evaluation.sweep import NEAR, WHOLE, Case
from kvstream.methods.registry import make
from kvstream.run.plan import budget_tokens
from kvstream.sample.document import Fact, make_facts
from kvstream.session.session import Session

TOP = 3
"""Number of first citations among which the planted sentence must be."""
PAIRS = 8
"""Number of key-value pairs in a needle of the kind ``kv``. The question asks for one of them."""
NEAR_SHARE = 0.7
"""Share of the budget for the text around the needle in the view ``near``."""
ROW_KEYS = (*CASE_KEYS, "kind", "tokens", "depth", "needles")
_SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


@dataclass(frozen=True)
class Plan:
    kind: str
    lengths: tuple[int, ...]
    """Tokens of the document, needles included."""
    depths: tuple[float, ...]
    """Depth of the first needle, from 0 (the beginning) to 1."""
    trials: int = 10
    """Number of documents for each length and depth."""
    needles: int = 1
    """Number of needles in each document. All are asked for; the others have random depths."""
    seed: int = 0


def make_needles(plan: Plan, rng: random.Random, first: int) -> list[Fact]:
    """Make needles of the plan's kind; `first` selects the kind of fact, in turn."""
    if plan.kind == "kv":
        return [_pairs(rng) for _ in range(plan.needles)]
    facts = make_facts(12 * (plan.needles + 1), rng.randrange(2**31))
    needles = [f for f in facts if (f.kind == "passkey") == (plan.kind == "passkey")]
    rng.shuffle(needles)
    if plan.kind == "fact":
        kinds = sorted({f.kind for f in needles})
        head = next(f for f in needles if f.kind == kinds[first % len(kinds)])
        needles = [head, *(f for f in needles if f is not head)]
    return needles[: plan.needles]


def _pairs(rng: random.Random) -> Fact:
    keys: list[str] = []
    while len(keys) < PAIRS:
        key = "".join(rng.choices(_SYLLABLES, k=3)) + rng.choice("nrs")
        if key not in keys:
            keys.append(key)
    values = [str(rng.randrange(10_000, 100_000)) for _ in keys]
    lines = "\n".join(f"{k}: {v}" for k, v in zip(keys, values, strict=True))
    place = rng.randrange(PAIRS)
    return Fact(f"What is the value of {keys[place]}?", (values[place],), "kv", 0.0, f"{lines}\n\n")


def haystack(
    session: Session, filler: Filler, plan: Plan, tokens: int, depth: float, trial: int
) -> tuple[str, list[Fact]]:
    """Make the document of a trial, the same for every method, and its needles.

    The first needle has the requested depth. Raise UsageError if the document is too short.
    """
    rng = random.Random(f"{plan.seed} {plan.kind} {tokens} {depth} {trial} {plan.needles}")
    needles = make_needles(plan, rng, trial)
    size = sum(len(session.tokenizer.encode(n.sentence)) + 1 for n in needles)
    if size >= tokens:
        raise UsageError(f"{plan.needles} needles take {size} tokens and do not fit in {tokens}.")
    text = filler.cut(session.tokenizer, tokens - size, rng)
    depths = [depth, *(rng.random() for _ in needles[1:])]
    places = [(d, n.sentence) for d, n in zip(depths, needles, strict=True)]
    return insert(text, session.tokenizer, places), needles


def trials(session: Session, filler: Filler, plan: Plan, cases: Sequence[Case]) -> Iterator[Trial]:
    """Yield every trial. For each document all cases take turns, which balances a stopped run."""
    facts = model_identity(session)
    for tokens in plan.lengths:
        for number in range(plan.trials):
            for depth in plan.depths:
                # Made when the first case needs it.
                document = cache(partial(haystack, session, filler, plan, tokens, depth, number))
                for case in cases:
                    identity: Record = {
                        "bench": "needle", **facts, "kind": plan.kind,
                        **case.identity(), "tokens": tokens, "depth": depth, "trial": number,
                        "needles": plan.needles, "filler": filler.name, "seed": plan.seed,
                    }  # fmt: skip
                    yield Trial(identity, partial(_run, session, case, tokens, document))


def _run(
    session: Session, case: Case, tokens: int, document: Callable[[], tuple[str, list[Fact]]]
) -> Record:
    text, needles = document()
    run = case.run
    if case.view == WHOLE:
        run = room_for(session, run, tokens)
    elif case.view == NEAR:
        needles = needles[:1]
        budget = budget_tokens(session.model, run.budget, make(run.method))
        text = around(text, session.tokenizer, needles[0].sentence, int(NEAR_SHARE * budget))
    start = time.perf_counter()
    try:
        results = ask(session, text, [needle.question for needle in needles], run)
    except BudgetError as error:
        if case.view != WHOLE:
            raise
        raise BudgetError(too_long(error)) from error
    seconds = time.perf_counter() - start
    scores = [_score(n, r.answer) for n, r in zip(needles, results, strict=True)]
    first = results[0]
    return {
        **scores[0],
        "cited": _cites(first.citations, needles[0].sentence),
        **(first.support or {}),
        "question": needles[0].question,
        "expected": needles[0].answers[0],
        "answer": first.answer,
        "fact": needles[0].kind,
        "budget": first.budget_tokens,
        "found": sum(s["right"] for s in scores),
        "read": first.read,
        "retained": first.retained,
        "peak_kv_tokens": first.peak_kv_tokens,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(first.tokens_per_s),
    }


def _score(needle: Fact, answer: str) -> dict[str, Any]:
    expected = needle.answers[0]
    score: dict[str, Any] = {
        "right": any(contains(answer, a) for a in needle.answers),
        "exact": max(exact_match(answer, a) for a in needle.answers),
        "f1": round(max(f1(answer, a) for a in needle.answers), 4),
    }
    if expected.isdigit():
        score["digits"] = digit_accuracy(answer, expected)
    return score


def _cites(citations: Sequence[dict[str, Any]], sentence: str) -> bool:
    """Return whether the first TOP citations include the sentence, whole or in part."""
    sentence = " ".join(sentence.split())
    texts = (" ".join(c["text"].split()) for c in citations[:TOP])
    return any(sentence in t or (t in sentence and 3 * len(t) >= len(sentence)) for t in texts)


def rows(records: Sequence[Record]) -> list[Record]:
    """Return a row for each length, depth and case: the object that ``--json`` prints."""
    return [
        {
            k: round(v, 4) if isinstance(v, float) and k not in ROW_KEYS else v
            for k, v in row.items()
        }
        for row in map(_row, grouped(_with_budgets(records), ROW_KEYS))
    ]


def pooled(records: Sequence[Record]) -> list[Record]:
    """Return a row for each length and case, pooled over the depths, without rounding."""
    keys = [key for key in ROW_KEYS if key != "depth"]
    return [{**_row(group), "depth": None} for group in grouped(_with_budgets(records), keys)]


def _with_budgets(records: Sequence[Record]) -> list[Record]:
    """Give trials that were left out the budget of others of their case, which alone know it."""

    def case(record: Record) -> str:
        return repr([record.get(key) for key in ROW_KEYS if key not in ("budget", "depth")])

    known = {case(r): r.get("budget") for r in records if "error" not in r}
    return [
        {**r, "budget": known.get(case(r), r["budget"])}
        if "error" in r and (r["budget"] is None or r["method"] == WHOLE)
        else r
        for r in records
    ]


def _row(group: list[Record]) -> Record:
    head = {"bench": "needle", **{k: group[0].get(k) for k in ROW_KEYS}}
    trials = [r for r in group if "error" not in r]
    if not trials:
        return {**head, "trials": 0, "right": 0, "error": group[0]["error"]}
    right = sum(bool(r["right"]) for r in trials)
    low, high = wilson(right, len(trials))
    questions = sum(1 if r["method"] == NEAR else int(r["needles"]) for r in trials)
    # Citations only of right answers: a wrong one depends on something else.
    cites = [bool(r["cited"]) for r in trials if r["right"] and r.get("cited") is not None]
    digits = [r["digits"] for r in trials if r.get("digits") is not None]
    row = {
        **head,
        "trials": len(trials),
        "right": right,
        "share": right / len(trials),
        "low": low,
        "high": high,
        "exact": sum(bool(r["exact"]) for r in trials),
        "digits": sum(digits) / len(digits) if digits else None,
        "found": sum(r["found"] for r in trials) / questions,
        "retained": round(sum(r["retained"] for r in trials) / len(trials)),
        "seconds": round(sum(r["seconds"] for r in trials) / len(trials), 3),
        "cited": sum(cites) / len(cites) if cites else None,
    }
    overlap = [r["f1"] for r in trials if "f1" in r]  # records of older versions have none
    if overlap:
        row["f1"], low, high = mean_interval(overlap)
        if low < high:  # one document, or equal scores, do not tell how scores vary
            row |= {"f1_low": low, "f1_high": high}
    return row


def so_far(records: Sequence[Record]) -> str:
    """Return a line to show during the run: the results of the last record's case and length."""
    last = records[-1]
    same = [
        r
        for r in records
        if all(r.get(k) == last.get(k) for k in ROW_KEYS if k != "depth") and "error" not in r
    ]
    right = sum(bool(r["right"]) for r in same)
    return f"{last['method']} at {last['tokens']:,} tokens: {right} of {len(same)} right"
