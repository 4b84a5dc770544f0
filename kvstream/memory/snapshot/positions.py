"""Which tokens of the sources each head of a memory holds, and where they begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvstream.input.source import SourceRecord
from kvstream.memory.contents import Memory
from kvstream.tokenization.loading import Tokenizer
from kvstream.tokenization.passages import Passage


@dataclass(frozen=True)
class Snapshot:
    """A copy of the positions in a memory. It does not change when the memory does."""

    names: Sequence[str]
    bases: Sequence[int]
    """Global byte offset of each source's beginning."""
    records: Sequence[SourceRecord]
    """Sizes and digests of the sources; empty if excerpts were read."""
    read: int
    """Number of tokens of the sources that were read."""
    end: int
    """Global byte offset after the last of these tokens."""
    ordinals: np.ndarray
    """int64 [R], sorted: ordinals of the retained tokens."""
    starts: np.ndarray
    """int64 [R]: global byte offset of each retained token."""
    layers: tuple[int, ...]
    """Index in the model of each layer in which the method selects entries."""
    heads: tuple[tuple[np.ndarray, ...], ...]
    """For each of these layers and each head of it: int64, sorted indices into `ordinals`."""
    passages: Sequence[Passage]
    """Sentences or lines with kept tokens, from which citations come."""
    tokenizer: Tokenizer

    def counts(self) -> np.ndarray:
        """Return how many heads hold each token: int64 [R]."""
        return counts_of(self.heads, len(self.ordinals))


def counts_of(layers: Sequence[Sequence[np.ndarray]], size: int) -> np.ndarray:
    """Return how many of the heads of all layers hold each of so many tokens: int64 [size]."""
    every = [np.empty(0, dtype=np.int64), *(head for layer in layers for head in layer)]
    return np.bincount(np.concatenate(every), minlength=size)


def snapshot(memory: Memory) -> Snapshot:
    """Return the positions that a memory holds now."""
    reader, trace = memory.reader, memory.trace
    stores = reader.compressible or reader.cache.stores
    ordinals = reader.retained().numpy()
    heads = []
    for store in stores:
        rows = (np.unique(head.numpy()).astype(np.int64) for head in store.ordinals())
        heads.append(tuple(np.searchsorted(ordinals, row) for row in rows))
    trace.prune(reader.retained())
    layers = tuple(store.spec.index for store in stores)
    passages = () if trace.passages is None else tuple(trace.passages.all())
    return Snapshot(
        tuple(trace.names), tuple(trace.bases), tuple(trace.records), trace.read, trace.end,
        ordinals, trace.origins.starts(ordinals), layers, tuple(heads), passages, memory.tokenizer,
    )  # fmt: skip
