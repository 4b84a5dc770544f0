"""Questions about ordinary text, and which of them a match of words can answer."""

from __future__ import annotations

import random

import pytest

from kvstream.errors import UsageError
from kvstream.evaluation.needle import _cites, pooled, rows
from kvstream_lab.ordinary import has_rare_word, ordinary
from kvstream_lab.synthetic.questions import from_sentence

TEXT = (
    "It rained. Simpson smoked the fish and burnt his fingers. Nobody said a word all night. "
    "The old captain lost his hat in the river. So it went on."
)


def test_a_question_is_asked_of_the_sentence_at_the_depth() -> None:
    first, second = ordinary(TEXT, [0.0, 0.7], random.Random(0), from_sentence)
    assert first.sentence.startswith("Simpson smoked")
    assert second.sentence.startswith("The old captain")
    for fact in (first, second):
        assert fact.answers[0] in fact.sentence
        assert fact.sentence in TEXT


def test_too_few_sentences_are_told() -> None:
    with pytest.raises(UsageError, match="too few"):
        ordinary("It rained. So it went on.", [0.5], random.Random(0), from_sentence)


def test_rare_words() -> None:
    text = "the fish " * 4 + "the Hat"
    assert not has_rare_word("The fish?", text)
    assert has_rare_word("Whose hat?", text)
    assert not has_rare_word("Who was Anna?", text)


def test_a_cited_sentence_counts_whole_or_in_good_part_among_the_first_three() -> None:
    texts = ["He left.", "Mr.\nGray came home late.", "x", "It was late that night in May."]
    cited = [{"text": t} for t in texts]
    assert _cites(cited, "Mr. Gray came home late.")
    assert _cites(
        [{"text": "Then Mr. Gray came home late. All slept."}], "Mr. Gray came home late."
    )
    assert not _cites([{"text": "May."}], "It was late that night in May.")
    assert not _cites(cited, "It was late that night in May."), "it is the fourth"


def test_rows_count_citations_of_right_answers() -> None:
    record = {
        "model": "m", "kind": "fact", "method": "x", "settings": {}, "budget": 512, "tokens": 1024,
        "needles": 1, "exact": 0.0, "found": 1, "retained": 5, "seconds": 1.0,
    }  # fmt: skip
    cases = [(0.1, True, True), (0.1, True, False), (0.9, False, True)]
    records = [{**record, "depth": d, "right": right, "cited": cited} for d, right, cited in cases]
    first, second = rows(records)
    assert (first["cited"], second["cited"]) == (0.5, None)
    [together] = pooled(records)
    assert together["cited"] == 0.5
