"""Encode byte-level BPE of the `tokenizers` library with tiktoken, which is several times faster.

Both join neighbors until no pair can be joined: the lowest rank first, and the leftmost of equal
ranks. The library ranks pairs by their place in a list of merges. tiktoken ranks them by the token
that they make, and joins every pair that makes a token. Both give the same ids if

- the library joins the bytes of every token to that token, and
- the merges that make the same token are adjacent in the list.

Proof: joining never moves a boundary. So neighbors x and y formed as they do if the bytes of xy are
alone, and there the last pair to be joined is one specific pair. If xy is a token, x and y are that
pair. So the library has a merge for it, and by the second condition it has the same rank among the
others as in tiktoken.

This module checks both conditions, and that the pattern that splits text into words means the same
to both. Tokenizers and single texts for which the result is not certain are left to the library.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstream.tokenization.equivalence import agrees

if TYPE_CHECKING:
    import tokenizers

MOST = 1 << 19
"""Maximum characters of a text. In longer ones a pattern search may give up."""
GROUP = 1000
"""Tokens to check together."""
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern by which the library's byte-level pre-tokenizer splits text."""
GPT2_DIGITS = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
"""The same pattern after a split at every digit: each digit is a word, and ends the one before."""
_CLASS = r"\\[pP]\{\w+\}|\\[sSdD]|\(\?i:"
_SAME = re.compile(
    rf"(?:{_CLASS}|\\[rnt]|\\\W|\(\?[:!=]|\[(?!:)\^?|[?*+]\+?|\{{\d+(?:,\d*)?\}}(?![?+])"
    r"|(?!--|&&|~~)[^\\({}.$^\[])*"
)
"""Matches patterns whose parts all mean the same to both libraries."""


class TiktokenBPE:
    """Replaces a tokenizer of the library for text that continues other text; see `convert`."""

    def __init__(
        self,
        pattern: str,
        vocabulary: dict[bytes, int],
        *,
        nfc: bool = False,
        added: Iterable[str] = (),
    ) -> None:
        """``vocabulary``: ids in the order of the ranks.

        Raises ValueError if tiktoken cannot read the pattern.
        """
        import tiktoken

        ranks = {piece: rank for rank, piece in enumerate(vocabulary)}
        self._encoding = tiktoken.Encoding(
            "", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
        )
        self._ids = np.array(list(vocabulary.values()), dtype=np.int32)
        self._lengths = np.array([len(piece) for piece in vocabulary], dtype=np.int64)
        self._nfc = nfc
        self._added = tuple(added)
        self._classes = [_Class(part) for part in sorted(set(re.findall(_CLASS, pattern)))]
        self._known: set[str] = set()
        self._odd: set[str] = set()
        self._look_at(set(map(chr, range(128))))

    def encode(self, text: str) -> np.ndarray | None:
        """Return ids int32 [n], or None if the library must encode ``text``."""
        if len(text) > MOST or any(token in text for token in self._added):
            return None
        ascii_only = text.isascii()
        if not ascii_only:
            characters = set(text)
            self._look_at(characters - self._known)
            if not characters.isdisjoint(self._odd):
                return None
            if self._nfc and not unicodedata.is_normalized("NFC", text):
                return None
        ranks = np.array(self._encoding.encode_ordinary(text), dtype=np.int32)
        size = len(text) if ascii_only else len(text.encode())
        # Text that the pattern does not match is in no token.
        return self._ids[ranks] if int(self._lengths[ranks].sum()) == size else None

    def _look_at(self, new: set[str]) -> None:
        """Find characters that the libraries may classify differently: their Unicode tables may
        differ in age."""
        if new:
            self._known |= new
            text = "".join(sorted(new))
            self._odd.update(c for part in self._classes for c in part.disputed(text))
            self._odd.update(c for c in new if unicodedata.category(c) == "Cn")


class _Class:
    """A character class of a pattern."""

    def __init__(self, part: str) -> None:
        import tiktoken
        from tokenizers import Regex, pre_tokenizers

        pattern = "(?i:[a-z])" if part == "(?i:" else part
        single = {bytes([byte]): byte for byte in range(256)}
        self._encoding = tiktoken.Encoding(
            "", pat_str=pattern, mergeable_ranks=single, special_tokens={}
        )
        self._split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)

    def disputed(self, text: str) -> set[str]:
        """Return characters of ``text`` that only one of the libraries counts in the class."""
        here = bytes(self._encoding.encode_ordinary(text)).decode()
        there = "".join(piece for piece, _ in self._split.pre_tokenize_str(text))
        return set(here) ^ set(there)


