"""What kvstream needs of a tokenizer, whichever library is behind it."""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

_CROSSING = re.compile(r"[^\W_][ ▁]+[^\W_]")


class Spans(NamedTuple):
    """Tokens of a text, and where they are in it."""

    ids: np.ndarray
    """int32 [n]."""
    starts: np.ndarray
    """int64 [n]: where each token begins in the UTF-8 form of the text.

    A token that is a part of a character may have the start of the character.
    """
    broken: np.ndarray = np.empty(0, dtype=np.int64)
    """Which tokens are the first of a control sequence that was broken apart, int64 [m]."""


class Tokenizer(ABC):
    """Text to token ids and back.

    ``continuing`` says that the text goes on where other text ended: then no prefix (a space that
    some tokenizers put in front) is added.
    """

    name: str
    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]
    special_strings: tuple[str, ...]
    """Texts that ``encode_template`` reads as one control token."""
    highest: int = -1
    """The highest id that a text can give; -1 where that is known to fit the model."""
    longest: int
    """UTF-8 bytes of the longest token."""
    crosses_words: bool
    """Whether some token holds the end of one word and the beginning of the next."""

    @property
    @abstractmethod
    def has_template(self) -> bool:
        """Whether the model comes with a chat template."""

    @abstractmethod
    def render(self, messages: list[dict[str, str]], **options: Any) -> str:
        """The chat template's text for ``messages``; raises what the template raises."""

    @abstractmethod
    def spans(self, text: str, *, continuing: bool = False) -> Spans:
        """Tokens of plain text: control sequences of the template are broken apart."""

    def encode(self, text: str, *, continuing: bool = False) -> list[int]:
        """Ids of plain text: no control token is in them, and no control sequence."""
        ids: list[int] = self.spans(text, continuing=continuing).ids.tolist()
        return ids

    def controls(self, ids: Sequence[int]) -> int:
        """Control sequences in ids of template text."""
        return sum(token in self.special_ids for token in ids)

    def between(self, before: Sequence[int], behind: Sequence[int]) -> list[int]:
        """Ids to put between two that were encoded apart, lest they make a control sequence."""
        return []

    @property
    def reach(self) -> int:
        """How many ids on either side `between` looks at."""
        return 0

    @abstractmethod
    def encode_template(self, text: str, *, continuing: bool = False) -> list[int]:
        """Ids of template text: control tokens are recognized, none is added."""

    @abstractmethod
    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of ``ids``; bytes that are no UTF-8 become U+FFFD."""

    @abstractmethod
    def decoder(self) -> Decoder:
        """A new incremental decoder, for the pieces of an answer."""


class Decoder(ABC):
    """Token by token, text that can be shown at once; all pieces together equal ``decode``."""

    @abstractmethod
    def push(self, token: int) -> str:
        """The text that ``token`` completes; empty while a character is incomplete."""

    @abstractmethod
    def flush(self) -> str:
        """What is left at the end, incomplete characters as U+FFFD."""


class ByteDecoder(Decoder):
    """For tokens that are byte strings."""

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
    """For tokens whose text depends on their neighbors: decodes the last few together."""

    MOST_HELD = 8
    """Tokens without a complete character before they are shown anyway."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._shown = 0  # so many tokens of the window have been shown

    def push(self, token: int) -> str:
        if token in self._tokenizer.special_ids:
            return ""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        held = len(self._window) - self._shown
        if text.endswith("\ufffd") and held < self.MOST_HELD:
            return ""
        return self._show(text)

    def flush(self) -> str:
        return self._show(self._tokenizer.decode(self._window))

    def _show(self, text: str) -> str:
        before = self._tokenizer.decode(self._window[: self._shown])
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        return text[len(before) :]


def any_crosses_words(tokens: Iterable[str]) -> bool:
    """Whether one of ``tokens`` has a space (or ``▁``) between two letters or digits."""
    return any(_CROSSING.search(token) for token in tokens)


def without_surrogates(text: str) -> str:
    """``text`` with lone surrogates (bytes of the command line that are no UTF-8) as U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
