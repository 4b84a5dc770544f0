"""Measure which documents' passages the answering model should read of joined memories.

    python docs/research/lab/joined_skim.py build/joined-skim --texts 0 1
    python docs/research/lab/joined_skim.py build/joined-skim --stories ../shared/data/qa

pocket reads eight documents for `reader`, and their memories are joined. The questions are those of
all eight documents. `reader` reads passages that are chosen by pocket's memory and the question's
words. pocket's memory shows all documents, or only the one that has most of the question's words;
the passages are those of all documents, or of that one alone. The script prints the right answers
and F1 of each combination. It needs `kvstream models get reader`.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

import kvstream
from joining import all_in_sight
from kvstream.answer.answering import answered
from kvstream.answer.narrowing import narrowed
from kvstream.answer.skim.kept import KeptPassages
from kvstream.evaluation.metrics import contains, f1
from kvstream.events import Answered
from kvstream.memory.base import Memory
from kvstream.memory.kept import positions
from kvstream.sample.document import generate, questions
from kvstream.session.skimming import Skimmed

DOCUMENTS, FACTS = 8, 6
Asked = list[dict[str, Any]]


def made_up(folder: Path, group: int) -> Iterator[tuple[Path, Asked]]:
    for number in range(DOCUMENTS):
        seed = 1000 + DOCUMENTS * group + number
        path = folder / f"group{group}-{number}.txt"
        path.write_text("".join(generate(tokens=4096, seed=seed, facts=FACTS)))
        yield path, list(questions(facts=FACTS, seed=seed))


def stories(folder: Path, data: Path, group: int) -> Iterator[tuple[Path, Asked]]:
    """Yield stories of FairytaleQA's validation part.

    The answers to their questions are stated in the text.
    """
    texts, rows = (
        [json.loads(row) for row in gzip.decompress(path.read_bytes()).splitlines()]
        for path in (data / f"fairytaleqa_val{kind}.jsonl.gz" for kind in ("_stories", ""))
    )
    for story in texts[DOCUMENTS * group :][:DOCUMENTS]:
        path = folder / f"{story['doc_id']}.txt"
        path.write_text(story["text"])
        own = [r for r in rows if r["doc_id"] == story["doc_id"] and r["explicit"]]
        yield path, own[:: max(1, len(own) // FACTS)][:FACTS]


def chosen_from(skimmed: Skimmed, sources: set[int] | None) -> Skimmed:
    """Return `skimmed` with the passages of some sources only; None: of all."""
    kept = KeptPassages(skimmed.kept.room, skimmed.kept.by)
    kept._kept = [
        each
        for each in skimmed.kept._kept
        if sources is None or each.excerpt.passages[0].source in sources
    ]
    return Skimmed(kept, skimmed.request, skimmed.held, stays=True)


def sources_of(memory: Memory, question: str) -> set[int] | None:
    with narrowed(memory, question) as sight:
        if sight is None:
            return None
        return {i for i, name in enumerate(memory.trace.names) if name in sight.sources}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, nargs="*", default=[0])
    parser.add_argument("--stories", type=Path, help="a folder with FairytaleQA")
    parser.add_argument("--budget", type=int, default=512, help="of each memory")
    parser.add_argument("--joined", type=int, default=1024, help="budget of the joined memory")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    model = kvstream.load("reader", skim="pocket", threads=1)
    right: Counter[str] = Counter()
    score: dict[str, float] = defaultdict(float)
    asked = same = 0
    for group in options.texts:
        if options.stories is None:
            found = list(made_up(options.folder, group))
        else:
            found = list(stories(options.folder, options.stories, group))
        files = []
        for path, _ in found:
            file = path.with_suffix(f".{options.budget}.kvs")
            if not file.exists():
                model.read(path, budget=options.budget, max_tokens=32).save(file)
            files.append(file)
        memory = model.merge(files, options.joined)
        assert memory._skim is not None
        skimming, skimmed = memory._skim
        held = skimmed.memory
        places = partial(positions.kept, held)
        for number, (_, own) in enumerate(found):
            for each in own:
                asked += 1
                question, known = each["question"], each["answers"]
                best = sources_of(held, question)
                same += best == {number}
                said: dict[str, str] = {}
                for way in ("all, all", "one, all", "one, one"):
                    with all_in_sight() if way.startswith("all") else nullcontext():
                        first, basis = answered(held, question)
                    some = chosen_from(skimmed, best if way.endswith("one") else None)
                    excerpts = skimming.chosen(some, question, basis)
                    key = json.dumps(excerpts.to_json())
                    if key not in said:
                        events = skimming.answered_from(some, first, excerpts, 0, places)
                        said[key] = next(e.result.answer for e in events if isinstance(e, Answered))
                    right[way] += any(contains(said[key], text) for text in known)
                    score[way] += max(f1(said[key], text) for text in known)
                print(asked, dict(right), {k: round(v, 2) for k, v in score.items()}, flush=True)
        print(f"the question's words name the right document: {same} of {asked}")
        for way, count in right.items():
            print(f"memory, passages: {way:10} {count} of {asked}, F1 {score[way] / asked:.2f}")


if __name__ == "__main__":
    main()
