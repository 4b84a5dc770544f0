"""What goes to stdout and what to stderr, and how a run ends: pipes, full disks, Ctrl-C."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import click
import pytest
from fakes import FakeSession
from signals import heed_hangup
from warm import CLIENT

from kvstream.cli.app import run
from kvstream.cli.commands.bench import result_output
from kvstream.cli.commands.chat import AGAIN, questions
from kvstream.cli.shared.interrupts import Interrupts
from kvstream.cli.shared.output import OutputFile
from kvstream.cli.shared.running import read_to_end
from kvstream.errors import BudgetError, KvstreamError
from kvstream.events import AnswerStarted, Event, PartRead
from kvstream.input.sources import open_sources
from kvstream.run.request import Request
from kvstream.store import writing

PROGRAM = [*CLIENT, str(Path(__file__).resolve().parents[1] / "support" / "fake_main.py")]
pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture
def book(tmp_path: Path) -> str:
    path = tmp_path / "book.txt"
    path.write_text("A short story about a key under a stone.\n" * 20)
    return str(path)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **more}


def on_terminal(
    *arguments: str,
    stderr: bool = True,
    stdout: bool = True,
    before: Sequence[str] = (),
    **env: str,
) -> str:
    """Return what a run sends to a terminal. A stream that is not on it is discarded."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*before, *PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs if stdout else subprocess.DEVNULL,
        stderr=theirs if stderr else subprocess.DEVNULL,
        env=environment(**env),
    )
    os.close(theirs)
    received = b""
    while select.select([ours], [], [], 30)[0]:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        received += piece
    assert process.wait(30) == 0
    os.close(ours)
    return received.decode()


def test_stdout_is_the_answer_and_stderr_the_rest(cli, fake_session, book) -> None:
    fake_session.notices = ("3 bytes were not UTF-8.",)
    ran = cli("ask", book, "Q?")
    assert ran.stdout == "It is 51234.\n"
    assert "Loading pocket" in ran.stderr
    assert "budget 1,024 entries (4.5 MiB)" in ran.stderr
    assert "peak 932 of 1,024 entries" in ran.stderr
    assert ran.stderr.count("3 bytes were not UTF-8.") == 1
    assert "\x1b" not in ran.stdout + ran.stderr


def test_quiet_leaves_warnings_only(cli, fake_session, book) -> None:
    assert cli("ask", book, "Q?", "-q").stderr == ""
    fake_session.notices = ("3 bytes were not UTF-8.",)
    assert cli("ask", book, "Q?", "-q").stderr == "Warning: 3 bytes were not UTF-8.\n"


def test_json_is_one_object_a_line_with_the_keys_of_the_contract(cli, fake_session, book) -> None:
    ran = cli("ask", book, "-Q", "A?", "-Q", "B?", "--json")
    records = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(records) == 2
    assert set(records[0]) >= {
        "command", "model", "method", "question", "answer", "budget", "peak", "tokens",
        "schedule", "timing", "citations", "warnings",
    }  # fmt: skip
    assert records[0]["budget"] == {"tokens": 1024, "bytes": 1024 * 4608}


def test_output_file_is_complete_or_not_there(cli, fake_session, book, tmp_path) -> None:
    out = tmp_path / "answer.txt"
    ran = cli("ask", book, "Q?", "-o", str(out))
    assert (ran.code, ran.stdout) == (0, "")
    assert out.read_text() == "It is 51234.\n"
    out.write_text("earlier")
    fake_session.fails = ValueError("broken")
    assert cli("ask", book, "Q?", "-o", str(out)).code == 1
    assert out.read_text() == "earlier"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["answer.txt", "book.txt"]


def test_a_file_that_is_written_is_told_of(cli, fake_session, book, tmp_path) -> None:
    out, said = tmp_path / "t.csv", f"Wrote {tmp_path / 't.csv'}.\n"
    for command in (["ask", book, "Q?"], ["compare", book, "Q?", "--csv"]):
        assert cli(*command, "-o", str(out)).stderr.endswith(said)
        assert said not in cli(*command, "-o", str(out), "-q").stderr
    assert cli("sample", "--tokens", "1k", "-o", str(out)).stderr == said
    fake_session.fails = ValueError("broken")
    assert said not in cli("ask", book, "Q?", "-o", str(out)).stderr


