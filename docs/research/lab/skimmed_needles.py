"""Measure how two models find the numbers of `--wording varied`: one skims, one answers.

    python docs/research/lab/skimmed_needles.py ../shared/data/books --heldout

The documents are those of `kvstream bench needle --kind passkey --wording varied --lengths 32k
--depths 0.1,0.5,0.9 --trials 12` with the same texts. The script prints a line for each document
and a table by template. It does not ask again what the file ``--out`` holds. See
docs/research/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch

import kvstream
from kvstream.cli.commands.bench.options import text_files
from kvstream.evaluation.filler import Filler
from kvstream.evaluation.intervals import wilson
from kvstream.evaluation.metrics import contains
from kvstream.evaluation.needle import Plan, haystack
from kvstream.session.session import Session
from kvstream.settings import ModelSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", help="files or folders; otherwise made-up prose")
    parser.add_argument("--heldout", action="store_true")
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--budget", default="1k")
    parser.add_argument("--skim", default="pocket", help="a model, or words")
    parser.add_argument("--out", type=Path, default=Path("build/skimmed-needles.jsonl"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    pocket = Session.open(ModelSettings(threads=1))  # its tokenizer makes the documents
    filler = Filler.of(text_files(asked.texts, heldout=asked.heldout), seed=0)
    plan = Plan("passkey", (asked.tokens,), (0.1, 0.5, 0.9), seed=0, wording="varied")
    model = kvstream.load("reader", skim=asked.skim, threads=1)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    lines = asked.out.read_text("utf-8").splitlines() if asked.out.exists() else []
    done = {(row["depth"], row["trial"]): row for row in map(json.loads, lines)}
    for trial in range(asked.trials):
        for depth in plan.depths:
            if (depth, trial) in done:
                continue
            hay = haystack(pocket, filler, plan, asked.tokens, depth, trial)
            needle = hay.needles[0]
            answer = model.ask(
                text=hay.text, question=needle.question, budget=asked.budget, max_tokens=24
            ).text
            row = {
                "depth": depth, "trial": trial, "template": needle.kind,
                "expected": needle.answers[0],
                "answer": answer, "right": any(contains(answer, each) for each in needle.answers),
            }  # fmt: skip
            done[depth, trial] = row
            with asked.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
            print(row, flush=True)
    by_template = defaultdict(list)
    for row in done.values():
        by_template[row["template"]].append(row["right"])
    for name, rights in sorted(by_template.items()):
        print(f"{name}: {sum(rights)} of {len(rights)}")
    right = sum(row["right"] for row in done.values())
    low, high = wilson(right, len(done))
    print(f"together: {right} of {len(done)} ({100 * low:.0f} to {100 * high:.0f}%)")


if __name__ == "__main__":
    main()
