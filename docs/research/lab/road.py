"""Measure answers to people's questions about paragraphs in long texts, as `kvstream ask` does it.

    python docs/research/lab/road.py -m reader --limit 150 --save road.jsonl
    python docs/research/lab/road.py -m reader --limit 150 --stories --save road.jsonl

A paragraph of a held-out document stands at a random depth in text of held-out novels; with
--stories, among the other paragraphs of its document. A person asked the question about it. Rows:
`words` (a word search keeps the passages), `pocket` (pocket reads all of the text for the model),
`paragraph` (the model gets the right paragraph alone: what it can reach). A row has F1 with its 95%
interval, in how many texts the model read the answer in its paragraph, and processor seconds
without loading; `together`: as `words`, with the questions of the six cases before it in the same
run; `absent`: as `words`, without the paragraph, so that a refusal is right. The last rows are of
the third of the questions that share the fewest words with their paragraph. The same command
resumes a stopped run. See docs/research/answers.md.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import kvstream
from kvstream.answer.support import abstains, matter
from kvstream.evaluation import metrics
from kvstream.evaluation.confidence import mean_interval
from kvstream.evaluation.filler import Filler, insert
from kvstream.run.prompt import REFUSAL
from kvstream.session.session import Session
from kvstream.settings import ModelSettings
from kvstream_lab.synthetic.corpus import Corpus, HumanContext

SETS = ("squadshifts_newwiki", "fairytaleqa_train", "nq_oracle_train")
PARAGRAPH, TOGETHER, ABSENT = "paragraph", "together", "absent"
DRAWN = 90
"""Paragraphs that are drawn from each set, so that --limit does not change the first cases."""

Case = tuple[HumanContext, str, str, str]
"""A paragraph, the text around and with it, a question, its answer."""


def cases(data: Path, tokens: int, stories: bool) -> Iterator[Case]:
    """Yield cases, the same in every run; `tokens` are pocket's."""
    corpus, rng = Corpus(data, heldout=True), random.Random(0)
    tokenizer = Session.open(ModelSettings(model="pocket", threads=1)).tokenizer
    filler = Filler("\n\n".join(corpus.books), "books")
    usable = [[c for c in corpus.human(name) if inside(c)] for name in SETS]
    drawn = [rng.sample(contexts, min(DRAWN, len(contexts))) for contexts in usable]
    for number in range(DRAWN * len(SETS)):
        contexts = drawn[number % len(SETS)]
        context = contexts[number // len(SETS) % len(contexts)]
        question, answer = rng.choice(inside(context))
        if stories:
            near = [c.text for c in corpus.human(context.source) if c.doc_id == context.doc_id]
            text = "\n\n".join(near)
        else:
            novel = filler.cut(tokenizer, tokens, rng)
            text = insert(novel, tokenizer, [(rng.random(), context.text)])
        yield context, text, question, answer


def inside(context: HumanContext) -> list[tuple[str, str]]:
    """Return the questions of a paragraph that have their answers in its text."""
    return [(q, a) for q, a in context.questions if a != REFUSAL and a in context.text]


def trial(
    model: kvstream.Model, text: str, case: Case, others: Sequence[str], **options: Any
) -> dict[str, Any]:
    """Return what the model answers about a text, which has the paragraph of the case.

    `others` are questions that are asked before it, in the same run.
    """
    context, _, question, answer = case
    start = time.process_time()
    events = model.stream(text=text, questions=[*others, question], max_tokens=32, **options)
    *_, last = (event.result for event in events if isinstance(event, kvstream.Answered))
    result = last.to_json()
    seconds = time.process_time() - start
    data = text.encode()
    if context.text not in text:
        right = abstains(result["answer"])
        return {
            "answer": result["answer"],
            "f1": float(right),
            "read": 0,
            "seconds": round(seconds, 2),
        }
    first = data.index(context.text[:200].encode())
    end = first + len(context.text.encode())
    pieces = (result.get("skim") or {}).get("pieces", [{"byte_start": first, "byte_end": end}])
    parts = [
        data[max(first, p["byte_start"]) : min(end, p["byte_end"])].decode("utf-8", "ignore")
        for p in pieces
    ]
    return {
        "answer": result["answer"],
        "f1": metrics.best(metrics.f1, result["answer"], context.accepted[question]),
        "read": " ".join(answer.split()) in " ".join(" ".join(parts).split()),
        "seconds": round(seconds, 2),
    }


def table(title: str, records: list[dict[str, Any]], rows: list[str]) -> None:
    print(f"{title}, {len(records)} questions")
    for row in rows:
        own = [r[row] for r in records]
        f1, low, high = mean_interval([o["f1"] for o in own], [r["document"] for r in records])
        read, seconds = sum(o["read"] for o in own), sum(o["seconds"] for o in own) / len(own)
        score = "refused" if row == ABSENT else "F1"
        print(f"{row:9} {score} {f1:.1%} ({low:.1%} to {high:.1%}), read {read}, {seconds:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="reader")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--limit", type=int, default=30, help="questions")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--stories", action="store_true")
    parser.add_argument("--budget", default="1k")
    parser.add_argument("--rows", default="words,paragraph")
    parser.add_argument("--save", type=Path, required=True)
    given = parser.parse_args()
    rows = given.rows.split(",")
    by = {PARAGRAPH: None, TOGETHER: "words", ABSENT: "words"}
    scouts = {row: by.get(row, row) for row in rows}
    how = {"threads": 1, "dtype": given.dtype}
    models = {r: kvstream.load(given.model, skim=s, **how) for r, s in scouts.items()}
    kind = "documents" if given.stories else "novels"
    saved = [json.loads(line) for line in given.save.open()] if given.save.is_file() else []
    own_run = {"model": given.model, "kind": kind}
    done = {r["number"]: r for r in saved if own_run.items() <= r.items() and r.keys() >= set(rows)}
    drawn = islice(cases(given.data, given.tokens, given.stories), given.limit)
    earlier: deque[str] = deque(maxlen=6)
    for number, case in enumerate(drawn):
        context, text, question, _ = case
        if number in done:
            earlier.append(question)
            continue
        words = matter(question)
        record = done[number] = {
            **own_run, "number": number, "document": context.doc_id, "question": question,
            "shared": len(words & matter(context.text)) / max(len(words), 1),
        }  # fmt: skip
        for row, model in models.items():
            alone = row == PARAGRAPH
            budget = "2k" if alone else given.budget
            others = earlier if row == TOGETHER else ()
            shown = context.text if alone else text
            if row == ABSENT:
                shown = text.replace(context.text, "")
            record[row] = trial(model, shown, case, others, budget=budget)
        earlier.append(question)
        with given.save.open("a") as file:
            print(json.dumps(record), file=file)
    records = [r for r in done.values() if r["number"] < given.limit]
    table(f"{given.model}, {kind}", records, rows)
    records.sort(key=lambda r: r["shared"])
    table("the third with the fewest shared words", records[: max(1, len(records) // 3)], rows)


if __name__ == "__main__":
    main()
