"""The benchmarks: their texts, the runs they compare, their saved records and their output."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rows import rows_of

from kvstream.cli.commands.bench import needle as needle_command
from kvstream.cli.commands.bench import perplexity as perplexity_command
from kvstream.cli.commands.bench import result_output
from kvstream.cli.commands.bench.common_options import COUNTS, SHARES
from kvstream.errors import BudgetError, KvstreamError, SourceError, UsageError
from kvstream.evaluation import needle, perplexity, qa, report
from kvstream.evaluation.confidence import difference_interval, wilson
from kvstream.evaluation.datasets import Question
from kvstream.evaluation.filler import Filler, around, boundary, insert
from kvstream.evaluation.harness import PRECISION, room_for, too_long
from kvstream.evaluation.records import CASE_KEYS, Records, Trial, measure
from kvstream.evaluation.report import case_label, count, grid
from kvstream.evaluation.sweep import NEAR, Case, cases, parse_settings
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream.tokenization.loading import load_tokenizer
from kvstream_lab import summary
from kvstream_lab.retention import trials as retention
from kvstream_lab.suites import ruler, running

TINY = ("--budget", "512", "--threads", "1")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("pocket")


# Texts


@pytest.mark.parametrize("words", [False, True])
def test_filler_has_the_tokens_asked_for_and_depends_on_the_seed(
    tokenizer: Any, words: bool
) -> None:
    filler = Filler.of([], words=words)
    text = filler.cut(tokenizer, 500, random.Random(1))
    assert len(tokenizer.encode(text)) == pytest.approx(500, abs=2)
    assert text == filler.cut(tokenizer, 500, random.Random(1))
    assert text != filler.cut(tokenizer, 500, random.Random(2))


def test_a_short_text_is_repeated(tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("A short text. It ends soon — très tôt.\n", encoding="utf-8")
    text = Filler.of([str(path)]).cut(tokenizer, 300, random.Random(0))
    assert len(tokenizer.encode(text)) == pytest.approx(300, abs=2)
    assert text.count("short text") > 10


def test_a_text_of_long_tokens_has_as_many(tokenizer: Any) -> None:
    text = Filler("internationalization characteristically " * 300, "").cut(
        tokenizer, 1000, random.Random(1)
    )
    assert len(tokenizer.encode(text)) == pytest.approx(1000, abs=2)


def test_boundaries_are_between_sentences() -> None:
    text = "He met Mr. Brown there. Then it rained.\n\nA new day."
    assert text[boundary(text, 3) :].startswith("Then")
    assert text[boundary(text, 25) :].startswith("A new day")
    assert boundary("no end of a sentence", 4) == 7
    assert boundary(text, 0) == 0


@pytest.mark.parametrize("depth", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_needles_lie_at_their_depth_in_tokens(tokenizer: Any, depth: float) -> None:
    text = Filler.of([]).cut(tokenizer, 2000, random.Random(3))
    planted = insert(text, tokenizer, [(depth, "The needle is here.")])
    before = len(tokenizer.encode(planted[: planted.index("The needle")]))
    assert before == pytest.approx(depth * 2000, abs=60)
    assert planted.replace("The needle is here.", "").split() == text.split()
    near = around(planted, tokenizer, "The needle is here.", 100)
    assert "The needle is here." in near
    assert len(tokenizer.encode(near)) == pytest.approx(100, abs=3)


def test_a_long_needle_is_whole_in_the_text_around_it(tokenizer: Any) -> None:
    (fact,) = needle.make_needles(needle.Plan("kv", (1500,), (0.5,)), random.Random(1), 0)
    text = Filler.of([]).cut(tokenizer, 1500, random.Random(2))
    planted = insert(text, tokenizer, [(0.5, fact.sentence)])
    assert fact.sentence.strip() in around(planted, tokenizer, fact.sentence, 130)


def test_a_budget_in_bytes_limits_the_text_around_a_needle(session: Session) -> None:
    near = cases(
        RunSettings(max_tokens=4), methods=[], budgets=[Budget(bytes=2_000_000)], baselines=[NEAR]
    )
    trials = needle.trials(session, Filler.of([]), needle.Plan("passkey", (900,), (0.5,), 1), near)
    (record,) = measure(trials, Records())
    assert record["read"] == pytest.approx(needle.NEAR_SHARE * record["budget"], abs=3)


def test_needles_of_one_place_keep_their_order(tokenizer: Any) -> None:
    text = "The old mill stood by the river. Nobody had opened its door for years. " * 5
    planted = insert(text, tokenizer, [(0.5, "First."), (0.5, "Second."), (0.2, "Zeroth.")])
    words = [word for word in planted.split() if word in ("Zeroth.", "First.", "Second.")]
    assert words == ["Zeroth.", "First.", "Second."]


def test_several_needles_are_all_there(tokenizer: Any) -> None:
    session = SimpleNamespace(tokenizer=tokenizer)
    plan = needle.Plan("fact", (1000,), (0.5,), needles=3)
    text, needles = needle.haystack(session, Filler.of([]), plan, 1000, 0.5, 0)  # type: ignore[arg-type]
    assert all(n.sentence in text for n in needles)
    assert len({n.question for n in needles}) == 3
    assert len(tokenizer.encode(text)) == pytest.approx(1000, abs=12)


def test_key_values_ask_for_one_of_many(tokenizer: Any) -> None:
    rng = random.Random(0)
    (fact,) = needle.make_needles(needle.Plan("kv", (1000,), (0.5,)), rng, 0)
    lines = dict(line.split(": ") for line in fact.sentence.split("\n") if line)
    assert len(lines) == needle.PAIRS
    assert lines[fact.question.split()[-1].rstrip("?")] == fact.answers[0]


# Cases


def test_every_combination_once() -> None:
    found = cases(
        RunSettings(),
        methods=("infinipot", "streaming"),
        budgets=(Budget(tokens=512), Budget(tokens=1024)),
        settings=("infinipot.pool=1,15",),
    )
    assert len(found) == 2 * 2 + 2  # streaming has no pool, so it runs once per budget
    first, last = found[0].identity(), found[-1].identity()
    assert (first["method"], first["budget"], first["settings"]["pool"]) == ("infinipot", 512, "1")
    assert (last["method"], last["budget"]) == ("streaming", 1024)


def test_a_value_given_twice_is_measured_once() -> None:
    assert COUNTS.convert("1k,512,1024", None, None) == (1024, 512)
    assert SHARES.convert("0.5,.5", None, None) == (0.5,)


def test_memory_may_start_at_several_sizes() -> None:
    found = cases(RunSettings(), methods=("snapkv",), budgets=(None,), start=(None, 16))
    assert [c.run.start for c in found] == [None, 16]
    assert "start" not in found[0].identity()  # so that earlier records stay valid
    assert found[1].identity()["start"] == 16


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("pool=1", "not METHOD.NAME"),
        ("snapkv.pool=1", "not measured here"),
        ("infinipot.pond=1", "no setting 'pond'"),
        ("infinipot.pool=x", "not a whole number"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_loaded(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cases(RunSettings(), methods=("infinipot",), budgets=(None,), settings=(setting,))


def test_a_text_setting_keeps_its_commas() -> None:
    (choice,) = parse_settings(["infinipot.catalyst_text=who, and why?"], ["infinipot"])
    assert choice == {"infinipot.catalyst_text": "who, and why?"}


# Saved records


@pytest.mark.parametrize("cut", [b'{"key": "cut sho', '{"key": "1", "answer": "é'.encode()[:-1]])
def test_records_are_measured_once_also_after_a_stop(tmp_path: Path, cut: bytes) -> None:
    path, calls = tmp_path / "records.jsonl", []

    def trial(number: int) -> Trial:
        return Trial({"n": number}, lambda: {"value": calls.append(number) or number})

    assert [r["value"] for r in measure(map(trial, (1, 2)), Records(path))] == [1, 2]
    with path.open("ab") as file:
        file.write(cut)
    again = Records(path)
    assert [r["value"] for r in measure(map(trial, (1, 2, 3)), again)] == [1, 2, 3]
    assert (calls, again.reuses) == ([1, 2, 3], 2)
    assert len(Records(path).by_key) == 3


def test_a_binary_file_is_refused_for_records(tmp_path: Path) -> None:
    (tmp_path / "figure.png").write_bytes(b"\x89PNG\0")
    with pytest.raises(KvstreamError, match="binary"):
        Records(tmp_path / "figure.png")


def test_a_file_without_records_is_not_altered(tmp_path: Path) -> None:
    path = tmp_path / "novel.txt"
    for text in ("It rained.\n", '{"question": "Who?"}\n'):
        path.write_text(text)
        with pytest.raises(KvstreamError, match="has no records of a benchmark"):
            Records(path)
    for text in ("\n", '{"k', '{"key": "a'):  # what a stopped run may leave
        path.write_text(text)
        assert Records(path).by_key == {}


@pytest.mark.skipif(os.name == "nt", reason="has no such files")
def test_records_can_go_to_a_pipe() -> None:
    """A pipe or a device has no earlier records, and reading it would not end."""
    end, start = os.pipe()
    Records(Path(f"/dev/fd/{start}")).add("k", {"right": True})
    os.close(start)
    with open(end, encoding="utf-8") as file:
        assert json.load(file) == {"key": "k", "right": True}


def test_any_text_is_found_again_in_a_record(tmp_path: Path) -> None:
    """Some Unicode line ends do not end a line of JSON, and half a surrogate pair is not UTF-8."""
    path, said = tmp_path / "records.jsonl", "a\u2028b\x85c \ud83d"
    trial = Trial({"n": 1}, lambda: {"said": said})
    for reused in (0, 1):
        records = Records(path)
        assert [r["said"] for r in measure([trial], records)] == [said]
        assert records.reuses == reused


@pytest.mark.parametrize("missing", ["n", "right", "answer"])
def test_a_record_without_a_key_is_named_with_its_line(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"key": "of another bench"}\n')
    trial = Trial({"n": 1}, lambda: {"right": True, "said": [{"answer": "yes"}]})
    for _ in range(2):
        (record,) = measure([trial], Records(path))
        assert (record["n"], record["right"], record["said"][0]["answer"]) == (1, True, "yes")
    path.write_text(path.read_text().replace(f'"{missing}"', '"other"'))
    with pytest.raises(UsageError, match=rf"records.jsonl, line 2 has no '{missing}'. Remove"):
        [(r["right"], r["said"][0]["answer"]) for r in measure([trial], Records(path))]


def test_other_data_under_the_same_names_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ids such as 1 often occur in other files too."""
    for each in (qa, summary):
        monkeypatch.setattr(each, "model_identity", lambda _: {"model": "m"})
    ran: list[str] = []
    for bench in (qa, summary):
        monkeypatch.setattr(bench, "_run", lambda *_: {"questions": ran.append(text) or []})
    path, ways = tmp_path / "records.jsonl", [Case(RunSettings())]
    nobody: Any = None
    for text in ("first", "second", "first"):
        item = qa.Item("1", "1", text, (qa.Question("Who?", ("Ann",)),), {})
        list(measure(qa.trials(nobody, [item], ways, None, 0), Records(path)))
        story = summary.Story("1", text, "", ("s",))
        list(measure(summary.trials(nobody, [story], ways, 0), Records(path)))
    assert ran == ["first", "first", "second", "second"]


