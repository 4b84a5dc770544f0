"""Facts that training plants in prose, in hundreds of wordings, with their questions.

The model `pocket` and the gates of `edgeinfinite` are trained on them. ``kvstream sample`` and the
benchmarks use other facts: `kvstream.sample.document_facts`.

The relations are in ``templates.txt``. Names are made of syllables, so there are millions of them:
a model cannot memorize them and must look in the text.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kvstream_lab.synthetic.phrases import verbs
from kvstream_lab.synthetic.words import phrases, words


@dataclass
class Planted:
    """One sentence (or a few) to plant in a text, with the questions about it."""

    text: str
    questions: list[tuple[str, str]]  # question, answer
    person: str = ""  # the person of the fact
    clauses: list[str] = field(default_factory=list)  # "who stole the silver key"


_ONSETS = words(
    "b br c ch cl d dr f fl g gr h j k kn l m n p pr qu r s sh sl st t th tr v w wr y z"
)
_VOWELS = words("a e i o u a e i o ai ea ee ie oa ou au y ei")
_CODAS = words("b ck d g l ll m n nd ng nt p r rd rk rl rn rt s sk ss st t th x z v ld lm mb")
_PERSON_ENDS = words(
    "a in el o us ar eth an wick man son well ley mund red win ric bert ina elle ette is a "
    "ia ora en ulf ard ot im ius ez ov sky ic ham ton ter ser"
)
_PLACE_ENDS = words(
    "ton ham ford by wick field bury mouth port stead worth mere dale holm burg stadt ville "
    "a ia land ness combe minster gate bridge cliff haven hurst low moor shire thorpe wold "
    "ova is or"
)
FIRST_NAMES = words(
    "Ada Agnes Albert Alice Amos Anna Arthur Barbara Ben Bertha Boris Carla Carlos Cecil "
    "Clara Conrad Daisy David Dora Edgar Edith Edmund Elena Eliza Ella Emil Emma Eric Ernest "
    "Esther Eva Felix Fiona Flora Frank Fred George Grace Greta Hannah Harold Harry Hector "
    "Helen Henry Hugo Ida Igor Irene Isaac Ivan Ivy Jack James Jane Jasper Joan Joel John "
    "Jonas Joseph Judith Julia Karl Kate Laura Leo Leon Lily Linda Louis Lucy Luke Mabel "
    "Marcus Margaret Maria Mark Martha Martin Mary Matilda Max Miriam Molly Nancy Nathan Ned "
    "Nell Nina Noah Nora Olga Oliver Oscar Otto Patrick Paul Pedro Peter Philip Polly Rachel "
    "Ralph Rebecca Robert Rosa Rose Rufus Ruth Sam Sarah Silas Simon Sofia Stella Susan "
    "Sylvia Theo Thomas Tilda Tom Ursula Vera Victor Viola Walter Wanda William Yusuf Zoe "
    "Amina Chen Dmitri Fatima Hiro Ingrid Kofi Lars Mei Priya Raj"
)
_TITLES = words("Mr. Mrs. Miss Dr. Captain Sir Lady Professor Judge Colonel Old Aunt Uncle Father")


def stem(rng: random.Random, syllables: int) -> str:
    parts = []
    for index in range(syllables):
        parts.append(rng.choice(_ONSETS) if index or rng.random() < 0.85 else "")
        parts.append(rng.choice(_VOWELS))
        if index == syllables - 1 or rng.random() < 0.35:
            parts.append(rng.choice(_CODAS))
    return "".join(parts)


def surname(rng: random.Random) -> str:
    """Return an invented family or fantasy name such as ``Trelound``."""
    begin = stem(rng, rng.choice([1, 1, 1, 2, 2]))
    return (begin + (rng.choice(_PERSON_ENDS) if rng.random() < 0.7 else "")).capitalize()


def person(rng: random.Random) -> str:
    """Return a person's name: an invented name alone, or with a first name or a title."""
    draw = rng.random()
    if draw < 0.4:
        return f"{rng.choice(FIRST_NAMES)} {surname(rng)}"
    if draw < 0.62:
        return surname(rng)
    if draw < 0.8:
        return f"{rng.choice(_TITLES)} {surname(rng)}"
    if draw < 0.84:
        return f"{surname(rng)} {surname(rng)}"
    if draw < 0.88:
        middle = rng.choice(
            [surname(rng), f"{rng.choice('ABCDEFGHIJKLMNOPRSTW')}.", "van", "de la"]
        )
        return f"{rng.choice(FIRST_NAMES)} {middle} {surname(rng)}"
    if draw < 0.95:
        return rng.choice(FIRST_NAMES)
    return f"the {rng.choice(ADJECTIVES)} {rng.choice(TRADES)}"


