"""Keys and values: numbers to remember, alone, in groups with similar names, and in lists."""

from __future__ import annotations

import random
import re

from kvstream_lab.synthetic.training_facts import (
    MATERIALS,
    THINGS,
    Planted,
    opening,
    place,
    stem,
    surname,
)
from kvstream_lab.synthetic.words import phrases, words

_HOLDERS = words(
    "vault safe gate tower archive locker door ship laboratory bank garage cabinet chest "
    "tunnel office bunker suitcase machine station cellar library server account box "
    "warehouse"
)
_KEY_WORDS = phrases(
    "passkey|pass key|password|access code|secret number|magic number|special number|code|"
    "secret code|key|pin|entry code|security code|passcode|special magic number|serial "
    "number|registration number|ticket number|telephone number|secret key|identification "
    "number"
)


def passkey(rng: random.Random, plain: bool | None = None, name: str = "") -> Planted:
    """Make a number to remember, mostly with five digits, as in needle tests.

    Args:
        rng: random generator of all choices.
        plain: whether the key is just "the passkey"; random if None.
        name: name of the key ("the passkey for the old gate"); made up if empty.
    """
    length = rng.choice([5, 5, 5, 5, 5, 5, 4, 6, 7])
    # Repeated digits are hard to copy: the model must know which of them it copies.
    digits = "0123456789" if rng.random() < 0.5 else rng.sample("0123456789", rng.choice([2, 3]))
    code = "".join(rng.choice(digits) for _ in range(length))
    code = (code[0] if code[0] != "0" else "7") + code[1:]
    word = rng.choice(_KEY_WORDS) if rng.random() < 0.6 else rng.choice(_KEY_WORDS[:3])
    if name:
        pass
    elif plain if plain is not None else rng.random() < 0.35:
        name = f"the {word}"
    elif rng.random() < 0.5:
        name = f"the {word} {rng.choice(['of', 'for', 'to'])} the {rng.choice(_HOLDERS)}"
    else:
        name = f"the {word} {rng.choice(['of', 'for'])} {rng.choice([surname, place])(rng)}"
    statement = rng.choice(
        [
            "{n} is {c}. Remember it. {c} is {n}.",
            "{n} is {c}. Remember it.",
            "{n} is {c}.",
            "{n} is {c}. Remember it.",
            "{n} is {c}.",
            "Remember this: {n} is {c}.",
            "Here is {n}: {c}.",
            "Do not forget that {n} is {c}.",
            "{c} is {n}.",
            "{n}: {c}.",
            "{n} was {c}, and nobody else knew it.",
            "It should be noted that {n} is {c}.",
            "They had written down {n}, which was {c}, on the wall.",
            '"{n} is {c}," said the old man.',
            "One of the notes said that {n} is {c}.",
            "For {n}, use {c}.",
            "The number {c} is {n}.",
            "Use {c} as {n}.",
            "He whispered that {n} was {c}.",
            "If anyone asks, {n} is {c}.",
        ]
    )
    text = opening(statement.replace("{n}", name).replace("{c}", code))
    text = re.sub(r"(?<=[.\"] )the\b", "The", text) if rng.random() < 0.7 else text
    asked = [
        "What is {n}?",
        "What is {n}?",
        "What is {n}?",
        "What was {n}?",
        "Which number is {n}?",
        "What number is {n}?",
        "Can you tell me {n}?",
        "Tell me {n}.",
        "What is {n} mentioned in the text?",
        "What is {n} that was mentioned?",
        "According to the text, what is {n}?",
        "Repeat {n}.",
        "Find {n}.",
        "Please state {n}.",
        "Do you remember {n}?",
        "What's {n}?",
    ]
    return Planted(text, [(opening(q.replace("{n}", name)), code) for q in asked])


