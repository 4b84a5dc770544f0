"""Which part of a message is the question, and which is text to read."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST = 200
"""Tokens of a question that is found in a message."""
_REACH = 8000
"""Characters at either end of a message among which its question is looked for."""
_GAP = re.compile(r"\n[ \t\r]*\n\s*")
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+")
_ASKING = re.compile(
    r"(?:please\s+|question:|(?:summari[sz]e|explain|tell|list|find|give|describe|compare|name|"
    r"identify|extract|count|answer|translate|quote|outline|show)\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Split:
    """A message as text and question; together they have all of it."""

    text: str
    """What is read; empty where the message is a question alone."""
    question: str
    place: str
    """Where the question was: ``message``, ``last paragraph``, ``first paragraph``,
    ``last sentences`` or ``request``."""


def split(message: str, count: Callable[[str], int], *, alone: bool) -> Split:
    """The text and the question of a message; ``count`` gives the tokens of a text.

    Where there is something else to read (not `alone`), a message of at most MOST tokens is the
    question. Of a longer one it is the last paragraph, or the first if that asks and the last does
    not; of a paragraph with more than MOST tokens its last sentences. A message of one paragraph
    that is `alone` is both text and question.
    """
    message = message.strip()

    def fits(text: str) -> bool:
        return len(text) <= _REACH and count(text) <= MOST

    whole = fits(message)
    if whole and not alone:
        return Split("", message, "message")
    first, last = _paragraphs(message)
    if first == last == message:
        if whole:
            return Split(message, message, "message")
        return _last_sentences(message, fits)
    if fits(first) and _asks(first) and not (fits(last) and _asks(last)):
        return Split(message[len(first) :].strip(), first, "first paragraph")
    if fits(last):
        return Split(message[: len(message) - len(last)].strip(), last, "last paragraph")
    return _last_sentences(message, fits)


def _paragraphs(message: str) -> tuple[str, str]:
    """The first and the last; lines where no line is empty; the message where it has one line."""
    for gap in (_GAP, re.compile("\n")):
        head, tail = message[:_REACH], message[-_REACH:]
        begins = gap.search(head)
        ends = list(gap.finditer(tail))
        if begins or ends:
            first = head[: begins.start()] if begins else message
            last = tail[ends[-1].end() :] if ends else message
            return first.strip(), last.strip()
    return message, message


def _last_sentences(message: str, fits: Callable[[str], bool]) -> Split:
    """The last sentences that fit; a part of the last one where it alone is too long."""
    tail = message[-_REACH:]
    starts = [match.end() for match in _SENTENCE.finditer(tail)]
    chosen = _longest(tail, starts, fits)
    if not chosen:
        after = starts[-1] if starts else 0
        words = [match.end() for match in re.finditer(r"\s+", tail) if match.end() >= after]
        chosen = _longest(tail, words, fits)
    size = MOST
    while not chosen:  # one word without end
        chosen = tail[-size:] if fits(tail[-size:]) else ""
        size //= 2
    return Split(message[: len(message) - len(chosen)].strip(), chosen, "last sentences")


def _longest(tail: str, starts: Sequence[int], fits: Callable[[str], bool]) -> str:
    """The tail from the first start that fits, found by halves, since counting tokens is slow.

    Empty where none fits.
    """
    at = bisect_left(starts, True, key=lambda start: fits(tail[start:]))
    # A later start may have a token more than the one before it.
    return next((tail[start:] for start in starts[at:] if fits(tail[start:])), "")


def _asks(paragraph: str) -> bool:
    """Whether it is a question or a request; questions inside quotes do not count."""
    first = _SENTENCE.split(paragraph, maxsplit=1)[0]
    ends = (paragraph.endswith(("?", "？")), first.endswith(("?", "？")))
    return any(ends) or _ASKING.match(paragraph) is not None
