"""The tokens that each head kept, and the text around them."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvstream
from kvstream.api.model import Model
from kvstream.input.sources import open_sources
from kvstream.logs.thinning import ThinnedSource
from kvstream.memory.snapshot.page_text import MARGIN, NEAR, document_of
from kvstream.memory.snapshot.positions import Snapshot
from kvstream.memory.snapshot.reread_text import reread
from kvstream.reporters.html.page import Document, Fold, Text
from kvstream.tokenization.loading import TokenStream

PROSE = "".join(
    f"Chapter {n}. Mrs. Ålund & her <b>son</b> 🙂 walked {n * 7} miles to the sea.\r\n"
    f"They said: {{{{ {n} }}}} is “enough” for anyone who has seen the {n}th wave.\n\n"
    for n in range(60)
)
QUESTION = "How far did Mrs. Ålund walk?"


@pytest.fixture(scope="module")
def model(session) -> Model:
    return Model(session)


@pytest.fixture(scope="module")
def read(model: Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Snapshot, Any]:
    """Return a file, what memory kept of it, and the result."""
    path = tmp_path_factory.mktemp("kept") / "prose.txt"
    path.write_bytes(PROSE.encode())
    found: list[Any] = []
    for event in model.stream(path, question=QUESTION, budget=384):
        if isinstance(event, kvstream.AnswerStarted):
            assert event.kept is not None
            found.append(event.kept())
        elif isinstance(event, kvstream.Answered):
            found.append(event.result)
    return path, found[0], found[1]


def texts_of(document: Document) -> list[str]:
    return [item.text for s in document.sections for item in s.items if isinstance(item, Text)]


def units(text: str, start: int, length: int) -> str:
    """Return a part of a text. `start` and `length` count UTF-16 code units, as a browser does."""
    data = text.encode("utf-16-le")
    return data[2 * start : 2 * (start + length)].decode("utf-16-le")


def all_tokens(path: Path, tokenizer: Any) -> np.ndarray:
    """Return the byte offsets where the tokens begin and where the last one ends."""
    from kvstream.input.sources import open_sources

    stream = TokenStream(tokenizer, open_sources([str(path)]))
    parts = []
    while len(batch := stream.read(100)):
        parts.append(batch.starts)
        end = batch.end
    return np.append(np.concatenate(parts), end)


def test_the_positions_agree_with_the_result(read: tuple[Path, Snapshot, Any]) -> None:
    _, kept, result = read
    assert len(kept.ordinals) == result.retained == len(kept.starts)
    assert kept.read == result.read
    assert 0 < kept.counts().min() <= kept.counts().max() <= sum(map(len, kept.heads))
    union = np.unique(np.concatenate([h for layer in kept.heads for h in layer]))
    assert len(union) == result.retained


def test_each_span_is_its_token(read: tuple[Path, Snapshot, Any]) -> None:
    """The reference decodes the bytes of each token separately."""
    path, kept, result = read
    cited = [(c["source"], c["byte_start"], c["byte_end"]) for c in result.citations]
    document = document_of({"one": kept}, cited)
    texts, data, starts = texts_of(document), path.read_bytes(), all_tokens(path, kept.tokenizer)
    assert document.ordinals.tolist() == kept.ordinals.tolist()
    for ordinal, (text, start, length) in zip(kept.ordinals, document.spans, strict=True):
        shown = units(texts[text], start, length)
        own = data[starts[ordinal] : starts[ordinal + 1]]
        try:
            assert shown == own.decode()
        except UnicodeDecodeError:  # a part of a character is shown as the whole
            assert own in shown.encode()
    for citation, span in zip(result.citations, document.places, strict=True):
        assert span is not None
        shown = units(texts[span.text], span.start, span.length)
        assert citation["text"].startswith(shown)


def test_all_of_a_short_text_is_there(read: tuple[Path, Snapshot, Any]) -> None:
    _, kept, _ = read
    document = document_of({"one": kept}, [])
    parts = [item.text for s in document.sections for item in s.items]
    assert "".join(part or "" for part in parts) == PROSE


def test_a_long_text_is_folded(read: tuple[Path, Snapshot, Any]) -> None:
    """Each byte of the file is either shown or folded. Kept tokens are shown."""
    path, kept, _ = read
    few = dataclasses.replace(
        kept,
        ordinals=kept.ordinals[[0, -1]],
        starts=kept.starts[[0, -1]],
        heads=((np.array([0, 1]),),),
    )
    document = document_of({"one": few}, [], limit=4000)
    folds = [item for s in document.sections for item in s.items if isinstance(item, Fold)]
    assert folds
    assert all(fold.text is None and fold.tokens for fold in folds)
    shown = sum(len(text.encode()) for text in texts_of(document))
    assert shown + sum(fold.size for fold in folds) == len(path.read_bytes())
    assert shown <= 2 * (2 * NEAR[0] + 2 * MARGIN + 200)
    assert all(length > 0 for _, _, length in document.spans)
    assert "folded" in document.notes[0]


def test_the_limits_hold(read: tuple[Path, Snapshot, Any]) -> None:
    _, kept, _ = read
    document = document_of({"one": kept}, [], limit=2000, most=40)
    assert len(document.spans) <= 40
    assert sum(len(text.encode()) for text in texts_of(document)) < 6000
    assert f"of the {len(kept.ordinals)} kept tokens" in document.notes[-1]
    counts = kept.counts()
    assert document.shadings[0].counts.min() >= np.sort(counts)[-len(document.spans)]


def test_a_changed_file_shows_what_memory_holds(
    read: tuple[Path, Snapshot, Any], tmp_path: Path
) -> None:
    """The page shows no byte of the new text."""
    path, kept, _ = read
    other = tmp_path / "prose.txt"
    other.write_bytes(path.read_bytes().replace(b"miles", b"yards"))
    records = [dataclasses.replace(kept.records[0], name=str(other))]
    document = document_of({"one": dataclasses.replace(kept, records=records)}, [])
    assert "changed after it was read" in document.notes[0]
    shown = "".join(texts_of(document))
    assert "yards" not in shown
    assert all(passage.text in shown for passage in kept.passages)


def test_text_behind_what_was_read_does_no_harm(
    read: tuple[Path, Snapshot, Any], tmp_path: Path
) -> None:
    """A file that grew is unchanged up to where it was read."""
    path, kept, _ = read
    grown = tmp_path / "grown.txt"
    grown.write_bytes(path.read_bytes() + b"And so on.\n" * 50)
    records = [dataclasses.replace(kept.records[0], name=str(grown))]
    document = document_of({"one": dataclasses.replace(kept, records=records)}, [])
    assert not document.notes


def test_a_packed_text_is_read_again_as_far_as_it_was_read(
    read: tuple[Path, Snapshot, Any], tmp_path: Path
) -> None:
    _, kept, _ = read
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"the people were there before the other children. " * 4000))
    sources = open_sources([str(path)])
    TokenStream(kept.tokenizer, sources).read(1)  # one block, as before an interrupt
    part = dataclasses.replace(kept, records=sources.records, bases=sources.bases, read=1)
    found = reread(part, np.array([0]), [(0, 10)])
    assert not isinstance(found, str), found
    assert found.pieces[0].text == "the people"


@pytest.mark.parametrize("name", ["a.txt", "a.gz"])
def test_a_thinned_log_is_read_again_as_far_as_it_was_read(
    read: tuple[Path, Snapshot, Any], tmp_path: Path, name: str
) -> None:
    _, kept, _ = read
    line = "2026-01-01 10:00:00 INFO café: les élèves étaient là\n".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(line * 9000) if name == "a.gz" else line * 9000)
    sources = open_sources([str(path)])
    for _ in ThinnedSource(sources, whole=0):
        if sources.bytes_read > 140_000:  # three blocks, and there the user interrupts
            break
    assert sources.bytes_read < len(line) * 9000
    part = dataclasses.replace(kept, records=sources.records, bases=sources.bases, read=1)
    found = reread(part, np.array([0]), [(0, 10)])
    assert not isinstance(found, str), found
    assert found.pieces[0].text == "2026-01-01"


def test_a_pipe_shows_passages_alone(model: Model) -> None:
    for event in model.stream(text=PROSE, question=QUESTION, budget=384):
        if isinstance(event, kvstream.AnswerStarted):
            assert event.kept is not None
            kept = event.kept()
    document = document_of({"one": kept}, [])
    assert "cannot be read a second time" in document.notes[0]
    held = {passage.text for passage in kept.passages}
    assert set(texts_of(document)) <= held
    folds = [item for s in document.sections for item in s.items if isinstance(item, Fold)]
    assert all(fold.text is None and fold.tokens is None for fold in folds)
    assert document.ordinals.tolist() == kept.ordinals.tolist()
