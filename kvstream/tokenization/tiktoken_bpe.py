"""Byte-level BPE of the `tokenizers` library, encoded by tiktoken, which is several times faster.

Both join neighbors until none can be joined: those of the lowest rank first, of equal ones the
leftmost.  The library ranks pairs by their place in a list of merges; tiktoken ranks them by the
token that they make, and joins whatever makes one.  The two do the same if

- the library makes every token out of that token's own bytes, and
- the merges that make one token stand side by side in the list.

For joining never moves a boundary, so neighbors x and y have come about as they do when the bytes
of xy are alone, and there the last pair is one certain pair.  So where xy is a token, x and y are
that pair: the library has a merge for it, and by the second condition orders it among the others
as tiktoken does.  Both are checked here, and the pattern that cuts text into words must mean the
same to both.  What is not certain is left to the library: whole tokenizers, and single texts.
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
"""Characters of a text; in longer ones the search for a pattern may give up."""
GROUP = 1000
"""Tokens that are checked together."""
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What the library's byte-level pre-tokenizer cuts by."""
GPT2_DIGITS = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
"""The same behind a cut at every digit: no digit is left, and each ends what is before it."""
_CLASS = r"\\[pP]\{\w+\}|\\[sSdD]|\(\?i:"
_SAME = re.compile(
    rf"(?:{_CLASS}|\\[rnt]|\\\W|\(\?[:!=]|\[(?!:)\^?|[?*+]\+?|\{{\d+(?:,\d*)?\}}(?![?+])"
    r"|(?!--|&&|~~)[^\\({}.$^\[])*"
)
"""Patterns that have only such parts as mean the same to both libraries."""


class TiktokenBPE:
    """Stands in for a tokenizer of the library, in text that goes on; see `convert`."""

    def __init__(
        self,
        pattern: str,
        vocabulary: dict[bytes, int],
        *,
        nfc: bool = False,
        added: Iterable[str] = (),
    ) -> None:
        """``vocabulary``: ids, in the order of the ranks. Raises ValueError for the pattern."""
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
        """Ids int32 [n], or None where the library must encode ``text``."""
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
        # Text that the pattern leaves out would be in no token.
        return self._ids[ranks] if int(self._lengths[ranks].sum()) == size else None

    def _look_at(self, new: set[str]) -> None:
        """Find the odd ones among characters: the tables of two libraries may differ in age."""
        if new:
            self._known |= new
            text = "".join(sorted(new))
            self._odd.update(c for part in self._classes for c in part.disputed(text))
            self._odd.update(c for c in new if unicodedata.category(c) == "Cn")


class _Class:
    """A class of characters, as a pattern has it."""

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
        """Characters of ``text`` that belong to it in one of the libraries only."""
        here = bytes(self._encoding.encode_ordinary(text)).decode()
        there = "".join(piece for piece, _ in self._split.pre_tokenize_str(text))
        return set(here) ^ set(there)


def convert(
    backend: tokenizers.Tokenizer, encode: Callable[[str], list[int]], added: Iterable[str]
) -> TiktokenBPE | None:
    """A stand-in for ``encode``, or None where it is not certain to give the same ids.

    ``encode`` is ``backend`` without a prefix in front; ``added`` are the texts that it looks for
    before all else.  Takes about a second for a large vocabulary.
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
    """What a part of a tokenizer says of itself; ``type`` is empty where there is none."""
    state: dict[str, Any] = {"type": ""}
    if component is not None:
        state = json.loads(component.__getstate__())
    parts = state.get("normalizers", state.get("pretokenizers", ()))
    return parts[0] if len(parts) == 1 else state


def _pattern(backend: tokenizers.Tokenizer) -> str | None:
    """A pattern that matches the words which the pre-tokenizer makes, None where there is none."""
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
    # Either keeps what matches; what does not is seen by `TiktokenBPE.encode`.
    known = (first["behavior"], first["invert"]) in (("Isolated", False), ("Removed", True))
    return pattern if known and pattern is not None and _SAME.fullmatch(pattern) else None


def _vocabulary(backend: tokenizers.Tokenizer) -> dict[bytes, int] | None:
    """Tokens and ids in the order in which tiktoken must join them, None where there is none."""
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
    free = alphabet.keys() - set("".join(tokens))  # joins nothing: there are bytes that UTF-8 lacks
    if not free:
        return None
    barrier = min(free)
    groups = [tokens[at : at + GROUP] for at in range(0, len(tokens), GROUP)]
    texts = [barrier.join(["", *group, ""]) for group in groups]
    bare = Tokenizer(backend.model)
    parts: list[int] = []  # tokens into which the bytes of each are joined
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
    if model.get("ignore_merges"):  # then whole words are found even if nothing makes them
        rest = {token: count for token, count in zip(tokens, parts, strict=True) if count > 1}
        if 2 in rest.values():  # tiktoken would join the two
            return None
        order += rest
    known = [*alphabet, *order]
    return {bytes(map(alphabet.__getitem__, token)): numbers[token] for token in known}


def byte_alphabet() -> dict[str, int]:
    """The bytes for which visible characters stand in byte-level vocabularies."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {
        chr(256 + place): byte for place, byte in enumerate(hidden)
    }
