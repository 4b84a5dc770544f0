"""LongBench: its scores on examples worked out by hand, and its prompts around the context."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rows import rows_of
from transformers import AutoTokenizer

from kvstream.errors import SourceError
from kvstream.evaluation.sweep import Case
from kvstream.run.prompt import Layout
from kvstream.session.session import Session
from kvstream.settings import RunSettings
from kvstream.store import pocket
from kvstream_lab.suites import longbench
from kvstream_lab.suites.longbench import asked, score

CLASSES = ["Num", "Number", "Number of something", "Human", "Place"]


@pytest.mark.parametrize(
    ("task", "answer", "references", "value"),
    [
        # Without articles and punctuation, two of three words and two of two: 2 * 2 / (3 + 2).
        ("hotpotqa", "The cat, it sat", ["the sat cat."], 2 * 2 / (3 + 2)),
        ("hotpotqa", "no", ["yes", "No!"], 1.0),
        ("hotpotqa", "The", ["a"], 0.0),  # no words are left, so none are shared
        # jieba: 作者 | 是 | 曹雪芹. One of three words matches the only one of the reference.
        ("multifieldqa_zh", "曹雪芹。", ["曹雪芹"], 1.0),
        ("multifieldqa_zh", "作者是曹雪芹", ["曹雪芹"], 2 * 1 / (3 + 1)),
        ("multifieldqa_zh", "鲁迅", ["曹雪芹"], 0.0),
        # There is no stemmer, so one word of two is shared.
        ("gov_report", "running fast", ["runs fast"], 0.5),
        # "a c" of the first sentence and "e" of the second: 3 of 5 words and 3 of 3.
        ("gov_report", "a c e", ["a b c. d e"], 2 * 0.6 * 1 / 1.6),
        # Each word counts once: both have {the, cat}.
        ("qmsum", "the the cat", ["the cat cat"], 1.0),
        ("qmsum", "...", ["the cat"], 0.0),
        # 他 | 去 | 北京大学 | 读书 against 他 | 去 | 清华大学 | 读书: three of four in a row.
        ("dureader", "他去北京大学读书", ["他去清华大学读书"], 0.75),
        ("vcsum", "他去北京大学读书", ["他去北京大学读书"], 1.0),
        ("trec", "\nHuman\nPlace", ["Human"], 1.0),
        ("trec", "Human or Place", ["Human"], 0.5),
        ("trec", "Place", ["Human"], 0.0),
        # The script removes "Num" and so skips "Number", which counts beside the right class.
        ("trec", "Number of something", ["Number of something"], 0.5),
        ("lsht", "Place\n", ["Human", "Place"], 1.0),
        ("triviaqa", "\nParis\nQuestion: what", ["Paris"], 1.0),
        ("samsum", "Ann is late.\nDialogue: x", ["Ann is late"], 1.0),
        ("passage_retrieval_en", "Paragraph 3, not 4 or 13", ["Paragraph 3"], 1 / 3),
        ("passage_retrieval_zh", "是段落3，不是段落4", ["段落3"], 0.5),
        ("passage_retrieval_en", "none", ["Paragraph 3"], 0.0),
        ("passage_count", "There are 12 of 12 or 13", ["12"], 2 / 3),
        # The first line without a comment mark counts; 2 * 7 / 16 = 0.875, rounded to 88%.
        ("lcc", "\n```python\n# one\nreturn x\nreturn y", ["return y"], 0.88),
        # Leading spaces count: 2 * 8 / (12 + 8).
        ("lcc", "    return y", ["    return y"], 1.0),
        ("repobench-p", "return y", ["    return y"], 0.8),
    ],
)
def test_scores_are_those_of_the_published_script(
    task: str, answer: str, references: list[str], value: float
) -> None:
    assert score(task, answer, references, CLASSES) == pytest.approx(value, abs=1e-7)


def test_every_task_has_its_metric_and_its_length() -> None:
    assert len(longbench.TASKS) == 21
    lengths = {name: task.max_tokens for name, task in longbench.TASKS.items()}
    assert lengths["gov_report"] == 512
    assert lengths["narrativeqa"] == 128
    assert lengths["trec"] == 64
    assert lengths["passage_count"] == 32
    first = {name for name, task in longbench.TASKS.items() if task.first_line}
    assert first == {"trec", "triviaqa", "samsum", "lsht"}
    plain = {name for name, task in longbench.TASKS.items() if not task.chat}
    assert plain == {*first, "lcc", "repobench-p"}


def record(task: str, **more: Any) -> dict[str, Any]:
    return {"input": "Who?", "context": "c", "answers": ["Ada"], "dataset": task, **more}


TEMPLATES = {
    "hotpotqa": "Some passages.\n{context}\n\nBe brief.\n\nQuestion: {input}\nAnswer: ",
    "lcc": "Go on. \n{context}Next line of code:\n",
    "trec": "{context}\n{input}",
    "gov_report": "{context}\nSummary:",
    "dureader": "{context}\n{input}",
    "passage_retrieval_zh": "{context}\n{input}",
}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "dataset2prompt.json"
    path.write_text(json.dumps(TEMPLATES), encoding="utf-8")
    return path


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes records to a file and returns its path."""

    def write(*records: dict[str, Any]) -> str:
        path = tmp_path / "data.jsonl"
        path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
        return str(path)

    return write


