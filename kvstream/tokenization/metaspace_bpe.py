"""Encode BPE that writes spaces as ``▁`` (Llama 2, Mistral, Gemma) word by word, with a table.

Such tokenizers of the `tokenizers` library join characters over a whole text without splitting it
into words. That is slow, because the same words are joined repeatedly. But if no token contains two
characters next to each other, nothing is joined across their border, and each side gives the same
tokens as it does alone. So text is split there (mostly before spaces and marks). Each different
piece, called a word here, is encoded once and then read from a table. The table is emptied when it
gets large. Tokenizers and single texts for which the result is not certain are left to the library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstream.tokenization.equivalence import agrees

if TYPE_CHECKING:
    import tokenizers

SPACE = "▁"
MOST = 1 << 19
"""Maximum characters of words in the table: about 60,000 words, 10 MB."""
OTHER = 128
"""Code for all characters beyond ASCII, which are never split from each other."""
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class MetaspaceBPE:
    """Replaces a tokenizer of the library for text that continues other text; see `convert`."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        lengths: np.ndarray,
        joins: np.ndarray,
        cuts: Iterable[str] = (),
        doubtful: Iterable[str] = (),
    ) -> None:
        """Make an empty table.

        ``lengths``: UTF-8 bytes of text for each id; huge for the unknown token, so that it never
        matches a text. ``joins``: bool [129, 129], whether some token may contain two characters
        (ASCII, `OTHER`) next to each other. ``cuts``: added tokens, which the library searches for
        before all else. ``doubtful``: texts that only the library can handle.
        """
        self.lengths = lengths
        self._backend = backend
        self._doubtful = (SPACE, *doubtful)
        self._joins = joins
        longest_first = sorted(cuts, key=len, reverse=True)
        self._cut = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._empty()

    def encode(self, text: str) -> np.ndarray | None:
        """Return ids int32 [n], or None if the library must encode ``text``."""
        if any(part in text for part in self._doubtful):
            return None
        words = self._words(text)
        new = [word for word in dict.fromkeys(words) if word not in self._numbers]
        if new:
            if self._held + sum(map(len, new)) > MOST:
                self._empty()
                new = list(dict.fromkeys(words))
            if not self._learn(new):
                return None
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        counts = self._begins[numbers + 1] - self._begins[numbers]
        places = np.cumsum(counts) - counts
        shift = np.repeat(self._begins[numbers] - places, counts)
        return self._ids[shift + np.arange(len(shift))]

    def _words(self, text: str) -> list[str]:
        codes = np.minimum(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32), OTHER)
        apart = ~self._joins[codes[:-1], codes[1:]]
        if self._cut is not None:
            for match in self._cut.finditer(text):
                begin, end = match.span()
                apart[begin : end - 1] = False
                apart[max(begin - 1, 0) : begin] = apart[end - 1 : end] = True
        places = (np.flatnonzero(apart) + 1).tolist()
        return [text[a:b] for a, b in pairwise([0, *places, len(text)])]

    def _empty(self) -> None:
        self._numbers: dict[str, int] = {}
        self._held = 0  # characters
        self._ids = np.empty(0, dtype=np.int32)  # ids of all words, concatenated
        self._begins = np.zeros(1, dtype=np.int64)  # first index of each word's ids, and the end

    def _learn(self, words: list[str]) -> bool:
        """Add ``words`` to the table. Return False if the tokens do not cover all their text."""
        encodings = self._backend.encode_batch_fast(words, add_special_tokens=False)
        found = [encoding.ids for encoding in encodings]
        counts = np.array([len(ids) for ids in found])
        ids = np.array([i for word in found for i in word], dtype=np.int32)
        ends = np.cumsum(counts)
        sizes = np.diff(np.concatenate([[0], self.lengths[ids]]).cumsum()[np.r_[0, ends]])
        if sizes.tolist() != [len(word.encode()) for word in words]:
            return False
        first = len(self._numbers)
        self._numbers.update((word, number) for number, word in enumerate(words, first))
        self._held += sum(map(len, words))
        self._begins = np.concatenate([self._begins, self._begins[-1] + ends])
        self._ids = np.concatenate([self._ids, ids])
        return True


def convert(
    backend: tokenizers.Tokenizer,
    encode: Callable[[str], list[int]],
    added: Sequence[Any],
    prefixed: bool,
) -> MetaspaceBPE | None:
    """Return a faster equivalent of ``encode``, or None if the same ids are not certain.

    ``encode`` is ``backend`` without a prefix. ``added`` are the tokens that it searches for before
    all else. With ``prefixed`` the library may add a prefix again after one of them.
    """
    model = json.loads(backend.model.__getstate__())
    if not _writes_spaces(backend) or model["type"] != "BPE":
        return None
    if model["dropout"] or model.get("ignore_merges"):
        return None
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        return None
    vocabulary: dict[str, int] = model["vocab"]
    cuts: list[str] = []
    doubtful: list[str] = []
    numbers = {token.content: backend.token_to_id(token.content) or 0 for token in added}
    most = max((*vocabulary.values(), *numbers.values()), default=-1)
    lengths = np.zeros(most + 1, dtype=np.int64)
    for token, number in vocabulary.items():
        single = model["byte_fallback"] and _BYTE.fullmatch(token)
        lengths[number] = 1 if single else len(token.replace(SPACE, " ").encode())
    if model["unk_token"] in vocabulary:
        lengths[vocabulary[model["unk_token"]]] = 1 << 40
    for token in added:
        lengths[numbers[token.content]] = len(token.content.encode())
        odd = token.single_word or token.lstrip or token.rstrip or token.normalized or prefixed
        (doubtful if odd else cuts).append(token.content)
    joins = np.zeros((OTHER + 1, OTHER + 1), dtype=np.bool_)
    joins[OTHER] = joins[:, OTHER] = True
    for token in vocabulary:
        codes = [min(ord(char), OTHER) for char in token.replace(SPACE, " ")]
        joins[codes[:-1], codes[1:]] = True
    found = MetaspaceBPE(backend, lengths, joins, cuts, doubtful)
    return found if agrees(found.encode, encode) else None


def _writes_spaces(backend: tokenizers.Tokenizer) -> bool:
    """Return whether the only change to text before merging is that ``▁`` replaces spaces."""
    replaces = _parts(backend.normalizer, "normalizers")
    cuts = _parts(backend.pre_tokenizer, "pretokenizers")
    space = {"String": " "}
    replaced = [{"type": "Replace", "pattern": space, "content": SPACE}]
    if replaces == replaced:  # then no space is left, and a split at spaces has no effect
        return all(part["type"] == "Split" and part["pattern"] == space for part in cuts)
    if replaces or len(cuts) != 1:
        return False
    [cut] = cuts
    kind = cut["type"], cut.get("replacement"), cut.get("prepend_scheme")
    return kind == ("Metaspace", SPACE, "never")


def _parts(component: Any, key: str) -> list[dict[str, Any]]:
    if component is None:
        return []
    state: dict[str, Any] = json.loads(component.__getstate__())
    parts: list[dict[str, Any]] = state.get(key, [state])
    return parts
