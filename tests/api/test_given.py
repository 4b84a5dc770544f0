"""Values of a wrong type: each is an error of kvstream that names its parameter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kvstream
from kvstream.api.model import Model

TEXT = "Ada hid the letter."


@pytest.fixture(scope="module")
def model(session) -> kvstream.Model:
    return Model(session)


@pytest.fixture(scope="module")
def memory(model) -> kvstream.Memory:
    return model.read(text=TEXT, budget=300, max_tokens=8)


def refused(call, says: str, error: type[kvstream.KvstreamError] = kvstream.UsageError) -> None:
    with pytest.raises(error, match=re.escape(says)):
        call()


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (None, "question= takes one question as a str, not None."),
        (5, "question= takes one question as a str, not int."),
        (b"Who?", "question= takes one question as a str, not bytes."),
        (["Who?"], "not list; read(questions=...) takes several."),
    ],
)
def test_a_question_is_text(model, memory, tmp_path: Path, question, says: str) -> None:
    refused(lambda: model.ask(text=TEXT, question=question), says)
    refused(lambda: model.compare(text=TEXT, question=question, methods=["h2o"]), says)
    refused(lambda: memory.ask(question), says)
    memory.save(tmp_path / "a.kvs")
    refused(lambda: model.memories(tmp_path).answers(question), says)
    if question is not None:  # there it means a summary
        refused(lambda: model.plan(text=TEXT, question=question), says)
        refused(lambda: kvstream.ask_each(tmp_path, question, model=model), says)


@pytest.mark.parametrize(
    ("questions", "says"),
    [
        (None, "questions= takes a list of str, not None."),
        (b"Who?", "questions= takes a list of str, not bytes."),
        (["Who?", 5], "questions= takes a list of str; one of it is int."),
    ],
)
def test_questions_are_a_list_of_text(model, questions, says: str) -> None:
    refused(lambda: model.read(text=TEXT, questions=questions), says)
    refused(lambda: model.stream(text=TEXT, questions=questions), says)


def test_an_iterator_of_questions_is_a_list_of_them(model) -> None:
    memory = model.read(text=TEXT, questions=iter(["Who hid it?"]), budget=300, max_tokens=8)
    assert memory.questions == ("Who hid it?",)


@pytest.mark.parametrize("earlier", [5, ["x"], [("Who?",)], [("Who?", None)]])
def test_earlier_answers_are_pairs(memory, earlier) -> None:
    refused(lambda: memory.ask("Who?", earlier=earlier), "earlier= takes a list of (question, ")


@pytest.mark.parametrize("settings", [["infinipot.alpha=1"], "infinipot.alpha=1", {1: 2}])
def test_settings_are_a_dict(model, settings) -> None:
    says = 'set= takes a dict of settings, such as {"infinipot.alpha": 0.5}, not '
    refused(lambda: model.ask(text=TEXT, question="Who?", set=settings), says)
    refused(
        lambda: model.compare(text=TEXT, question="Who?", methods=["infinipot"], set=settings),
        says,
    )


@pytest.mark.parametrize("path", [None, 3, b"file"])
def test_a_path_is_text(model, memory, path) -> None:
    told = f"= takes a str or a Path, not {'None' if path is None else type(path).__name__}."
    refused(lambda: kvstream.load(path), f"name{told}")
    refused(lambda: memory.save(path), f"path{told}")
    refused(lambda: model.recall(path), f"path{told}")
    refused(lambda: kvstream.inspect(path), f"path{told}")
    refused(lambda: model.memories(path), f"folder{told}")
    if path is not None:
        refused(lambda: kvstream.load(skim=path), f"skim{told}")
        refused(lambda: model.read(text=TEXT, checkpoint=path), f"checkpoint{told}")
    refused(lambda: memory.save("a\0b"), "path= is not a path: 'a\\x00b' has a NUL character.")


def test_a_report_has_a_path() -> None:
    pytest.importorskip("jinja2")
    refused(lambda: kvstream.Report().write(None), "path= takes a str or a Path, not None.")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temp": "x"}, "temperature is a number, not 'x'."),
        ({"max_tokens": None}, "max-tokens is a whole number, not None."),
        ({"seed": "x"}, "seed is a whole number, not 'x'."),
        ({"keep": [1]}, "'[1]' is not a number of"),
        ({"passages": "x"}, "passages= takes a whole number, not 'x'."),
        ({"shards": "x"}, "shards= takes a whole number, not 'x'."),
        ({"system": 5}, "system= takes a str, not int."),
        ({"max_unpacked": [1]}, "'[1]' is not a "),
    ],
)
def test_numbers_are_numbers(model, options, says: str) -> None:
    refused(lambda: model.ask(text=TEXT, question="Who?", **options), says)


def test_tokens_are_counted_of_text(model) -> None:
    refused(lambda: model.count(5), "text= takes a str, not int.")


def test_a_file_that_cannot_be_read_says_so(model, tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(TEXT.encode("latin-1") + b"\xe9")
    with path.open("rb") as file:
        pass
    says = f"{path} is a closed file; open it again."
    refused(lambda: model.ask(file, "Who?"), says, kvstream.SourceError)
    with path.open(encoding="utf-8") as decoded:
        says = "Open it in binary mode, or give its path."
        refused(lambda: model.ask(decoded, "Who?"), says, kvstream.SourceError)
