"""Questions about sentences that stand in a text anyway: nothing is planted."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from kvstream.errors import UsageError
from kvstream.evaluation.synthetic.document import Fact
from kvstream.tokenization.sentences import sentences

Rule = Callable[[str, random.Random], list[tuple[str, str]]]
"""Question and answer pairs that a sentence answers; none where no rule fits."""
RARE = 3
"""A word that a text has no more often is one that points at its place."""
_WORD = re.compile(r"\w+")


def ordinary(text: str, depths: Sequence[float], rng: random.Random, rule: Rule) -> list[Fact]:
    """For each depth a question about the first sentence behind it that a rule fits, else before.

    Raises UsageError where there are not as many such sentences.
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
    """Whether a word of the question is in the text, and no more than RARE times."""
    counts = dict.fromkeys(_WORD.findall(question.casefold()), 0)
    for word in _WORD.findall(text.casefold()):
        if word in counts:
            counts[word] += 1
    return any(0 < count <= RARE for count in counts.values())
