"""BPE of the `tokenizers` library that writes spaces as ``▁`` (Llama 2, Mistral, Gemma), by words.

Such tokenizers join characters over a whole text, for they do not cut it into words; that is slow,
and the same words are joined again and again.  But where no token holds two characters side by
side, nothing is ever joined across their border, and what is on either side comes about as it would
alone.  So text is cut there (mostly in front of spaces and marks), and each different piece, called
a word here, is encoded once and then taken from a table, which is emptied when it gets large.  What
is not certain is left to the library: whole tokenizers, and single texts.
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
"""Characters of words that the table may hold: some 60,000 words, 10 MB."""
OTHER = 128
"""What stands for all characters beyond ASCII, which are never cut apart."""
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class MetaspaceBPE:
    """Stands in for a tokenizer of the library, in text that goes on; see `convert`."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        lengths: np.ndarray,
        joins: np.ndarray,
        cuts: Iterable[str] = (),
        doubtful: Iterable[str] = (),
    ) -> None:
        """``lengths``: UTF-8 bytes of text for each id; no text is as long as an unknown token.

        ``joins``: bool [129, 129], whether some token may hold two characters side by side (ASCII,
        `OTHER`).  ``cuts``: added tokens, which the library looks for before all else.
        ``doubtful``: texts that only it can handle.
        """
        self.lengths = lengths
        self._backend = backend
        self._doubtful = (SPACE, *doubtful)
        self._joins = joins
        longest_first = sorted(cuts, key=len, reverse=True)
        self._cut = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._empty()

    def encode(self, text: str) -> np.ndarray | None:
        """Ids int32 [n], or None where the library must encode ``text``."""
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
        self._ids = np.empty(0, dtype=np.int32)  # of all words, one after the other
        self._begins = np.zeros(1, dtype=np.int64)  # where each word's begin, and the end

    def _learn(self, words: list[str]) -> bool:
        """Put ``words`` into the table; False if one of them has what no token stands for."""
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
    """A stand-in for ``encode``, or None where it is not certain to give the same ids.

    ``encode`` is ``backend`` without a prefix in front; ``added`` are the tokens that it looks for
    before all else, and with ``prefixed`` a prefix may come again behind one of them.
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
    """Whether all that happens to text before it is joined is that ``▁`` stands for a space."""
    replaces = _parts(backend.normalizer, "normalizers")
    cuts = _parts(backend.pre_tokenizer, "pretokenizers")
    space = {"String": " "}
    replaced = [{"type": "Replace", "pattern": space, "content": SPACE}]
    if replaces == replaced:  # then no space is left to cut at
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
