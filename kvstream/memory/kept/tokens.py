"""The kept tokens of several readings, at most as many as a page can show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvstream.memory.kept.positions import Kept, counts_of
from kvstream.memory.kept.reread_text import Reread
from kvstream.reporters.html.page import Shading

NEAR = (400, 250, 160, 100, 60, 30)
"""Characters to show around a kept token; the largest with which the text fits is used."""


@dataclass(frozen=True)
class KeptTokens:
    starts: np.ndarray
    """int64 [U], sorted and distinct: global byte offset of each token."""
    known: tuple[np.ndarray, np.ndarray]
    """(offsets, ordinals) of the tokens whose ordinal is known."""
    counts: np.ndarray
    """int64 [U]: number of heads, of all readings, that hold each token."""

    @classmethod
    def of(cls, readings: Mapping[str, Kept]) -> KeptTokens:
        starts = np.unique(np.concatenate([each.starts for each in readings.values()]))
        counts = np.zeros(len(starts), dtype=np.int64)
        for each in readings.values():
            np.add.at(counts, np.searchsorted(starts, each.starts), each.counts())
        whole = [each for each in readings.values() if each.records] or list(readings.values())[:1]
        places = np.concatenate([each.starts for each in whole])
        places, first = np.unique(places, return_index=True)
        ordinals = np.concatenate([each.ordinals for each in whole])[first]
        return cls(starts, (places, ordinals), counts)

    def fitting(self, limit: int, most: int) -> tuple[int, KeptTokens]:
        """Return the characters around tokens, and tokens, that fit `limit` bytes."""
        if len(self.starts) <= most:
            for near in NEAR:
                if _size(self.starts, near) <= limit:
                    return near, self
        order = np.argsort(-self.counts, kind="stable")
        low, high = 1, min(len(order), most)
        while low < high:
            middle = (low + high + 1) // 2
            if _size(np.sort(self.starts[order[:middle]]), NEAR[-1]) <= limit:
                low = middle
            else:
                high = middle - 1
        chosen = np.sort(order[:low])
        return NEAR[-1], KeptTokens(self.starts[chosen], self.known, self.counts[chosen])

    def ordinals(self, found: Reread) -> np.ndarray:
        """Return the ordinal of each token: int64 [U]."""
        places, ordinals = self.known
        if np.isin(self.starts, places).all() or not len(found.tokens):
            return np.interp(self.starts, places, ordinals).astype(np.int64)
        return (np.searchsorted(found.tokens, self.starts, side="right") - 1) * found.stride

    def shading(self, name: str, of: Kept) -> Shading:
        """Return which of all tokens one reading kept."""
        own = np.minimum(np.searchsorted(self.starts, of.starts), len(self.starts) - 1)
        there = self.starts[own] == of.starts
        # Two tokens can begin at the same byte if they share a character.
        heads = [[np.unique(own[h[there[h]]]) for h in layer] for layer in of.heads]
        counts = counts_of(heads, len(self.starts))
        return Shading(name, of.layers, heads, counts, len(of.ordinals))


def _size(starts: np.ndarray, near: int) -> int:
    """Return roughly how many bytes of text show these tokens."""
    if not len(starts):
        return 0
    length = 2 * near + 100
    return int(np.minimum(np.diff(starts), length).sum()) + length
