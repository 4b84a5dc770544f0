"""Facts that ``kvstream sample`` and the benchmarks plant in documents, with their questions.

They are about invented people and places, and passkeys. Training plants other facts, those of
`training_facts.py`. `document.py` exports the public names of this module.
"""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvstream.errors import UsageError

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
        self._given: set[tuple[str, ...]] = set()
        self.rounds = 0

    def next(self) -> tuple[str, ...]:
        if len(self._given) == self._size:
            self._given.clear()
            self.rounds += 1
        while True:
            words = tuple(self._rng.choice(part) for part in self._parts)
            if words not in self._given:
                self._given.add(words)
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
