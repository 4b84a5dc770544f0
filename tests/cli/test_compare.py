"""`compare`: the model is loaded once, and each method reads the same text and gets a row."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstream.cli.app import run
from kvstream.cli.commands.compare import Comparison, spread


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> str:
    return str(write_story(tokens=1500, seed=5, facts=2))


def rows(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_row_for_each_method(story: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", story, "Who came?", "--budget", "400", "-n", "3", "--json", "-q"]
    assert run([*asked, "--method", "streaming,full,random"]) == 0
    streaming, full, random = rows(capsys.readouterr().out)
    assert [r["method"] for r in (streaming, full, random)] == ["streaming", "full", "random"]
    assert "more tokens than" in full["error"], "one method that cannot does not stop the others"
    assert streaming["tokens"]["read"] == random["tokens"]["read"]
    assert streaming["peak"]["kv_tokens"] <= 400
    assert 0 <= streaming["spread"] < random["spread"] <= 1


def test_a_text_that_changes_between_two_methods_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "growing.txt"
    log.write_text("Anna came.\n")
    asked = ["compare", str(log), "Who came?", "-n", "2", "-q", "--method", "streaming,window"]
    assert run(asked) == 0
    assert "changed" not in capsys.readouterr().err
    again = Comparison._sources

    def grown(self: Comparison) -> object:
        log.write_text("Anna came.\nBen left.\n")
        return again(self)

    monkeypatch.setattr(Comparison, "_sources", grown)
    assert run(asked) == 0
    assert "the methods read different texts" in capsys.readouterr().err


def test_without_methods_it_compares_two_and_a_baseline(
    story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["compare", story, "Who came?", "--budget", "400", "--dry-run", "--json", "-q"]
    three = ["infinipot", "keydiff", "streaming"]
    assert run(asked) == 0
    assert [row["method"] for row in rows(capsys.readouterr().out)] == three
    assert run([*asked, "--set", "keydiff.pool=15"]) == 0
    assert [row["method"] for row in rows(capsys.readouterr().out)] == three
    assert run([*asked, "--method", "auto"]) == 0
    assert [row["method"] for row in rows(capsys.readouterr().out)] == ["infinipot"]


@pytest.mark.whole_pocket
def test_warnings_name_their_method(story: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", story, "Who came?", "--budget", "400", "-n", "3", "--json", "-q"]
    assert run([*asked, "--method", "streaming,random"]) == 0
    out, err = capsys.readouterr()
    told = [
        f"Warning: {row['method']}: {warning}" for row in rows(out) for warning in row["warnings"]
    ]
    assert told, "nothing was warned of"
    assert err.splitlines() == told


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


@pytest.mark.parametrize("way", ["-", "fifo", "descriptor"])
def test_what_can_be_read_once_is_replayed(
    story: str,
    way: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every method reads the whole source, and citations have the name that was typed."""

    def write(where: int | str, data: bytes) -> None:
        with open(where, "wb") as file:
            file.write(data)

    with contextlib.ExitStack() as stack:
        if way == "fifo":
            name = str(tmp_path / "pipe")
            sink: int | str = name
            os.mkfifo(name)
        else:
            ours, sink = os.pipe()
            stdin = stack.enter_context(open(ours, "rb"))
            name = "-" if way == "-" else f"/dev/fd/{ours}"
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        writer = threading.Thread(target=write, args=(sink, Path(story).read_bytes()))
        writer.start()
        code = run(
            ["compare", name, "Who came back alone?", "--budget", "400", "-n", "2", "--json", "-q",
             "--method", "window,streaming,passages"]
        )  # fmt: skip
    writer.join()
    found = rows(capsys.readouterr().out)
    assert code == 0
    assert len(found) == 3
    assert found[0]["tokens"]["read"] == found[1]["tokens"]["read"] > 1000
    cited = [each["source"] for row in found for each in row["citations"]]
    assert set(cited) == {name}, "not that of the temporary file"
    assert found[0]["spread"] > 0
    assert found[2]["spread"] is None, "passages are no entries"


def test_a_wrong_method_is_told_before_anything_is_read(
    story: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kvstream.session.session.Session.open", lambda settings: pytest.fail("loaded")
    )
    for wrong in (
        ["--method", "window,nonsense"],
        ["--method", "window,snapkv", "--set", "snapkv.windw=3"],
    ):
        assert run(["compare", story, "Who?", "--budget", "400", "-q", *wrong]) == 2
        assert wrong[-1].split(",")[-1].split("=")[0][-5:] in capsys.readouterr().err


def test_a_method_that_lacks_its_gate_leaves_the_others_their_rows(
    story: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [story, "Who?", "--budget", "400", "-n", "2", "--json", "-q",
             "--set", f"edgeinfinite.gate={tmp_path / 'none'}"]  # fmt: skip
    assert run(["compare", *asked, "--method", "window,edgeinfinite,streaming"]) == 0
    found = rows(capsys.readouterr().out)
    assert ["error" in row for row in found] == [False, True, False]
    assert run(["compare", *asked, "--method", "window,edgeinfinite", "--dry-run"]) == 0
    assert "error" in rows(capsys.readouterr().out)[1]
    assert run(["compare", *asked, "--method", "edgeinfinite"]) == 2


def test_an_interrupted_comparison_names_what_was_not_run(
    story: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers: list[float] = []
    monkeypatch.setattr(
        "kvstream.cli.commands.compare.spread", lambda coverage: answers.append(0) or 0.0
    )
    monkeypatch.setattr(
        "kvstream.cli.shared.interrupts.Interrupts.__call__", lambda self: bool(answers)
    )
    page = tmp_path / "page.html"
    asked = ["compare", story, "Who?", "--budget", "400", "-n", "2", "--json"]
    assert run([*asked, "--method", "window,streaming,random", "--report", str(page)]) == 0
    told = capsys.readouterr()
    assert page.read_text().count("Not run, because of the interrupt.") >= 2
    assert [row["method"] for row in rows(told.out)] == ["window"]
    assert "Interrupted; answers are missing of: streaming, random." in told.err


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
    assert "more tokens than" in capsys.readouterr().err


def test_spread() -> None:
    assert spread([1, 1, 1, 1]) == pytest.approx(1)
    assert spread([0, 0, 0, 1]) == 0
    assert f"{spread([0, 0, 0, 1]):.2f}" == "0.00", "not -0.00"
    assert spread([0, 0, 1, 1]) == pytest.approx(0.5)
    assert spread([]) == 0
