r"""Measure how well signals tell a right answer from a wrong one.

    python docs/research/lab/support.py collect answers.jsonl --data ../shared/data
    python docs/research/lab/support.py fit answers.jsonl \
        --write kvstream/store/pocket/support.json
    python docs/research/lab/support.py -m reader collect answers.jsonl \
        --kinds alone,elsewhere,unanswerable --limit 240
    python docs/research/lab/support.py refusals answers.jsonl

`collect` asks questions of texts that the model was not trained on, and writes each answer with its
signals and whether it is right. The texts are paragraphs alone, paragraphs among others, and novels
with facts and keys that are planted or not, or with questions made by rule. About a third of the
questions have no answer in the text. `collect` resumes after what the file holds.

`fit` leaves out refusals, since they claim nothing. It halves the documents, fits a logistic
regression on one half, and prints how well each signal and all of them separate the answers of the
other half. With --folds, each answer is measured with a fit on other documents, and the fit on all
of them ships. `refusals` prints what another limit on the log-odds of a refusal would change. See
docs/research/answers.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvstream.answer import answering
from kvstream.answer.answering import result_of
from kvstream.answer.sampling import RefusalLimit
from kvstream.answer.support import SIGNALS, signals
from kvstream.errors import UsageError
from kvstream.evaluation.confidence import wilson
from kvstream.evaluation.datasets import Item, Question
from kvstream.evaluation.filler import Filler, insert
from kvstream.evaluation.harness import document
from kvstream.evaluation.metrics import abstains, best, contains, f1
from kvstream.evaluation.qa import choose, elsewhere
from kvstream.evaluation.splits import is_heldout
from kvstream.events import returned
from kvstream.input.sources import open_sources
from kvstream.run.prompt import REFUSAL
from kvstream.run.request import Request
from kvstream.sample.document import make_facts
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream_lab.ordinary import has_rare_word, ordinary
from kvstream_lab.synthetic.questions import from_sentence

BLIND = ("dracula", "frankenstein", "pride-and-prejudice", "treasure-island", "war-and-peace",
         "hound-of-the-baskervilles")  # fmt: skip
GOOD = 0.5
"""F1 from which an answer counts as right if it does not contain the reference."""


@dataclass(frozen=True)
class Case:
    """A text, and the questions that are asked after one reading of it."""

    kind: str
    document: str
    """Document that the text is from. The halves consist of whole documents."""
    text: str
    questions: tuple[Question, ...]


def paragraphs(data: Path, seed: int) -> Iterator[Case]:
    """Yield paragraphs alone, and the same questions asked about others.

    Paragraphs without an answer and several paragraphs in a longer text follow.
    """
    sets = {"squadshifts_newwiki": 120, "fairytaleqa_train": 90, "fairytaleqa_val": 30,
            "nq_oracle_train": 60, "quac_subset": 30}  # fmt: skip
    every: list[Item] = []
    for name, count in sets.items():
        file = str(data / "qa" / f"{name}.jsonl.gz")
        items = [single(i, seed) for i in choose([file], [], count * 2, seed, heldout=True)]
        items = [i for i in items if i.questions[0].answers]
        every += items[count:]
        for item in items[:count]:
            yield Case(f"alone {name}", item.document, item.context, item.questions)
        for item in elsewhere(items[: count // 3], seed):
            yield Case("elsewhere", item.document, item.context, item.questions)
    file = str(data / "qa" / "squad2_unanswerable.jsonl.gz")
    for item in choose([file], [], 50, seed, heldout=True):
        question = replace(single(item, seed).questions[0], answers=())
        yield Case("unanswerable", item.document, item.context, (question,))
    rng = random.Random(seed)
    rng.shuffle(every)
    for start in range(0, min(len(every), 240) - 8, 6):
        asked, others = every[start : start + 2], rng.sample(every, 30)
        texts = [i.context for i in (*asked, *others)]
        rng.shuffle(texts)
        said = "\n\n".join(texts)
        absent = next(i for i in every if i.context not in texts)
        questions = [i.questions[0] for i in asked]
        questions.append(replace(absent.questions[0], answers=()))
        yield Case("among", asked[0].document, said, tuple(questions))


def single(item: Item, seed: int) -> Item:
    rng = random.Random(f"{seed} {item.id}")
    return replace(item, questions=(rng.choice(item.questions),))


def novels(data: Path, session: Session, seed: int) -> Iterator[Case]:
    """Yield novels with planted facts and keys, and with questions made by rule.

    Some questions ask for facts that are not planted.
    """
    names = sorted((data / "books").glob("*.txt.gz"))
    names = [n for n in names if is_heldout(n.name.partition(".")[0])]
    names = [n for n in names if not any(b in n.name for b in BLIND)]
    for number in range(56):
        rng = random.Random(f"{seed} {number}")
        file = names[number % len(names)]
        text = Filler.of([str(file)]).cut(session.tokenizer, rng.choice((2048, 4096, 8192)), rng)
        stem = file.name.partition(".")[0]
        if number % 2:
            try:
                made = ordinary(text, [rng.random() for _ in range(10)], rng, from_sentence)
            except UsageError:
                continue
            # Without a rare word, a question could have answers in several places.
            made = [f for f in made if has_rare_word(f.question, text)][:4]
            asked = [Question(f.question, f.answers) for f in made]
            yield Case("rule", stem, text, tuple(asked))
        else:
            facts = make_facts(12, seed=seed * 1000 + number)
            rng.shuffle(facts)
            there, not_there = facts[:4], facts[4:7]
            text = insert(text, session.tokenizer, [(f.depth, f.sentence) for f in there])
            asked = [Question(f.question, f.answers) for f in there]
            asked += [Question(f.question, ()) for f in not_there]
            yield Case("planted", stem, text, tuple(asked))


def answers(session: Session, case: Case, run: RunSettings) -> Iterator[dict[str, Any]]:
    """Yield each answer with its signals."""
    asked = [q.text for q in case.questions]
    with document(case.text) as path:
        reading = session.read(open_sources([path], plain=True), Request(tuple(asked), run))
        memory = returned(reading)
    for question in case.questions:
        with Refusing(session.tokenizer) as refusing:
            result, basis = result_of(memory, question.text)
        otherwise = None
        if abstains(result.answer):
            with Refusing(session.tokenizer, banned=True):
                otherwise = result_of(memory, question.text)[0].answer
        found = signals(basis, result.question, result.answer) if result.answer else {}
        assert result.coverage is not None
        yield {
            "kind": case.kind,
            "document": case.document,
            "tokens": result.read,
            "question": question.text,
            "expected": list(question.answers),
            "answer": result.answer,
            "otherwise": otherwise,
            "odds": refusing.odds,
            "stopped": result.stopped,
            "refused": abstains(result.answer),
            "right": is_right(result.answer, question.answers),
            "coverage": result.coverage["share"],
            "signals": found,
        }


def is_right(answer: str, accepted: Sequence[str]) -> bool:
    return bool(accepted) and (
        best(f1, answer, accepted) >= GOOD or any(contains(answer, a) for a in accepted)
    )


class Refusing:
    """Records how likely an answer is to begin as a refusal; if `banned`, prevents it.

    The log-odds are those of the first token of a refusal against the best other one.
    """

    def __init__(self, tokenizer: Any, *, banned: bool = False) -> None:
        refusals = (tokenizer.encode(start + REFUSAL) for start in ("", " "))
        self.first = sorted({ids[0] for ids in refusals})
        self.banned = banned
        self.odds: float | None = None

    def __enter__(self) -> Refusing:
        self.usual = answering.make_sampler
        answering.make_sampler = self.sampler  # type: ignore[assignment]
        return self

    def __exit__(self, *error: object) -> None:
        answering.make_sampler = self.usual

    def sampler(
        self, run: RunSettings, refusal: RefusalLimit | None
    ) -> Callable[[torch.Tensor], int]:
        choose = self.usual(run, refusal)

        def first(logits: torch.Tensor) -> int:
            if self.odds is None:
                others = logits.clone()
                others[self.first] = -torch.inf
                self.odds = round(float(logits[self.first].max() - others.max()), 4)
                return choose(others if self.banned else logits)
            return choose(logits)

        return first


def collect(asked: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    session = Session.open(ModelSettings(model=asked.model))
    data, file = Path(asked.data), Path(asked.file)
    kinds = tuple(asked.kinds.split(","))
    cases = [c for c in paragraphs(data, asked.seed) if c.kind.startswith(kinds)]
    if any(kind.startswith(kinds) for kind in ("rule", "planted")):
        made = novels(data, session, asked.seed)
        cases += [c for c in made if c.kind.startswith(kinds)]
    random.Random(asked.seed).shuffle(cases)
    cases = cases[: asked.limit]
    done = file.read_text("utf-8").splitlines() if file.is_file() else []
    first = json.loads(done[-1])["text"] + 1 if done else 0
    count = len(done)
    began = time.process_time()
    run = RunSettings(Budget(tokens=asked.budget), max_tokens=32)
    with file.open("a", encoding="utf-8") as out:
        for number, case in enumerate(cases[first:], first):
            spent = time.process_time() - began
            if spent > 60 * asked.minutes:
                break
            found = list(answers(session, case, run))
            count += len(found)
            out.writelines(json.dumps({**record, "text": number}) + "\n" for record in found)
            out.flush()
            if number % 20 == 0:
                print(f"{number} of {len(cases)} texts, {count} answers, {spent:.0f} s",
                      file=sys.stderr, flush=True)  # fmt: skip


def part_of(record: dict[str, Any], parts: int) -> int:
    """Return the number of a part; all answers about a document are in the same one."""
    return hashlib.sha256(record["document"].encode()).digest()[0] % parts


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def area(scores: np.ndarray, right: np.ndarray) -> float:
    """Return the area under the ROC curve: how often right answers score above wrong ones."""
    good, bad = scores[right][:, None], scores[~right][None]
    return float(((good > bad) + 0.5 * (good == bad)).mean())


def regression(x: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, float]:
    """Return weights and bias of a logistic regression; the penalty is on standardized weights."""
    mean, scale = x.mean(0), x.std(0) + 1e-9
    z = np.c_[(x - mean) / scale, np.ones(len(x))]
    weights, penalty = np.zeros(z.shape[1]), np.r_[np.ones(x.shape[1]), 0.0]
    for _ in range(50):  # Newton's method
        p = sigmoid(z @ weights)
        gradient = z.T @ (p - right) + penalty * weights
        curvature = (z * (p * (1 - p))[:, None]).T @ z + np.diag(penalty)
        weights = weights - np.linalg.solve(curvature, gradient)
    raw = weights[:-1] / scale
    return raw, float(weights[-1] - raw @ mean)


def read(files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the answers of files, each once."""
    seen: set[tuple[str, str]] = set()
    for file in files:
        for record in map(json.loads, Path(file).read_text("utf-8").splitlines()):
            key = record["kind"], record["question"]
            if key not in seen:
                yield record
            seen.add(key)


