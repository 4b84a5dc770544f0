"""--preset paper and --start: settings of the papers, which typed options override."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from help_pages import commands

from kvstream.errors import UsageError
from kvstream.evaluation.sweep import cases
from kvstream.methods.registry import available, make, preset
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import CHUNKS, SCHEDULES, Budget, RunSettings

PAPERS = {
    "infinipot": ({"alpha": 0.5, "pool": 1, "catalyst_kind": "both"}, "fixed", "decremental"),
    "cascade": ({"run": 1, "contest": "attention", "cascades": 4}, "fixed", "fixed"),
    "bumblebee": ({"samples": 23, "picks": 1, "mixture": 0.3, "recent": 0}, "fixed", "fixed"),
    "edgeinfinite": ({"form": "paper", "sinks": 300, "window": 200}, "fixed", "decremental"),
    "snapkv": ({"sinks": 0}, "linear", "decremental"),
    "streaming": ({}, "linear", "decremental"),
    "append": ({}, "linear", "fixed"),
}
"""Some settings of the papers, growth and chunk; the last three schedules are IMDC's."""


@pytest.fixture
def book(tmp_path: Path) -> str:
    path = tmp_path / "book.txt"
    path.write_text("Once upon a time.\n")
    return str(path)


@pytest.mark.parametrize("method", PAPERS)
def test_one_option_sets_what_the_paper_has(
    cli: Callable[..., Any], fake_session: Any, book: str, method: str
) -> None:
    settings, growth, chunk = PAPERS[method]
    ran = cli("ask", book, "Q?", "-q", "--method", method, "--preset", "paper")
    assert ran.code == 0, ran.stderr
    run = fake_session.last.run
    made = make(method, run.set).settings()
    assert {name: made[name] for name in settings} == settings
    assert (run.schedule, run.chunk) == (growth, chunk)
    assert run.start == ("paper" if growth == "linear" else None)


def test_every_preset_is_valid_and_none_is_inherited() -> None:
    having = {name for name, method in available().items() if method.paper is not None}
    assert having == set(PAPERS)
    for name in having:
        paper = preset(name)
        make(name, paper.settings)
        assert set(paper.run) <= {"schedule", "chunk", "start"}
        assert paper.run["schedule"] in SCHEDULES
        assert paper.run["chunk"] in CHUNKS


