"""Measure what it costs to keep the text around retained tokens while reading.

    python docs/research/lab/passages.py BOOKS...

The script reads the texts as tokens, once while it cuts sentences and forgets them on the way, and
once without. It prints the difference in processor time, to compare with that of the model for a
token (`kvstream bench speed`). It prints the same for the words of the text, with their size in a
memory file. See docs/research/citations.md.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from kvstream.input.sources import open_sources
from kvstream.session.reading import PRUNE_EVERY
from kvstream.tokenization.loading import TokenStream, WordForms, load_tokenizer
from kvstream.tokenization.passages import Passages

RETAINED = 6000
"""Number of distinct tokens that are retained, as by pocket under a budget of 1k."""

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("books", nargs="+")
BOOKS = parser.parse_args().books


def seconds(passages: Passages | None, words: WordForms | None = None) -> tuple[float, int]:
    """Return processor time and number of tokens; feed `passages` or `words` if given."""
    tokenizer, draw = load_tokenizer("pocket"), np.random.default_rng(0)
    began = time.process_time()
    feed = words.feed if words else None if passages is None else passages.feed
    stream = TokenStream(tokenizer, open_sources(BOOKS), feed)
    pruned = 0
    while len(chunk := stream.read(256)):
        if passages is not None and stream.seen - pruned >= PRUNE_EVERY:
            pruned = stream.seen
            passages.prune(np.sort(draw.integers(0, chunk.end, RETAINED)), chunk.end)
    return time.process_time() - began, stream.seen


for _ in range(3):
    without, tokens = seconds(None)
    kept, _ = seconds(Passages())
    forms = WordForms()
    known, _ = seconds(None, forms)
    print(
        f"{tokens:,} tokens: {1e6 * (kept - without) / tokens:.2f} µs a token for passages, "
        f"{1e6 * (known - without) / tokens:.2f} for words ({len(forms.packed()):,} bytes packed, "
        f"{forms.mistaken:.3%} of absent ones pass)"
    )
