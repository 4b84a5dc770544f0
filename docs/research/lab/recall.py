"""Measure how often a passage with the answer is among the first that words choose.

    python docs/research/lab/recall.py ../shared/data/qa/fairytaleqa_val

Stories of FairytaleQA are joined to long texts. The passage of a question is the one of its section
that shares most words with the answer. A row has the share of the questions for which such a
passage is among the first 1, 4, 12, 24 and 48. See docs/research/answers.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvstream.api.source_objects import open_sources
from kvstream.passages.bm25 import words_of
from kvstream.passages.memory import PassageMemory

FIRST = (1, 4, 12, 24, 48)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)


def places(text: str, asked: list[dict[str, Any]]) -> Iterator[int]:
    """Yield the place in the ranking, from 0, of the first passage that has the answer."""
    passages = PassageMemory(10**9, [each["question"] for each in asked])
    for block in open_sources(None, text=text):
        passages.feed(block)
    passages.note(len(text.encode()), final=True)
    for each in asked:
        start = text.encode().find(section := each["context"].strip().encode())
        answer = set(words_of(each["answers"][0]))
        shared = {
            i: len(answer & set(words_of(one.own_text)))
            for i, one in enumerate(passages.excerpts)
            if one.start < start + len(section) and one.end > start
        }
        best = {i for i, n in shared.items() if n == max(shared.values())}
        order = [*map(id, passages.ranked(each["question"], None, ())(None))]
        yield min(order.index(id(passages.excerpts[i])) for i in best)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "data", help="questions are in DATA.jsonl.gz, in DATA_stories.jsonl.gz texts"
    )
    parser.add_argument("--stories", type=int, default=8, help="of a text")
    parser.add_argument("--questions", type=int, default=12, help="about each story")
    given = parser.parse_args()
    stories = {
        each["doc_id"]: each["text"] for each in lines(Path(f"{given.data}_stories.jsonl.gz"))
    }
    asked: dict[str, list[dict[str, Any]]] = {}
    for each in lines(Path(f"{given.data}.jsonl.gz")):
        if each["explicit"] and each["context"].strip() in stories.get(each["doc_id"], ""):
            asked.setdefault(each["doc_id"], []).append(each)
    rng = random.Random(1)
    found: list[int] = []
    names = sorted(asked)
    rng.shuffle(names)
    for at in range(0, len(names), given.stories):
        text = names[at : at + given.stories]
        some = [q for n in text for q in rng.sample(asked[n], min(given.questions, len(asked[n])))]
        found += places("\n\n".join(stories[name] for name in text), some)
    print(f"{len(found):,} questions", *(
        f"first {n}: {sum(place < n for place in found) / len(found):.1%}" for n in FIRST
    ), sep=", ")  # fmt: skip


if __name__ == "__main__":
    main()
