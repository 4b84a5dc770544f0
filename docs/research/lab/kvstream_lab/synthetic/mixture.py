"""Planted facts that methods are trained on: a mixture of keys and facts."""

from __future__ import annotations

import random
from collections.abc import Callable

from kvstream_lab.synthetic import keys, training_facts
from kvstream_lab.synthetic.training_facts import Planted


def planted(
    draw: random.Random, count: int, passkeys: float, other: Callable[[float], Planted]
) -> list[Planted]:
    """Make at least `count` planted facts.

    A share of `passkeys` are passkeys, a tenth are key rings, a tenth two-step facts. `other` makes
    the rest from the random number, which is beyond these shares.
    """
    made: list[Planted] = []
    while len(made) < count:
        kind = draw.random()
        if kind < passkeys:
            made.append(keys.passkey(draw))
        elif kind < passkeys + 0.1:
            made.extend(keys.keyring(draw, draw.choice((1, 2, 3))))
        elif kind < passkeys + 0.2:
            made.extend(training_facts.two_steps(draw))
        else:
            made.append(other(kind))
    return made