_KINDS_OF_HOLDERS = words(
    "north south east west upper lower inner outer first second third fourth last old new little "
    "great small big green red blue white black yellow grey brown golden silver stone brick wooden "
    "iron steel glass hidden secret narrow wide round square covered open river hill sea forest "
    "royal public private main back front left right summer winter village city dark bright"
)
_MORE_HOLDERS = words(
    "gate vault cellar tower archive laboratory boathouse warehouse observatory greenhouse "
    "workshop strongroom hangar lighthouse treasury armoury depot bunker shelter lock-house barn "
    "stable mill granary chapel crypt attic pantry harbour pier factory foundry mine quarry school "
    "museum theatre prison hospital station garage kitchen study cabinet chest"
)


def keyring(rng: random.Random, count: int) -> list[Planted]:
    """Make keys whose names differ in one word, so that only the full name identifies a key."""
    word = rng.choice(_KEY_WORDS[:12])
    kinds = rng.sample(_KINDS_OF_HOLDERS, count)
    holders = rng.sample(_MORE_HOLDERS, count)
    draw = rng.random()
    if draw < 0.4:
        holders = [holders[0]] * count
    elif draw < 0.6:
        kinds = [kinds[0]] * count
    ring = []
    for kind, holder in zip(kinds, holders, strict=True):
        lock = f"the {kind} {holder}"
        if rng.random() < 0.1:
            lock += f" of {place(rng)}"
        link = rng.choice(["for", "for", "of", "to", "that opens", "that opens", "that unlocks"])
        made = passkey(rng, name=f"the {word} {link} {lock}")
        code = made.questions[0][1]
        if rng.random() < 0.4:
            made.text = opening(rng.choice(_RING).format(c=code, w=word, n=lock))
        asked = [q.format(w=word, n=lock) for q in _RING_ASKED]
        ring.append(Planted(made.text, made.questions[:3] + [(q, code) for q in asked]))
    return ring


_RING = [
    "Whoever wants to open {n} needs the {w} {c}.",
    "The keeper set the {w} for {n} to {c}.",
    "{c} is the {w} for {n}.",
    "The {w} that opens {n} is {c}.",
    "Remember that the {w} for {n} is {c}.",
    "{n} opens with the {w} {c}.",
    "To enter {n}, give the {w} {c}.",
    "Nobody gets into {n} without the {w} {c}.",
    "On the door of {n} stood the {w} {c}.",
    "They changed the {w} of {n} to {c}.",
]
_RING_ASKED = [
    "What is the {w} for {n}?",
    "What is the {w} that opens {n}?",
    "Which {w} opens {n}?",
    "Which {w} is for {n}?",
    "What {w} does {n} have?",
    "With which {w} does one open {n}?",
]


def key_values(rng: random.Random, pairs: int) -> Planted:
    """Make a list of keys and values in one of several notations, with questions about all keys."""

    def token() -> str:
        draw = rng.randrange(5)
        if draw == 0:
            return "".join(rng.choice("0123456789abcdef") for _ in range(8))
        if draw == 1:
            return stem(rng, 2)
        if draw == 2:
            return rng.choice(MATERIALS) + "-" + rng.choice(THINGS)
        if draw == 3:
            return str(rng.randrange(100, 99999))
        return surname(rng)

    keys = list({token(): None for _ in range(pairs)})
    rows = [(key, token()) for key in keys]
    form = rng.choice(
        [
            "{k}: {v}",
            "{k} = {v}",
            '"{k}": "{v}",',
            "{k} -> {v}",
            "{k}\t{v}",
            "The value of {k} is {v}.",
        ]
    )
    text = "\n".join(form.replace("{k}", k).replace("{v}", v) for k, v in rows)
    asked = [
        "What is the value of {k}?",
        "What is the value for {k}?",
        "Which value belongs to {k}?",
        'What is the value of the key "{k}"?',
        "What value does {k} have?",
        "What does {k} stand for?",
        "What is {k}?",
    ]
    questions = [(rng.choice(asked).replace("{k}", key), value) for key, value in rows]
    backward = ["Which key has the value {v}?", "What key belongs to {v}?"]
    if rng.random() < 0.3:
        questions += [(rng.choice(backward).replace("{v}", value), key) for key, value in rows]
    return Planted(text, questions)
