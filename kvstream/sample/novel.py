"""An endless dull novel from a small grammar, in which facts are planted.

It has no digits, no invented names and none of the things of planted facts. So it can neither
answer a question nor contradict an answer.
"""

from __future__ import annotations

import itertools
import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

_GRAMMAR = tomllib.loads(Path(__file__).with_name("novel.toml").read_text("utf-8"))
_WORDS = {name: words.split("|") for name, words in _GRAMMAR["words"].items()}
_PEOPLE = {name: words.split("|") for name, words in _GRAMMAR["people"].items()}
_SLOT = re.compile(r"\{(\w+)\}")


def _compiled(template: str) -> tuple[str, tuple[str, ...]]:
    """Compile a template to a %-format and the names of its slots, for several times the speed."""
    return _SLOT.sub("%s", template), tuple(_SLOT.findall(template))


# A paragraph begins with one of the openings, which introduces its person.
_OPENINGS, *_SCENES = (tuple(map(_compiled, some)) for some in _GRAMMAR["sentences"].values())


def novel(seed: int = 0) -> Iterator[str]:
    """Yield paragraphs and chapter headings of a dull novel without end; no digits."""
    rng = random.Random(f"novel {seed}")
    draw, choice = rng.random, rng.choice
    words: dict[str, list[str]] = dict(_WORDS)
    for chapter in itertools.count():
        book, part = divmod(chapter, 40)
        number = f"Book {_numeral(book + 1)}, chapter {_numeral(part + 1)}"
        yield f"{number}: {choice(words['topic'])}\n\n"
        # Few people per chapter, so that it reads like one story.
        people = [
            (f"{first} {choice(_PEOPLE['families'])}", *pronouns)
            for sex, pronouns in (("men", ("he", "his", "him")), ("women", ("she", "her", "her")))
            for first in rng.sample(_PEOPLE[sex], 3)
        ]
        for _ in range(rng.randrange(12, 30)):
            (name, he, his, him), (other, *_) = rng.sample(people, 2)
            words.update(name=[name], he=[he], his=[his], him=[him], other=[other])
            scene = choice(_SCENES)
            sentences = []
            body = rng.sample(scene, rng.randrange(3, len(scene) + 1))
            for form, slots in [choice(_OPENINGS), *body]:
                filled = []
                for slot in slots:
                    options = words[slot]
                    filled.append(options[int(draw() * len(options))])
                text = form % tuple(filled)
                sentences.append(text[0].upper() + text[1:])
            yield " ".join(sentences) + "\n\n"


def _numeral(number: int) -> str:
    """Return a Roman numeral, because the filler has no digits."""
    text = ""
    for value, sign in zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"),
        strict=True,
    ):
        count, number = divmod(number, value)
        text += sign * count
    return text
