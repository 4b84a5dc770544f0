"""``kvstream summarize`` on logs: it recognizes and orders them and needs no model."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from warm import CLIENT

from kvstream.cli.shared import log_summaries as logs
from kvstream.input.blocks import TextBlock
from kvstream.input.sources import SourceSet
from kvstream.logs.summary import LogSummary
from kvstream.logs.telling import NOTHING_LEFT
from kvstream.logs.text_page import page

pytestmark = pytest.mark.usefixtures("warm")


def lines(day: int, count: int = 20) -> str:
    return "".join(
        f"2024-05-{day:02d} 12:00:{n:02d} {'ERROR' if n == 7 else 'INFO'} shop: day {day} n {n}\n"
        for n in range(count)
    )


def kvstream(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*CLIENT, "-mkvstream", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "app.log"
    path.write_text(lines(1))
    return str(path)


def test_a_log_is_summarized_without_a_model(log) -> None:
    ran = kvstream("summarize", log)
    assert ran.returncode == 0
    assert ran.stdout.startswith(b"20 lines, 2024-05-01 12:00:00 to 2024-05-01 12:00:19")
    assert b"Loading" not in ran.stderr


def test_the_json_of_a_log_says_that_its_reading_was_interrupted(cli, log, monkeypatch) -> None:
    assert json.loads(cli("summarize", log, "--json").stdout)["interrupted"] is False
    monkeypatch.setattr(logs.Interrupts, "__call__", lambda _: True)
    assert json.loads(cli("summarize", log, "--json").stdout)["interrupted"] is True


def test_a_log_that_is_interrupted_before_its_first_line_is_not_empty(cli, monkeypatch) -> None:
    # A pipe that has not ended before the reading begins.
    monkeypatch.setattr("kvstream.cli.shared.inputs._ended_empty", lambda: False)
    assert cli("summarize", "--as", "log", stdin=b"").code == 3
    pressed = property(lambda _: True, lambda *_: None)
    monkeypatch.setattr(logs.Interrupts, "pressed", pressed, raising=False)
    ran = cli("summarize", "--as", "log", stdin=b"")
    assert (ran.code, ran.stdout) == (130, "")
    assert "Nothing to read" not in ran.stderr


def test_the_json_of_a_log_has_the_warnings_about_its_sources(cli, log) -> None:
    assert json.loads(cli("summarize", log, "--json").stdout)["warnings"] == []
    with open(log, "ab") as file:
        file.write("2024-05-01 12:01:00 INFO app: caf\xe9\n".encode("latin-1"))
    (warning,) = json.loads(cli("summarize", log, "--json").stdout)["warnings"]
    assert "is not UTF-8" in warning


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lambda log: bytes(100_000) + log])
def test_a_log_from_a_pipe_is_read_whole(pack) -> None:
    ran = kvstream("summarize", "--json", stdin=pack(lines(1).encode()))
    assert json.loads(ran.stdout)["lines"] == 20


def test_a_log_from_a_named_pipe_is_read_whole(cli, tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(lines(1) * 500,))
    writer.start()
    ran = cli("summarize", str(pipe), "--json")
    writer.join()
    assert json.loads(ran.stdout)["lines"] == 10_000


def test_what_was_looked_at_of_a_pipe_is_read_again() -> None:
    code = (
        "from kvstream.cli.shared import interrupts, log_summaries as logs\n"
        "head = logs.head_of_pipe(None, plain=False)\n"
        "rest = interrupts.InterruptibleInput(lambda: False).readall()\n"
        "print(len(head), rest == b'some text\\n' * 20_000)\n"
    )
    text = b"some text\n" * 20_000
    ran = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, check=True)
    assert ran.stdout == f"{logs.HEAD} True\n".encode()


def test_an_option_of_the_model_or_as_prose_leaves_a_log_to_it(cli, fake_session, log) -> None:
    for option in (
        ["--as", "prose"], ["--no-extract"], ["--keep", "100"],
        ["--set", "infinipot.alpha=0.5"],
    ):  # fmt: skip
        assert cli("summarize", log, "-q", *option).stdout == "It is 51234.\n"


def test_a_file_with_the_name_of_a_log_that_looks_like_none_is_told(
    cli, fake_session, tmp_path
) -> None:
    (tmp_path / "odd.log").write_text("The first line.\nThe second line.\n")
    odd = str(tmp_path / "odd.log")
    for options in ([], ["-q"]):
        told = cli("summarize", odd, *options).stderr
        assert f"Warning: {odd} does not look like a log" in told
    for options in (["--as", "prose"], ["--keep", "100"], ["-m", "pocket"]):
        assert "look like a log" not in cli("summarize", odd, *options).stderr
    (tmp_path / "text.txt").write_text("The first line.\nThe second line.\n")
    assert "look like a log" not in cli("summarize", str(tmp_path / "text.txt")).stderr
    told = cli("summarize", odd, "--width", "90").stderr
    assert "--width has no effect, because a model reads this text" in told


@pytest.mark.parametrize(
    ("written", "first"),
    [
        ("The shop failed at 12:00:07 (L8). It burned.", "The shop failed at 12:00:07 (L8)."),
        ("The shop failed at 12:00:07 (L1).", NOTHING_LEFT),
        ("", NOTHING_LEFT),
    ],
)
def test_a_paragraph_keeps_what_its_rows_say(cli, log, monkeypatch, written, first) -> None:
    answer = SimpleNamespace(text=written)
    model = SimpleNamespace(ask=lambda **_: answer)
    monkeypatch.setattr(logs, "open_model", lambda options: model)
    ran = cli("summarize", log, "-m", "smollm2")
    assert ran.code == 0
    assert ran.stdout.startswith(f"{first}\n\n20 lines")


def test_a_new_log_of_one_line_is_a_log(cli, tmp_path) -> None:
    log = tmp_path / "app.log"
    log.write_text("2024-05-01 10:00:40 ERROR a.B: lost\n")
    assert cli("summarize", str(log)).stdout.startswith("1 line, 2024-05-01 10:00:40")


def test_rotated_logs_are_read_in_the_order_of_their_times(cli, tmp_path) -> None:
    for name, day in (("app.log", 3), ("app.log.1", 2), ("app.log.2", 1)):
        (tmp_path / name).write_text(lines(day))
    for sources in ([str(tmp_path)], sorted(str(p) for p in tmp_path.iterdir())):
        made = json.loads(cli("summarize", "--json", *sources).stdout)
        assert made["clock_jumps"] == 0
        assert made["lines"] == 60


@pytest.mark.parametrize("part", [("--only", "chapter 2"), ("--since", "2026-03-03 12:00")])
def test_a_part_of_one_of_several_logs_is_that_part(cli, tmp_path, part) -> None:
    (new := tmp_path / "new.log").write_text(lines(2))
    (old := tmp_path / "old.log").write_text(
        "CHAPTER I\n\n2026-03-01 10:00:00 one\n\nCHAPTER II\n\n2026-03-04 10:00:00 two\n"
    )
    done = cli("summarize", str(new), str(old), "--as", "log", "--text", *part)
    assert done.code == 0, done.stderr
    assert re.search(r"old\.log:7 +two", done.stdout), done.stdout
    assert "  one" not in done.stdout


def test_an_empty_log_leaves_the_order_and_the_lines_of_the_others(cli, tmp_path) -> None:
    """One log has many blocks; empty logs come first and between the others."""
    (tmp_path / "b.log").write_text("")
    (tmp_path / "d.log").write_text("")
    (tmp_path / "c.log").write_text(lines(1))
    with (tmp_path / "a.log").open("w") as file:
        for n in range(6000):
            what = "ERROR shop: the roof burns" if n == 3500 else f"INFO shop: sold {n} books"
            file.write(f"2024-05-02 12:{n // 60 % 60:02d}:{n % 60:02d} {what}\n")
    named = [str(tmp_path / name) for name in ("b.log", "a.log", "d.log", "c.log")]
    for sources in (named, [str(tmp_path)]):
        made = json.loads(cli("summarize", "--json", *sources).stdout)
        (burns,) = (f for f in made["findings"] if "roof" in f["template"])
        assert (burns["first"]["source"], burns["first"]["line"]) == (named[1], 3501)
        assert made["lines"] == 6020
        assert made["blank_lines"] == 0


def test_a_source_begins_once_and_behind_the_end_of_the_line_before(monkeypatch, cli, log) -> None:
    """A followed log gives an empty block before its first text."""
    blocks = [(0, "2024-05-01 12:00:00 INFO a: x"), (1, ""), (0, "\n"), (1, "")]
    blocks += [(1, "2024-05-01 12:00:01 ERROR b: y\n"), (1, "2024-05-01 12:00:02 INFO a: x\n")]
    given = [TextBlock(text, 0, source) for source, text in blocks]
    monkeypatch.setattr(SourceSet, "__iter__", lambda self: iter(given))
    made = json.loads(cli("summarize", "--json", log, log).stdout)
    assert (made["lines"], made["blank_lines"]) == (3, 0)
    (error,) = (f for f in made["findings"] if f["level"] == "error")
    assert error["first"]["line"] == 1


def test_what_is_skipped_in_a_folder_of_logs_is_told(cli, tmp_path) -> None:
    (tmp_path / "a.log").write_text(lines(2))
    (tmp_path / "b.log").write_text(lines(1))
    (tmp_path / "c.bin").write_bytes(b"\0" * 100)
    (tmp_path / "d.gz").write_bytes(b"\x1f\x8b\x08" + b"\0" * 7 + b"\xff" * 100)
    ran = cli("summarize", str(tmp_path), "-q")
    assert ran.code == 0
    told = "1 × binary file (c.bin), 1 × damaged file (d.gz)."
    assert f"Warning: Skipped in {tmp_path}: {told}" in ran.stderr
    assert "the clock goes back" not in ran.stdout
    packed = bytearray(gzip.compress(lines(3, 60).encode() * 100))
    packed[-8] ^= 1  # the wrong checksum shows only at the end
    (tmp_path / "d.gz").write_bytes(packed)
    ran = cli("summarize", str(tmp_path))
    assert ran.code == 0
    assert "Only the first 251,100 bytes of text of" in ran.stderr, "in a folder it is no error"


def test_text_reads_several_logs_as_they_are(cli, tmp_path) -> None:
    (tmp_path / "a.log").write_text(lines(2))
    (tmp_path / "nul.log").write_text(lines(1).replace("n 3", "n\0003"))
    named = [str(tmp_path / name) for name in ("a.log", "nul.log")]
    assert "nul.log: 1 NUL skipped, the first at byte 161." in cli("summarize", *named).stderr
    made = json.loads(cli("summarize", "--json", "--text", *named).stdout)
    assert (made["lines"], made["clock_jumps"]) == (40, 0)


def test_passages_are_the_rows(cli, log) -> None:
    made = json.loads(cli("summarize", "--json", "--passages", "1", log).stdout)
    assert [f["level"] for f in made["findings"]] == ["error"]
    assert made["more_lines"] == 19


def test_the_help_lists_the_options_of_its_text_and_says_what_they_do_to_a_log(cli) -> None:
    text, _, listed = cli("summarize", "--help").stdout.partition("\nAnswer:")
    rows = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", listed, re.MULTILINE))
    rows |= set(re.findall(r"^ +--[a-z-]+ / (--[a-z-]+)", listed, re.MULTILINE))
    assert set(re.findall(r"--[a-z-]+", text)) <= rows
    (told,) = re.findall(r"--passages N(.*?)\n +-", listed, re.DOTALL)
    told = " ".join(told.split())
    assert "[default: 10 passages; 16 rows, or as many as fit the screen]" in told
    assert told.count("default") == 1


def test_strict_is_refused_because_summaries_are_not_checked(cli, log) -> None:
    ran = cli("summarize", log, "--strict")
    assert ran.code == 2
    assert "--strict has no effect in kvstream summarize" in ran.stderr
    assert "--strict" not in cli("summarize", "--help-all").stdout


def test_an_interval_in_tokens_is_refused(cli, log) -> None:
    ran = cli("summarize", log, "--every", "10k")
    assert ran.code == 2
    assert "--every 30s" in ran.stderr


def test_following_tells_what_is_new(log) -> None:
    command = [*CLIENT, "-mkvstream", "summarize", log, "--follow", "--every", "0.4s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ran:
        try:
            assert ran.stdout is not None
            assert ran.stdout.readline().startswith(b"20 lines")
            with open(log, "a") as file:
                file.write("2024-05-01 12:01:00 FATAL shop: burned down\n")
            deadline, seen = time.monotonic() + 20, b""
            while b"burned down" not in seen and time.monotonic() < deadline:
                seen += os.read(ran.stdout.fileno(), 65536)
            assert b"1 new line " in seen
            assert b"\n        1 FATAL" in seen
        finally:
            ran.terminate()
    assert ran.returncode in (0, 143)


def following(log: str, *options: str) -> subprocess.Popen[str]:
    command = [*CLIENT, "-mkvstream", "summarize", log, "--follow", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_following_says_at_once_what_it_does(log, ending) -> None:
    with following(log) as ran:
        try:
            assert ran.stderr is not None
            assert ran.stderr.readline() == (
                f"Following {log}: 20 lines so far. Ctrl-C prints the page; --every 30s prints it "
                "while you wait.\n"
            )
            ran.send_signal(ending)
            out, err = ran.communicate(timeout=30)
        finally:
            ran.kill()
    assert ran.returncode == 0
    assert err == "Stopped following; the last page:\n"
    assert out.startswith("20 lines, ")


def test_following_ends_when_nobody_reads_it(log) -> None:
    with following(log) as ran:
        try:
            assert ran.stdout is not None
            assert ran.stderr is not None
            ran.stderr.readline()
            ran.stdout.close()
            assert ran.wait(timeout=30) == 0
            assert ran.stderr.read() == ""
        finally:
            ran.kill()


def test_following_ends_with_the_time_since_which_nothing_came(log) -> None:
    with following(log, "--every", "1s") as ran:
        try:
            assert ran.stderr is not None
            assert ran.stdout is not None
            assert "20 lines so far. A report every 1 s if" in ran.stderr.readline()
            assert ran.stdout.readline().startswith("20 lines, ")
            time.sleep(0.5)  # until the page is complete
            ran.send_signal(signal.SIGINT)
            _, err = ran.communicate(timeout=30)
        finally:
            ran.kill()
    assert ran.returncode == 0
    assert re.fullmatch(r"Stopped following\. No new lines since \d\d:\d\d:\d\d\.\n", err)


def test_standard_input_that_is_a_file_is_not_followed(log) -> None:
    command = [*CLIENT, "-mkvstream", "summarize", "-", "--follow"]
    with open(log) as file:
        ran = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "- cannot be followed: standard input is a file here; name the file" in ran.stderr


def test_an_empty_log_is_followed(tmp_path) -> None:
    log = tmp_path / "new.log"
    log.touch()
    with following(str(log), "--every", "0.4s") as ran:
        try:
            time.sleep(0.6)
            with log.open("a") as file:
                file.write("2024-05-01 12:01:00 FATAL shop: burned down\n")
            assert ran.stdout is not None
            assert ran.stdout.readline().startswith("1 line, ")
        finally:
            ran.terminate()
            ran.communicate(timeout=30)
    assert ran.returncode in (0, 143)


def test_a_log_of_one_line_is_followed(tmp_path) -> None:
    log = tmp_path / "new.log"
    log.write_text("2024-05-01 12:01:00 FATAL shop: burned down\n")
    with following(str(log), "--every", "0.4s") as ran:
        try:
            assert ran.stdout is not None
            assert ran.stdout.readline().startswith("1 line, ")
        finally:
            ran.terminate()
            ran.communicate(timeout=30)


def test_a_pipe_of_two_lines_is_told_while_it_waits() -> None:
    command = [*CLIENT, "-mkvstream", "summarize", "--every", "0.4s"]
    lines = "".join(f"2024-05-01 12:01:0{i} ERROR shop: on fire\n" for i in range(2))
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-2, text=True) as ran:
        try:
            assert ran.stdin is not None
            assert ran.stdout is not None
            ran.stdin.write(lines)
            ran.stdin.flush()
            seen = ran.stdout.readline()
            assert seen.startswith("2 lines, "), seen
        finally:
            ran.terminate()
            ran.communicate(timeout=30)


def unread(pipe: int) -> int:
    """Return the number of bytes that wait in a pipe."""
    return struct.unpack("=i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]


def test_termination_of_a_single_summary_prints_no_page_of_a_part() -> None:
    command = [*CLIENT, "-mkvstream", "summarize", "--as", "log"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True) as ran:
        assert ran.stdin is not None
        ran.stdin.write("2024-05-01 12:01:00 ERROR shop: on fire\n" * 20)
        ran.stdin.flush()
        while unread(ran.stdin.fileno()):
            time.sleep(0.05)
        time.sleep(0.3)
        ran.terminate()
        ran.wait(30)
        assert (ran.returncode, *ran.communicate()) == (143, "", "Terminated.\n")


@pytest.mark.parametrize(
    "options",
    [
        ("--as", "log", "--stats", "s.json"),
        ("--as", "log", "--keep", "100"),
        ("--as", "log", "--temp", "0.5"),
        ("--as", "log", "--shards", "2"),
        ("--each", "--width", "50"),
    ],
)
def test_what_a_page_has_no_use_for_is_refused(options, log, cli) -> None:
    done = cli("summarize", log, *options)
    assert done.code == 2
    assert f"{options[-2]} has " in done.stderr
    assert done.stdout == ""


def test_a_dry_run_of_a_log_says_that_no_model_reads_it(cli, fake_session, log, tmp_path) -> None:
    Path(log).write_text(lines(1, 60) * 100)
    size = os.path.getsize(log)
    for options in ((), ("--as", "log")):
        ran = cli("summarize", log, "--dry-run", *options)
        assert (ran.code, ran.stderr) == (0, "")
        assert ran.stdout == (
            f"{log}: a log of about {size / 1024:.0f} KiB. No model reads it. For the plan of a "
            "reading by a model, add --as prose.\n"
        )
    packed = tmp_path / "old.log.gz"
    packed.write_bytes(gzip.compress(lines(1).encode()))
    ran = cli("summarize", log, str(packed), "--dry-run", "-m", "some/model")
    assert ran.stdout.startswith("2 files: logs of about ")
    assert "No model reads them, but some/model reads the page." in ran.stdout
    ran = cli("summarize", "--dry-run", "--json", stdin=lines(1).encode())
    assert json.loads(ran.stdout) == {"kind": "log", "dry_run": True, "bytes": None, "model": None}
    assert "steps" in cli("summarize", log, "--dry-run", "--as", "prose").stdout
    assert "No model reads it" in cli("summarize", log, "--dry-run", "--budget", "1k").stdout
    assert "steps" in cli("summarize", log, "--dry-run", "--method", "h2o").stdout


def test_blank_lines_alone_are_no_log(cli, tmp_path) -> None:
    """The error is the same with and without --as log. A blank file beside a log is no error."""
    blank, output = tmp_path / "blank.log", tmp_path / "page.txt"
    blank.write_text("\n \n\n\t\n")
    told = [
        cli("summarize", str(blank), "-q", *options)
        for options in ((), ("--as", "log"), ("--as", "log", "-o", str(output)))
    ]
    says = f"Error: Nothing to read: {blank} held only spaces and line ends; name another file.\n"
    assert [(ran.code, ran.stdout, ran.stderr) for ran in told] == [(3, "", says)] * 3
    assert not output.exists()
    ran = cli("summarize", "--as", "log", stdin=b"\n\n")
    assert ran.code == 3
    assert "standard input held only spaces and line ends" in ran.stderr
    (tmp_path / "app.log").write_text(lines(1))
    assert cli("summarize", str(blank), str(tmp_path / "app.log"), "--as", "log").code == 0


def test_quiet_following_says_nothing(log) -> None:
    with following(log, "-q", "--every", "0.4s") as ran:
        try:
            assert ran.stdout is not None
            assert ran.stdout.readline().startswith("20 lines, ")
            ran.send_signal(signal.SIGINT)
            _, err = ran.communicate(timeout=30)
        finally:
            ran.kill()
    assert (ran.returncode, err) == (0, "")


def test_the_rows_of_the_docs_are_those_of_the_page(data: Path) -> None:
    guide = Path(__file__).parents[2] / "docs/guide/summarize-a-log.md"
    blocks = re.findall(r"```text\n(.*?)```", guide.read_text(), re.DOTALL)
    (rows,) = [block for block in blocks if "ERROR" in block]
    log = LogSummary()
    log.begin("apache")
    log.feed(gzip.decompress((data / "logs/apache_2k.log.gz").read_bytes()).decode())
    log.close()
    text = page(log, width=100)
    assert [row for row in rows.splitlines() if row not in text.split("\n")] == []