def test_another_seed_is_another_trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for each in (perplexity, summary):
        monkeypatch.setattr(each, "model_identity", lambda _: {"model": "m"})
    (tmp_path / "a.txt").write_text("A text.")
    seeds = [Case(RunSettings(method="random", seed=seed)) for seed in (0, 1)]
    story = summary.Story("1", "A text.", "", ("s",))
    nobody: Any = None
    for trials in (
        summary.trials(nobody, [story], seeds, 0),
        perplexity.trials(nobody, [str(tmp_path / "a.txt")], seeds, None),
    ):
        assert len({trial.key for trial in trials}) == 2


def test_another_precision_is_another_trial(tmp_path: Path) -> None:
    """It holds for every command with --save. Default precision has no field, as in old records."""
    (tmp_path / "a.txt").write_text("A text.")
    ways, filler, texts = [Case(RunSettings())], Filler.of([]), [str(tmp_path / "a.txt")]
    item = qa.Item("1", "1", "A text.", (qa.Question("Who?", ("Ann",)),), {})
    plan = needle.Plan(kind="fact", lengths=(512,), depths=(0.5,), trials=1, needles=1, seed=0)
    seen: dict[str, list[Trial]] = {}
    for asked in ({}, {"dtype": "bfloat16"}, {"kv_dtype": "float32"}, {"quantize": "int8"}):
        session: Any = SimpleNamespace(
            model_name="m", model=SimpleNamespace(model=SimpleNamespace(state_dict=dict)),
            settings=ModelSettings(**asked), tokenizer=None,
        )  # fmt: skip
        for trial in itertools.chain(
            qa.trials(session, [item], ways, None, 0),
            summary.trials(session, [summary.Story("1", "A text.", "", ("s",))], ways, 0),
            perplexity.trials(session, texts, ways, None),
            retention.trials(session, texts, ways, None, None),
            needle.trials(session, filler, plan, ways),
            running.trials(
                session, filler, "ruler", [ruler.TASKS["single"]], ways,
                tokens=512, count=1, seed=0,
            ),
        ):  # fmt: skip
            given = {k: v for k, v in trial.identity.items() if k in PRECISION}
            assert given == asked
            seen.setdefault(trial.identity["bench"], []).append(trial)
    assert len(seen) == 6
    assert all(len({trial.key for trial in trials}) == 4 for trials in seen.values())


