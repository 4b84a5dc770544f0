"""The second pass: excerpts, their ranking, and one budget for both passes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cutting import excerpts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream.events import Result
from kvstream.input.sources import open_sources
from kvstream.passages.excerpts import LENGTH, Excerpt, Excerpts
from kvstream.passages.memory import fitting, fused, weights_in
from kvstream.sample.document import make_facts
from kvstream.tokenization.passages import Passage
from kvstream.tokenization.sentences import MOST_CHARS

SEED, FACTS = 3, 6
FACT = make_facts(FACTS, SEED)[5]


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Path:
    return write_story(tokens=1500, seed=SEED, facts=FACTS)


def passage(start: int, weight: float) -> Passage:
    return Passage(0, start, start + 5, 1, 1, "", weight)


PRINTED = st.text(
    st.characters(
        exclude_categories=["Cc", "Cs"], include_characters="\n\t\r", exclude_characters="\xad"
    )
)
"""Texts without control sequences and soft hyphens, which are removed when a file is read."""


@given(PRINTED, st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_pieces_are_the_text(
    tmp_path_factory: pytest.TempPathFactory, text: str, copies: int
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    data = text.encode("utf-8", "replace") + b"x"
    names = []
    for number in range(copies):
        (folder / f"{number}.txt").write_bytes(data)
        names.append(str(folder / f"{number}.txt"))
    sources = open_sources(names, plain=True)
    cut = list(excerpts_of(sources))
    assert all(len({p.source for p in piece.passages}) == 1 for piece in cut)
    assert all(a.end <= b.start for a, b in itertools.pairwise(cut))
    assert all(piece.end - piece.start <= LENGTH + 4 * MOST_CHARS + 64 for piece in cut)
    said = "".join("".join(piece.text.split()) for piece in cut)
    # A byte order mark at the beginning does not belong to the text.
    once = "".join(data.decode().removeprefix("\ufeff").split())
    assert said == once * copies
    every = Excerpts(cut, sources.names, sources.bases)
    for block in every:
        offsets = block.offsets()
        assert len(offsets) == len(block.text) + 1
        assert (np.diff(offsets) >= 0).all()
    for told in every.to_json():
        assert 0 <= told["byte_start"] < told["byte_end"] <= len(data)


def test_bytes_that_are_no_text_keep_their_places(tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_bytes(b"One \xff\xfe two. Then came three.\n")
    [piece] = excerpts_of(open_sources([str(path)], plain=True))
    ends = [int(block.offsets()[-1]) for block in piece.blocks()]
    assert ends[-1] == piece.end == len(path.read_bytes()) - 1


def test_citations_weigh_the_pieces_they_lie_in() -> None:
    parts = [(0, 10), (12, 30), (31, 40)]
    starts, weights = np.array([14, 0, 5, 99]), np.array([0.125, 0.5, 0.25, 1.0])
    assert weights_in(parts, starts, weights).tolist() == [0.75, 0.125, 0.0]
    assert weights_in([(0, 10)], starts[:0], weights[:0]).tolist() == [0.0]


def test_fused_ranks_count_by_place_and_zero_counts_nothing() -> None:
    score = fused([np.array([9.0, 1.0, 0.0]), np.array([0.2, 0.1, 0.0])])
    assert score[0] > score[1] > score[2] == 0.0


def test_excerpts_fill_the_room_to_the_last_token_or_until_it_is_enough() -> None:
    letters: Any = SimpleNamespace(encode=lambda text: list(text))
    pieces = [Excerpt((Passage(0, at, at + 3, 1, 1, "abc", 0.0),)) for at in (60, 20, 40)]

    def chosen(room: int, enough: int) -> list[int]:
        return [piece.start for piece in fitting(pieces, letters, (room, enough))]

    assert [chosen(room, 99) for room in (5, 9, 10, 15)] == [
        [60], [60], [20, 60], [20, 40, 60],
    ]  # fmt: skip
    assert [chosen(99, enough) for enough in (5, 6, 10)] == [[60], [20, 60], [20, 60]]


def made_result(**known: Any) -> Result:
    """Return a result whose fields are 0, except those in `known`."""
    needed = [f.name for f in fields(Result) if f.default is MISSING]
    zeros: dict[str, Any] = dict.fromkeys(needed, 0)
    return Result(**{**zeros, **known})
