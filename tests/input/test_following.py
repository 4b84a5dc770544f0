"""A growing file is followed through rotation and truncation, with answers during the reading."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from kvstream.errors import UsageError
from kvstream.input import following
from kvstream.input.following import Follow, FollowedFile
from kvstream.input.sources import open_sources
from kvstream.run import request
from kvstream.run.feed import TokenFeed
from kvstream.run.request import Intervals
from kvstream.tokenization.loading import TokenStream, load_tokenizer


class Switch:
    """A callable flag that can be turned on."""

    def __init__(self) -> None:
        self.on = False

    def __call__(self) -> bool:
        return self.on


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text("one\n")
    return path


@pytest.fixture
def not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop reading an old file as soon as the new one is in use."""
    monkeypatch.setattr(following, "LATE_SECONDS", 0.0)


@pytest.fixture
def at_end(log: Path) -> Iterator[FollowedFile]:
    """The log, read to its end. A read that finds nothing returns None."""
    due = Switch()
    followed = FollowedFile(log, Follow(Switch(), due))
    assert followed.read(100) == b"one\n"
    due.on = True
    yield followed
    followed.close()


def test_growth_rotation_and_truncation_as_tail_does(log: Path, not_late: None) -> None:
    stop, due = Switch(), Switch()
    followed = FollowedFile(log, Follow(stop, due))
    assert followed.read(100) == b"one\n"
    due.on = True
    assert followed.read(100) is None
    with log.open("a") as writer:
        writer.write("two\nthr")
        writer.flush()
        assert followed.read(5) == b"two\nt"
        log.rename(log.with_suffix(".1"))
        writer.write("ee, no newline")
    log.write_text("new\n")
    assert followed.read(100) == b"hree, no newline"
    assert followed.read(100) is None, "the old one is read once more"
    assert followed.read(100) == b"\n", "two lines are not one"
    assert followed.read(100) == b"new\n"
    log.write_text("a\n")  # truncated
    assert followed.read(100) == b"a\n"
    log.unlink()
    assert followed.read(100) is None, "gone, and nothing in its place yet"
    log.write_text("again\n")
    assert followed.read(100) is None
    assert followed.read(100) == b"again\n"
    stop.on = True
    assert followed.read(100) == b""
    followed.close()


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-8"])
@pytest.mark.parametrize("rotated", [False, True])
def test_a_new_file_goes_on_in_the_encoding_of_the_old_one(
    log: Path, not_late: None, encoding: str, rotated: bool
) -> None:
    def write(text: str) -> None:
        log.write_bytes(f"\ufeff{text}".encode(encoding))

    write("It rained, ünd\nthe lamp")
    stop, due = Switch(), Switch()
    sources = open_sources([str(log)], follow=Follow(stop, due))
    due.on = True
    blocks = iter(sources)
    read = next(blocks).text
    if rotated:
        log.rename(log.with_suffix(".1"))
    write("was new.\n")
    for _ in range(3):
        read += next(blocks).text
    stop.on = True
    read += "".join(block.text for block in blocks)
    assert read == "It rained, ünd\nthe lamp\nwas new.\n"


@pytest.mark.parametrize(
    "grown", [b"two\n", b"tw\nthree\nfour\n", b"one\n"[:-1] + b"s\n", b"\0\0\0\0five\n"]
)
def test_a_log_that_is_cut_and_grows_again_between_two_looks_is_read_from_its_start(
    log: Path, at_end: FollowedFile, grown: bytes
) -> None:
    log.write_bytes(grown)
    assert at_end.read(100) == grown
    assert at_end.read(100) is None
    with log.open("ab") as writer:
        writer.write(b"six\n")
    assert at_end.read(100) == b"six\n"
    assert at_end.cuts == 1


def test_a_long_log_that_is_cut_is_read_from_its_start(log: Path) -> None:
    due = Switch()
    followed = FollowedFile(log, Follow(Switch(), due))
    due.on = True
    for begin in (0, 5000, 0, 90_000):
        data = b"".join(b"line %d\n" % i for i in range(begin, begin + 9000))
        log.write_bytes(data)
        read = b""
        while (more := followed.read(65_536)) is not None:
            read += more
        assert read == data
    assert followed.cuts == 3
    followed.close()