def test_another_file_of_what_a_method_learned_is_another_trial(tmp_path: Path) -> None:
    """The file keeps its name, because training overwrites it."""
    path = tmp_path / "scorers.safetensors"
    case = Case(RunSettings(method="foresight", set={"scorers": str(path)}))
    plain = case.identity()
    seen = []
    for content in (b"first", b"again, longer", b"first"):
        path.write_bytes(content)
        seen.append(case.identity())
    assert seen[0] == seen[2] != seen[1]
    assert seen[0].keys() - plain.keys() == {"files"}
    assert "files" not in Case(RunSettings()).identity()  # as in earlier versions


def test_saved_answers_have_the_metrics_of_today(tmp_path: Path) -> None:
    """A metric that was added later averages over all trials, also those of a resumed file."""
    questions = tuple(qa.Question(f"q{i}", ("red",)) for i in range(2))
    items = [qa.Item(q.text, q.text, "", (q,), {}) for q in questions]
    choice = {"question": "?", "answers": ["a"], "answer": "a", "metric": "choice", "choice": 1.0}

    def trial(item: qa.Item) -> Trial:
        score = {k: v for k, v in qa.score(item.questions[0], "red").items() if k != "rouge_l"}
        record = {"document": item.id, "method": "m", "questions": [score, choice]}
        return Trial({"id": item.id}, lambda: record, lambda r: qa.rescore(item, r))

    first = list(measure(map(trial, items[:1]), Records(tmp_path / "r.jsonl")))
    assert "rouge_l" not in qa.rows(first)[0]
    again = list(measure(map(trial, items[:1]), Records(tmp_path / "r.jsonl")))
    assert qa.rows(again)[0]["rouge_l"] == 1.0
    assert again[0]["questions"][1] == choice
    other = qa.Item("q0", "q0", "", (qa.Question("q0", ("blue",)),), {})
    assert qa.rescore(other, first[0]) == first[0]  # other references, so nothing changes


