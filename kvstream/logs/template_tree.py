"""Find the templates of log lines, in bounded memory.

There are three steps, each cheaper than the next:

1. A line is looked up without its digits, then without long hexadecimal numbers. Most lines equal
   an earlier one in this form.
2. Values (numbers, addresses, host names, paths, identifiers) are masked, by one pattern for all
   logs, and the masked line is looked up.
3. A fixed-depth tree finds the group of similar lines: He et al., "Drain: An Online Log Parsing
   Approach with Fixed Depth Tree", ICWS 2017. The path in the tree is the number of words and the
   first words. The most similar group of the leaf takes the line, or a new group does.

Drain has one template per group, which joins ``VM started`` and ``VM stopped``. Here a group holds
several templates: a place becomes a variable only when `variants` different words were seen there.
Templates that differ only in this place are then joined. All groups together hold at most
`capacity` templates. The least recently seen one is dropped, and its lines are added to
`TemplateTree.forgotten`, so that the sum of all counts is the number of lines.
"""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

SIMILARITY = 0.5
"""Minimum share of equal words for which a line belongs to a group."""
DEPTH = 2
"""Number of words in a path of the tree."""
VARIANTS = 6
"""Number of different words that make a place of a group a variable."""
CHILDREN = 100
"""Maximum number of branches of a node; other words share the branch ``<*>``."""
WILDCARD = "<*>"
_MARK = "\0"  # stands for a value until the line is split into words
_UNIT = r"(?:[kKMGT]i?[Bb]|[Bb]ytes?|[mun]?s|msecs?|secs?|seconds?|minutes?|hours?|days?|[kMG]?Hz)"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_TOP = (
    "com|net|org|edu|gov|mil|int|arpa|info|biz|local|lan|internal|localdomain|"
    "[a-z]{2}"  # countries
)
# A number, a date, with a unit.
_NUMBER = rf"<?[-+]?(?<![A-Za-z0-9])\d+(?:[.,:/-]\d+)*(?:\ ?{_UNIT}\b|%|\b)"
_VALUE = re.compile(
    rf"""
      \ ?\((?:\d[\d.,]*\ ?{_UNIT})\)                          # a quantity again, for people
    | (?<![A-Za-z0-9])(?:                                     # no value begins within a word
      \b(?=[A-Z\d])(?:{_DAY},?\ )?(?:{_MONTH}\ +\d\d?|\d\d?\ {_MONTH})(?:\ \d{{4}})?
      (?:\ \d\d:\d\d:\d\d)?(?:\ [A-Z]{{3,4}})?(?:\ \d{{4}})?\b  # a date
    | (?<![\w+.-])[a-z][a-z0-9+.-]*://[^\s"'<>)\]]+                     # a URL
    | (?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+                          # a mail address
    | (?<![\w/<])/(?:[\w.@+~%$:-]+/)*[\w.@+~%$-]*(?:\?[^\s"']*)?(?=[\s,:;)\]"'>]|$)  # a path
    | \b[A-Za-z]:\\[^\s"']+                                   # a path of Windows
    | \b[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}}\b  # a UUID
    | (?<![\w:])(?:[0-9a-fA-F]{{1,4}}:){{2,7}}:?[0-9a-fA-F]{{1,4}}\b    # IPv6, MAC, a time
    | \b(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?::\d+)?\b(?!\.[a-zA-Z])     # IPv4 and a port
    | (?<![\w.-])[a-zA-Z0-9_-]+(?:\.[a-zA-Z0-9_-]+)+:\d+\b       # a host and a port
    | (?<![\w.-])(?:[a-zA-Z0-9_-]+\.)+(?:{_TOP})\b(?![\w.(:])                     # a host
    | \b0[xX][0-9a-fA-F]+\b
    | {_NUMBER}
    | \b(?=[a-fA-F]*\d)[0-9a-fA-F]{{8,}}\b                    # a digest
      )
    | (?=[-+<]){_NUMBER}
    """,
    re.VERBOSE,
)
_EMPTY = re.compile(r"(?<=\s)\(\)|(?<==)(?=[\s,;]|$)")  # an empty value in brackets or after "="
_TOKEN = re.compile(r"[^\s=:,;()\[\]{}\"'<>|]+")
_OPENING = {")": "(", "]": "[", "}": "{", ">": "<"}
_DIGIT = re.compile(r"\d")
_DIGITS = b"0123456789"
_LONG_HEX = re.compile(rb"[0-9a-f\0-]{12,}")
_LIST = re.compile(r"\0(?:(?:,\s?)?\0)+")
_SIGN = 0xF0000  # private characters, each of which stands for a value or for a separator in a list
_SIGN_MARK = re.compile("[\U000f0000-\U000f0fff]")
_SIGN_LIST = re.compile("[\U000f0000-\U000f0fff](?:(?:,\\s?)?[\U000f0000-\U000f0fff])+")
LONGEST = 4096
"""Maximum number of characters of a line that are used."""
MOST_WORDS = 256
"""Maximum number of words of a line that are used."""