def place(rng: random.Random) -> str:
    """Return an invented town or country such as ``Grelby`` or ``Upper Kneadhaven``."""
    name = (stem(rng, rng.choice([1, 1, 2])) + rng.choice(_PLACE_ENDS)).capitalize()
    draw = rng.random()
    if draw < 0.06:
        return f"{rng.choice(['Port', 'New', 'Upper', 'Saint', 'Great', 'Lower', 'East'])} {name}"
    if draw < 0.1:
        return f"{name} {rng.choice(['Castle', 'Hall', 'Street', 'Abbey', 'Farm', 'Hill', 'Bay'])}"
    return name


ADJECTIVES = words(
    "old young tall little blind silent lame red-haired fat thin strange rich poor clever "
    "lazy merry wicked gentle proud grey pale sleepy bold honest wise drunken famous lonely"
)
TRADES = words(
    "baker blacksmith butcher carpenter clockmaker cobbler cook doctor farmer fisherman "
    "gardener glassblower hunter innkeeper jeweller judge lawyer librarian locksmith mason "
    "merchant miller miner musician painter physician pilot poet porter potter printer "
    "sailor schoolmaster sculptor shepherd shoemaker smith soldier spy surgeon tailor tanner "
    "teacher thatcher weaver woodcutter actor astronomer barber beekeeper botanist brewer "
    "chemist clerk coachman dentist diver dyer engineer ferryman goldsmith historian juggler "
    "lighthouse-keeper midwife nurse postman saddler"
)
MATERIALS = words(
    "silver golden copper wooden leather glass ivory brass crystal stone iron velvet silk "
    "paper marble bronze clay pearl ebony tin amber black white red blue green old broken "
    "rusty tiny carved painted heavy round crooked little torn sealed hidden precious "
    "borrowed"
)
THINGS = words(
    "key ring box book letter map watch knife lamp bell mirror comb pipe crown cup purse "
    "umbrella violin lantern chest locket coin telescope compass bottle flute hat glove "
    "candlestick sword brooch statue vase portrait diary ledger necklace bracelet button "
    "spoon teapot clock basket whistle thimble needle harp drum shield helmet bowl plate pen "
    "seal parcel trunk saddle kettle hammer axe rope medal pistol fan shawl doll will "
    "passport photograph manuscript scroll jar"
)
_SPOTS = phrases(
    "under the {x} stairs|behind the {x} clock|in the {x} cellar|beneath the {x} oak|in a "
    "{x} barrel|inside the {x} church|in the {x} attic|at the bottom of the {x} well|under a "
    "{x} stone|behind the {x} curtain|in the {x} stable|on the {x} shelf|in the {x} drawer|"
    "near the {x} bridge|in the {x} tower|under the {x} bed|in the {x} garden|beside the {x} "
    "mill|in the {x} library|in the kitchen of {l}|in the {x} inn|on the roof of the {x} "
    "barn|at the {x} harbour|in a {x} cave|in the forest of {l}|by the {x} gate|in the "
    "church of {l}|in the {x} chapel|behind the {x} piano|on the road to {l}|in the market "
    "of {l}|at the {x} station|in the {x} boat|under the {x} floor"
)
_COLOURS = words(
    "red blue green yellow purple orange white black grey brown pink scarlet crimson violet "
    "turquoise ivory amber olive indigo lilac golden silver"
)
_ANIMALS = words(
    "dog cat horse parrot goat donkey raven tortoise monkey pig owl mule rabbit hound pony "
    "goose falcon squirrel fox ferret lamb peacock canary bear"
)
_HERDS = words(
    "cows sheep goats horses hens ducks geese pigs camels oxen dogs cats rabbits bees "
    "donkeys mules ships houses books windows hats clocks barrels apple-trees boats carpets "
    "swords mirrors"
)
_FOODS = phrases(
    "roast goose|onion soup|brown bread|apple pie|boiled eggs|salted herring|plum pudding|"
    "cold ham|oatmeal|pea soup|fried trout|goat cheese|mutton stew|honey cakes|mushrooms|"
    "roast chestnuts|lentils|pickled cabbage|gingerbread|strawberries|rabbit pie|barley "
    "broth|smoked eel|pancakes|turnips|rice and beans|lamb chops|cherry tart|dried figs|"
    "oysters|cucumber sandwiches|porridge"
)
_INSTRUMENTS = words(
    "violin flute harp trumpet drum organ guitar lute cello piano bagpipe horn oboe fiddle "
    "zither mandolin clarinet banjo"
)
_KIN = words(
    "brother sister father mother uncle aunt cousin nephew niece son daughter wife husband "
    "friend teacher servant neighbour grandfather grandmother godfather master partner "
    "guardian rival doctor lawyer cook secretary gardener coachman enemy landlady"
)
_FEELINGS = words(
    "angry sad happy afraid late proud ashamed tired surprised lonely jealous anxious glad "
    "silent furious delighted worried pale restless cheerful disappointed ill"
)
_REASONS = phrases(
    "because the {t} was {b}|because of the {t}|because {r} had {v}|because nobody {v2}|"
    "because the {s} had burned down|because {r} was coming|because the winter was so {w}|"
    "because there was no {f} left|because {r} had told a lie|because the {a} was lost|"
    "because {r} was ill|because the harvest had failed|because of a quarrel with {r}|"
    "because the rent was too high|because {r} laughed|because the {s} was closed|because "
    "the road was blocked|because it had rained for {n} days|because of the noise|because "
    "the doctor had ordered it|because the {t} had been stolen|because of a broken {o}|"
    "because the {j}'s {a} had {v3}|because the {j}'s {x} {t} had {v3}|because {r}'s {a} {v4}|"
    "because the {s} of {l} had {v3}|because the {x} {t} had {v3} in {l}|because {r} and the "
    "{j} had {v3}|because a {x} {a} {v4}|because {r} wanted to {i}|because the {j} was to {i}"
)
_MISHAPS = phrases(
    "fallen into the pond|been sold at the market|lost a wheel|melted in the sun|been painted "
    "by mistake|died of a cold|been sent to prison|eaten too much|been forgotten at the inn|"
    "been seen by the neighbours|frozen to the ground|been bitten by a dog|torn itself loose|"
    "been promised to someone else|gone up in smoke|disappeared|sunk|burst|come back empty|"
    "been buried under the snow|stopped at noon|been pawned|made everybody laugh"
)
_DEEDS = phrases(
    "would not stop barking|had eaten the {f}|stood in the way|had climbed on the roof of the "
    "{s}|kept everyone awake|had swallowed the {t}|ran away from the {j}|bit the {j} in the "
    "leg|was never fed|had broken the {x} {t}|slept in the {s} all day|barked"
)
_PURPOSES = phrases(
    "sell the {t}|buy a {a}|find {r}|learn the {q}|visit {r}|see the {s}|become a {j}|pay "
    "the rent|look for the {t}|ask {r} for help|repair the {s}|catch a thief|write a book|"
    "bury the {t}|meet {r}|study the stars|escape from {r}|marry {r}|fetch the {j}|build a "
    "{s}|drink the waters|consult the {j}|open a shop|bring back the {t}|burn the letters|"
    "keep the secret|feed the {a}|leave the town|learn to swim|speak with the {j}|sail to "
    "{l}|walk to {l}|guard the {s}"
)
_BUILDINGS = words(
    "bridge mill barn school church tower inn theatre library stable shop castle hut"
)
_SOLIDS = words(
    "wool glass salt silk leather wood clay copper cheese wine timber lace honey iron marble "
    "straw wax bone paper tin pottery linen cider velvet oak brass amber"
)
_DANGERS = phrases(
    "thunder|wolves|drowning|the fire|the river|ghosts|the dark|a bear|robbers|the flood|"
    "spiders|dogs|the sea|a snake|the storm|the avalanche|prison|poison|the bull|the plague|"
    "heights|bees"
)
_CRIMES = phrases(
    "theft|murder|smuggling|forgery|treason|arson|stealing a {a}|poisoning the {j}|"
    "witchcraft|robbing {r}|burning the {s}|perjury|cheating at cards|spying|fraud|piracy"
)
_SUBJECTS = words(
    "law medicine botany music history geometry astronomy Latin Greek chemistry theology "
    "painting philosophy navigation drawing grammar dancing fencing geography anatomy"
)
_MONTHS = words(
    "January February March April May June July August September October November December"
)
_SEASONS = words("spring summer autumn winter")
_WEEK = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_UNITS = words(
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty "
    "ninety"
)
_MARKS = phrases("coat|hat|cloak|scarf|pair of boots|wig|gown|uniform|apron|waistcoat|shawl|mask")