# Needles


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> Any:
    """A function that runs trials with a fake reader that finds needles in the second half only."""
    monkeypatch.setattr(needle, "model_identity", lambda _: {"model": "m"})

    def ask(session: Any, text: str, questions: list[str], run: RunSettings) -> list[Any]:
        if run.method == "full" and run.budget and run.budget.tokens < 2000:
            raise BudgetError("does not fit")
        answers = []
        for question in questions:
            known = next(n for n in asked[text] if n.question == question)
            deep = text.index(known.sentence) > len(text) / 2
            answers.append(known.answers[0] if deep else "not in the text")
        return [
            SimpleNamespace(
                answer=a, read=1000, retained=9, peak_kv_tokens=10, tokens_per_s=5.0,
                budget_tokens=512, citations=(), support=None,
            )
            for a in answers
        ]  # fmt: skip

    asked: dict[str, Any] = {}
    make = needle.haystack

    def remember(*args: Any) -> Any:
        text, needles = make(*args)
        asked[text] = needles
        return text, needles

    monkeypatch.setattr(needle, "ask", ask)
    monkeypatch.setattr(needle, "haystack", remember)
    session = SimpleNamespace(tokenizer=tokenizer, model=SimpleNamespace(trained_length=4096))

    def run(plan: needle.Plan, methods: tuple[str, ...] = ("infinipot",)) -> list[Any]:
        every = cases(RunSettings(max_tokens=8), methods=methods, budgets=(Budget(tokens=512),))
        trials = needle.trials(session, Filler.of([]), plan, every)  # type: ignore[arg-type]
        return list(measure(trials, Records()))

    return run


@pytest.mark.parametrize("kind", ["passkey", "fact", "kv"])
def test_a_row_for_each_length_and_depth(found: Any, kind: str) -> None:
    records = found(needle.Plan(kind, (600, 1200), (0.1, 0.9), trials=3))
    rows = needle.rows(records)
    assert [(r["tokens"], r["depth"], r["right"], r["trials"]) for r in rows] == [
        (600, 0.1, 0, 3), (600, 0.9, 3, 3), (1200, 0.1, 0, 3), (1200, 0.9, 3, 3),
    ]  # fmt: skip
    first = rows[0]
    assert {"bench", "kind", "method", "budget", "low", "high"} <= set(first)
    assert first["low"] == 0
    assert first["high"] == pytest.approx(0.5615, abs=1e-3)
    none, every = (pytest.approx((share, *wilson(3 * share, 3)), abs=1e-4) for share in (0, 1))
    assert [(r["f1"], r["f1_low"], r["f1_high"]) for r in rows[:2]] == [none, every]
    pooled = needle.pooled(records)
    assert [(r["right"], r["trials"], r["f1"]) for r in pooled] == [(3, 6, 0.5), (3, 6, 0.5)]


def test_pooled_rows_follow_from_the_trials_of_a_stopped_run() -> None:
    """One depth has more trials than the other; scores near 1 have an interval that ends at 1."""
    scores = {0.1: [1.0, 1.0, 0.9], 0.9: [0.2]}
    records = [
        {"method": "a", "tokens": 600, "depth": depth, "needles": 1, "right": f1 > 0.5,
         "exact": 0, "found": 1, "retained": 100 * f1, "seconds": f1, "f1": f1}
        for depth, each in scores.items() for f1 in each
    ]  # fmt: skip
    rows = needle.rows(records)
    assert rows[0]["f1_low"] < rows[0]["f1"] < rows[0]["f1_high"] == 1
    assert rows[1]["f1"] == 0.2
    assert not {"f1_low", "f1_high"} & set(rows[1]), "one document has no interval"
    (pooled,) = needle.pooled(records)
    mean = sum(sum(each) for each in scores.values()) / 4
    assert (pooled["f1"], pooled["seconds"]) == pytest.approx((mean, mean), abs=1e-3)
    assert pooled["retained"] == pytest.approx(100 * mean, abs=1)


def test_trials_that_do_not_fit_leave_those_of_their_row() -> None:
    """What was left out knows only the budget that was asked for, if any."""
    base = {"method": "whole", "tokens": 600, "depth": 0.5, "needles": 1}
    done = {"right": True, "exact": 1, "found": 1, "retained": 5, "seconds": 1.0, "budget": 1024}
    for method, asked in (("whole", 512), ("h2o", None)):
        own = {**base, "method": method}
        records = [{**own, **done}, {**own, "budget": asked, "error": "does not fit"}]
        for rows in (needle.rows(records), needle.pooled(records)):
            assert [(row["budget"], row["trials"]) for row in rows] == [(1024, 1)]


def test_what_does_not_fit_is_left_out(found: Any) -> None:
    records = found(needle.Plan("passkey", (600,), (0.9,), trials=2), ("infinipot", "full"))
    rows, pooled = needle.rows(records), needle.pooled(records)
    assert [(r["method"], r["trials"]) for r in rows] == [("infinipot", 2), ("full", 0)]
    assert rows[1]["error"] == "does not fit"
    shares = [(r.get("share"), r.get("low"), r.get("high")) for r in pooled]
    assert shares == [(1.0, pytest.approx(wilson(2, 2)[0]), 1.0), (None, None, None)]
    (bars,) = needle_command._plots(pooled, rows)
    assert [bar[0] for bar in bars.rows] == ["infinipot, 600 tokens"]
    *_, table = needle_command._tables(pooled, rows)
    assert list(table.columns[4].cells) == ["100%", "-"]


def test_cells(found: Any) -> None:
    rows = needle.rows(found(needle.Plan("passkey", (600, 1024), (0.1, 0.9), trials=1)))
    assert grid(case_label(rows[0], rows), rows).row_count == 2


def test_counts_are_written_as_they_are_typed() -> None:
    assert [count(n) for n in (512, 1024, 32768, 1_000_000, 2**20)] == [
        "512", "1k", "32k", "1,000,000", "1M",
    ]  # fmt: skip


# Data sets


