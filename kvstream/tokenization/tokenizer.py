"""The interface of a tokenizer, independent of its library."""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

_CROSSING = re.compile(r"[^\W_][ ▁]+[^\W_]")


class Spans(NamedTuple):
    ids: np.ndarray
    """int32 [n]."""
    starts: np.ndarray
    """int64 [n]: byte of the UTF-8 text at which each token begins.

    A token that is a part of a character may have the start of the character.
    """
    broken: np.ndarray = np.empty(0, dtype=np.int64)
    """int64 [m]: indices of the first token of each control sequence that was broken apart."""


class Tokenizer(ABC):
    """Encodes and decodes text; ``continuing``: no prefix is added, as inside of a text."""

    name: str
    bos_id: int | None
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]
    special_strings: tuple[str, ...]
    """Texts that ``encode_template`` reads as one control token."""
    highest: int = -1
    """The highest id that a text can give; -1 if all ids are known to fit the model."""
    longest: int
    """UTF-8 bytes of the longest token."""
    merges_from_left: bool = False
    """Whether equal pairs merge from the left (BPE): the end of a text moves no border far before
    it, however repetitive the text is."""
    crosses_words: bool
    """Whether some token contains the end of one word and the beginning of the next."""

    @property
    @abstractmethod
    def has_template(self) -> bool:
        """Whether the model comes with a chat template."""

    @abstractmethod
    def render(self, messages: list[dict[str, str]], **options: Any) -> str:
        """Render ``messages`` with the chat template. Raises what the template raises."""

    @abstractmethod
    def spans(self, text: str, *, continuing: bool = False) -> Spans:
        """Encode plain text. Control sequences of the template are broken apart."""

    @abstractmethod
    def encode(self, text: str, *, continuing: bool = False) -> list[int]:
        """Return ids of plain text, without control tokens and control sequences."""

    def controls(self, ids: Sequence[int]) -> int:
        """Return the number of control sequences in ids of template text."""
        return sum(token in self.special_ids for token in ids)

    def between(self, before: Sequence[int], behind: Sequence[int]) -> list[int]:
        """Return ids to put between separately encoded ids that would form a control sequence."""
        return []

    @property
    def reach(self) -> int:
        """Number of ids on either side that `between` looks at."""
        return 0

    @abstractmethod
    def encode_template(self, text: str, *, continuing: bool = False) -> list[int]:
        """Return ids of template text. Control tokens are recognized, but none is added."""

    @abstractmethod
    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of ``ids``. Bytes that are not UTF-8 become U+FFFD."""

    @abstractmethod
    def decoder(self) -> Decoder:
        """Return a new incremental decoder for the tokens of an answer."""


class Decoder(ABC):
    """Decodes token by token to text that can be shown at once. All pieces equal ``decode``."""

    @abstractmethod
    def push(self, token: int) -> str:
        """Return the text that ``token`` completes; empty while a character is incomplete."""

    @abstractmethod
    def flush(self) -> str:
        """Return the rest of the text at the end, with incomplete characters as U+FFFD."""


class ByteDecoder(Decoder):
    def __init__(self, pieces: Sequence[bytes], skip: frozenset[int]) -> None:
        self._pieces = pieces
        self._skip = skip
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        if token in self._skip or not 0 <= token < len(self._pieces):
            return ""
        return self._utf8.decode(self._pieces[token])

    def flush(self) -> str:
        return self._utf8.decode(b"", True)


class WindowDecoder(Decoder):
    """Decoder for tokens whose text depends on their neighbors: decodes the last few together."""

    MOST_WAITING = 8
    """Number of tokens without a complete character from which they are shown anyway."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._context = 0  # tokens of the window that have been shown

    def push(self, token: int) -> str:
        if token in self._tokenizer.special_ids:
            return ""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        waiting = len(self._window) - self._context
        if text.endswith("\ufffd") and waiting < self.MOST_WAITING:
            return ""
        return self._show(text)

    def flush(self) -> str:
        return self._show(self._tokenizer.decode(self._window))

    def _show(self, text: str) -> str:
        before = self._tokenizer.decode(self._window[: self._context])
        self._window = self._window[self._context :]
        self._context = len(self._window)
        return text[len(before) :]


def any_crosses_words(pieces: Iterable[bytes]) -> bool:
    """Return whether one of ``pieces`` has a space (or ``▁``) between two letters or digits."""
    return any(_CROSSING.search(piece.decode("utf-8", "ignore")) for piece in pieces)


def without_surrogates(text: str) -> str:
    """Replace lone surrogates (bytes of the command line that are not UTF-8) with U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def byte_alphabet() -> dict[str, int]:
    """Return the visible characters of byte-level vocabularies, and the byte of each."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {
        chr(256 + place): byte for place, byte in enumerate(hidden)
    }
