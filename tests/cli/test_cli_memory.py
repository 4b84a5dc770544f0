"""remember, ask --memory and chat at the command line, and what they refuse."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from kvstream.answer.support import Calibration
from kvstream.cli.app import run
from kvstream.cli.commands import remember as remembering
from kvstream.memory import file, saving

QUESTION = "What is the passkey for the old mill?"
LOST = (
    r"read \d\.\d KiB \(1,\d+ tokens\) · kept \d+%, left out [1-9][\d,]* tokens: no room · "
    r"peak (2\d\d|300) of 300 entries"
)
FEW = ("--budget", "300", "--threads", "1", "-n", "6")


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Path:
    return write_story(tokens=1500, seed=3, facts=4)


@pytest.fixture(scope="module")
def made(story: Path) -> bytes:
    """A memory file for all tests. It calls `run`, because the fixture `cli` is per test."""
    path = story.with_suffix(".kvs")
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = run(["remember", str(story), "-o", str(path), *FEW, "--dtype", "float32"])
    said = err.getvalue()
    assert (code, out.getvalue()) == (0, ""), said
    assert "for any question" in said
    assert "No question was named: expect answers to some questions" in said
    assert re.search(LOST, said)
    return path.read_bytes()


@pytest.fixture
def memory(made: bytes, tmp_path: Path) -> str:
    path = tmp_path / "story.kvs"
    path.write_bytes(made)
    return str(path)


def test_a_memory_has_room_for_the_answers_that_were_asked_for(memory: str) -> None:
    assert saving.look(Path(memory)).content.state["sizes"]["answer"] == 6


def test_a_model_that_reads_twice_answers_from_its_memory(cli, story, tmp_path) -> None:
    path, twice = str(tmp_path / "twice.kvs"), ("--skim", "self", "-q", *FEW)
    assert cli("remember", str(story), "-Q", QUESTION, "-o", path, *twice).code == 0
    asked = ("ask", "--memory", path, QUESTION, "--json", "-n", "6", "--threads", "1")
    for more in ((), ("-m", "pocket"), ("--skim", "self")):
        ran = cli(*asked, *more)
        assert ran.code == 0, ran.stderr
        assert json.loads(ran.stdout)["skim"]["pieces"], more


def test_a_memory_is_asked_without_the_sources(cli, memory, story) -> None:
    before = Path(memory).read_bytes()
    ran = cli("ask", "--memory", memory, "-Q", QUESTION, "-Q", QUESTION, "--json", "-n", "6")
    assert ran.code == 0, ran.stderr
    assert "made without a question" in ran.stderr
    first, second = (json.loads(line) for line in ran.stdout.splitlines())
    assert first["answer"] == second["answer"]
    assert first["memory"]["kind"] == "question-free"
    assert first["memory"]["sha256"] == file.read(Path(memory)).digest
    assert first["memory"]["sources"][0]["name"] == str(story)
    assert first["timing"]["prefill_s"] == first["timing"]["select_s"] == 0
    assert first["peak"]["kv_tokens"] <= first["budget"]["tokens"] == 300
    assert Path(memory).read_bytes() == before


def test_a_memory_made_for_a_question_says_so(cli, story, tmp_path) -> None:
    path = str(tmp_path / "q.kvs")
    ran = cli("remember", str(story), "-Q", QUESTION, "-o", path, "--json", "-q", *FEW)
    told = json.loads(ran.stdout)
    assert told["memory"]["kind"] == "questions"
    assert told["memory"]["bytes"] == Path(path).stat().st_size
    # auto is the method that it chose with the questions of the memory
    asked = cli("ask", "--memory", path, QUESTION, "--json", "-n", "6", "--method", "auto")
    there = cli("ask", str(story), QUESTION, "--json", "-q", *FEW)
    ours, theirs = json.loads(asked.stdout), json.loads(there.stdout)
    assert ours["answer"] == theirs["answer"]
    assert ours["citations"] == theirs["citations"]
    assert f"made for 1 question: {QUESTION}" in asked.stderr


def test_reading_on_replaces_the_file_or_writes_another(cli, memory, story, tmp_path) -> None:
    before = Path(memory).read_bytes()
    other = str(tmp_path / "both.kvs")
    ran = cli("remember", "--memory", memory, str(story), "-o", other, "--json", "-q")
    both = json.loads(ran.stdout)
    assert Path(memory).read_bytes() == before
    assert len(both["memory"]["sources"]) == 2
    ran = cli("remember", "--memory", memory, "--json", "-q", stdin=story.read_bytes())
    again = json.loads(ran.stdout)
    assert Path(memory).read_bytes() != before
    assert again["tokens"]["read"] == both["tokens"]["read"]
    assert again["memory"]["sources"][1]["name"] == "-"


def test_chat_answers_a_line_at_a_time(cli, memory) -> None:
    before = Path(memory).read_bytes()
    lines = f"{QUESTION}\n\nWho is ill?\n{'Why? ' * 400}\n{QUESTION}".encode()
    ran = cli("chat", "--memory", memory, "--json", "-n", "6", stdin=lines)
    assert ran.code == 5, ran.stderr  # from the question that does not fit
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [a["question"] for a in answers] == [QUESTION, "Who is ill?", QUESTION]
    assert all(a["peak"]["kv_tokens"] <= 300 and a["command"] == "chat" for a in answers)
    assert "ask a shorter one" in ran.stderr
    assert re.search(LOST, ran.stderr)
    assert Path(memory).read_bytes() == before


def test_the_stats_of_a_chat_have_its_answers(cli, memory, tmp_path) -> None:
    stats = tmp_path / "stats.jsonl"
    asked = ("chat", "--memory", memory, "--stats", str(stats), "-n", "6")
    ran = cli(*asked, stdin=f"{QUESTION}\n".encode())
    lines = [json.loads(line) for line in stats.read_text().splitlines()]
    assert lines[0]["event"] == "answer_started"
    assert lines[-1]["event"] == "answered"
    assert lines[-1]["question"] == QUESTION
    assert lines[-1]["answer"] == ran.stdout.strip()


def test_a_chat_shows_the_passages_and_numbers_of_each_answer(
    cli, memory, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    asked = ("chat", "--memory", memory, "-o", str(tmp_path / "answers.txt"), "-n", "6")
    ran = cli(*asked, "-v", stdin=f"{QUESTION}\nWho is ill?\n".encode())
    assert ran.stderr.count("Where the model looked:\n[1] ") == 2
    assert ran.stderr.count("mean probability of its tokens") == 2
    quiet = cli(*asked, "-q", stdin=f"{QUESTION}\n".encode()).stderr
    assert "looked" not in quiet
    assert "probability of its" not in quiet


def test_a_strict_chat_ends_with_6_where_an_answer_was_withheld(cli, memory, monkeypatch) -> None:
    asked = ("chat", "--memory", memory, "-n", "6", "--strict")
    # Count the answer as a claim even if it is a refusal.
    monkeypatch.setattr("kvstream.answer.answering.abstains", lambda answer: False)
    for threshold, code in ((0.0, 0), (1.0, 6)):
        limit = Calibration(0.0, {"mean": 0.1}, threshold)
        monkeypatch.setattr(Calibration, "of", lambda *_, limit=limit: limit)
        ran = cli(*asked, stdin=QUESTION.encode())
        assert (ran.code, "withheld" in ran.stderr) == (code, bool(code))


def test_chat_about_a_text(cli, story) -> None:
    ran = cli("chat", str(story), "-q", *FEW, stdin=f"{QUESTION}\n".encode())
    assert ran.code == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 1
    assert "evicted" not in ran.stderr, "as -q was given"


def test_a_warning_of_the_reading_is_shown_once_in_a_chat(cli, tmp_path) -> None:
    text, path = tmp_path / "text.txt", str(tmp_path / "text.kvs")
    text.write_bytes(b"In the caf\xe9 Ada hid the letter.\n")
    said = f"{QUESTION}\n{QUESTION}\n".encode()
    asked = cli("chat", str(text), *FEW, stdin=said)
    assert asked.code == 0, asked.stderr
    assert asked.stderr.count("is not UTF-8") == 1
    assert cli("remember", str(text), "-o", path, *FEW).code == 0
    recalled = cli("chat", "--memory", path, "-n", "6", stdin=said)
    assert recalled.stderr.count("is not UTF-8") == 1


def test_only_files_that_can_be_used_are_counted_as_ranked(cli, memory) -> None:
    whole = Path(memory)
    (whole.parent / "broken.kvs").write_bytes(whole.read_bytes()[:500])
    stats = whole.parent / "stats.jsonl"
    asked = cli("ask", "--memory", str(whole.parent), QUESTION, "-n", "6", "--stats", str(stats))
    assert asked.code == 0, asked.stderr
    events = [json.loads(line)["event"] for line in stats.read_text().splitlines()]
    assert events == ["notice", "answer_started", "answered"]
    assert asked.stderr.count("Warning: ") >= 1
    assert "broken.kvs" in asked.stderr
    assert "Asked 1 memory:" in asked.stderr


def test_a_checkpoint_is_removed_when_all_is_done(cli, story, tmp_path) -> None:
    saved = tmp_path / "c.kvs"
    ran = cli(
        "ask", str(story), QUESTION, "--json", "-q", *FEW,
        "--checkpoint", str(saved), "--checkpoint-every", "100",
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    assert len(json.loads(ran.stdout)["memory"]["sha256"]) == 64
    assert not saved.exists()


def test_a_checkpoint_that_is_left_is_told(cli, story, tmp_path, monkeypatch) -> None:
    """stderr names it after Ctrl-C and after an error that follows the reading, not at success."""
    saved = tmp_path / "c.kvs"
    asked = (
        "ask", str(story), QUESTION, *FEW, "--checkpoint", str(saved), "--checkpoint-every", "100",
    )  # fmt: skip
    told = f"{saved} holds the reading so far; the same command resumes from it.\n"
    with monkeypatch.context() as pressed:
        pressed.setattr(
            "kvstream.cli.shared.interrupts.Interrupts.__call__", lambda self: saved.exists()
        )
        ran = cli(*asked)
        assert ran.code == 0, ran.stderr
        assert ran.stderr.endswith(told)
        first = saved.read_bytes()
        assert told not in cli(*asked, "-q").stderr
        saved.write_bytes(first)
    assert told not in cli(*asked, "--dry-run").stderr
    ran = cli(*asked)
    assert ran.code == 0, ran.stderr
    assert "Going on from" in ran.stderr
    assert told not in ran.stderr
    assert not saved.exists()


@pytest.mark.parametrize("more", [True, False])
def test_remember_leaves_no_checkpoint_after_ctrl_c(
    cli, memory, story, tmp_path, monkeypatch, more: bool
) -> None:
    """The memory file has all that was read."""
    saved = tmp_path / "c.kvs"
    monkeypatch.setattr(
        "kvstream.cli.shared.interrupts.Interrupts.__call__", lambda self: saved.exists()
    )
    into = ("--memory", memory) if more else ("-o", memory, *FEW)
    ran = cli(
        "remember", str(story), *into, "--checkpoint", str(saved), "--checkpoint-every", "100"
    )
    assert ran.code == 130, ran.stderr
    assert "Reading was stopped" in ran.stderr
    assert "the same command resumes" not in ran.stderr
    assert not saved.exists()


def test_a_checkpoint_is_read_once(cli, memory, story, tmp_path, monkeypatch) -> None:
    saved, both = tmp_path / "c.kvs", tmp_path / "both.kvs"
    more = ("remember", "--memory", memory, str(story), "-o", str(both), "--checkpoint", str(saved))
    with monkeypatch.context() as kept:
        kept.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        assert cli(*more, "-q").code == 0
    both.write_bytes(Path(memory).read_bytes())  # older memory: the end is written again
    read: list[Path] = []
    whole = file.read
    monkeypatch.setattr(file, "read", lambda path: read.append(path) or whole(path))
    ran = cli(*more)
    assert ran.code == 0, ran.stderr
    assert "Going on from" in ran.stderr
    assert read.count(saved) == 1
    assert not saved.exists()


def test_bytes_that_are_no_text_do_not_end_a_chat(cli, memory) -> None:
    said = b"Who \xff\xfe is ill?\n\xffWho?\n"
    ran = cli("chat", "--memory", memory, "-q", "-n", "2", stdin=said)
    assert ran.code == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 2
    assert ran.stderr.count("bytes that are not UTF-8; they were replaced") == 1
    assert "�" in "".join(json.loads(line)["question"] for line in asked(cli, memory))


def asked(cli, memory) -> list[str]:
    """Return the results of a chat whose question has bytes that are not UTF-8."""
    ran = cli("chat", "--memory", memory, "--json", "-n", "2", stdin=b"Who \xff is ill?\n")
    return ran.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["ask", "--memory", "{m}", "book.txt", "Q?"], 2, "takes no sources"),
        (["ask", "--memory", "{m}", "Q?", "--follow"], 2, "takes no sources"),
        (["ask", "--memory", "{m}", "Q?", "--budget", "2k"], 2, "was made with --budget 300"),
        (["ask", "--memory", "{m}", "Q?", "--budget", "1MB"], 2, "1000000 bytes was given"),
        (["ask", "--memory", "{m}", "Q?", "--method", "h2o"], 2, "--method foresight"),
        (["ask", "--memory", "{m}x", "Q?"], 3, "no memory file"),
        (["ask", "--memory", "{s}", "Q?"], 3, "is not a memory file"),
        (["ask", "--memory", "{m}", "why " * 300], 5, "shorter"),
        (["remember", "{s}"], 2, "-o FILE.kvs"),
        (["remember", "{s}", "-o", "-"], 2, "-o FILE.kvs"),
        (["remember", "{s}", "-o", "/nowhere/m.kvs"], 1, "Cannot write"),
        (["remember", "--memory", "{m}", "{s}", "-Q", "Q?"], 2, "cannot change"),
        (["remember", "{s}", "--method", "h2o,tova", "-o", "x.kvs"], 2, "one method"),
        (["chat"], 2, "for the questions"),
        (["chat", "-"], 2, "for the questions"),
        (["chat", "{s}", "--memory", "{m}"], 2, "Either"),
        (["summarize", "{s}", "--every", "soon"], 2, "not an interval"),
        (["ask", "{s}", "Q?", "--checkpoint", "{m}"], 2, "not a checkpoint"),
        (["ask", "{s}", "Q?", "--method", "h2o,tova", "--checkpoint", "c"], 2, "one method"),
    ],
)
def test_what_does_not_go_together_is_told(cli, memory, story, arguments, code, says) -> None:
    ran = cli(*(a.format(m=memory, s=story) for a in arguments))
    assert ran.code == code, ran.stderr
    assert ran.stdout == ""
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_full_device_gets_no_file_beside_it(cli, story, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ran = cli("remember", str(story), "-o", "/dev/full", *FEW)
    assert ran.code == 1
    assert "No space left on device" in ran.stderr
    assert f"The memory was written to {tmp_path}" in ran.stderr


def test_a_full_disk_loses_no_answer_of_a_memory(cli, memory) -> None:
    ran = cli("ask", "--memory", memory, QUESTION, "-n", "6", "-o", "/dev/full")
    assert (ran.code, len(ran.stdout.splitlines())) == (1, 1)


def test_a_chat_knows_a_few_words(cli, memory) -> None:
    ran = cli(
        "chat", "--memory", memory, "-n", "3", stdin=b"Who?\n/help\n/save x\n/Quit now\nQUIT\n?\n"
    )
    assert ran.code == 0
    assert len(ran.stdout.splitlines()) == 1, "one question was asked"
    assert "Ctrl-D" in ran.stderr
    assert "There is no /save;" in ran.stderr
    assert "/Quit takes no argument." in ran.stderr


def test_answers_from_memory_are_labeled_where_there_are_several(cli, memory) -> None:
    asked = ["ask", "--memory", memory, "-n", "3", "-q", "-Q", "Who?"]
    assert "Who?" not in cli(*asked).stdout
    lines = cli(*asked, "-Q", "What?").stdout.splitlines()
    assert [lines[0], lines[2], lines[3]] == ["Question: Who?", "", "Question: What?"]


def test_bytes_that_are_not_used_are_told(cli, story) -> None:
    ran = cli("ask", str(story), "Who?", *FEW[2:], "--budget", "512MB", "--progress", "none")
    assert ran.stderr.count("not 512,000,000: pocket was trained for 4,096 positions") == 1
    planned = cli("ask", str(story), "Who?", "--budget", "512MB", "--dry-run")
    assert "not 512,000,000" in planned.stdout
    ran = cli("ask", str(story), "Who?", *FEW[2:], "--budget", "1MB", "--json")
    assert not any("positions" in told for told in json.loads(ran.stdout)["warnings"])


def test_a_memory_that_cannot_take_its_name_is_kept_elsewhere(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvstream.store import writing

    story, target = tmp_path / "story.txt", tmp_path / "made" / "m.kvs"
    story.write_text("Ada hid the letter under the third stone of the garden wall. " * 20)
    target.parent.mkdir()
    replace = writing.replace

    def full(path: Path, fill) -> None:
        if path.parent == refused or path == target:
            raise OSError(28, "No space left on device")
        replace(path, fill)

    monkeypatch.setattr(writing, "replace", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for refused in (None, target.parent):  # beside it, then in the folder for temporary files
        ran = cli("remember", str(story), "-o", str(target), "--budget", "400", "--threads", "1")
        assert ran.code == 1
        place = Path(re.search(r"The memory was written to (.*\.kvs) instead", ran.stderr)[1])
        assert place.parent == ((refused and tmp_path) or target.parent)
        assert cli("ask", "--memory", str(place), "Who hid the letter?", "-q", "-n", "4").code == 0
        place.unlink()
    assert not list(target.parent.iterdir())


@pytest.mark.parametrize("option", [["--text"], ["--max-unpacked", "1GB"]])
@pytest.mark.parametrize("command", ["ask", "chat"])
def test_options_of_sources_are_refused_with_a_memory(cli, tmp_path, command, option) -> None:
    question = ["Who?"] if command == "ask" else []
    ran = cli(command, "--memory", str(tmp_path / "m.kvs"), *option, *question)
    assert ran.code == 2
    assert f"{option[0]} is for reading sources" in ran.stderr


@pytest.mark.parametrize("option", ["-o", "--stats", "--report"])
def test_no_memory_of_a_folder_is_written_over_by_what_reads_it(
    cli, memory: str, tmp_path: Path, option: str
) -> None:
    (tmp_path / "other.kvs").write_bytes(before := Path(memory).read_bytes())
    (tmp_path / "link").symlink_to("story.kvs")
    for name in ("story.kvs", "other.kvs", "link"):
        ran = cli("ask", "--memory", str(tmp_path), "Who?", option, str(tmp_path / name))
        assert ran.code == 2, ran.stderr
        assert "are the same file, and one would destroy the other" in ran.stderr
    for name in ("story.kvs", "other.kvs"):
        assert (tmp_path / name).read_bytes() == before


def test_merge_does_not_write_over_a_memory_that_it_joins(cli, memory: str, monkeypatch) -> None:
    monkeypatch.setenv("KVSTREAM_STATS", memory)  # merge has no events to write
    before = Path(memory).read_bytes()
    ran = cli("merge", memory, "b.kvs", "-o", memory)
    assert (ran.code, "are the same file" in ran.stderr) == (2, True), ran.stderr
    ran = cli("merge", memory, "b.kvs", "-o", "c.kvs", "--stats", "s.jsonl")
    assert (ran.code, "so there are no events" in ran.stderr) == (2, True), ran.stderr
    assert Path(memory).read_bytes() == before


@pytest.mark.parametrize(
    "options", [("--method", "window"), ("--budget", "64k"), ("--preset", "paper")]
)
def test_what_files_fix_is_refused_for_a_folder(cli, memory: str, options) -> None:
    ran = cli("ask", "--memory", str(Path(memory).parent), "Who?", *options)
    assert ran.code == 2, ran.stderr
    assert f"{options[0]} is fixed in a memory file" in ran.stderr


def test_a_memory_file_names_its_model(cli, tmp_path) -> None:
    """`ask`, `merge` and the other commands load the model from there, unless -m names another."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from kvstream.store import pocket

    folder = tmp_path / "tiny"
    config = LlamaConfig(
        vocab_size=8192, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((pocket.path() / name).read_bytes())
    files = [str(tmp_path / name) for name in ("a.kvs", "b.kvs")]
    few = ("--budget", "200", "-n", "4")
    for name, place in zip(files, ("mill", "harbor"), strict=True):
        text = tmp_path / f"{place}.txt"
        text.write_text(f"The {place} is old. " * 20)
        ran = cli("remember", str(text), "-o", name, "-m", str(folder), *few)
        assert ran.code == 0, ran.stderr
    both = str(tmp_path / "both.kvs")
    assert (ran := cli("merge", *files, "-o", both)).code == 0, ran.stderr
    assert (ran := cli("ask", "--memory", both, "Who?", "-n", "2")).code == 0, ran.stderr
    for other in (("-m", "pocket"), ("--trust-remote-code",)):
        ran = cli("merge", *files, "-o", both, *other)
        assert ran.code == 4, ran.stderr
        assert "give the model that made it with -m" in ran.stderr
    folder.rename(tmp_path / "elsewhere")
    assert (ran := cli("merge", *files, "-o", both)).code == 4, ran.stderr
    assert f"was made by {folder}" in ran.stderr


def test_number_types_of_a_file_were_not_asked_for(cli, memory, tmp_path) -> None:
    more = tmp_path / "more.txt"
    more.write_text("It rains in the valley.\n" * 9)
    read = ("remember", str(more), "--memory", memory, "-o", str(tmp_path / "more.kvs"))
    assert " · float32 (as in story.kvs) · " in cli(*read).stderr
    assert " · float32 (asked for) · " in cli(*read, "--dtype", "float32").stderr


def test_no_other_model_is_advised_where_a_file_names_its_model(
    cli, memory, story, tmp_path
) -> None:
    more, both = tmp_path / "more.txt", str(tmp_path / "both.kvs")
    more.write_text("It rains in the valley.\n" * 9)
    other = str(tmp_path / "more.kvs")
    ran = cli("remember", str(more), "-o", other, *FEW)
    assert "pocket is a small model for demonstration" in ran.stderr
    for command in (
        ("ask", "--memory", memory, QUESTION, "-n", "2"),
        ("ask", "--memory", str(tmp_path), QUESTION, "-n", "2"),
        ("remember", str(more), "--memory", memory, "-o", both),
        ("merge", memory, other, "-o", both),
    ):
        ran = cli(*command)
        assert ran.code == 0, ran.stderr
        assert "demonstration" not in ran.stderr


def test_a_cache_that_is_rounded_is_told_once(cli, story, tmp_path) -> None:
    files = [str(tmp_path / f"{kind}.kvs") for kind in ("bfloat16", "float32")]
    for kind, name in zip(("bfloat16", "float32"), files, strict=True):
        ran = cli("remember", str(story), "-o", name, "-q", *FEW, "--kv-dtype", kind)
        assert ran.code == 0, ran.stderr
    other = ("--kv-dtype", "bfloat16")
    more = tmp_path / "more.txt"
    more.write_text("It rains in the valley.\n" * 9)
    for command in (
        ("merge", *files, "-o", str(tmp_path / "both.kvs")),
        ("ask", "--memory", files[1], QUESTION, "-n", "2", *other),
        ("remember", str(more), "--memory", files[1], "-o", str(tmp_path / "m.kvs"), *other),
    ):
        ran = cli(*command)
        assert ran.code == 0, ran.stderr
        assert ran.stderr.count(f"The KV cache in {files[1]} is in float32, and was rounded") == 1


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (
            ("-Q", "Who?"), (),
            "Memories of different methods cannot be joined: {0} was made by infinipot, and {1} by "
            "foresight. Only {0} was made for questions (-Q), and without --method that decides "
            "the method. Read the sources again, all with the same -Q or all without.",
        ),
        (
            ("--method", "h2o"), ("--method", "tova"),
            "{0} was made by h2o, and {1} by tova. Read the sources again with one method and",
        ),
        (
            ("--method", "h2o"), ("--method", "h2o", "--set", "h2o.sinks=9"),
            "Memories with different settings of h2o cannot be joined: {0} and {1} differ in them.",
        ),
        (
            ("-Q", "Who?"), ("-Q", "Where?"),
            "Memories for different questions cannot be joined: {0} and {1} differ in -Q.",
        ),
        (
            ("--method", "h2o"), ("--method", "h2o", "-s", "Be kind."),
            "Memories with different prompts cannot be joined: {0} and {1} differ in --system",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_joined_is_named_by_its_files(cli, tmp_path, first, second, says) -> None:
    files = [str(tmp_path / name) for name in ("a.kvs", "b.kvs", "c.kvs")]
    for name, options in zip(files, (first, first, second), strict=True):
        text = Path(name).with_suffix(".txt")
        text.write_text(f"The mill {text.stem} is old. " * 20)
        ran = cli("remember", str(text), "-o", name, "-q", *FEW, *options)
        assert ran.code == 0, ran.stderr
    one, _, three = files
    for pair, names in ((files, (one, three)), ([one, three], (one, three))):
        ran = cli("merge", *pair, "-o", str(tmp_path / "both.kvs"), "-q")
        assert ran.code == 2
        assert says.format(*names) in ran.stderr
    if "{0} was made for" in says:  # in either order
        ran = cli("merge", three, one, "-o", str(tmp_path / "both.kvs"), "-q")
        assert f"Only {one} was made for questions (-Q)" in ran.stderr


def test_no_memory_is_joined_with_itself(cli, memory, tmp_path) -> None:
    copy, both = str(tmp_path / "copy.kvs"), str(tmp_path / "both.kvs")
    Path(copy).write_bytes(Path(memory).read_bytes())
    for files, says in (
        ((memory, memory), f"{memory} was named twice"),
        ((memory, f"{tmp_path}/./story.kvs"), "was named twice"),
        ((memory, copy), f"{memory} and {copy} hold the same memory"),
    ):
        ran = cli("merge", *files, "-o", both)
        assert ran.code == 2, ran.stderr
        assert says in ran.stderr
    assert not Path(both).exists()


def test_sources_of_several_joined_files_are_counted(cli, tmp_path) -> None:
    mill, harbor, castle = (tmp_path / f"{name}.txt" for name in ("mill", "harbor", "castle"))
    for text in (mill, harbor, castle):
        text.write_text(f"The {text.stem} is old. " * 20)
    files = [str(tmp_path / name) for name in ("a.kvs", "b.kvs", "c.kvs", "d.kvs")]
    for name, texts in zip(
        files, ((mill, harbor), (harbor,), (castle,), (harbor, mill)), strict=True
    ):
        ran = cli("remember", *map(str, texts), "-o", name, "-q", *FEW)
        assert ran.code == 0, ran.stderr
    both = str(tmp_path / "both.kvs")
    ran = cli("merge", *files[:2], "-o", both)
    assert ran.code == 0, ran.stderr
    assert f"Warning: 1 source ({harbor}) is in more than one of the joined files" in ran.stderr
    ran = cli("merge", *files, "-o", both, "-q")
    assert "Warning: 2 sources are in more than one of the joined files" in ran.stderr
    ran = cli("merge", *files[1:3], "-o", both)
    assert "Warning" not in ran.stderr


@pytest.mark.whole_pocket
def test_an_answer_from_a_joined_memory_says_what_it_saw(cli, forked, tmp_path) -> None:
    """The answers run in new processes that know only the file. Each document is found again."""
    for name, sentence in (
        ("mill", "The passkey for the old mill is 48213. "),
        ("harbor", "Winifred Puldesh hid the letter in the harbor. "),
    ):
        (tmp_path / f"{name}.txt").write_text("It rained all day. " * 60 + sentence * 2)
        file = tmp_path / f"{name}.kvs"
        ran = cli("remember", str(tmp_path / f"{name}.txt"), "-o", str(file), "-q", *FEW)
        assert ran.code == 0, ran.stderr
    both = str(tmp_path / "both.kvs")
    files = [str(tmp_path / f"{name}.kvs") for name in ("mill", "harbor")]
    ran = cli("merge", *files, "-o", both, "--budget", "700")
    assert ran.code == 0, ran.stderr
    before = Path(both).read_bytes()
    asked = ("-Q", "What is the passkey for the old mill?", "-Q", "Who hid the letter?")
    ran = forked("ask", "--memory", both, *asked, "--json", "-n", "8")
    assert ran.code == 0, ran.stderr
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    for name, told in zip(("mill", "harbor"), answers, strict=True):
        assert told["narrowed"]["sources"] == [str(tmp_path / f"{name}.txt")]
        assert told["narrowed"]["entries"] < told["narrowed"]["held"]
        assert told["peak"]["kv_tokens"] <= told["budget"]["tokens"] == 700
        assert re.search(rf"answered from .*{name}.txt, .* saw \d+ of \d+ entries", ran.stderr)
    assert Path(both).read_bytes() == before
    ran = cli("chat", "--memory", both, "-n", "4", stdin=b"Who hid the letter?\n")
    assert re.search(r"answered from .*harbor.txt, .* saw \d+ of \d+ entries", ran.stderr)
    ran = cli("ask", "--memory", both, "And why?", "--json", "-n", "4")
    assert "narrowed" not in json.loads(ran.stdout)


def test_counts_of_entries_name_those_of_the_prompt(cli, tmp_path) -> None:
    """Nothing is evicted, so all entries except the prompt's are retained tokens."""
    for name in ("mill", "harbor"):
        (tmp_path / f"{name}.txt").write_text(f"The {name} is old. " * 9)
        ran = cli("remember", str(tmp_path / f"{name}.txt"), "-o", str(tmp_path / name), *FEW)
        assert ran.code == 0, ran.stderr
    both = str(tmp_path / "both.kvs")
    joined = cli("merge", str(tmp_path / "mill"), str(tmp_path / "harbor"), "-o", both)
    [kept] = re.findall(r"(\d+) kept,", joined.stderr)
    asked = cli("ask", "--memory", both, "How old is the harbor?", "-n", "2")
    assert f" of {int(kept) + 1} entries, 1 of the prompt" in asked.stderr
    told = cli("inspect", both).stdout
    assert f"kept {kept}" in told
    assert f"{int(kept) + 1} entries (1 of the prompt) of 300" in told
    assert "answered from" not in ran.stderr


def test_a_name_that_is_no_text_is_kept_as_well_as_it_can_be(cli, story, tmp_path) -> None:
    """The name is valid UTF-8 in the memory file, and --each writes a memory of the file too."""
    odd = tmp_path / "caf\udce9.txt"
    try:
        odd.write_bytes(story.read_bytes())
    except OSError:
        pytest.skip("this file system takes no such names")
    kept = str(tmp_path / "odd.kvs")
    ran = cli("remember", str(odd), "-o", kept, "-q", *FEW)
    assert ran.code == 0, ran.stderr
    ran = cli("ask", "--memory", kept, QUESTION, "--json", *FEW[-2:])
    assert ran.code == 0, ran.stderr
    [source] = json.loads(ran.stdout)["memory"]["sources"]
    assert source["name"].endswith("/caf?.txt")
    out = tmp_path / "each"
    ran = cli("remember", str(tmp_path), "--each", "-o", str(out), "-q", *FEW, "-m", "pocket")
    assert ran.code == 0, ran.stderr
    assert len(list(out.glob("*.kvs"))) == 1


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_a_seed_of_a_memory_file_is_that_of_the_answer(cli, memory, command) -> None:
    def answer(seed: int) -> str:
        drawn = ("--memory", memory, "--temp", "2", "--seed", str(seed), "-n", "12", "-q")
        asked = "Tell me a long story about the mill"
        if command == "ask":
            ran = cli("ask", *drawn, asked)
        else:
            ran = cli("chat", *drawn, stdin=asked.encode())
        assert ran.code == 0, ran.stderr
        return ran.stdout

    said = answer(7)
    assert answer(7) == said
    assert {answer(8), answer(9)} != {said}


def test_a_chat_with_a_question_that_does_not_fit_says_so_at_the_end(cli, memory) -> None:
    ran = cli("chat", "--memory", memory, "-q", stdin=b"why " * 3000)
    assert ran.code == 5
    assert "The question takes" in ran.stderr


def test_a_folder_that_cannot_be_opened_is_an_error(cli, tmp_path, monkeypatch) -> None:
    def refuse(folder: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("kvstream.collection.rank.os.listdir", refuse)
    ran = cli("ask", "--memory", str(tmp_path), QUESTION)
    assert ran.code == 3
    assert f"{tmp_path} cannot be read: Permission denied." in ran.stderr


def test_a_memory_that_another_program_changes_meanwhile_is_not_replaced(
    cli, memory, tmp_path, monkeypatch
) -> None:
    more = tmp_path / "more.txt"
    more.write_text("Berta cast the bell.\n")

    original = remembering.open_memory

    def open_memory(*arguments: Any) -> Any:
        found = original(*arguments)
        Path(memory).write_bytes(b"of another program")
        return found

    monkeypatch.setattr(remembering, "open_memory", open_memory)
    ran = cli("remember", "--memory", memory, str(more), "-q")
    assert ran.code == 1
    assert Path(memory).read_bytes() == b"of another program"
    assert "was changed by another program" in ran.stderr
    place = Path(re.search(r"The memory was written to (.*\.kvs) instead", ran.stderr)[1])
    assert place.stat().st_size > 1000
