"""Coverage: how much of the text memory still represents, as a number and as a map."""

from __future__ import annotations

from typing import Any

import numpy as np

STRETCH = 64
"""Source tokens of a stretch, the unit of coverage: about three sentences."""
ENOUGH = 8
"""Number of retained tokens from which a stretch counts as represented."""
PARTS = 40
"""Number of equal parts of the text in the map."""


def coverage(retained: np.ndarray, read: int) -> dict[str, Any]:
    """Return the ``share`` of stretches that are represented, and a ``map`` of the text.

    `retained` int64 [n], sorted and distinct: ordinals of the source tokens that at least one head
    holds; `read`: tokens of the sources. The map has, for each of at most PARTS equal parts from
    first to last, the share of its tokens that are retained. RAM does not grow with `read`.
    """
    stretches = -(-read // STRETCH)
    if not stretches:
        return {"share": 0.0, "map": []}
    places, held = np.unique(retained // STRETCH, return_counts=True)
    # The last stretch may have fewer than ENOUGH tokens.
    sizes = np.minimum(read - places * STRETCH, STRETCH)
    represented = int((held >= np.minimum(ENOUGH, sizes)).sum())
    parts = min(PARTS, read)
    edges = np.arange(parts + 1, dtype=np.int64) * read // parts
    counts = np.diff(np.searchsorted(retained, edges))
    return {
        "share": round(represented / stretches, 4),
        "map": [round(float(share), 4) for share in counts / np.diff(edges)],
    }
