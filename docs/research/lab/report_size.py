"""Measure the HTML page of a long text whose kept tokens are drawn at random: bytes and seconds.

    python docs/research/lab/report_size.py long.txt [ENTRIES [LAYERS [HEADS]]]

The script writes the page to report.html, and prints its size and the processor seconds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from kvstream.input.sources import open_sources
from kvstream.memory.kept.document import document_of
from kvstream.memory.kept.positions import Kept
from kvstream.reporters.html.page import Page
from kvstream.reporters.html.render import render
from kvstream.tokenization.loading import TokenStream, load_tokenizer

RUN = 8
"""Number of tokens in a run of kept ones. Half of the runs are near the end, as in real memory."""

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("path")
for name, default in (("entries", 900), ("layers", 6), ("heads", 2)):
    parser.add_argument(name, nargs="?", type=int, default=default)
options = parser.parse_args()
path, entries, layers, heads = options.path, options.entries, options.layers, options.heads
tokenizer = load_tokenizer("pocket")
sources = open_sources([path])
stream = TokenStream(tokenizer, sources)
parts = []
while len(batch := stream.read(16384)):
    parts.append(batch.starts)
starts = np.concatenate(parts)
count = len(starts)
random = np.random.default_rng(0)


def head() -> np.ndarray:
    runs = entries // (2 * RUN)
    anywhere = random.integers(0, count - RUN, runs)
    late = (count - RUN - random.exponential(count / 20, runs)).astype(int).clip(0)
    return np.unique((np.concatenate([anywhere, late])[:, None] + np.arange(RUN)).ravel())


held = [[head() for _ in range(heads)] for _ in range(layers)]
ordinals = np.unique(np.concatenate([each for layer in held for each in layer]))
kept = Kept(
    tuple(sources.names), tuple(sources.bases), tuple(sources.records), count, sources.bytes_read,
    ordinals, starts[ordinals], tuple(range(layers)),
    tuple(tuple(np.searchsorted(ordinals, each) for each in layer) for layer in held),
    (), tokenizer,
)  # fmt: skip
began = time.process_time()
text = render(Page("A long text", "", "", document=document_of({"drawn": kept}, [])))
seconds = time.process_time() - began
Path("report.html").write_text(text, encoding="utf-8", errors="replace")
size = len(text.encode("utf-8", "replace"))
print(
    f"{count:,} tokens, {len(ordinals):,} kept: {size:,} bytes, {seconds:.1f} s of processor time"
)
