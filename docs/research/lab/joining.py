"""Measure what joined memories still know, of the parts of one text and of several documents.

    python docs/research/lab/joining.py shards build/joining
    python docs/research/lab/joining.py documents build/joining
    python docs/research/lab/joining.py together build/joining

shards     keys and facts in texts of 128k tokens, with the questions known: one reader under the
           budget, and eight parts whose memories are joined into one budget
documents  question-free memories of eight documents, joined into 4,096 entries (the trained length
           of pocket), and the memory of the right document alone. The joined memory answers as it
           is, and with all of its entries in sight
together   one question-free reading of eight documents under 4,096 entries. It answers as it is,
           and with all of its entries in sight

The script prints the right answers of each. Memories and answers stay in the folder, and a later
run uses them again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import kvstream
from kvstream.answer.answering import answered
from kvstream.evaluation.intervals import wilson
from kvstream.evaluation.metrics import contains
from kvstream.events import returned
from kvstream.input.parts import Stretch
from kvstream.input.sources import open_sources
from kvstream.memory.base import Memory
from kvstream.memory.joining import Joiner, join
from kvstream.memory.saving import look, save
from kvstream.methods.automatic import SETTINGS
from kvstream.run.request import Request
from kvstream.sample.document import generate, questions
from kvstream.session.sharding import cut, read_part
from kvstream.settings import Budget, RunSettings

Asked = list[dict[str, Any]]


class Bench:
    """A model, and the folder of its memories."""

    def __init__(self, folder: Path, seconds: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.session = folder, kvstream.load("pocket", threads=1).session
        self.began, self.seconds = time.monotonic(), seconds

    def text(self, name: str, tokens: int, seed: int, facts: int) -> tuple[Path, Asked]:
        path = self.folder / f"{name}.txt"
        if not path.exists():
            path.write_text("".join(generate(tokens=tokens, seed=seed, facts=facts)))
        return path, list(questions(facts=facts, seed=seed))

    def memory(self, name: str, make: Callable[[], Memory]) -> Memory:
        """Return the memory of a file; make the file first if it is missing."""
        path = self.folder / f"{name}.kvs"
        if not path.exists():
            if time.monotonic() - self.began > self.seconds:
                raise SystemExit("Run it again: what was made is not made again.")
            save(make(), path)
            print(f"made {path}", flush=True)
        return self.session.recall(look(path), RunSettings(max_tokens=32))

    def read(self, paths: list[Path], request: Request) -> Memory:
        return returned(self.session.read(open_sources([str(path) for path in paths]), request))

    def part(self, path: Path, part: Stretch, request: Request) -> Memory:
        return returned(read_part(self.session, open_sources([str(path)]), part, request))

    def found(self, name: str, memory: Memory, asked: Asked) -> list[bool]:
        """Return which questions the memory answers."""
        path = self.folder / f"{name}.json"
        if path.exists():
            return list(json.loads(path.read_text()))
        answers = [answered(memory, each["question"])[0].answer for each in asked]
        right = [
            any(contains(answer, known) for known in each["answers"])
            for answer, each in zip(answers, asked, strict=True)
        ]
        path.write_text(json.dumps(right))
        return right


def shards(bench: Bench, options: argparse.Namespace) -> None:
    """Compare one reader with `--parts` readers."""
    alone: list[bool] = []
    joined: list[bool] = []
    budget = options.budget or 1024
    for number in options.texts:
        path, asked = bench.text(f"long{number}", options.tokens or 131072, number, options.facts)
        run = RunSettings(Budget(tokens=budget), max_tokens=32)
        request = Request(tuple(each["question"] for each in asked), run)
        one = bench.memory(f"long{number}-alone", partial(bench.read, [path], request))
        alone += bench.found(f"long{number}-alone", one, asked)
        joiner = Joiner(budget)
        for part in cut(bench.session, open_sources([str(path)]), request, options.parts)[0]:
            joiner.add(
                bench.memory(
                    f"long{number}-{part}".replace(" ", ""),
                    partial(bench.part, path, part, request),
                )
            )
        joined += bench.found(f"long{number}-joined{options.tag}", joiner.finish(), asked)
        told("one reader", alone)
        told(f"{options.parts} parts, joined", joined)
        beside(alone, joined)


def documents(bench: Bench, options: argparse.Namespace) -> None:
    """Compare each document's own memory with all of them joined into one."""
    alone: list[bool] = []
    joined: list[bool] = []
    every: list[bool] = []
    budget = options.budget or 1024
    own_settings = SETTINGS.get(options.method, {})
    for group in options.texts:
        memories, asked = [], []
        for number in range(options.parts):
            name = f"group{group}-{number}-{options.method}-{budget}"
            path, own = document(bench, options, group, number)
            run = RunSettings(Budget(tokens=budget), options.method, own_settings, max_tokens=32)
            request = Request((), run, "remember")
            memory = bench.memory(name, partial(bench.read, [path], request))
            alone += bench.found(name, memory, own)
            memories.append(memory)
            asked += own
        both = memories[0]
        for memory in memories[1:]:
            both = join(both, memory, 4096)
        name = f"group{group}-joined-{options.method}-{budget}{options.tag}"
        joined += bench.found(name, both, asked)
        with all_in_sight():
            every += bench.found(f"{name}-all", both, asked)
        told("the right document's memory", alone)
        told(f"{options.parts} documents in one", joined)
        beside(alone, joined)
        told("answers see all entries", every)
        beside(alone, every)