def test_a_rotated_log_is_read_until_its_writer_opens_the_new_one(
    log: Path, at_end: FollowedFile, not_late: None
) -> None:
    """As with ``create`` of logrotate, the new file exists and is empty before it is in use."""
    with log.open("a") as writer:
        log.rename(log.with_suffix(".1"))
        log.touch()
        assert [at_end.read(100) for _ in range(3)] == [None] * 3
        writer.write("late\n")
        writer.flush()
        assert at_end.read(100) == b"late\n"
        assert at_end.read(100) is None
        writer.write("latest\n")
    log.write_text("new\n")
    assert at_end.read(100) == b"latest\n"
    assert at_end.read(100) is None
    assert at_end.read(100) == b"new\n"


def test_other_processes_may_write_to_a_rotated_log_for_a_while(
    log: Path, at_end: FollowedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with log.open("a") as writer:
        log.rename(log.with_suffix(".1"))
        log.write_text("new\n")
        assert at_end.read(100) is None
        now[0] = following.LATE_SECONDS / 2
        assert at_end.read(100) is None
        writer.write("late\n")
    assert at_end.read(100) == b"late\n"
    now[0] = following.LATE_SECONDS
    assert at_end.read(100) == b"new\n"


def test_a_new_log_that_is_cut_before_its_turn_is_counted(
    log: Path, at_end: FollowedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: 0.0))
    log.rename(log.with_suffix(".1"))
    for text, cuts in (("new\nnewer\n", 0), ("", 1), ("newest\n", 1)):
        log.write_text(text)
        assert [at_end.read(100) for _ in range(2)] == [None, None]
        assert at_end.cuts == cuts


def test_a_new_log_that_is_rotated_unused_is_not_waited_for(
    log: Path, at_end: FollowedFile, not_late: None
) -> None:
    log.rename(log.with_suffix(".2"))
    log.touch()
    assert at_end.read(100) is None
    log.rename(log.with_suffix(".1"))
    log.write_text("third\n")
    read = [at_end.read(100) for _ in range(4)]
    assert [data for data in read if data] == [b"third\n"]


