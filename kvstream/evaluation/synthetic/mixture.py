"""What methods learn to look for: a mixture of keys and facts, hidden in prose."""

from __future__ import annotations

import random
from collections.abc import Callable

from kvstream.evaluation.synthetic import keys, training_facts
from kvstream.evaluation.synthetic.training_facts import Planted


def planted(
    draw: random.Random, count: int, passkeys: float, other: Callable[[float], Planted]
) -> list[Planted]:
    """At least `count` of them: a share of `passkeys`, a tenth key rings, a tenth facts in two
    steps. The rest is what `other` makes of the random number that fell beyond these shares.
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
