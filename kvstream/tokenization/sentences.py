"""Cut text into sentences or lines, piece by piece, with simple rules."""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST_CHARS = 2000
"""Maximum characters of a sentence or line. Longer ones are cut."""

# The pattern begins with one class, so that the search jumps from one candidate to the next. The
# candidates are a paragraph's end, marks of other scripts (no space need follow them), a space in
# Thai and Lao, which have no marks, and marks that end a word.
_WIDE = "。！？｡।॥۔؟։።།។៕။"
_UNMARKED = "\u0e00-\u0eff"
_BOUNDARY = re.compile(
    rf"[\n{_WIDE}.!?…{_UNMARKED}](?:"
    r"(?<=\n)[ \t\r\f\v]*\n\s*"
    rf"|(?<=[{_WIDE}])[{_WIDE}]*[」』”’）]*"
    rf"|(?<=[{_UNMARKED}]) +(?=[{_UNMARKED}])"
    # Only the first of several marks begins a match, and the quantifier does not backtrack.
    # Otherwise the time for a run of dots grows with the square of its length.
    r"""|(?<=[.!?…])(?<![.!?…]{2})[.!?…]*+["'”’»)\]]*(?=\s|\Z))"""
)
_OPENING = "\"'“‘«([*_—-"
# Abbreviations before a name, which hardly ever end a sentence.
_TITLES = re.compile(
    r"(?:mrs?|m[sx]|dr|st|prof|revd?|hon|gen|col|maj|cap?t|cpt|lieut|lt|sgt|cpl|messrs|mme|mlle|mm"
    r"|mt|ft|pres|gov|sen|rep|sir|fr|vs|cf|viz|e\.g|i\.e|approx|dept)",
    re.IGNORECASE,
)
# Abbreviations before a number.
_NUMBERED = re.compile(r"(?:nos?|figs?|vols?|pp?|ch|chap|art|sect?|eq|ref)", re.IGNORECASE)
_SPACE = re.compile(r"\s*")
_LAST_WORD = re.compile(r"[^\W_]+(?:\.[^\W_]+)*$")


def sentences(text: str, *, final: bool) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the sentences of ``text``, without the white space around them.

    The end of a paragraph ends a sentence. Unless ``final``, a sentence that may continue is not
    yielded: the caller keeps the text after the last end and calls again with more text.
    """
    start = 0
    for match in _BOUNDARY.finditer(text):
        if match.end() == len(text) and not final:
            break  # more white space or a lower-case letter may follow
        mark = match[0][0]
        end = match.start() if mark == "\n" else match.end()
        if mark in ".!?…":
            follows = _next_char(text, end)
            if not follows and not final:
                break
            if not _ends(text, match.start(), match[0], follows):
                continue
        yield from _pieces(text, start, end)
        start = end
    yield from _pieces(text, start, len(text), ended=final)


def lines(text: str, *, final: bool) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the non-blank lines of ``text``; otherwise like ``sentences``."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield from _pieces(text, start, end)
        start = end + 1
    yield from _pieces(text, start, len(text), ended=final)


def _next_char(text: str, place: int) -> str:
    """Return the next character after white space and opening marks such as quotes; "" if none."""
    for char in text[place : place + 200]:
        if not char.isspace() and char not in _OPENING:
            return char
    return ""


def _ends(text: str, place: int, marks: str, follows: str) -> bool:
    """Return whether the punctuation at ``place`` ends a sentence, judged by the text around it."""
    if follows.islower():
        return False
    if marks[0] != "." or marks.startswith(".."):
        return True
    word = _LAST_WORD.search(text, max(place - 16, 0), place)
    if word is None:
        return True
    last = word[0]
    if _TITLES.fullmatch(last) or (len(last) == 1 and last.isupper() and last != "I"):
        return False
    return not (_NUMBERED.fullmatch(last) and follows.isdigit())


def _pieces(text: str, start: int, end: int, *, ended: bool = True) -> Iterator[tuple[int, int]]:
    """Yield one stretch of text without the white space around it, in pieces if it is too long.

    If its end is not known yet, yield only pieces of a stretch that is certainly too long.
    """
    most = MOST_CHARS if ended else 2 * MOST_CHARS
    start, end = _stripped(text, start, end)
    while end - start > most:
        space = text.rfind(" ", start + MOST_CHARS // 2, start + MOST_CHARS)
        cut = space if space > 0 else start + MOST_CHARS
        yield _stripped(text, start, cut)
        start, end = _stripped(text, cut, end)
    if ended and end > start:
        yield start, end


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    start = _SPACE.match(text, start, end).end()  # type: ignore[union-attr]  # matches always
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


_DATED = re.compile(r"(?:\D*\d){4}")


def looks_like_lines(sample: str) -> bool:
    """Return whether text consists of separate lines (logs, tables, code), not prose."""
    rows = sample.split("\n")[:400]
    rows = rows[:-1] or rows  # the last one may be cut
    lines = [row for row in rows if row.strip()]
    if len(lines) < 4:
        return False
    share = 1 / len(lines)
    dated = sum(bool(_DATED.match(row[:24])) for row in lines) * share
    if dated >= 0.6:
        return True
    long = sum(len(row) > 400 for row in lines) * share
    blank = 1 - len(lines) / len(rows)
    full_stop = sum(row.rstrip().endswith((".", "!", "?", '"', "”", "’")) for row in lines) * share
    goes_on = sum(row[0].islower() for row in lines) * share
    indented = sum(row[0] in " \t" for row in lines) * share
    if indented >= 0.3 and goes_on < 0.3 and full_stop < 0.2:
        return True
    return blank < 0.02 and long < 0.2 and goes_on < 0.25 and full_stop < 0.4