@pytest.mark.parametrize("command", [["ask"], ["compare"], ["summarize"], ["remember", "-o", "m"]])
def test_what_cannot_be_is_told_before_a_model_is_loaded(
    cli, fake_session, book, tmp_path, monkeypatch, command
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").touch()
    Path("bad.pdf").write_bytes(b"%PDF-1.4 nothing")
    question = ["Q?"] if command[0] in ("ask", "compare") else []
    for name, code in (("missing.txt", 3), ("empty.txt", 3), ("bad.pdf", 3)):
        ran = cli(*command, name, *question)
        assert (ran.code, "Loading" in ran.stderr) == (code, False), ran.stderr
    ran = cli(*command, book, *question, "--budget", "10")
    assert (ran.code, "Loading" in ran.stderr) == (5, False), ran.stderr
    assert "--budget 256" in ran.stderr


def test_a_pipe_that_has_ended_empty_is_told_before_a_model_is_loaded(monkeypatch) -> None:
    from kvstream.cli.shared.inputs import _ended_empty

    ours, theirs = os.pipe()
    with open(ours) as stdin, open(theirs, "wb") as writer:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert not _ended_empty(), "more may come"
        writer.write(b"text")
        writer.flush()
        assert not _ended_empty()
        writer.close()
        assert not _ended_empty()
        assert stdin.read() == "text"
        assert _ended_empty()


def test_stats_that_would_be_read_with_a_folder_are_refused(cli, fake_session, book) -> None:
    folder = Path(book).parent
    (folder / ".gitignore").write_text("ignored/\n")
    (folder / "ignored").mkdir()
    before = Path(book).read_text()
    for place in (folder / "new.jsonl", Path(book)):
        ran = cli("ask", str(folder), "Q?", "--stats", str(place))
        assert (ran.code, f"is in the folder {folder}" in ran.stderr) == (2, True), ran.stderr
        assert "name a file elsewhere" in ran.stderr, "a new file there is read, too"
    assert Path(book).read_text() == before
    for place in (folder / ".stats", folder / "ignored" / "stats", folder.parent / "stats.jsonl"):
        assert cli("ask", str(folder), "Q?", "--stats", str(place)).code == 0
        place.unlink()


def test_an_output_that_a_folder_has_a_link_to_is_refused(cli, fake_session, tmp_path) -> None:
    inside, outside = tmp_path / "texts", tmp_path / "outside.txt"
    inside.mkdir()
    outside.write_text("Ada hid the letter.\n")
    (inside / "link.txt").symlink_to(outside)
    (inside / "loop.txt").symlink_to("loop.txt")
    for option in ("-o", "--stats"):
        for place in (outside, inside / "link.txt"):
            ran = cli("ask", str(inside), "Q?", option, str(place))
            assert (ran.code, f"is in the folder {inside}" in ran.stderr) == (2, True), ran.stderr
    assert outside.read_text() == "Ada hid the letter.\n"
    for place in (inside / "loop.txt", outside / "below"):
        ran = cli("ask", str(inside), "Q?", "--each", "-o", str(place))
        assert (ran.code, "; name a folder for -o" in ran.stderr) == (2, True), ran.stderr


def test_what_kvstream_wrote_into_a_folder_is_not_read_with_it(cli, fake_session, book) -> None:
    pytest.importorskip("jinja2")
    folder = Path(book).parent
    page, answer, answers, stats = (str(folder / f"{kind}.out") for kind in "1234")
    asked = "ask", str(folder), "Q?"
    assert cli(*asked, "--report", page, "--json", "-o", answers).code == 0
    assert cli("ask", book, "Q?", "--stats", stats).code == 0
    sources = open_sources([str(folder)])
    assert sources.names == [book]
    told = "1 × report of kvstream, 2 × JSON file of kvstream"
    assert sources.notes == [f"Left out of {folder}: {told}."]
    summarize = "summarize", str(folder), "--as", "log", "-o", answer
    assert cli(*summarize).code == 0
    ran = cli(*summarize)
    assert (ran.code, "is in the folder" in ran.stderr) == (2, True)
    assert f"Skipped: {told}" in cli(*asked, "--each").stderr
    assert open_sources([page]).names == [page], "a file that is named is read"


def test_a_full_disk_is_told_and_the_answer_is_not_lost(cli, fake_session, book) -> None:
    ran = cli("ask", book, "Q?", "-o", "/dev/full")
    assert ran.code == 1
    assert "Cannot write /dev/full: No space left on device" in ran.stderr
    assert ran.stdout == "It is 51234.\n"
    ran = cli("ask", book, "Q?", "-o", "/dev/full", "--json")
    assert (ran.code, json.loads(ran.stdout)["answer"]) == (1, "It is 51234.")
    ran = cli("ask", book, "-Q", "One?", "-Q", "Two?", "-o", "/dev/full")
    assert (ran.code, ran.stdout.count("It is 51234.\n")) == (1, 2), "the second one is not, too"


@pytest.mark.parametrize("error", [BudgetError("No room."), KeyboardInterrupt()])
def test_a_run_that_fails_prints_its_answers_and_leaves_no_file(
    cli, fake_session, book, tmp_path, monkeypatch, error
) -> None:
    def fails(self: FakeSession, sources: object, request: Request) -> Iterator[Event]:
        yield from FakeSession.ask(self, sources, replace(request, questions=("One?",)))
        yield AnswerStarted("Two?", 1)
        raise error

    monkeypatch.setattr(fake_session, "ask", fails)
    out = tmp_path / "answers.txt"
    out.write_text("earlier")
    ran = cli("ask", book, "-Q", "One?", "-Q", "Two?", "-o", str(out))
    assert ran.code in (5, 130)
    assert ran.stdout.startswith("Question: One?\nIt is 51234.\n")
    assert f"{out} was not written, because the run did not end." in ran.stderr
    assert out.read_text() == "earlier"


def test_a_disk_that_becomes_full_loses_no_earlier_answer(tmp_path, capsys) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = OutputFile(tmp_path / "a.txt", rescued=True)
    file.write("first\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        file.write("second\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    file.write("third\n")
    with pytest.raises(KvstreamError, match="was not written"):
        file.finish(quiet=True)
    told = capsys.readouterr()
    assert told.out == "first\nsecond\nthird\n"
    assert "File too large" in told.err
    assert not list(tmp_path.iterdir())


def test_an_answer_whose_folder_was_removed_is_printed(tmp_path, capsys) -> None:
    (tmp_path / "answers").mkdir()
    file = OutputFile(tmp_path / "answers/a.txt", rescued=True)
    file.write("München\n")
    shutil.rmtree(tmp_path / "answers")
    with pytest.raises(KvstreamError, match="was not written"):
        file.finish(quiet=True)
    told = capsys.readouterr()
    assert told.out == "München\n"
    assert "folder or temporary file is gone" in told.err


def test_a_full_disk_for_stats_costs_no_answer(cli, fake_session, book) -> None:
    ran = cli("ask", book, "Q?", "--stats", "/dev/full")
    assert (ran.code, ran.stdout) == (1, "It is 51234.\n")
    assert "Cannot write /dev/full: No space left on device" in ran.stderr


@pytest.mark.parametrize("option", ["-o", "--stats"])
def test_an_unwritable_file_is_found_before_the_work(cli, fake_session, book, option) -> None:
    fake_session.last = None
    ran = cli("ask", book, "Q?", option, "/nowhere/answer.txt")
    assert ran.code == 1
    assert "Cannot write /nowhere/answer.txt: No such file or directory" in ran.stderr
    assert fake_session.last is None


@pytest.mark.parametrize("more", [(), ("-o", "/dev/full")])
def test_stdout_on_a_full_disk(book, more) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*PROGRAM, "ask", book, "Q?", "-q", *more],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("more", [(), ("-q",), ("--json",), ("--method", "h2o,tova")])
def test_an_answer_that_has_no_place_is_an_error(book, more) -> None:
    command = shlex.join([*PROGRAM, "ask", book, "Q?", *more])
    done = subprocess.run(f"{command} >&-", shell=True, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "Error: stdout is closed, so nothing can be printed; name a file with -o.\n"
    )


def test_what_prints_needs_stdout_and_what_writes_a_file_does_not(book, tmp_path) -> None:
    out = tmp_path / "answer.txt"
    for more, code in ((f"ask {shlex.quote(book)} Q? -q -o {out}", 0), ("--version", 1)):
        command = f"{shlex.join(PROGRAM)} {more} >&-"
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        told = "Error: stdout is closed, so nothing can be printed.\n" * code
        assert (done.returncode, done.stderr) == (code, told), "--version has no -o to advise"
    assert out.read_text() == "It is 51234.\n"


def test_stderr_that_is_closed_is_no_error(book) -> None:
    command = shlex.join([*PROGRAM, "ask", book, "Q?"])
    done = subprocess.run(f"{command} 2>&-", shell=True, capture_output=True, text=True)
    assert done.stdout == "It is 51234.\n"
    assert done.returncode == 0


@pytest.mark.parametrize("to_file", [False, True])
def test_stderr_on_a_full_disk_is_no_error(book, tmp_path, to_file: bool) -> None:
    out = tmp_path / "answer.txt"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*PROGRAM, "ask", book, "Q?", *(["-o", str(out)] if to_file else [])],
            stdout=subprocess.PIPE, stderr=full, text=True,
        )  # fmt: skip
    answer = out.read_text() if to_file else done.stdout
    assert (done.returncode, answer) == (0, "It is 51234.\n")


