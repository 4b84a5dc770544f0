"""A paragraph that a model writes about the page of a log, and its check against the page."""

from __future__ import annotations

import re

QUESTION = (
    "This is a table of the lines of a log. L is the number of a line. In three sentences: what "
    "went wrong, when, and what happened just before? Give the line numbers, such as L12."
)
MOST_TOKENS = 200
ROWS_READ = 6
"""Rows of the page that the model reads."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(L])")
_LINE = re.compile(r"\bL\d|:\d|\bline \d")
_TERM = re.compile(r"\d+(?:[.,:/-]\d+)*|[A-Za-z_][\w.$/@-]*[\w$]|[A-Z]")


def checked(paragraph: str, page: str) -> tuple[str, list[str]]:
    """The sentences whose numbers and names all stand on the page, and the others.

    A name is a word with a digit, a capital, or a sign such as ``_`` or ``.`` in it; a capital at
    the beginning of a sentence makes none. Nothing stays where no sentence names a line.
    """
    known = {_plain(term) for term in _TERM.findall(page)}
    known |= {part for term in known for part in re.split(r"[:/.$@-]", term)}
    kept: list[str] = []
    removed: list[str] = []
    for sentence in filter(None, map(str.strip, _SENTENCE.split(" ".join(paragraph.split())))):
        (kept if _stands(sentence, known) else removed).append(sentence)
    if not any(_LINE.search(sentence) for sentence in kept):
        return "", kept + removed
    return " ".join(kept), removed


def _stands(sentence: str, known: set[str]) -> bool:
    for found in _TERM.finditer(sentence):
        term = found.group()
        inner = term[1:] if not sentence[: found.start()].strip("\"'( ") else term
        named = any(c.isupper() or c.isdigit() or c in "_./$@" for c in inner)
        if named and _plain(term) not in known:
            return False
    return True


def _plain(term: str) -> str:
    """As it is compared: without case, and without commas in numbers."""
    return (term.replace(",", "") if term[0].isdigit() else term).casefold()
