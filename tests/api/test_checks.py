"""Invalid values: each raises an error of kvstream that names the parameter."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import kvstream
from kvstream.api.model import Model
from kvstream.session.scouting import Scouting
from kvstream.settings import Budget

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
    refused(lambda: model.memories(tmp_path).answers("Who?", best=0), "best=")
    if question is not None:  # here None asks for a summary
        refused(lambda: model.plan(text=TEXT, question=question), says)
        refused(lambda: kvstream.ask_each(tmp_path, question, model=model), says)


@pytest.mark.parametrize(
    ("questions", "says"),
    [
        (None, "questions= takes a list of str, not None."),
        (b"Who?", "questions= takes a list of str, not bytes."),
        ("Who?", "questions= takes a list of str; put a single question into a list, or give it"),
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
    for bad in ("a\0b", "\ud800"):
        says = f"= is not a path: {bad!r} has a character that no path has."
        refused(lambda bad=bad: memory.save(bad), f"path{says}")
        refused(lambda bad=bad: model.recall(bad), f"path{says}")
        refused(lambda bad=bad: kvstream.inspect(bad), f"path{says}")


def test_names_of_sources_and_methods_are_text(model) -> None:
    for name in (None, 3, []):
        for source in (kvstream.Source("a.txt", name), kvstream.Text(TEXT, name)):
            refused(lambda s=source: model.read(s), "name= takes a str, not ")
        refused(
            lambda n=name: model.compare(text=TEXT, question="Who?", methods=[n]),
            "methods= takes a str, not ",
        )


def test_an_empty_name_does_not_mean_the_current_folder(
    model, memory, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    for source in ("", ["a.txt", ""], kvstream.Source("", "a.txt")):
        refused(lambda s=source: model.read(s), "The name of a source is empty; name a file")
    refused(lambda: kvstream.ask_each("", "Who?", model=model), "source= is empty; give a path")
    refused(lambda: kvstream.load(""), "name= is empty; give a path, or leave it out.")
    refused(lambda: memory.save(""), "path= is empty; give a path")


def test_an_iterator_does_not_end_at_none(model) -> None:
    says = "A piece of a source is str or bytes, not None."
    refused(lambda: model.read(text=iter([TEXT, None, TEXT])), says)


def test_a_report_has_a_path_and_a_run(model, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    report, page = kvstream.Report(), tmp_path / "page.html"
    refused(lambda: report.write(None), "path= takes a str or a Path, not None.")
    refused(lambda: report.write(page), "The report has no run to show")
    for given in (None, "a.kvs", report):
        refused(lambda given=given: report.add(given), "add() takes a Memory")
    refused(lambda: report.begin(None), "name= takes a str, not None.")
    report.begin("a run that never began")
    refused(lambda: report.write(page), "The report has no run to show")
    assert not page.exists()
    report.add(model.read(text=TEXT, budget=300, max_tokens=8))
    report.write(page)
    assert TEXT in page.read_text()


def test_a_new_file_never_replaces_a_source(model, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    text, link = tmp_path / "a.txt", tmp_path / "b.txt"
    text.write_text(TEXT)
    link.symlink_to(text)
    report = kvstream.Report()
    memory = model.read([text, kvstream.Text(TEXT, "a\0b")], budget=300, max_tokens=8)
    report.add(memory)
    for path in (text, link):
        says = f"{path} is a source, and the new file would destroy it; name another file."
        refused(lambda path=path: memory.save(path), says)
        refused(lambda path=path: report.write(path), says)
        refused(lambda path=path: model.read(text, budget=300, checkpoint=path), says)
        refused(lambda path=path: memory.read(kvstream.Source(text, "a"), checkpoint=path), says)
    assert text.read_text() == TEXT
    memory.save(tmp_path / "a.kvs")
    memory.save(tmp_path / "a.kvs")


def test_a_source_is_known_from_another_folder(model, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.txt").write_text("another text")
    monkeypatch.chdir(tmp_path)
    memory = model.read("a.txt", budget=300, max_tokens=8)
    monkeypatch.chdir("b")
    refused(lambda: memory.save("../a.txt"), "../a.txt is a source, and")
    memory.save("a.txt")
    assert (tmp_path / "a.txt").read_text() == TEXT


@pytest.mark.parametrize("progress", ["x", 5, ()])
def test_progress_is_shown_or_not(model, memory, progress) -> None:
    says = "progress= is True, False or a function, not "
    refused(lambda: model.ask(text=TEXT, question="Who?", budget=300, progress=progress), says)
    refused(lambda: memory.ask("Who?", progress=progress), says)
    refused(lambda: model.read(text=TEXT, budget=300, progress=progress), says)


def test_arguments_beside_options_are_checked_too(model, memory, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    for name in ("only", "since", "until"):
        refused(lambda n=name: kvstream.open_sources(text=TEXT, **{n: 5}), f"{name}= takes a str")
    for options in ({"settings": 5}, {"title": 5}, {"command": 5}):
        refused(lambda o=options: kvstream.Report(**o), f"{next(iter(options))}= takes a ")
    for aliases in (5, {"a": 5}, {5: "a"}):
        refused(lambda a=aliases: kvstream.available_models(a), "aliases= takes a ")
    each = {"source": tmp_path, "question": "Who?", "model": model}
    refused(lambda: kvstream.ask_each(**each, progress=5), "progress= takes a function, not int.")
    refused(lambda: kvstream.ask_each(tmp_path, "Who?", loading=5), "loading= takes a dict")
    refused(lambda: memory.ask("Who?", last="no"), "last= is True or False, not 'no'.")
    released = model.read(text=TEXT, budget=300)
    released.release()
    refused(lambda: kvstream.Report().add(released), "This memory was released")
    refused(lambda: memory.ask("Who?", command=5), "command= takes a str, not int.")


@pytest.mark.parametrize("name", ["temp", "strict", "system", "preset", "max_tokens", "command"])
def test_an_array_is_no_value_of_an_option(model, name) -> None:
    says = f"{name}= takes one value, not ndarray."
    refused(lambda: model.ask(text=TEXT, question="Who?", **{name: np.array([1, 2])}), says)
    refused(lambda: model.ask(text=TEXT, question="Who?", progress=np.array([1, 2])), "progress= ")


@pytest.mark.parametrize("text", [{"a": 1}, {"a"}, b"a", 5])
def test_text_is_text_or_its_pieces(model, text) -> None:
    refused(lambda: model.read(text=text), "text= is a str or an iterable of str, not ")


def test_a_budget_is_in_entries(model, memory, tmp_path: Path) -> None:
    paths = [tmp_path / "a.kvs", tmp_path / "b.kvs"]
    memory.save(paths[0])
    model.read(text="Bob kept the key.", budget=400).save(paths[1])
    refused(lambda: model.merge(paths, "1MB"), "a budget in entries per head, such as 4k")
    asked = {"text": TEXT, "question": "Who?"}
    refused(lambda: model.ask(**asked, budget="lots"), "write whole entries per head as 4096")
    small = kvstream.BudgetError
    refused(lambda: model.ask(**asked, budget=70), "A budget of 70 entries leaves", small)
    refused(lambda: model.ask(**asked, budget="1B"), "1 bytes cannot hold one entry of", small)
    many = f"A budget of {10**30:,} entries exceeds"
    refused(lambda: model.ask(**asked, budget=10**30), many, small)
    whole = {**asked, "text": TEXT * 200, "method": "full"}
    refused(lambda: model.ask(**whole, budget=300), "The text has more tokens than the", small)
    assert str(Budget(tokens=84)) == "84 entries per head"


@pytest.mark.parametrize("paths", ["a.kvs", Path("a.kvs"), None, 5])
def test_files_to_merge_are_a_list(model, paths) -> None:
    says = f"paths= takes a list of memory files, not {'None' if paths is None else ''}"
    refused(lambda: model.merge(paths), says)


def test_methods_to_compare_are_a_list_of_some(model, tmp_path: Path) -> None:
    asked = {"text": TEXT, "question": "Who?"}
    refused(lambda: model.compare(**asked, methods=[]), "methods= is empty; name at least one")
    says, twice = "methods= names window twice; name each", ["window", "h2o", "window"]
    refused(lambda: model.compare(**asked, methods=twice), says)
    refused(lambda: kvstream.ask_each(tmp_path, "Who?", methods=twice), says)
    once = {"text": iter(TEXT), "question": "Who?", "methods": ["window", "h2o"]}
    refused(lambda: model.compare(**once), "Each method reads the text again")
    for methods in ("h2o", None):
        says = "methods= takes a list of names, not "
        refused(lambda methods=methods: model.compare(**asked, methods=methods), says)
        each = {"methods": methods, "model": model}
        refused(lambda each=each: kvstream.ask_each(tmp_path, "Who?", **each), says)


@pytest.mark.parametrize(
    "options", [{"follow": True}, {"shards": 2}, {"loading": {"skim": "words"}}, {"model": None}]
)
def test_many_documents_take_no_option_of_one_text(model, tmp_path: Path, options) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    if "model" in options:
        options = {"model": Model(model.session, Scouting(model.session))}
    says = "is for one text, not for many documents"
    refused(lambda: kvstream.ask_each(tmp_path, "Who?", **options), says)


@pytest.mark.parametrize("options", [{"strict": True}, {"brief": True}, {"temp": 0.5}])
def test_an_extract_takes_no_option_of_a_written_answer(model, memory, options) -> None:
    options |= {"extract": True}
    refused(lambda: model.ask(text=TEXT, question="Who?", **options), "--extract writes no")
    refused(lambda: memory.ask("Who?", **options), "--extract writes no")


@pytest.mark.parametrize("options", [{"top_p": 0.5}, {"top_k": 3}])
def test_sampling_needs_a_temperature(model, memory, tmp_path: Path, options) -> None:
    says = f"{next(iter(options))}= has no effect at temperature 0"
    small = {"text": TEXT, "budget": 300, "max_tokens": 2}
    refused(lambda: model.ask(**small, question="Who?", **options), says)
    refused(lambda: model.summarize(**small, **options), says)
    refused(lambda: memory.ask("Who?", **options), says)
    (tmp_path / "a.txt").write_text(TEXT)
    refused(lambda: kvstream.ask_each(tmp_path, "Who?", model=model, **options), says)
    model.ask(**small, question="Who?", temp=0.5, **options)
    model.ask(**small, question="Who?", top_p=1.0, top_k=0)
    later = model.read(**small, **options)  # each answer may set its own temperature
    later.ask("Who?", temp=0.5)
    later.ask("Who?")
    model.read(**small, temp=0.5).ask("Who?", **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temp": "x"}, "temp is a number, not 'x'."),
        ({"max_tokens": None}, "max-tokens is a whole number, not None."),
        ({"seed": "x"}, "'x' is not a whole number."),
        ({"seed": True}, "seed is a whole number, not True."),
        ({"temp": True}, "temp is a number, not True."),
        ({"temp": 10**400}, "temp must be 0 or more, not 1000"),
        ({"max_tokens": True}, "'True' is not a whole number above 0"),
        ({"passages": True}, "passages is a whole number, not True."),
        ({"seed": 2**63}, "9223372036854775808 is beyond 64 bits; choose a smaller number."),
        ({"interrupted": 5}, "interrupted= takes a function, not int."),
        ({"preset": 5}, "preset is one of paper, not 5."),
        ({"chunk": "paper"}, "chunk is one of decremental, fixed, not 'paper'."),
        ({"keep": [1]}, "'[1]' is not a whole number above 0"),
        ({"passages": "x"}, "passages is a whole number, not 'x'."),
        ({"passages": 0}, "passages must be 1 or more, not 0."),
        ({"shards": "x"}, "shards is a whole number, not 'x'."),
        ({"system": 5}, "system= takes a str, not int."),
        ({"max_unpacked": [1]}, "[1] is not a size in bytes"),
        ({"max_unpacked": -1}, "-1 is not a size in bytes"),
        ({"max_unpacked": "0MB"}, "'0MB' is not a size in bytes"),
        ({"budget": 0}, "A budget of 0 is too small for any model"),
        ({"budget": "1T"}, "there is no unit 'T'"),
        ({"checkpoint_every": 0}, "checkpoint-every must be 1 or more, not 0."),
        ({"command": 5}, "command= is one of ask, summarize, compare, remember, chat, not 5."),
        ({"strict": "no"}, "strict= is True or False, not 'no'."),
        ({"follow": "no"}, "follow= is True or False, not 'no'."),
        ({"extract": "no"}, "extract= is True or False, not 'no'."),
        ({"questions": ["Where?"]}, "There is no option 'questions'."),
        ({"temp": np.float32("inf")}, "temp must be 0 or more, not inf."),
    ],
)
def test_numbers_are_numbers(model, options, says: str) -> None:
    refused(lambda: model.ask(text=TEXT, question="Who?", **options), says)


def test_arrays_are_no_lists_of_names(model) -> None:
    refused(lambda: model.merge(np.array(3)), "paths= takes a list of memory files, not ndarray.")
    memory = model.read(text=TEXT, budget=256)
    refused(lambda: memory.ask("Who?", always=[["x"]]), "always= takes a str, not list.")
    each = partial(kvstream.ask_each, model=model)
    refused(lambda: each(np.array(3), "Who?"), "source= takes a list of paths, not ndarray.")
    refused(lambda: each("a", "Who?", loading=np.ones(2)), "loading= takes a dict with names")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"threads": "x"}, "'x' is not a whole number."),
        ({"threads": 0}, "0 threads are out of range for a machine with"),
        ({"threads": 10**6}, "1000000 threads are out of range for a machine with"),
        ({"device": None}, "device= takes a str, not None."),
        ({"attn": "x"}, "attn is one of auto, split, flash, sdpa, reference, not 'x'."),
        ({"dtype": "paper"}, "dtype is one of auto, float32, bfloat16, float16, not 'paper'."),
        ({"quantize": "int4"}, "quantize is one of int8, 8bit, 4bit, not 'int4'."),
        ({"max_weights": 0}, "0 is not a size in bytes; write it as 512MB or 16GiB."),
        ({"max_weights": "4k"}, "'4k' is not a size in bytes; write it as 512MB or 16GiB."),
        ({"thread": 2}, "There is no option 'thread'. Did you mean threads?"),
        ({"offline": "no"}, "offline= is True or False, not 'no'."),
        ({"skim": "none"}, "skim= is the name of a model, 'words', 'self' or None, not 'none'."),
        (
            {"skim": Path("none")},
            "skim= is the name of a model, 'words', 'self' or None, not 'none'.",
        ),
        (
            {"revision": "x"},
            "revision= is for models of the hub, and pocket is none; leave it out.",
        ),
    ],
)
def test_how_a_model_is_loaded_is_checked_before_it(options, says: str) -> None:
    refused(lambda: kvstream.load(**options), says)


def test_an_option_of_another_call_says_which(model) -> None:
    says = "skim= is an option of kvstream.load, not of a reading."
    refused(lambda: model.ask(text=TEXT, question="Who?", skim="words"), says)


def test_methods_are_compared_on_texts_with_names(model) -> None:
    texts = [kvstream.Text(TEXT, "one"), kvstream.Text(TEXT, "two")]
    found = model.compare(texts, "Who?", methods=["window", "h2o"], budget=300, max_tokens=2)
    assert set(found) == {"window", "h2o"}


def test_a_memory_refuses_options_that_it_does_not_know(model, memory, tmp_path: Path) -> None:
    says = "There is no option 'max_token'. Did you mean max_tokens?"
    refused(lambda: memory.ask("Who?", max_token=5), says)
    refused(lambda: memory.read(text=TEXT, max_token=5), says)
    memory.save(tmp_path / "a.kvs")
    refused(lambda: model.recall(tmp_path / "a.kvs", max_token=5), says)
    for ask in (memory.ask, lambda question, **given: model.recall(tmp_path / "a.kvs", **given)):
        refused(lambda ask=ask: ask("Who?", brief="no"), "brief= is True or False, not 'no'.")
    refused(lambda: memory.ask("Who?", stop=[1]), "stop= takes a str, not int.")


def test_the_file_of_a_memory_can_be_recalled(model, tmp_path: Path) -> None:
    memory = model.read(text=TEXT, budget=300, max_tokens=4)
    memory.save(tmp_path / "a.kvs")
    file = model.recall(tmp_path / "a.kvs").file
    assert not file.whole
    assert model.recall(file).ask("Who?", max_tokens=4).text == memory.ask("Who?").text
    memory.read(text=TEXT).save(tmp_path / "a.kvs")
    says = f"{file.path} changed since it was recalled; give its path."
    refused(lambda: model.recall(file), says, kvstream.SourceError)


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


def test_what_was_read_to_its_end_says_so(model, tmp_path: Path) -> None:
    path, small = tmp_path / "book.txt", {"budget": 300, "max_tokens": 2}
    path.write_text(TEXT)
    for mode in ("r", "rb"):
        with path.open(mode) as file:
            model.ask(file, "Who?", **small)
            says = f"{path} was read to its end already; open it again, or give its path."
            refused(lambda file=file: model.ask(file, "Who?"), says, kvstream.SourceError)
    pieces = (piece for piece in [TEXT])
    model.ask(pieces, "Who?", **small)
    says = "or was read to its end already; give a new one."
    refused(lambda: model.ask(pieces, "Who?"), says, kvstream.SourceError)
    refused(lambda: model.ask(text=pieces, question="Who?"), says, kvstream.SourceError)
    path.write_text("")
    with path.open() as file:
        says = f"{path} held 0 bytes of text; name another file."
        refused(lambda: model.ask(file, "Who?"), says, kvstream.SourceError)
