"""After a refusal, stderr names the log lines that contain words of the question."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from fakes import FakeSession

from kvstream.cli.shared.running import tell_matches
from kvstream.events import Answered
from kvstream.reporters.plain import Teller
from kvstream.run.request import Request
from kvstream.settings import ModelSettings

MATCHES = [{"source": "a.log", "line": n, "text": "ERROR order 7"} for n in (12, 40)]
TOLD = "Lines with the words of the question: a.log:12, a.log:40\n"


@pytest.mark.parametrize(
    ("answer", "matches", "told"),
    [("not in the text", MATCHES, TOLD), ("order 7", MATCHES, ""), ("not in the text", [], "")],
)
def test_a_refusal_names_the_lines(answer: str, matches: list[dict], told: str) -> None:
    events = FakeSession(ModelSettings()).ask(None, Request(("Which order?",)))
    [made] = [event.result for event in events if isinstance(event, Answered)]
    result = replace(made, answer=answer, lines={"matches": matches})
    stream = io.StringIO()
    tell_matches(result, Teller(stream))
    assert stream.getvalue() == told


def test_the_command_tells_them_in_a_pipe(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("kvstream.api.answer.Answer.abstained", True)
    log = tmp_path / "a.log"
    lines = [f"2024-05-01 12:00:00 INFO a: beat {n}" for n in range(1, 101)]
    lines[71] = "2024-05-01 12:00:00 INFO a: beat 77.1.2.3"
    log.write_text("\n".join(lines))
    asked = (
        "ask",
        str(log),
        "Did 77.1.2.3 beat?",
        "-m",
        "pocket",
        "--budget",
        "256",
        "-q",
        "-n",
        "8",
    )
    assert f"Lines with the words of the question: {log}:72, " in cli(*asked).stderr
    assert "Lines with" not in cli(*asked, "--json").stderr
