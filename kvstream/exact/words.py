"""The words that are counted, as a pattern: whole words in any case, and substrings in scripts
that write no spaces between words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from kvstream.tokenization.forms import spaced

GAP = 64
"""Maximum white space between two words of a phrase."""
_FREQUENT = "etaoinsrhldcumfpgwybvkxjqz_"
"""Letters, the most frequent first; others count as rare."""
PADDING = bytes(8)
_CASE = np.uint8(0x20)
"""The bit in which upper and lower case of ASCII differ."""
_OF_WORDS = np.array([chr(c).isalnum() or c == ord("_") for c in range(128)])
_NONE = np.empty((0, 2), dtype=np.int64)
_MARK = "\u0300-\u036f"
_VOWELS = "aeiou"


class Words:
    """Finds a word or phrase in a text."""

    def __init__(
        self, words: str, *, inflected: bool = False, cased: bool = False, in_line: bool = False
    ) -> None:
        """`inflected`: also other forms of the last word, by the rules of English. `cased`: only in
        this case. `in_line`: within one line.
        """
        *before, last = words.split()
        forms = [[word] for word in before] + [inflections(last) if inflected else [last]]
        each = [[*dict.fromkeys(_composed(form) for form in some)] for some in forms]
        gap = (r"[^\S\n]" if in_line else r"\s") + f"{{1,{GAP}}}"
        pattern = gap.join(f"(?:{'|'.join(map(_alternative, some))})" for some in each)
        first, end = words.strip()[0], words.strip()[-1]
        left = rf"(?<![\w{_MARK}])" if _is_word(first) else ""
        right = rf"(?![\w{_MARK}])" if _is_word(end) and not "가" <= end <= "힣" else ""
        self.pattern = re.compile(left + pattern + right, 0 if cased else re.IGNORECASE)
        self.reach = 2 + 2 * sum(max(map(len, some)) + GAP for some in each)
        """More characters than a match has, with one behind it."""
        start = _shared(each[0])
        self._ascii = all(form.isascii() for some in each for form in some)
        self._begin, self._cased = start if cased else start.casefold(), cased
        """How every match begins."""
        single = len(each) == len(each[0]) == 1 and self._ascii
        self._single = single and words.strip().replace("_", "a").isalnum()
        ranks = [_FREQUENT.find(letter) % len(_FREQUENT) for letter in self._begin.lower()]
        pairs = [sum(pair) for pair in pairwise(ranks)]
        self._rarest = pairs.index(max(pairs)) if pairs else 0
        """Index of the two neighboring letters that are rarest."""

    def matches(self, text: str, data: np.ndarray | None, begin: int, end: int) -> np.ndarray:
        """Return begin and end of the matches that begin from `begin` to before `end`, which do not
        overlap, int64 [n, 2]. `data`: the bytes of ASCII text and `PADDING`, uint8; else None.
        """
        if self._single and data is not None:
            return self._singles(text, data, begin, end)
        return np.array([*self._each(text, begin, end)], dtype=np.int64).reshape(-1, 2)

    def _each(self, text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
        ascii = text.isascii()
        if ascii and not self._ascii:
            return
        if not ascii:
            absent = self._begin not in (text if self._cased else text.casefold())
            for match in () if absent else self.pattern.finditer(text, begin):
                if match.start() >= end:
                    return
                yield match.span()
            return
        # A search for a literal is several times faster than one for a pattern.
        find = (text if self._cased else text.lower()).find
        at = find(self._begin, begin)
        while 0 <= at < end:
            found = self.pattern.match(text, at)
            if found:
                yield found.span()
            at = find(self._begin, found.end() if found else at + 1)

    def _singles(self, text: str, data: np.ndarray, begin: int, end: int) -> np.ndarray:
        """Find a single word of letters, digits and underscores in ASCII text.

        Its rarest two bytes are looked for: this takes most of the time of a long log. Then eight
        bytes are compared at once.
        """
        folded = data if self._cased else data | _CASE
        word = np.frombuffer(self._begin.encode(), dtype=np.uint8)
        first = word if self._cased else word | _CASE
        at, size = self._rarest, len(word)
        hits = folded[at:] == first[at]
        if size > 1:
            hits = hits[:-1] & (folded[at + 1 :] == first[at + 1])
        starts = np.flatnonzero(hits)
        if not len(starts):
            return _NONE
        starts = starts[(starts >= begin) & (starts < end) & (starts + size <= len(text))]
        eights = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
        for part in range(0, size, 8):
            letters = self._begin[part : part + 8]
            bits = ("\x20" if each.isalpha() and not self._cased else "\0" for each in letters)
            want, fold, mask = (
                np.uint64(int.from_bytes(each.encode("latin-1"), "little"))
                for each in (letters, "".join(bits), "\xff" * len(letters))
            )
            starts = starts[(eights[starts + part] | fold) & mask == want]
        joined = _OF_WORDS[data[starts - 1]] | _OF_WORDS[data[starts + size]]
        starts = starts[~joined]
        return np.stack([starts, starts + size], axis=1)


def inflections(word: str) -> list[str]:
    """Return the regular English forms of a word: ``cry``, ``cries``, ``cried``, ``crying``."""
    low = word.lower()
    if not (low.isascii() and low.isalpha() and len(low) > 2):
        return [word]
    stem = word[:-1]
    if low.endswith("e"):
        return [word, word + "s", word + "d", stem + "ing"]
    if low.endswith("y") and low[-2] not in _VOWELS:
        return [word, stem + "ies", stem + "ied", word + "ing"]
    plural = word + ("es" if low.endswith(("s", "x", "z", "ch", "sh")) else "s")
    found = [word, plural, word + "ed", word + "ing"]
    if low[-1] not in _VOWELS + "wxy" and low[-2] in _VOWELS and low[-3] not in _VOWELS:
        found += [word + low[-1] + "ed", word + low[-1] + "ing"]
    return found


def _composed(form: str) -> str:
    return unicodedata.normalize("NFC", form)


def _alternative(form: str) -> str:
    """Return a pattern for a form, with its accents composed or not."""
    apart = unicodedata.normalize("NFD", form)
    return re.escape(form) if apart == form else f"{re.escape(form)}|{re.escape(apart)}"


def _is_word(char: str) -> bool:
    return (char.isalnum() or char == "_") and spaced(char)


def _shared(forms: list[str]) -> str:
    """Return how all forms begin."""
    size = 0
    while len({form[: size + 1] for form in forms}) == 1 and size < len(forms[0]):
        size += 1
    return forms[0][:size]
