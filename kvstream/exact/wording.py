"""Read the wording of a question: which words are marks of a count or of a part, and what it asks.

Two linear models decide, from features of words and of classes of words. A linear-chain conditional
random field (Lafferty et al. 2001) marks the tokens: counted words, units, parts, senders. The
other reads the question with a sign in place of each mark. ``lab/wording.py`` trains both on
labeled questions; docs/research/answers.md has the figures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import exp
from pathlib import Path
from zlib import crc32

MARKS = ("", "words", "unit", "part", "sender")
"""What a token is; the first is none of them."""
KINDS = ("count", "first", "last", "both", "scope", "hint", "estimate", "other")
"""``first``, ``last`` and ``both`` ask for places of words. ``scope``: the question is about a part
alone; ``hint``: perhaps. ``estimate``: it asks for a number that no words count."""
CERTAIN, LIKELY = 0.65, 0.5
"""Least probabilities of a count and of a question about one part."""
STEP = 1 / 32
"""The weight of one unit of the table."""
_TOKEN = re.compile(r"\w+(?:[-._@/:]\w+)*|['’]s\b|\S")
QUOTE = re.compile(r"[\"“„«`]([^\"”“»`]+)[\"”“»`]|(?<!\w)['‘]([^'’‘]+)['’](?!\w)")
WORDS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).replace(" ", "|")
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".replace(" ", "|")
ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth last"
).replace(" ", "|")
_SHAPES = {
    "end": "first|last|1st|final",
    "9": rf"[\d.,:/–-]*\d[\d.,:/–-]*|[ivxlc]+|{WORDS}|thirty|forty|fifty|hundred|"
    r"(?:twenty|thirty|forty|fifty)-\w+",
    "9th": rf"\d+(?:st|nd|rd|th)|{'|'.join(ORDINALS.split('|')[1:12])}|opening|closing",
}
"""Shapes of words, with the patterns of these in lower case."""
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


class Weights:
    """The int8 weights: the transitions between marks, then rows that features share by their hash.

    A row has a column for each mark of a token, and behind these one for each kind of a question.
    """

    file = Path(__file__).with_name("wording.int8")
    marks, columns, rows = len(MARKS), len(MARKS) + len(KINDS), 2**15

    @cached_property
    def data(self) -> memoryview:
        """The content of the file."""
        return memoryview(self.file.read_bytes()).cast("b")

    def score(self, rows: Sequence[int], column: int) -> float:
        """Return the sum of the weights of features in a column."""
        data, begin, width, count = self.data, self.marks**2 + column, self.columns, self.rows
        return STEP * sum(data[begin + row % count * width] for row in rows)

    def shares(self, rows: Sequence[int]) -> dict[str, float]:
        """Return the probability of each of `KINDS`."""
        sums = [self.score(rows, column) for column in range(self.marks, self.columns)]
        parts = [exp(each - max(sums)) for each in sums]
        return {kind: part / sum(parts) for kind, part in zip(KINDS, parts, strict=True)}

    def marks_of(self, features: Sequence[Sequence[int]]) -> list[int]:
        """Return the likeliest marks of all tokens (Viterbi)."""
        numbers = range(self.marks)
        sums, *others = ([self.score(rows, mark) for mark in numbers] for rows in features)
        steps = [[self.data[a * self.marks + b] * STEP for a in numbers] for b in numbers]
        before: list[list[int]] = []
        for own in others:
            best = [max(numbers, key=lambda a: sums[a] + steps[b][a]) for b in numbers]
            sums = [sums[a] + steps[b][a] + own[b] for b, a in enumerate(best)]
            before.append(best)
        marks = [max(numbers, key=sums.__getitem__)]
        for best in reversed(before):
            marks.append(best[marks[-1]])
        return marks[::-1]


WEIGHTS = Weights()


def row_of(*feature: object) -> int:
    """Return the row of the weights of a feature, in a table that is large enough."""
    return crc32(repr(feature).encode())


@dataclass(frozen=True)
class Wording:
    """What the words of a question say."""

    kinds: Mapping[str, float]
    """The probability of each of `KINDS`."""
    marks: Mapping[str, str]
    """The text of each of `MARKS` that the question has."""

    @property
    def kind(self) -> str:
        """The kind of the question; one that a model does not answer only if that is certain."""
        counts = {kind: self.kinds[kind] for kind in KINDS[:4]}
        if sum(counts.values()) > CERTAIN:
            return max(counts, key=counts.__getitem__)
        if self.kinds["scope"] > LIKELY:
            return "scope"
        return max(KINDS[5:], key=self.kinds.__getitem__)


class Tokens:
    """The tokens of a question with their forms."""

    def __init__(self, text: str) -> None:
        matches = [*_TOKEN.finditer(text)]
        inside = [match.span(match.lastindex or 0) for match in QUOTE.finditer(text)]
        self.spans = [match.span() for match in matches]
        self.quoted = [any(a <= begin < b for a, b in inside) for begin, _ in self.spans]
        self.shapes = [_shape(match[0]) for match in matches]
        self.words = [
            shape if shape in ("9", "9th", "x9") else match[0].lower()
            for match, shape in zip(matches, self.shapes, strict=True)
        ]
        self.plain = [match[0].lower() for match in matches]
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
        words, classes = (_with_signs(forms, marks) for forms in (self.words, self.classes))
        some = sorted({*marks} - {0})
        names = sum(s == "Xx" and not m for s, m in zip(self.shapes[1:], marks[1:], strict=True))
        rows = [row_of("has", some), row_of("named", min(names, 3)), row_of("begin", *words[:4])]
        rows += [row_of("long", mark, min(5, marks.count(mark))) for mark in some]
        rows += [row_of("has", some, word) for word in words[1:-1]]
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
    marks = WEIGHTS.marks_of(tokens.features())
    texts = {}
    for mark in {*marks} - {0}:
        spans = [span for span, own in zip(tokens.spans, marks, strict=True) if own == mark]
        texts[MARKS[mark]] = _unbroken(question, spans[0][0], spans[-1][1])
    return Wording(WEIGHTS.shares(tokens.kind_features(marks)), texts)


def _unbroken(text: str, begin: int, end: int) -> str:
    """Return a stretch of a text; all of a quotation if it is part of one."""
    for match in QUOTE.finditer(text):
        a, b = match.span(match.lastindex or 0)
        if a <= begin < b or a < end <= b:
            return text[a:b]
    return text[begin:end]


def _with_signs(forms: Sequence[str], marks: Sequence[int]) -> list[str]:
    """Return forms with one sign in place of each run of the same mark."""
    out = ["^"]
    for at, (form, mark) in enumerate(zip(forms, marks, strict=True)):
        if not mark:
            out.append(form)
        elif not at or marks[at - 1] != mark:
            out.append(f"<{mark}>")
    return [*out, "$"]


def _shape(word: str) -> str:
    for shape, pattern in _SHAPES.items():
        if _pattern(pattern).fullmatch(word.lower()):
            return shape
    if re.search(r"[\d_.@/:]", word):
        return "x9"
    if not word[:1].isalnum():
        return word
    if word[:1].isupper():
        return "XX" if len(word) > 1 and word.isupper() else "Xx"
    return "x" if word.isascii() else "é"


@cache
def _class_of(word: str, shape: str) -> str:
    names = [n for n, words in CLASSES.items() if _pattern(words.replace(" ", "|")).fullmatch(word)]
    if shape == "end" or (_PLAIN.fullmatch(word) and not names):
        return word
    if shape in ("9", "9th", "x9", "XX"):
        return shape
    return f"<{','.join(names)}>" if names else shape


_pattern = cache(re.compile)
