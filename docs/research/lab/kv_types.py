"""Measure how often answers agree between KV caches of 16-bit numbers and of float32.

    python docs/research/lab/kv_types.py --model pocket --texts 12 --tokens 4k

The model computes in float32. Every made-up text has planted facts. The script asks each of them on
its own, once with each number type of the cache. It prints how many answers are identical to those
of float32, letter by letter, and how many contain the right one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import kvstream
from kvstream.settings import parse_count

TYPES = ("float32", "bfloat16", "float16")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--texts", type=int, default=6)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--tokens", default="4k")
    parser.add_argument("--budget", default="1k")
    parser.add_argument("--types", default=",".join(TYPES))
    args = parser.parse_args()
    types = args.types.split(",")
    said: dict[str, list[tuple[str, bool]]] = {kind: [] for kind in types}
    texts = [document(seed, parse_count(args.tokens)) for seed in range(args.texts)]
    for kind in types:
        model = kvstream.load(args.model, dtype="float32", kv_dtype=kind, threads=1, quiet=True)
        for text, facts in texts:
            for fact in facts[: args.questions]:
                answer = model.ask(
                    text=text, question=fact["question"], budget=args.budget, max_tokens=16
                )
                said[kind].append(
                    (
                        answer.text.strip(),
                        any(right.lower() in answer.text.lower() for right in fact["answers"]),
                    )
                )
    count = len(said[types[0]])
    for kind in types:
        same = sum(a == b for (a, _), (b, _) in zip(said[kind], said[types[0]], strict=True))
        right = sum(right for _, right in said[kind])
        print(f"{kind:9} the same as {types[0]} {same} of {count}, right {right} of {count}")
    for kind in types[1:]:
        for (ours, _), (theirs, _) in zip(said[kind], said[types[0]], strict=True):
            if ours != theirs:
                print(f"  {kind}: {ours!r}, {types[0]}: {theirs!r}")


def document(seed: int, tokens: int) -> tuple[str, list[dict]]:
    """Return a text and its planted facts."""
    with tempfile.TemporaryDirectory() as folder:
        text, facts = Path(folder, "text"), Path(folder, "facts")
        subprocess.run(
            [sys.executable, "-m", "kvstream", "sample", "--tokens", str(tokens), "--seed",
             str(seed), "-o", str(text), "--questions", str(facts)],
            check=True, capture_output=True,
        )  # fmt: skip
        rows = [json.loads(line) for line in facts.read_text().splitlines()]
        return text.read_text(), rows


if __name__ == "__main__":
    main()
