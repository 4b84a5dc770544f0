"""Streamed tokens equal one-shot tokens, and have the right byte offsets."""

from __future__ import annotations

import io
import itertools
import json
import random
import re
import time
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
import tokenizers as hf
from cases import every_second
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from kvstream.errors import ModelError
from kvstream.input.controls import SIGNS
from kvstream.input.sources import open_sources
from kvstream.tokenization.huggingface import HubTokenizer
from kvstream.tokenization.loading import Tokenizer, TokenStream, load_tokenizer
from kvstream.tokenization.stream import BLOCK
from kvstream.tokenization.tiktoken import TiktokenTokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind it at all.",
    "In 1984 there were 12,345 reasons to say it; I'll name but 3!\r\n\r\nA new paragraph  begins.",
    "Größe, façade, naïve, Ελληνικά, русский,\n日本語の文章は空白なしで続きます。漢字仮名交じり文",
    "def main(argv):\n    return [x for x in argv if x]\n\n\tif x == 1:   pass  ",
    "the dog the dog the dog in the in the aaaaaaaa aaaabbbb ababab 👩‍👩‍👧 e\u0301e\u0301 ",
] * 3


WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _cut_by_words(kind: str) -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that cuts text as models of the hub do before merging bytes."""
    if kind == "bytes-digits":  # SmolLM, StarCoder
        cut = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if kind in ("bytes-llama3", "bytes-qwen"):
        pattern = WORDS if kind == "bytes-llama3" else WORDS.replace("{1,3}", "")
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
        rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([cut, rest])
    # Tokens of bytes-whole can contain several words.
    prefix, words = kind == "bytes-prefix", kind != "bytes-whole"
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=words)


def _with_all_splits(model: dict[str, Any]) -> None:
    """Set merges as converters do: all splits of a token into two, by rank; whole words first."""
    ranks = model["vocab"]
    model["merges"] = [
        [token[:i], token[i:]]
        for token in sorted(ranks, key=ranks.__getitem__)
        for i in range(1, len(token))
        if token[:i] in ranks and token[i:] in ranks
    ]
    model["ignore_merges"] = True


@cache
def _trained(kind: str) -> hf.Tokenizer:
    bpe = kind != "unigram" and kind != "unigram-whole"
    fallback = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    if kind.startswith("bytes"):
        tokenizer = hf.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = _cut_by_words(kind)
        tokenizer.decoder = decoders.ByteLevel()
        if kind in ("bytes-nfc", "bytes-qwen"):
            tokenizer.normalizer = normalizers.NFC()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet)
    elif bpe:
        tokenizer = hf.Tokenizer(models.BPE(**fallback))
        if kind == "gemma":
            tokenizer.normalizer = normalizers.Replace(" ", "▁")
            tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        elif kind == "llama":
            replace = normalizers.Replace(" ", "▁")
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        else:
            scheme = "first" if kind == "metaspace-first" else "always"
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
             decoders.Strip(" ", 1, 0)]
        )  # fmt: skip
        trainer = trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
        )
    else:
        tokenizer = hf.Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=kind == "unigram")
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=300, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
        )
    trainer.show_progress = False
    tokenizer.train_from_iterator(CORPUS, trainer)
    whole = json.loads(tokenizer.to_str())
    whole["added_tokens"] = []  # the trainer makes <0x00> and <unk> special, real tokenizers do not
    if kind == "bytes-llama3":
        _with_all_splits(whole["model"])
    tokenizer = hf.Tokenizer.from_str(json.dumps(whole))
    tokenizer.add_special_tokens(["<|user|>", "<|end|>"])
    tokenizer.add_tokens(["<tool>"])
    if kind == "gemma":
        tokenizer.add_tokens([hf.AddedToken(text, normalized=False) for text in ("\n\n", "<b>")])
    return tokenizer


KINDS = [
    "bytes", "bytes-prefix", "bytes-nfc", "bytes-whole", "metaspace", "metaspace-first", "llama",
    "unigram", "unigram-whole", "tiktoken", "pocket",
    "bytes-gpt2", "bytes-llama3", "bytes-qwen", "bytes-digits",
]  # fmt: skip


@cache
def reference(kind: str) -> hf.Tokenizer:
    tokenizer = hf.Tokenizer.from_str(_trained(kind).to_str())
    tokenizer.encode_special_tokens = True
    return tokenizer


@cache
def make(kind: str) -> Tokenizer:
    if kind == "pocket":
        return load_tokenizer("pocket")
    if kind == "tiktoken":
        ranks = {bytes([byte]): byte for byte in range(256)}
        for word in (b" t", b"he", b" the", b"in", b" in", b"aa", b"aaaa", b"  ", b"\n\n"):
            ranks[word] = len(ranks)
        pattern = r"'(?:[sdmt]|ll)| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
        encoding = tiktoken.Encoding(
            "tiny", pat_str=pattern, mergeable_ranks=ranks,
            special_tokens={"<|user|>": 400, "<|end|>": 401},
        )  # fmt: skip
        return TiktokenTokenizer(encoding, eos="<|end|>")
    return HubTokenizer(_trained(kind), name=kind)


def one_shot(kind: str, text: str) -> list[int]:
    if kind in ("tiktoken", "pocket"):
        return make(kind).encode(text)
    ids: list[int] = reference(kind).encode(text, add_special_tokens=False).ids
    return ids


def scores(kind: str, ids: list[int]) -> float:
    vocabulary = json.loads(_trained(kind).to_str())["model"]["vocab"]
    return sum(vocabulary[token][1] for token in ids)


class Pieces(io.BytesIO):
    """A stream that returns its bytes in pieces of varying size."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        super().__init__(data)
        self.sizes = sizes
        self.turn = 0

    def read1(self, size: int | None = -1, /) -> bytes:
        self.turn += 1
        return self.read(self.sizes[self.turn % len(self.sizes)])


