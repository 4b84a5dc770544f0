"""Summaries of stories, compared with human ones."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rows import rows_of

from kvstream.errors import SourceError
from kvstream.evaluation.confidence import mean_interval
from kvstream.evaluation.filler import Filler
from kvstream.evaluation.records import Records, measure
from kvstream.evaluation.sweep import Case
from kvstream.settings import RunSettings
from kvstream.tokenization.loading import load_tokenizer
from kvstream_lab import summary

TINY = ("--budget", "512", "--threads", "1")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("pocket")


def test_stories_by_question(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    record = {
        "doc_id": "x", "text": "A story.",
        "questions": [
            {"question": "Plot?", "summaries": ["s"]},
            {"question": "Who?", "summaries": ["t"]},
        ],
    }  # fmt: skip
    path.write_text(json.dumps(record), encoding="utf-8")
    assert [s.id for s in summary.load([str(path)], every=False, limit=None, seed=0)] == ["x/0"]
    assert len(summary.load([str(path)], every=True, limit=None, seed=0)) == 2


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"text": None, "summary": "s"}, "the text is not text"),
        ({"text": "", "summary": "s"}, "the text is not text"),
        ({"text": "t", "summary": ""}, "a summary is not text"),
        ({"text": "t", "summaries": [None]}, "a summary is not text"),
        ({"text": "t", "questions": []}, "the text has no questions"),
        ({"text": "t", "questions": [{"question": "", "summaries": ["s"]}]}, "a question is not"),
        ({"text": "t", "questions": [{"question": "q", "summaries": []}]}, "has no summaries"),
    ],
)
def test_a_damaged_story_is_found_in_its_line(
    tmp_path: Path, record: dict[str, Any], problem: str
) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(SourceError, match=f"line 1: .*{problem}"):
        summary.load([str(path)], every=True, limit=None, seed=0)


def test_one_summary_needs_no_list(tmp_path: Path) -> None:
    """The letters of a text are no summaries."""
    path = tmp_path / "s.jsonl"
    asked = {"text": "t", "questions": [{"question": "q", "summaries": "A man."}]}
    records = [asked, {"text": "t", "summaries": "A man."}, {"text": "t", "summary": "A man."}]
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    stories = summary.load([str(path)], every=True, limit=None, seed=0)
    assert [story.references for story in stories] == [("A man.",)] * 3


def test_texts_of_one_folder_are_texts_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A text without an id is named after its file and folder. Questions share a text's name."""
    monkeypatch.setattr(summary, "model_identity", lambda _: {"model": "m"})
    score = {name: 0.0 for each in summary.ROUGE for name in (each, f"lead_{each}")}
    path, nobody = tmp_path / "data.jsonl", SimpleNamespace()
    asked = [{"question": each, "summaries": ["s"]} for each in ("plot?", "who?")]
    story = {"doc_id": "a/1", "text": "t", "questions": asked}
    records = [{"text": "t", "summary": "s"}, {"text": "u", "summary": "s"}, story]
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")

    def run(session: Any, story: summary.Story, *_: Any) -> dict[str, Any]:
        return {**score, "words": 1, "rouge_1": 0.5 if story.text == "u" else 0.1}

    monkeypatch.setattr(summary, "_run", run)
    stories = summary.load([str(path)], every=True, limit=None, seed=0)
    for _ in range(2):  # measured, then taken from the file, which has no names of texts
        trials = summary.trials(nobody, stories, [Case(RunSettings())], 0)  # type: ignore[arg-type]
        found = list(measure(trials, Records(tmp_path / "saved.jsonl")))
    assert len({record["document"] for record in found}) == 3
    (row,) = summary.rows(found)
    _, low, high = mean_interval([0.1, 0.5, 0.1, 0.1], [0, 1, 2, 2])
    assert row["rouge_1_interval"] == pytest.approx([max(0.0, low), high], abs=1e-3)


def test_summary_command(lab: Any, tmp_path: Path, tokenizer: Any) -> None:
    path = tmp_path / "stories.jsonl"
    text = Filler.of([]).cut(tokenizer, 900, random.Random(0))
    path.write_text(json.dumps({"text": text, "summary": text[:200]}), encoding="utf-8")
    arguments = ("summary", "--data", str(path), *TINY, "-n", "32")
    (row,) = rows_of(lab(*arguments, "--extract", "--passages", "3", "--json", "-q"))
    assert row["words"] > 5
    assert row["lead_rouge_1"] > 0
    assert "rouge_1_interval" not in row  # there is only one text
    assert "lead" in lab(*arguments, "--no-extract", "-q").stdout
