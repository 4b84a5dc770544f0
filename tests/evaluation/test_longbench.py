"""LongBench: its scores on examples worked out by hand, and its prompts around the context."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from kvstream.errors import SourceError, UsageError
from kvstream.evaluation import longbench, qa
from kvstream.evaluation.datasets import item
from kvstream.evaluation.longbench import Prompts, score
from kvstream.evaluation.sweep import Case
from kvstream.session.session import Session
from kvstream.settings import RunSettings
from kvstream.store import pocket

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
    return {"input": "谁写的？", "context": "c", "answers": ["曹雪芹"], "dataset": task, **more}


def test_a_right_chinese_answer_is_right() -> None:
    (question,) = item(record("multifieldqa_zh"), "f:1").questions
    scored = qa.score(question, "曹雪芹。")
    assert scored["longbench"] == 1.0
    assert "f1" not in scored
    assert "em" not in scored


def test_the_other_half_of_longbench_is_scored_as_its_task() -> None:
    (question,) = item(record("trec_e", all_classes=CLASSES, answers=["Human"]), "f:1").questions
    assert qa.score(question, "Human\nPlace")["longbench"] == 1.0
    (unknown,) = item(record("mine", answers=["a cat"]), "f:1").questions
    assert qa.score(unknown, "cat")["f1"] == 1.0


def test_an_answer_without_its_paragraph_is_found_before_a_model_is_loaded() -> None:
    assert item(record("passage_retrieval_zh", answers=["段落3"]), "f:1").questions
    with pytest.raises(ValueError, match="'3' names no paragraph"):
        item(record("passage_retrieval_en_e", answers=["3"]), "f:1")


@pytest.mark.parametrize(
    ("task", "module"), [("dureader", "jieba"), ("gov_report", "rouge"), ("mine", "rouge_score")]
)
def test_what_is_missing_is_told_before_a_model_is_loaded(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, module: str
) -> None:
    from kvstream.evaluation import metrics

    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(record(task)), encoding="utf-8")
    for made in (longbench._jieba, longbench._rouge, metrics._scorer):
        made.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(Session, "open", lambda settings: pytest.fail("a model was loaded"))
    done = cli("bench", "qa", "--data", str(path))
    assert done.code == 2
    assert "pip install 'kvstream[bench]'" in done.stderr


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "dataset2prompt.json"
    templates = {
        "hotpotqa": "Some passages.\n{context}\n\nBe brief.\n\nQuestion: {input}\nAnswer: ",
        "lcc": "Go on. \n{context}Next line of code:\n",
    }
    path.write_text(json.dumps(templates), encoding="utf-8")
    return path


def test_a_prompt_is_what_the_template_says(prompts: Path) -> None:
    read = Prompts.read(prompts)
    layout, behind = read.of("hotpotqa", {"input": "Who {context} ran?", "context": "x"})
    assert layout.before == "Some passages.\n"
    assert behind == "\n\nBe brief.\n\nQuestion: Who {context} ran?\nAnswer: "
    assert (layout.chat, read.of("lcc", {})[0].chat) == (True, False)
    with pytest.raises(UsageError, match="no template for 'trec'; it has hotpotqa, lcc"):
        read.of("trec", {})


@pytest.mark.parametrize("text", ["[]", "{", '{"lcc": "no place for it"}', '{"lcc": 3}'])
def test_a_file_that_is_none_of_prompts_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(SourceError, match="not a file of LongBench's prompts"):
        Prompts.read(path)


@pytest.mark.parametrize("task", ["hotpotqa", "lcc"])
def test_the_model_reads_the_template_and_nothing_else(
    session: Session, prompts: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads exactly the template around the context, in the chat template or without it."""
    from kvstream.engine.reader import Reader

    context = "def f(x):\n    y = x + 1\n"
    entry = item(record(task, input="Who?", context=context, answers=["y"]), "f:1")
    told: list[int] = []
    answer = Reader.answer

    def listening(self: Reader, question: list[int], *rest: Any, **more: Any) -> Any:
        told.extend(self.head)
        told.extend(session.tokenizer.encode(context))
        told.extend(question)
        return answer(self, question, *rest, **more)

    monkeypatch.setattr(Reader, "answer", listening)
    case = Case(RunSettings(max_tokens=5))
    (trial,) = qa.trials(session, [entry], [case], None, 0, Prompts.read(prompts))
    assert trial.identity["max_tokens"] == longbench.TASKS[task].max_tokens
    assert trial.identity["prompts"]
    result = trial.run()
    assert result["questions"][0]["task"] == task
    template = json.loads(prompts.read_text())[task]
    whole = template.format(context=context, input="Who?")
    tokenizer = AutoTokenizer.from_pretrained(pocket.path())
    said = tokenizer.decode(told)
    if task == "lcc":
        assert said == pocket.BOS + whole
    else:
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": whole}], tokenize=False, add_generation_prompt=True
        )
        assert said == chat


def test_the_command_reports_longbench_by_task(
    cli: Callable[..., Any], tmp_path: Path, prompts: Path
) -> None:
    path = tmp_path / "data.jsonl"
    lines = [
        record("hotpotqa", context="The door is red. " * 20, input="Which?", answers=["red"]),
        record("lcc", context="x = 1\n" * 20, input="", answers=["x = 1"]),
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    arguments = ("bench", "qa", "--data", str(path), "--budget", "512", "--threads", "1", "-q")
    done = cli(*arguments, "--prompts", str(prompts), "--by-attribute", "--json")
    assert done.code == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row.get("attribute") for row in rows} >= {"hotpotqa", "lcc"}
    assert all("longbench" in row for row in rows)
    path.write_text(json.dumps(record("trec", all_classes=CLASSES)), encoding="utf-8")
    refused = cli(*arguments, "--prompts", str(prompts))
    assert refused.code == 2
    assert "no template for 'trec'" in refused.stderr
