"""Measure how much of a template's needle the heads of memory hold after reading.

See docs/research/benchmarks.md, "Found: needles in other words".

    python docs/research/lab/split_needles.py ../shared/data/books --heldout

The documents are those of `kvstream bench needle --kind passkey --wording varied --lengths 8k
--trials 24` with the same texts. For each template the script prints the share of heads (of all
layers) that hold every token of the number, and the share of the sentence's tokens that a head
holds on average. Both are given as minimum and maximum over the texts.
"""

from __future__ import annotations

import argparse

import torch

from kvstream.cli.commands.bench.options import text_files
from kvstream.evaluation.filler import Filler
from kvstream.evaluation.harness import IdFeed, open_reader
from kvstream.evaluation.needle import Plan, haystack
from kvstream.evaluation.wordings import NUMBERS
from kvstream.sample.document import Fact
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--templates", default="far-apart,aside")
    parser.add_argument("texts", nargs="*", help="files or folders; otherwise made-up prose")
    parser.add_argument("--heldout", action="store_true")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--method", default="infinipot")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    session = Session.open(ModelSettings(threads=1))
    filler = Filler.of(text_files(asked.texts, heldout=asked.heldout), seed=asked.seed)
    run = RunSettings(Budget(tokens=asked.budget), asked.method, max_tokens=24)
    plan = Plan("passkey", (asked.tokens,), (0.1, 0.5, 0.9), seed=asked.seed, wording="varied")
    names = [template.name for template in NUMBERS]
    for name in asked.templates.split(","):
        found = []
        for turn, depth in enumerate(plan.depths):
            # Templates take turns over trials and depths.
            first = (names.index(name) - turn) % len(names)
            for trial in range(first, asked.trials, len(names)):
                hay = haystack(session, filler, plan, asked.tokens, depth, trial)
                assert hay.needles[0].kind == name
                found.append(held(session, hay.text, hay.needles[0], run))
        numbers, sentences = zip(*found, strict=True)
        print(
            f"{name}: {len(found)} texts; heads with the whole number {min(numbers):.0%} to "
            f"{max(numbers):.0%}; tokens of the sentence in a head {min(sentences):.0%} to "
            f"{max(sentences):.0%}",
            flush=True,
        )


def held(session: Session, text: str, needle: Fact, run: RunSettings) -> tuple[float, float]:
    """Return the share of heads with the whole number, and a head's mean share of the sentence."""
    encode = session.tokenizer.encode
    sentence = needle.sentence.strip()
    begin = text.index(sentence)
    number = begin + sentence.index(needle.answers[0])
    ends = (begin, number, number + len(needle.answers[0]), begin + len(sentence))
    first, key, behind, last = (len(encode(text[:end])) for end in ends)
    ids = encode(text)
    reader, _ = open_reader(session, [needle.question], run, len(ids))
    for _ in reader.read(IdFeed(ids)):
        pass
    whole, shares = [], []
    for store in reader.compressible:
        for origin in store.origin[:, : store.used].tolist():
            there = set(origin)
            whole.append(there.issuperset(range(key, behind)))
            shares.append(len(there & set(range(first, last))) / (last - first))
    return sum(whole) / len(whole), sum(shares) / len(shares)


if __name__ == "__main__":
    main()
