"""LongBench: the prompt, the length of an answer and the score of each task.

Bai et al., "LongBench: A Bilingual, Multitask Benchmark for Long Context Understanding". This is a
new implementation of what the published ``eval.py``, ``metrics.py`` and ``pred.py`` compute
(version 1, repository THUDM/LongBench, MIT license). The prompts are read from the user's own copy
of its ``dataset2prompt.json``.
"""

from __future__ import annotations

import difflib
import importlib
import json
import logging
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from kvstream.errors import BudgetError, SourceError, UsageError
from kvstream.evaluation.confidence import mean_interval
from kvstream.evaluation.datasets import Item, item, items
from kvstream.evaluation.harness import ask, model_identity, room_for, too_long
from kvstream.evaluation.metrics import normalize, shared_f1
from kvstream.evaluation.records import CASE_KEYS, Record, Trial, digest, grouped, left_out
from kvstream.evaluation.sweep import WHOLE, Case
from kvstream.run.prompt import Layout
from kvstream.session.session import Session

NEEDS = "A record needs `input`, `context`, `answers` and `dataset`, and `all_classes` for labels."
_DIGITS = re.compile(r"\d+")
_PARAGRAPH = re.compile(r"(?:Paragraph |段落)(\d+)")
_CODE_MARKS = ("`", "#", "//")
_SLOT = re.compile(r"{(\w+)}")
# Characters that are not part of a Chinese word, as ranges of Unicode: dashes, quotes, CJK and
# full-width punctuation. The published list has gaps (《 and ． count as words), which are kept.
_ZH_RANGES = (
    (0x2013, 0x2014), (0x2018, 0x2019), (0x201B, 0x201F), (0x2026, 0x2027), (0x3001, 0x3003),
    (0x300B, 0x3011), (0x3014, 0x301F), (0x3030, 0x3030), (0x303E, 0x303F), (0xFE4F, 0xFE4F),
    (0xFF01, 0xFF0D), (0xFF0F, 0xFF0F), (0xFF1A, 0xFF20), (0xFF3B, 0xFF40), (0xFF5B, 0xFF64),
)  # fmt: skip
_ZH_SIGNS = frozenset(string.punctuation).union(
    chr(c) for first, last in _ZH_RANGES for c in range(first, last + 1)
)

Metric = Callable[[str, str, Sequence[str]], float]
"""``(answer, reference, all classes)`` -> score from 0 to 1."""


