"""A reading that is killed with SIGKILL and resumed ends with exactly the same memory."""

from __future__ import annotations

import io
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from digests import digest_of

from kvstream.answer.answering import result_of
from kvstream.engine.schedule import NoEviction
from kvstream.errors import SourceError, UsageError
from kvstream.events import Notice, returned
from kvstream.input.following import Follow
from kvstream.input.sources import open_sources
from kvstream.memory import file, saving
from kvstream.memory.checkpoint import Checkpoint, tokens_of
from kvstream.memory.contents import Memory
from kvstream.run.request import Request
from kvstream.session import reading
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings

QUESTION = "What is the passkey for the old mill?"
EVERY = 250
KILLS = int(os.environ.get("KVSTREAM_KILLS", "200"))


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Path:
    return write_story(tokens=1300, seed=3, facts=4)


class Drops(io.RawIOBase):
    """A pipe whose writer sends pieces of any size."""

    def __init__(self, data: bytes, seed: int) -> None:
        self.data, self.at, self.random = data, 0, random.Random(seed)

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1) -> bytes:
        size = min(size, self.random.choice([1, 60, 700, 5000]))
        self.at += size
        return self.data[self.at - size : self.at]


def sources(path: Path, pipe: int | None) -> Any:
    if pipe is None:
        return open_sources([str(path)])
    return open_sources(["-"], stdin=Drops(path.read_bytes(), pipe))


def read(
    session: Session,
    source: Any,
    run: RunSettings,
    checkpoint: Path | None = None,
    every: int = Request.checkpoint_every,
) -> Memory:
    request = Request(run=run, command="remember", checkpoint=checkpoint, checkpoint_every=every)
    return returned(session.read(source, request))


def answer(memory: Memory) -> str:
    return result_of(memory, QUESTION)[0].answer


def killed_after(seconds: float, work: Callable[[], None], since: Path | None) -> bool:
    """Run `work` in a separate process and kill it, not before the file `since` exists.

    Return False if it ended before that.
    """
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or (since and not since.exists()):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, "the process failed before it was killed"
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def kill_again_and_again(
    session: Session, story: Path, folder: Path, *, kills: int, pipe: bool, method: str
) -> None:
    run = RunSettings(Budget(tokens=300), method, max_tokens=6)
    began = time.monotonic()
    whole = read(session, sources(story, 0 if pipe else None), run)
    took = time.monotonic() - began
    expected, said = digest_of(whole), answer(whole)
    saved, written = folder / "reading.kvs", folder / "memory.kvs"
    draw, done, alive = random.Random(kills), 0, 0

    def work() -> None:
        source = sources(story, draw.randrange(99) if pipe else None)
        memory = read(session, source, run, saved, EVERY)
        saving.save(memory, written)

    while done < kills or not written.exists():
        longest = took if done < kills else 60 * took + 60
        since = saved if done == kills - 1 and not alive else None
        if killed_after(draw.uniform(0, longest) if done < kills else longest, work, since):
            done += 1
            alive += saved.exists()
            continue
        content = file.read(written)
        assert content.digest == expected
        assert answer(session.recall(saving.look(written), run)) == said
        if done < kills:
            written.unlink()
            saved.unlink()
    assert file.read(written).digest == expected
    assert alive, "no kill came after a checkpoint"


@pytest.mark.parametrize(
    ("pipe", "method"), [pytest.param(False, "infinipot", marks=pytest.mark.long), (True, "h2o")]
)
def test_ten_kills(session: Session, story: Path, tmp_path: Path, pipe: bool, method: str) -> None:
    kill_again_and_again(session, story, tmp_path, kills=3, pipe=pipe, method=method)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("pipe", [False, True])