def test_a_log_that_is_rotated_twice_before_the_old_one_ends_is_read_in_order(
    log: Path, at_end: FollowedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for number, text in enumerate(("two\n", "three\n", "four\n")):
        log.rename(log.with_suffix(f".{number}"))
        log.write_text(text)
        assert at_end.read(100) is None
    assert at_end.unread == 15
    read = []
    while now[0] < 4 * following.LATE_SECONDS:
        now[0] += following.LATE_SECONDS / 2
        read.append(at_end.read(100))
    assert [data for data in read if data] == [b"two\n", b"three\n", b"four\n"]


def test_no_log_is_missed_while_an_old_one_is_read_slowly(log: Path, not_late: None) -> None:
    followed = FollowedFile(log, Follow(Switch(), lambda: True))
    log.write_text("1\n2\n")
    read = []
    for number in (3, 4):
        read.append(followed.read(2))
        log.rename(log.with_suffix(f".{number}"))
        log.write_text(f"{number}\n")
    read += [followed.read(2) for _ in range(8)]
    assert [data for data in read if data] == [b"1\n", b"2\n", b"3\n", b"4\n"]
    followed.close()


def test_a_pipe_in_the_place_of_a_log_is_not_waited_for(
    log: Path, at_end: FollowedFile, not_late: None
) -> None:
    log.unlink()
    os.mkfifo(log)  # opening it would wait for a writer
    assert at_end.read(100) is None
    log.unlink()
    log.write_text("new\n")
    read = [at_end.read(100) for _ in range(3)]
    assert [data for data in read if data] == [b"new\n"]


def test_a_pause_gives_what_is_certain_and_the_end_gives_the_rest(log: Path) -> None:
    log.write_text("".join(f"line {i} of the log, all is well\n" for i in range(300)))
    stop, due = Switch(), Switch()
    due.on = True
    sources = open_sources([str(log)], follow=Follow(stop, due))
    assert sources.size_hint() is None
    tokenizer = load_tokenizer("pocket")
    feed = TokenFeed(TokenStream(tokenizer, sources))
    first = list(feed.read(10**6).ids)
    assert feed.paused
    assert feed.estimate() is None
    assert not feed.exhausted()
    expected = tokenizer.encode(log.read_text())
    assert 0 < len(first) < len(expected)
    stop.on = True
    rest = list(feed.read(10**6).ids)
    assert first + rest == expected
    assert feed.exhausted()
    assert not feed.paused


def test_text_that_arrived_and_was_not_read_is_told(log: Path) -> None:
    stop, due = Switch(), Switch()
    due.on = True
    sources = open_sources([str(log)], follow=Follow(stop, due))
    blocks = iter(sources)
    assert next(blocks).text == "one\n"
    with log.open("a") as more:
        more.write("two\n" * following.LAST)
    assert sources.unread_warnings == [], "it can still be read"
    stop.on = True
    assert [block.text for block in blocks if block.text] == []
    assert sources.unread_warnings == [f"The last 1,048,576 bytes of {log} were not read."]


def test_text_that_has_arrived_is_read_at_the_stop(log: Path) -> None:
    stop, due = Switch(), Switch()
    followed = FollowedFile(log, Follow(stop, due))
    assert followed.read(100) == b"one\n"
    with log.open("a") as more:
        more.write("two")
    log.rename(log.with_suffix(".1"))
    log.write_text("new\nlast\n")  # not noticed before the stop
    stop.on = True
    assert followed.unread == 12
    with log.open("a") as more:
        more.write("too late\n")
    assert b"".join(followed.read(4) or b"" for _ in range(7)) == b"two\nnew\nlast\n"
    assert followed.unread == 0
    followed.close()


def test_a_name_that_cannot_be_read_is_told_once_and_at_the_end(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: now[0]))
    stop, due, told = Switch(), Switch(), []
    due.on = True
    sources = open_sources([str(log)], follow=Follow(stop, due, told.append))
    blocks = iter(sources)

    def look() -> list[str]:
        for _ in range(2):
            now[0] += following.LOST_SECONDS
            assert not next(blocks).text
        return told

    assert next(blocks).text == "one\n"
    log.unlink()
    assert not next(blocks).text
    assert told == [], "a rotation may be going on"
    gone = f"{log} cannot be read: No such file or directory; waiting for it."
    assert look() == look() == [gone]
    log.write_text("two\n")
    while not (block := next(blocks)).text:
        now[0] += following.LATE_SECONDS
    assert block.text == "two\n"
    log.unlink()
    log.mkdir()
    assert look()[1:] == [f"{log} cannot be read: it is not a plain file; waiting for it."]
    assert sources.warnings == []
    stop.on = True
    assert sources.warnings == [f"{log} could not be read at the end: it is not a plain file."]


def test_a_new_log_without_permission_is_told(
    log: Path, at_end: FollowedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.rename(log.with_suffix(".1"))
    log.write_text("two\n")

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)  # root may read everything
    assert at_end.read(100) is None
    assert at_end.problem == "Permission denied"
    monkeypatch.undo()
    assert at_end.read(100) is None
    assert (at_end.problem, at_end.unread) == ("", 4)


def test_text_of_a_new_log_that_was_not_read_is_told(log: Path, at_end: FollowedFile) -> None:
    log.rename(log.with_suffix(".1"))
    log.write_text("two\n")
    assert at_end.read(100) is None, "its old file may still get lines"
    assert at_end.unread == 4
    at_end.close()
    assert at_end.unread == 4


def test_what_cannot_be_followed_is_told(log: Path, tmp_path: Path) -> None:
    import gzip

    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(b"text"))
    for paths in ([str(packed)], [str(log), str(packed)]):
        with pytest.raises(UsageError, match="followed"):
            open_sources(paths, follow=Follow(Switch()))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    for path in (folder, tmp_path / "pipe"):
        with pytest.raises(UsageError, match="followed"):
            open_sources([str(path)], follow=Follow(Switch()))


