"""Suites of tasks: their samples, their scores, and the output of the command."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rows import rows_of

from kvstream.errors import UsageError
from kvstream.evaluation.filler import Filler
from kvstream.evaluation.sweep import WHOLE, Case
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream.tokenization.loading import load_tokenizer
from kvstream_lab.suites import chosen, ruler, running
from kvstream_lab.suites.task import Sample, Task, score

TINY = ("--tokens", "512", "--budget", "256", "--trials", "1", "--threads", "1", "-q")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("pocket")


def made(tokenizer: Any, task: Task, tokens: int = 800, seed: int = 0) -> Sample:
    return task.make(tokenizer, Filler.of([]), tokens, random.Random(seed))


@pytest.mark.parametrize("name", ruler.TASKS)
def test_a_sample_has_its_length_and_its_answers(tokenizer: Any, name: str) -> None:
    task = ruler.TASKS[name]
    sample = made(tokenizer, task)
    assert len(tokenizer.encode(sample.text)) == pytest.approx(800, abs=40)
    assert sample == made(tokenizer, task), "the same random state gives the same sample"
    assert sample != made(tokenizer, task, seed=1)
    assert score(sample.text, sample.answers) == 1
    assert not any(answer in sample.question for answer in sample.answers)
    room = sum(len(tokenizer.encode(f" {answer},")) for answer in sample.answers)
    assert room <= task.max_tokens, "the answer fits"


@pytest.mark.parametrize(
    ("name", "count", "asked"),
    [("single", 1, 1), ("multikey", 4, 1), ("multivalue", 4, 4), ("multiquery", 4, 4)],
)
def test_needles(tokenizer: Any, name: str, count: int, asked: int) -> None:
    """Slow check: look up in the text the number of each key in the question."""
    sample = made(tokenizer, ruler.TASKS[name])
    pairs = re.findall(r"A secret number of the (\w+ \w+) is (\d+)\.", sample.text)
    assert len(pairs) == count
    wanted = [number for key, number in pairs if key in sample.question]
    assert sorted(wanted) == sorted(sample.answers)
    assert len(wanted) == asked


def test_variables_follow_the_chain(tokenizer: Any) -> None:
    """Slow check: run the assignments."""
    sample = made(tokenizer, ruler.TASKS["tracking"])
    values: dict[str, str] = {}
    for name, number, other in re.findall(r"VAR (\w+) = (?:(\d+)|VAR (\w+))\.", sample.text):
        values[name] = number or values[other]
    (asked,) = re.findall(r"\d{5}", sample.question)
    assert sorted(n for n, value in values.items() if value == asked) == sorted(sample.answers)
    assert len(sample.answers) == ruler.HOPS + 1


@pytest.mark.parametrize(("tokens", "often"), [(800, 6), (4096, 10)])
def test_common_words_stand_out(tokenizer: Any, tokens: int, often: int) -> None:
    sample = made(tokenizer, ruler.TASKS["common"], tokens)
    counts = Counter(re.findall(r"\d+\. (\w+)", sample.text))
    top = [word for word, _ in counts.most_common(ruler.COMMON)]
    assert sorted(top) == sorted(sample.answers)
    others = {count for word, count in counts.items() if word not in top}
    assert {counts[word] for word in top} == {often * count for count in others}


def test_frequent_words_come_in_their_order(tokenizer: Any) -> None:
    sample = made(tokenizer, ruler.TASKS["frequent"])
    ranked = [word for word, _ in Counter(sample.text.split()).most_common(4)]
    assert ranked == ["....", *sample.answers]


def test_the_score_is_the_share_that_was_said() -> None:
    assert score("ABCDE and klmno", ["abcde", "KLMNO", "xyz", "uvw"]) == 0.5


def test_rows_have_a_mean_and_an_interval_inside_0_and_1() -> None:
    def record(task: str, scored: float) -> dict[str, Any]:
        return {"suite": "ruler", "method": "m", "task": task, "tokens": 9, "score": scored,
                "refused": False}  # fmt: skip

    records = [record("a", 1.0), record("a", 0.5), record("b", 0.0), record("b", 0.0)]
    a, b, mean = running.rows([*records, {**record("b", 1.0), "error": "too long"}])
    assert (a["task"], a["score"], a["n"]) == ("a", 0.75, 2)
    assert (b["score"], b["low"]) == (0, 0)
    assert b["high"] > 0
    assert (mean["task"], mean["score"], mean["n"]) == (running.MEAN, 0.375, 4)
    assert 0 <= mean["low"] < mean["score"] < mean["high"] <= 1


def test_equal_scores_leave_room_for_others() -> None:
    same = {"suite": "ruler", "method": "m", "task": "a", "tokens": 9, "score": 0.25,
            "refused": False}  # fmt: skip
    (row,) = running.rows([same, same])
    assert row["low"] < 0.25 < row["high"]


def test_an_unknown_task_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"has no task 'vt'\. It has: single, "):
        chosen("ruler", ["vt"])


def test_trials_have_the_keys_of_existing_files() -> None:
    session = SimpleNamespace(
        model_name="m", model=SimpleNamespace(model=SimpleNamespace(state_dict=dict)),
        settings=ModelSettings(), tokenizer=None,
    )  # fmt: skip
    (trial,) = running.trials(
        session, Filler.of([]), "ruler", [ruler.TASKS["single"]], [Case(RunSettings())],  # type: ignore[arg-type]
        tokens=512, count=1, seed=0,
    )  # fmt: skip
    assert trial.key == "ed7af41183f59584eb2a"


def test_command(lab: Any, tmp_path: Path) -> None:
    save = tmp_path / "suite.jsonl"
    arguments = (
        "suite", "ruler", *TINY, "--tasks", "multikey", "--save", str(save), "--method", "keydiff",
    )  # fmt: skip
    rows = rows_of(lab(*arguments, "--json"))
    assert [r["method"] for r in rows] == ["keydiff", "whole"]
    assert all(0 <= r["low"] <= r["score"] <= r["high"] <= 1 for r in rows)
    before = save.read_text()
    table = " ".join(lab(*arguments).stdout.split())
    assert save.read_text() == before, "nothing is measured again"
    assert table.startswith("ruler, 512 tokens, budget 256 (2:1)")
    assert re.search(r"multikey +1 ", table)


def test_a_text_that_is_too_long_for_the_full_cache_says_so(session: Any) -> None:
    """No larger budget helps, so the message does not advise one."""
    sample = Sample("The door is red. The roof is blue. " * 500, "Is it?", ("red",))
    task = Task("colors", lambda *_: sample, 8)
    case = Case(RunSettings(budget=Budget(tokens=300), method="full"), WHOLE)
    record = running._run(session, case, task, lambda: sample)
    assert "the length that the model was trained for" in record["error"]
    assert "larger" not in record["error"]


def test_a_budget_that_is_too_small_leaves_out_its_own_trials(session: Any) -> None:
    """The other budgets and texts of a long measurement continue."""
    sample = Sample("The door is red. " * 200, "What color is the door?", ("red",))
    task = Task("colors", lambda *_: sample, 8)
    small, enough = (
        Case(RunSettings(budget=Budget(tokens=tokens), method="streaming")) for tokens in (16, 400)
    )
    record = running._run(session, small, task, lambda: sample)
    assert "budget" in record["error"]
    assert "score" in running._run(session, enough, task, lambda: sample)
