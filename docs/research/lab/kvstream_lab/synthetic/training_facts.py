"""Facts that training plants in prose, in hundreds of wordings, with their questions.

The model `pocket` and the gates of `edgeinfinite` are trained on them. ``kvstream sample`` and the
benchmarks use other facts: `kvstream.sample.document`.

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
from kvstream_lab.synthetic.words import lists


@dataclass
class Planted:
    """One sentence (or a few) to plant in a text, with the questions about it."""

    text: str
    questions: list[tuple[str, str]]  # question, answer
    person: str = ""  # the person of the fact
    clauses: list[str] = field(default_factory=list)  # "who stole the silver key"


def stem(rng: random.Random, syllables: int) -> str:
    parts = []
    for index in range(syllables):
        parts.append(rng.choice(lists.onsets) if index or rng.random() < 0.85 else "")
        parts.append(rng.choice(lists.vowels))
        if index == syllables - 1 or rng.random() < 0.35:
            parts.append(rng.choice(lists.codas))
    return "".join(parts)


def surname(rng: random.Random) -> str:
    """Return an invented family or fantasy name such as ``Trelound``."""
    begin = stem(rng, rng.choice([1, 1, 1, 2, 2]))
    return (begin + (rng.choice(lists.person_ends) if rng.random() < 0.7 else "")).capitalize()


def person(rng: random.Random) -> str:
    """Return a person's name: an invented name alone, or with a first name or a title."""
    draw = rng.random()
    if draw < 0.4:
        return f"{rng.choice(lists.first_names)} {surname(rng)}"
    if draw < 0.62:
        return surname(rng)
    if draw < 0.8:
        return f"{rng.choice(lists.titles)} {surname(rng)}"
    if draw < 0.84:
        return f"{surname(rng)} {surname(rng)}"
    if draw < 0.88:
        middle = rng.choice(
            [surname(rng), f"{rng.choice('ABCDEFGHIJKLMNOPRSTW')}.", "van", "de la"]
        )
        return f"{rng.choice(lists.first_names)} {middle} {surname(rng)}"
    if draw < 0.95:
        return rng.choice(lists.first_names)
    return f"the {rng.choice(lists.adjectives)} {rng.choice(lists.trades)}"


def place(rng: random.Random) -> str:
    """Return an invented town or country such as ``Grelby`` or ``Upper Kneadhaven``."""
    name = (stem(rng, rng.choice([1, 1, 2])) + rng.choice(lists.place_ends)).capitalize()
    draw = rng.random()
    if draw < 0.06:
        return f"{rng.choice(['Port', 'New', 'Upper', 'Saint', 'Great', 'Lower', 'East'])} {name}"
    if draw < 0.1:
        return f"{name} {rng.choice(['Castle', 'Hall', 'Street', 'Abbey', 'Farm', 'Hill', 'Bay'])}"
    return name


def _count(rng: random.Random, digits: bool | None = None) -> str:
    if digits or (digits is None and rng.random() < 0.5):
        return str(rng.randrange(2, rng.choice([20, 100, 1000])))
    word = rng.choice(lists.units)
    if word[-1] == "y" and rng.random() < 0.5:
        word += "-" + rng.choice(lists.units[:8])
    return word


def _day(rng: random.Random) -> str:
    month, number = rng.choice(lists.months), rng.randrange(1, 29)
    suffix = "th" if 10 < number < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return rng.choice(
        [
            f"on {rng.choice(lists.week)}",
            f"on {month} {number}",
            f"on the {number}{suffix} of {month}",
            f"on {rng.choice(lists.week)} morning",
            f"on {rng.choice(lists.week)} evening",
            f"in {month}",
            f"in {month} {rng.randrange(1500, 2030)}",
            f"on {number} {month} {rng.randrange(1500, 2030)}",
            f"on {month} {number}, {rng.randrange(1500, 2030)}",
            f"on the {number}{suffix} of {month} {rng.randrange(1500, 2030)}",
            f"on {rng.choice(lists.week)} the {number}{suffix} of {month}",
            f"in {rng.randrange(1500, 2030)}",
            f"{_count(rng, False)} years ago",
            f"at {rng.choice(['Christmas', 'Easter', 'midnight', 'noon', 'dawn', 'harvest time'])}",
            f"in the {rng.choice(lists.seasons)} of {rng.randrange(1500, 2030)}",
            "after the " + rng.choice(lists.occasions_after),
            "before " + rng.choice(lists.occasions_before),
            "during the " + rng.choice(lists.occasions_during),
        ]
    )


