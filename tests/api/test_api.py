"""The Python API: what it reads, what it returns, what it refuses."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import sys
import types
from pathlib import Path

import pytest
from snippets import BOOK, LOG

import kvstream
from kvstream.api.model import Model
from kvstream.api.options import (
    PER_ANSWER,
    TABLE,
    AnswerOptions,
    MemoryOptions,
    ModelOptions,
    ReadOptions,
    ShownOptions,
    SourceOptions,
    model_settings,
    request_of,
)
from kvstream.settings import ModelSettings, table

SMALL = {"budget": 300, "max_tokens": 8}


@pytest.fixture(scope="module")
def model(session) -> kvstream.Model:
    return Model(session)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(BOOK * 25)
    return path


def test_every_name_is_there() -> None:
    for name in kvstream.__all__:
        assert getattr(kvstream, name) is not None
    assert set(kvstream._HOME) | {"__version__"} == set(kvstream.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = kvstream.nonsense


def same(left: kvstream.Answer, right: kvstream.Answer) -> bool:
    return (left.text, left.result.read) == (right.text, right.result.read)


def test_pocket_has_the_name_that_it_had_in_0_1() -> None:
    from kvstream import pocket

    assert (pocket.path() / "model.safetensors").exists()


def test_one_text_however_it_is_given(model, book) -> None:
    text, question = book.read_text(), "Who hid the letter?"
    plain = model.ask(book, question, **SMALL)
    assert plain.result.evicted > 0
    assert plain.result.peak_kv_tokens <= 300
    lines = text.splitlines(keepends=True)
    with book.open("rb") as binary, book.open() as decoded:
        for source in (str(book), [book], binary, decoded, iter(lines), map(str.encode, lines)):
            assert same(model.ask(source, question, **SMALL), plain)
    for given in (text, lines, iter(lines)):
        assert same(model.ask(text=given, question=question, **SMALL), plain)
    packed = io.BytesIO(gzip.compress(text.encode()))
    assert same(model.ask(packed, question, **SMALL), plain)


def test_a_stream_without_end_is_never_held_whole(model) -> None:
    taken = itertools.count()
    seen = [0]

    def lines():
        while True:
            next(taken)
            yield LOG

    for event in model.stream(
        lines(),
        question="What failed?",
        interrupted=lambda: seen[0] > 2000,
        thin="off",
        **SMALL,
    ):
        if isinstance(event, kvstream.StepDone):
            assert event.peak_tokens <= 300
            seen[0] = event.seen
            if seen[0] > 2000:
                break
    assert seen[0] > 2000
    assert next(taken) * len(LOG) < 400_000


def test_text_is_never_taken_for_another_format(model) -> None:
    page = "<html><body><p>Ada hid the letter.</p></body></html>"
    answer = model.ask(text=page, question="Who?", extract=True, budget=300)
    assert "<html>" in answer.text


def test_citations_name_the_source(model, book) -> None:
    source = kvstream.Source(io.BytesIO(book.read_bytes()), name="the book")
    answer = model.ask(source, "Who hid the letter?", extract=True, **SMALL)
    assert {c["source"] for c in answer.citations} == {"the book"}
    assert str(answer) == answer.text
    assert 0 < answer.coverage <= 1
    assert answer.to_json()["answer"] == answer.text


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda m: m.ask("no such text", "Q?"), kvstream.SourceError, "does not exist"),
        (
            lambda m: m.ask("Ada hid it.", "Q?"),
            kvstream.SourceError,
            "'Ada hid it.' does not exist; check the path. If it is text itself, give it as text=",
        ),
        (lambda m: m.ask("Ada hid it. " * 999, "Q?"), kvstream.SourceError, "it. ...' cannot be"),
        (lambda m: kvstream.load("redaer"), kvstream.UsageError, "Did you mean reader?"),
        (lambda m: kvstream.load(skim="pokcet"), kvstream.UsageError, "Did you mean pocket?"),
        (lambda m: m.ask(text="x", question="Q?", method=["a"]), kvstream.UsageError, "one method"),
        (lambda m: m.read(text="x", method=["a"]), kvstream.UsageError, "one method"),
        (lambda m: m.ask(text="x", question=""), kvstream.UsageError, "No question"),
        (lambda m: m.ask("a", "Q?", text="x"), kvstream.UsageError, "not both"),
        (lambda m: m.ask(question="Q?"), kvstream.UsageError, "Nothing to read"),
        (lambda m: m.ask(7, "Q?"), kvstream.UsageError, "The type int cannot be read"),
        (lambda m: m.ask(text=7, question="Q?"), kvstream.UsageError, "not int"),
        (lambda m: m.ask(iter([7]), "Q?"), kvstream.UsageError, "not int"),
        (lambda m: m.read(text="x", budgte=1), kvstream.UsageError, "Did you mean budget?"),
        (lambda m: m.read(text="x", budget="lots"), kvstream.UsageError, "not a budget"),
        (lambda m: m.read(text="x", method="snapkw"), kvstream.UsageError, "snapkv"),
        (lambda m: m.read(text="x", method="passages"), kvstream.UsageError, "needs its questions"),
        (lambda m: m.read(text="x", set={"a": 1}), kvstream.UsageError, "METHOD.NAME"),
        (lambda m: m.read(text="x", set={"h2o.a": 1}), kvstream.UsageError, "--method h2o"),
        (lambda m: m.read(text="x", questions="Who?"), kvstream.UsageError, "question="),
        (lambda m: m.read(text="x", budget=20), kvstream.BudgetError, "20"),
        (
            lambda m: m.compare(io.BytesIO(b"x"), "Q?", methods=["window", "h2o"]),
            kvstream.UsageError,
            "only once",
        ),
    ],
)
def test_what_cannot_be_is_refused(model, call, error, says) -> None:
    with pytest.raises(error, match=says.replace(".", r"\.").replace("?", r"\?")):
        call(model)


def test_a_memory_is_asked_saved_recalled_and_read_on(model, book, tmp_path) -> None:
    question = "Who hid the letter?"
    memory = model.read(book, questions=[question], checkpoint=tmp_path / "part", **SMALL)
    first = memory.ask(question, max_tokens=4)
    assert first.result.generated <= 4
    assert memory.ask(question, max_tokens=4).text == first.text, "memory stays as it was"
    assert memory.peak[0] <= memory.budget[0] == 300
    assert memory.read_tokens == memory.retained + memory.evicted
    assert (tmp_path / "part").exists()
    digest = memory.save(tmp_path / "book.kvs")
    assert not (tmp_path / "part").exists(), "all is saved"
    again = model.read(book, questions=[question], checkpoint=tmp_path / "same", **SMALL)
    (tmp_path / "link").symlink_to("same")
    assert again.save(tmp_path / "link") == digest
    assert kvstream.inspect(tmp_path / "same").digest == digest, "it replaces the checkpoint"
    file = kvstream.inspect(tmp_path / "book.kvs")
    assert (file.digest, file.questions, file.tokens) == (digest, (question,), memory.read_tokens)
    recalled = model.recall(file)
    answer = recalled.ask(question, max_tokens=4)
    assert answer.text == first.text
    assert answer.result.memory["sha256"] == digest
    before = recalled.read_tokens
    assert recalled.read(text=LOG * 12) is recalled
    assert recalled.read_tokens > before
    assert recalled.peak[0] <= 300
    with pytest.raises(kvstream.UsageError, match="The first reading sets"):
        recalled.read(text=LOG, budget=100)


def test_the_tokens_that_each_head_holds(model, book) -> None:
    reading, held = model.reading(book, **SMALL), {}
    while True:
        try:
            event = next(reading)
        except StopIteration as end:
            memory = end.value
            break
        if isinstance(event, kvstream.StepDone):
            held = event.ordinals()
            assert all(len(h) in event.memory for heads in held.values() for h in heads)
            assert max(max(h) for heads in held.values() for h in heads) < event.seen
    assert memory.ordinals() == held
    assert all(h == sorted(set(h)) for heads in held.values() for h in heads)
    assert len({o for heads in held.values() for h in heads for o in h}) == memory.retained


def test_sampling_of_one_question_does_not_stay(model, book) -> None:
    memory = model.read(book, **SMALL)
    greedy = memory.ask("Who?").text
    memory.ask("Who?", temp=2.0, top_k=50, max_tokens=30)
    assert memory.ask("Who?").text == greedy


def test_a_plan_is_what_the_run_starts_with(model, book) -> None:
    asked = {"question": "Who hid the letter?", **SMALL}
    started = next(model.stream(book, **asked))
    assert vars(model.plan(book, **asked)) == vars(started)


def test_methods_are_compared(model, book) -> None:
    found = model.compare(
        book, "Who hid the letter?", methods=["window", "streaming", "passages"],
        set={"streaming.sinks": 8}, **SMALL,
    )  # fmt: skip
    assert [answer.result.method for answer in found.values()] == [
        "window",
        "streaming",
        "passages",
    ]
    with pytest.raises(kvstream.UsageError, match="for the method 'h2o'"):
        model.compare(book, "Who?", methods=["window"], set={"h2o.recent": 1})


def test_progress_is_shown_where_it_is_wanted(model, book, capsys, monkeypatch) -> None:
    model.read(book, **SMALL)
    assert capsys.readouterr() == ("", "")
    model.read(book, progress=True, **SMALL)
    assert "budget 300 entries" in capsys.readouterr().err
    events: list[kvstream.Event] = []
    model.read(book, progress=events.append, **SMALL)
    assert isinstance(events[0], kvstream.Started)
    memory = model.read(book, **SMALL)
    memory.ask("Who hid the letter?", progress=events.append)
    assert isinstance(events[-1], kvstream.Answered)

    def fails(event: kvstream.Event) -> None:
        raise ValueError("no room for it")

    with pytest.raises(ValueError, match="no room") as failure:
        memory.ask("Who hid the letter?", progress=fails)
    assert failure.tb  # holds the frames of the answer
    assert memory.ask("Who hid the letter?", progress=False).text

    class ZMQInteractiveShell:
        pass

    shell = types.SimpleNamespace(get_ipython=ZMQInteractiveShell)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    model.read(book, **SMALL)
    assert "budget 300 entries" in capsys.readouterr().out
    model.read(book, progress=False, **SMALL)
    assert capsys.readouterr() == ("", "")


def test_the_keywords_are_those_of_the_table() -> None:
    """The type hints of the API name every option, and the table has their defaults."""
    own = {"command", "interrupted"}  # not on the command line
    keywords = {*ReadOptions.__annotations__, *SourceOptions.__annotations__}
    assert keywords - own == TABLE.keys()
    loading = {*table(ModelSettings), "skim", "quiet"} - {"model"}
    assert ModelOptions.__annotations__.keys() == loading
    answers = AnswerOptions.__annotations__.keys() | ShownOptions.__annotations__.keys()
    assert {*answers, "seed"} == set(PER_ANSWER)
    assert answers & MemoryOptions.__annotations__.keys() == AnswerOptions.__annotations__.keys()
    defaults = {name: row.default for name, row in TABLE.items() if name != "set"}
    assert request_of(("Q?",), **defaults) == request_of(("Q?",))
    loaded = {name: row.default for name, row in table(ModelSettings).items() if name != "model"}
    assert model_settings("pocket", loaded) == model_settings("pocket", {})


def test_sizes_may_be_text() -> None:
    run = request_of((), budget="512MB", keep="1k", max_tokens="2k", chunk_size=64).run
    assert (run.budget.bytes, run.keep, run.max_tokens, run.chunk_size) == (
        512_000_000, 1024, 2048, 64,
    )  # fmt: skip
    assert request_of((), budget=1024).run.budget.tokens == 1024
    assert model_settings("pocket", {"max_weights": "1GiB"}).max_weights == 1024**3
    assert request_of((), every="10k").every.tokens == 10240
    with pytest.raises(kvstream.UsageError, match="attention"):
        model_settings("pocket", {"attention": "flash"})


def test_methods_tell_their_settings() -> None:
    methods = kvstream.available_methods()
    alpha = next(s for s in methods["infinipot"].settings if s.name == "alpha")
    assert (alpha.least, alpha.most) == (0, 1)
    json.dumps([method.to_json() for method in methods.values()])
