"""``kvstream sample``: texts with facts, and the questions that ask for them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from signals import heed_hangup

TEXT = "".join(
    f"Paragraph {i} tells of nothing in particular. It goes on for a while.\n\n" for i in range(400)
)


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("way", ["file", "pipe"])
def test_facts_are_planted_over_the_whole_text(cli, tmp_path, way) -> None:
    book, out, questions = (tmp_path / n for n in ("book.txt", "out.txt", "q.jsonl"))
    book.write_text(TEXT)
    ran = cli(
        "sample", "--into", str(book) if way == "file" else "-", "--facts", "10", "-o", str(out),
        "--questions", str(questions), stdin=TEXT.encode(),
    )  # fmt: skip
    assert (ran.code, ran.stdout) == (0, "")
    planted = out.read_text(encoding="utf-8")
    asked = records(questions)
    assert len(asked) == 10
    rest = planted
    for record in asked:
        assert planted.count(record["sentence"]) == 1
        assert abs(planted.index(record["sentence"]) / len(planted) - record["depth"]) < 0.1
        assert all(answer in record["sentence"] for answer in record["answers"])
        rest = rest.replace(record["sentence"], "")
    assert rest.split() == TEXT.split(), "nothing else is changed"


def test_the_same_seed_makes_the_same_text(cli) -> None:
    first = cli("sample", "--tokens", "2k", "--seed", "3").stdout
    assert first == cli("sample", "--tokens", "2k", "--seed", "3").stdout
    assert first != cli("sample", "--tokens", "2k", "--seed", "4").stdout
    assert 0.7 < len(first) / (2048 * 4.2) < 1.3


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--into", "/nowhere/book.txt"], 3, "does not exist"),
        (["--tokens", "many"], 2, "not a whole number above 0"),
        (["--facts", "0"], 2, "--facts"),
        (["--into", "-", "--tokens", "1k"], 2, "--tokens has no effect with --into"),
        (["--tokens", "1k", "-o", "/dev/full"], 1, "No space left"),
        (["--tokens", "1k", "--questions", "-"], 2, "name a file"),
        (["--tokens", "1k", "--questions", "/nowhere/q.jsonl"], 1, "No such file"),
    ],
)
def test_what_cannot_be_done_is_told(cli, arguments, code, says) -> None:
    ran = cli("sample", *arguments)
    assert ran.code == code
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_text_stays_if_nobody_reads_its_questions(cli, tmp_path) -> None:
    text, both = tmp_path / "text.txt", ("--facts", "9", "--tokens", "1k")
    asked = [sys.executable, "-m", "kvstream", "sample", *both, "-o", str(text), "--questions", "-"]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 0
    assert text.read_text("utf-8") == cli("sample", *both).stdout


def test_the_text_is_not_replaced(cli, tmp_path) -> None:
    book = tmp_path / "book.txt"
    book.write_text(TEXT)
    for options in (["--questions", str(book), "-o", str(tmp_path / "o")], ["-o", str(book)]):
        ran = cli("sample", "--into", str(book), *options)
        assert (ran.code, "are the same file" in ran.stderr) == (2, True)
    assert book.read_text() == TEXT


def test_the_config_file_is_not_replaced(cli, tmp_path, monkeypatch) -> None:
    config = tmp_path / "config.toml"
    config.write_text("seed = 1\n")
    monkeypatch.setenv("KVSTREAM_CONFIG", str(config))
    for arguments in (["sample", "-o"], ["bench", "needle", "--save"]):
        ran = cli(*arguments, str(config))
        assert (ran.code, "and the config file" in ran.stderr) == (2, True), ran.stderr
    assert config.read_text() == "seed = 1\n"


def test_empty_input_is_nothing_to_read(cli, tmp_path) -> None:
    out = tmp_path / "out.txt"
    ran = cli("sample", "--into", "-", "-o", str(out))
    assert ran.code == 3
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_a_killed_sample_leaves_no_temporary_file(tmp_path: Path, end: int) -> None:
    command = ["sample", "--tokens", "4G", "-o", str(tmp_path / "out.txt")]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvstream", *command],
        stderr=subprocess.PIPE, text=True, preexec_fn=heed_hangup,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not any(path.stat().st_size for path in tmp_path.iterdir()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(end)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()  # otherwise it fills the disk
    assert process.returncode == 128 + end
    assert stderr == "Terminated.\n"
    assert not list(tmp_path.iterdir())
