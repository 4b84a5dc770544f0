"""Summaries of stories, compared with human ones."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from rows import rows_of

from kvstream.errors import SourceError
from kvstream.evaluation.filler import Filler
from kvstream.tokenization.loading import load_tokenizer
from kvstream_lab import summary

TINY = ("--budget", "512", "--threads", "1")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("pocket")


def test_a_story_is_asked_for_its_plot(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    record = {
        "doc_id": "x", "text": "A story.",
        "questions": [
            {"question": "Plot?", "summaries": ["s"]},
            {"question": "Who?", "summaries": ["t"]},
        ],
    }  # fmt: skip
    path.write_text(json.dumps(record), encoding="utf-8")
    assert [s.id for s in summary.load([str(path)], limit=None, seed=0)] == ["x/0"]


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
        summary.load([str(path)], limit=None, seed=0)


def test_one_summary_needs_no_list(tmp_path: Path) -> None:
    """The letters of a text are no summaries."""
    path = tmp_path / "s.jsonl"
    asked = {"text": "t", "questions": [{"question": "q", "summaries": "A man."}]}
    records = [asked, {"text": "t", "summaries": "A man."}, {"text": "t", "summary": "A man."}]
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    stories = summary.load([str(path)], limit=None, seed=0)
    assert [story.references for story in stories] == [("A man.",)] * 3


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