def refusals(asked: argparse.Namespace) -> None:
    """Print what changes if answers become refusals at other log-odds than the model's 0."""
    every = [r for r in read(asked.files) if r["odds"] is not None]
    absent = [r for r in every if not r["expected"]]
    present = [r for r in every if r["expected"]]
    print(f"{len(present)} questions with an answer in the text, {len(absent)} without")
    for kind in sorted({r["kind"] for r in absent}):
        own = np.array([r["odds"] for r in absent if r["kind"] == kind])
        there = np.array([r["odds"] for r in present])
        both = np.r_[own, there], np.r_[np.ones(len(own), bool), np.zeros(len(there), bool)]
        print(f"\n{kind} ({len(own)}) against all with an answer: area {area(*both):.2f}")
        print("limit  recognized  refused with an answer  F1 of those with an answer")
        for limit in (-3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0):
            score = [best(f1, at_limit(r, limit), r["expected"]) for r in present]
            print(f"{limit:5}  {rate(own > limit):>10}  {rate(there > limit):>22}  "
                  f"{100 * np.mean(score):.1f}")  # fmt: skip


def at_limit(record: dict[str, Any], limit: float) -> str:
    """Return the answer if log-odds above `limit` were refused, and no others."""
    if record["odds"] > limit:
        return REFUSAL
    return record["otherwise"] if record["refused"] else record["answer"]


