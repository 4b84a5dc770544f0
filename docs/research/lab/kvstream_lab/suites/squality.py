"""Questions about short stories, each with the answers of several people.

Wang et al., "SQuALITY: Building a Long-Document Summarization Dataset the Hard Way". The stories
are the user's copy. The score is ROUGE-L with stemming against the most similar answer, as in the
authors' ``multi_rouge.py`` (repository nyu-mll/SQuALITY).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvstream.evaluation import datasets, metrics
from kvstream_lab.suites import documents
from kvstream_lab.suites.documents import Asked, Document
from kvstream_lab.suites.task import Sample, Task

TASKS = (Task("plot", None, 512), Task("questions", None, 512))
NEEDS = (
    "A line of SQuALITY has `document` and `questions` (with `question_text`, and `responses` "
    "with `response_text`), or `text` and `questions` (with `question` and `summaries`)."
)


def load(path: str, tasks: Sequence[Task], seed: int) -> list[Task]:
    """Return the tasks with the stories of a file. Raise SourceError for damaged data."""
    metrics.require_rouge()
    return documents.load(path, tasks, seed, story, NEEDS, scores)


def story(record: Any, name: str) -> Document:
    """Parse a line of the data, in the authors' format or in that of ``lab/summary.py``."""
    asked = [_asked(each) for each in record["questions"]]
    known = record.get("doc_id") or record.get("metadata", {}).get("passage_id")
    told = record["document"] if "document" in record else record["text"]
    return Document(
        str(known or f"story {name.rpartition(':')[2]}"),
        datasets.text(told, "the text"),
        {"plot": tuple(asked[:1]), "questions": tuple(asked[1:])},
    )


def _asked(record: Any) -> Asked:
    if "question_text" in record:
        question = record["question_text"]
        answers = [each["response_text"] for each in record["responses"]]
    else:
        question, answers = record["question"], record["summaries"]
    if not isinstance(answers, list) or not answers:
        raise ValueError("a question has no answers")
    return Asked(
        datasets.text(question, "the question"),
        tuple(datasets.text(answer, "an answer") for answer in answers),
    )


def scores(answer: str, sample: Sample) -> dict[str, float]:
    """Return ROUGE scores, each the best over the answers; ROUGE-L is the score."""
    found = metrics.rouge(answer, sample.answers)
    return {"score": found["rouge_l"], **found}
