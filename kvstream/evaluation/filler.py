"""Text around needles: pieces of any text, cut to a number of tokens, or made-up prose."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Sequence

import numpy as np

from kvstream.input.sources import open_sources
from kvstream.sample.document import beginning
from kvstream.sample.novel import novel
from kvstream.tokenization.loading import Tokenizer

MOST_CHARS = 256 * 1024**2
"""Maximum number of characters held from the given texts."""
CHARS_A_TOKEN = (6, 24, 96)
"""Characters to take per token. No prose needs more than the first number; tables may."""
# The end of a paragraph, or a period after three letters: "Mr." and "e.g." end no sentence.
_BOUNDARY = re.compile(r"\n{2,}(?=\S)|(?<=[a-z]{3})[.!?][\"'”’)]?\s+(?=[A-Z\"“'‘])")
_SPACE = re.compile(r"\s+")
_LOOK_AHEAD = 2000
_CONSONANTS, _VOWELS = "bcdfghjklmnprstvw", "aeiou"


class Filler:
    """A supply of text. The same random state gives the same text."""

    def __init__(self, text: str | None, name: str) -> None:
        self.text, self.name = text, name

    @classmethod
    def of(cls, paths: Sequence[str], *, words: bool = False) -> Filler:
        """Make filler from text files; without files of made-up prose, or of invented `words`."""
        if words:
            return cls(None, "words")
        if not paths:
            return cls(None, "novel")
        blocks = open_sources(list(paths), plain=True)
        text = "".join(beginning((block.text for block in blocks), MOST_CHARS + 1))
        text = text.replace("\r\n", "\n")
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
        return cls(text, f"text {digest}")

    def cut(self, tokenizer: Tokenizer, tokens: int, rng: random.Random) -> str:
        """Return text of `tokens` tokens that begins at a random boundary in the supply."""
        if tokens <= 0:
            return ""
        state = rng.getstate()
        for chars in CHARS_A_TOKEN:
            rng.setstate(state)
            text = self._piece(tokens * chars, rng)
            starts = tokenizer.spans(text).starts
            if len(starts) > tokens:
                return text.encode("utf-8")[: int(starts[tokens])].decode("utf-8", "ignore")
        return text

    def _piece(self, chars: int, rng: random.Random) -> str:
        if self.text is None:
            seed = rng.randrange(2**31)
            pieces = _words(rng) if self.name == "words" else novel(seed)
            return "".join(beginning(pieces, chars))
        start = rng.randrange(len(self.text))
        start = boundary(self.text, start) % len(self.text)
        piece = self.text[start : start + chars]
        while len(piece) < chars:  # a short text is repeated from its beginning
            piece += "\n\n" + self.text[: chars - len(piece)]
        return piece


def boundary(text: str, start: int) -> int:
    """Return a place after `start` to insert a sentence: after a sentence, else after a space."""
    if start <= 0:
        return 0
    for pattern in (_BOUNDARY, _SPACE):
        match = pattern.search(text, start, start + _LOOK_AHEAD)
        if match:
            return match.end()
    return min(start, len(text))


def insert(text: str, tokenizer: Tokenizer, needles: Iterable[tuple[float, str]]) -> str:
    """Insert each needle at its depth, counted in tokens, at the end of a sentence, in order."""
    starts = tokenizer.spans(text).starts
    # Convert byte offsets to characters: needles go between characters, never into one.
    raw = np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
    characters = np.cumsum((raw & 0xC0) != 0x80) - 1
    places = []
    for depth, sentence in needles:
        token = round(depth * len(starts))
        at = int(characters[starts[token]]) if token < len(starts) else len(text)
        places.append((boundary(text, at) if at < len(text) else at, sentence))
    places.sort(key=lambda place: place[0])
    for at, sentence in reversed(places):
        before = "" if at == 0 or text[at - 1].isspace() else " "
        after = "\n\n" if text[:at].endswith("\n\n") or at == 0 else " "
        text = f"{text[:at]}{before}{sentence}{after}{text[at:]}"
    return text


def around(text: str, tokenizer: Tokenizer, needle: str, tokens: int) -> str:
    """Return about `tokens` tokens of `text` with `needle` in the middle."""
    starts = tokenizer.spans(text).starts
    at = len(text[: text.index(needle) + len(needle) // 2].encode("utf-8"))
    index = int(np.searchsorted(starts, at))
    first = max(0, min(index - tokens // 2, len(starts) - tokens))
    last = min(first + tokens, len(starts))
    data = text.encode("utf-8")
    end = int(starts[last]) if last < len(starts) else len(data)
    return data[int(starts[first]) : end].decode("utf-8", "ignore")


def _words(rng: random.Random) -> Iterable[str]:
    """Yield sentences of invented words, which neither help nor distract a model."""
    while True:
        words = [
            "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 3)))
            for _ in range(rng.randint(4, 14))
        ]
        stop = ".\n\n" if rng.random() < 0.1 else ". "
        yield " ".join(words).capitalize() + stop
