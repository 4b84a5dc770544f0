"""Detect the encoding of a text by its first bytes, and decode text that is not UTF-8."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from kvstream.input.blocks import CONTROLS, ERRORS, BlockDecoder

BOMS = (
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
"""Byte order marks, longer ones first. The decoder handles that of UTF-8."""
SAMPLE = 256 * 1024
"""Bytes from which an encoding is guessed."""
BEFORE = 16 * 1024
"""Maximum bytes of these before the first byte that is not ASCII."""
WHOLE = 1024
"""A sample of at most so many bytes is hardly ever cut."""
GUESSED = (
    "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1257", "iso8859_2", "koi8_r", "koi8_u",
    "cp866", "mac_roman", "cp932", "euc_jp", "gb18030", "big5", "cp949",
)  # fmt: skip
GUESSED_LATER = ("cp1255", "cp1256", "cp874")
"""Encodings of which a short text in another one could be."""
ENOUGH = 200
"""Number of non-ASCII bytes with which a guess is hardly ever wrong."""
HIGH = bytes(range(0x80, 0x100))
MOSTLY = 0.8
"""Share of UTF-8 in a damaged text, and not by chance in one of another encoding."""
FEW = 8
"""With fewer non-ASCII bytes, their frequencies do not allow a guess."""
ALIKE = 0.05
"""Scores of charset-normalizer with a smaller difference count as equal. Western is then chosen."""
_WEST = (
    "äöüß", "àâçèéêëîïôùûüœ", "áéíñóúü", "àáâãçéêíóôõúü", "àèéìíòóùú", "åäöé", "æøåéò", "éëïöü",
    "áæéíðóöúýþ", "àçèéíïòóúü·", "áéíóúàèìòù",
)  # fmt: skip
_CENTRAL = (
    "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "ąćęłńóśźż", "áéíóöőúüű", "čćđšž", "âîăşţ", "äöüß",
)  # fmt: skip
_LATIN = {
    "cp1252": _WEST, "cp1250": _CENTRAL, "iso8859_2": _CENTRAL, "cp1254": ("çğıöşüâî",),
    "cp1257": ("āčēģīķļņōŗšūž", "ąčęėįšųūž", "äõöüšž"), "mac_roman": _WEST, "cp850": _WEST,
    "cp852": _CENTRAL,
}  # fmt: skip
"""Encodings of Latin letters, and the letters beyond ASCII of each language that they are for."""
_SIGNS = "•™’‘“”„‚«»‹›–—…°§€£©®·¿¡´\xa0ºª"
"""Signs beyond ASCII that texts of every language have."""
_RUNS = re.compile(rb"[\x80-\xff]{6,}")
_HEBREW_ENDS = re.compile(rb"[\xe0-\xfa][\xea\xed\xef\xf3\xf5]")
_NOT_HEBREW = re.compile(rb"[\xea\xed\xef\xf3\xf5][A-Za-z\xe0-\xff]")
_STRANGE = 0.1
"""Share of letters and signs above which a text is in no language of an encoding."""
_WESTERN = frozenset([0x80, 0x85, *range(0x91, 0x98)])
"""Bytes of Western texts that are control characters in Latin-1: quotes, dashes, the euro."""
_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa]")
_HALF_KANA = re.compile("[\uff61-\uff9f]")
_NOT_KOREAN = re.compile("[\u3072-\u3093\u30a1-\u30fa]")
"""Kana of which the bytes are rare in Korean, where letters stand alone only for laughter."""
_SEVEN_BITS = {
    "iso2022_jp": re.compile(rb"\x1b\$[@B](?:[!-~]{2})+(?:\x1b\([BJ]|\Z)"),
    "iso2022_kr": re.compile(rb"\x1b\$\)C"),
}
"""Japanese and Korean in 7 bits, by the sequences that switch the set of characters."""
_NOT_OF_PAGES = (
    "utf-16", "utf-32", "utf-7", "undefined", "idna", "punycode", "unicode-escape",
    "unicode_escape", "raw-unicode-escape", "raw_unicode_escape",
)  # fmt: skip
_ONE_BYTE = ("cp12", "iso8859", "koi8")
_WIDER = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "tis-620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "euc_kr": "cp949", "shift_jis": "cp932",
    "big5": "big5hkscs",
}  # fmt: skip
"""Encodings that have more characters, which programs write with the name of the smaller one. As in
browsers: control bytes of Latin-1 are quotes in cp1252."""
_UNPRINTED = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
UNDECODED = "\udfff"
"""Half a surrogate pair, which no decoder returns. U+FFFD may also be in the page itself."""
_MARK = "kvstream.mark"
_CHARSET = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.I)


def by_mark(head: bytes) -> str | None:
    """Return the encoding of a byte order mark of UTF-16 or UTF-32, or None. NULs in place of every
    second byte between signs of ASCII are UTF-16, too."""
    encoding = next((name for mark, name in BOMS if head.startswith(mark)), None)
    if encoding is None and len(head) >= FEW and b"\0" in head:
        for name, first in (("utf-16-le", 0), ("utf-16-be", 1)):
            signs, others = head[first:8192:2], head[1 - first : 8192 : 2]
            if others.count(0) * 10 < len(others) * 9 or signs.count(0) * 10 > len(signs):
                continue  # known at once, as holes in logs are long
            of_ascii = bytes(a for a, b in zip(signs, others, strict=False) if not b)
            if not _UNPRINTED.search(of_ascii):
                return name
    return encoding


def of_seven_bits(data: bytes) -> str | None:
    """Return the encoding of a text whose letters are sequences of ASCII, or None."""
    if b"\x1b" not in data:  # this is fast
        return None
    return next((name for name, sign in _SEVEN_BITS.items() if sign.search(data)), None)


def encoding_of(head: bytes, *, begins: bool = True) -> str:
    """Return the encoding of the first bytes; a mark counts only if the text `begins` with it."""
    encoding = by_mark(head) if begins else None
    if encoding is not None:
        return encoding
    if (name := of_seven_bits(head)) is not None:
        return name
    first = re.search(rb"[\x80-\xff]", head)
    begin = 0 if first is None else max(0, first.start() - BEFORE)
    sample = head[begin : begin + SAMPLE]
    try:
        codecs.utf_8_decode(sample, "strict", False)
    except UnicodeDecodeError:
        if begins and head.startswith(b"<?xml") and (name := _declaration(head[:200])):
            return name
        sample = CONTROLS.sub(b"", sample)
        return "utf-8" if sample.isascii() else _guess(sample) or "utf-8"
    return "utf-8"


def _guess(sample: bytes) -> str | None:
    """Return the likeliest encoding; None for damaged UTF-8, or if no encoding fits."""
    from charset_normalizer import from_bytes

    share = _share_of_utf8(sample)
    if share < MOSTLY and (japanese := _japanese(sample)):
        return japanese
    high = [byte for byte in sample if byte > 127]
    if share >= 0.5:
        if share < MOSTLY and len(high) >= FEW:  # simplified Chinese may look so by chance
            with suppress(UnicodeDecodeError):
                codecs.getincrementaldecoder("gb2312")().decode(sample)
                return "gb18030"
        return None
    if name := _latin(sample) or _hebrew(sample):
        return name
    western = all(byte >= 0xA0 or byte in _WESTERN for byte in high)
    if len(high) < FEW:
        # Too little for a guess, such as one or two names in an ASCII text.
        return "cp1252" if western and len(high) * 3 <= len(sample) else None
    names = [*GUESSED, *(GUESSED_LATER if len(high) >= ENOUGH else ())]
    dense = b"".join(line for line in sample.splitlines(keepends=True) if not line.isascii())
    if len(dense) > WHOLE:  # its last line may end within a character
        dense = dense[: dense.rfind(b"\n") + 1] or dense
    matches = from_bytes(dense, cp_isolation=names, preemptive_behaviour=False)
    best = matches.best()
    if best is None:
        return "cp1252" if western and len(high) * 3 <= len(sample) else None
    alike = [match for match in matches if match.chaos <= best.chaos + ALIKE]
    if western and any(
        "cp1252" in match.could_be_from_charset and match.coherence >= best.coherence - ALIKE
        for match in alike
    ):
        return "cp1252"
    return best.encoding


def _latin(sample: bytes) -> str | None:
    """Return the encoding in which all letters are of one language, of those with Latin letters."""
    counts = {byte: sample.count(byte) for byte in HIGH if byte in sample}
    total, strange = sum(counts.values()), {}
    together = sum(map(len, _RUNS.findall(sample)))
    if total < 3 or 3 * total > len(sample) or 3 * together > total:
        return None
    for name, languages in _LATIN.items():
        signs = {bytes([byte]).decode(name, "replace"): n for byte, n in counts.items()}
        strange[name] = min(
            sum(n for sign, n in signs.items() if sign.lower() not in letters + _SIGNS)
            for letters in languages
        )
    # Icelandic has the letters in the place of these two, but never without others.
    turkish = strange["cp1254"] == min(strange.values()) and {0xFD, 0xFE} <= counts.keys()
    best = "cp1254" if turkish else min(strange, key=lambda name: strange[name])
    return best if strange[best] <= (_STRANGE * total if total >= FEW else 0) else None


def _hebrew(sample: bytes) -> str | None:
    """Return the encoding of Hebrew, which has some letters only at the ends of words."""
    letters = sum(0xE0 <= byte <= 0xFA for byte in sample)
    if 10 * letters < 9 * sum(byte > 127 for byte in sample) or _NOT_HEBREW.search(sample):
        return None
    return "cp1255" if len(_HEBREW_ENDS.findall(sample)) >= 3 else None


def _japanese(sample: bytes) -> str | None:
    """Return the encoding in which a text has kana, which nearly every Japanese sentence has."""
    for name in ("cp932", "euc_jp"):
        decoder = codecs.getincrementaldecoder(name)()
        with suppress(UnicodeDecodeError):
            text = decoder.decode(sample)
            wide = sum(char > "\x7f" for char in text)
            if name == "euc_jp" and not _NOT_KOREAN.search(text):
                continue
            if 4 * len(_KANA.findall(text)) >= wide >= 4 * len(_HALF_KANA.findall(text)):
                return name
    return None


def _share_of_utf8(sample: bytes) -> float:
    """Return how much of the bytes beyond ASCII is UTF-8. From half on, the rest is damage."""
    text = sample.decode("utf-8", "ignore")
    right = sum(len(char.encode()) for char in text if ord(char) > 127)
    wrong = len(sample) - len(text.encode())
    return right / (right + wrong)


def html_decoder(
    head: bytes, charset: str | None = None
) -> tuple[codecs.IncrementalDecoder, str, bool]:
    """Return a decoder for a page, first by ``charset`` of a mail, its encoding, and if it is
    guessed."""
    encoding = by_mark(head) or ("utf-8" if head.startswith(codecs.BOM_UTF8) else None)
    encoding = encoding or (None if charset is None else codec_of(charset)) or _declaration(head)
    name = encoding or "utf-8"
    if encoding in (None, "utf-8") or (name.startswith(_ONE_BYTE) and _is_utf8(head)):
        name = encoding_of(head)  # copies of pages often keep a declaration that was right before
    decoder = codecs.getincrementaldecoder("utf-8-sig" if name == "utf-8" else name)(_MARK)
    return decoder, name, name not in (encoding, "utf-8")


def _is_utf8(head: bytes) -> bool:
    """Return whether some bytes are beyond ASCII, and all are UTF-8."""
    with suppress(UnicodeDecodeError):
        return not codecs.utf_8_decode(head, "strict", False)[0].isascii()
    return False


def _mark_error(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return UNDECODED, error.end


codecs.register_error(_MARK, _mark_error)
_ENDED = re.compile(
    rb"(?:[\x90\x9d]|\x1b[PX\]^_])[^\x00-\x08\x0a-\x1f\x7f\x9c]{0,4096}+\x9c"
    rb"(?![^\x00-\x08\x0a-\x1f\x7f\x90\x9d]{0,4096}+(?:\x07|\x1b\\))"
)
"""A control string that ends with a byte of a terminal of 8 bits, and not later."""


def _declaration(head: bytes) -> str | None:
    """Return the encoding that the page declares, if it is possible."""
    match = _CHARSET.search(head[:4096])
    return None if match is None else codec_of(match[1].decode("ascii", "replace"))


def codec_of(name: str) -> str | None:
    """Return the encoding that a declared name means; None if it is impossible."""
    name = name.lower().removesuffix("-i")
    try:
        codec = codecs.lookup("cp932" if name == "x-sjis" else name)
    except (LookupError, ValueError):  # a NUL in the name
        return None
    # A page with a readable declaration is not UTF-16. Some codecs are for bytes, or not for pages.
    if codec.name.startswith(_NOT_OF_PAGES) or not codec._is_text_encoding:
        return None
    return _WIDER.get(codec.name, codec.name)


class OtherDecoder(BlockDecoder):
    """Decodes a text that is not in UTF-8."""

    def __init__(self, source: int, start: int, encoding: str) -> None:
        super().__init__(source, start)
        self.encoding = encoding
        errors = "replace" if encoding.startswith("utf-") else ERRORS
        self._decoder = codecs.getincrementaldecoder(encoding)(errors)

    def _decode(
        self, data: bytes, final: bool
    ) -> tuple[str, np.ndarray, Sequence[tuple[int, int]]]:
        state = self._decoder.getstate()[1]
        text = self._decoder.decode(data[len(self.rest) :], final)
        self.rest = self._decoder.getstate()[0]
        if len(text) == len(data):  # the end of a control string is a letter in cp1252
            for match in _ENDED.finditer(data):
                if ord(text[match.start()]) == data[match.start()]:
                    text = f"{text[: match.end() - 1]}\x9c{text[match.end() :]}"
        widths = self._widths(data[: len(data) - len(self.rest)], text, state, final=final)
        wrong = [i for i, char in enumerate(text) if char == "\ufffd"] if "\ufffd" in text else []
        ends = np.cumsum(widths)
        return text, widths, [(int(ends[i] - widths[i]), int(ends[i])) for i in wrong]

    def _widths(self, data: bytes, text: str, state: int, *, final: bool) -> np.ndarray:
        """Return the number of bytes in ``data`` of each character of ``text``, int64 [n].

        `state` is that of the decoder before the data.
        """
        if len(text) == len(data):
            return np.ones(len(text), dtype=np.int64)
        if self.encoding.startswith("utf-"):
            unit = 4 if "32" in self.encoding else 2
            codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
            widths = np.where(codes > 0xFFFF, 4, unit).astype(np.int64)
            widths[-1] += len(data) - widths.sum()  # the file may end inside a character
            if widths[-1] >= 0:
                return widths
        sizes = {char: len(char.encode(self.encoding, "replace")) for char in set(text)}
        widths = np.array([sizes[char] for char in text], dtype=np.int64)
        if "\ufffd" not in sizes and widths.sum() == len(data):
            return widths
        # Damaged bytes, or characters with several encoded forms: decode byte by byte.
        decoder = codecs.getincrementaldecoder(self.encoding)("replace")
        decoder.setstate((b"", state))
        each: list[int] = []
        waiting = 0
        with suppress(UnicodeError):  # a codec that reads byte by byte may refuse what it replaces
            for at in range(len(data)):
                waiting += 1
                new = len(decoder.decode(data[at : at + 1], final and at + 1 == len(data)))
                if new:
                    # If bytes are replaced, those after them may complete characters too.
                    each += [max(waiting - new + 1, 1), *[1] * (new - 1)][:waiting]
                    each += [0] * (new - waiting)
                    waiting = 0
        if len(each) == len(text) and sum(each) == len(data):
            return np.array(each, dtype=np.int64)
        # The codec replaces other bytes if it sees more at once: distribute the bytes evenly.
        return np.diff(np.arange(len(text) + 1) * len(data) // max(len(text), 1))
