"""Read the wording of a question: which words are marks of a count or of a part, and what it asks.

Two linear models decide, from features of words and of classes of words. One marks the tokens:
counted words, units, parts, senders. The other reads the question with a sign in place of each
mark. ``lab/wording.py`` trains both on labeled questions; docs/research/answers.md has the figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvstream.exact.linear import Weights, row_of

MARKS = ("", "words", "unit", "part", "sender")
"""What a token is; the first is none of them."""
KINDS = ("count", "first", "last", "both", "scope", "hint", "estimate", "other")
"""``first``, ``last`` and ``both`` ask for places of words. ``scope``: the question is about a part
alone; ``hint``: perhaps. ``estimate``: it asks for a number that no words count."""
CERTAIN, LIKELY = 0.65, 0.5
"""Least probabilities of a count and of a question about one part."""
WEIGHTS = Weights(
    Path(__file__).with_name("wording.int8"), len(MARKS), len(MARKS) + len(KINDS), 2**15
)
_TOKEN = re.compile(r"\w+(?:[-._@/:]\w+)*|['’]s\b|\S")
QUOTED = re.compile(r"[\"“„«`]([^\"”“»`]+)[\"”“»`]|(?<!\w)['‘]([^'’‘]+)['’](?!\w)")
_NUMBER = re.compile(
    r"[\d.,:/–-]*\d[\d.,:/–-]*|[ivxlc]+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|"
    r"twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|"
    r"fifty|hundred|(?:twenty|thirty|forty|fifty)-\w+"
)
_ORDINAL = re.compile(
    r"\d+(?:st|nd|rd|th)|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|"
    r"twelfth|opening|closing"
)
_ENDS = frozenset(("first", "last", "1st", "final"))
CLASSES = {
    "unit": "lines? rows? records? entries entry messages? msgs? e-?mails? mails? functions? "
    "methods? class class(?:es)? pages? chapters? sections? headings? parts? acts? scenes? "
    "articles? paragraphs? words?",
    "part": "volumes? parts? books? acts? chapters? letters? cantos? scenes? articles? art "
    "appendix annex lectures? sections? sec staves? stave ch chap pages? pp? lines? clauses? "
    "schedule exhibit verse stanza recital paragraph para preface foreword prologue epilogue "
    "afterword abstract introduction intro conclusions? postscript glossary discussion summary "
    "message mail e-?mail post §+",
    "text": "texts? files? documents? docs? books? novels? stor(?:y|ies) logs? logfiles? tables? "
    "csv data dataset sheet code source script module chats? conversation thread mailbox inbox "
    "archive folder reports? papers? manual contract agreement transcripts? notebooks? pdf epub "
    "notes thesis essay play poem law export dump draft manuscript corpus",
    "mention": "mention(?:s|ed|ing)? appear(?:s|ed|ing|ances?)? occur(?:s|red|ring)? "
    "occurr?en[cs]es? used? uses come comes came shows? shown turns? contain(?:s|ed|ing)? "
    "includ(?:e|es|ing) named written said says? hits? match(?:es|ing)? instances? found find "
    "stands? referenc(?:es?|ed) seen see logged printed spelled crops? pops? featur(?:es|ed) with "
    "have has",
    "person": "he she it they him her his hers its their them i you we my your our me us who "
    "someone anyone somebody anybody something nobody people",
    "ask": "how many often count number no nr times? total tally frequency frequently amount "
    "figure sum tot quantity much",
    "term": "words? terms? names? phrases? strings? expression keyword token symbol literal "
    "identifier",
}
"""Classes of words with their patterns; a word may be of several."""
_PLAIN = re.compile(
    "the|an?|this|that|these|those|in|of|on|at|to|for|from|with|by|and|or|not|is|are|was|were|be|"
    "been|do|does|did|has|have|had|what|which|where|when|why|how|who|please|pls|as|into|under|than|"
    "about|more|most|no|if|but|there|here|can|could|would|will|should|up|out|all|every|each|any|"
    "only|just|also|me|my|give|tell|show|list|explain|summarize|one"
)
"""Words that are classes of their own."""
_AROUND = tuple(
    tuple((place[0], int(place[1:])) for place in form.split())
    for form in (
        "w0", "s0", "w-1", "w1", "w-2", "w2", "w-3", "w3", "s-1", "s1", "w-1 w0", "w0 w1",
        "w-2 w-1", "w1 w2", "w-1 w1", "w-1 s0", "s0 w1", "s-1 s0 s1", "c0", "c-1", "c1", "c-2",
        "c2", "c-3", "c3", "c-1 c0", "c0 c1", "c-1 c1", "c-2 c-1", "c1 c2", "c-2 c-1 c0",
        "c0 c1 c2", "c-1 c0 c1", "c-2 c-1 c1 c2", "e0", "b0", "q0",
    )
)  # fmt: skip
"""Features of a token: words (w), shapes (s), classes (c), ends and beginnings (e, b) of words, and
quotation marks (q), at distances from it."""


@dataclass(frozen=True)
class Wording:
    """What the words of a question say."""

    kinds: Mapping[str, float]
    """The probability of each of `KINDS`."""
    marks: Mapping[str, str]
    """The text of each of `MARKS` that the question has."""


class Tokens:
    """The tokens of a question with their forms."""

    def __init__(self, text: str) -> None:
        found = [*_TOKEN.finditer(text)]
        inside = [match.span(match.lastindex or 0) for match in QUOTED.finditer(text)]
        self.spans = [match.span() for match in found]
        self.quoted = [any(a <= begin < b for a, b in inside) for begin, _ in self.spans]
        self.shapes = [_shape(match[0]) for match in found]
        self.words = [
            shape if shape in ("9", "9th", "x9") else match[0].lower()
            for match, shape in zip(found, self.shapes, strict=True)
        ]
        self.plain = [match[0].lower() for match in found]
        self.classes = [*map(_class_of, self.plain, self.shapes)]

    def features(self) -> list[list[int]]:
        """Return the rows of the features of each token."""
        shapes = [
            f"{s}{q:d}{not i}"
            for i, (s, q) in enumerate(zip(self.shapes, self.quoted, strict=True))
        ]
        forms = {
            "w": self.words,
            "s": shapes,
            "c": self.classes,
            "e": [word[-3:] for word in self.plain],
            "b": [word[:4] for word in self.plain],
            "q": [f"{quoted:d}{any(self.quoted):d}" for quoted in self.quoted],
        }
        count = len(self.spans)
        return [
            [
                row_of(number, *(
                    forms[form][at + shift] if 0 <= at + shift < count else "^$"[shift > 0]
                    for form, shift in each
                ))
                for number, each in enumerate(_AROUND)
            ]
            for at in range(count)
        ]  # fmt: skip

    def kind_features(self, marks: Sequence[int]) -> list[int]:
        """Return the rows of the features of the question, with one sign for each mark."""
        words, classes = (_signed(forms, marks) for forms in (self.words, self.classes))
        found = sorted({*marks} - {0})
        named = sum(s == "Xx" and not m for s, m in zip(self.shapes[1:], marks[1:], strict=True))
        rows = [row_of("has", found), row_of("named", min(named, 3)), row_of("begin", *words[:4])]
        rows += [row_of("long", mark, min(5, marks.count(mark))) for mark in found]
        rows += [row_of("has", found, word) for word in words[1:-1]]
        for mark, word, shape, quoted in zip(
            marks, self.plain, self.shapes, self.quoted, strict=True
        ):
            rows += [row_of("in", mark, word), row_of("in", mark, shape, quoted)] if mark else []
        for name, forms, longest in (("w", words, 3), ("c", classes, 4)):
            rows += [row_of("skip", name, *pair) for pair in zip(forms, forms[2:], strict=False)]
            for size in range(1, longest + 1):
                rows += [
                    row_of(name, *each)
                    for each in zip(*(forms[n:] for n in range(size)), strict=False)
                ]
        bag = sorted({each for each in classes if each[0] == "<"})
        rows += [row_of("bag", a, b) for at, a in enumerate(bag) for b in bag[at:]]
        return rows


def read(question: str) -> Wording:
    """Return what the words of a question say."""
    tokens = Tokens(question)
    if not tokens.spans:
        return Wording(dict.fromkeys(KINDS, 0.0), {})
    marks, _ = WEIGHTS.marked(tokens.features())
    shares = WEIGHTS.shares(tokens.kind_features(marks), len(MARKS))
    texts = {}
    for mark, name in enumerate(MARKS):
        if mark and mark in marks:
            begin = tokens.spans[marks.index(mark)][0]
            end = max(span[1] for span, own in zip(tokens.spans, marks, strict=True) if own == mark)
            texts[name] = _unbroken(question, begin, end)
    return Wording(dict(zip(KINDS, shares, strict=True)), texts)


def _unbroken(text: str, begin: int, end: int) -> str:
    """Return a stretch of a text; all of a quotation if it is part of one."""
    for match in QUOTED.finditer(text):
        a, b = match.span(match.lastindex or 0)
        if a <= begin < b or a < end <= b:
            return text[a:b]
    return text[begin:end]


def kind_of(found: Wording) -> str:
    """Return the kind of a question; one that a model does not answer only if that is certain."""
    counts = {kind: found.kinds[kind] for kind in KINDS[:4]}
    if sum(counts.values()) > CERTAIN:
        return max(counts, key=counts.__getitem__)
    if found.kinds["scope"] > LIKELY:
        return "scope"
    return max(KINDS[5:], key=found.kinds.__getitem__)


def _signed(forms: Sequence[str], marks: Sequence[int]) -> list[str]:
    """Return forms with one sign in place of each run of the same mark."""
    signed = ["^"]
    for at, (form, mark) in enumerate(zip(forms, marks, strict=True)):
        if not mark:
            signed.append(form)
        elif not at or marks[at - 1] != mark:
            signed.append(f"<{mark}>")
    return [*signed, "$"]


def _shape(word: str) -> str:
    low = word.lower()
    if low in _ENDS:
        return "end"
    if _NUMBER.fullmatch(low):
        return "9"
    if _ORDINAL.fullmatch(low):
        return "9th"
    if re.search(r"[\d_.@/:]", word):
        return "x9"
    if not word[:1].isalnum():
        return word
    if len(word) > 1 and word.isupper():
        return "XX"
    if word[:1].isupper():
        return "Xx"
    return "x" if word.isascii() else "é"


@cache
def _class_of(word: str, shape: str) -> str:
    if shape == "end" or (_PLAIN.fullmatch(word) and not any(_classes_of(word))):
        return word
    if shape in ("9", "9th", "x9", "XX"):
        return shape
    names = ",".join(_classes_of(word))
    return f"<{names}>" if names else shape


def _classes_of(word: str) -> Iterator[str]:
    for name, pattern in CLASSES.items():
        if _pattern(pattern).fullmatch(word):
            yield name


@cache
def _pattern(words: str) -> re.Pattern[str]:
    return re.compile("|".join(words.split()))
