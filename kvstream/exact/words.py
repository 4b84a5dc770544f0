"""The words that are counted, as a pattern: whole words in any case, and substrings in scripts
that write no spaces between words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise, takewhile
from os.path import commonprefix

import numpy as np

from kvstream.input.blocks import TextBlock
from kvstream.tokenization.forms import spaced

GAP = 64
"""Maximum white space between two words of a phrase."""
TWINS = "\u0130\u0131\u017f\u212a"
"""Letters beyond ASCII that match a letter of ASCII in any case."""
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
    """A stretch of text."""

    text: str
    blocks: Sequence[tuple[int, TextBlock]] = ()
    """With the indices at which they begin."""
    keep: int = 0
    """Where the next window begins, or the end if this is the last of a source."""
    newlines: int = 0
    """Those of the source before."""
    final: bool = False
    paused: bool = False
    """Whether its text is read again with what comes later."""

    @cached_property
    def small(self) -> str:
        """The text in lower case, if that is as long."""
        return self.text.lower() if not any(map(self.text.__contains__, TWINS)) else ""


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
        self._folds = any(map(words.__contains__, TWINS))

    def matches(self, window: Window, begin: int, end: int) -> np.ndarray:
        """Return the characters of matches that begin in a range, without overlap, int64 [n, 2]."""
        text = window.text
        small = text if self._cased else window.small
        if small and len(self._begin) > 1 and self._begin.isascii():
            spans = self._spans(text, small, begin, end)
        elif self._folds or not small or self._begin in (text if self._cased else text.casefold()):
            every = (match.span() for match in self.pattern.finditer(text, begin))
            spans = takewhile(lambda span: span[0] < end, every)
        else:
            spans = iter(())
        return np.array([*spans], dtype=np.int64).reshape(-1, 2)

    def _spans(self, text: str, small: str, at: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the matches where the letters stand with which all begin: most of a long log."""
        while 0 <= (at := small.find(self._begin, at)) < end:
            match = self.pattern.match(text, at)
            if match is not None:
                yield match.span()
            at = match.end() if match else at + 1


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
