"""The suite that reads a user's data: its tasks, their score, and the files it refuses."""

from __future__ import annotations

import io
import itertools
import random
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import suite as command
from kvstream.errors import SourceError, UsageError
from kvstream.evaluation import report
from kvstream.evaluation.filler import Filler
from kvstream.tokenization.loading import load_tokenizer
from kvstream_lab.suites import babilong, running
from kvstream_lab.suites.task import Sample, Task

TINY = ("--budget", "256", "--trials", "1", "--threads", "1", "-q")
MILL = "The old mill stood by the river. Nobody had opened its door for years. "
TRAINS = """\
1 Olga walked to the station.
2 Peter is in the harbor.
3 Where is Olga? {0}station{0}1
4 Olga ran to the market.
5 Where is Peter? {0}harbor{0}2
6 Peter drove to the forest.
7 Where is Peter?{0}forest{0}6
1 Peter walked to the market.
2 Where is Peter?{0}market{0}1
"""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("pocket")


@pytest.fixture
def babi(tmp_path: Path) -> Path:
    """A folder with one task. Its questions contain tabs, as in most copies of the data."""
    folder = tmp_path / "en"
    folder.mkdir()
    (folder / "qa1_places_test.txt").write_text(TRAINS.format("\t"))
    return folder


def qa1(folder: Path) -> Task:
    return babilong.loaded(folder, "qa1")


def slowly(text: str) -> dict[tuple[str, str], set[tuple[str, ...]]]:
    """Map each question and answer to the lists of facts that may precede it, line by line."""
    found: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    facts: list[str] = []
    for line in text.splitlines():
        number, rest = line.split(" ", 1)
        if number == "1":
            facts = []
        if "\t" in rest:
            question, answer, _ = rest.split("\t")
            found.setdefault((question.strip(), answer), set()).add(tuple(facts))
        else:
            facts.append(rest)
    return found


def test_facts_are_hidden_in_their_order(babi: Path, tokenizer: Any) -> None:
    """Slow check: the text has the facts before the question, once each, and no later facts."""
    known, task = slowly(TRAINS.format("\t")), qa1(babi)
    every = {fact for stories in known.values() for facts in stories for fact in facts}
    drawn = set()
    for seed in range(40):
        sample = task.make(tokenizer, Filler.of([]), 600, random.Random(seed))
        assert len(tokenizer.encode(sample.text)) == pytest.approx(600, abs=30)
        places = {fact: sample.text.find(fact) for fact in every}
        inside = [fact for fact in sorted(every, key=places.__getitem__) if places[fact] >= 0]
        assert tuple(inside) in known[sample.question, *sample.answers]
        assert all(sample.text.count(fact) == 1 for fact in inside)
        drawn.add((sample.question, sample.answers, len(inside)))
        assert sample == task.make(tokenizer, Filler.of([]), 600, random.Random(seed))
    assert len(drawn) == 4, "every question is asked at times"


def test_facts_stand_between_sentences(babi: Path, tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "mill.txt").write_text(MILL)
    filler = Filler.of([str(tmp_path / "mill.txt")])
    for seed in range(10):
        text = qa1(babi).make(tokenizer, filler, 300, random.Random(seed)).text
        for line in TRAINS.splitlines():
            text = text.replace(line.partition(" ")[2], "") if "{0}" not in line else text
        sentences = re.split(r"(?<=\.)\s+", text.strip())
        assert set(sentences[1:-1]) <= set(re.split(r"(?<=\.)\s+", MILL.strip()))


def test_many_facts_of_a_short_text_keep_their_order(babi: Path, tokenizer: Any) -> None:
    facts = [f"Peter saw {number} boats." for number in range(100, 140)]
    lines = [f"{number} {fact}" for number, fact in enumerate(facts, 1)]
    path = babi / "qa1_places_test.txt"
    path.write_text("\n".join([*lines, "41 How many? \t139\t40", "42 And now?\t139\t40"]))
    sample = qa1(babi).make(tokenizer, Filler.of([]), 500, random.Random(0))
    assert re.findall(r"Peter saw \d+ boats\.", sample.text) == facts


def test_some_copies_have_vertical_lines(babi: Path) -> None:
    path = str(babi / "qa1_places_test.txt")
    read = babilong.stories(path, "qa1")
    Path(path).write_text(TRAINS.format("|"))
    assert babilong.stories(path, "qa1") == read


def test_a_text_without_room_for_the_facts_is_refused(babi: Path, tokenizer: Any) -> None:
    with pytest.raises(UsageError, match=r"6 tokens has no room .* use a larger --tokens"):
        qa1(babi).make(tokenizer, Filler.of([]), 6, random.Random(0))
    facts = {
        qa1(babi).make(tokenizer, Filler.of([]), 12, random.Random(seed)).text.count(".")
        for seed in range(10)
    }
    assert facts == {1}, "only stories that fit"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("market", 1),
        (" The MARKET, I think", 1),
        ("market. Or the harbor", 1),  # only the first sentence counts
        ("in the market or the harbor", 0),
        ("harbor", 0),
        ("Not in the station but in the market", 0),
        ("not in the text", 0),
        ("", 0),
    ],
)
def test_the_right_word_counts_alone(babi: Path, answer: str, expected: int) -> None:
    sample = Sample("", "Where is Olga?", ("market",))
    assert qa1(babi).score(answer, sample) == expected


