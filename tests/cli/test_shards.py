"""--shards on the command line: output and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WHO = "Who hid the letter?"
SMALL = ("--budget", "256", "-n", "8")


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    lines = ["Nobody was at home on that day.\n"] * 120
    lines[80] = "Ada Wenby hid the letter under the wall.\n"
    path.write_text("".join(lines))
    return path


def test_an_answer_from_parts(story: Path, tmp_path: Path, cli: Callable[..., Any]) -> None:
    done = cli("ask", str(story), WHO, "--shards", "3", "--json", *SMALL)
    assert done.code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["shards"] == {"count": 3, "budgets": 3, "bytes": 3 * told["budget"]["bytes"]}
    assert told["peak"]["kv_tokens"] <= 256
    assert told["tokens"]["read"] == told["tokens"]["retained"] + told["tokens"]["evicted"]
    lines = story.read_text().split("\n")
    for cited in told["citations"]:
        assert lines[cited["line_start"] - 1] == cited["text"]
    assert "part 2 of 3" in done.stderr
    assert "in 3 parts" in done.stderr
    assert "up to 3 budgets" in done.stderr


def test_a_memory_of_parts(story: Path, tmp_path: Path, cli: Callable[..., Any]) -> None:
    file = tmp_path / "story.kvs"
    done = cli("remember", str(story), "-Q", WHO, "--shards", "2", "-o", str(file),
               "--budget", "256", "--json")  # fmt: skip
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["shards"]["count"] == 2
    assert "in 2 parts" in done.stderr
    asked = cli("ask", "--memory", str(file), WHO, "-n", "8")
    assert asked.code == 0, asked.stderr


def test_a_summary_of_parts(story: Path, cli: Callable[..., Any]) -> None:
    done = cli("summarize", str(story), "--shards", "2", "--budget", "256")
    assert done.code == 0, done.stderr
    assert "in 2 parts" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--each",), "--shards reads one text on this machine"),
        (("--ray", "auto"), "--shards reads one text on this machine"),
        (("--worker-memory", "1GB"), "no effect without --workers"),
        (("--follow",), "--follow is for one reading"),
        (("--every", "1k"), "--every is for one reading"),
        (("--checkpoint", "x.kvs"), "--checkpoint is for one reading"),
        (("--dry-run",), "--dry-run is for one reading"),
        (
            ("--workers", "1", "--worker-memory", "1GB", "--dry-run"),
            "--dry-run is for one reading",
        ),
        (("--skim", "smollm2"), "--skim is for one reading"),
        (("--memory", "x.kvs"), "--memory FILE takes no sources"),
        (("--method", "infinipot,keydiff"), "are for one method"),
    ],
)
def test_what_goes_with_one_reading_is_refused(
    story: Path, cli: Callable[..., Any], arguments: tuple[str, ...], said: str
) -> None:
    done = cli("ask", str(story), WHO, "--shards", "2", *arguments)
    assert done.code == 2
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize(("name", "value"), [("RAY", "auto"), ("WORKER_MEMORY", "1GB")])
def test_defaults_for_documents_do_not_concern_parts(
    story: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"KVSTREAM_{name}", value)
    assert cli("ask", str(story), WHO, "--shards", "2", *SMALL).code == 0


def test_standard_input_has_no_parts(cli: Callable[..., Any]) -> None:
    done = cli("ask", "-", WHO, "--shards", "2", stdin=b"A text.")
    assert done.code == 2
    assert "standard input can be read only once" in " ".join(done.stderr.split())
