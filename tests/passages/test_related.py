"""The table of related words, and what a word of the question counts by them."""

import subprocess
import sys

import numpy as np
import pytest

from kvstream.passages.related import FILE, related
from kvstream.tokenization.forms import COMMON, STEM


def test_the_table_is_whole() -> None:
    with np.load(FILE) as file:
        words, others, shares = file["words"], file["others"], file["shares"]
    assert [*words] == sorted({*words})
    assert others.max() < len(words)
    assert others.shape == shares.shape
    assert (np.diff(shares.astype(int), axis=1) <= 0).all()  # the nearest first
    assert not (others == np.arange(len(words))[:, None]).any()
    assert max(map(len, words)) == STEM
    assert not COMMON.intersection(word for word in words if len(word) < STEM)


@pytest.mark.parametrize(
    ("word", "other"), [("steal", "thief"), ("husba", "wife"), ("sick", "ill"), ("lamp", "candl")]
)
def test_words_of_almost_the_same_meaning(word: str, other: str) -> None:
    assert 0 < related(word)[other] < 1


@pytest.mark.parametrize("word", ["", "zzzzz", "дом", "steals"])
def test_other_words_have_none(word: str) -> None:
    assert related(word) == {}


def test_the_table_is_read_when_it_is_needed() -> None:
    code = "import kvstream.passages.related as r; print(r._table.cache_info().currsize)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "0\n"