def _time(rng: random.Random) -> str:
    return rng.choice(
        [
            f"{rng.randrange(1, 13)} o'clock",
            f"{rng.choice(lists.units[:11])} o'clock",
            f"half past {rng.choice(lists.units[:11])}",
            f"a quarter to {rng.choice(lists.units[:11])}",
            f"{rng.randrange(0, 24)}:{rng.randrange(0, 60):02d}",
            f"{rng.choice(lists.units[:11])} in the {rng.choice(lists.times_of_day)}",
        ]
    )


def _group(rng: random.Random) -> str:
    kind = rng.choice(lists.groups)
    if rng.random() < 0.5:
        return f"the {place(rng)} {kind}"
    return f"the {kind} of {rng.choice([place(rng), rng.choice(lists.trades).capitalize() + 's'])}"


def _object(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.08:
        return f"the {rng.choice(lists.things)} of {surname(rng)}"
    # The length varies, and some things have invented names, so a model must find in the text where
    # the name of a thing ends.
    noun = rng.choice(lists.things) if rng.random() < 0.75 else stem(rng, rng.choice([2, 2, 3]))
    if rng.random() < 0.15:
        noun = f"{rng.choice(lists.things)}{rng.choice(['-', ' ', ''])}{noun}"
    before = [rng.choice(lists.materials) for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3]))]
    thing = " ".join([*before, noun])
    if rng.random() < 0.1:
        thing += f" {rng.choice(['with', 'without', 'for'])} a {rng.choice(lists.things)}"
    article = ("an " if thing[0] in "aeiou" else "a ") if rng.random() < 0.4 else "the "
    return article + thing


def _fill(rng: random.Random, text: str) -> str:
    drawn = {
        "t": lists.things,
        "b": lists.gone,
        "v": lists.had_done,
        "v2": lists.nobody_did,
        "s": lists.buildings,
        "w": lists.weathers,
        "f": lists.goods,
        "a": lists.animals,
        "n": lists.units[:18],
        "o": lists.things,
        "q": lists.instruments,
        "j": lists.trades,
        "x": [*lists.adjectives[:1], *lists.colours[:9], *lists.materials, "great", "small"],
    }
    filled = {"v4": lists.deeds, "i": lists.purposes}

    def value(name: str) -> str:
        if name in drawn:
            return rng.choice(drawn[name])
        if name in filled:
            return _fill(rng, rng.choice(filled[name]))
        if name == "v3":
            mishap, where = rng.choice(lists.mishaps), rng.random() < 0.3
            return f"{mishap} {_fill(rng, rng.choice(lists.spots))}" if where else mishap
        return surname(rng) if name == "r" else place(rng)

    return re.sub(r"\{(\w+)\}", lambda match: value(match[1]), text)


_DRAWN = {
    "J": lists.trades, "C": lists.colours, "A": lists.animals, "A2": lists.herds,
    "F": lists.foods, "B2": lists.painted, "S": lists.solids, "Z": lists.kin, "U": lists.feelings,
    "Q": lists.instruments, "Dg": lists.dangers, "Su": lists.subjects, "O3": lists.offices,
    "O4": lists.dwellings, "Wd": lists.week, "Il": lists.illnesses,
}  # fmt: skip
"""Slots whose values are drawn from a list."""
_FILLED = {"E": lists.reasons, "I": lists.purposes, "B": lists.spots, "Cr": lists.crimes}
"""Slots whose values are drawn from a list, and have slots themselves."""


