"""Coverage of a document, compared with a count token by token."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvstream.answer.answering import ENOUGH, PARTS, STRETCH, coverage


def slow(retained: set[int], read: int) -> tuple[float, list[float]]:
    stretches = [range(s, min(s + STRETCH, read)) for s in range(0, read, STRETCH)]
    good = sum(sum(t in retained for t in s) >= min(ENOUGH, len(s)) for s in stretches)
    parts = min(PARTS, read)
    edges = [i * read // parts for i in range(parts + 1)]
    shares = [
        sum(t in retained for t in range(a, b)) / (b - a) for a, b in itertools.pairwise(edges)
    ]
    return good / len(stretches), shares


@given(read=st.integers(1, 700), data=st.data())
def test_share_and_map_are_those_of_a_count(read: int, data: st.DataObject) -> None:
    retained = data.draw(st.sets(st.integers(0, read - 1)))
    found = coverage(np.array(sorted(retained), dtype=np.int64), read)
    share, shares = slow(retained, read)
    assert abs(found["share"] - share) < 1e-4
    assert np.allclose(found["map"], shares, atol=1e-4)


def test_all_and_nothing() -> None:
    assert coverage(np.arange(1000), 1000)["share"] == 1.0
    assert coverage(np.empty(0, dtype=np.int64), 1000)["share"] == 0.0
    assert coverage(np.empty(0, dtype=np.int64), 0) == {"share": 0.0, "map": []}
