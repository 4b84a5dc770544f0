"""The command line with the embedded model: bad input, and one run of each kind."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvstream.store import pocket

STORY = "The old mill by the river had been empty for years, and nobody spoke of it. " * 80
FACT = "The passkey for the north gate is 48213. "
QUESTION = "What is the passkey for the north gate?"


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(STORY[:3000] + FACT + STORY[3000:])
    return path


def told(ran, code: int, *says: str) -> None:
    """Check the exit code, an empty stdout, a message with these words, and no traceback."""
    assert ran.code == code, ran.stderr
    assert ran.stdout == ""
    assert "Traceback" not in ran.stderr
    for words in says:
        assert words in ran.stderr


# Bad input -------------------------------------------------------------------------------------


def test_a_missing_file(cli) -> None:
    told(cli("ask", "/nowhere/book.txt", "Q?"), 3, "/nowhere/book.txt does not exist")


def test_a_directory_without_text(cli, tmp_path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    told(cli("ask", str(tmp_path), "Q?"), 3, "no text files", "binary file")


def test_an_empty_folder_has_skipped_nothing(cli, tmp_path) -> None:
    """So do folders for --each. The error names hidden and ignored files only if there are any."""
    empty, hidden = tmp_path / "empty", tmp_path / "hidden"
    (empty / "below").mkdir(parents=True)
    (hidden / "CVS").mkdir(parents=True)
    nothing = f"{empty} has no text files; name another folder, or a file."
    skipped = f"{hidden} has no text files (skipped: hidden and ignored files); name the files"
    for each in ((), ("--each",)):
        told(cli("summarize", str(empty), *each), 3, nothing)
        told(cli("summarize", str(hidden), *each), 3, skipped)
    both = f"{empty}, {hidden} have no text files (skipped: hidden and ignored files); name"
    told(cli("summarize", str(empty), str(hidden), "--each"), 3, both)


def test_empty_standard_input(cli) -> None:
    told(cli("ask", "Q?"), 3, "Nothing to read: standard input held 0 bytes")
    told(cli("summarize"), 3, "Nothing to read")


def test_a_text_of_blanks_is_no_text(cli, tmp_path: Path) -> None:
    """Files and pipes of blanks count as empty. With --each the other documents are read."""
    blank, other = tmp_path / "blank.txt", tmp_path / "other.txt"
    blank.write_text(" \n\n\t \n")
    other.write_text("Ada hid the letter.\n")
    few = ("-q", "--budget", "300", "-n", "4")
    says = "Nothing to read: {} held only spaces and line ends; name "
    for command in (
        ("ask", blank, "Q?"), ("summarize", blank), ("remember", blank, "-o", tmp_path / "a.kvs"),
    ):  # fmt: skip
        ran = cli(*map(str, command), *few)
        assert (ran.code, ran.stdout) == (3, "")
        assert says.format(blank) in ran.stderr
    ran = cli("ask", "Q?", *few, stdin=blank.read_bytes())
    assert (ran.code, ran.stdout) == (3, "")
    assert says.format("standard input") in ran.stderr
    assert cli("ask", str(blank), str(other), "Q?", *few).code == 0
    ran = cli("ask", str(tmp_path), "Q?", "--each", "--json", *few)
    assert "blank.txt: Nothing to read" in ran.stderr
    assert "other.txt" in ran.stdout


def test_a_binary_file(cli, tmp_path) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"\x7fELF\0\0\0" + bytes(range(256)) * 3)
    told(cli("ask", str(path), "Q?"), 3, "binary", "--text")
    ran = cli("ask", str(path), "Q?", "--text", "-n", "4")
    assert ran.code == 0, ran.stderr


def test_invalid_utf8_is_counted(cli, tmp_path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("Der Schlüssel lag unter der Brücke. ".encode("latin-1") * 20)
    ran = cli("ask", str(path), "Q?", "-n", "4", "--json", "--text")
    assert ran.code == 0, ran.stderr
    assert any("40 bytes are not UTF-8" in w for w in json.loads(ran.stdout)["warnings"])
    assert "40 bytes are not UTF-8" in ran.stderr


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"word " * 10_000_000, id="words", marks=pytest.mark.long),
        pytest.param(b"x" * 50_000_000, id="x"),
    ],
)
def test_a_single_line_of_50_megabytes(tmp_path, line, warm) -> None:
    """The line is read piece by piece. Ctrl-C during the reading must still give an answer."""
    path, stats = tmp_path / "line.txt", tmp_path / "stats.ndjson"
    path.write_bytes(line)
    process = subprocess.Popen(
        [*warm, "-mkvstream", "ask", str(path), "Q?", "--budget", "1k", "-n", "4",
         "--json", "--stats", str(stats)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (stats.exists() and stats.read_text().count('"step"') >= 3):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing was read"
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert result["peak"]["kv_tokens"] <= 1024
    assert result["peak"]["rss_bytes"] < 2**30 * 1.5
    assert any("stopped" in w for w in result["warnings"])


def test_a_budget_smaller_than_the_question(cli, story) -> None:
    told(cli("ask", str(story), "Why? " * 200, "--budget", "256"), 5, "256", "--budget")
    told(cli("ask", str(story), "Q?", "--budget", "8"), 5, "--budget")
    told(cli("ask", str(story), "Q?", "--budget", "100B"), 5, "--budget")


def test_a_budget_past_the_trained_length(cli, story) -> None:
    told(cli("ask", str(story), "Q?", "--budget", "1M"), 5, "1,048,576", "trained")


def test_an_unknown_model(cli, story, tmp_path) -> None:
    ran = cli("ask", str(story), "Q?", "-m", "nobody/nothing", "--offline")
    told(ran, 4, "Error: nobody/nothing is not on this machine; run once without --offline.")
    assert "connect" not in ran.stderr
    told(cli("ask", str(story), "Q?", "-m", "/nowhere/model"), 4, "/nowhere/model")
    told(cli("ask", str(story), "Q?", "-m", str(tmp_path)), 4, "config.json")


def test_an_unknown_method_or_setting(cli, story) -> None:
    told(cli("ask", str(story), "Q?", "--method", "infinpot"), 2, "Did you mean infinipot")
    told(cli("ask", str(story), "Q?", "--set", "infinipot.alhpa=1"), 2, "alpha")
    told(cli("ask", str(story), "Q?", "--set", "infinipot.alpha=much"), 2, "a number")
    told(cli("ask", str(story), "Q?", "--set", "infinipot.alpha=1.5"), 2, "from 0 to 1, not 1.5")


def test_a_model_that_cannot_be_bounded(cli, story, tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=8192, n_positions=256, n_embd=32, n_layer=2, n_head=2
    )
    folder = tmp_path / "gpt2"
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((Path(pocket.path()) / name).read_bytes())
    told(cli("ask", str(story), "Q?", "-m", str(folder)), 4, "position")


def test_a_full_disk(cli, story) -> None:
    ran = cli("ask", str(story), QUESTION, "-n", "4", "-o", "/dev/full")
    assert ran.code == 1
    assert "Cannot write /dev/full" in ran.stderr
    assert ran.stdout, "the answer is not lost"


def test_a_memory_that_overflows_is_refused_by_full(cli, story) -> None:
    told(cli("ask", str(story), "Q?", "--budget", "512", "--method", "full"), 5, "512")


# Runs that work --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["infinipot", "snapkv", "streaming", "window", "random"])
def test_a_run_stays_in_its_budget(cli, story, method) -> None:
    ran = cli(
        "ask", str(story), QUESTION, "--budget", "512", "--method", method, "--json", "-n", "8"
    )
    assert ran.code == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert 0 < result["peak"]["kv_tokens"] <= 512
    assert result["peak"]["kv_bytes"] <= result["budget"]["bytes"]
    tokens = result["tokens"]
    assert tokens["retained"] + tokens["evicted"] == tokens["read"] > 512
    assert "peak" in ran.stderr


def test_every_way_in_reads_the_same(cli, story, tmp_path) -> None:
    data = story.read_bytes()[-3000:]
    reads = set()
    for name, packed in (
        ("a.gz", gzip.compress(data)), ("a.bz2", bz2.compress(data)), ("a.xz", lzma.compress(data)),
        ("a.txt", data),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(packed)
        ran = cli("ask", str(tmp_path / name), "Q?", "-n", "1", "--json", "-q")
        reads.add(json.loads(ran.stdout)["tokens"]["read"])
    ran = cli("ask", "Q?", "-n", "1", "--json", "-q", stdin=data)
    reads.add(json.loads(ran.stdout)["tokens"]["read"])
    assert len(reads) == 1


def test_one_reading_serves_several_questions(cli, story) -> None:
    ran = cli(
        "ask", str(story), "-Q", QUESTION, "-Q", "Where was the mill?", "--json", "-n", "8"
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    first, second = map(json.loads, ran.stdout.splitlines())
    assert first["question"] == QUESTION
    assert first["timing"]["prefill_s"] == second["timing"]["prefill_s"]


def test_summaries_are_lines_of_the_text_with_their_numbers(cli, tmp_path) -> None:
    log = tmp_path / "server.log"
    lines = [f"10:{i // 60:02}:{i % 60:02} INFO request {i} served" for i in range(300)]
    lines[121] = "10:02:01 FATAL database connection lost, giving up"
    log.write_text("\n".join(lines) + "\n")
    ran = cli("summarize", str(log), "--as", "prose", "--budget", "512", "--passages", "5", "-q")
    assert ran.code == 0, ran.stderr
    shown = ran.stdout.splitlines()
    assert 1 <= len(shown) <= 5
    assert all(any(line in s for line in lines) for s in shown)


def test_dry_run_reads_nothing(cli, story) -> None:
    ran = cli("ask", str(story), "Q?", "--dry-run", "--budget", "512")
    assert ran.code == 0, ran.stderr
    assert "budget 512 entries" in ran.stdout
    assert "steps" in ran.stdout


def test_memory_that_leaves_no_chunk_names_the_most(cli, story) -> None:
    """The first case has the largest budget of pocket, so its error names no larger one."""
    ran = cli("ask", str(story), "Q?", "--keep", "100000")
    assert ran.code == 5
    assert re.search(
        r"cannot keep 100,000 entries\. Keep at most 3,\d+: 4,0\d\d entries are free, and a chunk "
        r"takes at least 51\d\.$", ran.stderr.strip()
    )  # fmt: skip
    ran = cli("ask", str(story), "Q?", "--keep", "1000", "--budget", "1k")
    assert ran.stderr.strip().endswith("For more, raise the budget.")


def test_doctor_finds_everything_in_order(cli) -> None:
    ran = cli("doctor")
    assert ran.code == 0, ran.stdout
    assert "pocket" in ran.stdout


def test_a_reader_that_goes_away(tmp_path, warm) -> None:
    text = tmp_path / "fact.txt"
    text.write_text(FACT)
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        f'{shlex.join(warm)} -mkvstream ask "{text}" "Q?" -q -n 4 | true',
        shell=True, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.stderr == ""


def test_pocket_says_once_that_it_is_a_demonstration(story: Path, cli: Any) -> None:
    few = ("--budget", "1k", "-n", "2", "-Q", "Where?", "-Q", "Who?")
    ran = cli("ask", str(story), *few, "--json")
    assert ran.stderr.count("pocket is a small model for demonstration") == 1
    assert [json.loads(line)["demonstration"] for line in ran.stdout.splitlines()] == [True] * 2
    assert "demonstration" not in cli("ask", str(story), *few, "-q").stderr


def test_python_without_docstrings_is_refused_in_a_sentence(story: Path) -> None:
    command = [sys.executable, "-m", "kvstream", "ask", str(story), "Who?"]
    told = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONOPTIMIZE": "2"}
    )
    assert told.returncode == 1
    assert told.stderr.count("\n") == 1
    assert "PYTHONOPTIMIZE=2" in told.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_hidden_layers": 10**6}, "num_hidden_layers = 1000000"),
        ({"num_hidden_layers": -2}, "num_hidden_layers = -2"),
        ({"sliding_window": -1}, "sliding_window = -1"),
        ("[" * 100_000, "nested too deeply"),
        ("fifo", "model.safetensors is not a regular file"),
        ("zero", "model.safetensors is not a regular file"),
        ("normalizer", "tokenizer"),
        ("pattern", "tokenizer"),
        ("ids", "they belong to different models"),
    ],
)
def test_broken_model_folders(change: Any, says: str, cli: Any, story: Path, tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(pocket.path(), folder)
    weights, config = folder / "model.safetensors", folder / "config.json"
    tokenizer = folder / "tokenizer.json"
    if isinstance(change, dict):
        config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    elif change.startswith("["):
        config.write_text(change)
    elif change in ("fifo", "zero"):
        weights.unlink()
        os.mkfifo(weights) if change == "fifo" else weights.symlink_to("/dev/zero")
    else:
        whole = json.loads(tokenizer.read_text())
        if change == "normalizer":
            whole["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
        elif change == "ids":
            whole["model"]["vocab"]["Zz"] = 90_000
        else:
            split = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated"}
            whole["pre_tokenizer"] = {**split, "invert": False}
        tokenizer.write_text(json.dumps(whole))
    began = time.perf_counter()
    told(cli("ask", str(story), "Who?", "-m", str(folder), "-q"), 4, says)
    assert time.perf_counter() - began < 20


@pytest.mark.parametrize("message", ["std::bad_alloc", "Cannot allocate memory"])
def test_out_of_memory_while_loading(
    message: str, cli: Any, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    from kvstream.model.loading import load

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(message)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    monkeypatch.setattr("kvstream.session.session.load", load)  # not the one that tests share
    told(cli("ask", str(story), "Who?", "-q"), 5, "Out of memory", "--dtype bfloat16")
