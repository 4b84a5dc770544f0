"""Memory files and checkpoints of 0.2 still work: ask, read on, resume. Those of 0.1 do not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kvstream.answer.answering import answer
from kvstream.errors import SourceError
from kvstream.events import Answered, returned
from kvstream.input.sources import open_sources
from kvstream.memory import file, saving
from kvstream.memory.checkpoint import tokens_of
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings

pytestmark = pytest.mark.whole_pocket
EARLIER = Path(__file__).resolve().parents[1] / "fixtures" / "0.2"
RUN = RunSettings(Budget(tokens=150), max_tokens=8)
QUESTIONS = [
    json.loads(line)["question"] for line in (EARLIER / "questions.jsonl").read_text().splitlines()
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
def test_a_memory_of_0_2_gives_the_answers_of_0_2(
    session: Session, name: str, said: list[str]
) -> None:
    """`said` is what version 0.2.0 printed for `kvstream ask --memory FILE -Q ... -n 8`."""
    kind = saving.look(EARLIER / f"{name}.kvs")
    memory = session.recall(kind, RUN)
    assert answers(memory) == said
    assert memory.reader.cache.peak.tokens <= kind.content.state["sizes"]["budget"]
    assert kind.content.state["trace"]["sources"][0]["name"] == "story.txt"


def test_a_memory_of_0_2_is_read_on(session: Session, tmp_path: Path) -> None:
    memory = session.recall(saving.look(EARLIER / "any-question.kvs"), RUN)
    more = tmp_path / "more.txt"
    more.write_text("The letter was hidden by Ann Lee.\n")
    source = open_sources([str(more)])
    read_on = returned(session.read(source, Request(command="remember"), memory))
    assert [record.name for record in read_on.trace.records] == ["story.txt", str(more)]
    assert read_on.trace.read > 738
    assert not any("more than once" in told for told in read_on.warnings)
    for _ in range(2):
        again = session.read(open_sources([str(more)]), Request(command="remember"), read_on)
        read_on = returned(again)
    told = [told for told in read_on.warnings if "was read more than once, and memory" in told]
    assert [each.partition(" was")[0] for each in told] == [str(more)]


def test_a_checkpoint_of_0_2_is_taken_up(session: Session, tmp_path: Path) -> None:
    saved = tmp_path / "reading.kvs"
    shutil.copy(EARLIER / "reading.kvs", saved)
    assert tokens_of(saved) == 357
    run = RunSettings(Budget(tokens=150), method="foresight", thin="auto", max_tokens=8)
    request = Request(run=run, command="remember", checkpoint=saved)
    source = open_sources([str(EARLIER / "story.sample")])
    memory = returned(session.read(source, request))
    assert memory.trace.read == 738
    assert answers(memory) == ["38442", "Soskawold", "not in the text"]  # as 0.2.0 printed


def test_a_file_of_0_1_is_refused_and_says_how_to_make_it_anew(tmp_path: Path) -> None:
    content = file.read(EARLIER / "one-question.kvs")
    state = {**content.state, "model": {**content.state["model"]}}
    del state["model"]["kv_dtype"], state["model"]["rounded"]
    path = tmp_path / "old.kvs"
    file.write(path, state, {**content.notes, "version": "0.1.0"}, content.tensors)
    for look in (file.read, file.read_notes):
        with pytest.raises(SourceError, match=r"kvstream 0\.1\.0 .*again with `kvstream remember`"):
            look(path)
