"""A long made-up document with known facts, and the questions about them.

This is the entry point of the package for everything but training. It plants facts about invented
people and places, and passkeys, in a made-up novel or in any other text. Everything is a generator:
it writes a document of any length in constant memory.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any

from kvstream.sample.document_facts import KINDS, MOST_FACTS, Fact, make_facts
from kvstream.sample.novel import novel

__all__ = [
    "CHARS_PER_TOKEN", "KINDS", "MOST_FACTS", "Fact", "beginning", "default_facts", "generate",
    "make_facts", "novel", "plant", "questions",
]  # fmt: skip

CHARS_PER_TOKEN = 4.0
"""Characters per token of the novel, with the embedded model's vocabulary of 8,192."""


def default_facts(tokens: int) -> int:
    """Return the default number of facts of a text: one per 2,000 tokens, from 6 to 600."""
    return max(6, min(600, tokens // 2000))


def questions(*, facts: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield a record for each fact of `generate` or `plant` with the same arguments."""
    for fact in make_facts(facts, seed):
        record = asdict(fact)
        yield {**record, "answers": list(fact.answers), "depth": round(fact.depth, 4)}


def beginning(blocks: Iterable[str], size: int) -> Iterator[str]:
    """Yield whole blocks until they have at least ``size`` characters."""
    written = 0
    for block in blocks:
        yield block
        written += len(block)
        if written >= size:
            return


def generate(*, tokens: int, seed: int = 0, facts: int | None = None) -> Iterator[str]:
    """Yield a made-up document of about ``tokens`` tokens with planted facts, piece by piece.

    Tokens are estimated with CHARS_PER_TOKEN; other tokenizers differ by about a fifth. ``facts``
    is the number of facts, by default `default_facts`. The same arguments make the same text, and
    `questions` with the same seed and number of facts asks about its facts.
    """
    count = default_facts(tokens) if facts is None else facts
    planted = sum(len(fact.sentence) + 2 for fact in make_facts(count, seed))
    size = max(1, int(tokens * CHARS_PER_TOKEN) - planted)
    return plant(beginning(novel(seed), size), size, facts=count, seed=seed)


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

    for block in chain(blocks, (None,)):
        text += block or ""
        ahead = 1 if block is None else _LOOK_AHEAD  # at the end there is no more to search
        while waiting and place() + ahead <= len(text):
            at, inserted = _insert(text, place(), waiting.popleft().sentence)
            yield text[:at] + inserted
            text, offset = text[at:], offset + at
        ready = min(len(text), place()) if waiting else len(text)
        if ready:
            yield text[:ready]
            last = text[ready - 1]
            text, offset = text[ready:], offset + ready
    for fact in waiting:
        yield ("\n" if last == "\n" else "\n\n") + fact.sentence + "\n"
        last = "\n"
