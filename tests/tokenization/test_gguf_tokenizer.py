"""Tokenizers of GGUF files give llama.cpp's ids: stored ids, and live ones if it is installed.

``KVSTREAM_TEST_LLAMACPP=PYTHON python tests/tokenization/test_gguf_tokenizer.py`` stores the ids
again. PYTHON must have the package xllamacpp, and ``kvstream models get smollm2`` must have run.
"""

from __future__ import annotations

import io
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import gguf_files
import llamacpp_ids
import pytest
from tokenizers import Tokenizer, pre_tokenizers, trainers
from tokenizers.models import BPE

from kvstream.store import offered
from kvstream.tokenization import gguf as gguf_tokenizer
from kvstream.tokenization.gguf import RULES, SPLITS
from kvstream.tokenization.huggingface import HubTokenizer
from kvstream.tokenization.tokenizer import byte_alphabet

FILE = Path(__file__).resolve().parents[1] / "fixtures" / "llamacpp_ids.json"
SIZE = 700
TEXTS = [
    "  1,024   37.5",
    "The keeper's lamp wasn't lit; they'LL say \"nobody's fault\" -- as they always do!",
    "2026-11-22 10:15:37,104 INFO  worker-7: took 1024 of 8192 tokens (12.5%) in 0.37s",
    "def read(path: str) -> list[int]:\n    with open(path) as f:\n\treturn [int(x) for x in f]\n",
    "a    b\t\tc \n\n \n   d\r\n\r\n  e     ",
    "HTTPServer camelCase ÉTÉ naïve Straße ½ ² Ⅷ १२३ é語한국ก็",
    "1234567890 12 1 ... $5.00 + <=> ~`|^ ### //! \\n",
    "em\u2003space\u00a0and　ideographic 。！？ “quoted” … — 😀👍🏽",
    "<|im_start|>user\nhello<|im_end|>",
    "\n\n\n\n\nx\n",
    " ",
    "e\u0301te\u0301 nai\u0308ve x\u0301\n",
    "};\n\n  }\r\n);\n x;\n",
    "x1234567y ,12345 ab-12 a(b c|d e.f,g!h",
]


@cache
def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return found


def vocabulary(kind: str, rule: str) -> dict[str, Any]:
    return {**stored()["vocabularies"][kind], **({"pre": rule} if kind == "gpt2" else {})}


def tokenizer(keys: dict[str, Any]) -> HubTokenizer:
    backend, _ = gguf_tokenizer.build({f"tokenizer.ggml.{k}": v for k, v in keys.items()}, "m")
    return HubTokenizer(Tokenizer.from_str(backend))


@pytest.mark.parametrize("rule", [*SPLITS, "smollm", "llama", "gemma", "gemma4"])
def test_ids_are_those_that_llama_cpp_gave(rule: str) -> None:
    kind = rule if rule in stored()["vocabularies"] else "gpt2"
    ours = tokenizer(vocabulary(kind, rule))
    for text, ids in zip(TEXTS, stored()["ids"][rule], strict=True):
        assert ours.encode(text) == ids, text


def test_the_stored_texts_tell_the_rules_apart() -> None:
    every = {rule: str(stored()["ids"][rule]) for rule in SPLITS}
    assert len(set(every.values())) == len(every)


@pytest.mark.long
@pytest.mark.parametrize("rule", [*RULES, "llama", "gemma", "gemma4"])
def test_ids_are_those_that_llama_cpp_gives(rule: str, tmp_path: Path) -> None:
    interpreter = llamacpp_ids.python()
    if interpreter is None:
        pytest.skip("needs xllamacpp, or a Python that has it in KVSTREAM_TEST_LLAMACPP")
    kind = rule if rule in stored()["vocabularies"] else "gpt2"
    keys = vocabulary(kind, rule)
    texts = [*TEXTS, *mixed(200)]
    for text, ids in zip(texts, live(interpreter, keys, texts, tmp_path), strict=True):
        assert tokenizer(keys).encode(text) == ids, text


def mixed(count: int) -> list[str]:
    """Draw texts from pieces at which pre-tokenization rules cut."""
    draw = random.Random(3)
    pieces = [
        " ", "  ", "\n", "\r\n", "\t", "the", " of", "A", "12", "'s", "'LL", ".", ", ", "--",
        "é", "語", "1,024", "camelCase", "½", "१", "\u00a0", "\u2003", "e\u0301",
        "한국", "😀", "$", "…",
    ]  # fmt: skip
    return ["".join(draw.choice(pieces) for _ in range(40)) for _ in range(count)]


def live(interpreter: str, keys: dict[str, Any], texts: list[str], folder: Path) -> list[list[int]]:
    model = gguf_files.tiny("llama", len(keys["tokens"]))
    path = gguf_files.write(folder / "m.gguf", model, keys)
    return llamacpp_ids.ids(interpreter, path, texts)


def test_control_tokens_in_a_document_are_text() -> None:
    ours = tokenizer(vocabulary("gpt2", "smollm"))
    ids = ours.encode("<|im_start|>user")
    assert 1 not in ids
    assert ours.decode(ids) == "<|im_start|>user"
    assert ours.encode_template("<|im_start|>user")[0] == 1