def stream(
    kind: str, data: bytes, sizes: list[int], n: int
) -> tuple[TokenStream, list[int], list[int]]:
    tokens = TokenStream(make(kind), open_sources(["-"], plain=True, stdin=Pieces(data, sizes)))
    ids: list[int] = []
    starts: list[int] = []
    while True:
        chunk = tokens.read(n)
        if not len(chunk):
            if tokens.at_end:
                break
            continue  # a pause: the next piece decides what carriage returns are
        assert len(chunk) <= n
        ids += chunk.ids.tolist()
        starts += chunk.starts.tolist()
        assert chunk.end >= starts[-1]
    assert tokens.seen == len(ids) == tokens.estimate()
    return tokens, ids, starts


LETTERS = st.sampled_from("abetho  \n")
ANY = st.characters(exclude_categories=["Cs"], exclude_characters=SIGNS)
"""No character that can begin a control sequence: those are removed before the tokens."""
PIECE = (
    st.text(ANY, min_size=1, max_size=8)
    | st.text(LETTERS, min_size=1, max_size=8)
    | st.sampled_from(
        [
            "the dog ", "\r\n", "\r\n\r\n", "    ", "\t", "12345 ", "e\u0301", "👩‍👩‍👧",
            "漢字仮名交", "日本語",
            "aaaaaaaa", "don't ", "ﬁ", "<|user|>", "<tool>", "<b>", "Å", " ", "▁", "\u3000",
        ]
    )
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    pieces=st.lists(PIECE, min_size=1, max_size=12),
    seed=st.integers(0, 2**16),
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=4),
    n=st.integers(1, 900),
    invalid=st.booleans(),
)
def test_streamed_equals_one_shot(
    kind: str, pieces: list[str], seed: int, sizes: list[int], n: int, invalid: bool
) -> None:
    rng = random.Random(seed)
    # Control sequences are removed before the text is encoded (tests/input/test_terminal.py).
    plain = ["".join(c for c in piece if c not in SIGNS) for piece in pieces]
    parts = [rng.choice(plain).encode() for _ in range(300)]
    if invalid:
        parts[rng.randrange(300)] = b"\xff\xe2\x82 "
        parts[rng.randrange(300)] = b"\xf0\x9f"
    data = b"".join(parts)
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    text = re.sub(r"\r+(?![\r\n])", lambda lone: "\n" * len(lone[0]), text)
    tokens, ids, starts = stream(kind, data, sizes, n)
    expected = one_shot(kind, text)
    if kind.startswith("unigram") and ids != expected:
        # The library decides between equal scores by rounding, which depends on the text before.
        assert scores(kind, ids) == pytest.approx(scores(kind, expected), rel=1e-9)
        assert make(kind).decode(ids) == make(kind).decode(expected)
        expected = ids
    assert ids == expected
    assert tokens.forced_cuts == 0
    assert all(a <= b for a, b in pairwise(starts))