class Template:
    """The common form of lines."""

    def __init__(self, group: _Group, words: tuple[str, ...]) -> None:
        self.group = group
        self.words = words
        """Words of the template; ``<*>`` where lines differ."""
        self.count = 0
        self.heir: Template | None = None
        """The template that took over the lines of this one; itself if this one was dropped."""
        self.data: Any = None


class _Group:
    """A group of similar lines: the words that were seen in each place, and the templates."""

    def __init__(self, path: tuple[str, ...], words: list[str], number: int) -> None:
        self.path = path
        self.number = number
        """Order in which groups were created, from 0."""
        self.first = tuple(words)
        """The words of the first line."""
        self.words = list(words)
        """The same with ``<*>`` in the places of variables."""
        self.sets = [{word} for word in words]
        """Words seen in each place."""
        self.templates: dict[tuple[str, ...], Template] = {}

    def key(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the words with ``<*>`` in the places of variables."""
        return tuple(
            WILDCARD if own == WILDCARD else word
            for own, word in zip(self.words, words, strict=True)
        )

    def similarity(self, words: list[str]) -> float:
        """Return the share of the words that match, from 0 to 1."""
        same = sum(own in (word, WILDCARD) for own, word in zip(self.words, words, strict=True))
        return same / len(words) if words else 1.0


class TemplateTree:
    """Finds the template of each line, and holds at most `capacity` of them.

    `on_evict` gets a template that is dropped, `on_join` one and another whose lines it takes over.
    `split` returns what separates templates (such as a level) and the message; `name` a component.
    """

    def __init__(
        self,
        *,
        capacity: int = 4096,
        on_evict: Callable[[Template], None] = lambda template: None,
        on_join: Callable[[Template, Template], None] = lambda into, old: None,
        split: Callable[[str], tuple[str, str]] = lambda line: ("", line),
        name: Callable[[str], str | None] = lambda line: None,
    ) -> None:
        self.capacity = capacity
        self.on_evict, self.on_join, self.split, self.name = on_evict, on_join, split, name
        self.forgotten = 0
        """Number of lines of dropped templates."""
        self._next = 0
        self._groups: defaultdict[tuple[Any, ...], dict[int, _Group]] = defaultdict(dict)
        """Groups by path and (place, word) of their first line, or (place, ``<*>``): a log of
        random words has thousands of groups, and a line is similar to few of them."""
        self._branches: dict[tuple[str, ...], set[str]] = {}
        self._recent: OrderedDict[Template, None] = OrderedDict()
        self._cache: OrderedDict[bytes, tuple[Template, str | None]] = OrderedDict()
        self._by_mask: OrderedDict[tuple[str, str], Template] = OrderedDict()
        self._has_hex = False
        """Whether the last line had a long hexadecimal number: then the next one probably has."""

    def __iter__(self) -> Iterator[Template]:
        return iter(self._recent)

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, line: str) -> Template:
        """Count a line (without its time) and return its template."""
        return self.add_named(line)[0]

    def add_named(self, line: str) -> tuple[Template, str | None]:
        """Count a line, and return its template and the component that wrote it."""
        raw = line[:LONGEST].encode("utf-8", "replace")
        if self._has_hex:
            self._has_hex = len(raw) > len(raw := _LONG_HEX.sub(b"", raw))
        key = raw.translate(None, _DIGITS)
        pair = self._cache.get(key)
        if pair is None or pair[0].heir is not None:
            short = key if self._has_hex else _LONG_HEX.sub(b"", raw).translate(None, _DIGITS)
            if len(key) != len(short):
                pair = self._cache.get(short)
                self._has_hex = True
            if pair is None or pair[0].heir is not None:
                pair = self._cache[short] = self._look_up(line), self.name(line)
            if len(self._cache) > 8 * self.capacity:
                self._cache.popitem(last=False)
        template, name = pair
        template.count += 1
        self._recent.move_to_end(template)
        if name is not None and _DIGIT.search(name):  # lines of this form have other digits
            name = self.name(line)
        return template, name

    def _look_up(self, line: str) -> Template:
        apart, message = self.split(line)
        text = mask(message)
        key = (apart, text)
        template = self._by_mask.get(key)
        if template is None or template.heir is not None:
            template = self._by_mask[key] = self._find(apart, words_of(text))
            if len(self._by_mask) > 8 * self.capacity:
                self._by_mask.popitem(last=False)
        return template

    def _find(self, apart: str, words: list[str]) -> Template:
        path = self._descend(apart, words)
        group = self._like(path, words)
        if group is not None:
            self._widen(group, words)
        else:
            group = _Group(path, words, self._next)
            self._next += 1
            for place in _places(words):
                self._groups[path, place][group.number] = group
        key = group.key(words)
        template = group.templates.get(key)
        if template is None:
            template = group.templates[key] = Template(group, key)
            self._recent[template] = None
            if len(self._recent) > self.capacity:
                self._evict()
        return template

    def _like(self, path: tuple[str, ...], words: list[str]) -> _Group | None:
        """Return the most similar group, the oldest of equals; None if no group is similar."""
        own = ({(at, word), (at, WILDCARD)} for at, word in _places(words))
        having = [[self._groups.get((path, place), {}) for place in places] for places in own]
        # Of any `most` places, a similar group has the word of one: take those with few groups.
        having.sort(key=lambda some: sum(map(len, some)))
        most = int((1 - SIMILARITY) * len(words)) + 1
        near = dict(chain.from_iterable(g.items() for some in having[:most] for g in some))
        fits = ((group.similarity(words), -number) for number, group in near.items())
        best, number = max(fits, default=(-1.0, 0))
        return near[-number] if best >= SIMILARITY else None

    def _widen(self, group: _Group, words: list[str]) -> None:
        """Note new words. If a place becomes a variable, join templates that no longer differ."""
        became = False
        for place, (word, own, some) in enumerate(zip(words, group.words, group.sets, strict=True)):
            if own != WILDCARD:
                some.add(word)
                if len(some) >= VARIANTS or word == WILDCARD:
                    group.words[place] = WILDCARD
                    self._groups[group.path, (place, WILDCARD)][group.number] = group
                    became = True
        if not became:
            return
        old, group.templates = group.templates, {}
        for template in old.values():
            template.words = group.key(template.words)
            into = group.templates.setdefault(template.words, template)
            if into is not template:
                into.count += template.count
                self.on_join(into, template)
                template.heir = into
                template.data = None
                del self._recent[template]

    def _descend(self, apart: str, words: list[str]) -> tuple[str, ...]:
        path: tuple[str, ...] = (apart, str(len(words)))
        for word in words[:DEPTH]:
            if WILDCARD in word or _DIGIT.search(word):
                word = WILDCARD
            children = self._branches.setdefault(path, set())
            if word not in children:
                if len(children) >= CHILDREN:
                    word = WILDCARD
                else:
                    children.add(word)
            path = (*path, word)
        return path

    def _evict(self) -> None:
        """Drop the least recently seen template."""
        old, _ = self._recent.popitem(last=False)
        group = old.group
        del group.templates[old.words]
        places = () if group.templates else {*_places(group.first), *_places(group.words)}
        for place in places:
            having = self._groups[group.path, place]
            having.pop(group.number, None)
            if not having:
                del self._groups[group.path, place]
        old.heir = old  # the caches must not find it
        self.forgotten += old.count
        self.on_evict(old)


def _places(words: Sequence[str]) -> list[tuple[int, str]]:
    """Return the words with their places; lines without words have one variable."""
    return [*enumerate(words or (WILDCARD,))]


def _plain(message: str) -> str:
    """Return the used part of a message, without the characters that stand for values here."""
    text = message[:LONGEST].replace(_MARK, " ")
    return text if text.isascii() else _SIGN_MARK.sub(" ", text)


def mask(message: str) -> str:
    """Return the message with NUL in place of everything that looks like a value."""
    text = _VALUE.sub(_MARK, _plain(message))
    return _LIST.sub(_MARK, _EMPTY.sub(_MARK, text))


def values_of(message: str) -> list[str]:
    """Return each word with the values as written, and the text before them that `mask` takes."""
    texts: list[str] = []

    def keep(match: re.Match[str]) -> str:
        texts.append(match.group())
        return chr(_SIGN + len(texts) - 1)

    def join(match: re.Match[str]) -> str:
        return re.sub("[, ]", keep, match.group())

    def restore(match: re.Match[str]) -> str:
        return texts[ord(match.group()) - _SIGN]

    text = _EMPTY.sub(_MARK, _SIGN_LIST.sub(join, _VALUE.sub(keep, _plain(message))))
    form = text if text.isascii() else _SIGN_MARK.sub(_MARK, text)
    values = []
    for start, end, _ in _spans(form):
        end += _closes(form, start, end)
        values.append(_SIGN_MARK.sub(restore, text[start:end]).replace(_MARK, "").rstrip())
    return values


def _spans(form: str, most: int | None = MOST_WORDS) -> list[tuple[int, int, bool]]:
    """Return start and end of each word, and whether it is a value; adjacent values are one."""
    spans: list[tuple[int, int, bool]] = []
    for match in islice(_TOKEN.finditer(form), most):
        is_value = not match.group().strip(_MARK) or _DIGIT.search(match.group()) is not None
        if is_value and spans and spans[-1][2]:
            spans[-1] = spans[-1][0], match.end(), True
        else:
            spans.append((*match.span(), is_value))
    return spans


def _closes(form: str, start: int, end: int) -> bool:
    """Return whether a bracket that opens between the values of a word closes behind it."""
    opening = _OPENING.get(form[end : end + 1])
    return opening is not None and opening in form[start:end]


def pieces(message: str, words: Sequence[str]) -> tuple[list[tuple[str, str]], str]:
    """Split a line into (text before a word, word of the template) pairs and the rest."""
    form = mask(message)
    parts: list[tuple[str, str]] = []
    at, closes = 0, False
    for (start, end, _), word in zip(_spans(form, None), words, strict=False):
        parts.append((form[at + closes : start], word))
        at, closes = end, _closes(form, start, end)
    return parts, form[at:]


def display(message: str, words: Sequence[str]) -> str:
    """Return a template for display, with the punctuation of a line and ``<*>`` for variables."""
    parts, tail = pieces(message, words)
    return ("".join(gap + word for gap, word in parts) + tail).replace(_MARK, WILDCARD)


class ValueReader:
    """Finds values by the text between them, in a tenth of the time of `values_of`."""

    def __init__(self, message: str, words: Sequence[str]) -> None:
        parts, tail = pieces(message, words)
        text = "".join(gap.replace(_MARK, WILDCARD) + word for gap, word in parts) + tail
        self._first, *between = text.replace(_MARK, WILDCARD).rstrip().split(WILDCARD)
        self._words: list[tuple[int, str, list[str]]] = []
        """For each word with values: index of its first value, text before it and after each."""
        marks = 0
        for gap, word in parts:
            marks += gap.count(_MARK)
            before, *behind = word.split(WILDCARD)
            if behind:
                self._words.append((marks, before, behind))
            marks += len(behind)
        marks += tail.count(_MARK)
        self._between = between
        self._plain = len(self._words) == marks and all(w[1:] == ("", [""]) for w in self._words)
        """Whether each value is a whole word."""

    def read(self, message: str) -> list[str] | None:
        """Return the values of a line; None if the text between them differs."""
        if not message.startswith(self._first):
            return None
        values: list[str] = []
        at = len(self._first)
        for text in self._between:
            end = message.find(text, at) if text else len(message)
            if end < 0:
                return None
            values.append(message[at:end].rstrip())
            at = end + len(text)
        if message[at:].strip():
            return None
        if self._plain:
            return values
        words = []
        for first, before, behind in self._words:
            for place, text in enumerate(behind, first):
                before += values[place] + text
            words.append(before)
        return words


def words_of(form: str) -> list[str]:
    """Return the words of a masked message, at most MOST_WORDS; adjacent values are one word."""
    return [
        WILDCARD if is_value else form[start:end].replace(_MARK, WILDCARD)
        for start, end, is_value in _spans(form)
    ]
