"""An answer changes neither memory nor what the next selection is based on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from models import FAMILIES, fresh

from kvstream.api.model import Model
from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.events import Started
from kvstream.memory.merging import join
from kvstream.methods.registry import make
from kvstream.model.bounded import BoundedModel
from kvstream.model.probe import bound
from kvstream.session.session import Session
from kvstream.settings import RunSettings

TEXT = "the river ran past old stones while people talked about weather bread horses roads"
QUESTION = "What is the secret key of Aldric?"


def filler(seed: int, count: int) -> str:
    drawn = random.Random(seed)
    words = TEXT.split()
    return " ".join(" ".join(drawn.choices(words, k=9)).capitalize() + "." for _ in range(count))


@pytest.fixture(scope="module")
def model(session: Session) -> Model:
    return Model(session)


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """Two texts with the words of the question; memory evicts them in the first text only."""
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text(f"The secret key hung there. Aldric sold the secret key. {filler(1, 70)}\n")
    second.write_text(f"{filler(2, 70)} The secret key of Aldric is 7421. {filler(3, 4)}\n")
    return [first, second]


def test_a_saved_memory_sees_the_same_source_as_the_memory_itself(model, sources, tmp_path) -> None:
    memory = model.read(sources, budget=400, method="streaming", max_tokens=8)
    before = memory.ask(QUESTION)
    memory.save(tmp_path / "both.kvs")
    recalled = model.recall(tmp_path / "both.kvs").ask(QUESTION)
    after = memory.ask(QUESTION)
    assert before.text == recalled.text == after.text
    assert before.result.narrowed == recalled.result.narrowed == after.result.narrowed
    assert before.result.narrowed["sources"] == [str(sources[1])]


def test_a_memory_is_the_same_after_questions(model, sources, tmp_path) -> None:
    """The server saves it, and asks it again."""
    # The last chunk fits, so nothing is evicted after it.
    memory = model.read(sources, budget=400, method="streaming", max_tokens=8, keep=200)
    digest, before = memory.save(tmp_path / "before.kvs"), memory.ask(QUESTION)
    assert memory.ask("What is it?", max_tokens=4, last=True).result.narrowed is None
    assert memory.save(tmp_path / "after.kvs") == digest
    after = memory.ask(QUESTION)
    assert (after.text, after.result.narrowed) == (before.text, before.result.narrowed)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_empty_file_with_the_words_in_its_name_hides_nothing(
    model, sources, tmp_path, place
) -> None:
    empty = tmp_path / "secret key Aldric.txt"
    empty.write_text("")
    memory = model.read([*sources[:place], empty, *sources[place:]], budget=400, method="streaming")
    narrowed = memory.ask(QUESTION, max_tokens=4).result.narrowed
    assert narrowed["sources"] == [str(sources[1])]


@pytest.mark.parametrize("method", ["snapkv", "pyramidkv", "tova", "append"])
def test_an_extract_is_the_same_before_and_after_an_answer(
    model, sources, tmp_path, method
) -> None:
    def extract(memory) -> str:
        return memory.ask("What?", extract=True, passages=3).text

    memory = model.read(sources[1], budget=500, method=method)
    first = extract(memory)
    memory.ask(QUESTION, max_tokens=8)
    assert extract(memory) == first
    memory.save(tmp_path / "asked.kvs")
    assert extract(model.recall(tmp_path / "asked.kvs")) == first


def test_memories_that_were_asked_join_as_if_they_were_not(model, sources) -> None:
    def joined(*, asked: bool) -> list[int]:
        first, second = (model.read(path, budget=400, method="snapkv") for path in sources)
        if asked:
            first.ask(QUESTION, max_tokens=8)
        return join(first._engine, second._engine, 400).reader.retained().tolist()

    assert joined(asked=True) == joined(asked=False)


@pytest.mark.parametrize("every", [None, 64, 100])
def test_a_text_that_fits_stays_whole_though_answers_are_given_on_the_way(
    model, tmp_path, every
) -> None:
    text = tmp_path / "short.txt"
    text.write_text(f"The secret key of Aldric is 7421. {filler(5, 39)}\n")
    options = {"every": every} if every else {}
    events = list(
        model.stream(
            text, question=QUESTION, budget=512, method="streaming", max_tokens=16, **options
        )
    )
    planned = next(event for event in events if isinstance(event, Started))
    result = events[-1].result
    assert planned.lossless
    assert result.read > 400
    assert (result.retained, result.evicted) == (result.read, 0)


# Settings of a paper.


class Tokens:
    """A feed of `length` tokens."""

    def __init__(self, length: int) -> None:
        self.length, self.done = length, 0

    def read(self, n: int) -> Chunk:
        ids = [(7 * j * j + 3) % 90 + 3 for j in range(self.done, min(self.done + n, self.length))]
        chunk = Chunk(ids, self.done)
        self.done += len(ids)
        return chunk

    def exhausted(self) -> bool:
        return self.done >= self.length

    def estimate(self) -> int:
        return self.length


@pytest.fixture(scope="module")
def tiny() -> BoundedModel:
    return bound(fresh(FAMILIES["llama"].config(num_hidden_layers=4)), "llama")


def steps(tiny: BoundedModel, method: str, length: int, **run):
    budget = 256
    settings = RunSettings(method=method, **run)
    sizes = BudgetSplit(budget, 2, 0, 10, 20)
    reader = Reader(tiny, make(method, {}), settings, sizes, [1, 2], (), length)
    for report in reader.read(Tokens(length)):
        yield reader, report


def test_memory_that_starts_as_in_the_paper_keeps_the_sinks(tiny) -> None:
    for found, _ in steps(tiny, "streaming", 1000, keep=20, start="paper", chunk_size=64):
        reader = found
    assert reader.retained()[:4].tolist() == [0, 1, 2, 3]


def test_the_retention_ratio_is_that_of_eq_2(tiny) -> None:
    """A layer has the mean over its heads of |M_{i-1} and M_i| / |M_i|, sinks included."""
    before, compared = None, 0
    run = {"schedule": "adaptive", "chunk": "fixed", "chunk_size": 64, "keep": 150, "start": 20}
    for reader, _ in steps(tiny, "snapkv", 500, **run):
        layers = [s.origin[:, 2 : s.used].tolist() for s in reader.compressible]
        if before is not None and reader.evictor.ratios is not None:
            expected = [
                sum(len(set(a) & set(b)) / len(b) for a, b in zip(old, new, strict=True)) / len(new)
                for old, new in zip(before, layers, strict=True)
            ]
            assert reader.evictor.ratios == pytest.approx(expected, abs=1e-6)
            compared += 1
        before = layers
    assert compared > 3


def test_a_question_that_takes_all_that_is_free_gets_a_token(tiny) -> None:
    for found, _ in steps(tiny, "streaming", 400):
        reader = found
    room = reader.sizes.budget - reader.cache.size
    said = list(reader.answer([5] * room, lambda logits: int(logits.argmax()), frozenset(), 1))
    assert len(said) == 1
    assert torch.tensor(reader.cache.peak.tokens) <= reader.sizes.budget
