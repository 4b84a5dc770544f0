"""``--report``: which commands write a page, what they refuse, and the timeline of a log."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from fakes import FakeSession

from kvstream import Report
from kvstream.api.logs import LogSummary, page, record
from kvstream.cli.shared import log_summaries
from kvstream.events import Answered, Started
from kvstream.reporters.plain import plan_line
from kvstream.reporters.plain import summary as summary_line
from kvstream.run.request import Request
from kvstream.settings import ModelSettings

pytest.importorskip("jinja2", reason="needs the extra report")

TEXT = "Ada hid the letter under the third stone. " + "Nobody saw the boats come home. " * 40
QUESTION = "Who hid the letter?"
START = datetime(2026, 11, 22, 3)


def log_text(lines: int = 3000) -> str:
    """Return a log with a line each second and a burst of errors."""
    made = []
    for second in range(lines):
        when = START + timedelta(seconds=second)
        made.append(f"{when} INFO web: GET /item/{second}")
        if 1200 <= second < 1260:
            made += [f"{when} ERROR orders: order {second}{i} was not saved" for i in range(5)]
    return "\n".join(made) + "\n"


def summary(text: str, name: str = "a.log") -> LogSummary:
    log = LogSummary()
    log.begin(name)
    log.feed(text)
    log.close()
    return log


def test_a_log_is_drawn_over_time() -> None:
    log = summary(log_text())
    lines = {t.title: t for t in log_summaries._timelines(log, record(log, 16))}
    ((_, words, bars),) = lines["All lines"].rows
    assert words == "3,300"
    assert len(bars) <= log_summaries.BARS
    ((text, words, bars),) = lines["Errors and warnings"].rows
    assert (words, "was not saved" in text) == ("300 error", True)
    # The errors are in the minute of the burst, at 40% of the log.
    highest = max(bars, key=lambda bar: bar[2])
    assert highest[2] == 1.0
    assert highest[0] <= 1230 / 2999 <= highest[1]
    assert all(begin >= 1200 / 2999 - 0.03 and end <= 1260 / 2999 + 0.03 for begin, end, _ in bars)
    ((_, _, bars),) = lines["Most lines"].rows
    assert bars[0][0] == 0.0
    assert bars[-1][1] == 1.0
    assert min(height for _, _, height in bars[1:-1]) > 0.8  # even, like the lines


@pytest.mark.parametrize(
    ("first", "last", "told"),
    [
        ("Nov 20 02:00:00 host", "Nov 20 02:00:09 host", "11-20 02:00:0"),
        ("02:00:00", "02:00:09", "02:00:0"),
        ("[  120.500000]", "[  129.500000]", "00:02:0"),
        ("2026-11-20 02:00:00", "2026-11-20 02:00:09", "2026-11-20 02:00:0"),
    ],
)
def test_times_of_a_log_have_only_the_parts_that_it_names(first, last, told) -> None:
    log = summary(f"{first} app: begins\n{last} app: ends\n" * 3)
    (table,) = log_summaries._tables(log, record(log, 16))
    assert {row[2] for row in table.rows} == {f"{told}0", f"{told}9"}
    assert page(log).split("\n")[0].split(", ")[1].startswith(f"{told}0 to {told}9;")


def test_bars_are_the_counts_of_the_lines() -> None:
    """Compare with a slow count of the lines of the log."""
    text = log_text(400)
    log = summary(text)
    axis = log_summaries._Axis.of(log)
    bars = axis.bars(log.total.buckets)
    counts = [0] * len(bars)
    for line in text.splitlines():
        share = (datetime.fromisoformat(line[:19]) - START).total_seconds() / 399
        counts[max(i for i, (begin, _, _) in enumerate(bars) if begin <= share)] += 1
    assert [height for _, _, height in bars] == [count / max(counts) for count in counts]
    assert sum(counts) == 400


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-22 03:00:00 INFO a: step & done\n" * 60,  # all in one second
        "worker & finished its part\n" * 600,  # no times
        "".join(f'{{"time": {9 * 10**12 * (i + 1)}, "msg": "x {i}"}}\n' for i in range(50)),
        '{"time": 1e300, "msg": "x"}\n' * 50,
    ],
)
def test_a_log_of_odd_times_has_a_page(cli, tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.log").write_text(text)
    page = tmp_path / "odd.html"
    ran = cli("summarize", str(tmp_path / "odd.log"), "--as", "log", "--report", str(page))
    assert ran.code == 0, ran.stderr
    found = page.read_text()
    assert "<caption>Most lines</caption>" in found or "<caption>New or rare</caption>" in found
    for name in ("x", "y", "width", "height"):
        values = [float(v) for v in re.findall(rf'<rect[^>]* {name}="([^"]*)"', found)]
        assert all(0 <= value <= 100 for value in values)


def test_ask_and_its_options_write_a_page(cli, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    page = tmp_path / "page.html"
    common = ["-m", "pocket", "--budget", "200", "--max-tokens", "4", "--report", str(page)]
    for more in ([], ["--skim=self"], ["--skim=words"], ["--thin", "auto"]):
        ran = cli("ask", str(tmp_path / "a.txt"), QUESTION, *common, *more)
        assert ran.code == 0, ran.stderr
        assert f"Wrote {page}" in ran.stderr
        assert QUESTION in page.read_text()
        page.unlink()


def test_the_figures_are_of_the_whole_reading_and_of_all_answers() -> None:
    first, *_, last = FakeSession(ModelSettings("pocket")).ask([], Request(questions=("Who?",)))
    report = Report()
    for read in (1024, 4096):  # as with --every
        report.show(Answered(replace(last.result, read=read, evicted=read - 430)))
    page = report._page(None)
    facts = {name: value for name, value, _ in page.facts}
    assert (facts["Read"], facts["Evicted"], facts["Time"]) == ("4,096", "3,666", "3.0 s")
    assert ("answering", "1.0 s") in page.times
    report.show(first)
    report.show(last)
    _, told = report._page(None).times[0]
    assert told.startswith("read 2.0 s, answered 1.0 s")


def test_one_of_something_has_no_plural() -> None:
    session = FakeSession(ModelSettings("pocket"))
    first, *_, last = session.ask([], Request(questions=("Who?",)))
    assert isinstance(first, Started)
    assert isinstance(last, Answered)
    report = Report()
    report.show(replace(first, prompt_tokens=1))
    report.show(Answered(replace(last.result, read=1)))
    page = report._page(None)
    assert ("prompt", "1 entry") in page.settings
    assert ("Read", "1", "token") in page.facts
    assert plan_line(replace(first, estimated_tokens=1, lossless=True)).endswith(
        "1 token: all of it fits"
    )
    assert summary_line(replace(last.result, read=1)).startswith("read 1 token ·")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--each"], "--report shows one text"),
        (["--dry-run"], "--dry-run reads nothing, so there is no --report"),
        (["--skim", "pocket"], "--skim and --model are both pocket"),
    ],
)
def test_what_has_no_page_says_so_and_leaves_no_file(cli, tmp_path: Path, more, message) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    page = tmp_path / "page.html"
    ran = cli(
        "ask", str(tmp_path / "a.txt"), QUESTION, "-m", "pocket", "--budget", "200",
        "--report", str(page), *more,
    )  # fmt: skip
    assert ran.code == 2
    assert message in ran.stderr
    assert not page.exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["perplexity", "a.txt", "--budget", "200"], ["<h1", "infinipot"]),
        (
            [
                "needle",
                "--kind",
                "passkey",
                "--lengths",
                "300",
                "--trials",
                "1",
                "--depths",
                "0.5",
                "--budget",
                "200",
            ],
            ["Needles: passkey", "data-chart"],
        ),
    ],
)
def test_benchmarks_write_a_page(cli, tmp_path: Path, monkeypatch, arguments, parts) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(TEXT)
    ran = cli("bench", *arguments, "-m", "pocket", "--report", "page.html")
    assert ran.code == 0, ran.stderr
    page = Path("page.html").read_text()
    assert all(part in page for part in parts)
