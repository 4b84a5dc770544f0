"""A long made-up document with known facts, and the questions about them.

``kvstream sample`` and the benchmarks plant facts about invented people and places, and passkeys,
in a made-up novel or in any other text. Training plants other facts. Everything is a generator: it
writes a document of any length in constant memory.
"""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from kvstream.errors import UsageError
from kvstream.sample.novel import novel

MOST_FACTS = 10_000
"""Maximum number of facts. With more, invented things would repeat."""


@dataclass(frozen=True)
class Fact:
    """One planted sentence and the question that it answers."""

    question: str
    answers: tuple[str, ...]
    """Each occurs exactly once, verbatim, in the sentence."""
    kind: str
    """One of KINDS."""
    depth: float
    """Place in the text, from 0 (the beginning) to 1. The sentence goes to a boundary near it."""
    sentence: str


_DATA = tomllib.loads(Path(__file__).with_name("facts.toml").read_text("utf-8"))
_TEMPLATES: dict[str, list[tuple[str, str]]] = _DATA["templates"]
"""For each kind pairs of a sentence and its question; the slot that `_ANSWER` names is the answer.
"""
KINDS = tuple(_TEMPLATES)
_ANSWER = {
    "passkey": "key", "person": "person", "place": "town", "object": "thing", "time": "date",
    "reason": "reason",
}  # fmt: skip


_WORDS = {name: words.split("|") for name, words in _DATA["words"].items()}
_TOWN_ENDS = [vowel + end for vowel in "aeo" for end in _WORDS["town_ends"]]
_DIGITS = "0123456789"
_DAYS = [str(day) for day in range(1, 29)]
_YEARS = [str(year) for year in range(1801, 1900)]


class _Inventor:
    """Random combinations of one word from each list. None repeats before all were returned."""

    def __init__(self, rng: random.Random, *parts: Sequence[str]) -> None:
        self._rng, self._parts = rng, parts
        self._size = math.prod(len(part) for part in parts)
        self._past: set[tuple[str, ...]] = set()
        self.rounds = 0

    def next(self) -> tuple[str, ...]:
        if len(self._past) == self._size:
            self._past.clear()
            self.rounds += 1
        while True:
            words = tuple(self._rng.choice(part) for part in self._parts)
            if words not in self._past:
                self._past.add(words)
                return words


def invented(rng: random.Random) -> dict[str, Callable[[], str]]:
    """Return functions that make a new person, town, lock, key, thing, date or reason per call."""
    w = _WORDS
    surnames = _Inventor(rng, w["onsets"], w["middles"], w["surname_ends"])
    towns = _Inventor(rng, w["onsets"], w["middles"], _TOWN_ENDS)
    locks = _Inventor(rng, w["lock_places"], w["locks"])
    keys = _Inventor(rng, _DIGITS[1:], *[_DIGITS] * 4)
    things = _Inventor(rng, w["sizes"], w["materials"], w["things"])
    dates = _Inventor(rng, _DAYS, w["months"], _YEARS)
    reasons = _Inventor(rng, w["culprits"], w["belongings"], w["mishaps"])

    def lock() -> str:
        # When all plain names are used, add a town to the name.
        name = "the " + " ".join(locks.next())
        return name if locks.rounds == 0 else f"{name} of {''.join(towns.next())}"

    return {
        "person": lambda: f"{rng.choice(w['given'])} {''.join(surnames.next())}",
        "town": lambda: "".join(towns.next()),
        "lock": lock,
        "key": lambda: "".join(keys.next()),
        "thing": lambda: " ".join(things.next()),
        "date": lambda: " ".join(dates.next()),
        "reason": lambda: "the {}'s {} had {}".format(*reasons.next()),
    }


def make_facts(count: int, seed: int = 0) -> list[Fact]:
    """Return ``count`` different facts, spread evenly at random over the depth, shallowest first.

    The kinds take turns: 6 facts have one of each kind. Raise UsageError for more than MOST_FACTS.
    """
    if not 0 <= count <= MOST_FACTS:
        raise UsageError(f"{count} facts: choose a number from 1 to {MOST_FACTS}.")
    rng = random.Random(f"facts {seed}")
    invent = invented(rng)
    strata = list(range(count))
    rng.shuffle(strata)
    facts = []
    for index, stratum in enumerate(strata):
        kind = KINDS[index % len(KINDS)]
        sentence, question = rng.choice(_TEMPLATES[kind])
        words = {slot: invent[slot]() for slot in re.findall(r"{(\w+)}", sentence)}
        facts.append(
            Fact(
                question=question.format(**words),
                answers=(words[_ANSWER[kind]],),
                kind=kind,
                depth=(stratum + rng.random()) / count,
                sentence=sentence.format(**words),
            )
        )
    return sorted(facts, key=lambda fact: fact.depth)


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
    length = 0
    for block in blocks:
        yield block
        length += len(block)
        if length >= size:
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
        if match := boundary.search(text, start, start + _LOOK_AHEAD):
            return match.end(), sentence + match["gap"]
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
