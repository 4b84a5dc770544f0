"""Output of compare: a block per question, lines that fit, marks on doubtful answers, CSV."""

from __future__ import annotations

import csv
import io
import re
from types import SimpleNamespace
from typing import Any

import pytest

from kvstream.cli.commands.compare import Row, blocks

LONG = "It lies behind the third stone of the garden wall, where nobody has looked for many years."
QUESTIONS = ("Who hid the letter that came on Tuesday?", "Where was it found?")


@pytest.fixture
def asked(fake_session, tmp_path) -> tuple[str, ...]:
    book = tmp_path / "book.txt"
    book.write_text("A short story about a key under a stone.\n" * 20)
    fake_session.pieces = (LONG,)
    return (
        "compare", str(book), "-q", "--method", "infinipot,streaming,pyramidkv",
        "-Q", QUESTIONS[0], "-Q", QUESTIONS[1],
    )  # fmt: skip


@pytest.mark.parametrize("width", [80, 40, 24])
def test_every_line_fits_and_nothing_is_lost(cli, asked, monkeypatch, width) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = cli(*asked)
    assert ran.code == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(ran.stdout.split())
    for question in QUESTIONS:
        assert words.count(f"Question: {question}") == 1
    # Narrow columns break an answer into lines, with nothing else between them.
    assert words.replace("infinipot", "").count(LONG) == 6
    for method in ("infinipot", "streaming", "pyramidkv"):
        assert words.count(method) == 3, "one answer to each question, and its figures"
    assert len(lines) < {80: 24, 40: 50, 24: 80}[width]


def test_a_doubtful_answer_is_marked(cli, asked, fake_session, monkeypatch) -> None:
    import dataclasses

    plain = cli(*asked).stdout
    assert "!" not in plain
    result = fake_session._result

    def doubted(self, command, question, run, *rest):
        made = result(self, command, question, run, *rest)
        wrong = run.method == "streaming" and question == QUESTIONS[1]
        return dataclasses.replace(made, warnings=("Check it.",)) if wrong else made

    monkeypatch.setattr(fake_session, "_result", doubted)
    marked = [line for line in cli(*asked).stdout.splitlines() if " ! " in line]
    assert len(marked) == 1
    assert marked[0].startswith("streaming")
    rows = list(csv.DictReader(io.StringIO(cli(*asked, "--csv").stdout)))
    assert [r["warnings"] for r in rows] == ["", "", "", "Check it.", "", ""]


def test_a_warning_names_its_method_and_question(cli, asked, fake_session, monkeypatch) -> None:
    """A warning during the answer does not count as a warning about the text."""
    import dataclasses

    from kvstream.events import Answered, Notice

    ask, loops = fake_session.ask, "The answer began to repeat itself."

    def looping(self, sources, request):
        for event in ask(self, sources, request):
            if isinstance(event, Answered):
                yield Notice(loops)
                event = Answered(dataclasses.replace(event.result, warnings=("Old.", loops)))
            yield event

    monkeypatch.setattr(fake_session, "ask", looping)
    fake_session.notices = ("Old.",)
    ran = cli(*asked, "--csv")
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    assert [row["warnings"] for row in rows] == [loops] * 6
    told = [line for line in ran.stderr.splitlines() if loops in line]
    assert told[:2] == [
        f'Warning: infinipot ("Who hid the letter that came on Tuesday?"): {loops}',
        f'Warning: infinipot ("Where was it found?"): {loops}',
    ]
    assert len(told) == 6
    assert ran.stderr.count("Old.") == 1
    assert f"Warning: streaming: {loops}" in cli(*asked[:-2], "--csv").stderr
    long = ["-Q", "Who, of all people, hid the letter that came?", "-Q", "Where?"]
    told = cli(*asked[:5], *long).stderr
    assert f'Warning: streaming ("Who, of all people, hid the letter th..."): {loops}' in told
    alike = ["-Q", "a" * 50 + "1", "-Q", "a" * 50 + "2"]
    assert f"Warning: streaming (question 2): {loops}" in cli(*asked[:5], *alike).stderr