def _count(rng: random.Random, digits: bool | None = None) -> str:
    if digits or (digits is None and rng.random() < 0.5):
        return str(rng.randrange(2, rng.choice([20, 100, 1000])))
    word = rng.choice(_UNITS)
    if word[-1] == "y" and rng.random() < 0.5:
        word += "-" + rng.choice(_UNITS[:8])
    return word


def _day(rng: random.Random) -> str:
    month, number = rng.choice(_MONTHS), rng.randrange(1, 29)
    suffix = "th" if 10 < number < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return rng.choice(
        [
            f"on {rng.choice(_WEEK)}",
            f"on {month} {number}",
            f"on the {number}{suffix} of {month}",
            f"on {rng.choice(_WEEK)} morning",
            f"on {rng.choice(_WEEK)} evening",
            f"in {month}",
            f"in {month} {rng.randrange(1500, 2030)}",
            f"on {number} {month} {rng.randrange(1500, 2030)}",
            f"on {month} {number}, {rng.randrange(1500, 2030)}",
            f"on the {number}{suffix} of {month} {rng.randrange(1500, 2030)}",
            f"on {rng.choice(_WEEK)} the {number}{suffix} of {month}",
            f"in {rng.randrange(1500, 2030)}",
            f"{_count(rng, False)} years ago",
            f"at {rng.choice(['Christmas', 'Easter', 'midnight', 'noon', 'dawn', 'harvest time'])}",
            f"in the {rng.choice(_SEASONS)} of {rng.randrange(1500, 2030)}",
            "after the " + rng.choice(words("funeral wedding war fair harvest storm ball trial")),
            "before " + rng.choice(words("breakfast dinner sunrise midnight supper church")),
            "during the " + rng.choice(words("feast storm concert night sermon flood holidays")),
        ]
    )


