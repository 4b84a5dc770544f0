"""Rule-based questions about ordinary sentences: who, what, whose, where, when, why, how many.

There is no parser. Clauses that start with a name or a noun phrase, followed by a known past form,
are common in prose; other clauses are ignored. Pronouns are never asked about.
"""

from __future__ import annotations

import random
import re

from kvstream_lab.synthetic.clauses import QuestionAnswer, clause_questions
from kvstream_lab.synthetic.phrases import NAME, clean, is_human, is_name, verbs

_SAYING = (
    "said|cried|asked|answered|replied|exclaimed|whispered|remarked|shouted|muttered|returned|"
    "observed"
)
_SPEAKER = re.compile(
    rf"[,!?.][\"”’'] (?:(?P<v>{_SAYING}) (?P<a>{NAME}|the [a-z]+(?: [a-z]+)?)"
    rf"|(?P<b>{NAME}) (?P<w>{_SAYING}))\b"
)


def from_sentence(sentence: str, rng: random.Random) -> list[QuestionAnswer]:
    """Return question and answer pairs that ``sentence`` alone answers; empty if no rule fits."""
    if not 20 < len(sentence) < 400:
        return []
    kept = []
    for question, answer in (
        *_speakers(sentence, rng),
        *clause_questions(sentence, rng),
        *_owners(sentence),
    ):
        answer = clean(answer)
        question = re.sub(r"\s+", " ", question).strip()
        if 1 < len(answer) < 90 and 12 < len(question) < 130 and answer in sentence:
            kept.append((question[0].upper() + question[1:], answer))
    return kept


def _speakers(sentence: str, rng: random.Random) -> list[QuestionAnswer]:
    match = _SPEAKER.search(sentence)
    if match is None:
        return []
    name = match.group("a") or match.group("b")
    name = re.sub(r" (?:with|in|to|as|at|and|who|again|[a-z]+ly|of|on|after|from)$", "", name)
    if name.startswith("the ") and not is_human(name) and len(name.split()) > 2:
        return []
    verb = match.group("v") or match.group("w")
    if name[0].isupper() and not is_name(name):
        return []
    quote = sentence[: match.start()].strip(" \n\"“'‘")
    quote = re.split(r"[\"“”]", quote)[-1].strip()
    words = quote.split()
    if len(words) < 3:
        return []
    short = clean(" ".join(words[: rng.randrange(4, 10)]))
    base = verbs().get(verb, verb)
    found = [(f'who {verb} "{short}"?', name), (f'who {verb}, "{short}"?', name)]
    if len(words) < 13:
        found.append((f"what did {name} {base}?", quote))
    return found


def _owners(sentence: str) -> list[QuestionAnswer]:
    found = []
    owned = rf"({NAME})['’]s ([a-z]+) ([a-z]+) ?([a-z]+ [a-z]+(?: [a-z]+)?)?"
    for match in re.finditer(owned, sentence):
        owner, noun, verb, more = match.groups()
        if not is_name(owner) or (verb not in verbs() and verb not in ("was", "were")):
            continue
        more = more or ""
        found.append((f"whose {noun} {verb} {more}?", owner))
    return found