def test_where_and_limit_choose_records(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    records = [
        {"doc_id": f"d{i}", "context": "c", "question": "q", "answers": ["a"], "explicit": i > 1}
        for i in range(4)
    ]
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    chosen = qa.choose([str(path)], ["explicit=true"], None, 0)
    assert [i.document for i in chosen] == ["d2", "d3"]
    assert len(qa.choose([str(path)], [], 2, 0)) == 2
    assert qa.choose([str(path)], ["doc_id=d1"], None, 0)[0].document == "d1"
    with pytest.raises(UsageError, match="No record fits"):
        qa.choose([str(path)], ["doc_id=d9"], None, 0)
    path.write_text('{"context": "c"}\n', encoding="utf-8")
    with pytest.raises(SourceError, match=r"line 1 has no 'question'\. A record needs"):
        qa.choose([str(path)], [], None, 0)


def test_short_answers_are_asked_for_where_most_are_short() -> None:
    def item(*answers: str) -> qa.Item:
        return qa.Item("i", "d", "c", (qa.Question("q", answers),), {})

    assert qa.wants_phrases([item("a long answer of seven whole words", "red"), item("blue")])
    assert not qa.wants_phrases([item("an answer of six whole words"), item("red")])
    assert not qa.wants_phrases([item("red"), item("blue"), item()])  # the last has no answer
    assert not qa.wants_phrases([])


def test_answers_refusals_and_unanswerable_questions_in_one_row() -> None:
    def record(document: str, *questions: dict[str, Any]) -> dict[str, Any]:
        base = dict.fromkeys(CASE_KEYS)
        return {**base, "method": "m", "document": document, "questions": list(questions)}

    right = qa.score(qa.Question("q", ("red",)), "red")
    refused = qa.score(qa.Question("q", ("red",)), "not in the text")
    known = qa.score(qa.Question("q", ()), "not in the text")
    wrong = qa.score(qa.Question("q", ()), "blue")
    (row,) = qa.rows([record("a", right, refused), record("b", known, wrong)])
    assert (row["n"], row["em"], row["answered"], row["refused"]) == (4, 0.5, 0.5, 0.5)
    assert (row["unanswerable"], row["recognised"]) == (2, 0.5)


def test_refusals_about_one_document_are_not_independent() -> None:
    refused, told = (qa.score(qa.Question("q", ("red",)), a) for a in ("not in the text", "red"))

    def interval(*documents: tuple[str, list[Any]]) -> list[float] | None:
        base = {**dict.fromkeys(CASE_KEYS), "method": "m"}
        (row,) = qa.rows([{**base, "document": d, "questions": q} for d, q in documents])
        assert row["refused"] == row["answered"] == 0.5
        return row.get("refused_interval")

    assert interval(("a", [refused] * 40), ("b", [told] * 40)) == [0.0, 1.0]
    assert interval(("a", [refused, told])) is None
    each = [(str(i), [told if i % 2 else refused]) for i in range(20)]
    assert interval(*each) == pytest.approx(wilson(10, 20), abs=1e-4)


def test_only_what_reads_the_longer_text_names_its_length() -> None:
    base = {**dict.fromkeys(CASE_KEYS), "document": "d", "questions": [], "within": 900}
    rows = qa.rows([{**base, "method": method} for method in ("streaming", "whole")])
    assert [row.get("within") for row in rows] == [900, None]


def test_attributes_of_several_types_are_rows() -> None:
    base: dict[str, Any] = dict.fromkeys(CASE_KEYS)
    right = qa.score(qa.Question("q", ("red",)), "red")
    base |= {"document": "d", "questions": [right]}
    records = [{**base, "by": by} for by in (["a"], 0, "a", "", None)]
    found = qa.rows(records, by=True)
    assert [(row.get("attribute"), row["n"]) for row in found] == [
        (None, 5), ("0", 1), ("['a']", 1), ("a", 1),
    ]  # fmt: skip


def test_questions_elsewhere(tmp_path: Path) -> None:
    """Ask another document, except choices, unanswerable questions and those that it answers."""
    contexts = {"a": "The door is red.", "b": "The roof is blue.", "c": "A Red house by the sea."}
    lines = [
        {"id": name, "doc_id": name, "context": text, "questions": ["q", "r", "u"],
         "answers": [["red"], [f"only {name}"], []]}
        for name, text in contexts.items()
    ]  # fmt: skip
    lines.append({**lines[0], "id": "a2", "context": "Also of a."})
    choice = {"context": "d", "question": "q", "options": ["x", "y"], "label": 0, "doc_id": "d"}
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in [*lines, choice]), encoding="utf-8")
    items = qa.choose([str(path)], [], None, 0)
    for seed in range(20):
        made = qa.elsewhere(items, seed)
        assert made == qa.elsewhere(items, seed)
        assert [m.id.split(" of ")[0] for m in made] == ["a", "b", "c", "a2"]
        for one in made:
            assert one.context != contexts.get(one.document)
            assert one.document not in ("a",) or one.context not in ("Also of a.", contexts["a"])
            expected = ["r"] if "red" in one.context.lower() else ["q", "r"]
            assert [q.text for q in one.questions] == expected
            assert not any(q.answers for q in one.questions)
    with pytest.raises(UsageError, match="more than one document"):
        qa.elsewhere(items[:1], 0)


# The commands, with the embedded model