def _time(rng: random.Random) -> str:
    return rng.choice(
        [
            f"{rng.randrange(1, 13)} o'clock",
            f"{rng.choice(_UNITS[:11])} o'clock",
            f"half past {rng.choice(_UNITS[:11])}",
            f"a quarter to {rng.choice(_UNITS[:11])}",
            f"{rng.randrange(0, 24)}:{rng.randrange(0, 60):02d}",
            f"{rng.choice(_UNITS[:11])} in the {rng.choice(['morning', 'evening', 'afternoon'])}",
        ]
    )


def _money(rng: random.Random) -> str:
    coin = words("pounds dollars shillings crowns guineas ducats florins francs pence marks")
    return f"{_count(rng)} {rng.choice(coin)}"


def _group(rng: random.Random) -> str:
    kind = rng.choice(
        words(
            "Society Club Company League Order Guild School Bank University Museum Party Hospital"
        )
    )
    if rng.random() < 0.5:
        return f"the {place(rng)} {kind}"
    return f"the {kind} of {rng.choice([place(rng), rng.choice(TRADES).capitalize() + 's'])}"


def _span(rng: random.Random, units: str) -> str:
    return f"{_count(rng)} {rng.choice(units.split())}"


def _object(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.08:
        return f"the {rng.choice(THINGS)} of {surname(rng)}"
    # The length varies, and some things have invented names, so a model must find in the text where
    # the name of a thing ends.
    noun = rng.choice(THINGS) if rng.random() < 0.75 else stem(rng, rng.choice([2, 2, 3]))
    if rng.random() < 0.15:
        noun = f"{rng.choice(THINGS)}{rng.choice(['-', ' ', ''])}{noun}"
    before = [rng.choice(MATERIALS) for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3]))]
    thing = " ".join([*before, noun])
    if rng.random() < 0.1:
        thing += f" {rng.choice(['with', 'without', 'for'])} a {rng.choice(THINGS)}"
    article = ("an " if thing[0] in "aeiou" else "a ") if rng.random() < 0.4 else "the "
    return article + thing


