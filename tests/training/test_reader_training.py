"""Rows of the reading model: one document, several questions, as if each were asked alone."""

from __future__ import annotations

import pytest
import torch

from kvstream.training.reader_rows import Row, visible

ROW = Row([1, 7, 8, 9], [([10, 11], [20, 21, 2]), ([12, 13, 14], [22, 2])])


def test_a_question_sees_the_document_and_itself_alone() -> None:
    ids, positions, segments, where, targets = ROW.tensors()
    seen = visible(segments)
    for i in range(len(ids)):
        for j in range(len(ids)):
            mine = int(segments[j]) in (0, int(segments[i]))
            assert bool(seen[i, j]) == (j <= i and mine)
    assert positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7]
    assert targets.tolist() == [20, 21, 2, 22, 2]
    assert [int(ids[i]) for i in where] == [11, 20, 21, 14, 22]


def test_the_loss_is_that_of_each_question_alone() -> None:
    peft = pytest.importorskip("peft", reason="needs the extra training")
    from transformers import LlamaConfig, LlamaForCausalLM

    from kvstream.training.reader import loss_of

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    lora = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(LlamaForCausalLM(config), lora)
    together = loss_of(model, ROW, "cpu")
    alone = [loss_of(model, Row(ROW.document, [asked]), "cpu") for asked in ROW.asked]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0.02, atol=0.02)
    together.sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
