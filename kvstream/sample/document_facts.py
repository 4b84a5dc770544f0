"""Facts that ``kvstream sample`` and the benchmarks plant in documents, with their questions.

They are about invented people and places, and passkeys. Training plants other facts, those of
`training_facts.py`. `document.py` exports the public names of this module.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstream.errors import UsageError

MOST_FACTS = 10_000
"""Maximum number of facts. With more, invented things would repeat."""


@dataclass(frozen=True)
class Fact:
    """One planted sentence and the question that it answers."""

    question: str
    answers: tuple[str, ...]
    """Each occurs exactly once, verbatim, in the sentence."""
    kind: str
    """One of KINDS."""
    depth: float
    """Place in the text, from 0 (the beginning) to 1. The sentence goes to a boundary near it."""
    sentence: str


_TEMPLATES: dict[str, tuple[tuple[str, str], ...]] = {
    # kind: (sentence, question) pairs; the slot named in _ANSWER is the answer.
    "passkey": (
        ("The passkey for {lock} is {key}.", "What is the passkey for {lock}?"),
        ("Remember that the passkey for {lock} is {key}.", "What is the passkey for {lock}?"),
        ("{key} is the passkey for {lock}.", "Which passkey is for {lock}?"),
        ("The passkey that opens {lock} is {key}.", "What is the passkey that opens {lock}?"),
        ("Whoever wants to open {lock} needs the passkey {key}.", "Which passkey opens {lock}?"),
        ("The keeper set the passkey for {lock} to {key}.", "What is the passkey for {lock}?"),
    ),
    "person": (
        ("It was {person} who painted the town hall of {town}.",
         "Who painted the town hall of {town}?"),
        ("The old bridge of {town} was built by {person}.", "Who built the old bridge of {town}?"),
        ("The mayor of {town} was called {person}.", "Who was the mayor of {town}?"),
        ("{person} rang the great bell of {town} for many years.",
         "Who rang the great bell of {town}?"),
        ("The first school in {town} was opened by {person}.",
         "Who opened the first school in {town}?"),
        ("In {town} the only doctor was {person}.", "Who was the only doctor in {town}?"),
    ),
    "place": (
        ("{person} was born in {town}.", "Where was {person} born?"),
        ("{person} had lived in {town} since childhood.", "Where did {person} live?"),
        ("{person} was buried in the churchyard of {town}.", "Where was {person} buried?"),
        ("It was in {town} that {person} kept a small shop.",
         "Where did {person} keep a small shop?"),
        ("For the summer {person} always moved to {town}.",
         "Where did {person} move for the summer?"),
        ("The uncle of {person} owned a farm in {town}.",
         "Where did the uncle of {person} own a farm?"),
    ),
    "object": (
        ("{person} hid a {thing} under the stairs.", "What did {person} hide under the stairs?"),
        ("{person} found a {thing} in the old well.", "What did {person} find in the old well?"),
        ("For the wedding {person} received a {thing}.",
         "What did {person} receive for the wedding?"),
        ("All that {person} inherited was a {thing}.", "What did {person} inherit?"),
        ("{person} bought a {thing} at the fair.", "What did {person} buy at the fair?"),
        ("A thief stole a {thing} from {person}.", "What did a thief steal from {person}?"),
    ),
    "time": (
        ("{person} arrived in {town} on {date}.", "When did {person} arrive in {town}?"),
        ("The wedding of {person} was held on {date}.", "When was the wedding of {person} held?"),
        ("On {date} {person} bought the mill of {town}.",
         "When did {person} buy the mill of {town}?"),
        ("{person} died on {date}.", "When did {person} die?"),
        ("{person} first went to sea on {date}.", "When did {person} first go to sea?"),
    ),
    "reason": (
        ("{person} left {town} because {reason}.", "Why did {person} leave {town}?"),
        ("{person} never married because {reason}.", "Why did {person} never marry?"),
        ("{person} sold the house because {reason}.", "Why did {person} sell the house?"),
        ("{person} was late because {reason}.", "Why was {person} late?"),
        ("The feast in {town} was put off because {reason}.",
         "Why was the feast in {town} put off?"),
    ),
}  # fmt: skip
KINDS = tuple(_TEMPLATES)
_ANSWER = {
    "passkey": "key", "person": "person", "place": "town", "object": "thing", "time": "date",
    "reason": "reason",
}  # fmt: skip


def _split(words: str) -> list[str]:
    return words.split("|")


_GIVEN = _split(
    "Amina|Basil|Cora|Dmitri|Elvira|Fergus|Gilda|Horatio|Imogen|Jarvis|Kirsten|Lucian|Minerva|"
    "Nestor|Ottilie|Percival|Quentin|Ramona|Sigrid|Tobias|Ulrica|Valentin|Winifred|Xavier|Yolanda|"
    "Zeno"
)
_ONSETS = _split("B|Br|C|Cr|D|Dr|F|Fl|G|Gr|H|K|L|M|N|P|Pr|R|S|St|T|Tr|V|W")
_MIDDLES = _split(
    "adl|alb|and|arv|eck|eld|elk|emb|end|erl|esk|ilk|ind|irv|olb|old|olv|ond|ord|osk|uld|und|urb|"
    "usk"
)
_SURNAME_ENDS = _split(
    "ack|and|ane|ard|aster|atch|avin|ax|eby|ell|emar|enko|ery|esh|ettle|ewin|ible|idge|igan|ilo|"
    "imer|ino|ison|iver|obin|ogan|olt|oren|oway|owitz|ubert|udge|ulin|umber|yer|yle"
)
_TOWN_ENDS = [
    vowel + end
    for vowel in "aeo"
    for end in _split("bury|ford|ham|mere|mouth|stead|thorpe|ton|vale|wick|wold|worth")
]
_LOCK_PLACES = _split(
    "north|south|east|west|upper|lower|inner|outer|first|second|third|old|new|little|great|green|"
    "red|blue|white|black|yellow|stone|brick|wooden|iron|hidden|narrow|round|covered|river"
)
_LOCKS = _split(
    "gate|vault|cellar|tower|archive|laboratory|boathouse|warehouse|observatory|greenhouse|"
    "workshop|strongroom|hangar|lighthouse|treasury|armoury|depot|bunker|shelter|lock-house"
)
_DIGITS = "0123456789"
_SIZES = _split("tiny|huge|heavy|cracked|rusty|polished|crooked|gilded|dented|spotless")
_MATERIALS = _split(
    "pewter|bronze|jade|coral|walnut|porcelain|nickel|marble|bamboo|quartz|tin|velvet|leather|zinc"
)
_THINGS = _split(
    "thimble|trumpet|sundial|telescope|chess-board|birdcage|accordion|snuffbox|hourglass|"
    "tambourine|barometer|chandelier|crossbow|flask|goblet|harmonica|inkstand|kaleidoscope|locket|"
    "magnet|nutcracker|pendulum|quill|rattle|sextant|thermometer|urn|weathercock|xylophone|yoke"
)
_DAYS = [str(day) for day in range(1, 29)]
_MONTHS = _split(
    "January|February|March|April|May|June|July|August|September|October|November|December"
)
_YEARS = [str(year) for year in range(1801, 1900)]
_CULPRITS = _split(
    "acrobat|alchemist|barber|beekeeper|bishop|botanist|brewer|conjurer|cooper|dentist|falconer|"
    "fiddler|general|gondolier|juggler|locksmith|magician|notary|pharmacist|pirate|plumber|"
    "sculptor|senator|spy|tanner|undertaker|viceroy"
)
_BELONGINGS = _split(
    "balloon|carriage|donkey|elephant|ferret|fountain|furnace|goose|gramophone|hammock|kiln|"
    "ladder|monkey|parrot|piano|pony|printing-press|raft|sledge|steam-engine|submarine|tent|"
    "tortoise|wagon|whistle|windmill"
)
_MISHAPS = _split(
    "exploded|vanished|caught fire|fallen through the roof|broken in two|been stolen|run away|"
    "turned blue|been confiscated|blocked the road|sunk in the harbour|frightened the children|"
    "been struck by lightning|begun to smell|gone to pieces|been eaten by moths"
)


class _Inventor:
    """Random combinations of one word from each list. None repeats before all were returned."""

    def __init__(self, rng: random.Random, *parts: Sequence[str]) -> None:
        self._rng, self._parts = rng, parts
        self._size = math.prod(len(part) for part in parts)
        self._given: set[tuple[str, ...]] = set()
        self.rounds = 0

    def next(self) -> tuple[str, ...]:
        if len(self._given) == self._size:
            self._given.clear()
            self.rounds += 1
        while True:
            words = tuple(self._rng.choice(part) for part in self._parts)
            if words not in self._given:
                self._given.add(words)
                return words


def invented(rng: random.Random) -> dict[str, Callable[[], str]]:
    """Return functions that make a new person, town, lock, key, thing, date or reason per call."""
    surnames = _Inventor(rng, _ONSETS, _MIDDLES, _SURNAME_ENDS)
    towns = _Inventor(rng, _ONSETS, _MIDDLES, _TOWN_ENDS)
    locks = _Inventor(rng, _LOCK_PLACES, _LOCKS)
    keys = _Inventor(rng, _DIGITS[1:], *[_DIGITS] * 4)
    things = _Inventor(rng, _SIZES, _MATERIALS, _THINGS)
    dates = _Inventor(rng, _DAYS, _MONTHS, _YEARS)
    reasons = _Inventor(rng, _CULPRITS, _BELONGINGS, _MISHAPS)

    def lock() -> str:
        # When all plain names are used, add a town to the name.
        name = "the " + " ".join(locks.next())
        return name if locks.rounds == 0 else f"{name} of {''.join(towns.next())}"

    return {
        "person": lambda: f"{rng.choice(_GIVEN)} {''.join(surnames.next())}",
        "town": lambda: "".join(towns.next()),
        "lock": lock,
        "key": lambda: "".join(keys.next()),
        "thing": lambda: " ".join(things.next()),
        "date": lambda: " ".join(dates.next()),
        "reason": lambda: "the {}'s {} had {}".format(*reasons.next()),
    }


def make_facts(count: int, seed: int = 0) -> list[Fact]:
    """Return ``count`` different facts, spread evenly at random over the depth, shallowest first.

    The kinds take turns: 6 facts have one of each kind. Raise UsageError for more than MOST_FACTS.
    """
    if not 0 <= count <= MOST_FACTS:
        raise UsageError(f"{count} facts: choose a number from 0 to {MOST_FACTS}.")
    rng = random.Random(f"facts {seed}")
    invent = invented(rng)
    strata = list(range(count))
    rng.shuffle(strata)
    facts = []
    for index, stratum in enumerate(strata):
        kind = KINDS[index % len(KINDS)]
        sentence, question = rng.choice(_TEMPLATES[kind])
        words = {slot: invent[slot]() for slot in re.findall(r"{(\w+)}", sentence)}
        facts.append(
            Fact(
                question=question.format(**words),
                answers=(words[_ANSWER[kind]],),
                kind=kind,
                depth=(stratum + rng.random()) / count,
                sentence=sentence.format(**words),
            )
        )
    return sorted(facts, key=lambda fact: fact.depth)