def _fill(rng: random.Random, text: str) -> str:
    makers = {
        "t": lambda: rng.choice(THINGS),
        "b": lambda: rng.choice(words("lost broken gone stolen burnt forged empty")),
        "r": lambda: surname(rng),
        "v": lambda: rng.choice(
            phrases("gone away|fallen ill|forgotten it|written|come back|died")
        ),
        "v3": lambda: (
            rng.choice(_MISHAPS)
            + (_fill(rng, " " + rng.choice(_SPOTS)) if rng.random() < 0.3 else "")
        ),
        "v4": lambda: _fill(rng, rng.choice(_DEEDS)),
        "i": lambda: _fill(rng, rng.choice(_PURPOSES)),
        "v2": lambda: rng.choice(phrases("came|believed it|would listen|answered|had paid")),
        "s": lambda: rng.choice(_BUILDINGS),
        "w": lambda: rng.choice(words("cold long hard dark wet mild")),
        "f": lambda: rng.choice(words("bread wine coal money water oil food hay flour")),
        "a": lambda: rng.choice(_ANIMALS),
        "n": lambda: rng.choice(_UNITS[:18]),
        "o": lambda: rng.choice(THINGS),
        "q": lambda: rng.choice(_INSTRUMENTS),
        "j": lambda: rng.choice(TRADES),
        "l": lambda: place(rng),
        "x": lambda: rng.choice(ADJECTIVES[:1] + _COLOURS[:9] + MATERIALS + ["great", "small"]),
    }
    return re.sub(r"\{(\w+)\}", lambda match: makers[match.group(1)](), text)


def slot(rng: random.Random, name: str) -> str:
    """Return a value for the slot ``name`` of a template."""
    makers = {
        "P": lambda: person(rng),
        "R": lambda: person(rng),
        "L": lambda: place(rng),
        "M": lambda: place(rng),
        "O": lambda: _object(rng),
        "J": lambda: rng.choice(TRADES),
        "C": lambda: rng.choice(_COLOURS),
        "A": lambda: rng.choice(_ANIMALS),
        "A2": lambda: rng.choice(_HERDS),
        "F": lambda: rng.choice(_FOODS),
        "T": lambda: _time(rng),
        "Y": lambda: str(rng.randrange(1400, 2030)),
        "N": lambda: _count(rng),
        "N3": lambda: str(rng.randrange(2, rng.choice([50, 1000, 10000]))),
        "D": lambda: _day(rng),
        "E": lambda: _fill(rng, rng.choice(_REASONS)),
        "I": lambda: _fill(rng, rng.choice(_PURPOSES)),
        "B": lambda: _fill(rng, rng.choice(_SPOTS)),
        "B2": lambda: rng.choice(words("door house boat carriage gate fence coat hat wagon roof")),
        "X": lambda: rng.choice(
            [
                f"The {rng.choice(MATERIALS)} {rng.choice(THINGS)}".title(),
                f"The {rng.choice(TRADES)} of {place(rng)}".title(),
                f"A Journey to {place(rng)}",
            ]
        ),
        "G": lambda: _group(rng),
        "S": lambda: rng.choice(_SOLIDS),
        "V": lambda: _money(rng),
        "H": lambda: _span(rng, "miles leagues kilometres days hours"),
        "H2": lambda: _span(rng, "days weeks months years hours"),
        "Z": lambda: rng.choice(_KIN),
        "U": lambda: rng.choice(_FEELINGS),
        "Q": lambda: rng.choice(_INSTRUMENTS),
        "W": lambda: stem(rng, 2),
        "O2": lambda: f"a {rng.choice(_COLOURS[:9])} {rng.choice(_MARKS)}",
        "Dg": lambda: rng.choice(_DANGERS),
        "Su": lambda: rng.choice(_SUBJECTS),
        "Cr": lambda: _fill(rng, rng.choice(_CRIMES)),
        "O3": lambda: rng.choice(words("mayor king judge bishop president sheriff governor chief")),
        "O4": lambda: rng.choice(
            phrases("a cottage|a tent|a small house|a farm|a castle|a hut|a mill")
        ),
        "Wd": lambda: rng.choice(_WEEK),
        "Il": lambda: rng.choice(
            phrases("fever|gout|a cough|measles|toothache|a broken leg|headaches|cholera|asthma")
        ),
        "La": lambda: place(rng) + rng.choice(["ish", "ian", "ese"]),
    }
    return makers[name]()


