"""Summaries against human ones, compared with the simplest baseline: the beginning of the text."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kvstream.evaluation import metrics
from kvstream.evaluation.confidence import mean_interval
from kvstream.evaluation.datasets import items, text
from kvstream.evaluation.harness import document, model_identity
from kvstream.evaluation.records import CASE_KEYS, Record, Trial, digest, grouped
from kvstream.evaluation.sweep import Case
from kvstream.events import Answered
from kvstream.input.sources import open_sources
from kvstream.run.request import Request
from kvstream.session.session import Session

_LINE_NUMBER = re.compile(r"^\d+: ", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?])[\"'”’)]?\s+|\n{2,}")
ROUGE = ("rouge_1", "rouge_2", "rouge_l")
NEEDS = "A record needs `text` and `questions` with `summaries`, or `text` and `summary`."


@dataclass(frozen=True)
class Story:
    """A text, the topic of its summary, and human summaries."""

    id: str
    text: str
    question: str
    """The topic of the summary; if empty, it is the whole text."""
    references: tuple[str, ...]


def load(paths: Sequence[str], *, limit: int | None, seed: int) -> list[Story]:
    """Load lines in SQuALITY's format, ``text`` and ``questions`` with ``summaries``.

    A line may have ``summary`` or ``summaries`` instead of ``questions``. The first question of a
    text asks for its plot; the others are not used.
    """
    stories = [story for path in paths for story in items(path, _story, NEEDS)]
    if limit is not None and limit < len(stories):
        stories = random.Random(seed).sample(stories, limit)
    return stories


def _story(record: Record, name: str) -> Story:
    identity = str(record.get("doc_id") or record.get("id") or name)
    told = text(record["text"], "the text")
    if "questions" not in record:
        return Story(identity, told, "", _references(record, "summary"))
    if not record["questions"]:
        raise ValueError("the text has no questions")
    asked = record["questions"][0]
    return Story(f"{identity}/0", told, text(asked["question"], "a question"), _references(asked))


def _references(record: Record, single: str = "summaries") -> tuple[str, ...]:
    """Return the human summaries: a list, or one text, which may have the name `single`."""
    given = record.get("summaries") or record[single]
    each = [given] if isinstance(given, str) else given
    if not each:
        raise ValueError("a question has no summaries")
    return tuple(text(summary, "a summary") for summary in each)


def lead(text: str, words: int) -> str:
    """Return the first `words` words of a text, from whole sentences except the last one."""
    taken: list[str] = []
    for sentence in _SENTENCE.split(text):
        taken += sentence.split()
        if len(taken) >= words:
            break
    return " ".join(taken[:words])


def trials(
    session: Session, stories: Sequence[Story], cases: Sequence[Case], extract: int
) -> Iterator[Trial]:
    """Yield one trial for each story and case.

    The summary consists of `extract` passages; with 0, the model writes it.
    """
    facts = model_identity(session)
    for story in stories:
        content = digest(story)
        for case in cases:
            identity: Record = {
                "bench": "summary", **facts, **case.identity(), "id": story.id,
                "passages": extract, **case.seed(),
            }  # fmt: skip
            run = partial(_run, session, story, case, extract)
            yield Trial(identity, run, content=content)


def _run(session: Session, story: Story, case: Case, extract: int) -> Record:
    questions = (story.question,) if story.question else ()
    request = Request(questions, case.run, "summarize", extract=bool(extract))
    if extract:
        request = replace(request, passages=extract)
    with document(story.text) as path:
        events = session.ask(open_sources([path], plain=True), request)
        result = next(e.result for e in events if isinstance(e, Answered))
    summary = _LINE_NUMBER.sub("", result.answer) if extract else result.answer
    words = len(summary.split())
    beginning = metrics.rouge(lead(story.text, words), story.references)
    return {
        "summary": summary,
        "words": words,
        "read": result.read,
        **{k: round(v, 4) for k, v in metrics.rouge(summary, story.references).items()},
        **{f"lead_{k}": round(v, 4) for k, v in beginning.items()},
    }


ROW_KEYS = (*CASE_KEYS, "passages")


def rows(records: Sequence[Record]) -> list[Record]:
    """Return a row for each case, with the scores of the text's beginning at the same length."""
    out = []
    for group in grouped(records, ROW_KEYS):
        row: Record = {
            "bench": "summary",
            **{k: group[0].get(k) for k in ROW_KEYS},
            "n": len(group),
        }
        row["words"] = round(sum(r["words"] for r in group) / len(group), 1)
        for name in (*ROUGE, *(f"lead_{name}" for name in ROUGE)):
            mean, low, high = mean_interval([r[name] for r in group])
            row[name] = round(mean, 4)
            if low < high:  # one text does not tell how texts vary
                row[f"{name}_interval"] = [round(low, 4), round(high, 4)]
        out.append(row)
    return out


def so_far(records: Sequence[Record]) -> str:
    """Return a line about the newest record, to show during the run."""
    last = records[-1]
    return f"{last['method']}: ROUGE-L {last['rouge_l']:.3f}, lead {last['lead_rouge_l']:.3f}"
