"""Rows and 8-bit gradients for training `reader-0.5b`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvstream.run.prompt import BRIEF, REFUSAL

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


class Bytes:
    """A tokenizer of bytes with a plain chat template."""

    eos_token_id = 0

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())

    def apply_chat_template(self, turns: list[dict[str, str]], **_: Any) -> str:
        return "".join(f"{t['role'][0].upper()}: {t['content']}\n" for t in turns) + "A: "


@pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data")
def test_a_row_has_questions_that_its_document_answers_or_that_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvstream_lab.training import paragraph_rows

    monkeypatch.setattr(paragraph_rows, "ROW", 8000)
    monkeypatch.setattr(paragraph_rows, "SHARES", {"squad": 0.6, "newwiki": 0.4})
    monkeypatch.setattr(paragraph_rows, "BOOKS", 2)
    rows = paragraph_rows.ParagraphRows(DATA, Bytes(), 3)
    answers, refusals = 0, 0
    for _ in range(60):
        row = rows.row()
        document = bytes(row.document).decode()
        assert document.startswith(f"U: {BRIEF.opening}")
        questions = [bytes(tail).decode() for tail, _ in row.asked]
        assert len(set(questions)) == len(questions)
        for question, (_, ids) in zip(questions, row.asked, strict=True):
            answer = bytes(ids[:-1]).decode()
            assert ids[-1] == Bytes.eos_token_id
            assert question.startswith(BRIEF.closing)
            assert question.endswith("\nA: ")
            answers, refusals = answers + (answer != REFUSAL), refusals + (answer == REFUSAL)
            # Data sets separate a few answers from their marks by a space.
            assert answer == REFUSAL or "".join(answer.split()) in "".join(document.split())
    assert 0.1 < refusals / (answers + refusals) < 0.5


def test_a_row_has_queries_for_a_table(tmp_path: Path) -> None:
    from kvstream_lab.training.query_rows import QueryRows

    lines = [f"SELECT name FROM t LIMIT {n} | the first {n}" for n in range(1, 10)]
    text = "\n".join(["# a.csv", "name,kg", "Ann,4", "Bo,5", "", *lines, "NONE | how tall is Bo?"])
    (tmp_path / "a.txt").write_text(f"{text}\n")
    rows, queries = QueryRows(tmp_path, Bytes(), 1), []
    while len(queries) < 10:
        row = rows.row()
        for tail, answer in row.asked:
            prompt = bytes(row.document + tail).decode()
            assert prompt.startswith("S: Write the SQLite query")
            assert '"name" TEXT, -- such as \'' in prompt
            question = prompt.partition("\n\nQuestion: ")[2].removesuffix("\nA: ")
            queries.append(f"{bytes(answer[:-1]).decode()} | {question.lower()}")
    assert sorted(queries) == sorted([*lines, "NONE | how tall is bo"])


@pytest.mark.parametrize("halves", [False, True])
def test_gradients_of_frozen_layers_are_nearly_exact(halves: bool) -> None:
    from reader_larger import Frozen, has_halves

    if halves and not has_halves():
        pytest.skip("this CPU has no products in bfloat16")
    torch.manual_seed(0)
    linear = torch.nn.Linear(128, 192).requires_grad_(False)
    x = torch.randn(24, 128, requires_grad=True)
    weight = torch.randn(24, 192)
    (linear(x) * weight).sum().backward()
    assert x.grad is not None
    right, x.grad = x.grad.clone(), None
    (Frozen(linear, range(8), halves=halves)(x) * weight).sum().backward()
    assert float(torch.cosine_similarity(x.grad.flatten(), right.flatten(), dim=0)) > 0.999


def test_the_adapter_is_added_in_the_type_of_its_input() -> None:
    from types import SimpleNamespace

    from torch import nn

    from reader_larger import _adapted

    torch.manual_seed(0)
    base, down, up = nn.Linear(16, 12), nn.Linear(16, 2, bias=False), nn.Linear(2, 12, bias=False)
    layer = SimpleNamespace(
        base_layer=base, lora_A={"default": down}, lora_B={"default": up}, scaling={"default": 2.0}
    )
    x = torch.randn(1, 5, 16)
    right = base(x) + 2.0 * up(down(x))
    torch.testing.assert_close(_adapted(layer, x), right)
    base.bfloat16()
    halves = _adapted(layer, x.bfloat16())
    assert halves.dtype == torch.bfloat16
    torch.testing.assert_close(halves.float(), right, atol=0.05, rtol=0.05)
