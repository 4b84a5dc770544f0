"""No output of a command takes the place of what the command reads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstream.cli.app import run
from kvstream.cli.shared.output import ClosedOutput

LOG = "".join(f"2026-03-01 10:00:{i:02d} ERROR disk {i} is full\n" for i in range(40))
LINKS: dict[str, Callable[[Path, Path], None]] = {
    "itself": lambda source, link: None,
    "symlink": lambda source, link: link.symlink_to(source.name),
    "hard link": lambda source, link: os.link(source, link),
    "by a folder": lambda source, link: (link.parent / "d").symlink_to(link.parent),
}
COMMANDS = [
    ("summarize", "LOG", "-o"),
    ("summarize", "LOG", "--json", "-o"),
    ("summarize", "LOG", "--as", "prose", "--stats"),
    ("summarize", "LOG", "--report"),
    ("summarize", "LOG", "--follow", "-o"),
    ("ask", "LOG", "Which disk?", "-o"),
    ("ask", "LOG", "Which disk?", "--checkpoint"),
    ("compare", "LOG", "Which disk?", "-o"),
    ("chat", "LOG", "-o"),
    ("remember", "LOG", "-o"),
    ("remember", "LOG", "-o", "x.kvs", "--stats"),
    ("sample", "--into", "LOG", "-o"),
    ("bench", "perplexity", "LOG", "--save"),
    ("bench", "needle", "--text", "LOG", "--report"),
    ("bench", "qa", "--data", "LOG", "--save"),
]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_output_is_a_source(cli, tmp_path: Path, monkeypatch, command, link: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("app.log").write_text(LOG)
    LINKS[link](tmp_path / "app.log", tmp_path / "link")
    place = {"itself": "./app.log", "by a folder": "d/app.log"}.get(link, "link")
    ran = cli(*["app.log" if word == "LOG" else word for word in command], place)
    assert (ran.code, ran.stdout) == (2, ""), ran.stderr
    assert "are the same file" in ran.stderr
    assert Path("app.log").read_text() == LOG


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c[0] not in ("sample", "chat")], ids=" ".join
)
def test_no_output_is_a_file_of_a_source_folder(cli, tmp_path: Path, monkeypatch, command) -> None:
    monkeypatch.chdir(tmp_path)
    Path("logs/old").mkdir(parents=True)
    for name in ("app.log", "old/app.log"):
        Path("logs", name).write_text(LOG)
    ran = cli(*["logs" if word == "LOG" else word for word in command], "logs/old/app.log")
    assert (ran.code, ran.stdout) == (2, ""), ran.stderr
    assert "logs/old/app.log" in ran.stderr
    assert Path("logs/old/app.log").read_text() == LOG


def test_a_new_file_in_a_source_folder_is_written_and_its_json_again(cli, tmp_path: Path) -> None:
    (tmp_path / "app.log").write_text(LOG)
    command = "summarize", str(tmp_path), "--json", "-o", str(tmp_path / "page.json")
    assert [cli(*command).code for _ in range(2)] == [0, 0]
    assert (tmp_path / "app.log").read_text() == LOG


@pytest.mark.parametrize("append", [False, True], ids=["-o", ">>"])
def test_standard_input_and_output_are_files_too(tmp_path: Path, warm, append: bool) -> None:
    log = tmp_path / "app.log"
    log.write_text(LOG)
    rest = [str(log)] if append else ["-", "-o", str(log)]
    with log.open("a+" if append else "r") as file:
        ran = subprocess.run(
            [sys.executable, "-m", "kvstream", "summarize", "--as", "log", *rest],
            stdin=None if append else file, stdout=file if append else subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert ran.returncode == 2
    assert "are the same file" in ran.stderr
    assert log.read_text() == LOG


@pytest.mark.parametrize("place", ["missing/page.txt", "n" * 300])
def test_where_room_is_not_the_problem_no_room_is_advised(cli, tmp_path: Path, place: str) -> None:
    (log := tmp_path / "app.log").write_text(LOG)
    ran = cli("summarize", str(log), "-o", str(tmp_path / place))
    assert (ran.code, ran.stdout) == (1, "")
    assert ran.stderr.endswith("Choose another file for --output.\n")
    if Path("/dev/full").exists():
        assert "make room there" in cli("summarize", str(log), "-o", "/dev/full").stderr


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("summarize LOG", "; name a file with -o"),
        ("sample", "; name a file with -o"),
        ("count LOG disk", ""),
    ],
)
def test_only_a_command_with_o_advises_it(
    tmp_path: Path, monkeypatch, capsys, command: str, advice: str
) -> None:
    (log := tmp_path / "app.log").write_text(LOG)
    monkeypatch.setattr("sys.stdout", ClosedOutput())
    assert run([str(log) if word == "LOG" else word for word in command.split()]) == 1
    assert capsys.readouterr().err == (
        f"Error: stdout is closed, so nothing can be printed{advice}.\n"
    )


def test_a_run_that_never_began_leaves_the_events_of_the_last_one(cli, tmp_path: Path) -> None:
    (stats := tmp_path / "run.jsonl").write_text("{}\n" * 1000)
    ran = cli("ask", str(tmp_path / "missing.txt"), "Who?", "-m", "pocket", "--stats", str(stats))
    assert (ran.code, stats.read_text()) == (3, "{}\n" * 1000)
    (text := tmp_path / "a.txt").write_text("Ada sails.\n")
    ran = cli("ask", str(text), "Who?", "-n", "2", "-m", "pocket", "--stats", str(stats))
    assert (ran.code, stats.read_text()[:9]) == (0, '{"event":')


def test_the_model_and_the_config_file_are_inputs(cli, tmp_path: Path, monkeypatch) -> None:
    text, model, config = (tmp_path / name for name in ("a.txt", "m.gguf", "config.toml"))
    for path in (text, model, config):
        path.write_text("# nothing")
    monkeypatch.setenv("KVSTREAM_CONFIG", str(config))
    for output in (model, config):
        ran = cli("ask", str(text), "Who?", "-m", str(model), "-o", str(output))
        assert (ran.code, output.read_text()) == (2, "# nothing"), ran.stderr
        assert "are the same file" in ran.stderr


@pytest.mark.parametrize(("after", "code"), [(3, 130), (10**6, 0)], ids=["interrupted", "whole"])
def test_the_code_of_remember_says_that_the_memory_is_a_part(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, code: int
) -> None:
    calls = iter(range(10**9))
    monkeypatch.setattr(
        "kvstream.cli.shared.interrupts.Interrupts.__call__", lambda self: next(calls) > after
    )
    text, memory = tmp_path / "book.txt", tmp_path / "book.kvs"
    text.write_text("Ada hid the letter under a stone.\n" * 300)
    small = "--budget", "300", "--chunk-size", "64"
    ran = cli("remember", str(text), "-o", str(memory), *small, "--skim", "none", "-m", "pocket")
    assert ran.code == code, ran.stderr
    assert cli("inspect", str(memory)).code == 0