def test_every_answer_is_scored_as_slowly(babi: Path) -> None:
    """Slow check: the places named, without those of the question, are the right word alone."""
    places = ["station", "harbor", "market", "forest"]
    asked = Sample("", "Where was Olga before the harbor?", ("forest",))
    for count in range(5):
        for words in itertools.permutations(places, count):
            named = [word for word in words if word not in asked.question]
            score = qa1(babi).score(f"It is {' or '.join(words)}.", asked)
            assert score == (named == ["forest"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "held 0 bytes of text"),
        ("\n \n", "has no question"),
        ("1 A fact.\n2 Another.\n", "has no question"),
        ("1 A fact.\nNo number.\n", "line 2: it should begin with the next number"),
        ("1 A fact.\n3 A fact.\n", "line 2: it should begin with the next number"),
        ("2 A fact.\n", "line 1: it should begin with the next number"),
        ("1 A fact.\n2 Where?\t\t1\n", "line 2: a question needs an answer"),
        ("1 A fact.\n2 Where?\t\n", "line 2: a question needs an answer"),
        ("1 A fact.\n" + "2" * 9999 + " A fact.", "line 2: it should begin with the next number"),
        ("1 Where?\tthere\t1\n", "line 1: a question needs an answer, and a fact before it"),
    ],
)
def test_damaged_stories(babi: Path, text: str, problem: str) -> None:
    (babi / "qa1_places_test.txt").write_text(text)
    with pytest.raises(SourceError, match=problem):
        qa1(babi)


def row(method: str, task: str, n: int) -> dict[str, Any]:
    return {
        "suite": "babilong", "method": method, "budget": 512, "task": task, "n": n, "tokens": 6400,
        "score": 0.2, "low": 0.1, "high": 0.3,
    }  # fmt: skip


def test_a_table_shows_who_read_fewer_texts() -> None:
    rows = [
        row(method, task, n)
        for method, n in (("infinipot", 12), ("streaming", 12), ("whole", 3))
        for task in ("qa1", "qa2", "mean")
    ]
    (table,) = command._tables(rows)
    console = Console(width=80, file=io.StringIO())
    report.fit(table, 80)
    console.print(table)
    shown = console.file.getvalue()
    assert all(len(line.rstrip()) <= 80 for line in shown.splitlines())
    assert "…" not in shown
    words = " ".join(shown.split())
    assert words.startswith("babilong, 6,400 tokens, budget 512 (12.5:1) question known")
    assert (words.count(" 20 "), words.count("(10-30)")) == (9, 9)
    assert words.count("of 3") == 3
    assert list(command._tables([])) == []


def test_questions_of_one_document_are_one_observation() -> None:
    def record(document: str, score: float) -> dict[str, Any]:
        return {"suite": "babilong", "method": "m", "task": "qa1", "tokens": 10, "score": score,
                "refused": False, "document": document}  # fmt: skip

    alone = [record("a", 0.1), record("b", 0.3)]
    (once,), (twice,) = running.rows(alone), running.rows(alone * 2)
    assert (once["low"], once["high"]) == pytest.approx((twice["low"], twice["high"]), abs=1e-3)
    assert (twice["n"], twice["tokens"]) == (4, 10)
    (single,) = running.rows([record("a", 0.1), record("a", 0.3)])
    assert single["low"] < 0.2 < single["high"], "one document leaves room for others"


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("babilong",), 2, "babilong reads your copy of its data: give --data"),
        (("babilong", "--data", "none"), 3, "none is not a folder"),
        (("babilong", "--data", "."), 3, "has no files qa1_*_test.txt"),
        (("babilong", "--data", ".", "--tasks", "qa6"), 2, "has no task 'qa6'"),
        (("ruler", "--data", "x"), 2, "leave --data out"),
        (("babilong", "--data", "x", "--save", "x"), 2, "same file"),
    ],
)
def test_what_is_refused(
    arguments: tuple[str, ...], code: int, problem: str, lab: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    done = lab("suite", *arguments)
    assert done.code == code, done.stderr
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_babilong_as_a_user_runs_it(lab: Any, babi: Path, tmp_path: Path) -> None:
    (tmp_path / "mill.txt").write_text(MILL * 20)
    done = lab(
        "suite", "babilong", "--data", str(babi), "--tasks", "qa1", "--tokens", "512",
        "--text", str(tmp_path / "mill.txt"), *TINY,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    *title, header, line = done.stdout.splitlines()
    said = " ".join(" ".join(title).split())
    assert said == "babilong, 512 tokens, budget 256 (2:1) question known, % (95% interval)"
    assert header.split() == ["texts", "infinipot", "whole"]
    assert re.match(r"qa1 +1 ", line)


def test_a_damaged_line_ends_the_command(lab: Any, babi: Path) -> None:
    (babi / "qa1_places_test.txt").write_text("1 A fact.\nand no number\n")
    done = lab("suite", "babilong", "--data", str(babi), "--tasks", "qa1", *TINY)
    assert (done.code, done.stdout) == (3, "")
    assert "line 2: it should begin with the next number" in done.stderr
    assert "Traceback" not in done.stderr
