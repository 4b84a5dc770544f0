"""The words and numbers of a text in fixed memory: a Bloom filter of their forms.

A form that the filter does not have is certainly not in the text. A form that it has may still be
absent: `mistaken` is the share of absent forms that pass. Bloom 1970, "Space/time trade-offs in
hash coding".
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

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
_CUT = re.compile(r"(?:[^\W\d_]+|\d[\d.,:/'’-]*)\Z")
_DIGITS = re.compile(r"\d+")
_ACCENTS = re.compile("[\u0300-\u036f]+")


def folded(text: str) -> str:
    """Return a text without upper case and accents: ``Défago`` becomes ``defago``."""
    text = text.casefold()
    if text.isascii():
        return text
    letters = _ACCENTS.sub("", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", letters)


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

    @property
    def mistaken(self) -> float:
        """Share of absent forms that pass as present."""
        return float((int(np.unpackbits(self._bits).sum()) / (8 * BYTES)) ** HASHES)

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
        """Combine the words of two texts."""
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
    return {form[:LONGEST].casefold() for form in forms}


def _places(forms: Iterable[str]) -> np.ndarray:
    """Return the bits of all forms, int64 [n * HASHES]."""
    keys = (form.encode("utf-8", "replace") for form in forms)
    digests = b"".join(blake2b(key, digest_size=4 * HASHES).digest() for key in keys)
    return np.frombuffer(digests, dtype="<u4").astype(np.int64) % (8 * BYTES)


def _set(bits: np.ndarray, forms: set[str]) -> None:
    places = _places(forms)
    np.bitwise_or.at(bits, places >> 3, (1 << (places & 7)).astype(np.uint8))
