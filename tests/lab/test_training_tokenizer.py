"""pocket's two tokenizer files agree, and its template renders the prompt it was trained on."""

import json
import random

import pytest
from transformers import AutoTokenizer

from kvstream.store import pocket
from kvstream_lab.training import tokenizer as training


@pytest.fixture(scope="module")
def hub():
    return AutoTokenizer.from_pretrained(str(pocket.path()))


def random_text(rng: random.Random) -> str:
    ranges = [(0x20, 0x7F), (0x20, 0x250), (0x20, 0xD800), (0xE000, 0x110000)]
    blanks = "\t\n\r  \x0b\x0c\x1c\x85\xa0\u2003\u2028\u3000\u200b"
    low, high = rng.choice(ranges)
    return "".join(
        rng.choice(blanks) if rng.random() < 0.2 else chr(rng.randrange(low, high))
        for _ in range(rng.randrange(40))
    )


def test_both_files_give_the_same_tokens(hub):
    rng = random.Random(0)
    encoding = pocket.encoding()
    for _ in range(3000):
        text = random_text(rng)
        expected = encoding.encode(text, disallowed_special=())
        assert hub(text, add_special_tokens=False).input_ids == expected, repr(text)
        assert encoding.decode(expected) == text


def test_digits_stand_alone_with_or_without_a_space():
    encoding = pocket.encoding()
    with_space, alone = encoding.encode("key 71785"), encoding.encode("71785")
    assert len(alone) == 5
    assert with_space[-5:] == alone


def test_sizes_and_special_tokens(hub):
    assert len(hub) == training.VOCABULARY == pocket.encoding().n_vocab
    assert hub.bos_token_id == pocket.encoding().encode_single_token(pocket.BOS)
    assert hub.eos_token_id == pocket.encoding().encode_single_token(pocket.EOS)
    assert hub("a").input_ids[0] == hub.bos_token_id
    saved = json.loads((pocket.path() / "tokenizer.json").read_text("utf-8"))
    assert saved["pre_tokenizer"]["pretokenizers"][0]["pattern"] == {"Regex": pocket.PATTERN}


def test_the_template_renders_the_training_prompt(hub):
    message = {"role": "user", "content": "<DOC>\nQuestion: q"}
    text = hub.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    assert text == f"{pocket.BOS}<DOC>\nQuestion: q\nAnswer:"


def test_the_template_takes_system_text_parts_and_earlier_answers(hub):
    messages = [
        {"role": "system", "content": "S"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "D"}, {"type": "text", "text": "\nQ"}],
        },
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "\nQuestion: r"},
    ]
    text = hub.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == f"{pocket.BOS}S\nD\nQ\nAnswer: a\nQuestion: r\nAnswer:"


def test_a_small_tokenizer_is_written_and_read_back(tmp_path):
    ranks = training.train_ranks(["the cat sat on the mat, the cat sat"] * 20, vocabulary=270)
    training.write(ranks, tmp_path, context=128)
    read = AutoTokenizer.from_pretrained(str(tmp_path))
    assert read.decode(read("the cat", add_special_tokens=False).input_ids) == "the cat"
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 128