def test_a_word_without_end_does_not_widen_the_table(cli, asked, fake_session, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    fake_session.pieces = ("It is " + "La" * 200,)
    lines = cli(*asked).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(line[12:].strip() for line in lines).count("La" * 200) == 6


def test_csv_has_a_line_for_each_method_and_question(cli, asked) -> None:
    ran = cli(*asked, "--csv")
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    assert [(r["method"], r["question"]) for r in rows] == [
        (m, q) for m in ("infinipot", "streaming", "pyramidkv") for q in QUESTIONS
    ]
    assert all(r["answer"] == LONG and r["peak_kv_tokens"] == "932" for r in rows)
    assert cli(*asked, "--csv", "--json").code == 2
    assert cli(*asked, "--csv", "--dry-run").code == 2


def test_a_method_that_answers_only_one_question_is_refused_at_the_others() -> None:
    told = dict.fromkeys(("prefill_s", "answer_s", "tokens_per_s", "peak_kv_tokens", "retained"), 0)
    result: Any = SimpleNamespace(question=QUESTIONS[1], answer="In the wall.", **told)
    rows = [Row("passages", result, None), Row("passages", None, None, "nothing found")]
    lines = list(blocks(rows, QUESTIONS, 80))
    assert lines[1].split() == ["passages", "(refused)"]
    assert lines[4].split() == ["passages", "In", "the", "wall."]
    assert lines[-1].split()[-1] == "-"


def test_what_a_method_cannot_is_said_in_its_place(cli, asked, fake_session) -> None:
    from kvstream.errors import BudgetError

    fake_session.fails = BudgetError("It does not fit.")
    ran = cli(*asked, "--csv")
    assert ran.code == 5
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    assert [r["error"] for r in rows] == ["It does not fit."] * 3


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_a_run_that_fails_leaves_an_earlier_table(cli, asked, fake_session, tmp_path, form) -> None:
    from kvstream.errors import BudgetError, SourceError

    table = tmp_path / "t.csv"
    table.write_text("an earlier run")
    missing = str(tmp_path / "missing.txt")
    assert cli("compare", missing, "Who?", form, "-o", str(table)).code == 3
    assert table.read_text() == "an earlier run"
    for fails, code in ((SourceError("Gone."), 3), (BudgetError("Too small."), 5)):
        fake_session.fails = fails
        assert cli(*asked, form, "-o", str(table)).code == code
        assert table.read_text() == "an earlier run"
    fake_session.fails = None
    assert cli(*asked, form, "-o", str(table)).code == 0
    assert LONG in table.read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("form", ["--csv", "--json", "--quiet"])
def test_what_was_answered_before_a_run_fails_stays(
    cli, asked, fake_session, tmp_path, monkeypatch, form
) -> None:
    from kvstream.errors import SourceError

    first = fake_session._result

    def gone(self, command, question, run, *rest):
        if run.method == "streaming" and question == QUESTIONS[1]:
            raise SourceError("The disk is gone.")
        return first(self, command, question, run, *rest)

    monkeypatch.setattr(fake_session, "_result", gone)
    table = tmp_path / "t.txt"
    ran = cli(*asked, form, "-o", str(table))
    assert ran.code == 3
    assert "The disk is gone." in ran.stderr
    assert "answers are missing of: streaming, pyramidkv" in ran.stderr
    text = " ".join(table.read_text().split())
    assert "infinipot" in text
    assert text.count(LONG) == 3 or form == "--quiet"
    read = re.sub(r'"command_line": "[^"]*"|"options": {[^}]*}', "", text)
    assert "pyramidkv" not in read
    printed = cli(*asked, form)
    assert printed.code == 3
    assert " ".join(printed.stdout.split()).count("infinipot") == text.count("infinipot")
