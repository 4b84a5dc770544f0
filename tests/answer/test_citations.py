"""Citations of an answer: their weights equal attention computed in full, and their results."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvstream.answer.citations import measure
from kvstream.events import Answered, returned
from kvstream.input.sources import open_sources
from kvstream.model import hook
from kvstream.run.request import Request
from kvstream.sample.document import make_facts
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings
from kvstream.tokenization.passages import Passage

SEED, FACTS = 3, 6


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Path:
    return write_story(tokens=1500, seed=SEED, facts=FACTS)


def read(session: Session, path: Path, questions: list[str], **run: Any) -> Any:
    settings = RunSettings(Budget(tokens=512), max_tokens=24, **run)
    return returned(session.read(open_sources([str(path)]), Request(tuple(questions), settings)))


def test_weights_are_those_of_attention_written_out(
    session: Session, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = make_facts(FACTS, SEED)[0].question
    memory = read(session, story, [question])
    reader, asked = memory.reader, memory.prompt.tail(question)
    said = [5, 17, 300, 41]
    ends = [store.used for store in reader.cache.stores]
    before = [store.keys.clone() for store in reader.cache.stores]
    written: list[torch.Tensor] = []
    evidence = hook.evidence

    def slow(q: Any, k: Any, lse: Any, shape: Any, wanted: Any) -> Any:
        scores = q @ k.repeat_interleave(q.shape[0] // k.shape[0], 0).mT * shape.scale
        hidden = torch.ones(scores.shape[1:]).tril(k.shape[1] - q.shape[1]) == 0
        written.append(scores.masked_fill(hidden, -torch.inf).softmax(-1))
        return evidence(q, k, lse, shape, wanted)

    monkeypatch.setattr(hook, "evidence", slow)
    found = measure(reader, asked, said)
    assert found is not None
    by_answer: dict[int, float] = {}
    by_question: dict[int, float] = {}
    for store, attention, end in zip(reader.cache.stores, written, ends, strict=True):
        heads = attention.unflatten(0, (store.spec.heads, -1))
        for kv in range(store.spec.heads):
            for entry in range(end):
                token = int(store.origin[kv, entry])
                if token >= 0:
                    column = heads[kv, :, :, entry]
                    looked = column[:, len(asked) - 1 :].mean(1).amax() ** 2
                    by_answer[token] = by_answer.get(token, 0) + float(looked)
                    looked = column[:, : len(asked)].mean(1).amax() ** 2
                    by_question[token] = by_question.get(token, 0) + float(looked)
    assert found.ordinals.tolist() == sorted(by_answer)
    for ours, slowly in ((found.by_answer, by_answer), (found.by_question, by_question)):
        wanted = torch.tensor([slowly[token] for token in sorted(slowly)])
        torch.testing.assert_close(ours, wanted / wanted.sum(), atol=1e-5, rtol=1e-3)
    assert [store.used for store in reader.cache.stores] == ends
    for store, keys, end in zip(reader.cache.stores, before, ends, strict=True):
        assert torch.equal(store.keys[:, :end], keys[:, :end])


def test_an_answer_as_long_as_the_budget_is_cited_within_it(session: Session, story: Path) -> None:
    memory = read(session, story, ["Who?"])
    found = measure(memory.reader, memory.prompt.tail("Who?"), [7] * 2000)
    assert found is not None
    assert memory.reader.cache.peak.tokens <= 512
    assert measure(memory.reader, memory.prompt.tail("Who?"), []) is None


def test_citations_name_bytes_and_lines_of_their_file(session: Session, tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("It rained.\nNobody came.\n", encoding="utf-8")
    second.write_text("Così è.\nThe passkey for the old mill is 70615.\nThey left.\n")
    events = session.ask(
        open_sources([str(first), str(second)]),
        Request(("What is the passkey for the old mill?",), RunSettings(max_tokens=12)),
    )
    result = next(e.result for e in events if isinstance(e, Answered))
    cited = result.citations[0]
    assert cited["source"] == str(second)
    assert (cited["line_start"], cited["line_end"]) == (2, 2)
    data = second.read_bytes()[cited["byte_start"] : cited["byte_end"]]
    assert data.decode() == cited["text"] == "The passkey for the old mill is 70615."
    weights = [c["weight"] for c in result.citations]
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) <= 1.001
    assert result.coverage["share"] == 1.0
    assert 0 < result.support["focus"] <= 1.0


def test_a_passage_that_both_look_at_counts_twice() -> None:
    from kvstream.answer.citations import Attention, basis_of

    tokens = torch.tensor([0])
    paid = Attention(tokens, torch.ones(1), torch.ones(1), -torch.tensor([0.9, 0.4]).log())

    def passage(start: int, weight: float) -> Passage:
        return Passage(0, start, start + 5, 1, 1, "text", weight)

    found = basis_of(
        [passage(0, 0.6), passage(10, 0.4)], [passage(10, 0.7), passage(20, 0.3)], paid
    )
    assert [p.start for p in found.citations] == [0, 10]
    assert [p.start for p in found.regions] == [10, 0, 20]
    assert found.focus == pytest.approx(1.0)
    assert (found.confidence, math.exp(found.likelihood)) == pytest.approx((0.6, 0.36))


def test_few_passages_are_cited_and_none_that_hardly_counts() -> None:
    from kvstream.answer.citations import Attention, basis_of

    paid = Attention(torch.tensor([0]), torch.ones(1), torch.ones(1), torch.zeros(1))

    def citations(*weights: float) -> list[int]:
        passages = [Passage(0, i, i + 1, 1, 1, "text", w) for i, w in enumerate(weights)]
        found = basis_of(passages, passages, paid)
        assert len(found.regions) == len(weights)
        assert found.focus == pytest.approx(sum(sorted(weights)[-3:]))
        return [p.start for p in found.citations]

    assert citations(0.009, 0.01, 0.98, 0.001) == [2, 1]
    assert citations(0.1, 0.1, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1) == [2, 3, 0, 1, 4]
