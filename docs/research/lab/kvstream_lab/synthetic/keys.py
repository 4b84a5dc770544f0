"""Keys and values: numbers to remember, alone, in groups with similar names, and in lists."""

from __future__ import annotations

import random
import re

from kvstream_lab.synthetic.training_facts import (
    Planted,
    opening,
    place,
    stem,
    surname,
)
from kvstream_lab.synthetic.words import lists


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
    word = rng.choice(lists.key_words) if rng.random() < 0.6 else rng.choice(lists.key_words[:3])
    if name:
        pass
    elif plain if plain is not None else rng.random() < 0.35:
        name = f"the {word}"
    elif rng.random() < 0.5:
        name = f"the {word} {rng.choice(['of', 'for', 'to'])} the {rng.choice(lists.holders)}"
    else:
        name = f"the {word} {rng.choice(['of', 'for'])} {rng.choice([surname, place])(rng)}"
    statement = rng.choice(lists.key_said)
    text = opening(statement.replace("{n}", name).replace("{c}", code))
    text = re.sub(r"(?<=[.\"] )the\b", "The", text) if rng.random() < 0.7 else text
    return Planted(text, [(opening(q.replace("{n}", name)), code) for q in lists.key_asked])


def keyring(rng: random.Random, count: int) -> list[Planted]:
    """Make keys whose names differ in one word, so that only the full name identifies a key."""
    word = rng.choice(lists.key_words[:12])
    kinds = rng.sample(lists.kinds_of_holders, count)
    holders = rng.sample(lists.more_holders, count)
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
            made.text = opening(rng.choice(lists.ring).format(c=code, w=word, n=lock))
        asked = [q.format(w=word, n=lock) for q in lists.ring_asked]
        ring.append(Planted(made.text, made.questions[:3] + [(q, code) for q in asked]))
    return ring


def key_values(rng: random.Random, pairs: int) -> Planted:
    """Make a list of keys and values in one of several notations, with questions about all keys."""

    def token() -> str:
        draw = rng.randrange(5)
        if draw == 0:
            return "".join(rng.choice("0123456789abcdef") for _ in range(8))
        if draw == 1:
            return stem(rng, 2)
        if draw == 2:
            return rng.choice(lists.materials) + "-" + rng.choice(lists.things)
        if draw == 3:
            return str(rng.randrange(100, 99999))
        return surname(rng)

    keys = list({token(): None for _ in range(pairs)})
    rows = [(key, token()) for key in keys]
    form = rng.choice(lists.pairs)
    text = "\n".join(form.replace("{k}", k).replace("{v}", v) for k, v in rows)
    questions = [(rng.choice(lists.value_asked).replace("{k}", key), value) for key, value in rows]
    backward = ["Which key has the value {v}?", "What key belongs to {v}?"]
    if rng.random() < 0.3:
        questions += [(rng.choice(backward).replace("{v}", value), key) for key, value in rows]
    return Planted(text, questions)
