"""Needles with wordings, forms and places that pocket's training does not have.

The sentences of `synthetic/document.py` and of the training have one form: a plain sentence whose
words occur again in the question. Here the form differs (speech, an aside in a long sentence, a row
of a table, a line of a ledger, a notice in capitals, a postscript, two sentences), the place
differs (inside a paragraph, or a paragraph of its own), and the question uses other words than the
text.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from kvstream.sample.document_facts import Fact, invented

WORDINGS = ("own", "varied")
"""``own``: the sentences of `synthetic/document.py`; ``varied``: the templates below, in turn."""


@dataclass(frozen=True)
class Template:
    """One wording of a statement and its question."""

    name: str
    """Name of the template in the results."""
    text: str
    """The text to plant, with slots in braces; empty lines around it make it a paragraph."""
    question: str
    answer: str
    """The slot of the answer."""


NUMBERS = (
    Template(
        "instruction",
        "To get at the silver of {person} one turned the dial to {key} and pulled.",
        "Which combination leads to the silver of {person}?",
        "key",
    ),
    Template(
        "speech",
        '"Write it down, then," said {person}; "my locker at the baths is {key}, and mind the '
        'towel."',
        "Which locker at the baths belongs to {person}?",
        "key",
    ),
    Template(
        "aside",
        "The clerk, who had filed the quarrel of {person} under {key} and thought no more of it, "
        "went home early that evening to feed the cat.",
        "Under which number was the quarrel of {person} filed?",
        "key",
    ),
    Template(
        "ledger",
        "\n\n{person} . . . . . {key} crowns\n\n",
        "How many crowns stand against the name of {person}?",
        "key",
    ),
    Template(
        "table",
        "\n\n| guest | room |\n|---|---|\n| {other} | {key2} |\n| {person} | {key} |\n\n",
        "Which room did {person} have?",
        "key",
    ),
    Template(
        "postscript",
        "\n\nP.S. Ask at the bank for drawer {key}; it is the one that {person} rents.\n\n",
        "Which drawer at the bank does {person} pay for?",
        "key",
    ),
    Template(
        "notice",
        "\n\nLOST. A BICYCLE, PLATE {key}. THE OWNER, {person}, OFFERS A REWARD.\n\n",
        "What is on the plate of the bicycle of {person}?",
        "key",
    ),
    Template(
        "amount",
        "It took {key} bricks to mend the chimney of {person}.",
        "How many bricks did the chimney of {person} need?",
        "key",
    ),
    Template(
        "number-first",
        "{key} was chalked on the crate meant for {person}.",
        "What was chalked on the crate of {person}?",
        "key",
    ),
    Template(
        "two-sentences",
        "{person} kept a raffle ticket in one glove all evening. It bore the figure {key}.",
        "Which figure was on the raffle ticket of {person}?",
        "key",
    ),
    Template(
        "far-apart",
        "{person} had served for years in a regiment where the sergeants, being short of breath "
        "and of patience, never troubled with surnames, and had answered there to {key}.",
        "To which number did {person} answer in the regiment?",
        "key",
    ),
    Template(
        "letter",
        "\n\nDear {person},\n\nYour tortoise is entered in our register as {key}.\n\n"
        "Yours truly,\n{other}\n\n",
        "As what is the tortoise of {person} entered?",
        "key",
    ),
)
FACTS = (
    Template(
        "speech",
        '"You will find {person} at {town} these days," said the postman, "if the floods have '
        'spared the house."',
        "In which town can {person} be found these days?",
        "town",
    ),
    Template(
        "aside",
        "{person}, with the {thing} still wrapped in newspaper under one arm, missed the last "
        "tram.",
        "What did {person} carry under one arm?",
        "thing",
    ),
    Template(
        "excuse",
        "Nobody blamed {person} for staying away, seeing that {reason}.",
        "What kept {person} away?",
        "reason",
    ),
    Template(
        "register",
        "\n\n{date}. {person}, baptised at {town}.\n\n",
        "On what day was {person} baptised?",
        "date",
    ),
    Template(
        "owner",
        "The hat left behind at {town} turned out to be the property of {person}.",
        "Whose hat was left behind at {town}?",
        "person",
    ),
    Template(
        "playbill",
        "\n\nThe King . . . {other}\nThe Fool . . . {person}\n\n",
        "Who played the Fool beside {other}?",
        "person",
    ),
    Template(
        "notice",
        "\n\nWANTED, for making off with a {thing} at {town}: {person}.\n\n",
        "Which article did {person} take at {town}?",
        "thing",
    ),
    Template(
        "two-sentences",
        "{person} was told to choose a prize. After much thought the {thing} went home with the "
        "family.",
        "Which prize did {person} choose?",
        "thing",
    ),
)
_SAME = {"other": "person", "key2": "key"}
"""Slots that are filled in the same way as another one, with another value."""


def vary(templates: tuple[Template, ...], count: int, rng: random.Random, first: int) -> list[Fact]:
    """Make `count` needles with successive templates, from template `first` on."""
    invent = invented(rng)
    made = []
    for number in range(count):
        template = templates[(first + number) % len(templates)]
        slots = dict.fromkeys(re.findall(r"{(\w+)}", template.text + template.question))
        words = {slot: invent[_SAME.get(slot, slot)]() for slot in slots}
        made.append(
            Fact(
                template.question.format(**words),
                (words[template.answer],),
                template.name,
                0.0,
                template.text.format(**words),
            )
        )
    return made
