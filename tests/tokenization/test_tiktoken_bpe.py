"""tiktoken in place of the tokenizers library: equal tokens, or no replacement."""

from __future__ import annotations

import random
from functools import cache
from itertools import product

import pytest
import tokenizers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokens import WORDS, _trained
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from kvstream.tokenization import huggingface as hub
from kvstream.tokenization import tiktoken_bpe
from kvstream.tokenization.huggingface import HubTokenizer
from kvstream.tokenization.tiktoken_bpe import TiktokenBPE, byte_alphabet, convert

KINDS = ["quick-gpt2", "quick-llama3", "quick-qwen", "quick-digits"]


def converted(backend: hf.Tokenizer, *added: str) -> TiktokenBPE | None:
    return convert(backend, lambda text: backend.encode(text).ids, added)


def of_merges(merges: list[tuple[str, str]], *more: str, whole_words: bool = False) -> hf.Tokenizer:
    tokens = [*byte_alphabet(), *dict.fromkeys([*(a + b for a, b in merges), *more])]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = hf.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=whole_words))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


def drawn_merges(rng: random.Random, letters: str, size: int) -> list[tuple[str, str]]:
    """Draw up to `size` merges of `letters` in an order that no training would give."""
    tokens = list(letters)
    merges: list[tuple[str, str]] = []
    for _ in range(size):
        pair = rng.choice(tokens), rng.choice(tokens)
        if pair not in merges and len("".join(pair)) < 7:
            merges.append(pair)
            tokens.append("".join(pair))
    return merges


@given(seed=st.integers(0, 2**32), size=st.integers(2, 12), whole_words=st.booleans())
@settings(max_examples=40, deadline=None)
def test_whatever_the_merges_are(seed: int, size: int, whole_words: bool) -> None:
    """Merges in any order. Training would give few of them."""
    rng = random.Random(seed)
    merges = drawn_merges(rng, "abc", size)
    if rng.random() < 0.3:
        rng.shuffle(merges)
    more = ["".join(rng.choices("abc", k=rng.randint(2, 4))) for _ in range(rng.randint(0, 2))]
    backend = of_merges(merges, *more, whole_words=whole_words)
    quick = converted(backend)
    if quick is None:
        return
    words = ["".join(letters) for n in range(1, 7) for letters in product("abc", repeat=n)]
    words += ["".join(rng.choices("abc", k=200)) for _ in range(10)]
    text = " ".join(words)
    ids = quick.encode(text)
    assert ids is not None
    assert ids.tolist() == backend.encode(text).ids


def test_merges_that_training_gives_are_taken() -> None:
    merges = [("a", "b"), ("ab", "c"), ("b", "c"), ("ab", "ab")]
    assert converted(of_merges(merges)) is not None
    again = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc"), ("ab", "ab")]
    assert converted(of_merges(again)) is not None  # the two merges to abc are adjacent
    apart = [("a", "b"), ("b", "c"), ("ab", "c"), ("ab", "ab"), ("a", "bc")]
    assert converted(of_merges(apart)) is None


def test_tokens_that_nothing_makes() -> None:
    merges = [("a", "b")]
    assert converted(of_merges(merges, "bc")) is not None
    assert converted(of_merges(merges, "bc", whole_words=True)) is None
    backend = of_merges(merges, "cba", whole_words=True)
    quick = converted(backend)
    assert quick is not None
    ids = quick.encode("cba acba cbab")
    assert ids is not None
    assert ids.tolist() == backend.encode("cba acba cbab").ids


@pytest.mark.parametrize(
    "pattern",
    [WORDS, r"\p{N}|[^\p{N}]+", r"[\s\S]", r"(?:\p{Lu}?\p{Ll}++|[^\p{Lu}\p{Ll}/]|\/|\p{Lu})",
     r" ?[一-龥]+|\s+(?=\S)|\S| |\n"],
)  # fmt: skip
def test_patterns_that_are_taken(pattern: str) -> None:
    backend = _trained("quick-gpt2")
    backend = hf.Tokenizer(backend.model)
    rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for cut in (("isolated", False), ("removed", True)):
        split = pre_tokenizers.Split(Regex(pattern), *cut)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, rest])
        quick = converted(backend)
        assert quick is not None
        for text in (" The dog's 12345  語語x/y\n", "ABc dEF\r\n\n  g"):
            ids = quick.encode(text)
            assert ids is None or ids.tolist() == backend.encode(text).ids


