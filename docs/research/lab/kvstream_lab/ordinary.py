"""Questions about sentences of the text itself: nothing is planted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kvstream.errors import UsageError
from kvstream.sample.document import Fact
from kvstream.tokenization.forms import words
from kvstream.tokenization.sentences import sentences

Rule = Callable[[str, random.Random], list[tuple[str, str]]]
"""Return question and answer pairs that a sentence answers; none if no rule fits."""
RARE = 3
"""Maximum occurrences in a text of a word that identifies its place."""


def ordinary(text: str, depths: Sequence[float], rng: random.Random, rule: Rule) -> list[Fact]:
    """For each depth, make a question about the first sentence after it that a rule fits.

    If there is none, take the last one before it. Raise UsageError if there are too few such
    sentences.
    """
    spans = list(sentences(text, final=True))
    facts: list[Fact] = []
    for depth in depths:
        first = min(int(depth * len(spans)), max(len(spans) - 1, 0))
        for start, end in [*spans[first:], *reversed(spans[:first])]:
            sentence = text[start:end]
            pairs = rule(" ".join(sentence.split()), rng)
            if pairs and not any(fact.sentence == sentence for fact in facts):
                question, answer = rng.choice(pairs)
                facts.append(Fact(question, (answer,), "rule", depth, sentence))
                break
        else:
            raise UsageError("The text has too few sentences that a rule can turn into a question.")
    return facts


def has_rare_word(question: str, text: str) -> bool:
    """Return whether a word of the question occurs in the text, and at most RARE times."""
    counts = dict.fromkeys(words(question), 0)
    for word in words(text):
        if word in counts:
            counts[word] += 1
    return any(0 < count <= RARE for count in counts.values())
