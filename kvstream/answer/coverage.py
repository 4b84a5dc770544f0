"""How much of the document memory still represents, as a number and as a map."""

from __future__ import annotations

from typing import Any

import numpy as np

STRETCH = 64
"""Tokens of the source that are judged together: about three sentences."""
ENOUGH = 8
"""Of so many tokens that some head still holds, a stretch counts as represented."""
PARTS = 40
"""Equal parts of the document in the map."""


def coverage(retained: np.ndarray, read: int) -> dict[str, Any]:
    """``share`` of the stretches that are represented, and a ``map`` of the document.

    `retained` int64 [n], sorted and distinct: ordinals of the source tokens that some head still
    holds; `read`: tokens of the sources. The map has the share of its tokens that are retained
    for each of at most PARTS equal parts, first part first. Needs no room for what was read.
    """
    stretches = -(-read // STRETCH)
    if not stretches:
        return {"share": 0.0, "map": []}
    places, held = np.unique(retained // STRETCH, return_counts=True)
    # The last stretch may be shorter than what is asked of a whole one.
    sizes = np.minimum(read - places * STRETCH, STRETCH)
    represented = int((held >= np.minimum(ENOUGH, sizes)).sum())
    parts = min(PARTS, read)
    edges = np.arange(parts + 1, dtype=np.int64) * read // parts
    counts = np.diff(np.searchsorted(retained, edges))
    return {
        "share": round(represented / stretches, 4),
        "map": [round(float(share), 4) for share in counts / np.diff(edges)],
    }