def slot(rng: random.Random, name: str) -> str:
    """Return a value for the slot ``name`` of a template."""
    if name in _DRAWN:
        return rng.choice(_DRAWN[name])
    if name in _FILLED:
        return _fill(rng, rng.choice(_FILLED[name]))
    makers = {
        "P": lambda: person(rng),
        "R": lambda: person(rng),
        "L": lambda: place(rng),
        "M": lambda: place(rng),
        "O": lambda: _object(rng),
        "T": lambda: _time(rng),
        "Y": lambda: str(rng.randrange(1400, 2030)),
        "N": lambda: _count(rng),
        "N3": lambda: str(rng.randrange(2, rng.choice([50, 1000, 10000]))),
        "D": lambda: _day(rng),
        "X": lambda: rng.choice(
            [
                f"The {rng.choice(lists.materials)} {rng.choice(lists.things)}".title(),
                f"The {rng.choice(lists.trades)} of {place(rng)}".title(),
                f"A Journey to {place(rng)}",
            ]
        ),
        "G": lambda: _group(rng),
        "V": lambda: f"{_count(rng)} {rng.choice(lists.coins)}",
        "H": lambda: f"{_count(rng)} {rng.choice(lists.distances)}",
        "H2": lambda: f"{_count(rng)} {rng.choice(lists.times)}",
        "W": lambda: stem(rng, 2),
        "O2": lambda: f"a {rng.choice(lists.colours[:9])} {rng.choice(lists.marks)}",
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


def _attribute(rng: random.Random) -> Planted:
    """Make a fact about an attribute ("the motto of X is Y"), of many nouns and kinds of value."""
    noun = rng.choice(lists.attributes)
    owner = rng.choice([person, place, _group, _object, surname])(rng)
    number = noun in lists.numbers
    value = _count(rng) if number and rng.random() < 0.7 else slot(rng, rng.choice("PLCNSJVHW"))
    if number and rng.random() < 0.4:
        value += " " + rng.choice(lists.measures)
    verb = rng.choice(["is", "was"])
    form = rng.choice(lists.attribute_said)
    values = {"n": noun, "o": owner, "v": verb, "a": value}
    back = (f"What has {value} as its {noun}?", owner)
    questions = [(opening(put(q, values)), value) for q in lists.attribute_asked]
    if rng.random() < 0.2:
        questions.append(back)
    return Planted(opening(put(form, values)), questions, owner)


def _event(rng: random.Random) -> Planted:
    """Make an event with any verb: who did what, where and when."""
    past, base = rng.choice(_verbs())
    who, thing = person(rng), slot(rng, rng.choice(["O", "O", "O", "R", "L", "G", "A2", "F"]))
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


def dressed(rng: random.Random, planted: Planted) -> Planted:
    """Return the same fact with words around it, so that a model cannot memorize a wording."""
    text = planted.text
    named = planted.person and planted.person in text
    if named and rng.random() < 0.12 and f"{planted.person} " in text:
        text = text.replace(
            f"{planted.person} ", f"{planted.person}, {rng.choice(lists.looks)}, ", 1
        )
    first = text.split()[0]
    small = text[0].lower() + text[1:] if first.istitle() and first in lists.small_words else text
    if rng.random() < 0.15:
        text = rng.choice(lists.said_before).replace("{s}", small)
    if text.endswith(".") and rng.random() < 0.12:
        text = f"{text[:-1]}, {rng.choice(lists.said_after)}."
    if rng.random() < 0.06:
        text = (
            rng.choice(['"{t}" said {p}.', "'{t}' {p} cried.", '{p} said, "{t}"'])
            .replace("{t}", text[:-1] + ("," if rng.random() < 0.5 else "!"))
            .replace("{p}", surname(rng))
        )
    questions = planted.questions
    if rng.random() < 0.1 and not any(q.startswith("Tell") for q, _ in questions):
        form = rng.choice(lists.asked_as)
        questions = [(form.replace("{q}", q[0].lower() + q[1:]), a) for q, a in questions]
    elif rng.random() < 0.05:
        questions = [(q[0].lower() + q[1:], a) for q, a in questions]
    return Planted(text, questions, planted.person, planted.clauses)


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
