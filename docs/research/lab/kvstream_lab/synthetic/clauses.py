"""Questions about a clause that starts with a subject, followed by a known past form."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache, cached_property

from kvstream_lab.synthetic.phrases import (
    COUNTS,
    NAME,
    NOUN_PHRASE,
    PHRASE,
    STOP,
    WHEN,
    clean,
    complete,
    inside,
    is_human,
    is_name,
    object_of,
    place_in,
    verbs,
)
from kvstream_lab.synthetic.words import lists

QuestionAnswer = tuple[str, str]

_ADVERBS, _PARTICIPLES = frozenset(lists.adverbs), frozenset(lists.participles)
_PASSIVE = re.compile(
    r"([a-z]+ed|made|written|built|taken|given|found|seen|known|led|held|sent|told|brought|drawn|"
    r"kept) "
    r"(.*?)by ((?:the |a |an |his |her )?[A-Za-z]+(?: [A-Z][a-z]+)*)"
)
_PURPOSE = re.compile(r"((?:[A-Za-z'’-]+ ){0,6}?)((?:in order )?to ([a-z]+)(?: [a-z'’A-Z-]+){1,6})")
_DANGLING = re.compile(r" (?:the|a|an|of|to|in|his|her|with|at|and|for|by|from|on|that)$")
_SUBJECT = re.compile(rf"^(?:And |But |Then |So |Now |Yet |For )?(?:{NAME}|{NOUN_PHRASE}) .+$")
_CUT = re.compile(
    r"[;|:]|--|—| - |(?:,|^) (?=and |but )|(?<=[a-z]) (?:and|but) (?=the |[A-Z])|\.$|[!?]$"
    r"|, (?=[A-Z])"
)
_UNFIT = re.compile(
    r"\b(?:it|he|she|they|we|you|who|which|that|not|had|I|in|to|and|is|all|there)\b"
)
_COUNTED = re.compile(rf"\b({COUNTS}) ([a-z]+s|men|women|children|people)\b")
_REASON = re.compile(r"\b(?:because (?!of\b)|because of )[^,;:.]+")
_YEAR = re.compile(r"[Ii]n .*(?:\b1\d\d\d\b|\b20\d\d\b)")


def clause_questions(sentence: str, rng: random.Random) -> list[QuestionAnswer]:
    """Return the questions about each clause of a sentence, with their answers."""
    found: list[QuestionAnswer] = []
    for text in _clauses(sentence):
        clause = Clause.parse(text, rng)
        if clause is not None:
            found += clause.questions(rng)
    return found


def _clauses(sentence: str) -> list[str]:
    """Return the clauses of 3 to 30 words in a sentence, without quotations and conjunctions."""
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


@dataclass(frozen=True)
class Clause:
    """Subject, verb and rest of a clause."""

    subject: str
    named: bool
    """Whether the subject is a name; otherwise it is a noun phrase."""
    verb: str
    """A past form."""
    rest: str
    """Everything after the verb."""
    cut: str
    """The rest up to the next clause, at most 11 words."""
    lead: str
    """The time of the event, if the clause begins with it."""

    @classmethod
    def parse(cls, text: str, rng: random.Random) -> Clause | None:
        """Split a clause into its parts; return None if no rule fits."""
        lead = ""
        opening = WHEN.match(text)
        if opening is not None and opening.end() < len(text) - 10:
            lead = opening.group()
            text = text[opening.end() :].lstrip(" ,")
            text = re.sub(r"^(?:when|that|then) ", "", text)
        if _SUBJECT.match(text) is None:
            return None
        parts = text.split()
        # The subject ends at the first known past form.
        place = next((i for i, w in enumerate(parts[:8]) if i and w in verbs()), None)
        if place is None:
            return None
        subject = _subject(parts[:place])
        if not re.fullmatch(rf"{NAME}|{NOUN_PHRASE}", subject) or _UNFIT.search(subject):
            return None
        named = subject[0].isupper() and is_name(subject)
        if not named and re.match(NOUN_PHRASE, subject) is None:
            return None
        rest = " ".join(parts[place + 1 :])
        cut = STOP.split(rest)[0].strip()
        if len(cut.split()) > 11:
            cut = _DANGLING.sub("", " ".join(cut.split()[: rng.randrange(7, 12)]))
        if not rest or re.match(r"(?:not|n't)\b", rest):
            return None
        return cls(subject, named, parts[place], rest, cut, lead)

    def questions(self, rng: random.Random) -> list[QuestionAnswer]:
        """Return questions with their answers, in the words of the clause."""
        # This order determines the random choices.
        return [
            *self._who(rng),
            *self._when(),
            *self._where(rng),
            *self._why(),
            *self._what(rng),
            *self._how_many(),
        ]

    @cached_property
    def _words(self) -> list[str]:
        return self.cut.split()

    @property
    def _who_or_what(self) -> str:
        return "who" if self.named or is_human(self.subject) else "what"

    @property
    def _inside(self) -> str:
        return inside(self.subject)

    @property
    def _base(self) -> str:
        return verbs()[self.verb]

    @property
    def _be(self) -> bool:
        return self.verb in ("was", "were")

    @property
    def _participle(self) -> bool:
        """Whether the verb is in the past perfect."""
        first = self._words[0] if len(self._words) > 1 else ""
        return self.verb == "had" and (first in verbs() or first in _PARTICIPLES)

    @cached_property
    def _moment(self) -> str:
        """The time of the event, if it comes after the verb."""
        found = WHEN.search(self.rest)
        return "" if found is None else found.group()

    @cached_property
    def _place(self) -> re.Match[str] | None:
        return place_in(self.rest)

    def _asked(self, word: str, body: str) -> str:
        """Return ``word did SUBJECT VERB BODY?``, with the auxiliary that the verb needs."""
        body = re.sub(r"\s+", " ", body).strip(" ,")
        if self._be:
            start = f"{word} {self.verb} {self._inside}"
        elif self._participle:
            start = f"{word} had {self._inside}"
        else:
            start = f"{word} did {self._inside} {self._base}"
        return f"{start} {body}?".replace(" ?", "?")

    def _who(self, rng: random.Random) -> list[QuestionAnswer]:
        who, verb, count = self._who_or_what, self.verb, len(self._words)
        if count < 2 and not (self.named and count):
            return []
        found = [(f"{who} {verb} {self.cut}?", self.subject)]
        if count > 4 and rng.random() < 0.5:
            short = _DANGLING.sub("", " ".join(self._words[:4]))
            found.append((f"{who} {verb} {short}?", self.subject))
        return found

    def _when(self) -> list[QuestionAnswer]:
        moment = self._moment or self.lead
        if not moment:
            return []
        rest = self.rest.replace(moment, " ") if self._moment else self.rest
        body = STOP.split(rest)[0]
        if len(body.split()) >= 12:
            return []
        found = [(self._asked("when", body), moment)]
        if _YEAR.match(moment):
            found.append((self._asked("in what year", body), re.sub(r"^[Ii]n ", "", moment)))
        return found

    def _where(self, rng: random.Random) -> list[QuestionAnswer]:
        match = self._place
        if match is None or match.start() >= len(self.cut):
            return []
        place = complete(match.group(), self.rest, match.start())
        before = self.rest[: match.start()].strip(" ,")
        if len(before.split()) >= 9 or STOP.search(before) or not place or place in self._moment:
            return []
        found = [(self._asked("where", before), place)]
        preposition, _, noun = place.partition(" ")
        if noun and rng.random() < 0.4:
            found.append((f"{self._asked('what', before)[:-1]} {preposition}?", noun))
        return found

    def _why(self) -> list[QuestionAnswer]:
        found = []
        reason = _REASON.search(self.rest)
        if reason is not None:
            before = STOP.split(self.rest[: reason.start()])[0]
            found.append((self._asked("why", before), reason.group()))
        purpose = _PURPOSE.match(self.cut)
        if purpose is not None and not self._be and purpose.group(3) in _bases():
            before, aim = purpose.group(1, 2)
            asked = f"what did {self._inside} {self._base} to do?"
            found.append((self._asked("why", before) if before.strip() else asked, aim))
        return found

    def _what(self, rng: random.Random) -> list[QuestionAnswer]:
        if self._be:
            return self._state(rng)
        if self._participle:
            return self._done_before(rng)
        return [*self._object(rng), *self._action()]

    def _state(self, rng: random.Random) -> list[QuestionAnswer]:
        """Ask about ``was`` and ``were``."""
        verb, subject = self.verb, self._inside
        agent = _PASSIVE.match(self.cut)
        if agent is not None:
            done, more, doer = agent.groups()
            return [
                (f"who {verb} {subject} {done} {more}by?", doer),
                (f"by whom {verb} {subject} {done} {more}?", doer),
            ]
        if re.match(PHRASE, self.cut) and len(self._words) < 8:
            return [(f"{self._who_or_what} {verb} {subject}?", self.cut)]
        if len(self._words) in (1, 2, 3) and self._place is None:
            return [(f"{rng.choice(['how', 'what'])} {verb} {subject}?", self.cut)]
        return []

    def _done_before(self, rng: random.Random) -> list[QuestionAnswer]:
        """Ask about ``had`` and a participle."""
        thing = object_of(" ".join(self.rest.split()[1:]))
        if not thing:
            return []
        after = STOP.split(self.rest.split(thing, 1)[1])[0]
        after = after if rng.random() < 0.6 else ""
        return [(f"what had {self._inside} {self._words[0]}{after}?", thing)]

    def _object(self, rng: random.Random) -> list[QuestionAnswer]:
        thing = object_of(self.rest)
        if not thing:
            return []
        after = STOP.split(self.rest[len(thing) :])[0]
        asked = "whom" if is_name(thing) and thing[0].isupper() else "what"
        asked = "who" if asked == "whom" and rng.random() < 0.6 else asked
        if is_human(thing) and asked == "what":
            asked = "whom" if rng.random() < 0.4 else "who"
        after = after if rng.random() < 0.6 else ""
        return [(f"{asked} did {self._inside} {self._base}{after}?", thing)]

    def _action(self) -> list[QuestionAnswer]:
        if not 1 < len(self._words) < 12 or self.verb in ("had", "did"):
            return []
        action = clean(self.cut)
        answer, asked = f"{self.verb} {action}", f"what did {self._inside} do"
        found = [(f"{asked}?", answer)]
        moment = self.lead or self._moment
        if moment and moment not in action:
            found.append((f"{asked} {inside(moment)}?", answer))
        return found

    def _how_many(self) -> list[QuestionAnswer]:
        count = _COUNTED.search(self.rest)
        if count is None or count.group(2) in ("was", "is", "has", "this", "his"):
            return []
        if count.group() not in STOP.split(self.rest)[0]:
            return []
        verb, base = (self.verb, "") if self._be else ("did", f" {self._base}")
        return [(f"how many {count.group(2)} {verb} {self._inside}{base}?", count.group(1))]


def _subject(parts: list[str]) -> str:
    """Return the words before the verb without a leading conjunction and adverbs at the end."""
    subject = re.sub(r"^(?:And|But|Then|So|Now|Yet|For) ", "", " ".join(parts)).split()
    while subject and (subject[-1] in _ADVERBS or subject[-1].endswith("ly")):
        subject.pop()
    return " ".join(subject)


@cache
def _bases() -> frozenset[str]:
    return frozenset(verbs().values())
