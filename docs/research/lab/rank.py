"""Measure how well a ranking of many question-free memories finds the one that is asked about.

    python docs/research/lab/rank.py ../shared/data/qa build/memories --stories 200

The script makes one memory for each story of FairytaleQA, once. Then it asks questions that name
somebody or something of their story. It prints how often the right story is first and among the
first three: for the ranking of the memories, and for BM25 over the full texts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from rank_bm25 import BM25Okapi

import kvstream
from kvstream.collection.rank import LOADED, by_words, memory_files, rank
from kvstream.evaluation.intervals import wilson
from kvstream.memory.saving import look

NAME = re.compile(r"(?<!^)\b[A-Z][a-z]{2,}")


def records(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stories", type=int, default=200)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--budget", default="1k")
    parser.add_argument("--loaded", type=int, default=LOADED, help="memories that are compared")
    parser.add_argument("--links", type=int, help="rank so many files, links to the memories")
    options = parser.parse_args()
    torch.set_num_threads(1)
    stories: dict[str, str] = {}
    for part in ("val", "train"):
        for record in records(options.data / f"fairytaleqa_{part}_stories.jsonl.gz"):
            stories.setdefault(record["doc_id"], record["text"])
    chosen = list(stories)[: options.stories]
    options.out.mkdir(parents=True, exist_ok=True)
    model = kvstream.load("pocket")
    file_of = {}
    began = time.process_time()
    for doc_id in chosen:
        file_of[doc_id] = path = options.out / f"{doc_id.partition(':')[2]}.kvs"
        if not path.exists():
            memory = model.read(
                text=stories[doc_id], budget=options.budget,
                method="keydiff", set={"keydiff.pool": "15"},
            )  # fmt: skip
            memory.save(path)
    print(f"{len(chosen)} memories, {time.process_time() - began:.0f} s", flush=True)
    if options.links:
        many(model, memory_files(options.out), options.out / "links", options.links)
        return
    if not options.questions:
        return
    asked = []
    for part in ("val", "train"):
        asked += [
            (r["doc_id"], r.get("question") or r["questions"][0])
            for r in records(options.data / f"fairytaleqa_{part}.jsonl.gz")
            if r["doc_id"] in file_of and NAME.search(r.get("question") or r["questions"][0])
        ]
    asked = random.Random(0).sample(asked, min(options.questions, len(asked)))

    def words_of(text: str) -> list[str]:
        return re.findall(r"[^\W_]+", text.casefold())

    index = BM25Okapi([words_of(stories[doc_id]) for doc_id in chosen])
    places: dict[str, list[int]] = {"full texts, BM25": [], "memories, words": [], "memories": []}
    seconds = []
    for doc_id, question in asked:
        scores = index.get_scores(words_of(question))
        order = sorted(range(len(chosen)), key=lambda i: -scores[i])
        places["full texts, BM25"].append([chosen[i] for i in order].index(doc_id))
        files = memory_files(options.out)
        first, _ = by_words(question, files)
        places["memories, words"].append([r.path for r in first].index(file_of[doc_id]))
        began = time.process_time()
        ranked, _ = rank(
            question, files,
            lambda path: model.session.recall(look(path), kvstream_settings()),
            options.loaded,
        )  # fmt: skip
        seconds.append(time.process_time() - began)
        places["memories"].append([r.path for r in ranked].index(file_of[doc_id]))
        with (options.out / "ranked.jsonl").open("a") as log:
            row = [(r.path.stem, r.words, r.gain) for r in ranked[:50]]
            print(json.dumps([doc_id, question, row]), file=log)
    for name, found in places.items():
        for depth in (1, 3):
            right = sum(place < depth for place in found)
            low, high = wilson(right, len(found))
            share = right / len(found)
            print(f"{name:18} first {depth}: {share:.0%} ({low:.0%} to {high:.0%}) of {len(found)}")
    seconds.sort()
    print(f"median {seconds[len(seconds) // 2]:.2f} s of processor time a question")


def many(model: kvstream.Model, made: list[Path], folder: Path, count: int) -> None:
    """Print the cost of ranking `count` files, loading included."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        path = folder / f"{number}.kvs"
        if not path.exists():
            path.hardlink_to(made[number % len(made)])
    files = memory_files(folder)
    question, began = "What did the fox say to the wolf?", time.process_time()
    by_words(question, files)
    words, before = time.process_time() - began, psutil.Process().memory_info().rss
    rank(question, files, lambda path: model.session.recall(look(path), kvstream_settings()))
    whole = time.process_time() - began - words
    grown = (psutil.Process().memory_info().rss - before) / 2**20
    print(f"{count} files: words {words:.1f} s, all {whole:.1f} s, {grown:+.0f} MiB")


def kvstream_settings() -> Any:
    from kvstream.settings import RunSettings

    return RunSettings()


if __name__ == "__main__":
    main()