def test_hundreds_of_kills(session: Session, story: Path, tmp_path: Path, pipe: bool) -> None:
    kill_again_and_again(session, story, tmp_path, kills=KILLS // 2, pipe=pipe, method="infinipot")


def stopped_after(session: Session, source: Any, run: RunSettings, path: Path, steps: int) -> None:
    request = Request(run=run, command="remember", checkpoint=path, checkpoint_every=1)
    events = session.read(source, request)
    for _ in range(steps + 1):
        next(events)
    events.close()


RUN = RunSettings(Budget(tokens=300), max_tokens=6)


class Pauses(io.RawIOBase):
    """A pipe without data most of the time, like one that does not block."""

    def __init__(self, data: bytes) -> None:
        self.file, self.calls = io.BytesIO(data), 0

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1) -> bytes | None:
        self.calls += 1
        return None if self.calls % 4 else self.file.read(min(size, 400))


def test_a_reading_resumes_from_a_pipe_that_pauses(
    session: Session, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstream.input.sources.WAIT_SECONDS", 0.001)
    saved, data = tmp_path / "c.kvs", story.read_bytes()
    stopped_after(session, sources(story, None), RUN, saved, 3)
    for _ in ("begun", "complete"):
        memory = read(session, open_sources(["-"], stdin=Pauses(data)), RUN, saved)
        assert memory.trace.read == len(session.tokenizer.encode(data.decode()))
    more = Pauses(data + b" And more.")
    with pytest.raises(SourceError, match="sources have changed since"):
        read(session, open_sources(["-"], stdin=more), RUN, saved)


@pytest.mark.parametrize("steps", [1, 4])
def test_a_reading_of_two_ends_resumes_in_either(
    session: Session, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(NoEviction, "PIECE", 40)
    monkeypatch.setattr(reading, "PRUNE_EVERY", 1)
    run = replace(RUN, method="truncate")
    whole = read(session, sources(story, None), run)
    stopped_after(session, sources(story, None), run, tmp_path / "c.kvs", steps)
    resumed = read(session, sources(story, None), run, tmp_path / "c.kvs")
    assert digest_of(resumed) == digest_of(whole)


def test_an_interrupt_ends_the_wait_for_the_place_of_a_checkpoint(
    session: Session, story: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "c.kvs"
    stopped_after(session, sources(story, None), RUN, saved, 3)
    pipe = Pauses(story.read_bytes())
    request = Request(
        run=RUN, command="remember", checkpoint=saved, interrupted=lambda: pipe.calls > 9
    )
    with pytest.raises(SourceError, match="was stopped before it came"):
        returned(session.read(open_sources(["-"], stdin=pipe), request))


def test_a_followed_log_that_was_replaced_is_not_waited_for(
    session: Session, story: Path, tmp_path: Path
) -> None:
    saved, log = tmp_path / "c.kvs", tmp_path / "log.txt"
    log.write_bytes(story.read_bytes())
    stopped_after(session, sources(log, None), RUN, saved, 3)
    log.write_text("A new log begins.\n")
    end = time.monotonic() + 20
    follow = Follow(lambda: time.monotonic() > end, due=lambda: True)
    request = Request(
        run=RUN, command="remember", checkpoint=saved, interrupted=follow.stop, follow=True
    )
    with pytest.raises(SourceError, match="sources have changed since"):
        returned(session.read(open_sources([str(log)], follow=follow), request))


def test_other_sources_are_refused(session: Session, story: Path, tmp_path: Path) -> None:
    saved = tmp_path / "c.kvs"
    stopped_after(session, sources(story, None), RUN, saved, 3)
    other = tmp_path / "other.txt"
    other.write_text(story.read_text().replace("the", "thy", 1))
    with pytest.raises(SourceError, match="sources have changed since"):
        read(session, sources(other, None), RUN, saved)
    with pytest.raises(SourceError, match="same text from its start"):
        read(session, sources(other, 1), RUN, saved)
    other.write_text("short")
    with pytest.raises(SourceError, match="sources have changed since"):
        read(session, sources(other, None), RUN, saved)


def test_another_run_is_refused(session: Session, story: Path, tmp_path: Path) -> None:
    saved = tmp_path / "c.kvs"
    stopped_after(session, sources(story, None), RUN, saved, 2)
    other = RunSettings(Budget(tokens=301), max_tokens=6)
    with pytest.raises(UsageError, match="another run: --budget was 300, and is "):
        read(session, sources(story, None), other, saved)
    saving.save(read(session, sources(story, None), RUN), saved)
    with pytest.raises(UsageError, match="not a checkpoint"):
        Checkpoint(saved)


@pytest.mark.parametrize(
    ("run", "extract", "told"),
    [
        (RunSettings(Budget(tokens=300), max_tokens=20), False,
         "the room for the answer (--max-tokens) was 6, and is 20 here"),
        (RUN, True, "reading for a memory file or --extract was False, and is True here"),
        (replace(RUN, set={"pool": "3"}), False,
         "the setting pool of the method (--set) was 31, and is 3 here"),
    ],
)  # fmt: skip
def test_another_run_is_told_by_its_options(
    session: Session, story: Path, tmp_path: Path, run: RunSettings, extract: bool, told: str
) -> None:
    saved = tmp_path / "c.kvs"
    request = Request((QUESTION,), RUN, checkpoint=saved, checkpoint_every=1)
    events = session.ask(sources(story, None), request)
    while not saved.exists():
        next(events)
    events.close()
    with pytest.raises(UsageError) as caught:
        list(session.ask(sources(story, None), replace(request, run=run, extract=extract)))
    assert told in str(caught.value)


def test_the_header_alone_says_how_far_a_checkpoint_is(
    session: Session, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, cut = tmp_path / "c.kvs", tmp_path / "cut.kvs"
    assert tokens_of(saved) is None
    stopped_after(session, sources(story, None), RUN, saved, 2)
    whole = tokens_of(saved)
    with monkeypatch.context() as patched:
        patched.setattr(file, "read", lambda path: pytest.fail("the reading hashes it, once"))
        assert tokens_of(saved) == whole > 0
    data = saved.read_bytes()
    cut.write_bytes(data[:-100])
    assert tokens_of(cut) == whole
    with pytest.raises(SourceError, match=r"or only a part .* remove this one to start again"):
        Checkpoint(cut)
    for wrong in (b"", data[:50], b"no such file at all", b"\xff" * 100):
        cut.write_bytes(wrong)
        with pytest.raises(SourceError, match=r"or only a part .* remove this one to start again"):
            tokens_of(cut)
    saving.save(read(session, sources(story, None), RUN), saved)
    with pytest.raises(UsageError, match="not a checkpoint"):
        tokens_of(saved)


def test_an_unfinished_reading_can_be_asked(session: Session, story: Path, tmp_path: Path) -> None:
    saved = tmp_path / "c.kvs"
    stopped_after(session, sources(story, None), RUN, saved, 3)
    kind = saving.look(saved)
    assert "had not ended" in str(kind)
    memory = session.recall(kind, RUN)
    assert 0 < memory.trace.read < 2000
    result = result_of(memory, QUESTION)[0]
    assert result.citations == ()


def test_a_position_that_cannot_be_is_refused(
    session: Session, story: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "c.kvs"
    stopped_after(session, sources(story, None), RUN, saved, 2)
    content = file.read(saved)
    for wrong in ([], {"tokens": "all"}, {"tokens": -1, "sha256": "", "complete": 0, "base": 0}):
        notes = {**content.notes, "position": wrong}
        file.write(saved, content.state, notes, content.tensors)
        with pytest.raises(SourceError, match="cannot be used"):
            Checkpoint(saved)


def test_a_full_disk_leaves_the_checkpoint_before(
    session: Session, story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading itself goes on: its answer must not be lost, too."""
    saved = tmp_path / "c.kvs"
    stopped_after(session, sources(story, None), RUN, saved, 2)
    before = saved.read_bytes()
    plain = result_of(read(session, sources(story, None), RUN, None), QUESTION)[0]

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    request = Request(run=RUN, command="remember", checkpoint=saved, checkpoint_every=1)
    events, notices = session.read(sources(story, None), request), []
    while True:
        try:
            event = next(events)
        except StopIteration as end:
            memory = end.value
            break
        notices += [event.message] if isinstance(event, Notice) and event.loss else []
    assert len([notice for notice in notices if "No space left on device" in notice]) == 1
    assert result_of(memory, QUESTION)[0].answer == plain.answer
    assert saved.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c.kvs"]