@pytest.fixture
def unread() -> Iterator[TextIO]:
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    yield stream
    with suppress(BrokenPipeError):
        stream.close()


def test_a_closed_pipe_is_quiet(unread, book) -> None:
    done = subprocess.run(
        [*PROGRAM, "ask", book, "Q?", "-q"], stdout=unread, stderr=subprocess.PIPE, text=True
    )
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [["compare"], ["compare", "--json", "--method", "window,snapkv"], ["--help"], ["--version"]],
)
def test_a_closed_pipe_is_no_failure_of_any_command(
    unread, fake_session, book, monkeypatch, capfd, arguments: list[str]
) -> None:
    monkeypatch.setattr("sys.stdout", unread)
    more = [] if arguments[0].startswith("-") else [book, "Q?", "-q"]
    assert run([*arguments, *more]) == 0
    assert capfd.readouterr().err == ""


def test_a_table_for_a_closed_pipe_is_no_failure(unread, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdout", unread)
    with pytest.raises(BrokenPipeError):
        result_output.show([{}], lambda: ["a table"], as_json=False)


def test_stats_are_one_line_an_event(cli, fake_session, book, tmp_path) -> None:
    stats = tmp_path / "stats.ndjson"
    assert cli("ask", book, "Q?", "-q", "--stats", str(stats)).code == 0
    records = [json.loads(line) for line in stats.read_text().splitlines()]
    kinds = [record["event"] for record in records]
    assert kinds == [
        "started", *["step"] * 16, "answer_started", *["answer_token"] * 3, "answered",
    ]  # fmt: skip
    step = records[5]
    assert step["memory"] > 0
    assert 0 < step["retention"] <= 1
    assert step["budget_tokens"] == 1024


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (MemoryError(), 5, "Out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), 5, "--budget"),
        (KeyboardInterrupt(), 130, "Interrupted"),
        (ValueError("a bug"), 1, "Unexpected ValueError: a bug"),
        (FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"), 1, "set TMPDIR"),
    ],
)
def test_failures_end_with_a_message_and_a_code(cli, fake_session, book, error, code, says) -> None:
    fake_session.fails = error
    ran = cli("ask", book, "Q?")
    assert ran.code == code
    assert ran.stdout == ""
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


def test_torch_out_of_memory_is_code_5(cli, fake_session, book) -> None:
    torch = pytest.importorskip("torch")
    fake_session.fails = torch.OutOfMemoryError("CUDA out of memory.")
    assert cli("ask", book, "Q?").code == 5


def test_verbose_shows_the_traceback(cli, fake_session, book) -> None:
    fake_session.fails = ValueError("a bug")
    ran = cli("ask", book, "Q?", "-qv")
    assert ran.code == 1
    assert "Traceback" in ran.stderr


def test_a_terminal_gets_the_panel_then_the_answer(book) -> None:
    shown = on_terminal("ask", book, "Q?", FAKE="pause=0.02")
    assert "budget 1,024 entries" in shown
    words = " ".join(shown.split())
    assert words.index("╭") < words.index("It is 51234.") < words.index("peak 932 of 1,024")


@pytest.mark.parametrize("kind", ["null", "file", "read", "pipe"])
def test_empty_standard_input_is_noticed_before_a_model_is_loaded(tmp_path, kind) -> None:
    path = tmp_path / "text.txt"
    path.write_text("Ada hid the letter.\n" if kind == "read" else "")
    command = {
        "null": '"$@" </dev/null', "file": f'"$@" <"{path}"', "pipe": 'true | (sleep 0.3; "$@")',
        "read": f'(cat >/dev/null; "$@") <"{path}"',
    }[kind]  # fmt: skip
    done = subprocess.run(
        ["sh", "-c", command, "sh", *PROGRAM, "ask", "Who?"],
        capture_output=True, text=True, env=environment(),
    )  # fmt: skip
    assert done.returncode == 3
    assert "Nothing to read: standard input held 0 bytes" in done.stderr
    assert "Loading" not in done.stderr


def test_the_beginning_of_standard_input_is_not_lost(tmp_path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("Ada hid the letter.\n")
    for command in ('"$@" <"$0"', 'cat "$0" | "$@"', '(sleep 0.3; cat "$0") | "$@"'):
        done = subprocess.run(
            ["sh", "-c", command, str(path), *PROGRAM, "ask", "Who?", "--stats", "/dev/stderr"],
            capture_output=True, text=True, env=environment(FAKE="reads=True"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout == "It is 51234.\n"


CITED = (
    "citations=({'source': 'a.txt', 'line_start': 7, 'line_end': 8, 'page': None, 'chapter': None,"
    " 'weight': 0.5, 'text': 'Ada hid it.'},)"
)


@pytest.mark.parametrize("progress", ["live", "plain", "none"])
def test_a_terminal_shows_the_passages_of_an_answer_in_a_file(book, tmp_path, progress) -> None:
    out = tmp_path / "answer.txt"
    asked = ("ask", book, "-Q", "Q?", "-Q", "And then?", "-o", str(out))
    shown = on_terminal(*asked, "--progress", progress, FAKE=CITED).replace("\r", "")
    told = "Where the model looked:\n[1] a.txt:7-8 (50%)\n    Ada hid it.\n"
    assert shown.count(told) == 2
    assert f"Question: And then?\n{told}" in shown
    assert "looked" not in out.read_text()
    quiet = {"live": "-q", "plain": "--json"}.get(progress)
    assert quiet is None or "looked" not in on_terminal(*asked, quiet, FAKE=CITED)


@pytest.mark.parametrize(
    "command", [["ask"], ["ask", "--json"], ["compare", "--json", "--method", "infinipot"]]
)
def test_an_answer_through_a_pipe_to_the_same_terminal_is_not_drawn_over(book, command) -> None:
    piped = ["sh", "-c", '"$@" | cat', "sh"]
    shown = on_terminal(*command, book, "Q?", before=piped, FAKE="pause=0.02")
    panel, answer = shown.index("budget 1,024 entries"), shown.index("It is 51234.")
    assert panel < answer
    # The panel moves the cursor up and draws over what is there.
    assert "\x1b[1A" in shown[panel:answer]
    assert "\x1b[1A" not in shown[answer:]


def test_what_compare_tells_of_a_method_stands_below_its_panel(book, tmp_path) -> None:
    table = tmp_path / "t.csv"
    compare = ["compare", "--csv", "-o", str(table), "--method", "infinipot,window", book, "Q?"]
    shown = on_terminal(*compare, FAKE="pause=0.02")
    panels = [shown.index(f"kvstream · pocket · {name}") for name in ("infinipot", "window")]
    costs = [place.start() for place in re.finditer("left out", shown)]
    assert panels[0] < costs[0] < panels[1] < costs[1]
    assert "\x1b[1A" not in shown[costs[0] : panels[1]], "the panel is not drawn below it"
    assert "\x1b[1A" not in shown[costs[1] :]


def test_the_answer_streams_on_a_terminal(book) -> None:
    shown = on_terminal("ask", book, "Q?", stderr=False, FAKE="pause=0.01")
    assert shown == "It is 51234.\r\n"


def test_escape_sequences_of_an_answer_never_reach_a_terminal(book) -> None:
    shown = on_terminal(
        "ask", book, "Q?", "-q", FAKE=r"pieces=('a\x1b]0;x\x07b', '\x9b31m', '\r\nc')"
    )
    assert shown == "a␛]0;x␇b�31m\r\nc\r\n"
    for form in ("--json", "--csv"):
        shown = on_terminal(
            "compare", book, "Q?", "-q", form, "--method", "window", FAKE=r"pieces=('a\x1bb\x9bc',)"
        )
        assert "\x1b" not in shown
        assert "\x9b" not in shown
        assert ("a\\u001bb\\u009bc" if form == "--json" else "a␛b�c") in shown


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_dumb_terminals_and_no_color(book, env) -> None:
    shown = on_terminal("ask", book, "Q?", stdout=False, FAKE="pause=0.02", **env)
    assert "\x1b[3" not in shown, "no colors"
    if env.get("TERM") == "dumb":
        assert "\x1b" not in shown
        assert "╭" not in shown


def test_plain_progress_on_a_terminal(book) -> None:
    assert "\x1b" not in on_terminal("ask", book, "Q?", "--progress", "plain")


def start(*arguments: str, stdin: int | None = subprocess.DEVNULL, **env: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**env),
        preexec_fn=heed_hangup,
    )


def wait_for(process: subprocess.Popen, text: str) -> str:
    assert process.stderr is not None
    lines = ""
    for line in process.stderr:
        lines += line
        if text in line:
            return lines
    raise AssertionError(f"{text!r} never came; there was: {lines}")


def test_first_ctrl_c_answers_from_what_was_read(book) -> None:
    process = start("ask", book, "Q?", "--json", FAKE="pause=0.1\ntokens=1_000_000")
    wait_for(process, "steps")
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "answering from what was read" in err
    assert 0 < json.loads(out)["tokens"]["read"] < 10**6


def test_second_ctrl_c_ends_with_130(book) -> None:
    process = start("ask", book, "Q?", FAKE="pause=3\ntokens=1_000_000")
    wait_for(process, "steps")
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    wait_for(process, "Interrupted before a chunk was read.")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err


def test_ctrl_c_ends_the_wait_for_standard_input() -> None:
    process = start("ask", "Q?", stdin=subprocess.PIPE, FAKE="reads=True\ntokens=1024")
    assert process.stdin is not None
    process.stdin.write("The writer of this pipe never closes it.\n")
    process.stdin.flush()
    wait_for(process, "budget")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    wait_for(process, "before a chunk was read")
    assert process.wait(30) == 0
    assert process.stdout is not None
    assert process.stdout.read() == "It is 51234.\n"
    process.stdin.close()


def test_ctrl_c_before_anything_was_read() -> None:
    process = start("ask", "Q?", stdin=subprocess.PIPE, FAKE="reads=True")
    wait_for(process, "budget")
    time.sleep(0.2)  # until that line is complete
    process.send_signal(signal.SIGINT)
    wait_for(process, "before a chunk was read")
    assert process.wait(30) == 130


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ((), "Interrupted before a chunk was read. Press Ctrl-C again to stop."),
        (
            (PartRead(1, 2, 3, 0.1),),
            "Interrupted: answering from what was read so far. Press Ctrl-C again to stop.",
        ),
    ],
)
def test_ctrl_c_tells_what_was_read_so_far_only_if_something_was(events, told) -> None:
    """`chat` and `remember` tell the handler of chunks; they show no other events here."""
    shown: list[object] = []
    interrupts = Interrupts(shown.append)

    def read() -> Iterator[Event]:
        yield from events
        interrupts._handle(signal.SIGINT, None)

    read_to_end(read(), SimpleNamespace(show=shown.append), interrupts)
    assert shown == [*events, told]


def test_termination_leaves_no_file_behind(book, tmp_path) -> None:
    out = tmp_path / "answer.txt"
    process = start("ask", book, "Q?", "-o", str(out), FAKE="pause=0.1\ntokens=1_000_000")
    wait_for(process, "steps")
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["book.txt"]


def test_a_limit_on_the_size_of_files_is_told_in_words(capsys) -> None:
    @click.command()
    def command() -> None:
        raise OSError(errno.EFBIG, "File too large")

    assert run([], command) == 1
    assert capsys.readouterr().err == "Error: Could not write the output: File too large.\n"


def test_a_signal_before_a_command_begins_ends_in_words() -> None:
    program = (
        "import os, signal, kvstream.cli, kvstream.cli.app as app\n"
        "app.run = lambda _: os.kill(os.getpid(), signal.SIGTERM)\n"
        "kvstream.cli.main()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (143, "", "Terminated.\n")


@pytest.mark.parametrize("work", ["import slow", "Freed()"])
def test_an_interrupt_where_python_drops_exceptions_ends_in_words(tmp_path, work: str) -> None:
    wait = "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    (tmp_path / "slow.py").write_text(f"import os, signal, time\n{wait}\n")
    (tmp_path / "main.py").write_text(
        "import os, signal, time, kvstream.cli, kvstream.cli.app as app\n"
        "class Freed:\n"
        f"    def __del__(self): {wait}\n"
        f"app.run = lambda _: exec({work!r})\n"
        "kvstream.cli.main()\n"
    )
    program = [sys.executable, str(tmp_path / "main.py")]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "Interrupted.\n")


def test_an_interrupt_during_the_exit_prints_no_traceback() -> None:
    program = (
        "import atexit, os, signal, kvstream.cli, kvstream.cli.app as app\n"
        "app.run = lambda _: 130\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "kvstream.cli.main()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize(
    ("name", "code", "says"), [("SIGINT", 130, "Interrupted."), ("SIGTERM", 143, "Terminated.")]
)
def test_a_signal_within_an_import_closes_what_is_open_and_ends(tmp_path, name, code, says) -> None:
    """An import can take long: that of torch takes half a minute on a busy machine."""
    (tmp_path / "slow.py").write_text(
        f"import os, signal, time\nos.kill(os.getpid(), signal.{name})\ntime.sleep(20)\n"
    )
    script = tmp_path / "main.py"
    script.write_text(
        "import sys\n"
        "from functools import partial\n"
        "from kvstream.cli.shared.interrupts import Interrupts\n"
        "say = partial(print, flush=True)\n"
        "with Interrupts(say, lambda: say('closed')):\n"
        "    import slow\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=15, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, f"{says}\nclosed\n", "")


def test_each_does_not_wait_for_the_end_of_an_import(book, tmp_path) -> None:
    fake = tmp_path / "modules"
    fake.mkdir()
    (fake / "torch.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(20)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "kvstream", "ask", book, "Who came?", "--each", "-m", "pocket"],
        capture_output=True, text=True, timeout=15, check=False,
        env=environment(PYTHONPATH=f"{fake}:{Path(__file__).parents[2]}"),
    )  # fmt: skip
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (143, "Terminated.")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_an_object_is_freed_is_not_lost(name) -> None:
    class Freed:
        def __del__(self) -> None:
            os.kill(os.getpid(), getattr(signal, name))

    def work() -> None:
        with Interrupts(print):
            Freed()
            time.sleep(5)

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        work()


def test_ctrl_c_waits_for_the_end_of_an_import(tmp_path) -> None:
    """KeyboardInterrupt inside the import of torch would abort the process."""
    (tmp_path / "slow.py").write_text(
        "import os, signal, time\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "time.sleep(0.2)\n"
        "done = True\n"
    )
    script = tmp_path / "main.py"
    script.write_text(
        "import sys, time\n"
        "from kvstream.cli.shared.interrupts import Interrupts\n"
        "try:\n"
        "    with Interrupts(print):\n"
        "        import slow\n"
        "        time.sleep(20)\n"
        "except KeyboardInterrupt:\n"
        "    print('imported' if slow.done else 'cut off')\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=15, check=False
    )
    assert ran.stdout == "imported\n", ran.stderr


# Output files ---------------------------------------------------------------------------------


def in_shell(command: str, **more: object) -> subprocess.CompletedProcess[str]:
    program = shlex.join(PROGRAM)
    return subprocess.run(
        ["bash", "-c", command.replace("kvstream", program, 1)],
        capture_output=True, text=True, timeout=60, env=environment(), **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        "kvstream ask {book} Q? -q -o >(cat)",
        "kvstream ask {book} Q? -q -o /dev/stdout | cat",
        "kvstream ask {book} Q? -q --stats >(cat >/dev/null)",
    ],
)
def test_pipes_of_the_shell_are_written_directly(book, command) -> None:
    ran = in_shell(f"set -o pipefail; {command.format(book=book)}")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "It is 51234.\n"


def test_a_file_name_may_be_as_long_as_the_system_allows(cli, fake_session, book, tmp_path) -> None:
    out = tmp_path / ("\N{GRINNING FACE}" * 62 + ".txt")
    assert cli("ask", book, "Q?", "-o", str(out)).code == 0
    assert out.read_text() == "It is 51234.\n"


def test_names_that_begin_alike_have_other_temporary_names(tmp_path) -> None:
    names = [writing.hidden_name(tmp_path / ("a" * 200 + end)) for end in ("b", "c")]
    assert names[0] != names[1]
    assert all(len(name.encode()) < 100 for name in names)


@pytest.mark.parametrize("option", ["--stats", "--checkpoint", "--report", "--memory"])
def test_a_file_is_not_a_stream(cli, fake_session, book, option) -> None:
    ran = cli("ask", book, "Q?", option, "-")
    assert ran.code == 2
    assert f"{option}': This needs a file, and - stands for" in ran.stderr
    assert cli("ask", book, "Q?", "-o", "-").stdout == "It is 51234.\n"


@pytest.mark.parametrize("option", ["-o", "--stats", "--checkpoint"])
def test_an_empty_file_name_is_refused(cli, fake_session, book, option) -> None:
    ran = cli("ask", book, "Q?", option, "")
    assert ran.code == 2
    assert "The name is empty" in ran.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["-o", "{new}", "--stats", "{new}"],
        ["-o", "{new}", "--checkpoint", "{link}"],
        ["--checkpoint", "{new}", "--stats", "{new}"],
        ["--stats", "{book}"],
        ["--stats", "{hard}"],
        ["-o", "{book}"],
        ["--checkpoint", "{book}"],
    ],
)
def test_files_that_would_destroy_each_other_are_refused(
    cli, fake_session, book, tmp_path, options
) -> None:
    names = {"book": book, "new": tmp_path / "new", "link": tmp_path / "l", "hard": tmp_path / "h"}
    names["link"].symlink_to(names["new"])
    os.link(book, names["hard"])
    before = Path(book).read_text()
    ran = cli("ask", book, "Q?", *(o.format(**names) for o in options))
    assert ran.code == 2
    assert "are the same file" in ran.stderr
    assert Path(book).read_text() == before
    assert not names["new"].exists()


