"""Many documents in one process: what it reads, what fails, what a later run reuses."""

from __future__ import annotations

import errno
import gzip
import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from kvstream.api.collection import ask_each, remember_each, summarize_each
from kvstream.api.memory import inspect
from kvstream.api.model import Model
from kvstream.collection import serial
from kvstream.collection.document_list import Document, documents_in
from kvstream.collection.job import Job
from kvstream.errors import BudgetError, KvstreamError, SourceError, UsageError
from kvstream.events import DocumentDone, DocumentFailed, DocumentStarted
from kvstream.run.prompt import Layout
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import ModelSettings, RunSettings

WHO = "Who hid the letter?"
PEOPLE = ("Ada", "Berta", "Clara")


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    folder = tmp_path / "letters"
    folder.mkdir()
    for name in PEOPLE:
        text = f"{name} hid the letter under the third stone of the wall. Nobody saw it.\n" * 5
        (folder / f"{name}.txt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def model(session: Session) -> Model:
    return Model(session, settings=ModelSettings(dtype="float32"))


def ask(letters: Path, model: Model, **options: Any) -> list[Any]:
    options = {"budget": 256, "max_tokens": 8, **options}
    return list(ask_each(letters, WHO, model=model, **options))


def test_each_document_has_the_answer_of_a_run_on_it_alone(letters: Path, model: Model) -> None:
    found = {o.name: o for o in ask(letters, model)}
    assert [Path(name).stem for name in found] == list(PEOPLE)
    for name, outcome in found.items():
        alone = model.ask(name, WHO, budget=256, max_tokens=8)
        (record,) = outcome.records
        assert record["answer"] == alone.text
        assert record["citations"] == list(alone.citations)
        assert Path(name).stem in record["answer"]
        assert record["peak"]["kv_tokens"] <= 256
        assert outcome.support == pytest.approx(record["support"]["probability"])


def test_a_second_run_reads_only_what_is_missing(
    letters: Path, model: Model, tmp_path: Path
) -> None:
    into = tmp_path / "answers"
    first = ask(letters, model, into=into)
    assert not any(o.present for o in first)
    assert sorted(o.file for o in first) == sorted(str(p) for p in into.iterdir())
    Path(first[1].file).unlink()
    Path(first[2].file).write_text('{"document"')  # another program truncated it
    (letters / "Ada.txt").write_text("Dora hid the letter under the third stone.\n" * 5)
    begun: list[str] = []
    again = ask(
        letters, model, into=into,
        progress=lambda e: begun.append(e.name) if isinstance(e, DocumentStarted) else None,
    )  # fmt: skip
    assert begun == [o.name for o in first]
    assert "Dora" in again[0].records[0]["answer"]
    assert [o.records[0]["answer"] for o in again[1:]] == [
        o.records[0]["answer"] for o in first[1:]
    ]
    third = ask(letters, model, into=into)
    assert all(o.present for o in third)
    assert [list(o.records) for o in third] == [json.loads(json.dumps(o.records)) for o in again]


def test_other_settings_have_other_results(letters: Path, model: Model, tmp_path: Path) -> None:
    into = tmp_path / "answers"
    ask(letters, model, into=into)
    assert not any(o.present for o in ask(letters, model, into=into, budget=300))
    assert len(list(into.iterdir())) == 2 * len(PEOPLE)


def test_memories_are_those_of_single_readings(letters: Path, model: Model, tmp_path: Path) -> None:
    found = list(remember_each(letters, tmp_path / "memories", model=model, budget=256))
    for outcome in found:
        single = tmp_path / "single.kvs"
        assert outcome.file is not None
        digest = model.read(outcome.name, budget=256).save(single)
        assert inspect(outcome.file).digest == digest
        assert outcome.records[0]["memory"]["sha256"] == digest
    Path(found[0].file or "").write_bytes(b"cut short")
    again = list(remember_each(letters, tmp_path / "memories", model=model, budget=256))
    assert [o.present for o in again] == [False, True, True]
    assert again[1].records[0]["memory"]["sha256"] == found[1].records[0]["memory"]["sha256"]


def test_several_methods_and_summaries(letters: Path, model: Model) -> None:
    found = ask(letters, model, methods=["infinipot", "streaming"])
    assert [[r["method"] for r in o.records] for o in found] == [["infinipot", "streaming"]] * 3
    summaries = list(summarize_each(letters, model=model, budget=256))
    assert all("letter" in o.records[0]["answer"] and o.support is None for o in summaries)


def test_what_cannot_be_read_is_told_and_the_rest_goes_on(letters: Path, model: Model) -> None:
    packed = bytearray(gzip.compress(b"Some text that is long enough. " * 99))
    packed[20:60] = bytes(40)
    (letters / "B.gz").write_bytes(packed)
    (letters / "empty.txt").write_text("")
    (letters / "picture.png").write_bytes(b"\x89PNG\0\0")
    told: list[Any] = []
    found = ask(letters, model, progress=told.append)
    failed = {Path(o.name).name: o for o in found if isinstance(o, DocumentFailed)}
    assert set(failed) == {"B.gz", "empty.txt"}
    assert "damaged" in failed["B.gz"].reason
    assert failed["empty.txt"].exit_code == 3
    assert len([o for o in found if isinstance(o, DocumentDone)]) == len(PEOPLE)
    assert "1 × binary file (the first: " in told[0].message


def test_two_documents_of_one_name(tmp_path: Path, model: Model) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.txt").write_text(f"{name.title()} hid the letter there.\n" * 5)
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "same.txt").write_text("One hid the letter there.\n" * 5)
    into = tmp_path / "answers"
    folders = [str(tmp_path / name) for name in ("one", "two", "three")]
    found = list(ask_each(folders, WHO, model=model, into=into, budget=256, max_tokens=8))
    assert len({o.file for o in found if isinstance(o, DocumentDone)}) == 3
    assert all(Path(o.file or "").name.startswith("same.txt-") for o in found)  # type: ignore


