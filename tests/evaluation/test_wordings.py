"""Needles in other words: not in the training data, in many forms, each reported separately."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstream.errors import UsageError
from kvstream.evaluation import needle
from kvstream.evaluation.filler import Filler
from kvstream.evaluation.needle import Plan, make_needles
from kvstream.evaluation.wordings import FACTS, NUMBERS, Template
from kvstream.session.session import Session

PACKAGE = Path(needle.__file__).parent
SEEN = (
    "synthetic/keys.py", "synthetic/training_facts.py", "synthetic/templates.txt",
    "synthetic/document_facts.py",
)  # fmt: skip
"""Files with the sentences of the training data and of the default needles."""


@pytest.mark.parametrize("template", [*NUMBERS, *FACTS], ids=lambda t: t.name)
def test_training_has_not_seen_its_words(template: Template) -> None:
    seen = " ".join((PACKAGE / name).read_text("utf-8") for name in SEEN)
    seen = " ".join(re.sub(r"{\w+}", "{}", seen).split())
    for text in (template.text, template.question):
        assert " ".join(re.sub(r"{\w+}", "{}", text).split()) not in seen


@pytest.mark.parametrize("kind", ["passkey", "fact"])
def test_templates_take_turns_and_questions_differ(kind: str) -> None:
    count = len(needle.VARIED[kind])
    plan = Plan(kind, (1000,), (0.5,), needles=count, wording="varied")
    made = make_needles(plan, random.Random(0), 3)
    assert len({fact.kind for fact in made}) == count
    assert len({fact.question for fact in made}) == count
    assert made[0].kind == needle.VARIED[kind][3].name
    for fact in made:
        assert fact.sentence.count(fact.answers[0]) == 1
        assert "{" not in fact.sentence + fact.question
        assert fact.answers[0] not in fact.question


def test_forms_and_places_differ() -> None:
    assert sum(t.text.startswith("\n\n") for t in NUMBERS) >= 4, "paragraphs of their own"
    assert any('"' in t.text for t in NUMBERS)
    assert any("|---|" in t.text for t in NUMBERS)
    assert any(t.text.count(". ") for t in NUMBERS)


def test_all_templates_come_to_every_depth(session: Session) -> None:
    plan = Plan("passkey", (700,), (0.1, 0.9), trials=len(NUMBERS), wording="varied")
    found = {
        (depth, needle.haystack(session, Filler.of([]), plan, 700, depth, trial).needles[0].kind)
        for trial in range(plan.trials)
        for depth in plan.depths
    }
    assert len(found) == 2 * len(NUMBERS)


def test_only_what_has_templates_can_vary() -> None:
    with pytest.raises(UsageError, match="passkey and fact, not for kv"):
        Plan("kv", (1000,), (0.5,), wording="varied")
    with pytest.raises(UsageError, match="Unknown wording"):
        Plan("fact", (1000,), (0.5,), wording="mine")


def test_what_is_found_is_told_by_template(cli: Callable[..., Any], tmp_path: Path) -> None:
    saved = tmp_path / "needles.jsonl"
    arguments = (
        "bench", "needle", "--lengths", "600", "--depths", "0.2,0.8", "--trials", "2", "-n", "6",
        "--budget", "512", "--threads", "1", "--wording", "varied", "--save", str(saved), "-q",
    )  # fmt: skip
    done = cli(*arguments, "--json")
    assert done.code == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(row["wording"] == "varied" for row in rows)
    told = [name for row in rows for name in row["templates"]]
    assert told == [NUMBERS[i].name for i in (0, 1)] + sorted(NUMBERS[i].name for i in (1, 2))
    table = cli(*arguments).stdout
    assert "By template" in table
    assert NUMBERS[1].name in table