@dataclass(frozen=True)
class Relation:
    """A block of ``templates.txt``."""

    statements: tuple[str, ...]
    questions: tuple[tuple[str, tuple[str, ...]], ...]  # answer's slot, questions
    clauses: tuple[str, ...]


@cache
def relations() -> tuple[Relation, ...]:
    """Return all relations of ``templates.txt``."""
    text = (Path(__file__).parent / "templates.txt").read_text(encoding="utf-8")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    found = []
    for block in text.strip().split("\n\n"):
        statements: tuple[str, ...] = ()
        clauses: tuple[str, ...] = ()
        questions = []
        for line in block.splitlines():
            head, _, rest = line.partition(":")
            options = tuple(option.strip() for option in rest.split(" | "))
            if head == "S":
                statements = options
            elif head == "W":
                clauses = options
            else:
                questions.append((head.split()[1], options))
        found.append(Relation(statements, tuple(questions), clauses))
    return tuple(found)


def _slots(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text))


def put(text: str, values: dict[str, str]) -> str:
    """Return ``text`` with its slots filled."""
    return re.sub(r"\{(\w+)\}", lambda match: values[match.group(1)], text)


def opening(text: str) -> str:
    return text[:1].upper() + text[1:]


def fact(
    rng: random.Random, subject: str | None = None, relation: Relation | None = None
) -> Planted:
    """Return a sentence of one relation, with every question that its slots answer."""
    chosen = relation or rng.choice(relations())
    statement = rng.choice(chosen.statements)
    names = set().union(
        *(_slots(s) for s in chosen.statements),
        *(_slots(q) for _, options in chosen.questions for q in options),
    )
    values = {name: slot(rng, name) for name in sorted(names)}
    if subject and "P" in names:
        values["P"] = subject
    given = _slots(statement)
    questions = []
    for name, options in chosen.questions:
        if name not in given:
            continue
        for option in options:
            if _slots(option) <= given:
                questions.append((opening(put(option, values)), values[name]))
    clauses = [put(c, values) for c in chosen.clauses if _slots(c) <= given]
    text = opening(put(statement, values))
    return Planted(text, questions, values.get("P", ""), clauses)


_ATTRIBUTES = (
    (
        "name nickname motto emblem height weight age symbol password language religion population "
        "leader founder owner price length depth favourite-song favourite-book best-friend "
        "first-name flag captain width number title address birthday anthem currency patron-saint "
        "author editor manager director architect speed colour taste temperature limit result "
        "winner cause purpose destination origin material meaning source headquarters mascot coach "
        "nationality occupation"
    )
    .replace("favourite-", "favourite ")
    .replace("best-friend", "best friend")
)