def test_needle_command(cli: Any, tmp_path: Path) -> None:
    saved = tmp_path / "trials.jsonl"
    arguments = (
        "bench", "needle", "--lengths", "700", "--depths", "0.5", "--trials", "1", *TINY,
        "--method", "infinipot,streaming", "--whole", "--near", "--save", str(saved), "-n", "6",
    )  # fmt: skip
    first = cli(*arguments, "--json")
    assert "4 of 4" in first.stderr
    rows = rows_of(first)
    assert [r["method"] for r in rows] == ["infinipot", "streaming", "whole", "near"]
    assert all(r["trials"] == 1 and r["tokens"] == 700 for r in rows)
    assert [r["budget"] for r in rows] == [512, 512, 1024, 512]
    again = cli(*arguments)
    assert "4 trials were taken from" in again.stderr
    assert "All depths together" in again.stdout
    assert len(saved.read_text().splitlines()) == 4


def test_results_do_not_depend_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("sys.stderr", Full())
    values = {"progress": "plain", "quiet": False, "save": None}
    trials = [Trial({"n": 1}, dict)]
    assert result_output.measured(trials, 1, Records(), values, str) == ([{"n": 1}], True)


@pytest.mark.parametrize("quiet", [False, True])
def test_trials_of_save_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    path = tmp_path / "saved.jsonl"
    trials = [Trial({"id": number}, lambda: {"right": True}) for number in range(3)]
    list(measure(trials[:2], Records(path)))
    values = {"progress": "none", "quiet": quiet, "save": path}
    found, complete = result_output.measured(trials, 3, Records(path), values, str)
    assert (len(found), complete) == (3, True)
    assert (f"2 trials were taken from {path}." in capsys.readouterr().err) is not quiet


def test_tables_keep_their_labels_on_a_narrow_terminal() -> None:
    row = {"name": "infinipot, alpha 0.5", "value": "13.0 (5-21)"}
    columns = [("", lambda r: r["name"]), *[(f"{i} wide", lambda r: r["value"]) for i in range(7)]]
    console = Console(width=80, file=io.StringIO())
    table = report.table("Title", columns, [row])
    report.fit(table, 80)
    console.print(table)
    shown = console.file.getvalue()
    words = " ".join(shown.split())
    assert "infinipot" in words
    assert words.count("(5-21)") == 7, "whole words, none cut"
    assert "…" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize("shown", ["table", "sentence"])
