"""Measure whether the place of an answer in a novel is found, and whether a model answers.

    python docs/research/lab/novels.py ../shared/data/books -m reader-0.5b

The questions (`questions/novels.jsonl`) are in the words of a person who remembers the story, with
the bytes of the book that hold the answer; of the held-out ones, the first 40 are as a person asks,
the other 40 in other words than the book's. The first line has how many of these places are among
the first passages that words choose; with -m, the other lines have how many answers contain a right
one, how many are refusals, and how many have a warning. See docs/research/answers.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import kvstream
from kvstream.answer.support import abstains
from kvstream.api.source_objects import open_sources
from kvstream.evaluation.confidence import wilson
from kvstream.passages.memory import PassageMemory

FIRST = (1, 4, 12, 24, 48, 100, 200)
QUESTIONS = Path(__file__).parent / "questions"


def place(passages: PassageMemory, row: dict[str, Any]) -> int:
    """Return the rank, from 0, of the first passage with a part of the place of an answer."""
    ranked = passages.ranked(row["question"], None, ())(None)
    return next(
        i for i, one in enumerate(ranked) if one.start < row["end"] and one.end > row["begin"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("books", type=Path, help="the folder with BOOK.txt.gz")
    parser.add_argument("--questions", default="novels.jsonl", help="or novels-held-out.jsonl")
    parser.add_argument("-m", "--model", help="that answers")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    model = (
        kvstream.load(options.model, skim="words", threads=options.threads)
        if options.model
        else None
    )
    rows = [json.loads(line) for line in (QUESTIONS / options.questions).read_text().splitlines()]
    ranks: list[int] = []
    right = refused = doubted = warned = 0
    for book, group in groupby(rows, key=lambda row: row["book"]):
        own, path = [*group], options.books / f"{book}.txt.gz"
        text = gzip.decompress(path.read_bytes()).decode()
        passages = PassageMemory(10**9, [row["question"] for row in own])
        for block in open_sources(None, text=text):
            passages.feed(block)
        passages.note(len(text.encode()), final=True)
        ranks += [place(passages, row) for row in own]
        if model is None:
            continue
        for row in own:
            result = model.ask(text=text, question=row["question"])
            answer = result.text
            refused += abstains(answer)
            good = any(each.lower() in answer.lower() for each in row["answers"])
            right += good
            doubted += bool(result.warnings) and good
            warned += bool(result.warnings) and not good and not abstains(answer)
            print(f"{'right' if good else '     '} {answer!r} ({row['question']})", flush=True)
    print(f"{len(ranks)} questions", *(
        f"first {n}: {sum(rank < n for rank in ranks)}" for n in FIRST
    ), sep=", ")  # fmt: skip
    if model:
        low, high = wilson(right, len(rows))
        wrong = len(rows) - right - refused
        print(
            f"{options.model}: {right} right ({low:.0%} to {high:.0%}), {doubted} of them with a "
            f"warning; {refused} refused; {wrong} wrong, {warned} of them with a warning"
        )


if __name__ == "__main__":
    main()