def together(bench: Bench, options: argparse.Namespace) -> None:
    """Read all documents at once; answer from all entries and from those of one document."""
    every: list[bool] = []
    narrowed: list[bool] = []
    run = RunSettings(
        Budget(tokens=4096), options.method, SETTINGS.get(options.method, {}), max_tokens=32
    )
    for group in options.texts:
        paths, asked = [], []
        for number in range(options.parts):
            path, own = document(bench, options, group, number)
            paths.append(path)
            asked += own
        name = f"group{group}-together-{options.method}"
        request = Request((), run, "remember")
        memory = bench.memory(name, partial(bench.read, paths, request))
        with all_in_sight():
            every += bench.found(f"{name}{options.tag}-all", memory, asked)
        narrowed += bench.found(f"{name}{options.tag}", memory, asked)
        told("answers see all entries", every)
        told("one document's entries", narrowed)


def all_in_sight() -> AbstractContextManager[Any]:
    """Return a context in which answers see the entries of all documents."""
    return patch("kvstream.answer.answering.narrowed", lambda *_: nullcontext())


def document(
    bench: Bench, options: argparse.Namespace, group: int, number: int
) -> tuple[Path, Asked]:
    """Return a made-up document of a group, and its questions."""
    name = f"group{group}-{number}-{options.method}-{options.budget or 1024}"
    seed = 1000 + options.parts * group + number
    return bench.text(name, options.tokens or 4096, seed, options.facts)


def told(name: str, right: list[bool]) -> None:
    low, high = wilson(sum(right), len(right))
    print(f"{name:28} {sum(right)} of {len(right)} ({low:.0%} to {high:.0%})", flush=True)


def beside(alone: list[bool], joined: list[bool]) -> None:
    both = sum(a and j for a, j in zip(alone, joined, strict=True))
    share = sum(joined) / max(1, sum(alone))
    print(f"joined finds {share:.0%} as many; {both} of the same {sum(alone)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("shards", "documents", "together"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, nargs="*", default=list(range(6)))
    parser.add_argument("--parts", type=int, default=8, help="parts of a text, or documents")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--budget", type=int)
    parser.add_argument("--facts", type=int, default=6, help="in each text")
    parser.add_argument("--method", default="foresight", help="of the documents' memories")
    parser.add_argument("--tag", default="", help="of the answers' files: another way to join")
    parser.add_argument("--seconds", type=float, default=1e9, help="end soon behind so many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"shards": shards, "documents": documents, "together": together}[options.what](
        Bench(options.folder, options.seconds), options
    )


if __name__ == "__main__":
    main()
