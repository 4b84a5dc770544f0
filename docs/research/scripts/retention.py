"""How much of memory was there one step before: IMDC's eq. 2, its figure 7.

See docs/research/schedules.md.

    python docs/research/scripts/retention.py ../shared/data/books/*.txt.gz --heldout

The mean over layers, heads and texts of |M_(i-1) and M_i| / |M_i|, for every eighth of the steps.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch

from kvstream.evaluation.harness import IdFeed, open_reader
from kvstream.evaluation.synthetic.splits import is_heldout
from kvstream.input.sources import open_sources
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream.tokenization.loading import TokenStream

PARTS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--heldout", action="store_true")
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--methods", default="snapkv,infinipot,h2o,streaming")
    parser.add_argument("--schedules", default="fixed,linear")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--keep", type=int, default=512)
    parser.add_argument("--chunk-size", type=int, default=512)
    parser.add_argument("--budget", type=int, default=1400)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    session = Session.open(ModelSettings(name=asked.model, threads=1))
    texts = asked.texts
    if asked.heldout:
        texts = [t for t in texts if is_heldout(Path(t).name.partition(".")[0])]
    for method in asked.methods.split(","):
        for growth in asked.schedules.split(","):
            run = RunSettings(
                Budget(tokens=asked.budget), method, keep=asked.keep, growth=growth,
                chunk="fixed", chunk_size=asked.chunk_size,
                start=max(1, asked.keep * asked.chunk_size // asked.tokens),
            )  # fmt: skip
            parts: list[list[float]] = [[] for _ in range(PARTS)]
            for path in texts:
                for share, ratio in ratios(session, path, asked.tokens, run):
                    parts[min(PARTS - 1, int(share * PARTS))].append(ratio)
            line = "  ".join(f"{statistics.fmean(p):.2f}" for p in parts if p)
            print(f"{method:10}  {growth:8}  {line}", flush=True)


def ratios(session: Session, path: str, count: int, run: RunSettings) -> list[tuple[float, float]]:
    """(share of the text read, eq. 2 over layers and heads) after every step but the first."""
    ids = TokenStream(session.tokenizer, open_sources([path], text=True)).read(count).ids.tolist()
    reader, _ = open_reader(session, [], run, len(ids))
    found, before = [], 0
    for _ in reader.read(IdFeed(ids)):
        if before:
            held = [s.origin[:, : s.used] for s in reader.compressible]
            of_source = [(o[o >= 0] < before).float().mean() for o in held]
            found.append((reader.seen / len(ids), float(torch.stack(of_source).mean())))
        before = reader.seen
    return found


if __name__ == "__main__":
    main()