@pytest.mark.parametrize("command", ["ask", "remember"])
def test_a_memory_is_not_written_over_by_what_reads_it(cli, fake_session, book, command) -> None:
    first = ["--memory", book, "Q?"] if command == "ask" else [book]
    ran = cli(command, *first, "-o", book)
    assert ran.code == 2
    assert "are the same file" in ran.stderr


def test_remember_does_not_write_its_checkpoint_over_its_memory(cli, fake_session, book) -> None:
    ran = cli("remember", book, "-o", "same.kvs", "--checkpoint", "./same.kvs")
    assert ran.code == 2
    assert "are the same file" in ran.stderr


def test_an_answer_that_cannot_get_its_name_is_printed(
    cli, fake_session, book, tmp_path, monkeypatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("kvstream.cli.shared.output.os.replace", refused)
    ran = cli("ask", book, "Q?", "-o", str(tmp_path / "answer.txt"))
    assert ran.code == 1
    assert ran.stdout == "It is 51234.\n"
    assert "Cannot write" in ran.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["book.txt"]


# Input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("kvstream chat {book} <&-", 2),
        ("kvstream compare - Q? --method h2o,tova <&-", 3),
        ("kvstream sample --into - <&-", 3),
    ],
)
def test_standard_input_that_is_closed_is_told(book, command, code) -> None:
    ran = in_shell(command.format(book=book))
    assert ran.returncode == code, ran.stderr
    assert "Standard input is closed" in ran.stderr