@pytest.mark.parametrize("unit", ["the dog ", "dog the ", "aa", "ab", "in the ", "hehe"])
@pytest.mark.parametrize("kind", ["unigram", "unigram-whole"])
def test_text_that_repeats_itself_is_cut_as_a_whole(kind: str, unit: str) -> None:
    """The better of two ways to cut a run depends on whether its whole length is odd or even."""
    rng = random.Random(0)
    for _ in range(3):
        data = (unit * (rng.randrange(600, 3000) // len(unit))).encode()[rng.randrange(4) :]
        sizes = [rng.randrange(1, 700) for _ in range(rng.randrange(1, 4))]
        _, ids, _ = stream(kind, data, sizes, rng.randrange(1, 900))
        expected = scores(kind, one_shot(kind, data.decode()))
        assert scores(kind, ids) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_starts_are_the_bytes_of_the_tokens(kind: str) -> None:
    data = "".join(CORPUS[:5]).encode() * 3
    _, ids, starts = stream(kind, data, [97], 50)
    tokenizer = make(kind)
    assert starts[0] == 0
    wrong = 0
    for token, start, end in zip(ids, starts, [*starts[1:], len(data)], strict=True):
        text = tokenizer.decode([token])
        if (
            "\ufffd" in text
            or kind in ("bytes-nfc", "bytes-qwen", "unigram", "unigram-whole")
            or not text.strip()
        ):
            continue  # part of a character, or normalized
        source = data[start:end].decode()
        wrong += source.strip() != text.strip()
    assert wrong == 0


def test_starts_behind_replaced_bytes_and_a_byte_order_mark() -> None:
    data = b"\xef\xbb\xbfone \xff\xff\xe2\x82 two \xf0\x9f three"
    for kind in ("pocket", "bytes", "bytes-nfc", "metaspace"):
        _, ids, starts = stream(kind, data, [1000], 100)
        tokenizer = make(kind)
        for word in (b" two", b" three"):
            assert data.index(word) in starts, kind
        assert tokenizer.decode(ids).strip() == "one \ufffd\ufffd\ufffd two \ufffd three"


def test_special_strings_in_documents_are_plain_text() -> None:
    for kind in KINDS:
        tokenizer = make(kind)
        assert not tokenizer.special_ids & set(tokenizer.encode("a<|user|>b<|end|><|bos|>"))
        for text in tokenizer.special_strings:
            assert len(tokenizer.encode_template(text, continuing=True)) == 1


def test_role_markers_that_are_not_declared_special_are_plain_text_too() -> None:
    class Wrapper:
        chat_template = "{{ '<tool>' }}"

    backend = _trained("bytes")
    marker = backend.token_to_id("<tool>")
    assert marker in HubTokenizer(backend).encode("<tool>")
    tokenizer = HubTokenizer(backend, Wrapper())
    assert marker not in tokenizer.encode("x<tool>")
    assert tokenizer.encode_template("x<tool>")[-1] == marker


def test_continuing_text_gets_no_prefix() -> None:
    for kind in ("metaspace", "metaspace-first", "llama", "bytes-prefix", "unigram"):
        tokenizer = make(kind)
        assert tokenizer.encode("the dog") != tokenizer.encode("the dog", continuing=True)
        together = tokenizer.encode("in the dog")
        assert together == tokenizer.encode("in") + tokenizer.encode(" the dog", continuing=True)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=40) | st.sampled_from(CORPUS))