def qa_f1(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """Return F1 over English words, normalized as in SQuAD; 0 if they share none."""
    return shared_f1(normalize(answer).split(), normalize(reference).split())


def qa_f1_zh(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """Return F1 over Chinese words, split by jieba, without punctuation and spaces."""
    return shared_f1(_zh_words(answer), _zh_words(reference))


def rouge(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """Return ROUGE-L's F-measure from the package ``rouge``: no stemmer, sentences end at periods.

    It is 0 if either text has no words, or if the package exceeds the recursion limit (a sentence
    of a thousand words), as in the published script.
    """
    try:
        return float(_rouge().get_scores(answer, reference)[0]["rouge-l"]["f"])
    except (ValueError, RecursionError):
        return 0.0


def rouge_zh(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """Return `rouge` over jieba's words."""
    return rouge(" ".join(_jieba().lcut(answer)), " ".join(_jieba().lcut(reference)))


def classification(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """Return 1 / the number of classes that the answer names, or 0 if the right one is not named.

    A class that is part of the right one's name does not count as named. The published script
    removes such classes while it iterates over the list, and so skips the class after each. This
    function does the same.
    """
    named = [name for name in classes if name in answer]
    at = 0
    while at < len(named):
        if named[at] in reference and named[at] != reference:
            del named[at]
        at += 1
    return 1 / len(named) if reference in named else 0.0


def retrieval(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """Return the share of numbers that are the paragraph's: ``Paragraph 3`` or 段落3."""
    found = _PARAGRAPH.search(reference)
    if found is None:
        raise ValueError(f"{reference!r} names no paragraph")
    return _share_of_numbers(answer, found[1])


def count(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """Return the share of the numbers in the answer that are the right one."""
    return _share_of_numbers(answer, reference)


def code_similarity(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """Return the similarity of the answer's first line of code to the reference, in whole percents.

    Skip lines that look like a comment or a fence. The similarity is difflib's ratio, which
    fuzzywuzzy uses if no other library is installed.
    """
    lines = answer.lstrip("\n").split("\n")
    first = next((x for x in lines if not any(mark in x for mark in _CODE_MARKS)), "")
    return round(100 * difflib.SequenceMatcher(None, first, reference).ratio()) / 100


@dataclass(frozen=True)
class Task:
    """How the answers of a task are generated and scored."""

    metric: Metric
    max_tokens: int
    """Maximum tokens of an answer with LongBench's prompts."""
    first_line: bool = False
    """Whether only the first line of the answer counts."""
    chat: bool = True
    """Whether the prompt goes into the model's chat template. Few-shot and code prompts do not."""


TASKS: Mapping[str, Task] = {
    "narrativeqa": Task(qa_f1, 128),
    "qasper": Task(qa_f1, 128),
    "multifieldqa_en": Task(qa_f1, 64),
    "multifieldqa_zh": Task(qa_f1_zh, 64),
    "hotpotqa": Task(qa_f1, 32),
    "2wikimqa": Task(qa_f1, 32),
    "musique": Task(qa_f1, 32),
    "dureader": Task(rouge_zh, 128),
    "gov_report": Task(rouge, 512),
    "qmsum": Task(rouge, 512),
    "multi_news": Task(rouge, 512),
    "vcsum": Task(rouge_zh, 512),
    "trec": Task(classification, 64, first_line=True, chat=False),
    "triviaqa": Task(qa_f1, 32, first_line=True, chat=False),
    "samsum": Task(rouge, 128, first_line=True, chat=False),
    "lsht": Task(classification, 64, first_line=True, chat=False),
    "passage_count": Task(count, 32),
    "passage_retrieval_en": Task(retrieval, 32),
    "passage_retrieval_zh": Task(retrieval, 32),
    "lcc": Task(code_similarity, 64, chat=False),
    "repobench-p": Task(code_similarity, 64, chat=False),
}


def score(task: str, answer: str, references: Iterable[str], classes: Sequence[str] = ()) -> float:
    """Return the best score over the references, from 0 to 1. `answer` is the full output."""
    how = TASKS[task]
    if how.first_line:
        answer = answer.lstrip("\n").split("\n")[0]
    return max((how.metric(answer, reference, classes) for reference in references), default=0.0)


def require(tasks: Iterable[str]) -> None:
    """Raise UsageError, before anything is loaded, if a library for the scores is missing."""
    metrics = {TASKS[task].metric for task in tasks}
    if metrics & {qa_f1_zh, rouge_zh}:
        _jieba()
    if metrics & {rouge, rouge_zh}:
        _rouge()


@dataclass(frozen=True)
class Asked:
    """A record of a task, as its prompt asks it."""

    item: Item
    task: str
    layout: Layout
    """The words before the context."""
    question: str
    """The words after the context."""
    classes: tuple[str, ...] = ()
    """All labels of a classification task."""


def load(paths: Sequence[str], prompts: Path) -> list[Asked]:
    """Return the records of files with the prompts of a file. Raise SourceError."""
    templates = read_prompts(prompts)
    return [
        each for path in paths for each in items(path, partial(asked, templates=templates), NEEDS)
    ]


def read_prompts(path: Path) -> dict[str, str]:
    """Return the template of each task. Raise SourceError for a file without templates."""
    try:
        templates = json.loads(path.read_text("utf-8"))
        if not isinstance(templates, dict):
            raise ValueError("it is not an object of templates by task")
        for name, template in templates.items():
            if not isinstance(template, str) or template.count("{context}") != 1:
                raise ValueError(f"the template of {name} does not have {{context}} once")
        return templates
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{path} is not a file of LongBench's prompts: {error}. Name the dataset2prompt.json "
            "of its repository."
        ) from error


def asked(record: Record, name: str, templates: Mapping[str, str]) -> Asked:
    """Return a record as its task asks it. LongBench-E's tasks have LongBench's names."""
    task = str(record["dataset"]).removesuffix("_e")
    if task not in TASKS or task not in templates:
        raise ValueError(f"there is no template for {task!r}; there is {', '.join(templates)}")
    parsed_item = item(record, name)
    if TASKS[task].metric is retrieval:
        for reference in parsed_item.questions[0].answers:
            retrieval("", reference)
    before, behind = (
        _SLOT.sub(lambda slot: str(record.get(slot[1], slot[0])), text)
        for text in templates[task].split("{context}")
    )
    classes = tuple(map(str, record.get("all_classes") or ()))
    return Asked(parsed_item, task, Layout(before, TASKS[task].chat), behind, classes)


def trials(session: Session, records: Sequence[Asked], cases: Sequence[Case]) -> Iterator[Trial]:
    """Yield one trial for each record and case; the cases take turns."""
    facts = model_identity(session)
    for record in records:
        for case in cases:
            run = replace(case.run, max_tokens=TASKS[record.task].max_tokens)
            each = replace(case, run=run)
            identity: Record = {
                "bench": "longbench", **facts, **each.identity(), "task": record.task,
                "id": record.item.id, "document": record.item.document, **case.seed(),
            }  # fmt: skip
            yield Trial(identity, partial(_run, session, each, record), content=digest(record))


def _run(session: Session, case: Case, record: Asked) -> Record:
    text, run = record.item.context, case.run
    if case.view == WHOLE:
        tokens = sum(len(session.tokenizer.encode(part)) for part in (text, record.question))
        run = room_for(session, run, tokens)
    try:
        (result,) = ask(session, text, [record.question], run, layout=record.layout)
    except BudgetError as error:
        if case.view != WHOLE:
            raise
        raise BudgetError(too_long(error)) from error
    answers = record.item.questions[0].answers
    value = score(record.task, result.answer, answers, record.classes)
    return {
        "answers": list(answers),
        "answer": result.answer,
        "score": round(value, 4),
        "read": result.read,
    }


def rows(records: Sequence[Record]) -> list[Record]:
    """Return a row for each case and task: the mean score with its interval."""
    out = []
    for group in grouped(records, (*CASE_KEYS, "task")):
        done = [record for record in group if "error" not in record]
        row: Record = {
            "bench": "longbench", **{key: group[0].get(key) for key in (*CASE_KEYS, "task")},
            "n": len(done), **left_out(group),
        }  # fmt: skip
        if done:
            documents = [r["document"] for r in done]
            mean, low, high = mean_interval([r["score"] for r in done], documents)
            row["score"] = round(mean, 4)
            if low < high:  # one document does not tell how documents vary
                row["interval"] = [round(low, 4), round(high, 4)]
        out.append(row)
    return out


def so_far(records: Sequence[Record]) -> str:
    """Return a line about the newest record, to show during the run."""
    last = records[-1]
    same = [r["score"] for r in records if all(r[k] == last[k] for k in ("task", "method"))]
    return f"{last['task']}, {last['method']}, {len(same)} records: {sum(same) / len(same):.2f}"


def _share_of_numbers(answer: str, wanted: str) -> float:
    said = _DIGITS.findall(answer)
    return said.count(wanted) / len(said) if said else 0.0


def _zh_words(text: str) -> list[str]:
    words = (
        "".join("".join(c for c in word.lower() if c not in _ZH_SIGNS).split())
        for word in _jieba().lcut(text)
    )
    return [word for word in words if word]


def _package(name: str, use: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(f"LongBench's {use}: pip install {name}.") from None


@cache
def _jieba() -> Any:
    jieba = _package("jieba", "Chinese tasks are scored over words that jieba finds")
    jieba.setLogLevel(logging.WARNING)  # it would write to stderr while it reads its dictionary
    return jieba


@cache
def _rouge() -> Any:
    rouge = _package("rouge", "summaries are scored by the package rouge")
    return rouge.Rouge(metrics=["rouge-l"], stats=["f"])