def test_a_full_disk_loses_no_answer(
    letters: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into, replace = tmp_path / "answers", os.replace

    def full(source: Any, target: Any) -> None:
        if "Berta" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(serial.os, "replace", full)
    found = ask(letters, model, into=into)
    (failed,) = [o for o in found if isinstance(o, DocumentFailed)]
    assert "No space left" in failed.reason
    assert "Berta" in failed.records[0]["answer"]
    assert len(list(into.iterdir())) == 2  # and no partial file
    monkeypatch.undo()
    assert [o.present for o in ask(letters, model, into=into)] == [True, False, True]


def test_what_no_document_can_change_ends_the_run(letters: Path, model: Model) -> None:
    with pytest.raises(BudgetError):
        ask(letters, model, budget=8)
    with pytest.raises(UsageError, match="checkpoint"):
        ask(letters, model, checkpoint="file")
    with pytest.raises(UsageError, match="folder"):
        list(remember_each(letters, None, model=model))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="load the model themselves"):
        ask(letters, model, workers=2)


def test_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no text files"):
        documents_in([str(tmp_path / "empty")])
    with pytest.raises(SourceError, match="does not exist"):
        documents_in([str(tmp_path / "nowhere")])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is not a file"):
        documents_in([str(tmp_path / "pipe")])


def test_a_file_named_in_two_ways_is_one_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text")
    documents, _ = documents_in(["a.txt", "./a.txt", ".", str(tmp_path)])
    assert [document.name for document in documents] == ["a.txt", "b.txt"]


def test_results_in_the_folder_of_the_documents_are_no_documents(letters: Path) -> None:
    names = [d.name for d in documents_in([str(letters)])[0]]
    for into in (letters, letters / "out"):
        into.mkdir(exist_ok=True)
        for name in ("a.txt-0123456789ab.json", "b.txt-0123456789ab.kvs"):
            (into / name).write_text("{}")
        documents, told = documents_in([str(letters)], into=into)
        assert [d.name for d in documents] == names
        assert told == ["Skipped: 2 × result of an earlier run."]
        for path in into.glob("*.txt-*"):
            path.unlink()


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(KvstreamError, match="is a file"):
        serial.check_folder(tmp_path / "file")
    (tmp_path / "probe").write_text("mine")
    serial.check_folder(tmp_path)
    assert (tmp_path / "probe").read_text() == "mine"
    assert {p.name for p in tmp_path.iterdir()} == {"file", "probe"}


def test_names_of_results_are_names_everywhere(tmp_path: Path) -> None:
    path = tmp_path / f"{'ä/ü'.replace('/', '?')}{'x' * 200}.txt"
    path.write_text("text")
    job = Job(ModelSettings(), (Request((WHO,)),), tmp_path)
    (document,), _ = documents_in([str(path)])
    name = job.target(document, "0" * 64).name
    assert len(name.encode()) < 100
    assert name == name.translate({ord(c): "-" for c in "?*[]/:\\"})


def test_a_name_that_is_no_text_has_a_result_too(tmp_path: Path) -> None:
    job = Job(ModelSettings(), (Request((WHO,)),), tmp_path)
    names = [job.target(Document(f"caf{c}.txt", 1), "0" * 64).name for c in ("\udce9", "\udce8")]
    assert len(set(names)) == 2
    "".join(names).encode()


def test_every_option_of_a_result_is_in_its_name() -> None:
    """Otherwise a run with another option would reuse the old result."""

    def settings(request: Request) -> str:
        return Job(ModelSettings(), (request,)).settings

    others = {
        "questions": (), "command": "summarize", "system": "Be brief.", "layout": Layout("Text: "),
        "extract": True, "passages": 3, "strict": True,
        "run": RunSettings(max_tokens=7), "plain": True, "preset": "paper",
        "only": "chapter 3", "since": "2024-05-01", "until": "2024-05-02",
    }  # fmt: skip
    plain = Request((WHO,))
    found = {settings(replace(plain, **{name: value})) for name, value in others.items()}
    found.add(settings(replace(plain, run=RunSettings(thin="auto"))))
    assert len(found | {settings(plain)}) == 2 + len(others)
    untold = {
        "every", "checkpoint", "checkpoint_every", "interrupted", "choices", "follow", "shards",
        "workers", "worker_memory", "max_unpacked",
    }  # fmt: skip
    assert {field.name for field in fields(Request)} == set(others) | untold


@pytest.mark.parametrize("model", ["llamacpp:m", "~/m.gguf", "~/folder"])
def test_other_weights_of_a_model_give_another_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    for name in ("HOME", "LLAMA_CACHE", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "folder").mkdir()
    found = set()
    for text in ("one", "three"):
        for name in ("m.gguf", "folder/model.safetensors"):
            (tmp_path / name).write_text(text)
        found.add(Job(ModelSettings(model=model), (Request((WHO,)),)).settings)
    assert len(found) == 2
