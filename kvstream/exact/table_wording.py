"""Read the wording of a question about a table: its operation, its columns, and its conditions.

Three linear models decide, from words and from what the words are in the table: names of columns,
values of the first rows. The first marks the words; the second finds the column of each mark; the
third reads the question with signs in place of the marks and chooses the operation.
``lab/table_wording.py`` trains them on labeled questions; docs/research/answers.md has the figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from zlib import crc32

from kvstream.exact.linear import Weights, row_of, softmax
from kvstream.exact.table_questions import Sample
from kvstream.exact.table_words import FILLERS, loose, singular, words_of
from kvstream.exact.wording import Tokens

MARKS = ("", "f", "s", "g", "r", "c", "=", "!", ">", "<", "G", "L", "~", "y", "n", "e")
"""What a token is: nothing, words for the column of figures (f), for the one that is shown (s) or
makes groups (g), for the rows (r) or the column of a condition (c); a value and its relation, with
G for at least, L for at most, ~ for a part; a column that says yes (y), no (n), nothing (e)."""
VALUES = frozenset("=!><GL~")
OPERATIONS = ("count", "distinct", "list", "sum", "mean", "median", "max", "min", "sum>", "sum<",
              "mean>", "mean<", "count>", "count<", "other")  # fmt: skip
"""What is computed; with > or <: the group with the largest or smallest of it."""
VOCABULARY = 2**16
"""Bits for the words that the models know, behind the weights."""
WEIGHTS = Weights(
    Path(__file__).with_name("table_wording.int8"),
    len(MARKS),
    len(MARKS) + 1 + len(OPERATIONS),
    2**17,
)
"""The columns: marks, the score of a column of a table, operations."""
ALIKE = 0.85
"""How alike words are of which one has a typing error."""
NEVER = 20.0
"""What a column that cannot be meant loses of its score."""
LONGEST = 6
"""Words of a value or a column."""
PAIRED = 0.8
"""Least weight of words with those of a column that they name and do not share."""
CLASSES = {
    word: sign
    for sign, words in {
        "more": "more greater larger bigger higher longer older heavier taller later over above "
        "exceeding after beyond newer wider faster warmer dearer upwards plus",
        "less": "less fewer smaller lower shorter younger lighter earlier cheaper below under "
        "before slower colder narrower",
        "max": "largest highest biggest greatest latest maximum maximal max most best longest "
        "tallest heaviest widest priciest dearest costliest slowest hottest "
        "warmest deepest top peak record strongest richest busiest last",
        "min": "smallest lowest earliest minimum minimal min least fewest poorest worst shortest "
        "lightest narrowest cheapest fastest quickest coldest weakest first",
        "sum": "sum total totals altogether together combined totally summed overall",
        "mean": "mean average avg averages averaged typical typically avarage",
        "no": "not no non never without except excluding outside other besides but isn't aren't "
        "wasn't weren't don't doesn't didn't hasn't haven't isnt arent wasnt didnt",
        "different": "different distinct unique kinds sorts types separate various",
        "by": "per by each every",
    }.items()
    for word in words.split()
}
"""Classes of words. What is oldest has the largest age and the smallest year: it is of none."""
_NO = re.compile(r"not|no|non|never|but|without|except|excluding|outside|other|besides|\w*n['’]?t")
_AROUND = tuple(
    tuple((place[0], int(place[1:])) for place in form.split())
    for form in (
        "w0", "w-1", "w1", "w-2", "w2", "w-3", "w3", "w-1 w0", "w0 w1", "w-1 w1", "w-2 w-1",
        "w1 w2", "w-2 w-1 w0", "w-1 w0 w1", "g0", "g-1", "g1", "g-2", "g2", "g-1 g0", "g0 g1",
        "g-1 g1", "g-2 g-1", "g1 g2", "g-1 g0 g1", "g-2 g-1 g0", "w0 g0", "w-1 g0", "g0 w1",
        "w-2 g0", "g0 w2", "w-2 w-1 g0", "g0 w1 w2", "w-1 g0 w1", "g-1 w0", "w0 g1", "g-1 w0 g1",
        "s0", "s-1", "s1", "s0 g0", "w-1 s0", "e0", "e0 g0", "e-1", "k0", "k-1", "k1", "k-1 k0 k1",
        "k-2 k-1 k0", "w-1 k0", "w-1 k0 w1", "c0", "c-1", "c1", "c-1 c0", "c-2 c-1", "c-2 c-1 k0",
        "c-1 k0", "k0 c1", "k0 c1 c2", "c-3 c-2 c-1",
    )
)  # fmt: skip
"""Features of a token: words (w), their endings (e) and shapes (s), what they are in the table (g),
roughly (k), and classes (c), at distances from it."""


@dataclass(frozen=True)
class Span:
    """Marked words of a question."""

    mark: str
    text: str
    begin: int
    """Their place in the question."""
    first: int
    """The place of their first token; `last`: of the last."""
    last: int


Mark = tuple[Span, int | None, float]
"""Marked words, their column, and the probability of that."""


class Columns:
    """The columns of a table, as words may mean them."""

    def __init__(self, header: Sequence[str], sample: Sample) -> None:
        self.header, self.sample = header, sample
        self.names = [words_of(name) for name in header]
        self.stems = [{*map(stem, name)} for name in self.names]
        self.kinds = [*map(self._kind, range(len(header)))]

    @cached_property
    def parts(self) -> list[list[str]]:
        """The words of each name that the models know. (Training knows them after the tables.)"""
        return [[*filter(is_known, name)] for name in self.names]

    def _kind(self, column: int) -> str:
        sample = self.sample
        for kind, some in (("b", sample.flags), ("d", sample.dates), ("n", sample.figures),
                           ("i", sample.numeric), ("t", sample.shared)):  # fmt: skip
            if column in some:
                return kind
        return "u"

    def named(self, phrase: str) -> tuple[list[int], list[int]]:
        """Return the columns with exactly the words of a phrase, and those that have them all."""
        asked = words_of(phrase)
        exact = [c for c, name in enumerate(self.names) if name == asked]
        return exact, [c for c, name in enumerate(self.names) if asked and {*asked} <= {*name}]

    def near(self, word: str) -> list[int]:
        """Return the columns with a word of the same stem, or one that is written almost so."""
        short = stem(word)
        some = [c for c, own in enumerate(self.stems) if len(word) > 2 and short in own]
        if not some and len(word) > 5 and not is_known(word):
            parts = [(part, c) for c, name in enumerate(self.names) for part in name]
            like = get_close_matches(word, [part for part, _ in parts], 1, ALIKE)
            some = [c for part, c in parts if part in like]
        return some

    def means(self, phrase: str, column: int) -> bool:
        """Return whether a phrase names a column: by a stem, or as questions of training did."""
        if {*map(stem, words_of(phrase))} & self.stems[column]:
            return True
        rows = [row_of("c", *each) for each in self.pairs(known_words(phrase), column)]
        return WEIGHTS.score(rows, len(MARKS)) >= PAIRED

    def pairs(self, words: Sequence[str], column: int) -> list[tuple[str, str, str]]:
        """Return the features of known words beside those of the name of a column."""
        return [("pair", singular(word), part) for word in words for part in self.parts[column]]


class Question(Tokens):
    """The tokens of a question with what they are in a table."""

    def __init__(self, text: str, table: Columns) -> None:
        super().__init__(text)
        self.text, self.table = text, table
        self.singular = [*map(singular, self.plain)]
        self.as_columns, self.as_values = self._named()
        places = range(len(self.spans))
        self.grounds = [self._column_sign(at) + self._value_sign(at) for at in places]
        self.classed = [
            CLASSES.get(word, "9" if shape in ("9", "x9") else "V" if value else ground[0])
            for word, shape, value, ground in zip(
                self.plain, self.shapes, self.as_values, self.grounds, strict=True
            )
        ]
        self.known = [
            word if self.shapes[at] in ("9", "9th", "x9") or is_known(word) else self._unknown(at)
            for at, word in enumerate(self.words)
        ]

    def _unknown(self, at: int) -> str:
        return f"<{self.shapes[at][:2]}{self.plain[at][-2:] * (self.shapes[at] == 'x')}>"

    def _named(self) -> tuple[list[tuple[str, list[int]]], list[list[int]]]:
        """Return for each token how it names columns, and the columns with its value."""
        count, table = len(self.spans), self.table
        columns: list[tuple[str, list[int]]] = [("", []) for _ in range(count)]
        values: list[list[int]] = [[] for _ in range(count)]
        for size in range(min(LONGEST, count), 0, -1):
            for at in range(count - size + 1):
                phrase = self.phrase(at, at + size - 1)
                whole = range(at, at + size)
                edges = {self.plain[at], self.plain[at + size - 1]}
                found = table.sample.values.get(loose(phrase)) if phrase[-1:].isalnum() else None
                if found and not any(values[place] for place in whole):
                    for place in whole:
                        values[place] = [*found]
                if size > 1 and edges & FILLERS:
                    continue
                exact, having = table.named(phrase) if phrase[:1].isalnum() else ([], [])
                if exact or (having and size > 1):
                    for place in whole:
                        old = columns[place]
                        columns[place] = old if old[0] else ("EM"[not exact], exact or having)
        for at, word in enumerate(self.singular):
            if not columns[at][0] and word[:1].isalnum():
                some = [c for c, name in enumerate(table.names) if word in name]
                near = table.near(word)
                columns[at] = ("P", some) if some else ("R", near) if near else ("", [])
        return columns, values

    def phrase(self, first: int, last: int) -> str:
        """Return the text from one token to another."""
        return self.text[self.spans[first][0] : self.spans[last][1]]

    def _column_sign(self, at: int) -> str:
        how, some = self.as_columns[at]
        if not some:
            about = self.singular[at] in self.table.sample.about
            return "A" if about else "-"
        kinds = {self.table.kinds[c] for c in some}
        return f"{how}{kinds.pop() if len(kinds) == 1 else '?'}{'+' * (len(some) > 1)}"

    def _value_sign(self, at: int) -> str:
        if not (some := self.as_values[at]):
            return ""
        kinds = {self.table.kinds[c] for c in some}
        return f"V{kinds.pop() if len(kinds) == 1 else '?'}{'+' * (len(some) > 1)}"

    def features(self) -> list[list[int]]:
        """Return the rows of the features of each token."""
        shapes = [
            f"{s}{q:d}{not i}"
            for i, (s, q) in enumerate(zip(self.shapes, self.quoted, strict=True))
        ]
        rough = [
            ("V" if "V" in g else g[0]) if g != "-" else {"9": "9", "x9": "9"}.get(s, w)
            for g, s, w in zip(self.grounds, self.shapes, self.known, strict=True)
        ]
        forms = {"w": self.known, "s": shapes, "g": self.grounds, "k": rough, "c": self.classed,
                 "e": [word[-3:] for word in self.plain]}  # fmt: skip
        count = len(self.spans)
        begin = ("begin", *self.known[:2])
        every = []
        for at in range(count):
            rows = [
                row_of("t", number, *(
                    forms[form][at + shift] if 0 <= at + shift < count else "^$"[shift > 0]
                    for form, shift in each
                ))
                for number, each in enumerate(_AROUND)
            ]  # fmt: skip
            rows.append(row_of("t", *begin, self.grounds[at][:2]))
            no = [w for w in self.plain[max(0, at - 5) : at] if _NO.fullmatch(w)]
            rows.append(row_of("t", "no", bool(no), rough[at]))
            if self.grounds[at] not in ("-", "A") or self.shapes[at] == "9":
                own = self.grounds[at][:1]
                rows += [row_of("t", "all", own, w, n > at) for n, w in enumerate(self.known)]
            rows += [row_of("t", "pair", *pair) for pair in self._pairs(at)]
            every.append(rows)
        return every

    def _pairs(self, at: int) -> Iterator[tuple[str, str, str]]:
        """Yield the word with each known word of the columns, and the kind of the column."""
        word = self.singular[at]
        if is_known(self.plain[at]) and self.shapes[at] == "x":
            for parts, kind in zip(self.table.parts, self.table.kinds, strict=True):
                for own in parts:
                    yield word, own, kind

    def column_features(self, span: Span, spans: Sequence[Span]) -> list[list[int]]:
        """Return the rows of the features of each column, as that of a mark among all marks."""
        table, mark, value = self.table, span.mark, span.mark in VALUES
        near, every_near = self._around(span, spans)
        own = words_of(span.text)
        own_stems = {*map(stem, own)}
        exact, having = table.named(span.text)
        held = table.sample.values.get(loose(span.text), {})
        text = next((c for c, kind in enumerate(table.kinds) if kind in "ut"), 0)
        apart = not any(own_stems & some for some in table.stems)
        words = known_words(span.text)
        beside = [
            (shift, at)
            for shift in (-2, -1, 1, 2)
            for at in [span.first + shift if shift < 0 else span.last + shift]
            if 0 <= at < len(self.known)
        ]
        every = []
        for column, (name, kind) in enumerate(zip(table.names, table.kinds, strict=True)):
            stems, parts = table.stems[column], table.parts[column]
            features: list[tuple[object, ...]] = [
                ("kind", mark, kind), ("kind", value, kind, min(table.kinds.count(kind), 2)),
                ("number", mark, kind, self.shapes[span.first], self.shapes[span.last]),
                ("place", mark, kind, column == text, column == table.kinds.index(kind)),
            ]  # fmt: skip
            if value:
                features += [
                    ("value", mark in "=!", column in held, len(held) > 1, bool(held)),
                    ("near", column in near, column in every_near),
                    ("near", mark, kind, column in near),
                ]
            else:
                same = bool(own_stems & stems)
                features += [
                    ("exact", column in exact, len(exact) > 1),
                    ("all", column in having, len(having)),
                    ("some", len({*own} & {*name}), same),
                    ("share", column in having, kind, mark), ("none", apart, kind, mark),
                ]  # fmt: skip
                features += [("word", word, mark, kind, same) for word in words]
                features += table.pairs(words, column)
            for shift, at in beside:
                word = self.known[at]
                same = self.singular[at] in name or stem(self.singular[at]) in stems
                features += [("by", mark, shift, word, kind), ("same", value, shift, same)]
                if is_known(word):
                    features += [("close", singular(word), part) for part in parts]
            every.append([row_of("c", *each) for each in features])
        return every

    def operation_features(self, spans: Sequence[Span], columns: Sequence[int | None]) -> list[int]:
        """Return the rows of the features of the question, with a sign in place of each mark."""
        signed, signs = [*self.known], []
        inside: list[tuple[object, ...]] = []
        for span, column in zip(spans, columns, strict=True):
            kind = self.table.kinds[column] if column is not None else "-"
            signs.append(f"<{span.mark}{kind}>")
            signed[span.first] = signs[-1]
            inside.append(("in", span.mark, *self.shapes[span.first : span.first + 1]))
            for at in range(span.first, span.last + 1):
                if span.mark not in VALUES and is_known(self.plain[at]):
                    inside.append(("in", span.mark, self.plain[at]))
                if span.mark in "fsg" and self.plain[at] in CLASSES:
                    inside.append(("class", span.mark, CLASSES[self.plain[at]]))
                if span.mark not in VALUES and is_known(self.plain[at]):
                    own = self.table.names[column] if column is not None else ()
                    inside += [("in", span.mark, self.plain[at], word) for word in own]
            for at in range(span.first + 1, span.last + 1):
                signed[at] = ""
        whole = ["^", *filter(None, signed), "$"]
        classes = [CLASSES.get(word, word if word[0] == "<" else "-") for word in whole]
        said = sorted(
            {c for c in classes if c != "-" and c[0] != "<"}
            | {str(each[-1]) for each in inside if each[0] == "class"}
        )
        marks = "".join(sorted(span.mark for span in spans))
        own_columns = [column for column in columns if column is not None]
        fit = len({*own_columns}) == len(own_columns)
        features: list[tuple[object, ...]] = [
            ("marks", marks), ("signs", *sorted(signs)), ("begin", *whole[1:4]),
            ("begin", *whole[1:3]), ("fit", fit), ("long", len(whole) // 4),
        ]  # fmt: skip
        loose_grounds = [
            g
            for at, g in enumerate(self.grounds)
            if signed[at] and signed[at][0] != "<" and g != "-"
        ]
        features += [("left", g[:2]) for g in loose_grounds] + [("lefts", len(loose_grounds))]
        odd = [w for w in whole if w[0] == "<" and w not in signs]
        features += [("odd", min(3, len(odd)))]
        for size in (1, 2, 3):
            features += [
                ("w", *each) for each in zip(*(whole[n:] for n in range(size)), strict=False)
            ]
            short = [word for word in classes if word != "-"]
            features += [
                ("c", *each) for each in zip(*(short[n:] for n in range(size)), strict=False)
            ]
        features += [("said", *said), ("said", marks, *said), ("said", *said, *whole[1:3])]
        features += [("skip", a, b) for a, b in zip(whole, whole[2:], strict=False)]
        bag = sorted({*whole[1:-1]})
        features += [("bag", a, b) for n, a in enumerate(bag) for b in bag[n + 1 :]]
        features += [("marks", marks, w) for w in bag] + inside
        return [row_of("o", *each) for each in features]

    def spans_of(self, marks: Sequence[int], *, negated: bool = True) -> list[Span]:
        """Return the stretches of equal marks. `negated`: a negation before one turns it round."""
        spans: list[Span] = []
        at = 0
        while at < len(marks):
            end = at
            while end + 1 < len(marks) and marks[end + 1] == marks[at]:
                end += 1
            if mark := MARKS[marks[at]]:
                before = spans[-1].last + 1 if spans else 0
                no = any(map(_NO.fullmatch, self.plain[max(before, at - 5) : at]))
                mark = {"=": "!", "y": "n"}.get(mark, mark) if no and negated else mark
                spans.append(Span(mark, self.phrase(at, end), self.spans[at][0], at, end))
            at = end + 1
        return spans

    def read(self) -> tuple[list[Mark], float]:
        """Return the marks with their likeliest columns, and the probability of all of it."""
        marks, share = WEIGHTS.marked(self.features())
        spans = self.spans_of(marks)
        every = [(s, *c) for s, c in zip(spans, self.columns_of(spans), strict=True)]
        single = [
            each for each in every
            if each[0].mark not in "fsg" or all(
                each[2] >= other[2] for other in every if other[0].mark == each[0].mark
            )
        ]  # fmt: skip
        return single, share * min((each for *_, each in single), default=1.0)

    def columns_of(self, spans: Sequence[Span]) -> list[tuple[int | None, float]]:
        """Return the likeliest column of each mark, and its probability. Rows have none."""
        found: list[tuple[int | None, float]] = []
        every = [() if span.mark == "r" else self.column_scores(span, spans) for span in spans]
        for span, scores in zip(spans, every, strict=True):
            for other, own in zip(spans, every, strict=True):
                if {span.mark, other.mark} in ({"G", "L"}, {">", "<"}):  # two ends of a span
                    scores = [a + b for a, b in zip(scores, own, strict=True)]
            shares = softmax(scores)
            best = max(range(len(shares)), key=shares.__getitem__, default=None)
            held = self.table.sample.values.get(loose(span.text), {})
            alike = held if span.mark in VALUES else self.table.named(span.text)[1]
            some = alike if best in alike else () if best is None else (best,)
            found.append((best, sum(shares[column] for column in some) if some else 1.0))
        return found

    def column_scores(self, span: Span, spans: Sequence[Span]) -> list[float]:
        """Return the score of each column for a mark."""
        return [
            WEIGHTS.score(rows, len(MARKS)) - NEVER * (not self._may_be(span, column))
            for column, rows in enumerate(self.column_features(span, spans))
        ]

    def _may_be(self, span: Span, column: int) -> bool:
        """Return whether a column has what a mark needs: numbers, dates, or yes and no."""
        kind, text = self.table.kinds[column], span.text
        if span.mark in "yn":
            return kind == "b"
        dated = re.fullmatch(r"(?:1[5-9]|20)\d\d(?:-\d\d){0,2}", text) is not None
        if span.mark in "><GL":
            return kind in ("nid" if dated and "-" not in text else "d" if dated else "ni")
        return kind != "d" or dated if span.mark in "=!" else True

    def _around(self, span: Span, spans: Sequence[Span]) -> tuple[set[int], set[int]]:
        """Return the columns that the nearest mark of a condition's column names, and all marks."""
        named = {
            other: {c for at in range(other.first, other.last + 1) for c in self.as_columns[at][1]}
            for other in spans
            if other.mark not in VALUES
        }
        beside = [other for other in named if other.mark == "c"]
        nearest = min(beside, key=lambda o: abs(o.begin - span.begin), default=None)
        return named[nearest] if nearest else set(), set().union(*named.values())


def known_words(text: str) -> list[str]:
    """Return the words of a text that the models know, in small letters."""
    return [*filter(is_known, map(str.lower, re.findall(r"\w+", text)))]


def is_known(word: str) -> bool:
    """Return whether the models were trained with a word in several tables."""
    return all(
        WEIGHTS.data[WEIGHTS.size + place // 8] & 0xFF & (1 << place % 8)
        for place in (crc32(word.encode(), salt) % VOCABULARY for salt in (0, 1))
    )


def stem(word: str) -> str:
    """Return a word without the endings of verbs, adverbs and nouns made of verbs."""
    short = re.sub(r"(?:ing|ed|ers?|ors?|ly|ity|ion|es|s|e)$", "", word)
    return short if len(short) > 2 else word