def rate(which: np.ndarray) -> str:
    return f"{which.sum()} of {len(which)}"


def fit(asked: argparse.Namespace) -> None:
    records = list(read(asked.files))
    refused = [r for r in records if r["refused"]]
    claims = [r for r in records if not r["refused"] and r["signals"]]
    right = np.array([r["right"] for r in claims])
    part = np.array([part_of(r, asked.folds or 2) for r in claims])
    test = part >= 0 if asked.folds else part == 1
    print(f"{len(records)} answers, {len(refused)} refusals left out; of the other {len(claims)} "
          f"{right.sum()} are right, {test.sum()} are measured on")  # fmt: skip
    x = np.array([[r["signals"][name] for name in SIGNALS] for r in claims])
    for name, column in zip(SIGNALS, x.T, strict=True):
        print(f"  {name:20} {area(column[test], right[test]):.3f}")

    def fitted(learned: np.ndarray) -> tuple[np.ndarray, float, np.ndarray, float]:
        """Return weights, bias, the probability of each answer, and the limit of the warning."""
        weights, bias = regression(x[learned], right[learned])
        probability = sigmoid(x @ weights + bias)
        limit = float(np.quantile(probability[learned & right], asked.warned))
        return weights, bias, probability, limit

    said, warned = np.zeros(len(claims)), np.zeros(len(claims), dtype=bool)
    for number in sorted(set(part[test])):
        own = part == number
        weights, bias, probability, limit = fitted(~own)
        said[own], warned[own] = probability[own], probability[own] < limit
    if asked.folds:
        weights, bias, _, limit = fitted(test)
    told = counts(warned, test, right)
    print(f"together: {area(said[test], right[test]):.3f}")
    for kind, name in (("right", "right_warned"), ("wrong", "wrong_not_warned")):
        n, k = told[kind], told[name]
        if n:
            low, high = wilson(k, n)
            print(f"  {name} {k} of {n}: {k / n:.0%} ({low:.0%} to {high:.0%})")
    if asked.write:
        place = Path(asked.write)
        known = json.loads(place.read_text("utf-8")) if place.is_file() else {}
        content = {
            **{name: known[name] for name in ("wording",) if name in known},
            "about": "docs/research/answers.md, Citations and the warning; "
            "docs/research/lab/support.py",
            "bias": round(bias, 4),
            "weights": {n: round(float(w), 4) for n, w in zip(SIGNALS, weights, strict=True)},
            "threshold": round(limit, 4),
            "refusal_limit": asked.refusal_limit,
            "measured": told,
        }
        place.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def counts(warned: np.ndarray, part: np.ndarray, right: np.ndarray) -> dict[str, int]:
    good, bad = part & right, part & ~right
    return {
        "right": int(good.sum()), "right_warned": int((warned & good).sum()),
        "wrong": int(bad.sum()), "wrong_not_warned": int((~warned & bad).sum()),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", "-m", default="pocket")
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("collect")
    one.add_argument("file")
    one.add_argument("--data", default="../shared/data")
    one.add_argument("--budget", type=int, default=1024)
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--limit", type=int, help="texts")
    one.add_argument("--kinds", default="", help="of texts, by how their names begin")
    one.add_argument("--minutes", type=float, default=10**6, help="of processor time")
    one.set_defaults(act=collect)
    two = commands.add_parser("fit")
    two.add_argument("files", nargs="+")
    two.add_argument("--folds", type=int, help="fit on all documents, measure on parts left out")
    two.add_argument("--warned", type=float, default=0.15)
    two.add_argument("--write")
    two.add_argument("--refusal-limit", type=float, default=0.0, help="log-odds of a refusal")
    two.set_defaults(act=fit)
    three = commands.add_parser("refusals")
    three.add_argument("files", nargs="+")
    three.set_defaults(act=refusals)
    options = parser.parse_args()
    options.act(options)