@settings(max_examples=30, deadline=None)
def test_pieces_of_an_answer_add_up(kind: str, text: str) -> None:
    tokenizer = make(kind)
    ids = tokenizer.encode(text)
    ids = [*ids[: len(ids) // 2], *sorted(tokenizer.special_ids)[-1:], *ids[len(ids) // 2 :]]
    decoder = tokenizer.decoder()
    pieces = [decoder.push(token) for token in ids]
    assert "".join(pieces) + decoder.flush() == tokenizer.decode(ids)
    if text.isascii():
        assert all("\ufffd" not in piece for piece in pieces)


def test_byte_tokens_decode_across_pushes() -> None:
    tokenizer = make("tiktoken")
    decoder = tokenizer.decoder()
    assert [decoder.push(token) for token in tokenizer.encode("é")] == ["", "é"]
    assert decoder.push(tokenizer.encode("é")[0]) == ""
    assert decoder.flush() == "\ufffd"


WIDE = ("pocket", "tiktoken", "bytes", "llama", "unigram", "bytes-qwen")


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        *every_second(itertools.product(WIDE, ("a", "漢字仮名交", " "))),
        *(
            pytest.param(kind, unit, marks=pytest.mark.long)
            for kind, unit in itertools.product(WIDE, ("\n", "x1é!?"))
        ),
    ],
)
@pytest.mark.parametrize("block", [BLOCK // 4, pytest.param(BLOCK, marks=pytest.mark.long)])
def test_one_line_without_words_stays_cheap(
    kind: str, unit: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is longer than what may wait for a cut, and costs less than a multiple of it."""
    monkeypatch.setattr("kvstream.input.pieces.BLOCK", block)
    monkeypatch.setattr("kvstream.tokenization.stream.BLOCK", block)
    monkeypatch.setattr("kvstream.tokenization.stream.MOST", 4 * block)
    text = unit * (7 * block // len(unit.encode()))
    tokens = TokenStream(make(kind), open_sources(["-"], stdin=io.BytesIO(text.encode())))
    started, most, read = time.process_time(), 0, 0
    while chunk := tokens.read(4096):
        read += len(chunk)
        most = max(most, tokens._waiting_chars)
    # A unigram model's cuts of a run of one letter depend on the end of the run. The stream waits
    # for the end only up to a limit.
    off = 0.001 if (kind, unit) == ("unigram", "a") else 0
    assert read == pytest.approx(len(one_shot(kind, text)), rel=off, abs=0)
    assert most <= 6 * block
    assert time.process_time() - started < 20 * block / BLOCK


def test_pauses_after_each_character_stay_cheap() -> None:
    """Each attempt at a cut encodes the waiting text several times."""
    tokenizer, encoded = make("unigram-whole"), 0
    encode = tokenizer.encode

    def counting(text: str, **how: Any) -> list[int]:
        nonlocal encoded
        encoded += len(text)
        return encode(text, **how)

    tokenizer.encode = counting  # type: ignore[method-assign]
    data = b"the dog " * 200
    tokens = TokenStream(tokenizer, open_sources(["-"], plain=True, stdin=Pieces(data, [1])))
    while not tokens.at_end:
        tokens.read(1)
    assert encoded < 1000 * len(data)


def test_estimates(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(("\n".join(CORPUS) * 200).encode())
    expected = len(make("pocket").encode(path.read_bytes().decode()))
    tokens = TokenStream(make("pocket"), open_sources([str(path)]))
    estimate = tokens.estimate()
    assert estimate == pytest.approx(expected, rel=0.05)
    assert len(tokens.read(10)) == 10
    while tokens.read(1000):
        pass
    assert tokens.estimate() == tokens.seen == expected
    assert tokens.at_end
    pipe = TokenStream(make("pocket"), open_sources(["-"], stdin=io.BytesIO(b"one two")))
    assert pipe.estimate() is None
    assert len(pipe.read(100)) == pipe.estimate() == 2


def test_blocks_are_shown_as_they_are_taken_in() -> None:
    seen: list[str] = []
    data = ("word " * 50_000).encode()
    sources = open_sources(["-"], stdin=io.BytesIO(data))
    tokens = TokenStream(make("pocket"), sources, lambda block: seen.append(block.text))
    tokens.read(10)
    assert 0 < len("".join(seen)) < len(data)
    while tokens.read(10_000):
        pass
    assert "".join(seen) == data.decode()


def test_a_slow_pipe_gets_its_tokens_early() -> None:
    import os

    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        os.write(writing, b"a few words " * 400)
        tokens = TokenStream(make("pocket"), open_sources(["-"], stdin=pipe))
        assert len(tokens.read(256)) == 256  # the pipe is still open
        os.close(writing)


def test_hub_tokenizer_agrees_with_the_embedded_one() -> None:
    from kvstream.store import pocket

    backend = hf.Tokenizer.from_file(str(pocket.path() / "tokenizer.json"))
    other, own = HubTokenizer(backend), load_tokenizer("pocket")
    assert load_tokenizer(str(pocket.path())).name == "pocket"
    for text in CORPUS:
        ids, starts, _ = own.spans(text)
        other_ids, other_starts, _ = other.spans(text)
        assert np.array_equal(ids, other_ids)
        assert np.array_equal(starts, other_starts)
    assert own._encoding.n_vocab == backend.get_vocab_size(with_added_tokens=True)
    assert own.encode_template("<|bos|>a") == other.encode_template("<|bos|>a")


def test_bytes_of_the_command_line_that_are_no_text() -> None:
    for kind in KINDS:
        make(kind).encode("caf\udce9")


def test_numbering_with_holes() -> None:
    tokenizer = hf.Tokenizer(models.BPE(vocab={"a": 0, "b": 7, "ab": 9}, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>"])
    own = HubTokenizer(tokenizer)
    assert own.encode("ab a") == [9, 0]
    assert own.encode_template("<s>ab") == tokenizer.encode("<s>ab").ids


def test_a_model_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"it has no tokenizer\.json; copy or download"):
        load_tokenizer(str(tmp_path), offline=True)


def test_a_long_log_behind_a_book_is_read_to_its_end(tmp_path: Path) -> None:
    """Thinning drops a quarter of a million characters in a row: a pause, not the end."""
    from kvstream.logs.thinning import ThinnedSource

    prose, log = tmp_path / "prose.txt", tmp_path / "app.log"
    prose.write_text("The miller went down to the river and came home late. " * 1500)
    lines = [
        f"2024-05-01 10:{n // 60 % 60:02d}:{n % 60:02d} INFO web: GET x\n" for n in range(9000)
    ]
    log.write_text("".join(lines) + "2024-05-01 13:00:00 ERROR vault: the code is 48213\n")
    source = ThinnedSource(open_sources([str(prose), str(log)]), 65536, ["Which code?"])
    tokenizer = load_tokenizer("pocket")
    stream, ids = TokenStream(tokenizer, source), []
    while len(batch := stream.read(1000)) or stream.paused:
        ids += batch.ids.tolist()
    assert tokenizer.decode(ids).rstrip().endswith("the code is 48213")
    assert source.line_counts is not None
    assert source.line_counts.lines == 9001


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_at_a_pause_has_the_last_lines(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens stay those of the whole text, although the text behind the cut is unknown."""
    monkeypatch.setattr("kvstream.input.sources.WAIT_SECONDS", 0.0)
    rng = random.Random(kind)
    ends = ["\n", "\r\n", ".\n", "...\n\n", "!\n  ", " \n", ":\n\t", "\n\n\n", "9\n", "é\n"]
    lines = ["".join(rng.choices(["the dog", " ", "in", "12", "it's", "漢", "aa"], k=8)) +
             rng.choice(ends) for _ in range(60)]  # fmt: skip
    text = "".join(lines)

    class Pausing(io.BytesIO):
        turn = 0

        def read1(self, size: int | None = -1, /) -> Any:
            self.turn += 1
            return None if self.turn % 2 else super().read1(rng.randint(1, 60))

    tokens = TokenStream(make(kind), open_sources(["-"], plain=True, stdin=Pausing(text.encode())))
    ids: list[int] = []
    held = []
    while len(batch := tokens.read(99)) or tokens.paused:
        ids += batch.ids.tolist()
        held.append(tokens._waiting_chars)
    assert ids == one_shot(kind, text)
    if kind in ("pocket", "bytes-qwen"):
        assert sorted(held)[len(held) // 2] < 60
