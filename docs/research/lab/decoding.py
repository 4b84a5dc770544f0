"""Measure what one token of an answer costs, by number type and size of memory.

    python docs/research/lab/decoding.py villette.txt -m smollm2 --tokens 2k --budget 1500

    python docs/research/lab/decoding.py villette.txt -m smollm2 --tokens 8k --kinds float32 \
        --budget 512,1k,2k,4k,8k --method streaming

Each model reads the text under each budget. Then all of them write answers in turns. The script
prints the median processor time of a token, and the speed relative to the first line.
"""

import argparse
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor

from kvstream.engine.reader import Reader
from kvstream.evaluation.harness import IdFeed, open_reader
from kvstream.evaluation.speed.systems import QUESTION
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings, count_of

KINDS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "int8": {"quantize": "int8"},
    "bfloat16": {"dtype": "bfloat16"},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--tokens", default="2k", help="of the text")
    parser.add_argument("--budget", default="1500", help="or several")
    parser.add_argument("--method", default="infinipot")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--write", type=int, default=16, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--earlier", action="store_true", help="not the last answer of a run")
    args = parser.parse_args()
    readers = {}
    for kind in args.kinds.split(","):
        session = Session.open(ModelSettings(args.model, device="cpu", threads=1, **KINDS[kind]))
        for budget in args.budget.split(","):
            readers[f"{kind} {budget}"] = opened(args, session, count_of(budget))
    spent: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(args.rounds):
        for name, reader in readers.items():
            spent[name] += written(*reader, args.write, final=not args.earlier)
    first = statistics.median(next(iter(spent.values())))
    for name, times in spent.items():
        median = statistics.median(times)
        print(
            f"{name:15} {1000 * median:6.1f} ms ({1 / median:.1f} tokens/s), "
            f"speed {first / median:.2f}"
        )


def opened(args: argparse.Namespace, session: Session, budget: int) -> tuple[Reader, list[int]]:
    """Return a reader that has read the text, and the ids of a question."""
    ids = session.tokenizer.encode(args.text.read_text("utf-8"))[: count_of(args.tokens)]
    run = RunSettings(budget=Budget(tokens=budget), method=args.method)
    reader, _ = open_reader(session, [QUESTION], run, len(ids))
    for _ in reader.read(IdFeed([int(i) for i in ids])):
        pass
    print(f"{session.model.precision}: memory of {reader.cache.size} entries", flush=True)
    return reader, [int(i) for i in session.tokenizer.encode(QUESTION)]


def written(reader: Reader, question: list[int], count: int, *, final: bool) -> list[float]:
    """Return the processor seconds of each token after the first."""
    clock = []

    def largest(row: Tensor) -> int:
        return int(row.argmax())

    for _ in reader.answer(question, largest, frozenset(), count + 1, final=final):
        clock.append(time.process_time())
    return [b - a for a, b in pairwise(clock)]


if __name__ == "__main__":
    main()