def test_what_the_user_sets_wins(
    cli: Callable[..., Any], fake_session: Any, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSTREAM_CHUNK", "fixed")
    ran = cli(
        "ask", book, "Q?", "-q", "--preset", "paper", "--set", "infinipot.alpha=0.25",
        "--schedule", "sqrt", "--start", "7",
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    run = fake_session.last.run
    assert run.set["alpha"] == "0.25"
    assert run.set["shared"] == "0"
    assert (run.schedule, run.chunk, run.start) == ("sqrt", "fixed", 7)
    # A typed value overrides the preset even if it is the default.
    assert cli("ask", book, "Q?", "-q", "--preset", "paper", "--schedule", "linear").code == 0
    assert fake_session.last.run.schedule == "linear"


def test_compared_methods_have_each_its_own(
    cli: Callable[..., Any], fake_session: Any, book: str
) -> None:
    ran = cli("compare", book, "Q?", "-q", "--method", "cascade,snapkv", "--preset", "paper")
    assert ran.code == 0, ran.stderr
    assert fake_session.last.run.schedule == "linear"


@pytest.mark.parametrize("command", ["ask", "summarize", "compare", "bench needle"])
def test_a_method_without_a_preset_is_refused_before_anything_loads(
    cli: Callable[..., Any], fake_session: Any, book: str, command: str
) -> None:
    fake_session.open = None
    words = {"summarize": [book], "bench needle": []}.get(command, [book, "Q?"])
    ran = cli(*command.split(), *words, "--method", "snapkv,h2o"[7 * (command != "compare") :],
              "--preset", "paper")  # fmt: skip
    assert ran.code == 2
    assert "--preset paper has no settings for h2o, only for infinipot, cascade" in ran.stderr


def test_a_benchmark_has_the_presets_too() -> None:
    found = cases(
        RunSettings(), methods=["infinipot", "streaming"], budgets=[Budget(tokens=1024)],
        settings=["infinipot.alpha=0,0.25"], chunk=["fixed"], preset=True,
    )  # fmt: skip
    assert [c.run.set.get("alpha") for c in found] == ["0", "0.25", None]
    assert [c.run.schedule for c in found] == ["fixed", "fixed", "linear"]
    assert {c.run.chunk for c in found} == {"fixed"}
    assert found[2].identity()["start"] == "paper"
    with pytest.raises(UsageError, match="no settings for tova"):
        cases(RunSettings(), methods=["tova"], budgets=[None], preset=True)


def test_the_methods_page_shows_the_preset(cli: Callable[..., Any]) -> None:
    page = cli("methods", "cascade").stdout
    assert "--preset paper is as in Cascading KV cache" in page
    assert "--set cascade.contest=attention" in page
    assert "--schedule fixed\n      --chunk fixed" in page
    assert "--preset" not in cli("methods", "h2o").stdout
    row = json.loads(cli("methods", "snapkv", "--json").stdout)
    assert row["preset"]["run"]["start"] == "paper"


@pytest.mark.parametrize("command", ["ask", "summarize", "compare", "chat", "remember"])
@pytest.mark.parametrize("option", ["--preset", "--start"])
def test_every_reading_command_has_the_option(command: str, option: str) -> None:
    assert option in [name for param in commands()[command].params for name in param.opts]


@pytest.mark.parametrize(("typed", "value"), [("paper", "paper"), ("1k", 1024), ("32", 32)])
def test_start_is_a_count_or_the_papers(
    cli: Callable[..., Any], fake_session: Any, book: str, typed: str, value: int | str
) -> None:
    assert cli("ask", book, "Q?", "-q", "--start", typed).code == 0
    assert fake_session.last.run.start == value


@pytest.mark.parametrize("typed", ["book", "0", "-3"])
def test_another_start_is_refused(cli: Callable[..., Any], book: str, typed: str) -> None:
    ran = cli("ask", book, "Q?", "--start", typed)
    assert ran.code == 2
    with pytest.raises(UsageError, match="start"):
        RunSettings(start=int(typed) if typed != "book" else typed)


@pytest.mark.parametrize(("start", "peak"), [(None, 894), ("paper", 768), (256, 894), (8, 768)])
def test_the_peak_of_linear_growth(session: Session, start: int | str | None, peak: int) -> None:
    """Average chunk and m_max are 512; fixed memory would need 1,024 entries (eqs. 5 and 6)."""
    run = RunSettings(
        Budget(tokens=1400), "streaming", keep=512, chunk_size=512, start=start, max_tokens=4
    )
    reader = session.settle(Request(("Who?",), run)).reader(session.model, run, 64 * 512)
    schedule, held, seen, most = reader.schedule, 0, 0, 0
    while seen < 64 * 512:
        chunk = min(schedule.chunk(), 64 * 512 - seen)
        most = max(most, held + chunk)
        seen += chunk
        held = max(schedule.memory(chunk))
    assert most == pytest.approx(peak, abs=2)
    assert held == 512


def test_a_memory_keeps_what_it_was_made_with(cli: Callable[..., Any], tmp_path: Path) -> None:
    text, memory = tmp_path / "text.txt", str(tmp_path / "m.kvs")
    text.write_text("The door is red and the roof is blue. " * 100)
    made = ("--budget", "400", "--threads", "1", "-q")
    remembered = cli("remember", str(text), "-o", memory, *made, "--start", "paper")
    assert remembered.code == 0, remembered.stderr
    asked = ("ask", "--memory", memory, "Which?", "-q", "-n", "2")
    assert cli(*asked, "--start", "paper").code == 0
    other = cli(*asked, "--start", "9")
    assert other.code == 2
    assert "was made with --start paper, and 9 was given" in other.stderr
    other = cli(*asked, "--preset", "paper")
    assert other.code == 2
    assert "leave --preset out" in other.stderr
