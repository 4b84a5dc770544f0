"""Names, noun phrases, places and times in English prose, found with patterns."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from kvstream_lab.synthetic.words import lists

_TITLE = (
    r"(?:Mr|Mrs|Dr|St)\.? |(?:Miss|Lady|Lord|Sir|Captain|Colonel|Major|General|King|Queen|Prince|"
    r"Princess|Count|Aunt|Uncle|Father|Mother|Professor|Madame|Monsieur|Doctor|Old|Little|Poor|"
    r"Bishop|President|Saint|Emperor|Pope|Judge|Inspector|Master) "
)
NAME = (
    rf"(?:(?:{_TITLE})*[A-Z][a-z]+(?:[-'’][A-Z][a-z]+)?"
    r"(?: (?:[A-Z]\. ?)?(?:(?:de|von|of|van|du) )?[A-Z][a-z]+){0,2})"
)
NOUN_PHRASE = (
    r"(?:(?:[Tt]he|[Aa]n?|[Hh]is|[Hh]er|[Mm]y|[Oo]ur|[Tt]heir|[Oo]ne|[Ss]ome|[Tt]his|[Tt]wo|"
    r"[Tt]hree) "
    r"(?:[a-z-]+ ){0,2}?[A-Za-z-]+(?: of (?:the |his |her )?[A-Za-z]+)?)"
)
_NOT_NAMES, _HUMANS = frozenset(lists.not_names), frozenset(lists.humans)
_MONTHS, _WEEKDAYS = "|".join(lists.months), "|".join(lists.week)
WHEN = re.compile(
    r"\b(?:(?:[Ii]n|[Oo]n|[Aa]t|[Dd]uring|[Bb]efore|[Aa]fter|[Uu]ntil|[Ss]ince|[Bb]y|[Oo]ne|[Tt]hat|"
    r"[Ee]very|[Tt]he next|[Tt]he following|[Ll]ast|[Tt]owards) "
    r"(?:the |that |a |an |this |his |her |early |late |same )*(?:[a-z]+ ){0,2}?"
    rf"(?:{'|'.join(lists.time_nouns)}|1\d\d\d|20\d\d|[a-z]+ o['’]clock)"
    r"(?: (?:of (?:the )?[A-Za-z0-9]+|\d{1,2}(?:, \d{4})?|\d{4}|before|after|later|ago))?"
    rf"|[Oo]n (?:{_WEEKDAYS})|(?:{_MONTHS}) \d{{1,2}}(?:, \d{{4}})?"
    r"|(?:[a-z]+ ){1,2}(?:years|days|weeks|months|hours|minutes) (?:ago|later|before|afterwards)"
    r"|at midnight|at noon|at dawn)\b"
)
COUNTS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|"
    "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|a hundred|a thousand|a dozen|"
    r"half-a-dozen|\d{1,3}(?:,\d{3})*"
)
STOP = re.compile(
    r"[;:,—(]| - |--| (?:and|but|who|which|that|as|when|while|because|if|though|than|whom|where) "
)
PHRASE = (
    r"(?:the|a|an|his|her|their|its|my|your|our|this|some|any|no|every|each|all|another|"
    rf"{COUNTS}) "
    r"(?:[A-Za-z'’-]+ ){0,3}?[A-Za-z'’-]+"
)
_OBJECT_END = re.compile(
    r" (?:in|at|to|from|into|near|behind|under|on|upon|through|across|towards|with|for|by|against|"
    r"over|about|before|after|as|out|up|down|away|off|and|or|but|who|which|that|when|while|because|"
    r"is|was|were|had|has|without|during|back|again|very|so|than|till|until|where|if|among|between)\b"
)


@cache
def verbs() -> dict[str, str]:
    """Return the map from past forms to base forms."""
    lines = (Path(__file__).parent / "verbs.txt").read_text(encoding="utf-8").splitlines()
    listed = ", ".join(line for line in lines if not line.startswith("#"))
    return dict(pair.split() for pair in listed.split(", "))


def is_name(text: str) -> bool:
    """Return whether a phrase starts with a capital letter for another reason than its position."""
    return text.split()[0] not in _NOT_NAMES and text[0].isupper()


def inside(subject: str) -> str:
    """Return a subject as written inside a question."""
    first = subject.split()[0]
    if first in _NOT_NAMES:
        return subject[0].lower() + subject[1:]
    return subject


def clean(phrase: str) -> str:
    """Return a phrase without punctuation around it."""
    return phrase.strip(" ,;:.!?\"'“”‘’-—")


def is_human(subject: str) -> bool:
    """Return whether the head of a noun phrase is a word for a person."""
    words = subject.split(" of ")[0].split()
    return bool(words) and words[-1].lower() in _HUMANS


def object_of(rest: str) -> str:
    """Return the noun phrase or name right after a verb; an empty string if there is none."""
    match = re.match(rf"(?:{NAME}|{PHRASE})", rest)
    if match is None:
        return ""
    text = STOP.split(rest)[0]
    end = _OBJECT_END.search(text)
    if end is not None:
        text = text[: end.start()]
    words = text.split()
    if not 1 <= len(words) <= 6 or words[-1].endswith("ly"):
        return ""
    if words[0][0].isupper() and not is_name(text):
        return ""
    return clean(text)


def place_in(rest: str) -> re.Match[str] | None:
    """Return the first phrase that says where something is; None if there is none."""
    pattern = rf"\b(?:{'|'.join(lists.place_prepositions)}) (?:{NAME}|{PHRASE})"
    for match in re.finditer(pattern, rest):
        words = match.group().split()
        if len(words) > 6 or any(w in lists.time_nouns for w in words):
            continue
        if words[-1] in ("the", "of", "and", "his", "her") or _HUMANS & set(words):
            continue
        return match
    return None


def complete(phrase: str, rest: str, at: int) -> str:
    """Extend a phrase that a pattern cut short to the end of its noun phrase."""
    tail = rest[at + len(phrase) :]
    more = re.match(r"(?:[ '’-][a-z]+){0,3}(?: of (?:the |his |her |a )?[A-Za-z]+)?", tail)
    text = phrase + (more.group() if more else "")
    start = text.split()[0] + " "
    body = text[len(start) :]
    stop = STOP.search(body)
    body = body[: stop.start()] if stop else body
    end = _OBJECT_END.search(body)
    return clean(start + (body[: end.start()] if end else body))
