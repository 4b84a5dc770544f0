"""The wording of a question: the fast reading is that of a slow one, for any words."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.exact.wording import KINDS, MARKS, STEP, WEIGHTS, Tokens, read

WORDS = ["how", "often", "is", "Ada", "mentioned", "in", "chapter", "3", '"', "mails", "?", "é"]


def score(tokens: Tokens, marks: tuple[int, ...]) -> float:
    """Return the sum of all weights of some marks, one by one."""
    own = sum(WEIGHTS.score(rows, m) for rows, m in zip(tokens.features(), marks, strict=True))
    return own + sum(STEP * WEIGHTS.data[a * len(MARKS) + b] for a, b in pairwise(marks))


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
def test_the_marks_are_the_best_of_all(words: list[str]) -> None:
    tokens = Tokens(" ".join(words))
    every = [score(tokens, own) for own in product(range(len(MARKS)), repeat=len(tokens.spans))]
    marks = WEIGHTS.marks_of(tokens.features())
    assert score(tokens, tuple(marks)) == pytest.approx(max(every))


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join))
def test_any_text_has_a_kind_and_marks_of_its_own(text: str) -> None:
    found = read(text)
    assert set(found.kinds) == set(KINDS)
    if Tokens(text).spans:
        assert sum(found.kinds.values()) == pytest.approx(1)
    assert all(mark in text and mark.strip() for mark in found.marks.values())


def test_what_stands_around_marks_decides() -> None:
    found = read("How often is Ada Lovelace mentioned in chapter 3?")
    assert found.marks == {"words": "Ada Lovelace", "part": "chapter 3"}
    assert found.kinds["count"] > 0.9
    assert read("How often is the roof mended in chapter 3?").kind not in KINDS[:4]
