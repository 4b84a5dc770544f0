"""What one token of an answer costs, by number type.

    python docs/research/scripts/decoding.py villette.txt -m smollm2 --tokens 2k --budget 1500

Each model reads the text under the budget. Then the models write answers in turns. Printed are the
median of the processor time of a token, and its ratio to the first kind.
"""

import argparse
import statistics
import time
from itertools import pairwise
from pathlib import Path

from kvstream.engine.reader import Reader
from kvstream.evaluation.harness import IdFeed, open_reader
from kvstream.evaluation.speed.systems import QUESTION
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings, parse_count

KINDS: dict[str, dict[str, str]] = {
    "float32": {"dtype": "float32"},
    "int8": {"quantize": "int8"},
    "bfloat16": {"dtype": "bfloat16"},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--tokens", default="2k", help="of the text")
    parser.add_argument("--budget", default="1500")
    parser.add_argument("--method", default="infinipot")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--write", type=int, default=16, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    readers = {kind: opened(args, KINDS[kind]) for kind in kinds}
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind in kinds:
            spent[kind] += written(*readers[kind], args.write)
    first = statistics.median(spent[kinds[0]])
    for kind, times in spent.items():
        median = statistics.median(times)
        print(
            f"{kind:9} {1000 * median:6.1f} ms ({1 / median:.1f} tokens/s), "
            f"{first / median:.2f} times {kinds[0]}"
        )


def opened(args: argparse.Namespace, kind: dict[str, str]) -> tuple[Reader, list[int]]:
    """A reader of the text, and the ids of a question."""
    session = Session.open(ModelSettings(args.model, device="cpu", threads=1, **kind))
    ids = session.tokenizer.encode(args.text.read_text("utf-8"))[: parse_count(args.tokens)]
    run = RunSettings(budget=Budget(tokens=parse_count(args.budget)), method=args.method)
    reader, _ = open_reader(session, [QUESTION], run, len(ids))
    for _ in reader.read(IdFeed([int(i) for i in ids])):
        pass
    print(f"{session.model.precision}: memory of {reader.cache.held} entries", flush=True)
    return reader, [int(i) for i in session.tokenizer.encode(QUESTION)]


def written(reader: Reader, question: list[int], count: int) -> list[float]:
    """Seconds of the processor for each token behind the first."""
    clock = []
    for _ in reader.answer(question, lambda row: int(row.argmax()), frozenset(), count + 1):
        clock.append(time.process_time())
    return [b - a for a, b in pairwise(clock)]


if __name__ == "__main__":
    main()
