"""Several methods side by side: one model load, the same text for each, a row for each."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstream.cli.app import run
from kvstream.cli.compare import spread


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> str:
    return str(write_story(tokens=3000, seed=5, facts=2))


def rows(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_row_for_each_method(story: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", story, "Who came?", "--budget", "400", "-n", "3", "--json", "-q"]
    assert run([*asked, "--method", "streaming,full,random"]) == 0
    streaming, full, random = rows(capsys.readouterr().out)
    assert [r["method"] for r in (streaming, full, random)] == ["streaming", "full", "random"]
    assert "longer than" in full["error"], "one method that cannot does not stop the others"
    assert streaming["tokens"]["read"] == random["tokens"]["read"]
    assert streaming["peak"]["kv_tokens"] <= 400
    assert 0 <= streaming["spread"] < random["spread"] <= 1


def test_ask_with_several_methods_is_the_same(
    story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(["ask", story, "Who?", "--budget", "400", "-n", "2", "--method", "window,random"]) == 0
    )
    out = capsys.readouterr().out
    assert "method" in out
    assert "window" in out
    assert "random" in out


def test_a_pipe_is_read_once_and_replayed(
    story: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(story, "rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        code = run(
            ["compare", "Who?", "--budget", "400", "-n", "2", "--json", "-q",
             "--method", "window,streaming"]
        )  # fmt: skip
    first, second = rows(capsys.readouterr().out)
    assert code == 0
    assert first["tokens"]["read"] == second["tokens"]["read"] > 2000


def test_settings_go_to_their_methods(story: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", story, "Who?", "--budget", "400", "-n", "2", "--method", "random,streaming"]
    assert run([*asked, "--set", "random.recent=8", "--set", "streaming.sinks=2", "-q"]) == 0
    capsys.readouterr()
    assert run([*asked, "--set", "infinipot.alpha=1"]) == 2
    assert "random, streaming" in capsys.readouterr().err


def test_when_no_method_can_the_code_says_so(
    story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", story, "Who?", "--budget", "400", "--method", "full", "-q"]) == 5
    assert "longer than" in capsys.readouterr().err


def test_spread() -> None:
    assert spread([1, 1, 1, 1]) == pytest.approx(1)
    assert spread([0, 0, 0, 1]) == 0
    assert spread([0, 0, 1, 1]) == pytest.approx(0.5)
    assert spread([]) == 0
