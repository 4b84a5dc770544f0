"""Memory files and checkpoints of earlier versions still work: ask, read on, resume."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import chat_pocket
import pytest

from kvstream.answer.answering import answer
from kvstream.errors import UsageError
from kvstream.events import Answered, returned
from kvstream.input.sources import open_sources
from kvstream.memory import saving
from kvstream.memory.checkpoint import Checkpoint
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream.store import pocket

pytestmark = pytest.mark.whole_pocket
FIRST = Path(__file__).resolve().parents[1] / "fixtures" / "0.1"
RUN = RunSettings(Budget(tokens=150), max_tokens=8)
QUESTIONS = [
    json.loads(line)["question"] for line in (FIRST / "questions.jsonl").read_text().splitlines()
]


def answers(memory: saving.Memory) -> list[str]:
    results = [
        next(e.result for e in answer(memory, q) if isinstance(e, Answered)) for q in QUESTIONS
    ]
    return [result.answer for result in results]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("any-question", ["not in the text", "not in the text", "Basil Wendigan"]),
        ("one-question", ["not in the text", "Soskawold", "Basil Wendigan"]),
    ],
)
def test_a_memory_of_0_1_gives_the_answers_of_0_1(
    session: Session, name: str, said: list[str]
) -> None:
    """`said` is what version 0.1.0 printed for `kvstream ask --memory FILE -Q ... -n 8`."""
    kind = saving.look(FIRST / f"{name}.kvs")
    memory = session.recall(kind, RUN)
    assert answers(memory) == said
    assert memory.reader.cache.peak.tokens <= kind.content.state["sizes"]["budget"]
    assert kind.content.state["trace"]["sources"][0]["name"] == "story.txt"


def test_a_memory_of_0_1_is_read_on(session: Session, tmp_path: Path) -> None:
    memory = session.recall(saving.look(FIRST / "any-question.kvs"), RUN)
    more = tmp_path / "more.txt"
    more.write_text("The letter was hidden by Ann Lee.\n")
    source = open_sources([str(more)])
    read_on = returned(session.read(source, Request(command="remember"), memory))
    assert [record.name for record in read_on.trace.records] == ["story.txt", str(more)]
    assert read_on.trace.read > 738


def test_a_checkpoint_of_0_1_is_taken_up(session: Session, tmp_path: Path) -> None:
    saved = tmp_path / "reading.kvs"
    shutil.copy(FIRST / "reading.kvs", saved)
    assert Checkpoint(saved).tokens == 375
    request = Request(run=RUN, command="remember", checkpoint=saved)
    source = open_sources([str(FIRST / "story.sample")])
    memory = returned(session.read(source, request))
    assert memory.trace.read == 738
    assert answers(memory) == ["not in the text", "not in the text", "Basil Wendigan"]


def test_a_checkpoint_of_0_1_is_taken_up_by_a_chat_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0.1.0 had another prompt for chat models. The answer stays that of 0.1.0."""
    monkeypatch.chdir(tmp_path)
    chat_pocket.make(pocket.path(), tmp_path / "chatty")
    session = Session.open(ModelSettings("./chatty", dtype="float32", threads=1))
    shutil.copy(FIRST / "chat.kvs", "chat.kvs")
    question = "Where was Valentin Crembogan born?"
    run = RunSettings(Budget(tokens=180), max_tokens=8)
    request = Request((question,), run, command="remember", checkpoint=Path("chat.kvs"))
    memory = returned(session.read(open_sources([str(FIRST / "story.sample")]), request))
    assert memory.trace.read == 738
    assert memory.reader.cache.peak.tokens <= 180
    result = next(e.result for e in answer(memory, question) if isinstance(e, Answered))
    assert result.answer == "Question: What did the one who was"

    other = Request(("Who came?",), run, command="remember", checkpoint=Path("chat.kvs"))
    shutil.copy(FIRST / "chat.kvs", "chat.kvs")
    with pytest.raises(UsageError, match="another run"):
        returned(session.read(open_sources([str(FIRST / "story.sample")]), other))