def test_standard_input_that_does_not_block_is_waited_for(monkeypatch) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with open(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run(["--version"]) == 0
        assert os.get_blocking(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [(signal.SIGINT, 130, "Interrupted"), (signal.SIGTERM, 143, "Terminated")],
)
def test_a_named_pipe_without_a_writer_can_be_left(tmp_path, number, code, says) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = start("ask", str(pipe), "Q?", FAKE="reads=True")
    wait_for(process, "budget")
    time.sleep(0.3)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert says in err


def test_a_named_pipe_is_waited_for_and_read(tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = start("ask", str(pipe), "Q?", FAKE="reads=True\ntokens=1024")
    wait_for(process, "budget")
    time.sleep(0.3)
    pipe.write_text("A short story.\n" * 5000)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "It is 51234.\n"), err


def test_a_terminal_that_is_closed_leaves_no_file_behind(book, tmp_path) -> None:
    out = tmp_path / "answer.txt"
    process = start("ask", book, "Q?", "-o", str(out), FAKE="pause=0.1\ntokens=1_000_000")
    wait_for(process, "steps")
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=30)
    assert process.returncode == 129
    assert [p.name for p in tmp_path.iterdir()] == ["book.txt"]


def test_a_question_on_a_terminal_can_be_edited() -> None:
    pytest.importorskip("readline")
    code = "from kvstream.cli.commands.chat import questions; print(list(questions(print)))"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, env=environment()
    )
    os.close(theirs)
    received = b""
    # Arrows go back a letter, and to the line before.
    for line in (b"Wo?\x1b[D\x1b[Dh\n", b"\x1b[A\n", b"\x04"):
        while not received.rstrip(b" ").endswith(b">") and b"]" not in received[-3:]:
            assert select.select([ours], [], [], 30)[0]
            received += os.read(ours, 65536)
        received = b""
        os.write(ours, line)
    while select.select([ours], [], [], 30)[0]:
        try:
            received += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    assert process.wait(30) == 0
    os.close(ours)
    assert "['Who?', 'Who?']" in received.decode()


