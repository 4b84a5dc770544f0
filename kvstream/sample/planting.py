"""Plant facts in any text, piece by piece, at places where a new sentence may begin."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator

from kvstream.sample.document_facts import make_facts

_LOOK_AHEAD = 2000
"""Characters to search after the wanted place for a boundary, best between paragraphs."""

_BOUNDARIES = (
    # A blank line before text that is not indented, so that code and tables are not split.
    re.compile(r"(?P<gap>(?:\r?\n){2,})(?=\S)"),
    # Three letters before the period, so that "Mr. Smith" and "e.g. This" are not ends of
    # sentences.
    re.compile(r"[a-z]{3}[.!?][\"'”’)]?(?P<gap>\s)(?=[A-Z\"“'‘])"),
    re.compile(r"(?P<gap>\r?\n)"),
    re.compile(r"(?P<gap>\s)"),
)


def _insert(text: str, start: int, sentence: str) -> tuple[int, str]:
    """Return the best place for the sentence from ``start`` on, and the text to insert."""
    for boundary in _BOUNDARIES:
        if found := boundary.search(text, start, start + _LOOK_AHEAD):
            return found.end(), sentence + found["gap"]
    return start, f" {sentence} "


def plant(blocks: Iterable[str], size: int, *, facts: int, seed: int = 0) -> Iterator[str]:
    """Plant facts in the text of ``blocks``, between paragraphs if possible, or else sentences.

    ``size`` is the expected number of characters of all blocks; it determines the places. If it is
    wrong, every fact is still planted, the last ones at the end. Memory use is constant.
    """
    waiting = deque(make_facts(facts, seed))
    text, offset = "", 0  # the text not yet written, and its offset in the source
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