def test_what_is_too_wide_is_shown_in_full(shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    if shown == "table":
        columns = [(f"{i} wide", lambda r: "13.0 (5-210)") for i in range(24)]
        wide: Any = report.table("Title", [("", lambda r: "infinipot"), *columns], [{}])
    else:
        wide = " ".join(["13.0 (5-210)"] * 24)
    result_output.show([{}], lambda: [wide], as_json=False)
    assert capsys.readouterr().out.count("(5-210)") == 24, "none is cut"


def test_qa_command(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    base = {"context": "The door is red. The roof is blue. " * 30}
    records = [
        {**base, "id": "1", "question": "What color is the door?", "answers": ["red"]},
        {**base, "id": "2", "question": "Who sang?", "answers": []},
        {**base, "id": "3", "question": "The roof is", "options": ["blue", "red"], "label": 0},
    ]
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    (row,) = rows_of(cli("bench", "qa", "--data", str(path), *TINY, "-n", "6", "--json", "-q"))
    assert (row["bench"], row["n"], row["unanswerable"]) == ("qa", 3, 1)
    assert {"em", "f1", "rouge_l", "answered", "recognised", "choice"} <= set(row)
    table = cli(
        "bench",
        "qa",
        "--data",
        str(path),
        *TINY,
        "-n",
        "6",
        "--within",
        "700",
        "--limit",
        "1",
        "-q",
    )
    assert "unanswerable recognized" in table.stdout  # from the record that the seed draws


def test_a_text_around_a_context_is_not_shorter(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(
        json.dumps({"context": "The door is red.", "question": "Q?", "answers": ["red"]})
    )
    ran = cli("bench", "qa", "--data", str(path), *TINY, "--within", "2")
    assert (ran.code, "--within 2 is too short" in ran.stderr) == (2, True), ran.stderr


def test_a_context_that_no_full_cache_holds_is_left_out(cli: Any, tmp_path: Path) -> None:
    """The methods answer for every context, and `whole` only for those that fit."""
    path, saved = tmp_path / "data.jsonl", tmp_path / "saved.jsonl"
    asked = {"question": "What color is the door?", "answers": ["red"]}
    choice = {"question": "The door is", "options": ["red", "blue"], "label": 0}
    contexts = "The door is red. ", "The roof was old, and nobody went there. " * 420
    records = [{"context": each, **question} for each in contexts for question in (asked, choice)]
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    arguments = (
        "bench", "qa", "--data", str(path), *TINY, "-n", "4", "--method", "streaming", "--whole",
        "--save", str(saved), "--json",
    )  # fmt: skip
    for _ in range(2):  # measured, then taken from the file
        done = cli(*arguments)
        rows = {row["method"]: row for row in rows_of(done)}
        assert {method: row["n"] for method, row in rows.items()} == {"streaming": 4, "whole": 2}
        assert "the length that the model was trained for" in done.stderr


def test_a_question_longer_than_a_full_cache_is_told_as_such() -> None:
    told = "A budget of 8 leaves 0 of 64. Use a shorter question; the model was trained for 8."
    assert too_long(BudgetError(told)) == told


def test_a_full_cache_has_room_for_the_answer(session: Session) -> None:
    """A full cache evicts nothing, so an answer that does not fit would end early."""
    for tokens, answer in itertools.product((100, 250, 384), (24, 256, 600)):
        run = room_for(session, RunSettings(method="full", max_tokens=answer), tokens)
        assert run.budget is not None
        assert run.budget.tokens is not None
        assert run.budget.tokens >= tokens + 64 + answer


def test_a_long_option_has_room_beside_memory(session: Session) -> None:
    text = "The roof was old, and nobody went there. " * 100
    run = RunSettings(Budget(tokens=512), "streaming", max_tokens=4)
    for words, fits in ((40, True), (400, False)):
        options = "red", "red " * words
        question = Question("The door is", ("red",), options=options, correct=0)
        if fits:
            assert len(qa._choose(session, text, question, run)["losses"]) == 2
        else:
            with pytest.raises(BudgetError, match="use a larger --budget"):
                qa._choose(session, text, question, run)


def test_a_choice_is_made_from_the_ends_that_a_method_reads(session: Session) -> None:
    question = Question("The door is", ("red",), options=("red", "blue"), correct=0)
    run = RunSettings(Budget(tokens=300), "truncate", max_tokens=4)
    beginning, middle, end = "The door is red. ", "Nobody went there. " * 400, "It was late. " * 100
    losses = [
        qa._choose(session, beginning * 50 + text + end, question, run)["losses"]
        for text in (middle, middle * 2)
    ]
    assert losses[0] == losses[1], "the middle is not read"


def test_perplexity_is_compared_text_by_text() -> None:
    """If a method is 2% worse on every text, the interval is narrow, however much texts differ."""
    common = dict.fromkeys(("model", "settings", "budget", "schedule", "chunk", "keep"))
    losses = {"a": [3.0, 5.0], "b": [4.0, 9.0], "c": [1.0, 2.5]}

    def record(method: str, text: str, more: float) -> dict[str, Any]:
        blocks = [loss + more for loss in losses[text]]
        total = sum(blocks) * perplexity.BLOCK
        tokens = 2 * perplexity.BLOCK
        return {
            **common, "chunk_size": None, "method": method, "text": text, "blocks": blocks,
            "tokens": tokens, "bytes": tokens, "loss": total,
            "by_position": [{"from": 0, "to": tokens, "loss": total}],
        }  # fmt: skip

    worse = math.log(1.02)
    rows = perplexity.rows(
        [record("first", t, 0.0) for t in losses] + [record("other", t, worse) for t in losses]
    )
    assert "change" not in rows[0]
    assert rows[1]["perplexity"] == pytest.approx(1.02 * rows[0]["perplexity"], abs=1e-3)
    for name in ("change", "change_low", "change_high"):
        assert rows[1][name] == pytest.approx(0.02, abs=1e-5)
    uneven = perplexity.rows(
        [record("first", t, 0.0) for t in losses]
        + [record("other", t, worse * n) for n, t in enumerate(losses)]
    )
    assert uneven[1]["change_low"] < uneven[1]["change"] < uneven[1]["change_high"]
    alone = perplexity.rows([record("first", "a", 0.0), record("other", "a", worse)])
    assert "change" in alone[1]
    assert "change_low" not in alone[1], "one text says nothing of others"
    alike = [
        {
            **record(method, text, more),
            "text": "chapter.txt",
            "blocks": blocks,
            "tokens": len(blocks) * perplexity.BLOCK,
        }
        for text, blocks in (("a", [3.0, 5.0]), ("b", [4.0]))
        for method, more in (("first", 0.0), ("other", worse))
    ]
    assert perplexity.rows(alike)[1]["change"] == 0  # two folders have a text of this name


def test_a_short_last_block_counts_for_its_tokens() -> None:
    """The change follows the perplexities, even if the end of a text says the opposite."""

    def record(method: str, blocks: list[float], tail: int) -> dict[str, Any]:
        tokens = (len(blocks) - 1) * perplexity.BLOCK + tail
        loss = sum(blocks[:-1]) * perplexity.BLOCK + blocks[-1] * tail
        return {
            "method": method, "text": "a", "blocks": blocks, "tokens": tokens, "bytes": tokens,
            "loss": loss, "by_position": [{"from": 0, "to": tokens, "loss": loss}],
        }  # fmt: skip

    first, other = perplexity.rows(
        [record("first", [3.0, 3.2, 2.0], 10), record("other", [2.9, 3.1, 4.0], 10)]
    )
    assert other["change"] == pytest.approx(other["perplexity"] / first["perplexity"] - 1, abs=1e-4)
    assert other["change"] < 0
    for row in (first, other):
        assert row["low"] < row["perplexity"] < row["high"]


def test_one_block_has_no_interval() -> None:
    record = {
        "method": "a", "text": "a", "blocks": [3.0], "tokens": 10, "bytes": 10, "loss": 30.0,
        "by_position": [{"from": 0, "to": 10, "loss": 30.0}], "budget": 300,
    }  # fmt: skip
    (row,) = perplexity.rows([record])
    assert (row["low"], row["high"]) == (None, None)
    (table,) = perplexity_command._tables([row])
    interval = next(c for c in table.columns if c.header == "95% interval")
    assert list(interval.cells) == ["-"]


def test_a_weight_counts_like_as_many_values() -> None:
    weighed = difference_interval([1.0, 4.0, 2.0], ["a", "b", "c"], [3, 1, 2])
    several = difference_interval([1.0, 1.0, 1.0, 4.0, 2.0, 2.0], ["a", "a", "a", "b", "c", "c"])
    assert weighed == pytest.approx(several)


def test_records_of_texts_with_one_name_and_size_stay_apart(
    session: Session, tmp_path: Path
) -> None:
    texts = []
    for folder, words in (("one", "The mill is old. "), ("two", "A ship is late. ")):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "chapter.txt"
        path.write_text((words * 40)[:500], encoding="utf-8")
        texts.append(str(path))
    assert len({Path(t).stat().st_size for t in texts}) == 1
    base = RunSettings(Budget(tokens=320), "streaming")
    ways = cases(base, methods=["streaming"], budgets=[base.budget])

    def found(paths: list[str]) -> list[float]:
        records = Records(tmp_path / "saved.jsonl")
        return [r["loss"] for r in measure(perplexity.trials(session, paths, ways, 64), records)]

    fresh = found(texts)
    assert fresh[0] != fresh[1]
    assert found(texts[::-1]) == fresh[::-1]
    assert len((tmp_path / "saved.jsonl").read_text("utf-8").splitlines()) == 2


def test_budgets_in_bytes_are_rows_of_their_own(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("The mill is old. " * 60, encoding="utf-8")
    budgets = [Budget(bytes=1 << 20), Budget(bytes=2 << 20)]
    ways = cases(RunSettings(method="streaming"), methods=["streaming"], budgets=budgets)
    records = list(measure(perplexity.trials(session, [str(path)], ways, None), Records()))
    rows = perplexity.rows(records)
    assert [r["texts"] for r in rows] == [1, 1]
    assert [report.case_label(r, rows) for r in rows] == [
        "streaming, 1.0 MiB", "streaming, 2.0 MiB",
    ]  # fmt: skip


def test_perplexity_command(cli: Any, tmp_path: Path, tokenizer: Any) -> None:
    path = tmp_path / "text.txt"
    path.write_text(Filler.of([]).cut(tokenizer, 1500, random.Random(0)), encoding="utf-8")
    arguments = ("bench", "perplexity", str(path), *TINY, "--method", "streaming")
    (row,) = rows_of(cli(*arguments, "--json", "-q"))
    assert row["tokens"] == pytest.approx(1500, abs=2)
    assert [p["from"] for p in row["by_position"]] == [0, 1024]
    assert row["low"] < row["perplexity"] < row["high"]
    assert "bits/byte" in cli(*arguments, "--limit", "600", "-q").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("needle", "--kind", "pin"), "'pin' is not one of"),
        (("needle", "--depths", "2"), "2.0 is not in the range"),
        (("needle", "--method", "nonsense"), "Unknown method 'nonsense'"),
        (("needle", "--words", "--text", "x"), "give one of them"),
        (("needle", "--heldout"), "add --text, or leave --heldout out"),
        (("qa", "--data", "x", "--text", "y"), "add --within, or leave --text out"),
        (("qa", "--data", "-"), "name files, not -"),
        (("nedle",), "No such command 'nedle'. Did you mean needle? There are needle, qa"),
    ],
)
def test_usage_errors(cli: Any, arguments: tuple[str, ...], message: str) -> None:
    done = cli("bench", *arguments)
    assert done.code == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("qa", "--data", "x", "--save", "x"),
        ("perplexity", "x", "--save", "x"),
        ("needle", "y", "x", "--save", "x"),
        ("needle", "--text", "x", "--report", "x"),
        ("needle", "--save", "x", "--report", "x"),
    ],
)
def test_results_do_not_go_into_what_is_read(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("x", "y"):
        Path(name).write_text("A text of the user's.\n")
    done = cli("bench", *arguments)
    assert done.code == 2, done.stderr
    assert "are the same file" in done.stderr
    assert Path("x").read_text() == "A text of the user's.\n"


def test_missing_data_is_an_unreadable_source(cli: Any) -> None:
    done = cli("bench", "qa", "--data", "nowhere.jsonl")
    assert done.code == 3
    assert "nowhere.jsonl does not exist" in done.stderr


def test_the_view_names_the_row() -> None:
    assert Case(RunSettings(method="full"), "whole").name == "whole"
    assert Case(RunSettings(method="full")).name == "full"


def test_a_full_kv_cache_has_no_budget() -> None:
    budgets = [Budget(tokens=n) for n in (512, 1024)]
    ways = cases(RunSettings(), methods=["infinipot"], budgets=budgets, baselines=["whole", "near"])
    rows = [case.identity() for case in ways]
    assert [report.case_label(r, rows) for r in rows] == [
        "infinipot, 512", "infinipot, 1k", "whole", "near, 512", "near, 1k",
    ]  # fmt: skip
    assert [report.budget(r) for r in rows] == ["512", "1k", None, "512", "1k"]
    second = [r for r in rows if r["budget"] == 1024 or r["method"] == "whole"]
    assert [report.case_label(r, second) for r in second] == ["infinipot", "whole", "near"]


def test_a_case_with_the_settings_of_a_paper_says_so() -> None:
    from kvstream.evaluation.report import case_label

    base = RunSettings(Budget(tokens=512))
    methods = ["infinipot", "bumblebee", "snapkv"]
    budgets = [Budget(tokens=512)]
    chosen = ["bumblebee.algorithm=fast"]
    papers = cases(base, methods=methods, budgets=budgets, settings=chosen, preset=True)
    rows = [case.identity() for case in (*papers, *cases(base, methods=methods, budgets=budgets))]
    assert [case_label(row, rows) for row in rows] == [
        "infinipot, paper", "bumblebee, paper, algorithm fast", "snapkv, paper",
        "infinipot, schedule linear, chunk decremental",
        "bumblebee, schedule linear, chunk decremental",
        "snapkv, schedule linear, chunk decremental",
    ]  # fmt: skip
