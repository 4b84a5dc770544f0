"""Find the memory that a question is about: by words, by likelihood, with broken files."""

from __future__ import annotations

import json
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvstream.api.model import Model
from kvstream.collection.rank import FORGOTTEN, _counts, by_words, memory_files, rank
from kvstream.errors import SourceError
from kvstream.events import returned
from kvstream.input.sources import open_sources
from kvstream.memory import saving
from kvstream.memory.contents import Memory
from kvstream.memory.glance import glance, state_in
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings

TOPICS = {
    "harbour": "The harbour master Ingrid Vale counted the herring boats at dawn. ",
    "orchard": "In the orchard old Tobias Quill grafted pears onto quince roots. ",
    "observatory": "At the observatory Nadia Frost measured the comet through the night. ",
    "bakery": "The bakery of Leopold Crumb sold rye bread and plum tarts. ",
}


@pytest.fixture(scope="module")
def made(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("memories")
    run = RunSettings(Budget(tokens=300), "keydiff")
    for name, sentence in TOPICS.items():
        text = place / f"{name}.txt"
        text.write_text(sentence * 30)
        memory = returned(session.read(open_sources([str(text)]), Request((), run, "remember")))
        saving.save(memory, place / f"{name}.kvs")
    return place


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the memories, which the test may damage."""
    return shutil.copytree(made, tmp_path / "memories")


def recall(session: Session, path: Path) -> Memory:
    return session.recall(saving.look(path), RunSettings())


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("What did Tobias Quill graft?", "orchard"),
        ("Who measured the comet?", "observatory"),
        ("What does Leopold Crumb sell?", "bakery"),
        ("Who counted the boats?", "harbour"),
    ],
)
def test_the_memory_that_a_question_is_about_comes_first(
    session: Session, folder: Path, question: str, name: str
) -> None:
    for ranked, problems in (
        by_words(question, memory_files(folder)),
        rank(question, memory_files(folder), lambda path: recall(session, path)),
    ):
        assert ranked[0].path.stem == name
        assert [r.path.stem for r in ranked].count(name) == 1
        assert len(ranked) == len(TOPICS)
        assert not problems


@pytest.mark.parametrize("accented", [True, False])
def test_words_match_with_and_without_accents(
    session: Session, folder: Path, accented: bool
) -> None:
    names = ("Défago", "Defago")
    text = folder / "guide.txt"
    text.write_text(f"The guide {names[not accented]} paddled home. " * 30)
    run = RunSettings(Budget(tokens=300), "keydiff")
    memory = returned(session.read(open_sources([str(text)]), Request((), run, "remember")))
    saving.save(memory, folder / "guide.kvs")
    words = glance(folder / "guide.kvs").words
    assert words is not None
    for name in names:
        assert words.has_word(name)
        ranked, _ = by_words(f"Was {name} ill?", memory_files(folder))
        assert ranked[0].path.stem == "guide", name
        assert ranked[0].words > ranked[1].words


def test_words_of_forgotten_passages_count_less(folder: Path) -> None:
    seen = glance(folder / "bakery.kvs")
    assert "plum tarts" in seen.text
    assert seen.words is not None
    assert seen.words.has_word("rye")
    assert not seen.words.has_word("comet")
    asked = {word: word for word in ("plum", "rye", "comet")}
    counts, _ = _counts(seen, asked)
    assert counts[0] >= 1
    assert _counts(replace(seen, text="It rained."), asked)[0] == [FORGOTTEN, FORGOTTEN, 0.0]
    assert 0 < FORGOTTEN < 1


def test_a_memory_that_was_made_for_the_question_comes_first(
    session: Session, tmp_path: Path
) -> None:
    model = Model(session)
    question = "Who hid the letter?"
    for name, text in ("a", "Ada hid the letter. " * 20), ("b", "Snow fell on the town. " * 20):
        asked = [question] if name == "b" else []
        model.read(text=text, questions=asked, budget=300).save(tmp_path / f"{name}.kvs")
    ranked, _ = by_words(question, memory_files(tmp_path))
    assert [(each.path.stem, each.known) for each in ranked] == [("b", True), ("a", False)]
    assert ranked[0].words < ranked[1].words
    first = Model(session).memories(tmp_path).rank(question)[0]
    assert first.path.stem == "b"


def test_only_so_many_are_loaded(session: Session, folder: Path) -> None:
    loaded = []

    def note(path: Path) -> Memory:
        loaded.append(path)
        return recall(session, path)

    ranked, _ = rank("Who measured the comet?", memory_files(folder), note, loaded=2)
    assert len(loaded) == 2
    assert [r.gain is not None for r in ranked] == [True, True, False, False]


def test_a_file_that_breaks_after_the_ranking_costs_no_other_answer(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that ranking did not load."""
    memories, question = Model(session).memories(folder), "Who measured the comet?"
    ranked = memories.rank(question)
    monkeypatch.setattr(memories, "rank", lambda _: ranked)
    ranked[0].path.write_bytes(b"")
    answers = memories.answers(question, best=2, max_tokens=4)
    assert [each.path for each, _ in answers] == [ranked[1].path]
    assert str(ranked[0].path) in memories.problems[0]
    ranked[1].path.write_bytes(b"")
    with pytest.raises(SourceError, match="No memory file here can be used"):
        memories.answers(question, best=2, max_tokens=4)


def test_broken_files_are_left_out_and_named(session: Session, folder: Path) -> None:
    (folder / "empty.kvs").write_bytes(b"")
    (folder / "cut.kvs").write_bytes((folder / "bakery.kvs").read_bytes()[:900])
    altered = bytearray((folder / "harbour.kvs").read_bytes())
    altered[-1] ^= 1
    (folder / "harbour.kvs").write_bytes(altered)
    ranked, problems = rank(
        "Who counted the boats?", memory_files(folder), lambda path: recall(session, path)
    )
    assert {r.path.stem for r in ranked} == {"orchard", "observatory", "bakery"}
    assert len(problems) == 3
    assert all("cannot be used" in problem for problem in problems)


NESTED = b"[" * 200_000
"""Nested deeper than any parser follows."""


@pytest.mark.parametrize(
    "head",
    [
        b"{", b"\xff\xfe", b"[1, 2]", b'{"__metadata__": {"state": 5}}', NESTED,
        b'{"__metadata__": {"state": "' + NESTED + b'"}}',
        b'{"__metadata__": {"state": "{}"}, "more": ' + NESTED,
    ],
    ids=["cut", "binary", "list", "number", "nested", "nested state", "nested tensor"],
)  # fmt: skip
def test_a_damaged_header_is_told_in_words_of_people(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "a.kvs"
    path.write_bytes(len(head).to_bytes(8, "little") + head)
    with pytest.raises(SourceError, match=r"cannot be used: (it is|its header is) ") as caught:
        glance(path)
    assert "column" not in str(caught.value)
    with pytest.raises(SourceError, match="cannot be used"):
        state_in(path)


def test_passages_that_are_nested_too_deep_are_damage(tmp_path: Path) -> None:
    packed = zlib.compress(NESTED)
    table = {
        "__metadata__": {"state": json.dumps({"trace": {"sources": []}})},
        "trace.passages": {"data_offsets": [0, len(packed)]},
    }
    head = json.dumps(table).encode()
    path = tmp_path / "a.kvs"
    path.write_bytes(len(head).to_bytes(8, "little") + head + packed)
    with pytest.raises(SourceError, match="cannot be used: it is damaged"):
        glance(path)


def test_a_memory_of_more_than_128_mib_is_ranked(folder: Path) -> None:
    path, large = folder / "bakery.kvs", folder / "large.kvs"
    data, more = path.read_bytes(), 1 << 27
    size = 8 + int.from_bytes(data[:8], "little")
    table = json.loads(data[8:size])
    for name in table.keys() - {"__metadata__"}:
        table[name]["data_offsets"] = [more + place for place in table[name]["data_offsets"]]
    table["entries.99.keys"] = {"dtype": "U8", "shape": [more], "data_offsets": [0, more]}
    head = json.dumps(table).encode()
    with large.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.seek(more, 1)  # a hole, which takes no room on the disk
        file.write(data[size:])
    assert glance(large).text == glance(path).text != ""


@pytest.mark.parametrize("places", [[0, 1 << 70], [5, 4], [-1, 2], [1.5, 2], ["0", "1"]])
def test_passages_outside_of_the_file_are_damage(folder: Path, places: list[Any]) -> None:
    path = folder / "bakery.kvs"
    data = path.read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    table = json.loads(data[8:size])
    table["trace.passages"]["data_offsets"] = places
    head = json.dumps(table).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data[size:])
    with pytest.raises(SourceError, match="cannot be used: it is damaged"):
        glance(path)


def test_a_file_that_was_cut_short_is_called_damaged(folder: Path) -> None:
    path = folder / "bakery.kvs"
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(SourceError, match="cannot be used: it is damaged"):
        glance(path)


def test_a_folder_without_memories_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no memory files"):
        memory_files(tmp_path)
