"""A long made-up document with known facts in it, and the questions that ask for them.

This is the door of the package for everything but training. Facts about invented people and
places, and passkeys, are planted into a made-up novel or into any other text. Everything is a
generator: a document of any length is written in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from kvstream.evaluation.synthetic.document_facts import KINDS, MOST_FACTS, Fact, make_facts
from kvstream.evaluation.synthetic.novel import novel
from kvstream.evaluation.synthetic.planting import plant

__all__ = [
    "CHARS_PER_TOKEN",
    "KINDS",
    "MOST_FACTS",
    "Fact",
    "default_facts",
    "generate",
    "make_facts",
    "novel",
    "plant",
    "questions",
]

CHARS_PER_TOKEN = 4.0
"""Characters a token of the novel, with the embedded model's vocabulary of 8,192."""


def default_facts(tokens: int) -> int:
    """How many facts a text of this many tokens gets unless asked: one in 2,000, 6 to 600."""
    return max(6, min(600, tokens // 2000))


def questions(*, facts: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """The questions to what `generate` or `plant` with the same facts and seed have planted.

    Each is a record for one line of JSON: question, answers, kind, depth, sentence.
    """
    for fact in make_facts(facts, seed):
        record = asdict(fact)
        yield {**record, "answers": list(fact.answers), "depth": round(fact.depth, 4)}


def _first(blocks: Iterator[str], size: int) -> Iterator[str]:
    """Blocks up to about ``size`` characters, a whole number of them."""
    written = 0
    for block in blocks:
        if written >= size:
            return
        written += len(block)
        yield block


def generate(*, tokens: int, seed: int = 0, facts: int | None = None) -> Iterator[str]:
    """A made-up document of about ``tokens`` tokens with facts planted in it, piece by piece.

    Tokens are estimated by CHARS_PER_TOKEN; other tokenizers differ by a fifth or so. ``facts``:
    how many, `default_facts` unless set. The same arguments make the same text, and
    `questions` with the same seed and number of facts asks for what was planted.
    """
    count = default_facts(tokens) if facts is None else facts
    planted = sum(len(fact.sentence) + 2 for fact in make_facts(count, seed))
    size = max(1, int(tokens * CHARS_PER_TOKEN) - planted)
    return plant(_first(novel(seed), size), size, facts=count, seed=seed)
