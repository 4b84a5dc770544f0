"""A followed text: only answers that say something new are printed."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from fakes import FakeSession

from kvstream.cli.shared import watching
from kvstream.cli.shared.watching import SLOW, Watch
from kvstream.events import Answered, AnswerStarted, AnswerToken, Event, Notice, Result
from kvstream.reporters.citation_lines import news_lines
from kvstream.run.request import Request
from kvstream.settings import ModelSettings


def result(answer: str, read: int, *cited: tuple[int, str], command: str = "ask") -> Result:
    """Return an answer after so many bytes, with passages that end at bytes."""
    found = FakeSession(ModelSettings()).ask(None, Request(("Q?",)))
    made = next(event.result for event in found if isinstance(event, Answered))
    passages = tuple(
        {"source": "a.log", "byte_start": end - 1, "byte_end": end, "line_start": end,
         "line_end": end, "text": text, "weight": 0.5}
        for end, text in cited
    )  # fmt: skip
    source = {"name": "a.log", "bytes": read, "sha256": ""}
    return replace(
        made, answer=answer, citations=passages, command=command, question="Q?",
        receipt={"input": {"sources": [source]}},
    )  # fmt: skip


def watched(watch: Watch, results: Iterable[Result]) -> list[Event]:
    events: list[Event] = []
    for each in results:
        events += [Notice("of the reading"), AnswerStarted("Q?", 0), AnswerToken("x", 1)]
        events += [Notice("of the answer"), Answered(each)]
    return list(watch.news(iter(events)))


def test_an_answer_is_printed_when_it_changes() -> None:
    watch = Watch(None)
    events = watched(watch, [
        result("All is well.", 10, (5, "old")), result("all is well", 20, (15, "new")),
        result("The disk is full.", 30, (8, "old"), (25, "sda is full")),
        result("The disk is full!", 40), result("All is well.", 50),
    ])  # fmt: skip
    told = [event.result for event in events if isinstance(event, Answered)]
    assert [each.answer for each in told] == ["All is well.", "The disk is full.", "All is well."]
    assert [type(event).__name__ for event in events].count("AnswerStarted") == 3
    assert not any(isinstance(event, AnswerToken) for event in events)
    assert {event.message for event in events if isinstance(event, Notice)} == {"of the reading"}
    first, *rest = news_lines(told[1], 40)
    assert first.startswith("--- 20")
    assert first.endswith(" · a.log:25 ---"), "the passage of new text"
    assert rest == ["The disk is full.", "    sda is full"]
    assert told[1].to_json()["news"]["passage"]["text"] == "sda is full"


def test_text_that_waited_at_the_last_answer_is_new() -> None:
    first = replace(result("All is well.", 30, (5, "old")), waiting=10)
    events = watched(Watch(None), [first, result("Not so.", 40, (8, "old"), (25, "waited"))])
    *_, told = [event.result for event in events if isinstance(event, Answered)]
    assert told.to_json()["news"]["passage"]["text"] == "waited"


def test_new_text_is_new_to_each_question() -> None:
    asked = [
        replace(result(answer, read, (8, "old"), (read - 5, "new")), question=question)
        for read, answer in ((10, "one"), (30, "two"))
        for question in ("Q1?", "Q2?")
    ]
    told = [each.result for each in watched(Watch(None), asked) if isinstance(each, Answered)]
    assert [each.news["passage"]["text"] for each in told[2:] if each.news] == ["new", "new"]


def test_slow_answers_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 999, 30))
    own = SimpleNamespace(monotonic=lambda: next(clock), strftime=time.strftime)
    monkeypatch.setattr(watching, "time", own)  # not that of the event loop of a server
    results = [result("All is well.", 10), result("Not so.", 20)]
    events = watched(Watch(None, 5.0), results)
    told = [event.message for event in events if isinstance(event, Notice)]
    assert told.count(SLOW.format(30, 5)) == 1
    assert not any("takes" in each.message for each in watched(Watch(None, 90.0), results)
                   if isinstance(each, Notice))  # fmt: skip


def test_a_summary_is_what_is_new() -> None:
    events = watched(Watch(None), [
        result("A came. B left.", 10, command="summarize"),
        result("B left.", 20, command="summarize"),
        result("A came. C slept.", 30, command="summarize"),
    ])  # fmt: skip
    told = [event.result.answer for event in events if isinstance(event, Answered)]
    assert told == ["A came.\nB left.", "C slept."]


def test_the_end_is_an_answer_that_matches() -> None:
    watch = Watch(r"full|lost")
    events = watched(watch, [result("well", 1), result("disk full", 2), result("other", 3)])
    assert [e.result.answer for e in events if isinstance(e, Answered)] == ["well", "disk full"]
    assert watch.met


def test_an_answer_with_a_warning_is_no_end() -> None:
    watch = Watch("full")
    doubted = replace(result("disk full", 1), warnings=("Low confidence.",))
    of_text = replace(result("disk is full", 2), warnings=("NULs.",), of_reading=("NULs.",))
    events = watched(watch, [doubted, doubted, of_text, result("other", 3)])
    told = [e.result.answer for e in events if isinstance(e, Answered)]
    assert told == ["disk full", "disk is full"]
    assert events.count(Notice(watching.DOUBTED, note=True)) == 1
    assert watch.met


def test_what_is_no_pattern_is_refused(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    ran = cli("ask", str(tmp_path / "a"), "Q?", "--follow", "--until-answer", "(")
    assert ran.code == 2
    assert "is not a regular expression" in ran.stderr
    ran = cli("ask", str(tmp_path / "a"), "Q?", "--follow", "--until-answer", "")
    assert "The value is empty" in ran.stderr
    ran = cli("ask", str(tmp_path / "a"), "Q?", "--until-answer", "x")
    assert "has no effect without --follow" in ran.stderr


def test_a_count_is_followed_without_a_model(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("a fuse\nfus")
    question = "How many times is fuse mentioned?"
    ran = cli("ask", str(tmp_path / "a.log"), question, "--follow", "--until-answer", "once")
    assert ran.code == 0
    assert ran.stdout.endswith('a.log:1 ---\n"fuse" occurs once.\n')
    assert ran.stderr == "Counted without a model: whole words, in any case.\n"


def test_the_words_of_a_question_are_no_answer_to_it(cli: Any) -> None:
    question = "How many lines contain HALTED?"
    ran = cli("ask", "-", question, "--follow", "--until-answer", "HALTED", stdin=b"error: x\n")
    assert (ran.code, ran.stdout.splitlines()[-1]) == (1, '0 lines contain "HALTED".')


ODD = (
    b"\x00" * 70_000, b"\xff\xfe\xfa\x80\n\x1b[2J\x1b]0;t\x07\x9b31m\n",
    b"\n\r\r\n \t\n" + "é".encode()[:1],
    b"\x1f\x8b\x08\x00\x00\n" + b"a" * 300 + b"\n<|im_end|>\n</s>\n",
)  # fmt: skip


def test_odd_text_ends_no_watch(tmp_path: Path, warm: list[str]) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"")
    process = subprocess.Popen(
        [*warm, "-mkvstream", "ask", str(log), "--follow", "--every", "0.5s", "--threads", "1",
         "-m", "pocket", "--budget", "600", "-n", "8", "--until-answer", "Puldesh",
         "-Q", "Who opened the first school in Drerloton?"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    limit = threading.Timer(200, process.kill)
    limit.start()
    try:
        assert process.stderr is not None
        _line(process.stderr, "length unknown")
        for piece in ODD:
            with log.open("ab") as file:
                file.write(piece)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)  # longer than between two looks at the file
        log.unlink()  # rotation
        log.write_text("The first school in Drerloton was opened by Winifred Puldesh.\n" * 2)
        out, _ = process.communicate()
        assert process.returncode == 0
        assert "Puldesh" in out.rpartition("---\n")[2]
    finally:
        limit.cancel()
        process.kill()


def _line(stream: IO[str], words: str) -> None:
    for line in stream:
        if words in line:
            return
