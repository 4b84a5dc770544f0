"""Needles that share no content word with their question.

After Modarressi et al., "NoLiMa: Long-Context Evaluation Beyond Literal Matching", section 3: only
the model's world knowledge connects the two. The sentences are our own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from kvstream.evaluation.filler import Filler
from kvstream.tokenization.loading import Tokenizer
from kvstream_lab.suites.task import Sample, Task, hidden
from kvstream_lab.synthetic.words import words

NAMES = words("""
    Ottilie Bertrand Calista Dashiell Evander Fenella Gideon Hesper Ignatia Jocasta Kester Leopold
    Melisande Nehemiah Ottoline Percival Quentin Rosalind Sylvester Theodora
""")
LANDMARKS = {
    "the Eiffel Tower": "Paris", "the Colosseum": "Rome", "the Brandenburg Gate": "Berlin",
    "the Kremlin": "Moscow", "the Acropolis": "Athens", "Buckingham Palace": "London",
    "the Statue of Liberty": "New York", "the Golden Gate Bridge": "San Francisco",
    "the Taj Mahal": "India", "the Great Sphinx": "Egypt", "Mount Fuji": "Japan",
    "the Doge's Palace": "Venice",
}  # fmt: skip
TRADES = {
    "pulled out two rotten teeth": "a dentist", "flew an airliner over the sea": "a pilot",
    "took loaves out of the oven at dawn": "a baker", "milked forty cows": "a farmer",
    "put out a burning barn": "a firefighter", "gave the pupils their marks": "a teacher",
    "cut hair and shaved beards": "a barber", "hauled in nets full of cod": "a fisherman",
    "sewed three suits and a coat": "a tailor", "hammered a horseshoe at the forge": "a blacksmith",
    "sentenced two thieves to prison": "a judge", "hung new shelves and a door": "a carpenter",
}  # fmt: skip


def places(tokenizer: Tokenizer, filler: Filler, tokens: int, rng: random.Random) -> Sample:
    """Make a sample with a landmark in the text and its city or country in the question."""
    landmark, place = rng.choice(list(LANDMARKS.items()))
    needle = "{name} rented a small room right behind " + f"{landmark}."
    asked = {place: f"Who has been to {place}?" for place in LANDMARKS.values()}
    return _who(tokenizer, filler, tokens, rng, needle, asked, place)


def trades(tokenizer: Tokenizer, filler: Filler, tokens: int, rng: random.Random) -> Sample:
    """Make a sample with someone's work in the text and the trade in the question."""
    done, trade = rng.choice(list(TRADES.items()))
    needle = "That day {name} " + f"{done}, as every week."
    asked = {trade: f"Who works as {trade}?" for trade in TRADES.values()}
    return _who(tokenizer, filler, tokens, rng, needle, asked, trade)


def _who(
    tokenizer: Tokenizer,
    filler: Filler,
    tokens: int,
    rng: random.Random,
    needle: str,
    asked: Mapping[str, str],
    wanted: str,
) -> Sample:
    """Make a sample whose needle answers the question about `wanted`.

    `asked` has a question for every place or trade.
    """
    names = rng.sample(NAMES, len(NAMES))
    before = rng.getstate()
    text = hidden(tokenizer, filler, tokens, rng, [needle.format(name=names[0])])
    free = [name for name in names if text.count(name) == (name == names[0])]
    if free[0] != names[0]:  # someone in the text has the name
        rng.setstate(before)
        text = hidden(tokenizer, filler, tokens, rng, [needle.format(name=free[0])])
    other = rng.choice([question for thing, question in asked.items() if thing != wanted])
    return Sample(text, asked[wanted], (free[0],), other)


TASKS = (Task("places", places, 24), Task("trades", trades, 24))