def convert(
    backend: tokenizers.Tokenizer, encode: Callable[[str], list[int]], added: Iterable[str]
) -> TiktokenBPE | None:
    """Return a faster equivalent of ``encode``, or None if the same ids are not certain.

    ``encode`` is ``backend`` without a prefix. ``added`` are the texts that it searches for before
    all else. Takes about a second for a large vocabulary.
    """
    added = list(added)
    pattern = _pattern(backend)
    normalizer = _state(backend.normalizer)["type"]
    if pattern is None or normalizer not in ("", "NFC"):
        return None
    if not all(token and unicodedata.is_normalized("NFC", token) for token in added):
        return None
    vocabulary = _vocabulary(backend)
    if vocabulary is None:
        return None
    try:
        found = TiktokenBPE(pattern, vocabulary, nfc=normalizer == "NFC", added=added)
    except ValueError:  # a pattern that tiktoken does not read
        return None
    return found if agrees(found.encode, encode) else None


def _state(component: Any) -> dict[str, Any]:
    """Return the state of a tokenizer's component; ``type`` is empty if there is none."""
    state: dict[str, Any] = {"type": ""}
    if component is not None:
        state = json.loads(component.__getstate__())
    parts = state.get("normalizers", state.get("pretokenizers", ()))
    return parts[0] if len(parts) == 1 else state


def _pattern(backend: tokenizers.Tokenizer) -> str | None:
    """Return a pattern that matches the words of the pre-tokenizer, or None if there is none."""
    state = _state(backend.pre_tokenizer)
    *before, last = state.get("pretokenizers", [state])
    if last["type"] != "ByteLevel" or len(before) > 1:
        return None
    whole_words = last.get("use_regex", True)
    if not before:
        return GPT2 if whole_words else None
    [first] = before
    if first["type"] == "Digits" and first["individual_digits"] and whole_words:
        return GPT2_DIGITS
    if first["type"] != "Split" or whole_words:
        return None
    pattern = first["pattern"].get("Regex")
    # Both kinds keep the matches. `TiktokenBPE.encode` detects text that does not match.
    known = (first["behavior"], first["invert"]) in (("Isolated", False), ("Removed", True))
    return pattern if known and pattern is not None and _SAME.fullmatch(pattern) else None


def _vocabulary(backend: tokenizers.Tokenizer) -> dict[bytes, int] | None:
    """Return tokens and ids in the order in which tiktoken must join them, or None if no order
    gives the same ids."""
    from tokenizers import Tokenizer

    model = json.loads(backend.model.__getstate__())
    if model["type"] != "BPE" or model["dropout"]:
        return None
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        return None
    numbers: dict[str, int] = model["vocab"]
    alphabet = byte_alphabet()
    if not all(char in numbers for char in alphabet):
        return None
    tokens = [t for t in numbers if len(t) > 1 and alphabet.keys() >= set(t)]
    free = alphabet.keys() - set("".join(tokens))  # bytes in no token, such as those UTF-8 lacks
    if not free:
        return None
    barrier = min(free)
    groups = [tokens[at : at + GROUP] for at in range(0, len(tokens), GROUP)]
    texts = [barrier.join(["", *group, ""]) for group in groups]
    bare = Tokenizer(backend.model)
    parts: list[int] = []  # for each token: the number of tokens that its bytes are joined to
    for text in texts:
        [encoding] = bare.encode_batch_fast([text], add_special_tokens=False)
        places = np.flatnonzero(np.array(encoding.ids) == numbers[barrier])
        parts += (np.diff(places) - 1).tolist()
    made = {token for token, count in zip(tokens, parts, strict=True) if count == 1}
    merges = (m.split(" ") if isinstance(m, str) else m for m in model["merges"])
    results = [token for a, b in merges if (token := a + b) in made]
    order = [token for token, _ in groupby(results)]
    if len(order) != len(set(order)):
        return None
    if model.get("ignore_merges"):  # whole words are then tokens even if no merge makes them
        rest = {token: count for token, count in zip(tokens, parts, strict=True) if count > 1}
        if 2 in rest.values():  # tiktoken would join the two
            return None
        order += rest
    known = [*alphabet, *order]
    return {bytes(map(alphabet.__getitem__, token)): numbers[token] for token in known}


def byte_alphabet() -> dict[str, int]:
    """Return the visible characters of byte-level vocabularies, and the byte of each."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {
        chr(256 + place): byte for place, byte in enumerate(hidden)
    }