def _attribute(rng: random.Random) -> Planted:
    """Make a fact about an attribute ("the motto of X is Y"), of many nouns and kinds of value."""
    noun = rng.choice(_ATTRIBUTES.split()).replace("-", " ")
    owner = rng.choice([person, place, _group, _object, surname])(rng)
    number = noun in words(
        "height weight age price length depth width number speed population limit"
    )
    value = _count(rng) if number and rng.random() < 0.7 else slot(rng, rng.choice("PLCNSJVHW"))
    if number and rng.random() < 0.4:
        value += " " + rng.choice(words("feet pounds miles inches metres tons degrees people"))
    verb = rng.choice(["is", "was"])
    form = rng.choice(
        [
            "The {n} of {o} {v} {a}.",
            "The {n} of {o} {v} {a}.",
            "{o} had {a} as its {n}.",
            "{a} {v} the {n} of {o}.",
            "The {n} of {o}, {a}, was known to everyone.",
            "As for {o}, the {n} {v} {a}.",
            "{o} ({n}: {a}) was mentioned first.",
        ]
    )
    asked = [
        "What {v} the {n} of {o}?",
        "What is the {n} of {o}?",
        "What was {o}'s {n}?",
        "Which {n} does {o} have?",
        "What {n} did {o} have?",
        "Tell me the {n} of {o}.",
    ]
    values = {"n": noun, "o": owner, "v": verb, "a": value}
    back = (f"What has {value} as its {noun}?", owner)
    questions = [(opening(put(q, values)), value) for q in asked]
    if rng.random() < 0.2:
        questions.append(back)
    return Planted(opening(put(form, values)), questions, owner)


def _event(rng: random.Random) -> Planted:
    """Make an event with any verb: who did what, where and when."""
    past, base = rng.choice(_verbs())
    who, thing = person(rng), slot(rng, rng.choice(words("O O O R L G A2 F")))
    if thing.islower() and " " not in thing:
        thing = "the " + thing
    where = slot(rng, "B") if rng.random() < 0.5 else f"in {place(rng)}"
    when = slot(rng, "D") if rng.random() < 0.8 else f"at {slot(rng, 'T')}"
    why = slot(rng, "E")
    parts = {"where": where, "when": when, "why": why}
    used = [name for name in parts if rng.random() < 0.5]
    rng.shuffle(used)
    tail = "".join(" " + parts[name] for name in used)
    lead = ""
    if used and used[0] != "why" and rng.random() < 0.3:
        lead = parts[used[0]] + rng.choice([" ", ", "])
        tail = "".join(" " + parts[name] for name in used[1:])
    perfect = rng.random() < 0.15
    verb = ("had " if perfect else "") + past
    text = f"{lead}{who} {verb} {thing}{tail}."
    did, form = ("had", past) if perfect else ("did", base)
    extra = rng.choice(["", tail])
    questions = [
        (f"Who {verb} {thing}?", who),
        (f"Who {verb} {thing}{tail}?", who),
        (f"{'Whom' if thing[0].isupper() else 'What'} {did} {who} {form}?", thing),
        (f"{'Who' if thing[0].isupper() else 'What'} {did} {who} {form}{extra}?", thing),
    ]
    for name in used:
        other = " ".join(parts[n] for n in used if n != name and rng.random() < 0.4)
        asked = f"{name.capitalize()} {did} {who} {form} {thing} {other}".strip() + "?"
        questions += [(asked, parts[name])] * 2
    return Planted(opening(text), questions, who, [f"who {verb} {thing}"])


@cache
def _verbs() -> list[tuple[str, str]]:
    return [pair for pair in verbs().items() if pair[1] not in ("be", "have", "do")]


