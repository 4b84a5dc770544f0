"""The synthetic document: each fact occurs once, and nothing else answers its question."""

from __future__ import annotations

import itertools
import re
import time
import tracemalloc
from collections.abc import Iterator
from pydoc_data import topics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream.errors import UsageError
from kvstream.sample.document import (
    CHARS_PER_TOKEN,
    KINDS,
    MOST_FACTS,
    default_facts,
    generate,
    make_facts,
    plant,
    questions,
)
from kvstream.sample.novel import novel


def blocks_of(text: str, size: int) -> Iterator[str]:
    return (text[i : i + size] for i in range(0, len(text), size))


def test_same_seed_same_text_other_seed_other_text() -> None:
    one, again, other = ("".join(generate(tokens=20_000, seed=s)) for s in (5, 5, 6))
    assert one == again
    assert one != other
    assert list(questions(facts=9, seed=5)) == list(questions(facts=9, seed=5))
    assert list(questions(facts=9, seed=5)) != list(questions(facts=9, seed=6))


@pytest.mark.parametrize("tokens", [3000, 50_000, 400_000])
def test_length_and_depth(tokens: int) -> None:
    text = "".join(generate(tokens=tokens, seed=1))
    assert len(text) == pytest.approx(tokens * CHARS_PER_TOKEN, rel=0.05, abs=1500)
    for record in questions(facts=default_facts(tokens), seed=1):
        assert text.count(record["sentence"]) == 1
        place = text.index(record["sentence"]) / len(text)
        assert place == pytest.approx(record["depth"], abs=0.02 + 2500 / len(text))


def test_records() -> None:
    records = list(questions(facts=60, seed=2))
    assert [r["depth"] for r in records] == sorted(r["depth"] for r in records)
    # One fact in each sixtieth of the text, and every kind at all depths.
    assert [int(r["depth"] * 60 - 1e-9) for r in records] == list(range(60))
    for kind in KINDS:
        of_kind = [r for r in records if r["kind"] == kind]
        assert len(of_kind) == 10
        assert of_kind[0]["depth"] < 0.5 < of_kind[-1]["depth"]
    for record in records:
        assert set(record) == {"question", "answers", "kind", "depth", "sentence"}
        assert record["question"].endswith("?")
        for answer in record["answers"]:
            assert record["sentence"].count(answer) == 1
            assert answer not in record["question"]


def test_a_great_many_facts_are_all_different() -> None:
    facts = make_facts(MOST_FACTS, 3)
    answers = [fact.answers[0] for fact in facts]
    assert len(set(answers)) == len({fact.question for fact in facts}) == MOST_FACTS
    assert all(re.fullmatch(r"[1-9]\d{4}", f.answers[0]) for f in facts if f.kind == "passkey")
    with pytest.raises(UsageError, match="10001 facts"):
        make_facts(MOST_FACTS + 1)


def test_the_filler_knows_nothing() -> None:
    filler = "".join(itertools.islice(novel(7), 3000))
    assert not re.search(r"\d|passkey", filler)
    words = set(re.findall(r"\w+", filler))
    for fact in make_facts(600, 7):
        for answer in fact.answers:
            assert answer not in filler
        # No name of a question occurs in the filler.
        names = re.findall(r"[A-Z]\w+", fact.question)[1:]
        assert not words & set(names)


def test_the_filler_reads_like_english() -> None:
    paragraphs = list(itertools.islice(novel(8), 1500))
    text = "".join(paragraphs)
    assert not re.search(r"\b[Aa] [aeiou]|  |\bI\b(?!,|:)|[{}%]", text)
    assert all(p.endswith(".\n\n") or p.startswith("Book ") for p in paragraphs)
    assert len(set(paragraphs)) > 0.99 * len(paragraphs)
    assert len(set(re.findall(r"\w+", text))) > 500


@given(st.integers(1, 5000), st.integers(0, 12), st.integers(1, 999), st.floats(0.2, 3))
@settings(deadline=None, max_examples=60)
def test_planting_changes_nothing_else(length: int, count: int, block: int, wrong: float) -> None:
    text = ("".join(itertools.islice(novel(1), 20)) * 2)[:length]
    planted = "".join(plant(blocks_of(text, block), int(length * wrong), facts=count, seed=4))
    for fact in make_facts(count, 4):
        assert planted.count(fact.sentence) == 1
        planted = planted.replace(fact.sentence, "")
    assert "".join(planted.split()) == "".join(text.split())


@pytest.mark.parametrize("block", [1, 100, 10**6])
def test_planting_does_not_depend_on_the_blocks(block: int) -> None:
    text = "".join(itertools.islice(novel(1), 60))
    whole = "".join(plant([text], len(text), facts=9, seed=4))
    assert "".join(plant(blocks_of(text, block), len(text), facts=9, seed=4)) == whole


def test_facts_stand_between_paragraphs_or_sentences() -> None:
    text = (
        "A heading\n\nA first sentence. A second one.\n\n    code(1)\n\n    code(2)\n\nThe end.\n"
    )
    [fact] = make_facts(1, 0)
    expected = text.replace("The end.", f"{fact.sentence}\n\nThe end.")
    assert "".join(plant([text], 1, facts=1)) == text.replace(
        "A first", f"{fact.sentence}\n\nA first"
    )
    assert "".join(plant([text[11:]], 0, facts=1)) == expected[11:]
    table = "1 | 2\n3 | 4\n"
    assert "".join(plant([table], 1, facts=1)) == f"1 | 2\n{fact.sentence}\n3 | 4\n"
    line = "He saw Mr. Smith. Then he left."
    assert "".join(plant([line], 1, facts=1)) == f"He saw Mr. Smith. {fact.sentence} Then he left."
    assert "".join(plant(["x" * 9000], 9000, facts=1)).count(f"x {fact.sentence} x") == 1
    assert "".join(plant([], 0, facts=1)) == f"\n\n{fact.sentence}\n"


def test_planting_into_the_language_reference() -> None:
    text = "\n\n".join(topics.topics.values())
    assert "passkey" not in text
    planted = "".join(plant(blocks_of(text, 65_536), len(text), facts=20, seed=0))
    for record in questions(facts=20, seed=0):
        assert re.search(r"\s" + re.escape(record["sentence"]) + r"\s", planted)
        assert planted.count(record["answers"][0]) == 1
        place = planted.index(record["sentence"]) / len(planted)
        assert place == pytest.approx(record["depth"], abs=0.01)


def test_long_documents_in_constant_memory() -> None:
    def peak(tokens: int) -> int:
        tracemalloc.start()
        sum(len(piece) for piece in generate(tokens=tokens, seed=1, facts=20))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(1000)
    assert peak(100_000) < peak(10_000) + 50_000


def test_speed() -> None:
    def megabytes_a_second() -> float:
        began = time.process_time()
        written = sum(len(piece) for piece in generate(tokens=1_000_000, seed=1))
        return written / 1e6 / (time.process_time() - began)

    assert any(megabytes_a_second() > 5 for _ in range(3))
