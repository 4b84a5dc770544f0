"""Planting facts into any text, piece by piece, where a reader would expect a new sentence."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator

from kvstream.evaluation.synthetic.document_facts import make_facts

_LOOK_AHEAD = 2000
"""Characters after the wanted place in which a boundary between paragraphs is looked for."""

_BOUNDARIES = (
    # A blank line before text that is not indented: code and tables stay in one piece.
    re.compile(r"(?P<gap>(?:\r?\n){2,})(?=\S)"),
    # Three letters before the stop, so that "Mr. Smith" and "e.g. This" are no ends of sentences.
    re.compile(r"[a-z]{3}[.!?][\"'”’)]?(?P<gap>\s)(?=[A-Z\"“'‘])"),
    re.compile(r"(?P<gap>\r?\n)"),
    re.compile(r"(?P<gap>\s)"),
)


def _insert(text: str, start: int, sentence: str) -> tuple[int, str]:
    """Where from ``start`` on the sentence fits best, and what to put there."""
    for boundary in _BOUNDARIES:
        if found := boundary.search(text, start, start + _LOOK_AHEAD):
            return found.end(), sentence + found["gap"]
    return start, f" {sentence} "


def plant(blocks: Iterable[str], size: int, *, facts: int, seed: int = 0) -> Iterator[str]:
    """The text of ``blocks`` with facts planted between its paragraphs, or else its sentences.

    ``size``: characters that the blocks are expected to have in all, from which the places follow;
    if it is wrong every fact is still planted, the last ones at the end. Memory stays constant.
    """
    waiting = deque(make_facts(facts, seed))
    text, offset = "", 0  # what is not written yet, and where it begins in the source
    last = ""

    def place() -> int:
        return max(0, int(waiting[0].depth * size) - offset)

    for block in blocks:
        text += block
        while waiting and place() + _LOOK_AHEAD <= len(text):
            at, inserted = _insert(text, place(), waiting.popleft().sentence)
            yield text[:at] + inserted
            text, offset = text[at:], offset + at
        ready = min(len(text), place()) if waiting else len(text)
        if ready:
            yield text[:ready]
            last = text[ready - 1]
            text, offset = text[ready:], offset + ready
    while waiting and place() < len(text):
        at, inserted = _insert(text, place(), waiting.popleft().sentence)
        yield text[:at] + inserted
        text, offset = text[at:], offset + at
    if text:
        yield text
        last = text[-1]
    for fact in waiting:
        yield ("\n" if last == "\n" else "\n\n") + fact.sentence + "\n"
        last = "\n"
