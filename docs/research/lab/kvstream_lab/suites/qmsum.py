"""Questions about meetings, with the transcript of each meeting.

Zhong et al., "QMSum: A New Benchmark for Query-based Multi-domain Meeting Summarization". The
transcripts are the user's copy. The score is that of LongBench's task ``qmsum``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvstream.evaluation import datasets, longbench, metrics
from kvstream_lab.suites import documents
from kvstream_lab.suites.documents import Asked, Document
from kvstream_lab.suites.task import Sample, Task

MAX_TOKENS = longbench.TASKS["qmsum"].max_tokens
TASKS = (Task("general", None, MAX_TOKENS), Task("specific", None, MAX_TOKENS))
NEEDS = (
    "A line of QMSum has `meeting_transcripts` (with `speaker` and `content`), "
    "`general_query_list` and `specific_query_list` (with `query` and `answer`)."
)


def load(path: str, tasks: Sequence[Task], seed: int) -> list[Task]:
    """Return the tasks with the meetings of a file. Raise SourceError for damaged data."""
    longbench.require(["qmsum"])
    metrics.require_rouge()
    return documents.load(path, tasks, seed, meeting, NEEDS, scores)


def meeting(record: Any, name: str) -> Document:
    """Parse a line of the data. In the text, each turn is a line that begins with the speaker."""
    turns = [
        f"{datasets.text(turn['speaker'], 'speaker')}: {turn['content']}"
        for turn in record["meeting_transcripts"]
    ]
    asked = {
        task.name: tuple(
            Asked(datasets.text(each["query"], "query"), (datasets.text(each["answer"], "answer"),))
            for each in record[f"{task.name}_query_list"]
        )
        for task in TASKS
    }
    number = name.rpartition(":")[2]
    transcript = datasets.text("\n".join(turns), "meeting_transcripts")
    return Document(f"meeting {number}", transcript, asked)


def scores(answer: str, sample: Sample) -> dict[str, float]:
    """Return LongBench's ROUGE-L, and ROUGE with stemming."""
    score = longbench.score("qmsum", answer, sample.answers)
    return {"score": score, **metrics.rouge(answer, sample.answers)}