@pytest.mark.parametrize("rule", [*SPLITS, "llama", "gemma", "gemma4"])
def test_nothing_is_lost_and_offsets_are_right(rule: str) -> None:
    kind = rule if rule in stored()["vocabularies"] else "gpt2"
    ours = tokenizer(vocabulary(kind, rule))
    # After a user-defined token ("--") SentencePiece inserts another space.
    for text in (t for t in TEXTS if rule != "llama" or "--" not in t):
        ids, starts, _ = ours.spans(text, continuing=True)
        assert ours.decode(ids.tolist()).strip(" ") == text.strip(" ")
        assert starts.tolist() == sorted(starts.tolist())
        assert ids.tolist() == ours.encode(text, continuing=True)


@pytest.mark.parametrize(
    ("changes", "bos"),
    [
        ({"pre": "smollm", "add_bos_token": False}, None),
        ({"pre": "smollm", "add_bos_token": True}, "<|im_start|>"),
        ({"pre": "llama-bpe", "add_bos_token": ...}, "<|im_start|>"),
        ({"pre": "qwen2", "add_bos_token": ...}, None),
    ],
)
def test_a_text_begins_with_bos_where_the_model_saw_it(changes: dict, bos: str | None) -> None:
    keys = {**vocabulary("gpt2", "smollm"), **changes}
    given = {f"tokenizer.ggml.{k}": v for k, v in keys.items() if v is not ...}
    _, config = gguf_tokenizer.build(given, "m")
    assert config.get("bos_token") == bos
    assert config["eos_token"] == "<|im_end|>"


def store() -> None:
    """Write FILE again."""
    import tempfile

    interpreter = llamacpp_ids.python()
    assert interpreter is not None
    FILE.write_text(json.dumps({"vocabularies": make_vocabularies(), "ids": {}}))
    found = {}
    for rule in [*SPLITS, "smollm", "llama", "gemma", "gemma4"]:
        kind = rule if rule in stored()["vocabularies"] else "gpt2"
        with tempfile.TemporaryDirectory() as folder:
            found[rule] = live(interpreter, vocabulary(kind, rule), TEXTS, Path(folder))
    real = offered.OFFERS["smollm2"].path
    found["smollm2"] = llamacpp_ids.ids(interpreter, real, TEXTS)
    text = json.dumps({**stored(), "ids": found}, ensure_ascii=False, separators=(",", ":"))
    FILE.write_text(text.replace('},"', '},\n"').replace(']],"', ']],\n"') + "\n", "utf-8")


def make_vocabularies() -> dict[str, Any]:
    """Make vocabularies with merges across the cuts of some rules, so a wrong rule shows."""
    import sentencepiece

    bare = Tokenizer(BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - 3, initial_alphabet=sorted(byte_alphabet()), show_progress=False
    )
    corpus = [t for t in (*TEXTS, *mixed(60), gguf_files.TEXT) if "<|" not in t]
    bare.train_from_iterator(corpus, trainer)
    merges = json.loads(bare.model.__getstate__())["merges"]
    order = sorted(bare.get_vocab().items(), key=lambda item: item[1])
    found: dict[str, Any] = {
        "gpt2": {
            "model": "gpt2",
            "tokens": [*gguf_files.CONTROL, *(token for token, _ in order)],
            "token_type": [3] * 3 + [1] * len(order),
            "merges": [" ".join(m) if isinstance(m, list) else m for m in merges],
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
    }
    for kind in ("llama", "gemma"):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus), model_writer=out, vocab_size=SIZE, model_type="bpe",
            byte_fallback=True, normalization_rule_name="identity", split_digits=kind == "llama",
            remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
            user_defined_symbols=["--"], minloglevel=2, hard_vocab_limit=False,
        )  # fmt: skip
        pieces = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
        numbers = range(pieces.get_piece_size())
        found[kind] = {
            "model": "llama",
            "tokens": [pieces.id_to_piece(i) for i in numbers],
            "token_type": [
                2 if pieces.is_unknown(i)
                else 3 if pieces.is_control(i)
                else 6 if pieces.is_byte(i)
                else 4 if pieces.id_to_piece(i) == "--"
                else 1
                for i in numbers
            ],
            "scores": [pieces.get_score(i) for i in numbers],
            "add_space_prefix": kind == "llama",
            "add_bos_token": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }  # fmt: skip
    lines = {**found["gemma"], "model": "gemma4"}
    plain = [i for i, one in enumerate(lines["token_type"]) if one == 1]
    tokens = [f"[UNUSED{i}]" if "\n" in t else t for i, t in enumerate(lines["tokens"])]
    for count, place in enumerate(plain[-4:], 1):
        tokens[place] = "\n" * count
    pairs = gguf_tokenizer._by_scores(lines, tokens, lines["token_type"], "m")
    merges = [" ".join(pair) for pair in pairs if "\n" not in "".join(pair)]
    del lines["scores"], lines["add_space_prefix"]
    found["gemma4"] = {**lines, "tokens": tokens, "merges": merges}
    return found


if __name__ == "__main__":
    store()