@pytest.mark.parametrize(
    "pattern",
    [r"\w+|\W+", r"a$|[\s\S]", r"^a|[\s\S]", r"\p{N}{1,3}+|[\s\S]", r"[a-z&&[^b]]|[\s\S]",
     r"[[:alpha:]]|[\s\S]", r".", r"(a)|[\s\S]", r"\bx|[\s\S]", r"[a--b]|[\s\S]"],
)  # fmt: skip
def test_patterns_that_may_mean_something_else(pattern: str) -> None:
    assert not tiktoken_bpe._SAME.fullmatch(pattern)


def test_what_is_left_to_the_library() -> None:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend = of_merges([("a", "b")])
    backend.normalizer = normalizers.NFKC()
    assert converted(backend) is None
    backend.normalizer = None
    for cut in (
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        pre_tokenizers.Metaspace(),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), byte_level]),
        pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), byte_level]),
        pre_tokenizers.Sequence([pre_tokenizers.Split("a", "isolated"), byte_level]),
    ):
        backend.pre_tokenizer = cut
        assert converted(backend) is None
    for model in (
        models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]),
        models.BPE(dict(zip(byte_alphabet(), range(256), strict=True)), [], dropout=0.1),
        models.Unigram(),
        models.WordLevel({"a": 0}, "a"),
    ):
        backend = hf.Tokenizer(model)
        backend.pre_tokenizer = byte_level
        assert converted(backend) is None


def test_texts_that_are_left_to_the_library() -> None:
    quick = converted(_trained("quick-qwen"), "<tool>")
    assert quick is not None
    assert quick.encode("the dog é 語") is not None
    assert quick.encode("a <tool> b") is None
    assert quick.encode("e\u0301") is None, "not in the normal form"
    assert quick.encode("\u0378") is None, "no character yet"
    assert quick.encode("a" * (tiktoken_bpe.MOST + 1)) is None
    backend = hf.Tokenizer(_trained("quick-gpt2").model)
    split = pre_tokenizers.Split(Regex(r"\p{L}+"), "isolated")
    rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, rest])
    letters = converted(backend)
    assert letters is not None
    assert letters.encode("dog") is not None
    assert letters.encode("dog 12") is None, "the pattern does not match all of it"


def test_characters_that_only_one_library_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiktoken_bpe._Class, "disputed", lambda _, text: {"語"} & set(text))
    quick = converted(_trained("quick-llama3"))
    assert quick is not None
    assert quick.encode("é") is not None
    assert quick.encode("é語") is None


def test_the_classes_are_those_of_the_patterns() -> None:
    for part in (r"\p{L}", r"\p{N}", r"\s", "(?i:"):
        assert not tiktoken_bpe._Class(part).disputed("aB1 \u00a0é語ſK½\u0301")
    here, there = tiktoken_bpe._Class(r"\p{L}"), tiktoken_bpe._Class(r"\p{N}")
    here._split = there._split
    assert here.disputed("a1 ") == {"a", "1"}


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cn"]) | st.sampled_from("a \n'sé1")))
@settings(max_examples=40, deadline=None)
def test_any_text(kind: str, text: str) -> None:
    backend, quick = both(kind)
    ids = quick.encode(text)
    if ids is not None:
        assert ids.tolist() == backend.encode(text).ids


@cache
def both(kind: str) -> tuple[hf.Tokenizer, TiktokenBPE]:
    """Return a tokenizer without its added tokens, and its replacement."""
    known = _trained(kind)
    backend = hf.Tokenizer(known.model)
    backend.pre_tokenizer = known.pre_tokenizer
    if known.normalizer is not None:
        backend.normalizer = known.normalizer
    quick = converted(backend)
    assert quick is not None
    return backend, quick


def test_a_prefix_is_put_in_front_of_the_beginning_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "WORTH", 1)
    backend = of_merges([("Ġ", "a"), ("a", "b")])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    tokenizer = HubTokenizer(backend)
    assert tokenizer.encode("a") == [backend.token_to_id("Ġa")]
    assert tokenizer._quick is not None
    assert tokenizer.encode("a", continuing=True) == [backend.token_to_id("a")]
    assert tokenizer.spans("a ab")[0].tolist() == backend.encode("a ab").ids
