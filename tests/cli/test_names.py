"""Names and texts that attack a terminal: files, questions, options and models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvstream.input.controls import without_controls

HOSTILE = "e\x1b]0;me\x07\x9b2J\u202ee\u2066" + "\u0301" * 9
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\u0301{5}")


def file(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize(
    "arguments",
    [
        ["ask", f"no{HOSTILE}.txt", "Who?"],
        ["ask", "TEXT", "Who?", "-m", f"m{HOSTILE}"],
        ["ask", "TEXT", "Who?", "--method", f"m{HOSTILE}"],
        ["ask", "TEXT", "Who?", "--budget", f"1{HOSTILE}"],
        ["ask", "TEXT", "Who?", f"--{HOSTILE}"],
        ["ask", "TEXT", f"Who?{HOSTILE}", "-v", "-o", f"gone{HOSTILE}/out.txt"],
        ["inspect", f"no{HOSTILE}.kvs"], [f"ask{HOSTILE}"],
        ["summarize", f"no{HOSTILE}/"], ["remember", "TEXT", "-o", f"gone{HOSTILE}/m.kvs"],
    ],
)  # fmt: skip
def test_a_message_has_no_control_characters(forked, tmp_path, arguments) -> None:
    text = file(tmp_path, f"a{HOSTILE}.txt", "Ada hid it.\n")
    done = forked(*(text if each == "TEXT" else each for each in arguments))
    assert done.code != 0
    assert "e" in done.stderr
    assert not RAW.search(done.stderr), repr(done.stderr)


def test_a_name_in_a_pipe_has_one_line_without_control_characters(cli, tmp_path) -> None:
    file(tmp_path, "a\nb\x1b[2J\t.txt", "Ada hid it.\n")
    file(tmp_path, "c\nd.txt", "")
    place = f"{tmp_path}/a␊b␛[2J␉.txt"
    assert cli("count", str(tmp_path), "Ada", "--each").stdout.splitlines()[0] == f"{place}:1"
    asked = cli("ask", str(tmp_path), "How often does Ada occur?", "--each", "-q")
    assert asked.stdout.splitlines()[0] == f"==> {place} <=="
    assert "c\nd" not in cli("ask", str(tmp_path), "Q?", "--each").stderr


def test_names_and_texts_reach_no_terminal_through_json_or_stderr(forked, tmp_path) -> None:
    name, content = f"a{HOSTILE}.txt", f"Ada{HOSTILE} hid the letter.\n" * 3
    text = file(tmp_path, name, content)
    done = forked(
        "ask", text, f"Who hid the letter{HOSTILE}?", "--json", "-v", "-m", "pocket", "-n", "4"
    )
    assert done.code == 0, done.stderr
    assert not RAW.search(done.stderr), repr(done.stderr)
    assert not RAW.search(done.stdout), repr(done.stdout)
    answer = json.loads(done.stdout)
    assert answer["question"] == f"Who hid the letter{HOSTILE}?"
    assert name in answer["citations"][0]["source"]
    assert without_controls(HOSTILE) in answer["citations"][0]["text"]
