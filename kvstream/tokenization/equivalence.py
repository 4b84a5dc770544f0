"""Final check of a faster encoder: it must give the same ids as the library on random texts."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

COMMON = (
    " ", " ", "  ", "    ", "\n", "\n\n", "\r\n", "\t", "a", "the", " of", "D", "12", "'s", "'LL",
    ".", ", ", "--", "é", "語",
)  # fmt: skip
RARE = [chr(c) for c in (*range(0x500), *range(0x2000, 0x3100), *range(0x1F5F0, 0x1F650))]


def agrees(quick: Callable[[str], np.ndarray | None], encode: Callable[[str], list[int]]) -> bool:
    """Return whether ``quick`` gives the ids of ``encode``, or None, for every sample."""
    given = ((quick(text), text) for text in _samples())
    return all(ids is None or ids.tolist() == encode(text) for ids, text in given)


def _samples() -> list[str]:
    """Return texts in random order: half with rare characters, half of common pieces only."""
    rng = random.Random(0)
    kinds = ((COMMON, RARE), (COMMON,))
    return ["".join(rng.choice(rng.choice(kind)) for _ in range(80)) for kind in kinds * 100]
