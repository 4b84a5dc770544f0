"""The words of a text, and a Bloom filter of their forms, in which they take fixed memory.

A form that the filter does not have is certainly not in the text. A form that it has may still be
absent. Bloom 1970, "Space/time trade-offs in hash coding".
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Iterable
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import regex

from kvstream.input.blocks import TextBlock

BYTES = 1 << 18
"""Size of the filter, regardless of the length of the text."""
HASHES = 2
"""Bits that each form sets. After the 20,000 forms of a long novel 0.04% of absent forms pass,
after the 300,000 of a library 6%."""
LONGEST = 64
"""Maximum characters of a form that are compared, and that wait at the end of a block."""
NUMBER = re.compile(r"\d+(?:[.,:/'’-]\d+)*")
"""Digits, and the characters between them in amounts, dates and telephone numbers."""
_FORM = re.compile(rf"(?P<number>{NUMBER.pattern})|[^\W\d_]+")
_CUT = regex.compile(r"(?:[\p{L}\p{M}]+|\d[\d.,:/'’-]*)\Z")
_DIGITS = re.compile(r"\d+")
_ACCENTS = re.compile("[\u0300-\u036f\u00ad\u200b-\u200d\ufeff]+")
"""Accents, and characters that are not visible, such as soft hyphens."""
WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+")
_RUN = regex.compile(
    r"(?P<unspaced>[\p{Han}〇]+|\p{Hiragana}+|[\p{Katakana}ー]+|\p{Bopomofo}+|\p{Yi}+|"
    r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{Javanese}\p{Balinese}\p{Tai_Tham}"
    r"\p{New_Tai_Lue}\p{Tai_Le}\p{Tai_Viet}]+)|(?P<korean>\p{Hangul}+)|"
    r"(?:(?!(?&unspaced)|\p{Hangul})[\p{L}\p{M}\p{N}])+"
)
"""A part of a word in one script; `unspaced` if that script writes no spaces between words."""
_PARTICLE = re.compile(
    "(?P<closed>은|이|을|과|으로|이나|이랑|이란)|(?P<open>는|가|를|와|로|나|랑|란)|의|에|에서|에게|"
    "에게서|께|께서|한테|도|만|부터|까지|처럼|보다|마다|조차|밖에|라도|이라도|하고"
)
"""Particles at the end of a Korean word; some follow only a consonant, others only a vowel."""
_LONGEST_PARTICLE = 3
_RIEUL = 8
"""Place of the consonant ㄹ, which the particle 로 may follow."""


STEM = 5
"""Words are compared by this many first letters: ``established`` equals ``establish``."""
_COMMON_WORDS = """
the an and or but of to in on at by for from with as is was were are be been being am do does
did has have had he she it they we you his her its their our your him them us me my this that
these those there here who whom whose what which when where why how not no yes so if than then
into about after before up down out over under will would can could shall should may might must
one all any some such very because none nobody nothing nowhere never unknown
"""
COMMON = frozenset(_COMMON_WORDS.split())


def folded(text: str) -> str:
    """Return a text without upper case and accents: ``Défago`` becomes ``defago``."""
    text = text.casefold()
    if text.isascii():
        return text
    letters = _ACCENTS.sub("", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", letters)


def words(text: str) -> list[str]:
    """Return the words in lower case, without accents and underscores.

    Scripts without spaces give pairs of neighboring characters; Korean words lose particles.
    """
    result: list[str] = []
    for word in WORD.findall(folded(text)):
        if word.isascii():
            result.append(word)
            continue
        for run in _RUN.finditer(word):
            if run["unspaced"]:
                result += map("".join, pairwise(run[0])) if len(run[0]) > 1 else run[0]
            else:
                result.append(_without_particles(run[0]) if run["korean"] else run[0])
    return result


def spaced(char: str) -> bool:
    """Return whether the script of a character writes spaces between words."""
    run = _RUN.match(char)
    return run is None or run["unspaced"] is None


def _without_particles(word: str) -> str:
    """Return a Korean word without the particles at its end, of which it may have several."""
    for size in range(min(_LONGEST_PARTICLE, len(word) - 1), 0, -1):
        match = _PARTICLE.fullmatch(word, len(word) - size)
        if match is None:
            continue
        final = (ord(word[-size - 1]) - ord("가")) % 28  # the last consonant of a syllable; 0: none
        wrong = match["open"] if final else match["closed"]
        if not wrong or (match[0] == "로" and final == _RIEUL):
            return _without_particles(word[:-size])
    return word


def number_forms(number: str) -> list[str]:
    """Return all digits of a number such as ``555-0199`` in a row, and each run of them."""
    runs = _DIGITS.findall(number)
    return ["".join(runs), *runs] if len(runs) > 1 else runs


class WordForms:
    """Takes a text block by block, and tells whether it contains a word or number."""

    def __init__(self) -> None:
        self._bits = np.zeros(BYTES, dtype=np.uint8)
        self._rest = ""
        self._source = 0

    def feed(self, block: TextBlock) -> None:
        """Add the next block of the sources. A word may continue in the block after it."""
        if block.source != self._source:
            self.add(self._rest)
            self._rest, self._source = "", block.source
        text = self._rest + block.text
        cut = _CUT.search(text, max(0, len(text) - LONGEST))
        end = len(text) if cut is None else cut.start()
        self._rest = text[end:]
        self.add(text[:end])

    def add(self, text: str) -> None:
        """Add a text that ends with a whole word."""
        _set(self._bits, _forms(text))

    def has_word(self, word: str) -> bool:
        """Return whether the text has `word` (letters), in any case, with or without accents."""
        return self._has(word) or self._has(folded(word))

    def has_number(self, number: str) -> bool:
        """Return whether the text has the digits of `number` in a row, or each run of them."""
        whole, *runs = number_forms(number)
        return self._has(whole) or (bool(runs) and all(self._has(run) for run in runs))

    def packed(self) -> bytes:
        """Return the filter as bytes for a file, as if the text ended here."""
        bits = self._bits.copy()
        _set(bits, _forms(self._rest))
        return zlib.compress(bits.tobytes())

    @classmethod
    def unpacked(cls, data: bytes) -> WordForms:
        """Restore the bytes of `packed`. Raises ValueError if they are damaged."""
        try:
            raw = zlib.decompressobj().decompress(data, BYTES + 1)
        except zlib.error as error:
            raise ValueError(f"its words cannot be unpacked: {error}") from error
        if len(raw) != BYTES:
            raise ValueError(f"its words take {len(raw):,} bytes, not {BYTES:,}")
        forms = cls()
        forms._bits = np.frombuffer(raw, dtype=np.uint8).copy()
        return forms

    @classmethod
    def of_both(cls, first: WordForms, second: WordForms) -> WordForms:
        forms = cls()
        for part in (first, second):
            forms._bits |= part._bits
            _set(forms._bits, _forms(part._rest))
        return forms

    def _has(self, form: str) -> bool:
        form = form[:LONGEST].casefold()
        places = _places([form])
        known = bool((self._bits[places >> 3] >> (places & 7) & 1).all())
        return known or form in _forms(self._rest)


def _forms(text: str) -> set[str]:
    """Return the forms of the words and numbers of a text; words with and without accents."""
    forms: set[str] = set()
    without = folded(text)
    for each in (text,) if without == text.casefold() else (text, without):
        for match in _FORM.finditer(each):
            forms.update(number_forms(match[0]) if match["number"] else (match[0],))
    if not text.isascii():
        forms.update(words(text))
    return {form[:LONGEST].casefold() for form in forms}


def _places(forms: Iterable[str]) -> np.ndarray:
    """Return the bits of all forms, int64 [n * HASHES]."""
    keys = (form.encode("utf-8", "replace") for form in forms)
    digests = b"".join(blake2b(key, digest_size=4 * HASHES).digest() for key in keys)
    return np.frombuffer(digests, dtype="<u4").astype(np.int64) % (8 * BYTES)


def _set(bits: np.ndarray, forms: set[str]) -> None:
    places = _places(forms)
    np.bitwise_or.at(bits, places >> 3, (1 << (places & 7)).astype(np.uint8))
