"""Splitting of a message into the text to read and the question."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST = 200
"""Maximum number of tokens of a question that is found in a message."""
_REACH = 8000
"""Characters at each end of a message in which its question is searched."""
_GAP = re.compile(r"\n[ \t\r]*\n\s*")
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+")
_ASKING = re.compile(
    r"(?:please\s+|question:|(?:summari[sz]e|explain|tell|list|find|give|describe|compare|name|"
    r"identify|extract|count|answer|translate|quote|outline|show)\b)",
    re.IGNORECASE,
)
_LABEL = re.compile(r"\s*\n\s*(?:[\w#-]+[ \t]+)?(?:answer|response|a)[ \t]*[:：]$", re.IGNORECASE)
"""A last line, such as "Answer:", with which prompts end after the question."""
_LONGEST_LABEL = 80
_WRAPPED = re.compile(r"\w[,;:–—-]?$")
"""The end of a line that continues on the next one."""


@dataclass(frozen=True)
class Split:
    """A message as text and question. Together they contain the whole message."""

    text: str
    """The text to read; empty if the message is only a question."""
    question: str
    place: str
    """Where the question was found: ``message``, ``last paragraph``, ``first paragraph``,
    ``last sentences`` or ``request``."""


def split(message: str, count: Callable[[str], int], *, alone: bool) -> Split:
    """Split a message into text and question; ``count`` returns the number of tokens of a text.

    If there is other text to read (not `alone`), a message of at most MOST tokens is the question.
    In a longer message, the question is the last paragraph, or the first one if only the first
    asks. If the paragraph has more than MOST tokens, its last sentences are the question. A message
    of one paragraph that is `alone` and has at most MOST tokens is both text and question. A label
    such as "Answer:" at the end belongs to the paragraph before it.
    """
    message = message.strip()

    def fits(text: str) -> bool:
        return len(text) <= _REACH and count(text) <= MOST

    whole = fits(message)
    if whole and not alone:
        return Split("", message, "message")
    label = _LABEL.search(message, max(0, len(message) - _LONGEST_LABEL))
    body = message if label is None else message[: label.start()].rstrip()
    first, last = _paragraphs(body)
    if first == last == body:
        if whole:
            return Split(message, message, "message")
        return _last_sentences(message, fits)
    last = message[len(body) - len(last) :]
    if fits(first) and _asks(first) and not (fits(last) and _asks(last)):
        return Split(message[len(first) :].strip(), first, "first paragraph")
    if fits(last):
        return Split(message[: len(message) - len(last)].strip(), last, "last paragraph")
    return _last_sentences(message, fits)


def _paragraphs(message: str) -> tuple[str, str]:
    """Return the first and the last paragraph.

    Without empty lines, return the first and the last line. A last line that asks alone is the last
    paragraph. Return the message twice if it has one line.
    """
    for gap in (_GAP, re.compile("\n")):
        head, tail = message[:_REACH], message[-_REACH:]
        begins = gap.search(head)
        ends = list(gap.finditer(tail))
        if begins or ends:
            first = head[: begins.start()] if begins else message
            last = tail[ends[-1].end() :] if ends else message
            return first.strip(), _last_line(last.strip())
    return message, message


def _last_line(paragraph: str) -> str:
    """Return the last line if only this line asks, else the paragraph.

    A file ends with one line break, so a question after it is a line of its last paragraph.
    """
    before, _, line = (part.strip() for part in paragraph[-_REACH:].rpartition("\n"))
    others_ask = _asks(before) or re.search(r"[?？][ \t\r]*$", before, re.MULTILINE)
    alone = before and not others_ask and not _WRAPPED.search(before)
    return line if alone and _asks(line) else paragraph


def _last_sentences(message: str, fits: Callable[[str], bool]) -> Split:
    """Use the last sentences that fit, or a part of the last sentence if it is too long."""
    tail = message[-_REACH:]
    starts = [match.end() for match in _SENTENCE.finditer(tail)]
    chosen = _longest(tail, starts, fits)
    if not chosen:
        after = starts[-1] if starts else 0
        words = [match.end() for match in re.finditer(r"\s+", tail) if match.end() >= after]
        chosen = _longest(tail, words, fits)
    size = MOST
    while not chosen:  # one very long word
        chosen = tail[-size:] if fits(tail[-size:]) else ""
        size //= 2
    return Split(message[: len(message) - len(chosen)].strip(), chosen, "last sentences")


def _longest(tail: str, starts: Sequence[int], fits: Callable[[str], bool]) -> str:
    """Return the longest tail that fits and begins at one of `starts`, or an empty text.

    Use bisection, because counting tokens is slow.
    """
    at = bisect_left(starts, True, key=lambda start: fits(tail[start:]))
    # A later start can give one token more than an earlier one.
    return next((tail[start:] for start in starts[at:] if fits(tail[start:])), "")


def _asks(paragraph: str) -> bool:
    """Return whether a paragraph is a question or a request. Questions in quotes do not count."""
    first = _SENTENCE.split(paragraph, maxsplit=1)[0]
    ends = (paragraph.endswith(("?", "？")), first.endswith(("?", "？")))
    return any(ends) or _ASKING.match(paragraph) is not None