_BEFORE = phrases(
    "It is said that {s}|It was well known that {s}|I must tell you that {s}|In those days "
    "{s}|As everybody knew, {s}|They say that {s}|To be exact, {s}|It must be added that {s}|"
    "According to the newspaper, {s}|The records show that {s}|Once upon a time {s}|And so "
    "{s}|Moreover, {s}|Strange to say, {s}|It was reported that {s}|He told me that {s}|"
    "However, {s}"
)
_AFTER = phrases(
    "and nobody was surprised|as I have heard|which caused some talk|or so it was said|and "
    "that was the end of it|though few believed it|as the papers reported|after all|to the "
    "joy of the neighbours|which is worth remembering|and everyone knew it|at last"
)
_LOOKS = phrases(
    "a tall man with a grey beard|who was always late|a widow of fifty|an old friend of mine|"
    "who had never been rich|a person of few words|who had come from abroad|the youngest of "
    "seven|a quiet neighbour|whom we all liked|in spite of everything|as usual|who loved the "
    "sea"
)
_ASKED = phrases(
    "According to the text, {q}|In the text, {q}|Please tell me: {q}|Can you tell me {q}|I "
    "would like to know: {q}|From the text, {q}|Do you know {q}|Answer this: {q}"
)


def dressed(rng: random.Random, planted: Planted) -> Planted:
    """Return the same fact with words around it, so that a model cannot memorize a wording."""
    text = planted.text
    named = planted.person and planted.person in text
    if named and rng.random() < 0.12 and f"{planted.person} " in text:
        text = text.replace(f"{planted.person} ", f"{planted.person}, {rng.choice(_LOOKS)}, ", 1)
    first = text.split()[0]
    small = text[0].lower() + text[1:] if first.istitle() and first in _SMALL else text
    if rng.random() < 0.15:
        text = rng.choice(_BEFORE).replace("{s}", small)
    if text.endswith(".") and rng.random() < 0.12:
        text = f"{text[:-1]}, {rng.choice(_AFTER)}."
    if rng.random() < 0.06:
        text = (
            rng.choice(['"{t}" said {p}.', "'{t}' {p} cried.", '{p} said, "{t}"'])
            .replace("{t}", text[:-1] + ("," if rng.random() < 0.5 else "!"))
            .replace("{p}", surname(rng))
        )
    questions = planted.questions
    if rng.random() < 0.1 and not any(q.startswith("Tell") for q, _ in questions):
        form = rng.choice(_ASKED)
        questions = [(form.replace("{q}", q[0].lower() + q[1:]), a) for q, a in questions]
    elif rng.random() < 0.05:
        questions = [(q[0].lower() + q[1:], a) for q, a in questions]
    return Planted(text, questions, planted.person, planted.clauses)


_SMALL = frozenset(words("The A An In On At For It Its As By Through Every To During After Before"))


def anything(rng: random.Random, subject: str | None = None) -> Planted:
    """Make a fact of any kind, with words around it."""
    draw = rng.random()
    if subject or draw < 0.62:
        made = fact(rng, subject)
    elif draw < 0.84:
        made = _event(rng)
    else:
        made = _attribute(rng)
    if not subject and made.person and rng.random() < 0.12:
        made = _continued(rng, made)
    return dressed(rng, made)


def _continued(rng: random.Random, first: Planted) -> Planted:
    """Make two sentences about one person, who is a pronoun in the second."""
    person_of_both = first.person
    for _ in range(10):
        second = fact(rng, person_of_both)
        if second.text.startswith(f"{person_of_both} "):
            pronoun = rng.choice(["He", "She"])
            text = pronoun + second.text[len(person_of_both) :]
            asked = [(q, a) for q, a in second.questions if a != person_of_both]
            return Planted(f"{first.text} {text}", first.questions + asked, "", [])
    return first


def two_steps(rng: random.Random) -> tuple[Planted, Planted]:
    """Make two facts about one person; questions about the second refer to the person by the first.

    Such a question is "Where does the person who stole the silver key live?"
    """
    about = [r for r in relations() if r.clauses]
    for _ in range(50):
        first_relation, second_relation = rng.sample(about, 2)
        first = fact(rng, person(rng), first_relation)
        second = fact(rng, first.person, second_relation)
        if not first.clauses:
            continue
        who = rng.choice(["the person", "the one", "the man", "the woman"])
        around = f"{who} {rng.choice(first.clauses)}"
        asked = [
            (opening(q.replace(first.person, around)), a)
            for q, a in second.questions
            if first.person in q and a != first.person and f"{first.person}'s" not in q
        ]
        if asked:
            second.questions = asked
            return first, second
    raise RuntimeError("no pair of relations shares a person: templates.txt lacks W lines")