def test_the_second_ctrl_c_at_an_empty_prompt_ends_a_chat(monkeypatch) -> None:
    """A process of its own would lose a signal between its prompt and its wait for the line."""
    typed, told = "", []

    def line(prompt: str) -> str:
        nonlocal typed
        typed = presses.pop(0)
        if typed[-1:] == "\n":
            return typed[:-1]
        raise KeyboardInterrupt

    editor = SimpleNamespace(get_line_buffer=lambda: typed)
    monkeypatch.setitem(sys.modules, "readline", editor)
    monkeypatch.setattr("builtins.input", line)
    terminal = SimpleNamespace(isatty=lambda: True, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("sys.stdout", terminal)
    presses = ["Wh", "Who?\n", "", "Wh", "", "What?\n"]
    asked = questions(told.append)
    assert next(asked) == "Who?"
    with pytest.raises(KeyboardInterrupt):
        next(asked)
    assert (told, presses) == ([AGAIN] * 3, ["What?\n"])
    terminal.isatty = lambda: False
    monkeypatch.setattr("kvstream.cli.commands.chat._read", lambda asked: line(""))
    presses = [""]
    with pytest.raises(KeyboardInterrupt):
        next(questions(told.append))
    assert len(told) == 3, "a pipe has no prompt"


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="devices of Unix")
@pytest.mark.parametrize("place", ["/dev/zero", "-"])
def test_a_device_without_end_is_refused_before_a_model_is_loaded(place) -> None:
    with open("/dev/urandom", "rb") as endless:
        done = subprocess.run(
            [*PROGRAM, "ask", place, "Who?"], capture_output=True, text=True, env=environment(),
            stdin=endless,
        )  # fmt: skip
    assert done.returncode == 3
    assert "is a device that may never end" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="limits of Unix")
def test_a_limit_of_open_files_is_named() -> None:
    program = (
        "import resource, kvstream.cli\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "kvstream.cli.main()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, "ask", "book.txt", "Q?"], capture_output=True, text=True
    )
    told = "Error: Too many open files; raise their limit (ulimit -n).\n"
    assert (ran.returncode, ran.stderr) == (1, told)
