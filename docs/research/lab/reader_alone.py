"""Measure one model that reads a long text alone: people's questions, facts and keys in novels.

    python docs/research/lab/reader_alone.py --tokens 32768 --texts 4 --out build/alone.jsonl

Each text of held-out books has paragraphs of held-out documents, made-up facts and keys at random
depths. All questions are known before the one reading. The same model is also asked about each
paragraph alone, and the share of that F1 is what memory kept. With --skim MODEL another model reads
the text, with --skim words a word search. The script prints the right answers about keys and facts,
and both F1. It stops after --minutes of processor time, and resumes from what --out holds. See
docs/research/skim.md.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kvstream.api.options import WORD_SEARCH
from kvstream.evaluation import metrics
from kvstream.evaluation.filler import Filler, insert
from kvstream.evaluation.harness import ask, document
from kvstream.evaluation.intervals import mean_interval, wilson
from kvstream.events import Answered
from kvstream.input.sources import open_sources
from kvstream.run.prompt import REFUSAL
from kvstream.run.request import Request
from kvstream.sample.document import make_facts
from kvstream.session.searching import Searching
from kvstream.session.session import Session
from kvstream.session.skimming import Skimming
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream_lab.synthetic.corpus import Corpus

SETS = ("squadshifts_newwiki", "fairytaleqa_train", "nq_oracle_train")

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--data", type=Path, default=Path("../shared/data"))
parser.add_argument("--model", default="reader")
parser.add_argument("--skim")
parser.add_argument("--tokens", type=int, default=32768)
parser.add_argument("--budget", type=int, default=1024)
parser.add_argument("--texts", type=int, default=4)
parser.add_argument("--paragraphs", type=int, default=3, help="in each text; one of each set")
parser.add_argument("--facts", type=int, default=2)
parser.add_argument("--keys", type=int, default=2)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--minutes", type=float, default=10**6)
parser.add_argument("--out", type=Path)
given = parser.parse_args()
torch.set_num_threads(1)
session = Session.open(ModelSettings(model=given.model))
pair: Skimming | Searching | None = None
if given.skim == WORD_SEARCH:
    pair = Searching(session)
elif given.skim:
    pair = Skimming(session, Session.open(ModelSettings(model=given.skim)))
run = RunSettings(Budget(tokens=given.budget), max_tokens=32)


Asked = tuple[str, str, tuple[str, ...], str | None]
"""Kind, question, accepted answers, and a paragraph or None."""


def cases() -> Iterator[tuple[str, list[Asked]]]:
    """Yield texts with their questions."""
    corpus, rng = Corpus(given.data, heldout=True), random.Random(given.seed)
    filler = Filler("\n\n".join(corpus.books), "books", given.seed)
    sets = [[c for c in corpus.human(name) if list(_inside(c))] for name in SETS]
    for number in range(given.texts):
        asked: list[Asked] = []
        planted = []
        for index in range(given.paragraphs):
            context = rng.choice(sets[index % len(sets)])
            question, _ = rng.choice(list(_inside(context)))
            accepted = context.accepted[question]
            asked.append((SETS[index % len(sets)], question, accepted, context.text))
            planted.append((rng.random(), context.text))
        made = make_facts(200, given.seed * 1000 + number)
        keys = [f for f in made if f.kind == "passkey"][: given.keys]
        facts = [f for f in made if f.kind != "passkey"][: given.facts]
        for kind, chosen in (("key", keys), ("fact", facts)):
            for fact in chosen:
                asked.append((kind, fact.question, fact.answers, None))
                planted.append((rng.random(), fact.sentence))
        text = filler.cut(session.tokenizer, given.tokens, rng)
        yield insert(text, session.tokenizer, planted), asked


def _inside(context: Any) -> Any:
    return ((q, a) for q, a in context.questions if a != REFUSAL and a in context.text)


def results(text: str, questions: list[str]) -> list[str]:
    if pair is None:
        return [r.answer for r in ask(session, text, questions, run)]
    with document(text) as path:
        events = pair.ask(open_sources([path], plain=True), Request(tuple(questions), run))
        return [e.result.answer for e in events if isinstance(e, Answered)]


def trial(text: str, asked: list[Asked]) -> list[dict[str, Any]]:
    began = time.process_time()
    said = results(text, [question for _, question, _, _ in asked])
    seconds = time.process_time() - began
    rows = []
    for (kind, question, accepted, paragraph), found in zip(asked, said, strict=True):
        row: dict[str, Any] = {
            "kind": kind, "question": question, "answers": accepted, "said": found,
            "f1": metrics.best(metrics.f1, found, accepted),
            "right": metrics.best(metrics.contains, found, accepted) > 0,
            "cpu_s": round(seconds, 1),
        }  # fmt: skip
        if paragraph is not None:
            whole = RunSettings(Budget(tokens=2048), max_tokens=32)
            row["alone"] = ask(session, paragraph, [question], whole)[0].answer
            row["alone_f1"] = metrics.best(metrics.f1, row["alone"], accepted)
        rows.append(row)
    return rows


def main() -> None:
    done: list[list[dict[str, Any]]] = []
    if given.out is not None and given.out.is_file():
        done = [json.loads(line) for line in given.out.read_text("utf-8").splitlines()]
    for number, (text, asked) in enumerate(cases()):
        if number < len(done):
            continue
        if time.process_time() > 60 * given.minutes:
            break
        done.append(trial(text, asked))
        if given.out is not None:
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[-1]) + "\n")
    rows = [row for text in done for row in text]
    for kind in ("key", "fact"):
        own = [r["right"] for r in rows if r["kind"] == kind]
        if own:
            low, high = wilson(sum(own), len(own))
            print(f"{kind}: {sum(own)} of {len(own)} ({low:.0%} to {high:.0%})")
    people = [r for r in rows if "alone" in r]
    for name in ("f1", "alone_f1"):
        if len(people) > 1:
            mean, low, high = (100 * v for v in mean_interval([r[name] for r in people]))
            print(f"{name}: {mean:.1f} ({low:.1f} to {high:.1f}), {len(people)} questions")
    seconds = [text[0]["cpu_s"] for text in done]
    print(f"{len(done)} texts of {given.tokens:,} tokens, {sum(seconds):.0f} s of processor time")


main()
