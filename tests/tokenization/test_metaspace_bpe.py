"""A table of words in place of the tokenizers library: equal tokens, or no replacement."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tokenizers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tiktoken_bpe import drawn_merges
from tokenizers import models, normalizers, pre_tokenizers

from kvstream.tokenization import metaspace_bpe
from kvstream.tokenization.metaspace_bpe import MetaspaceBPE, convert


def of_merges(merges: list[tuple[str, str]], **options: object) -> hf.Tokenizer:
    tokens = ["<unk>", *"abc.▁", *dict.fromkeys(a + b for a, b in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = hf.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", **options))
    backend.normalizer = normalizers.Replace(" ", "▁")
    return backend


def converted(
    backend: hf.Tokenizer, *added: hf.AddedToken, prefixed: bool = False
) -> MetaspaceBPE | None:
    return convert(backend, lambda text: backend.encode(text).ids, added, prefixed)


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(0, 12),
    texts=st.lists(st.text("abc.  ", max_size=60), min_size=1, max_size=5),
)
@settings(max_examples=50, deadline=None)
def test_whatever_the_merges_are(seed: int, size: int, texts: list[str]) -> None:
    merges = drawn_merges(random.Random(seed), "abc.▁", size)
    backend = of_merges(merges)
    quick = converted(backend)
    assert quick is not None
    for text in texts:
        ids = quick.encode(text)
        assert ids is not None
        assert ids.tolist() == backend.encode(text).ids
        assert int(quick.lengths[ids].sum()) == len(text)


def test_text_is_cut_where_no_token_joins() -> None:
    quick = converted(of_merges([("▁", "a"), ("a", "b"), ("▁a", "b"), ("▁", "▁"), (".", ".")]))
    assert quick is not None
    assert quick._words(" ab ab..  b") == [" ab", " ab", "..", "  ", "b"]
    joined = converted(of_merges([("b", "▁"), ("a", "b")]))
    assert joined is not None
    assert joined._words("ab ab") == ["ab ", "ab"]
    assert quick._words("éab") == ["éab"], "nothing is known of characters beyond ASCII"


def test_the_table_is_emptied_and_filled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metaspace_bpe, "MOST", 40)
    backend = of_merges([("▁", "a"), ("a", "b"), ("b", "c"), ("▁", "b")])
    quick = converted(backend)
    assert quick is not None
    rng = random.Random(1)
    for _ in range(50):
        text = "".join(rng.choices("abc ", k=60))
        ids = quick.encode(text)
        assert ids is not None
        assert ids.tolist() == backend.encode(text).ids
        assert quick._held == sum(map(len, quick._numbers)) <= 60
        assert len(quick._ids) == quick._begins[-1]


def test_added_tokens() -> None:
    backend = of_merges([("▁", "a"), ("a", "b")])
    plain = hf.AddedToken("b.", normalized=False)
    backend.add_tokens([plain])
    quick = converted(backend, plain)
    assert quick is not None
    for text in ("b.", "b.b.", "ab.a b.", " .b. .b"):
        ids = quick.encode(text)
        assert ids is not None
        assert ids.tolist() == backend.encode(text).ids
    doubtful = converted(backend, plain, prefixed=True)
    assert doubtful is not None
    assert doubtful.encode("ab.a") is None, "a prefix may come again behind it"
    for odd in ({"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}):
        backend = of_merges([("▁", "a")])
        token = hf.AddedToken("b.", **({"normalized": False} | odd))
        backend.add_tokens([token])
        quick = converted(backend, token)
        assert quick is not None
        assert quick.encode("a b. a") is None
        assert quick.encode("a b a") is not None


def test_texts_that_are_left_to_the_library() -> None:
    quick = converted(of_merges([("▁", "a")]))
    assert quick is not None
    assert quick.encode("") is not None
    assert quick.encode("a▁a") is None, "a space that is none"
    assert quick.encode("a é") is None, "unknown"
    assert quick.encode("a a") is not None


def test_tokenizers_that_are_left_to_the_library() -> None:
    backend = of_merges([("▁", "a")])
    assert converted(backend) is not None
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    assert converted(backend) is None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    assert converted(backend) is None
    backend.normalizer = None
    assert converted(backend) is not None
    backend.normalizer = normalizers.Sequence([normalizers.NFKC()])
    assert converted(backend) is None
    assert converted(of_merges([("▁", "a")], dropout=0.1)) is None
    assert converted(of_merges([("▁", "a")], ignore_merges=True)) is None
    unigram = hf.Tokenizer(models.Unigram([("<unk>", 0.0), ("▁a", -1.0)], 0))
    unigram.normalizer = normalizers.Replace(" ", "▁")
    assert converted(unigram) is None


def test_bytes_of_unknown_characters() -> None:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = hf.Tokenizer(
        models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    quick = converted(backend)
    assert quick is not None
    text = " a é\n<0x41> a語"
    ids = quick.encode(text)
    assert ids is not None
    assert ids.tolist() == backend.encode(text).ids
    assert int(np.sum(quick.lengths[ids])) == len(text.encode())
