"""Rows for training `reader`: one document and several questions, each as if asked alone."""

from __future__ import annotations

import random
from pathlib import Path

import gguf_files
import pytest
import torch
from user_cache import CACHE

from kvstream.run.prompt import REFUSAL, REFUSING, build_prompt
from kvstream.tokenization.tokenizer import Tokenizer
from kvstream_lab.synthetic.corpus import Corpus, HumanContext
from kvstream_lab.training.reader_rows import ReaderRows, Row, visible

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


def test_rows_are_filled_to_one_size_and_nothing_sees_the_rest() -> None:
    from reader import padded

    assert len(ROW) == 12
    shorter = Row([1, 7], [([10], [20, 2])])
    ids, positions, segments, where, targets = padded([ROW, shorter])
    for number, row in enumerate((ROW, shorter)):
        plain = row.tensors()
        for filled, own in zip((ids, positions, segments), plain, strict=False):
            assert filled.shape == (2, 12)
            assert torch.equal(filled[number, : len(row)], own)
        assert torch.equal(where[where // 12 == number] % 12, plain[3])
        assert torch.equal(targets[where // 12 == number], plain[4])
        assert torch.equal(visible(segments)[number], visible(segments[number]))
        assert not visible(segments)[number, : len(row), len(row) :].any()
    assert visible(segments).any(-1).all(), "a row of a softmax has something to see"


def test_rows_of_similar_length_share_a_forward_pass() -> None:
    from reader import passes

    rows = [Row([0] * (n - 2), [([1, 2], [3])]) for n in (8, 20, 9, 30, 10)]
    split = [[len(row) for row in some] for some in passes(rows, 30)]
    assert split == [[30], [20], [10, 9, 8]]
    assert [len(some) for some in passes(rows, 0)] == [1] * 5


def test_the_loss_is_that_of_each_question_alone() -> None:
    peft = pytest.importorskip("peft", reason="needs the extra training")
    from transformers import LlamaConfig, LlamaForCausalLM

    from reader import loss_of

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    lora = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(LlamaForCausalLM(config), lora)
    together = loss_of(model, [ROW], "cpu")
    alone = [Row(ROW.document, [asked]) for asked in ROW.asked]
    each = torch.cat([loss_of(model, [row], "cpu") for row in alone])
    torch.testing.assert_close(together, each, rtol=0.02, atol=0.02)
    torch.testing.assert_close(loss_of(model, alone, "cpu"), each, rtol=0.02, atol=0.02)
    together.sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())


def test_a_run_starts_from_a_packed_adapter(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs the extra training")
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    from reader import start_from

    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    lora = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(LlamaForCausalLM(config), lora)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    packed = {
        n.removeprefix("base_model.model.").replace(".lora_", ".").replace(".default.weight", ""):
        torch.randn_like(p) for n, p in before.items() if "lora_" in n
    }  # fmt: skip
    save_file(packed, tmp_path / "adapter.safetensors")
    start_from(model, dict(packed))
    for name, weight in model.named_parameters():
        layer, _, side = name.removeprefix("base_model.model.").partition(".lora_")
        expected = packed[f"{layer}.{side[0]}"] if side else before[name]
        torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match="the model lacks"):
        start_from(model, {**packed, "model.layers.9.mlp.A": torch.zeros(1)})


class _Passages:
    """A corpus with only one passage."""

    def __init__(self, passage: HumanContext) -> None:
        self.passages = [passage]


def test_a_row_of_whole_passages_asks_as_many_refusals_as_answers_at_most(tmp_path: Path) -> None:
    from kvstream.model.folders import converted
    from kvstream.tokenization.loading import load_tokenizer

    folder = converted(gguf_files.write(tmp_path / "base.gguf"), quiet=True)
    tokenizer = load_tokenizer(str(folder))
    text = "Ada hid the letter. Ben found it in May."
    answered = [("Who hid it?", "Ada"), ("Who found it?", "Ben")]
    refused = [(f"Who burned {i} letters?", REFUSAL) for i in range(9)]
    passage = HumanContext(text, "d", "squad", answered + refused)
    rows = ReaderRows(_Passages(passage), 0, tokenizer, paragraphs=1.0)  # type: ignore[arg-type]
    row = rows.reading(100)
    answers = [tokenizer.decode(answer[:-1]) for _, answer in row.asked]
    assert tokenizer.decode(row.document).count(text) >= 1
    assert {"Ada", "Ben"} <= set(answers)
    assert 0 < answers.count(REFUSAL) <= len(answers) / 2


class _Book(_Passages):
    """A corpus with one passage and prose."""

    def __init__(self, passage: HumanContext) -> None:
        super().__init__(passage)
        self.by_document = {passage.doc_id: [passage]}

    def prose(self, rng: random.Random, characters: int) -> str:
        return ("Nothing was said. " * characters)[:characters]


def test_a_row_of_excerpts_holds_every_answer_that_is_not_refused(tmp_path: Path) -> None:
    """Keys with similar names are adjacent, and most of a long passage is cut."""
    from kvstream.model.folders import converted
    from kvstream.tokenization.loading import load_tokenizer

    folder = converted(gguf_files.write(tmp_path / "base.gguf"), quiet=True)
    tokenizer = load_tokenizer(str(folder))
    text = "Ada hid the letter. " + "Ben slept all day long. " * 30 + "Eve burned the map."
    asked = [("Who hid it?", "Ada"), ("Who burned the map?", "Eve"), ("Who ate?", REFUSAL)]
    book = _Book(HumanContext(text, "d", "squad", asked))
    rows = ReaderRows(book, 0, tokenizer, excerpts=1.0)  # type: ignore[arg-type]
    answers: list[str] = []
    for _ in range(40):
        row = rows.reading(400)
        document = tokenizer.decode(row.document)
        said = [tokenizer.decode(answer[:-1]) for _, answer in row.asked]
        assert all(answer == REFUSAL or answer in document for answer in said)
        answers += said
    assert {"Ada", "Eve", REFUSAL} <= set(answers)
    assert sum(answer.isdigit() for answer in answers) > 40
    assert answers.count(REFUSAL) < len(answers) / 2


QUESTIONS = ("Who hid the letter?", "  When did they leave? ", "Was it 1,024 or “more”?")


def test_the_prompt_is_the_one_that_the_reader_was_trained_with(tmp_path: Path) -> None:
    """The program builds the same ids around a document as the training rows."""
    from kvstream.model.folders import converted
    from kvstream.tokenization.loading import load_tokenizer

    folder = converted(gguf_files.write(tmp_path / "base.gguf"), quiet=True)
    _compare(load_tokenizer(str(folder)))


@pytest.mark.real
def test_the_prompt_of_smollm2_is_the_one_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvstream.model.folders import converted
    from kvstream.store import offered
    from kvstream.tokenization.loading import load_tokenizer

    monkeypatch.setenv("KVSTREAM_CACHE", str(CACHE))
    if not offered.OFFERS["reader"].is_here():
        pytest.skip("needs `kvstream models get reader`")
    _compare(load_tokenizer(str(converted(offered.OFFERS["reader"].path, quiet=True))))


def _compare(tokenizer: Tokenizer) -> None:
    rows = ReaderRows(Corpus.__new__(Corpus), 0, tokenizer)
    head, tail = rows.wordings[0]
    prompt = build_prompt(tokenizer, wording=REFUSING)
    assert prompt.head == head
    assert rows.stop in prompt.stop_ids
    for question in QUESTIONS:
        rows._tail = tail
        asked, answer = rows._asked((question.strip(), "the cook"))
        assert prompt.tail(question) == asked
        assert answer == [*tokenizer.encode("the cook", continuing=True), rows.stop]
