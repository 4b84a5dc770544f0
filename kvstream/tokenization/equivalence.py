"""The last check of a faster encoder: made-up texts, which must become what they became before."""

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
    """Whether ``quick`` gives the ids of ``encode`` wherever it gives any."""
    given = ((quick(text), text) for text in _samples())
    return all(ids is None or ids.tolist() == encode(text) for ids, text in given)


def _samples() -> list[str]:
    """Characters in a random order: of many kinds, and common ones alone."""
    rng = random.Random(0)
    kinds = ((COMMON, RARE), (COMMON,))
    return ["".join(rng.choice(rng.choice(kind)) for _ in range(80)) for kind in kinds * 100]