def test_the_other_half_of_longbench_is_scored_as_its_task() -> None:
    entry = asked(record("trec_e", all_classes=CLASSES), "f:1", TEMPLATES)
    assert (entry.task, entry.classes) == ("trec", tuple(CLASSES))


@pytest.mark.parametrize(
    ("task", "answers", "problem"),
    [
        ("passage_retrieval_zh", ["3"], "line 1: '3' names no paragraph"),
        ("mine", ["3"], "line 1: there is no template for 'mine'; there is hotpotqa, lcc"),
        ("qmsum", ["3"], "line 1: there is no template for 'qmsum'"),
    ],
)
def test_what_cannot_be_asked_or_scored_is_found_in_its_line(
    written: Callable[..., str], prompts: Path, task: str, answers: list[str], problem: str
) -> None:
    with pytest.raises(SourceError, match=problem):
        longbench.load([written(record(task, answers=answers))], prompts)


@pytest.mark.parametrize(("task", "module"), [("dureader", "jieba"), ("gov_report", "rouge")])
def test_what_is_missing_is_told_before_a_model_is_loaded(
    lab: Callable[..., Any], written: Callable[..., str], prompts: Path,
    monkeypatch: pytest.MonkeyPatch, task: str, module: str,
) -> None:  # fmt: skip
    for made in (longbench._jieba, longbench._rouge):
        made.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(Session, "open", lambda settings: pytest.fail("a model was loaded"))
    done = lab("longbench", "--data", written(record(task)), "--prompts", str(prompts))
    assert done.code == 2
    assert f"pip install {module}" in done.stderr


def test_a_prompt_is_what_the_template_says() -> None:
    entry = asked(record("hotpotqa", input="Who {context} ran?"), "f:1", TEMPLATES)
    assert entry.layout == Layout("Some passages.\n", chat=True)
    assert entry.question == "\n\nBe brief.\n\nQuestion: Who {context} ran?\nAnswer: "
    assert not asked(record("lcc"), "f:1", TEMPLATES).layout.chat


@pytest.mark.parametrize("text", ["[]", "{", '{"lcc": "no place for it"}', '{"lcc": 3}'])
def test_a_file_that_is_none_of_prompts_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(SourceError, match="not a file of LongBench's prompts"):
        longbench.read_prompts(path)


@pytest.mark.parametrize("task", ["hotpotqa", "lcc"])
def test_the_model_reads_the_template_and_nothing_else(
    session: Session, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads exactly the template around the context, in the chat template or without it."""
    from kvstream.engine.reader import Reader

    context = "def f(x):\n    y = x + 1\n"
    entry = asked(record(task, context=context), "f:1", TEMPLATES)
    told: list[int] = []
    answer = Reader.answer

    def listening(self: Reader, question: list[int], *rest: Any, **more: Any) -> Any:
        told.extend(self.head)
        told.extend(session.tokenizer.encode(context))
        told.extend(question)
        return answer(self, question, *rest, **more)

    monkeypatch.setattr(Reader, "answer", listening)
    (trial,) = longbench.trials(session, [entry], [Case(RunSettings(max_tokens=5))])
    assert trial.identity["max_tokens"] == longbench.TASKS[task].max_tokens
    assert 0 <= trial.run()["score"] <= 1
    whole = TEMPLATES[task].format(context=context, input="Who?")
    tokenizer = AutoTokenizer.from_pretrained(pocket.path())
    said = tokenizer.decode(told)
    if task == "lcc":
        assert said == pocket.BOS + whole
    else:
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": whole}], tokenize=False, add_generation_prompt=True
        )
        assert said == chat


def test_the_command_reports_a_score_for_each_task(
    lab: Callable[..., Any], written: Callable[..., str], prompts: Path
) -> None:
    data = written(
        record("hotpotqa", context="The door is red. " * 20, input="Which?", answers=["red"]),
        record("lcc", context="x = 1\n" * 20, input="", answers=["x = 1"]),
    )
    arguments = ("longbench", "--data", data, "--prompts", str(prompts), "--whole")
    tiny = ("--budget", "512", "--threads", "1", "-q")
    rows = rows_of(lab(*arguments, *tiny, "--json"))
    expected = {*product(("infinipot", "whole"), ("hotpotqa", "lcc"))}
    assert {(row["method"], row["task"]) for row in rows} == expected
    assert all(0 <= row["score"] <= 1 for row in rows)
    assert "LongBench's scores" in lab(*arguments, *tiny).stdout
