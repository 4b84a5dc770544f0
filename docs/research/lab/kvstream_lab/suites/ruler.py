"""Tasks as in RULER: needles of several kinds, variables, common and frequent words.

Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context Language Models?", section 3
and appendix B. Sentences, questions and word lists are our own, there is no example before the
text, the filler is any text, and the needles' numbers have seven digits as in the paper. So the
scores compare methods and models with each other, not with published scores.
"""

from __future__ import annotations

import itertools
import random
import re
import string
from collections.abc import Callable

from kvstream.evaluation.filler import Filler
from kvstream.tokenization.loading import Tokenizer
from kvstream_lab.suites.task import Make, Sample, Task, hidden
from kvstream_lab.synthetic.words import listed

KEYS, VALUES, HOPS = 4, 4, 4
"""Number of keys if there are several, values of one key, and assignments after the first one of a
chain."""
COMMON, FREQUENT = 10, 3
"""Number of common words and of frequent words to find."""
LONG = 4096
"""Minimum tokens for which common words occur 30 times and the others 3 times; below, 6 and 1."""
ALPHA = 2.0
"""The frequency of the k-th most frequent word is proportional to ``k ** -ALPHA``."""
ADJECTIVES = listed(
    "amber brass copper dusty faded golden hollow ivory marble narrow purple velvet"
)
NOUNS = listed(
    "anchor basket candle drawer engine fountain hammer kettle lantern mirror saddle tunnel"
)


def _needles(keys: int, values: int, asked: int) -> Make:
    """Return a maker of needles: `keys` keys with `values` values each, and `asked` asked keys."""

    def make(tokenizer: Tokenizer, filler: Filler, tokens: int, rng: random.Random) -> Sample:
        drawn = rng.sample(list(itertools.product(ADJECTIVES, NOUNS)), keys)
        names = [" ".join(pair) for pair in drawn]
        pairs = [(n, str(rng.randrange(10**6, 10**7))) for n in names for _ in range(values)]
        wanted = names[:asked]
        answers = tuple(value for name, value in pairs if name in wanted)
        rng.shuffle(pairs)
        said = [f"A secret number of the {name} is {number}." for name, number in pairs]
        text = hidden(tokenizer, filler, tokens, rng, said)
        *others, last = (f"the {name}" for name in wanted)
        of = f"{', '.join(others)} and {last}" if others else last
        count = len(answers)
        numbers = "is the secret number" if count == 1 else f"are all {count} secret numbers"
        return Sample(text, f"What {numbers} of {of}?", answers)

    return make


def tracking(tokenizer: Tokenizer, filler: Filler, tokens: int, rng: random.Random) -> Sample:
    """Make a chain of assignments that starts with a number, and ask which variables have it."""
    names: list[str] = []
    while len(names) < HOPS + 1:
        name = "".join(rng.choices(string.ascii_uppercase, k=5))
        if name not in names:
            names.append(name)
    value = str(rng.randrange(10_000, 100_000))
    chain = [f"VAR {names[0]} = {value}."]
    chain += [f"VAR {new} = VAR {old}." for old, new in itertools.pairwise(names)]
    text = hidden(tokenizer, filler, tokens, rng, chain)
    return Sample(text, f"Which {HOPS + 1} variables have the value {value}?", tuple(names))


def common(tokenizer: Tokenizer, filler: Filler, tokens: int, rng: random.Random) -> Sample:
    """Make a numbered list in which ten words occur ten (or six) times as often as all others."""
    often, seldom = (30, 3) if tokens >= LONG else (6, 1)
    found = re.findall(r"\b[a-z]{4,10}\b", filler.cut(tokenizer, 4 * tokens, rng))
    known = list(dict.fromkeys(found))
    rng.shuffle(known)
    if len(known) < 2 * COMMON:  # a filler with hardly any words
        known += ["".join(rng.choices(string.ascii_lowercase, k=6)) for _ in range(2 * COMMON)]

    def text(others: int) -> str:
        drawn = known[:COMMON] * often + known[COMMON : COMMON + others] * seldom
        random.Random(others).shuffle(drawn)
        return " ".join(f"{number}. {word}" for number, word in enumerate(drawn, 1))

    others = _most(len(known) - COMMON, lambda count: len(tokenizer.encode(text(count))) <= tokens)
    question = f"What are the {COMMON} most common words in the list?"
    return Sample(text(others), question, tuple(known[:COMMON]))


def frequent(tokenizer: Tokenizer, filler: Filler, tokens: int, rng: random.Random) -> Sample:
    """Make a text of invented words with frequencies that fall as a power of the rank.

    The most frequent word is dots, as noise.
    """
    size = max(20, tokens // 50)
    coded = ["...."]
    while len(coded) < size:
        word = "".join(rng.choices(string.ascii_lowercase, k=6))
        if word not in coded:
            coded.append(word)
    weights = [rank**-ALPHA for rank in range(1, size + 1)]

    def text(count: int) -> str:
        drawn = [
            word
            for word, weight in zip(coded, weights, strict=True)
            for _ in range(int(count * weight / sum(weights)))
        ]
        random.Random(count).shuffle(drawn)
        return " ".join(drawn)

    count = _most(tokens, lambda count: len(tokenizer.encode(text(count))) <= tokens)
    question = f"What are the {FREQUENT} most frequent words in the text, apart from the dots?"
    return Sample(text(count), question, tuple(coded[1 : FREQUENT + 1]))


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `limit` that fits, if all smaller ones fit too."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


TASKS = {
    "single": Task("single", _needles(1, 1, 1), 24),
    "multikey": Task("multikey", _needles(KEYS, 1, 1), 24),
    "multivalue": Task("multivalue", _needles(1, VALUES, 1), 64),
    "multiquery": Task("multiquery", _needles(KEYS, 1, KEYS), 64),
    "tracking": Task("tracking", tracking, 48),
    "common": Task("common", common, 64),
    "frequent": Task("frequent", frequent, 32),
}
