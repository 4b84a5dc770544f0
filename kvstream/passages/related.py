"""Words that mean almost the same: a passage may answer a question without its words.

A word is compared by its first letters, as in `bm25.py`. The table has for each of some 14,000
English words the words nearest to it in an encoder of sentences (all-MiniLM-L6-v2, Apache-2.0),
with shares from 0 to 1: (c - 0.3) / 0.7 of the cosine c of two vectors.
`docs/research/lab/related_words.py` writes it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("related.npz")
"""`words` [n], sorted; `others` [n, k]: indices of words; `shares` [n, k] in 1/255, 0 for none."""


@cache
def _table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with np.load(FILE) as file:
        return file["words"], file["others"], file["shares"]


def related(word: str) -> dict[str, float]:
    """Return the words of almost the same meaning, with their shares; none for unknown words."""
    words, others, shares = _table()
    at = int(np.searchsorted(words, word))
    if at == len(words) or words[at] != word:
        return {}
    return {
        str(words[other]): share / 255
        for other, share in zip(others[at], shares[at].tolist(), strict=True)
        if share
    }
