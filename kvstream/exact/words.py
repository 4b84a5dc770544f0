"""The words that are counted, as a pattern: whole words in any case, and substrings in scripts
that write no spaces between words.

The pattern says what is counted. Bytes of a window say fast where it may match, and nearly always
also that it does.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise, product
from os.path import commonprefix
from typing import Any

import numpy as np

from kvstream.input.blocks import TextBlock, utf8_starts
from kvstream.tokenization.forms import spaced

GAP = 64
"""Maximum white space between two words of a phrase."""
_FREQUENT = "etaoinsrhldcumfpgwybvkxjqz_"
"""Letters, the most frequent first; others count as rare."""
_PADDING = bytes(8)
_CACHED = 1 << 17
"""Bytes that are searched at once, so that what is made of them stays in the cache."""
_CASE = np.uint8(0x20)
"""The bit in which upper and lower case of ASCII differ."""
_UNSURE = 2
_JOINS = np.array([c.isalnum() or c == "_" for c in map(chr, range(128))] + [_UNSURE] * 128, "u1")
"""Whether a byte before or behind a word makes it a part of another: 0, 1, or `_UNSURE`."""
TWINS = "\u0130\u0131\u017f\u212a"
"""Letters beyond ASCII that match a letter of ASCII in any case."""
_NONE = np.empty((0, 2), dtype=np.int64)
_MARK = "\u0300-\u036f\u0900-\u0963\u0966-\u0dff"
"""Accents, and the scripts of India, whose vowel signs are no letters for Python."""
OTHER = (
    "\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\u3005-\ua4cf"
    "\ua960-\ua9ff\uaa60-\uaadf\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U0001aff0-\U0001b16f"
    "\U00020000-\U0003ffff"
)
"""Scripts that write no spaces, or particles behind a word: a word in another script ends there."""
_BREAK = r"(?:\u200b|\r?\n)?"
"""What may stand between two characters of a script without spaces."""
_VOWELS = "aeiou"


@dataclass
class Window:
    """A stretch of text with its bytes."""

    texts: Sequence[str]
    raw: Sequence[bytes] = ()
    """UTF-8 of each of the texts, if it is known."""
    blocks: Sequence[tuple[int, TextBlock]] = ()
    """With the indices at which they begin."""
    keep: int = 0
    """Where the next window begins, or the end if this is the last of a source."""
    newlines: int = 0
    """Those of the source before."""
    final: bool = False
    paused: bool = False
    """Whether its text is read again with what comes later."""

    def __post_init__(self) -> None:
        self.is_ascii = all(map(str.isascii, self.texts))
        raw = self.raw or [each.encode("utf-8", "surrogatepass") for each in self.texts]
        self.data = np.frombuffer(b"".join([*raw, _PADDING]), dtype=np.uint8)
        begins = slice(len(self.data) - len(_PADDING)) if self.is_ascii else self._begins
        self.lines = (self.data == ord("\n"))[begins]
        """Whether each character ends a line."""

    @cached_property
    def text(self) -> str:
        """The text. To join it takes as long as to search it for a byte."""
        return "".join(self.texts)

    def tail(self, chars: int) -> str:
        """Return its last characters."""
        if self.is_ascii:
            return self.data[-chars - len(_PADDING) : -len(_PADDING)].tobytes().decode()
        return self.text[-chars:]

    def spelled(self, spans: np.ndarray) -> Counter[str]:
        """Return how often each spelling is at some spans, int64 [n, 2]."""
        if not self.is_ascii:
            return Counter(self.text[begin:end] for begin, end in spans.tolist())
        sizes = np.diff(spans)
        most = int(sizes.max())
        letters = np.arange(most)
        rows = self.data[np.minimum(spans[:, :1] + letters, len(self.data) - 1)]
        rows = np.where(letters < sizes, rows, np.uint8(0)).view(f"S{most}")
        spellings: Sequence[Any] = rows.ravel().tolist()
        return Counter({each.decode(): count for each, count in Counter(spellings).items()})

    @cached_property
    def _begins(self) -> np.ndarray:
        """Bytes at which characters begin."""
        return utf8_starts(self.text)[:-1]

    def chars(self, bytes: np.ndarray) -> np.ndarray:
        """Return the indices of the characters that begin at bytes."""
        return bytes if self.is_ascii else np.searchsorted(self._begins, bytes)


class Words:
    """Finds a word or phrase in a text."""

    def __init__(
        self, words: str, *, inflected: bool = False, cased: bool = False, in_line: bool = False
    ) -> None:
        """`inflected`: also forms of the last word; `cased`: this case; `in_line`: in one line."""
        *before, last = unicodedata.normalize("NFC", words).split()
        forms = [[word] for word in before] + [inflections(last) if inflected else [last]]
        each = [[*dict.fromkeys(chain.from_iterable(map(_typed, some)))] for some in forms]
        gap = (r"[^\S\n]" if in_line else r"\s") + f"{{1,{GAP}}}"
        wrap = "" if in_line else _BREAK
        pattern = gap.join(f"(?:{'|'.join(_alternative(f, wrap) for f in some)})" for some in each)
        first, end = (before or [last])[0][0], last[-1]
        is_left, is_right = _is_word(first), _is_word(end) and not "가" <= end <= "힣"
        others = "" if "가" <= first <= "힣" else OTHER
        left = rf"(?<![^\W{others}])(?<![{_MARK}])" if is_left else ""
        right = rf"(?![^\W{OTHER}]|[{_MARK}])" if is_right else ""
        self._left, self._right = (3 if each else 0 for each in (is_left, is_right))
        """Mask of `_JOINS`: 0 if any character may stand before and behind."""
        self.pattern = re.compile(left + pattern + right, 0 if cased else re.IGNORECASE)
        self.reach = 2 + 2 * sum(3 * max(map(len, some)) + GAP for some in each)
        """More characters than a match has, with one behind it."""
        self._cased = cased
        nfd = [unicodedata.normalize("NFD", form) for form in each[0]]
        begin = commonprefix(each[0] + nfd)  # noqa: RUF071 (letters)
        wraps = (at for at, pair in enumerate(pairwise(begin), 1) if _wraps(pair))
        begin = begin[: next(wraps, len(begin))]
        self._begin = begin if cased else begin.casefold()
        """How every match begins."""
        literals = [" ".join(some) for some in product(*each)]
        self._ascii = all(map(str.isascii, literals))
        self._folds = not cased and any(map("".join(literals).__contains__, TWINS))
        self._literals = [
            (some if cased else some.lower()).encode() for some in literals if self._ascii
        ]
        """What matches, if all white space is one space."""
        self._lead = (each[0][0] if cased else each[0][0].lower()).encode() if before else b""
        """The first word of a phrase."""
        ranks = [_FREQUENT.find(letter) % len(_FREQUENT) for letter in self._begin.lower()]
        pairs = [sum(pair) for pair in pairwise(ranks)]
        self._rarest = pairs.index(max(pairs)) if pairs else 0
        """Index of the two neighboring letters that are rarest."""

    def matches(self, window: Window, begin: int, end: int) -> np.ndarray:
        """Return the characters of matches that begin in a range, without overlap, int64 [n, 2]."""
        text = "" if window.is_ascii else window.text
        folds = self._folds or (not self._cased and any(map(text.__contains__, TWINS)))
        if self._ascii and self._begin and not folds:
            spans = self._by_bytes(window)
        elif folds or self._begin in (text if self._cased else text.casefold()):
            spans = _spans(match.span() for match in self.pattern.finditer(window.text, begin))
        else:
            return _NONE
        spans = spans[(spans[:, 0] >= begin) & (spans[:, 0] < end)]
        if (spans[1:, 0] >= spans[:-1, 1]).all():
            return spans
        apart = [spans[0]]
        for span in spans[1:]:
            if span[0] >= apart[-1][1]:
                apart.append(span)
        return np.array(apart)

    def _by_bytes(self, window: Window) -> np.ndarray:
        """Find words of ASCII by bytes, and by the pattern where bytes are not sure."""
        data, last = window.data, len(window.data) - len(_PADDING)
        starts = self._starts(data)
        before = _JOINS[data[starts - 1]] & self._left
        starts, before = starts[before != 1], before[before != 1]
        if not len(starts):
            return _NONE
        spans, sure, unsure = [], np.zeros(len(starts), bool), np.zeros(len(starts), bool)
        if self._lead:
            unsure = self._are(self._lead, starts, data)
        for letters in self._literals:
            same = self._are(letters, starts, data)
            behind = data[np.minimum(starts + len(letters), last)]
            beside = before | (_JOINS[behind] & self._right)
            fits = same & (beside == 0)
            begins = window.chars(starts[fits])
            spans.append(np.stack([begins, begins + len(letters)], axis=1))
            sure |= fits
            unsure |= same & (beside == _UNSURE)
        places = window.chars(starts[unsure & ~sure]).tolist()
        matches = [self.pattern.match(window.text, place) for place in places]
        spans.append(_spans(match.span() for match in matches if match))
        result = np.concatenate([each for each in spans if len(each)] or [_NONE])
        return result if len(result) == len(spans[0]) else result[np.argsort(result[:, 0])]

    def _starts(self, data: np.ndarray) -> np.ndarray:
        """Return where the rarest two bytes of the words are: most of the time of a long log."""
        word = np.frombuffer(self._begin.encode(), dtype=np.uint8)
        first = word if self._cased else word | _CASE
        at, pair, found = self._rarest, len(word) > 1, []
        for begin in range(0, len(data), _CACHED):
            small = data[begin + at : begin + at + _CACHED + pair]
            small = small if self._cased else small | _CASE
            hits = small == first[at]
            if pair:  # `&=` of booleans takes three times as long
                hits = hits[:-1] & (small[1:] == first[at + 1])
            found.append(np.flatnonzero(hits) + begin)
        return np.concatenate(found)

    def _are(self, letters: bytes, starts: np.ndarray, data: np.ndarray) -> np.ndarray:
        """Return at which of `starts` some letters are, bool [n]."""
        same = np.ones(len(starts), dtype=bool)
        for at, letter in enumerate(letters):
            some = data[np.minimum(starts + at, len(data) - 1)]
            same &= (some if self._cased or not chr(letter).isalpha() else some | _CASE) == letter
        return same


def inflections(word: str) -> list[str]:
    """Return the regular English forms of a word: ``cry``, ``cries``, ``cried``, ``crying``."""
    low = word.lower()
    if not (len(low) > 1 and low[-1].isalpha() and spaced(low[-1])):
        return [word]
    stem = word[:-1]
    if low.endswith("e"):
        rest = word[:-2] + "y" if low.endswith("ie") else word
        rest = rest if low.endswith(("ee", "ie", "oe", "ye")) else stem
        return [word, word + "s", word + "d", rest + "ing"]
    if low.endswith("y") and low[-2] not in _VOWELS:
        return [word, stem + "ies", stem + "ied", word + "ing"]
    plural = word + ("es" if low.endswith(("s", "x", "z", "ch", "sh")) else "s")
    forms = [word, plural, word + "ed", word + "ing"]
    if low.endswith("o"):
        forms.append(word + "es")
    before = low[-3:-2] if low[-4:-2] != "qu" else "q"
    if low[-1] not in _VOWELS + "wxy" and low[-2] in _VOWELS and before not in [*_VOWELS]:
        double = "k" if low[-1] == "c" else low[-1]
        forms += [word + double + "ed", word + double + "ing"]
    return forms


def _typed(word: str) -> tuple[str, ...]:
    """Return a word as keyboards and as books write its apostrophes."""
    return word, word.replace("\u2019", "'"), word.replace("'", "\u2019")


def _alternative(form: str, wrap: str) -> str:
    """Return a pattern for a form, with its accents composed or not; `wrap`: for a line's end."""
    forms = dict.fromkeys((form, unicodedata.normalize("NFD", form)))
    return "|".join(
        re.escape(each[0])
        + "".join(wrap * _wraps(pair) + re.escape(pair[1]) for pair in pairwise(each))
        for each in forms
    )


def _wraps(pair: tuple[str, str]) -> bool:
    """Return whether a line may end between two characters of a word."""
    return not any(map(spaced, pair))


def _is_word(char: str) -> bool:
    return (char.isalnum() or re.match(f"[_{_MARK}]", char) is not None) and spaced(char)


def _spans(pairs: Iterable[tuple[int, int]]) -> np.ndarray:
    return np.array([*pairs], dtype=np.int64).reshape(-1, 2)