def test_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (Intervals.of("10k").tokens, Intervals.of("10k").seconds) == (10240, None)
    assert [Intervals.of(t).seconds for t in ("30s", "1.5 min", "2h")] == [30, 90, 7200]
    for wrong in ("", "0", "0s", "-3", "soon", "3 days"):
        with pytest.raises(UsageError):
            Intervals.of(wrong)
    every = Intervals(tokens=100)
    assert [every.room(n) for n in (0, 1, 99, 100, 250)] == [100, 99, 1, 100, 50]
    assert [every.due(n) for n in (50, 100, 100, 150, 200)] == [False, True, False, False, True]
    now = [0.0]
    monkeypatch.setattr(request, "time", SimpleNamespace(monotonic=lambda: now[0]))
    timed = Intervals(seconds=10)
    assert not timed.due(5)
    now[0] = 11
    assert timed.time_is_up()
    assert timed.due(5)
    assert not timed.due(9), "the next interval has begun"
    now[0] = 22
    assert not timed.due(5), "nothing new was read"
    assert not timed.time_is_up()


def records(stdout: IO[str]) -> Iterator[Any]:
    for line in stdout:
        yield json.loads(line)


@pytest.mark.parametrize(
    "end", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_log_is_summarized_while_it_grows(
    tmp_path: Path, end: signal.Signals, warm: list[str]
) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(f"{i} the server is well and serves\n" for i in range(200)))
    command = [
        *warm, "-mkvstream", "summarize", str(log), "--follow", "--every", "0.4s",
        "--budget", "400", "--threads", "1", "--json", "--passages", "3",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    limit = threading.Timer(200, process.kill)
    limit.start()
    try:
        told = records(process.stdout)
        first = next(told)
        log.rename(log.with_suffix(".1"))
        log.write_text("".join(f"{i} the disk is full and nothing works\n" for i in range(300)))
        both = log.with_suffix(".1").read_text() + log.read_text()
        total = len(load_tokenizer("pocket").encode(both))
        second = first
        while second["tokens"]["read"] < total - 600:  # the last tokens may still change
            second = next(told)
        process.send_signal(end)
        *_, last = [second, *told]
        assert process.wait(60) == 0
    finally:
        limit.cancel()
        process.kill()
    assert total - 600 < last["tokens"]["read"] <= total  # a page with nothing new is not printed
    assert last["peak"]["kv_tokens"] <= 400
    assert any("disk is full" in c["text"] for c in last["citations"]) or "full" in last["answer"]


def test_nobody_reads_any_more(tmp_path: Path, warm: list[str]) -> None:
    """A closed pipe ends the run without an error message."""
    log = tmp_path / "server.log"
    log.write_text("all is well here and the server serves\n" * 120)
    reader, writer = os.pipe()
    os.close(reader)
    command = [
        *warm, "-mkvstream", "summarize", str(log), "--follow", "--every", "200",
        "--budget", "400", "--threads", "1", "-q", "--thin", "off",
    ]  # fmt: skip
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=200)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_whatever_a_followed_log_holds_it_is_followed_on(log: Path) -> None:
    stop, due = Switch(), Switch()
    due.on = True
    log.write_bytes(b"2025-01-01 10:00:00 INFO one\n" * 50)
    sources = open_sources([str(log)], follow=Follow(stop, due))
    text = ""
    blocks = iter(sources)
    for more in (
        bytes(100),
        b"\1\2\xff\xfe\0",
        bytes(200_000),
        b"\x1b[",
        b"0mERROR two\n",
        b"<html>",
    ):
        with log.open("ab") as writer:
            writer.write(more)
        while (block := next(blocks)).text:
            text += block.text
    assert text.endswith("\1\2\ufffd\ufffd\nERROR two\n<html>")
    log.write_bytes(b"ERROR " * 2000)
    while (block := next(blocks)).text:
        text += block.text
    assert text.endswith("<html>\n" + "ERROR " * 2000)
    assert sources.notes == [
        f"{log}: 200,101 NULs skipped, the first at byte 1,450.",
        f"{log} was cut while it was followed (1 ×); lines that were written just before that "
        "may be missing.",
    ]
    stop.on = True
    assert list(blocks) == []
