"""A long made-up document with known facts, and the questions about them.

This is the entry point of the package for everything but training. It plants facts about invented
people and places, and passkeys, in a made-up novel or in any other text. Everything is a generator:
it writes a document of any length in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from kvstream.sample.document_facts import KINDS, MOST_FACTS, Fact, make_facts
from kvstream.sample.novel import novel
from kvstream.sample.planting import plant

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
"""Characters per token of the novel, with the embedded model's vocabulary of 8,192."""


def default_facts(tokens: int) -> int:
    """Return the default number of facts of a text: one per 2,000 tokens, from 6 to 600."""
    return max(6, min(600, tokens // 2000))


def questions(*, facts: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the questions about the facts of `generate` or `plant` with the same facts and seed.

    Each is a record for one line of JSON: question, answers, kind, depth, sentence.
    """
    for fact in make_facts(facts, seed):
        record = asdict(fact)
        yield {**record, "answers": list(fact.answers), "depth": round(fact.depth, 4)}


def _first(blocks: Iterator[str], size: int) -> Iterator[str]:
    """Yield whole blocks until they have at least ``size`` characters."""
    written = 0
    for block in blocks:
        if written >= size:
            return
        written += len(block)
        yield block


def generate(*, tokens: int, seed: int = 0, facts: int | None = None) -> Iterator[str]:
    """Yield a made-up document of about ``tokens`` tokens with planted facts, piece by piece.

    Tokens are estimated with CHARS_PER_TOKEN; other tokenizers differ by about a fifth. ``facts``
    is the number of facts, by default `default_facts`. The same arguments make the same text, and
    `questions` with the same seed and number of facts asks about its facts.
    """
    count = default_facts(tokens) if facts is None else facts
    planted = sum(len(fact.sentence) + 2 for fact in make_facts(count, seed))
    size = max(1, int(tokens * CHARS_PER_TOKEN) - planted)
    return plant(_first(novel(seed), size), size, facts=count, seed=seed)
