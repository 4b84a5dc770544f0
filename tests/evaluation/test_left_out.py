"""Trials that a benchmark cannot measure: the row says so, and the others run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TINY = ("--budget", "300", "--chunk-size", "64", "--threads", "1", "-n", "4", "--json", "-q")


def rows_of(done: Any) -> list[Any]:
    assert done.code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_question_that_does_not_fit_is_left_out(cli: Any, tmp_path: Path) -> None:
    path, saved = tmp_path / "qa.jsonl", tmp_path / "saved.jsonl"
    record = {"context": "Ada hid the letter.", "question": "Who hid it?", "answers": ["Ada"]}
    long = {**record, "context": "Bo came.", "question": "Who " + "then " * 900 + "hid it?"}
    path.write_text("".join(json.dumps(r) + "\n" for r in (long, record)))
    command = "bench", "qa", "--data", str(path), "--save", str(saved), *TINY
    for _ in range(2):
        done = cli(*command)
        (row,) = rows_of(done)
        assert (row["n"], row["left_out"]) == (1, 1)
        assert "shorter question" in row["error"]
        assert "Left out: " in done.stderr
        assert len(saved.read_text().splitlines()) == 1
    shown = cli(*command[:-2]).stdout
    assert "left out" in shown
    path.write_text(json.dumps(long) + "\n")
    assert cli(*command).code == 5


@pytest.mark.parametrize("methods", ["full,streaming", "streaming,full", "edgeinfinite,streaming"])
def test_a_method_that_refuses_is_left_out(cli: Any, tmp_path: Path, methods: str) -> None:
    short, long = tmp_path / "short.txt", tmp_path / "long.txt"
    short.write_text("It rained. " * 10)
    long.write_text("It rained, and the river rose again. " * 60)
    command = "bench", "perplexity", str(short), str(long), *TINY, "--method", methods
    if "edge" in methods:
        command += "--set", f"edgeinfinite.gate={tmp_path / 'none'}"
    rows = {row["method"]: row for row in rows_of(cli(*command))}
    refused = rows.pop(methods.replace("streaming", "").strip(","))
    assert refused["error"]
    assert refused["left_out"] == (2 if "edge" in methods else 1)
    assert "error" not in rows["streaming"]
    assert rows["streaming"]["texts"] == 2
    shown = cli(*command[:-2] if command[-2] == "--json" else [w for w in command if w != "--json"])
    assert shown.code == 0
    assert "Unexpected" not in shown.stderr


def test_a_needle_that_does_not_fit_leaves_the_other_lengths(cli: Any) -> None:
    rows = rows_of(cli(
        "bench", "needle", "--lengths", "16,400", "--depths", "0.5", "--trials", "1", *TINY,
    ))  # fmt: skip
    assert [(row["tokens"], row["trials"]) for row in rows] == [(16, 0), (400, 1)]


def test_a_method_that_refuses_leaves_the_speed_of_others(cli: Any, tmp_path: Path) -> None:
    rows = rows_of(cli(
        "bench", "speed", "--lengths", "300", "--runs", "1", "--method", "edgeinfinite,streaming",
        "--set", f"edgeinfinite.gate={tmp_path / 'none'}", "--against", "transformers", *TINY,
    ))  # fmt: skip
    errors = [row.get("error") for row in rows]
    assert any("needs a gate" in error for error in errors if error)
    assert None in errors
