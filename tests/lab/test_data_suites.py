"""Suites that read a user's data: their tasks, their scores, and the files they refuse."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rows import rows_of

import suite as command
from kvstream.errors import SourceError, UsageError
from kvstream.evaluation import report
from kvstream.evaluation.filler import Filler
from kvstream.evaluation.sweep import Case
from kvstream.settings import ModelSettings, RunSettings
from kvstream.tokenization.loading import load_tokenizer
from kvstream_lab.suites import LOADERS, SUITES, babilong, qmsum, running, squality
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
MEETING = {
    "meeting_transcripts": [
        {"speaker": "Chair", "content": "We need a new roof before the winter."},
        {"speaker": "Treasurer", "content": "There is money for tiles, not for slate."},
    ],
    "general_query_list": [{"query": "Sum up the meeting.", "answer": "They plan a new roof."}],
    "specific_query_list": [
        {"query": "What can they pay for?", "answer": "Tiles.", "relevant_text_span": [["1", "1"]]},
        {"query": "When is the roof needed?", "answer": "Before the winter."},
    ],
}
STORY = {
    "doc_id": "lamp",
    "text": "A boy finds a lamp. He cleans it, and it shines all night. The village sleeps well.",
    "questions": [
        {"question": "What happens?", "summaries": ["A boy cleans a lamp.", "A lamp shines."]},
        {"question": "Who finds the lamp?", "summaries": ["A boy.", "The boy finds it."]},
        {"question": "How does the village sleep?", "summaries": ["It sleeps well."]},
    ],
}


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


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    def write(*records: Any, name: str = "data.jsonl") -> str:
        path = tmp_path / name
        text = "\n".join(r if isinstance(r, str) else json.dumps(r) for r in records)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return str(path)

    return write


# babilong


def qa1(folder: Path) -> Task:
    (task,) = babilong.load(str(folder), babilong.TASKS[:1], 0)
    return task


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


def test_another_question_is_of_the_same_story(babi: Path, tokenizer: Any) -> None:
    for seed in range(20):
        sample = qa1(babi).make(tokenizer, Filler.of([]), 300, random.Random(seed))
        assert {sample.question, sample.other} == {"Where is Olga?", "Where is Peter?"}


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
    assert qa1(babi).score(answer, sample) == {"score": expected}


def test_every_answer_is_scored_as_slowly(babi: Path) -> None:
    """Slow check: the places named, without those of the question, are the right word alone."""
    places = ["station", "harbor", "market", "forest"]
    asked = Sample("", "Where was Olga before the harbor?", ("forest",))
    for count in range(5):
        for words in itertools.permutations(places, count):
            named = [word for word in words if word not in asked.question]
            (score,) = qa1(babi).score(f"It is {' or '.join(words)}.", asked).values()
            assert score == (named == ["forest"])


# qmsum and squality


def lcs(one: list[str], two: list[str]) -> int:
    """Return the length in words of the longest common subsequence, by its definition."""
    for size in range(min(len(one), len(two)), 0, -1):
        if set(itertools.combinations(one, size)) & set(itertools.combinations(two, size)):
            return size
    return 0


def test_a_meeting_is_read_turn_by_turn(written: Callable[..., str]) -> None:
    general, specific = qmsum.load(written(MEETING), qmsum.TASKS, 0)
    (sample,) = general.given
    assert sample.text == (
        "Chair: We need a new roof before the winter.\n"
        "Treasurer: There is money for tiles, not for slate."
    )
    assert (sample.question, sample.answers) == ("Sum up the meeting.", ("They plan a new roof.",))
    assert {s.question for s in specific.given} == {
        "What can they pay for?", "When is the roof needed?",
    }  # fmt: skip
    for one in (sample, *specific.given):
        assert one.other != one.question
        assert one.other in json.dumps(MEETING)


def test_a_meeting_is_scored_as_longbench_does(written: Callable[..., str]) -> None:
    (task, _) = qmsum.load(written(MEETING), qmsum.TASKS, 0)
    reference, answer = "They plan a new roof.", "They want to buy a roof."
    words = [text.rstrip(".").split() for text in (answer, reference)]
    expected = 2 * lcs(*words) / sum(map(len, words))
    assert task.score(answer, task.given[0])["score"] == pytest.approx(expected)
    assert task.score(reference, task.given[0])["score"] == pytest.approx(1)
    assert task.score("", task.given[0]) == {
        "score": 0, "rouge_1": 0, "rouge_2": 0, "rouge_l": 0,
    }  # fmt: skip


def test_a_story_has_a_plot_and_other_questions(written: Callable[..., str]) -> None:
    plot, questions = squality.load(written(STORY, name="s.jsonl.gz"), squality.TASKS, 0)
    assert [s.question for s in plot.given] == ["What happens?"]
    assert len(questions.given) == 2
    assert {s.document for s in (*plot.given, *questions.given)} == {"lamp"}
    theirs = {
        "metadata": {"passage_id": "lamp"},
        "document": STORY["text"],
        "questions": [
            {
                "question_text": q["question"],
                "responses": [{"response_text": answer} for answer in q["summaries"]],
            }
            for q in STORY["questions"]  # type: ignore[attr-defined]
        ],
    }
    assert squality.load(written(theirs), squality.TASKS, 0) == [plot, questions]


def test_the_most_similar_reference_counts(written: Callable[..., str]) -> None:
    """Slow check: ROUGE-L of every reference. No word here has an ending to stem."""
    plot, _ = squality.load(written(STORY), squality.TASKS, 0)
    answer = "a boy and a lamp"
    each = []
    for reference in plot.given[0].answers:
        words = reference.lower().rstrip(".").split()
        each.append(2 * lcs(answer.split(), words) / (len(answer.split()) + len(words)))
    assert len(set(each)) == 2
    assert plot.score(answer, plot.given[0])["score"] == pytest.approx(max(each))


def test_every_document_is_asked_before_one_is_asked_again(written: Callable[..., str]) -> None:
    stories = [{**STORY, "doc_id": str(number)} for number in range(5)]
    path = written(*stories, "", {**STORY, "doc_id": "short", "questions": STORY["questions"][:2]})  # type: ignore[index]
    _, questions = squality.load(path, squality.TASKS, 3)
    documents = [sample.document for sample in questions.given]
    assert sorted(documents[:6]) == ["0", "1", "2", "3", "4", "short"]
    assert documents[6:] == [d for d in documents[:6] if d != "short"]
    assert len({(s.document, s.question) for s in questions.given}) == 11
    _, same = squality.load(path, squality.TASKS, 3)
    _, others = squality.load(path, squality.TASKS, 4)
    assert same == questions
    assert [s.document for s in others.given] != documents


def test_a_lone_question_borrows_another_one(written: Callable[..., str]) -> None:
    lone = {**STORY, "doc_id": "lone", "questions": STORY["questions"][1:2]}  # type: ignore[index]
    path = written(lone, STORY)
    plot, _ = squality.load(path, squality.TASKS, 0)
    borrowed = next(s.other for s in plot.given if s.document == "lone")
    assert borrowed in ("What happens?", "How does the village sleep?")


@pytest.mark.parametrize(
    ("name", "lines", "problem"),
    [
        ("qmsum", [MEETING, "{"], "line 2 is not JSON: "),
        ("qmsum", ["[]"], "line 1 has another shape: "),
        ("qmsum", ["[" * 100_000], "line 1 is nested too deeply"),
        ("qmsum", [{**MEETING, "meeting_transcripts": []}], "line 1.* meeting_transcripts"),
        ("qmsum", [{**MEETING, "general_query_list": [{"query": "Q"}]}], "line 1 has no '"),
        ("qmsum", [{**MEETING, "specific_query_list": []}], "no question of the task specific"),
        ("qmsum", [STORY], "line 1 has no 'meeting_transcripts'. A line of QMSum has"),
        ("qmsum", [], "held 0 bytes of text"),
        ("qmsum", ["", " "], "no question of the task general"),
        ("squality", [{**STORY, "text": 5}], "line 1: the text is not text"),
        ("squality", [{**STORY, "questions": None}], "line 1 has another shape: "),
        (
            "squality",
            [{**STORY, "questions": [{"question": "Q", "summaries": "one"}]}],
            "line 1: a question has no answers",
        ),
        ("squality", [{**STORY, "metadata": None, "doc_id": ""}], "line 1 has another shape: "),
        ("squality", [MEETING], "line 1 has no 'questions'. A line of SQuALITY has"),
    ],
)
def test_damaged_documents(
    name: str, lines: list[Any], problem: str, written: Callable[..., str]
) -> None:
    with pytest.raises(SourceError, match=problem):
        LOADERS[name](written(*lines), SUITES[name], 0)


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


# Runs


def test_texts_of_their_own_length_are_limited_and_named(written: Callable[..., str]) -> None:
    session = SimpleNamespace(
        model_name="m", model=SimpleNamespace(model=SimpleNamespace(state_dict=dict)),
        settings=ModelSettings(),
    )  # fmt: skip
    tasks = squality.load(written(STORY), squality.TASKS, 0)
    trials = list(
        running.trials(
            session, Filler.of([]), "squality", tasks, [Case(RunSettings())],  # type: ignore[arg-type]
            tokens=512, count=9, seed=0, mode=running.KNOWN,
        )
    )  # fmt: skip
    named = [(t.identity["task"], t.identity["trial"]) for t in trials]
    assert named == [("plot", 0), ("questions", 0), ("questions", 1)]
    assert sum(task.count(9) for task in tasks) == len(trials)
    for trial in trials:
        assert trial.identity["data"]
        assert not {"tokens", "filler"} & set(trial.identity)


def row(method: str, task: str, n: int, tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "suite": "squality", "method": method, "budget": 512, "task": task, "n": n,
        "tokens": tokens, "later": False, "other": False, "score": 0.2, "low": 0.1, "high": 0.3,
        **more,
    }  # fmt: skip


def test_a_table_shows_the_mean_length_and_who_read_fewer_texts() -> None:
    rows = [
        row(method, task, n, tokens, other=True)
        for method, n, tokens in (
            ("infinipot", 12, 6400), ("streaming", 12, 6400), ("whole", 3, 900), ("bm25", 12, 6400),
        )
        for task in ("plot", "questions", "mean")
    ]  # fmt: skip
    (table,) = command._tables(rows)
    console = Console(width=80, file=io.StringIO())
    report.fit(table, 80)
    console.print(table)
    shown = console.file.getvalue()
    assert all(len(line.rstrip()) <= 80 for line in shown.splitlines())
    assert "…" not in shown
    words = " ".join(shown.split())
    assert words.startswith("squality, 6,400 tokens a text, budget 512 (12.5:1) another question")
    assert (words.count(" 20.0"), words.count("(10.0-30.0)")) == (12, 12)
    assert words.count("of 3") == 3
    assert list(command._tables([])) == []


def test_questions_of_one_document_are_one_observation() -> None:
    def record(document: str, score: float) -> dict[str, Any]:
        return {"suite": "squality", "method": "m", "task": "plot", "tokens": 10, "later": False,
                "score": score, "refused": False, "document": document, "rouge_1": 0.5}  # fmt: skip

    alone = [record("a", 0.1), record("b", 0.3)]
    (once,), (twice,) = running.rows(alone), running.rows(alone * 2)
    assert (once["low"], once["high"]) == pytest.approx((twice["low"], twice["high"]), abs=1e-3)
    assert (twice["n"], twice["rouge_1"], twice["tokens"]) == (4, 0.5, 10)
    (single,) = running.rows([record("a", 0.1), record("a", 0.3)])
    assert single["low"] < 0.2 < single["high"], "one document leaves room for others"


# The command


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("babilong",), 2, "babilong reads your copy of its data: give --data"),
        (("qmsum", "--data", "-"), 2, "name files"),
        (("qmsum", "--data", "none.jsonl"), 3, "none.jsonl does not exist"),
        (("qmsum", "--data", "."), 3, "is a folder"),
        (("babilong", "--data", "none"), 3, "none is not a folder"),
        (("babilong", "--data", "."), 3, "has no files qa1_*_test.txt"),
        (("babilong", "--data", ".", "--tasks", "qa6"), 2, "has no task 'qa6'"),
        (("ruler", "--data", "x"), 2, "leave --data out"),
        (("nolima", "--data", "x"), 2, "leave --data out"),
        (("qmsum", "--data", "x", "--tokens", "4k"), 2, "leave --tokens out"),
        (("squality", "--data", "x", "--text", "y"), 2, "leave --text out"),
        (("squality", "--data", "x", "--heldout"), 2, "leave --heldout out"),
        (("squality", "--data", "x", "--save", "x"), 2, "same file"),
        (("ruler", "--later", "--other"), 2, "--later reads with no question"),
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


def test_runs_resume_and_modes_do_not_mix(
    lab: Any, written: Callable[..., str], tmp_path: Path
) -> None:
    save = tmp_path / "saved.jsonl"
    path = written(STORY)
    arguments = (
        "suite", "squality", "--data", path, "--tasks", "questions", *TINY,
        "--method", "keydiff", "--save", str(save), "--json",
    )  # fmt: skip
    known = rows_of(lab(*arguments))
    assert [r["method"] for r in known] == ["keydiff", "whole"]
    assert all(r["tokens"] < 60 and not (r["later"] or r["other"]) for r in known)
    assert {"rouge_1", "rouge_2", "rouge_l"} <= set(known[0])
    other = rows_of(lab(*arguments, "--other"))
    assert all(r["other"] and not r["later"] for r in other)
    before = save.read_text()
    records = [json.loads(line) for line in before.splitlines()]
    assert len(records) == 4
    assert [r.get("known") for r in records[:2]] == [None] * 2
    assert all(r["known"] != r["question"] for r in records[2:])
    assert all("filler" not in r and r["document"] == "lamp" for r in records)
    assert rows_of(lab(*arguments)) == known
    assert rows_of(lab(*arguments, "--other")) == other
    assert save.read_text() == before, "nothing is measured again"
    Path(path).write_text(json.dumps({**STORY, "text": "Another text."}))
    rows_of(lab(*arguments))
    assert len(save.read_text().splitlines()) == 6, "other data are measured"


def test_babilong_as_a_user_runs_it(lab: Any, babi: Path, tmp_path: Path) -> None:
    (tmp_path / "mill.txt").write_text(MILL * 20)
    done = lab(
        "suite", "babilong", "--data", str(babi), "--tasks", "qa1", "--tokens", "512",
        "--text", str(tmp_path / "mill.txt"), *TINY, "--other",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    *title, header, line = done.stdout.splitlines()
    said = " ".join(" ".join(title).split())
    assert said == "babilong, 512 tokens, budget 256 (2:1) another question known, % (95% interval)"
    assert header.split() == ["texts", "infinipot", "whole"]
    assert re.match(r"qa1 +1 ", line)


def test_a_damaged_line_ends_the_command(lab: Any, babi: Path) -> None:
    (babi / "qa1_places_test.txt").write_text("1 A fact.\nand no number\n")
    done = lab("suite", "babilong", "--data", str(babi), "--tasks", "qa1", *TINY)
    assert (done.code, done.stdout) == (3, "")
    assert "line 2: it should begin with the next number" in done.stderr
    assert "Traceback" not in done.stderr
