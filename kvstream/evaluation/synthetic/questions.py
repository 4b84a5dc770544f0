"""Who, what, whose, where, when, why and how many, asked by rule of ordinary sentences.

No parser: clauses that start with a name or a noun phrase and go on with a known past form are
common in prose, and those that do not fit are left alone.  Pronouns are never asked about.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

from kvstream.evaluation.synthetic.words import words

QuestionAnswer = tuple[str, str]

_TITLE = (
    r"(?:Mr|Mrs|Dr|St)\.? |(?:Miss|Lady|Lord|Sir|Captain|Colonel|Major|General|King|Queen|Prince|"
    r"Princess|Count|Aunt|Uncle|Father|Mother|Professor|Madame|Monsieur|Doctor|Old|Little|Poor|"
    r"Bishop|President|Saint|Emperor|Pope|Judge|Inspector|Master) "
)
_NAME = (
    rf"(?:(?:{_TITLE})*[A-Z][a-z]+(?:[-'’][A-Z][a-z]+)?"
    r"(?: (?:[A-Z]\. ?)?(?:(?:de|von|of|van|du) )?[A-Z][a-z]+){0,2})"
)
_NOUN_PHRASE = (
    r"(?:(?:[Tt]he|[Aa]n?|[Hh]is|[Hh]er|[Mm]y|[Oo]ur|[Tt]heir|[Oo]ne|[Ss]ome|[Tt]his|[Tt]wo|"
    r"[Tt]hree) "
    r"(?:[a-z-]+ ){0,2}?[A-Za-z-]+(?: of (?:the |his |her )?[A-Za-z]+)?)"
)
_NOT_NAMES = frozenset(
    words(
        "The A An He She It They We You I His Her My Our Their Its This That These Those There "
        "Here But And Or Nor So Yet For If When While As At In On Of To By With From After "
        "Before Then Now What Who Whom Whose Which Where Why How Not No Yes Oh Ah Well Never "
        "Ever All Some Any Each Every One Two Three Both Such Thus Still Even Only Just Perhaps "
        "Once Had Has Have Was Were Is Are Be Do Did Does Will Would Could Should Shall May "
        "Might Must Can Let Being Having Upon Nothing Something Nobody Somebody Everybody "
        "Everything Because Though Although Until Since Again Also Another Other Many Much More "
        "Most Few Soon Later Suddenly Presently Instead Indeed However Therefore Chapter "
        "Illustration Book Part Gutenberg Good God Come Go Look See Tell Say Me Him Them Us Your "
        "Please Thank O Sometimes Meanwhile Finally During Without Between Through Under Over "
        "About Into Like Among Against Around Behind"
    )
)
_HUMANS = frozenset(
    words(
        "man woman boy girl king queen prince princess child father mother brother sister son "
        "daughter husband wife servant doctor captain lady gentleman lord soldier sailor officer "
        "priest monk master mistress teacher judge lawyer farmer cook nurse maid merchant uncle "
        "aunt cousin friend people men women children boys girls fellow stranger driver coachman "
        "colonel bishop peasant hunter giant witch fisherman clerk landlord innkeeper old-man "
        "thief robber chief knight emperor baron count squire miller tailor baker shepherd widow "
        "youth baby parson vicar rector inspector detective policeman sergeant major general "
        "president guard porter butler waiter surgeon patient gentlemen waiters ladies pilgrim "
        "visitor traveller companion companions cousins brothers sisters sons daughters prisoner "
        "constable crew soldiers servants maids fairy dwarf ogre princes beggar smith cobbler "
        "peddler blacksmith wizard sorcerer mayor chancellor duke duchess countess sultan pair "
        "couple lad lass others clergyman curate banker student artist painter writer poet "
        "author professor scientist director minister governor young-man housekeeper governess "
        "neighbour neighbors guests party crowd army team"
    )
)
_PLACE_PREPOSITIONS = words(
    "in at to from into near behind under on upon through across towards inside toward "
    "beside above over by against beneath before"
)
_TIME_NOUNS = words(
    "morning evening night afternoon day days week weeks month months year years hour hours "
    "minute minutes moment spring summer autumn winter midnight noon dawn sunset sunrise "
    "daybreak dusk Christmas Easter Monday Tuesday Wednesday Thursday Friday Saturday Sunday "
    "January February March April May June July August September October November December "
    "century time dinner breakfast supper war twilight season"
)
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_WEEKDAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
_WHEN = re.compile(
    r"\b(?:(?:[Ii]n|[Oo]n|[Aa]t|[Dd]uring|[Bb]efore|[Aa]fter|[Uu]ntil|[Ss]ince|[Bb]y|[Oo]ne|[Tt]hat|"
    r"[Ee]very|[Tt]he next|[Tt]he following|[Ll]ast|[Tt]owards) "
    r"(?:the |that |a |an |this |his |her |early |late |same )*(?:[a-z]+ ){0,2}?"
    rf"(?:{'|'.join(_TIME_NOUNS)}|1\d\d\d|20\d\d|[a-z]+ o['’]clock)"
    r"(?: (?:of (?:the )?[A-Za-z0-9]+|\d{1,2}(?:, \d{4})?|\d{4}|before|after|later|ago))?"
    rf"|[Oo]n (?:{_WEEKDAYS})|(?:{_MONTHS}) \d{{1,2}}(?:, \d{{4}})?"
    r"|(?:[a-z]+ ){1,2}(?:years|days|weeks|months|hours|minutes) (?:ago|later|before|afterwards)"
    r"|at midnight|at noon|at dawn)\b"
)
_COUNTS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|"
    "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|a hundred|a thousand|a dozen|"
    r"half-a-dozen|\d{1,3}(?:,\d{3})*"
)
_ADVERBS = words(
    "also then now at once at last suddenly quickly slowly never always soon often quietly "
    "immediately presently finally first again still only once"
)
_SAYING = (
    "said|cried|asked|answered|replied|exclaimed|whispered|remarked|shouted|muttered|returned|"
    "observed"
)
_SPEAKER = re.compile(
    rf"[,!?.][\"”’'] (?:(?P<v>{_SAYING}) (?P<a>{_NAME}|the [a-z]+(?: [a-z]+)?)"
    rf"|(?P<b>{_NAME}) (?P<w>{_SAYING}))\b"
)
_PARTICIPLES = frozenset(words("been gone seen taken done given come written spoken fallen known"))
_PASSIVE = re.compile(
    r"([a-z]+ed|made|written|built|taken|given|found|seen|known|led|held|sent|told|brought|drawn|"
    r"kept) "
    r"(.*?)by ((?:the |a |an |his |her )?[A-Za-z]+(?: [A-Z][a-z]+)*)"
)
_PURPOSE = re.compile(r"((?:[A-Za-z'’-]+ ){0,6}?)((?:in order )?to ([a-z]+)(?: [a-z'’A-Z-]+){1,6})")
_DANGLING = re.compile(r" (?:the|a|an|of|to|in|his|her|with|at|and|for|by|from|on|that)$")


@cache
def verbs() -> dict[str, str]:
    """Past forms to base forms."""
    lines = (Path(__file__).parent / "verbs.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split() for line in lines if not line.startswith("#"))


_SUBJECT = re.compile(rf"^(?:And |But |Then |So |Now |Yet |For )?(?:{_NAME}|{_NOUN_PHRASE}) .+$")
_STOP = re.compile(
    r"[;:,—(]| - |--| (?:and|but|who|which|that|as|when|while|because|if|though|than|whom|where) "
)
_CUT = re.compile(
    r"[;|:]|--|—| - |(?:,|^) (?=and |but )|(?<=[a-z]) (?:and|but) (?=the |[A-Z])|\.$|[!?]$"
    r"|, (?=[A-Z])"
)
_PHRASE = (
    r"(?:the|a|an|his|her|their|its|my|your|our|this|some|any|no|every|each|all|another|"
    rf"{_COUNTS}) "
    r"(?:[A-Za-z'’-]+ ){0,3}?[A-Za-z'’-]+"
)
_OBJECT_END = re.compile(
    r" (?:in|at|to|from|into|near|behind|under|on|upon|through|across|towards|with|for|by|against|"
    r"over|about|before|after|as|out|up|down|away|off|and|or|but|who|which|that|when|while|because|"
    r"is|was|were|had|has|without|during|back|again|very|so|than|till|until|where|if|among|between)\b"
)


def _is_name(text: str) -> bool:
    return text.split()[0] not in _NOT_NAMES and text[0].isupper()


def _lower(subject: str) -> str:
    """A subject as it stands inside a question."""
    first = subject.split()[0]
    if first in _NOT_NAMES:
        return subject[0].lower() + subject[1:]
    return subject


def _clean(phrase: str) -> str:
    return phrase.strip(" ,;:.!?\"'“”‘’-—")


def _clauses(sentence: str) -> list[str]:
    text = re.sub(r"[\"“”][^\"“”]*[\"“”]?", "|", sentence)
    text = re.sub(r"[_\n]", " ", text)
    found = []
    for raw in _CUT.split(text):
        part = re.sub(
            r"^(?:and|but|then|so|that|when|while|because|for|as|if|until) ", "", raw.strip(" ,.")
        )
        part = re.sub(r"^(?:and|but|then|so) ", "", part)
        if 3 <= len(part.split()) <= 30:
            found.append(part)
    return found


def _human(subject: str) -> bool:
    words = subject.split(" of ")[0].split()
    return bool(words) and words[-1].lower() in _HUMANS


def _object(rest: str) -> str:
    """The noun phrase or name right after a verb, or nothing."""
    match = re.match(rf"(?:{_NAME}|{_PHRASE})", rest)
    if match is None:
        return ""
    text = _STOP.split(rest)[0]
    end = _OBJECT_END.search(text)
    if end is not None:
        text = text[: end.start()]
    words = text.split()
    if not 1 <= len(words) <= 6 or words[-1].endswith("ly"):
        return ""
    if words[0][0].isupper() and not _is_name(text):
        return ""
    return _clean(text)


def _where(rest: str) -> re.Match[str] | None:
    pattern = rf"\b(?:{'|'.join(_PLACE_PREPOSITIONS)}) (?:{_NAME}|{_PHRASE})"
    for match in re.finditer(pattern, rest):
        words = match.group().split()
        if len(words) > 6 or any(w in _TIME_NOUNS for w in words):
            continue
        if words[-1] in ("the", "of", "and", "his", "her") or _HUMANS & set(words):
            continue
        return match
    return None


def _complete(phrase: str, rest: str, at: int) -> str:
    """A phrase that a pattern cut short, up to where its noun phrase ends."""
    tail = rest[at + len(phrase) :]
    more = re.match(r"(?:[ '’-][a-z]+){0,3}(?: of (?:the |his |her |a )?[A-Za-z]+)?", tail)
    text = phrase + (more.group() if more else "")
    start = text.split()[0] + " "
    body = text[len(start) :]
    stop = _STOP.search(body)
    body = body[: stop.start()] if stop else body
    end = _OBJECT_END.search(body)
    return _clean(start + (body[: end.start()] if end else body))


def from_sentence(sentence: str, rng: random.Random) -> list[QuestionAnswer]:
    """Question and answer pairs that ``sentence`` alone answers; empty when no rule fits."""
    if not 20 < len(sentence) < 400:
        return []
    found: list[QuestionAnswer] = []
    found += _speakers(sentence, rng)
    for clause in _clauses(sentence):
        found += _from_clause(clause, rng)
    found += _owners(sentence)
    kept = []
    for question, answer in found:
        answer = _clean(answer)
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
    if name.startswith("the ") and not _human(name) and len(name.split()) > 2:
        return []
    verb = match.group("v") or match.group("w")
    if name[0].isupper() and not _is_name(name):
        return []
    quote = sentence[: match.start()].strip(" \n\"“'‘")
    quote = re.split(r"[\"“”]", quote)[-1].strip()
    words = quote.split()
    if len(words) < 3:
        return []
    short = _clean(" ".join(words[: rng.randrange(4, 10)]))
    base = verbs().get(verb, verb)
    found = [(f'who {verb} "{short}"?', name), (f'who {verb}, "{short}"?', name)]
    if len(words) < 13:
        found.append((f"what did {name} {base}?", quote))
    return found


def _owners(sentence: str) -> list[QuestionAnswer]:
    found = []
    owned = rf"({_NAME})['’]s ([a-z]+) ([a-z]+) ?([a-z]+ [a-z]+(?: [a-z]+)?)?"
    for match in re.finditer(owned, sentence):
        owner, noun, verb, more = match.groups()
        if not _is_name(owner) or (verb not in verbs() and verb not in ("was", "were")):
            continue
        more = more or ""
        found.append((f"whose {noun} {verb} {more}?", owner))
    return found


def _from_clause(clause: str, rng: random.Random) -> list[QuestionAnswer]:
    opening = _WHEN.match(clause)
    lead = ""
    if opening is not None and opening.end() < len(clause) - 10:
        lead = opening.group()
        clause = clause[opening.end() :].lstrip(" ,")
        clause = re.sub(r"^(?:when|that|then) ", "", clause)
    match = _SUBJECT.match(clause)
    if match is None:
        return []
    words = clause.split()
    known = verbs()
    # The subject ends where the first known past form stands.
    place = next((i for i, w in enumerate(words[:8]) if i and w in known), None)
    if place is None:
        return []
    subject = " ".join(words[:place])
    subject = re.sub(r"^(?:And|But|Then|So|Now|Yet|For) ", "", subject)
    tokens = subject.split()
    while tokens and (tokens[-1] in _ADVERBS or tokens[-1].endswith("ly")):
        tokens.pop()
    subject = " ".join(tokens)
    unfit = r"\b(?:it|he|she|they|we|you|who|which|that|not|had|I|in|to|and|is|all|there)\b"
    if not re.fullmatch(rf"{_NAME}|{_NOUN_PHRASE}", subject) or re.search(unfit, subject):
        return []
    named = subject[0].isupper() and _is_name(subject)
    phrase = re.match(_NOUN_PHRASE, subject) is not None and not named
    if not (named or phrase):
        return []
    verb, rest = words[place], " ".join(words[place + 1 :])
    who = "who" if named or _human(subject) else "what"
    inside = _lower(subject)
    cut = _STOP.split(rest)[0].strip()
    cut_words = cut.split()
    if len(cut_words) > 11:
        cut_words = cut_words[: rng.randrange(7, 12)]
        cut = _DANGLING.sub("", " ".join(cut_words))
    if re.match(r"(?:not|n't)\b", rest) or not rest:
        return []
    base = known[verb]
    found: list[QuestionAnswer] = []
    be = verb in ("was", "were")
    participle = (
        verb == "had"
        and len(cut_words) > 1
        and (cut_words[0] in known or cut_words[0] in _PARTICIPLES)
    )

    def asking(word: str, without: str = "", core: str | None = None) -> str:
        """``word did SUBJECT VERB ...`` with the answer left out of the rest."""
        body = cut if core is None else core
        if without:
            body = body.replace(without, " ")
        body = re.sub(r"\s+", " ", body).strip(" ,")
        if be:
            return f"{word} {verb} {inside} {body}?".replace(" ?", "?")
        if participle:
            return f"{word} had {inside} {body}?".replace(" ?", "?")
        return f"{word} did {inside} {base} {body}?".replace(" ?", "?")

    if len(cut_words) >= 2 or (named and cut_words):
        found.append((f"{who} {verb} {cut}?", subject))
        if len(cut_words) > 4 and rng.random() < 0.5:
            found.append((f"{who} {verb} {_DANGLING.sub('', ' '.join(cut_words[:4]))}?", subject))
    when = _WHEN.search(rest)
    if when is not None or lead:
        moment = when.group() if when is not None else lead
        body = _STOP.split(rest)[0] if when is None else _STOP.split(rest.replace(moment, " "))[0]
        if len(body.split()) < 12:
            found.append((asking("when", core=body), moment))
            if re.search(r"\b1\d\d\d\b|\b20\d\d\b", moment) and moment.lower().startswith("in "):
                found.append((asking("in what year", core=body), re.sub(r"^[Ii]n ", "", moment)))
    where = _where(rest)
    if where is not None and (where.start() < len(cut)):
        spot = _complete(where.group(), rest, where.start())
        before = rest[: where.start()].strip(" ,")
        fits = len(before.split()) < 9 and not _STOP.search(before)
        if fits and spot and spot not in (when.group() if when else ""):
            found.append((asking("where", core=before), spot))
            inner = spot.split(" ", 1)
            if len(inner) == 2 and rng.random() < 0.4:
                found.append((asking("what", core=before)[:-1] + f" {inner[0]}?", inner[1]))
    why = re.search(r"\b(?:because (?!of\b)|because of )[^,;:.]+", rest)
    if why is not None:
        before = _STOP.split(rest[: why.start()])[0].strip(" ,")
        found.append((asking("why", core=before), why.group()))
    purpose = _PURPOSE.match(cut)
    if purpose is not None and not be and purpose.group(3) in _bases():
        if purpose.group(1).strip():
            found.append((asking("why", core=purpose.group(1)), purpose.group(2)))
        else:
            found.append((f"what did {inside} {base} to do?", purpose.group(2)))
    if be:
        agent = _PASSIVE.match(cut)
        if agent is not None:
            done, more, doer = agent.groups()
            found.append((f"who {verb} {inside} {done} {more}by?", doer))
            found.append((f"by whom {verb} {inside} {done} {more}?", doer))
        elif re.match(_PHRASE, cut) and len(cut_words) < 8:
            found.append((f"{who} {verb} {inside}?", cut))
        elif len(cut_words) in (1, 2, 3) and where is None:
            found.append((f"{rng.choice(['how', 'what'])} {verb} {inside}?", cut))
    elif participle:
        thing = _object(" ".join(rest.split()[1:]))
        if thing:
            after = rest.split(thing, 1)[1]
            after = _STOP.split(after)[0]
            after = after if rng.random() < 0.6 else ""
            found.append((f"what had {inside} {cut_words[0]}{after}?", thing))
    else:
        thing = _object(rest)
        if thing:
            after = _STOP.split(rest[len(thing) :])[0]
            asked = "whom" if _is_name(thing) and thing[0].isupper() else "what"
            asked = "who" if asked == "whom" and rng.random() < 0.6 else asked
            if _human(thing) and asked == "what":
                asked = "whom" if rng.random() < 0.4 else "who"
            after = after if rng.random() < 0.6 else ""
            found.append((f"{asked} did {inside} {base}{after}?", thing))
        action = _clean(cut)
        if 1 < len(cut_words) < 12 and verb not in ("had", "did"):
            found.append((f"what did {inside} do?", f"{verb} {action}"))
            if lead or when:
                moment = lead or (when.group() if when else "")
                if moment not in action:
                    found.append((f"what did {inside} do {_lower(moment)}?", f"{verb} {action}"))
    count = re.search(rf"\b({_COUNTS}) ([a-z]+s|men|women|children|people)\b", rest)
    if count is not None and count.group(2) not in ("was", "is", "has", "this", "his"):
        body = _STOP.split(rest)[0]
        if count.group() in body:
            if be:
                found.append((f"how many {count.group(2)} {verb} {inside}?", count.group(1)))
            else:
                found.append((f"how many {count.group(2)} did {inside} {base}?", count.group(1)))
    return found


@cache
def _bases() -> frozenset[str]:
    return frozenset(verbs().values())
