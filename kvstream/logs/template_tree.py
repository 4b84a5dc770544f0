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
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
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
_HEX = bytes.maketrans(b"0123456789abcdef-", b"\0" * 17)
_LONG_HEX = b"\0" * 12
_LIST = re.compile(r"\0(?:(?:,\s?)?\0)+")
_KEPT, _MOST_KEPT = 0xF0000, 4094  # private characters, each of which stands for a value
_COMMA, _SPACE = "\U000f0ffe", "\U000f0fff"  # and for the separators of the values of a list
_KEPT_MARK = re.compile("[\U000f0000-\U000f0fff]")
_KEPT_LIST = re.compile("[\U000f0000-\U000f0fff](?:(?:,\\s?)?[\U000f0000-\U000f0fff])+")
LONGEST = 4096
"""Maximum number of characters of a line that are used."""
MOST_WORDS = 256
"""Maximum number of words of a line that are used."""


class Template:
    """The common form of lines."""

    def __init__(self, group: _Group, key: tuple[str, ...]) -> None:
        self.group = group
        self.key = key
        self.words = key
        """Words of the template; ``<*>`` where lines differ."""
        self.count = 0
        self.joined: Template | None = None
        """The template that took over the lines of this one; itself if this one was dropped."""
        self.data: Any = None


class _Group:
    """A group of similar lines: the words that were seen in each place, and the templates."""

    def __init__(self, path: tuple[str, ...], words: list[str], number: int) -> None:
        self.path = path
        self.number = number
        """Order in which groups were created, from 0."""
        self.begun = tuple(words)
        """The words of the first line."""
        self.words = list(words)
        self.seen: list[set[str] | None] = [None if w == WILDCARD else {w} for w in words]
        """Words seen in each place; None for a variable."""
        self.templates: dict[tuple[str, ...], Template] = {}

    def key(self, words: list[str]) -> tuple[str, ...]:
        """Return the words with ``<*>`` in the places of variables."""
        return tuple(
            WILDCARD if seen is None else w for w, seen in zip(words, self.seen, strict=True)
        )

    def similarity(self, words: list[str]) -> float:
        """Return the share of the words that match, from 0 to 1."""
        same = 0
        for mine, theirs in zip(self.words, words, strict=True):
            if mine in (theirs, WILDCARD):
                same += 1
        return same / len(words) if words else 1.0


class _Leaf:
    """Groups of lines of one length, indexed by their words: a log of random words has thousands of
    groups, and a line is similar to few of them."""

    def __init__(self) -> None:
        self.groups: dict[int, _Group] = {}
        self._by_word: dict[tuple[int, str], dict[int, _Group]] = {}
        self.open: dict[int, _Group] = {}
        """Groups with variables, to which a line with none of their words may belong."""

    def add(self, group: _Group) -> None:
        """Add a new group."""
        self.groups[group.number] = group
        for place in enumerate(group.begun):
            self._by_word.setdefault(place, {})[group.number] = group
        if WILDCARD in group.begun:
            self.open[group.number] = group

    def remove(self, group: _Group) -> None:
        """Remove a group."""
        del self.groups[group.number]
        self.open.pop(group.number, None)
        for place in enumerate(group.begun):
            having = self._by_word[place]
            del having[group.number]
            if not having:
                del self._by_word[place]

    def like(self, words: list[str], least: float) -> _Group | None:
        """Return the most similar group, the oldest of equals; None if all are below `least`."""
        near = dict(self.open)
        for place in enumerate(words):
            near.update(self._by_word.get(place, {}))
        if not words:
            near = self.groups
        fits = ((group.similarity(words), -number) for number, group in near.items())
        best, number = max(fits, default=(-1.0, 0))
        return near[-number] if best >= least else None


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
        on_join: Callable[[Template, Template], None] = lambda into, gone: None,
        split: Callable[[str], tuple[str, str]] = lambda line: ("", line),
        name: Callable[[str], str | None] = lambda line: None,
    ) -> None:
        self.capacity = capacity
        self.on_evict, self.on_join, self.split, self.name = on_evict, on_join, split, name
        self.forgotten = 0
        """Number of lines of dropped templates."""
        self._begun = 0
        self._leaves: dict[tuple[str, ...], _Leaf] = {}
        self._branches: dict[tuple[str, ...], set[str]] = {}
        self._recent: OrderedDict[Template, None] = OrderedDict()
        self._known: OrderedDict[bytes, tuple[Template, str | None]] = OrderedDict()
        self._masked: OrderedDict[tuple[str, str], Template] = OrderedDict()
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
            self._has_hex = len(raw) > len(raw := _without_long_hex(raw))
        key = raw.translate(None, _DIGITS)
        known = self._known.get(key)
        if known is None or known[0].joined is not None:
            short = key if self._has_hex else _without_long_hex(raw).translate(None, _DIGITS)
            if len(key) != len(short):
                known = self._known.get(short)
                self._has_hex = True
            if known is None or known[0].joined is not None:
                known = self._known[short] = self._look_up(line), self.name(line)
            if len(self._known) > 8 * self.capacity:
                self._known.popitem(last=False)
        template, name = known
        template.count += 1
        self._recent.move_to_end(template)
        if name is not None and _DIGIT.search(name):  # lines of this form have other digits
            name = self.name(line)
        return template, name

    def _look_up(self, line: str) -> Template:
        apart, message = self.split(line)
        masked = mask(message)
        key = (apart, masked)
        template = self._masked.get(key)
        if template is None or template.joined is not None:
            template = self._masked[key] = self._find(apart, words_of(masked))
            if len(self._masked) > 8 * self.capacity:
                self._masked.popitem(last=False)
        return template

    def _find(self, apart: str, words: list[str]) -> Template:
        path = self._descend(apart, words)
        leaf = self._leaves.get(path)
        if leaf is None:
            leaf = self._leaves[path] = _Leaf()
        group = leaf.like(words, SIMILARITY)
        if group is None:
            group = _Group(path, words, self._begun)
            self._begun += 1
            leaf.add(group)
        elif self._widen(group, words):
            leaf.open[group.number] = group
        key = group.key(words)
        template = group.templates.get(key)
        if template is None:
            template = group.templates[key] = Template(group, key)
            self._recent[template] = None
            if len(self._recent) > self.capacity:
                self._evict()
        return template

    def _widen(self, group: _Group, words: list[str]) -> bool:
        """Note new words; if a place becomes a variable, join its templates and return True."""
        became = False
        for place, (word, seen) in enumerate(zip(words, group.seen, strict=True)):
            if seen is None or word in seen:
                continue
            seen.add(word)
            if len(seen) >= VARIANTS or word == WILDCARD:
                group.seen[place] = None
                group.words[place] = WILDCARD
                became = True
        if became:
            self._join(group)
        return became

    def _join(self, group: _Group) -> None:
        """Join the templates of a group that no longer differ."""
        old, group.templates = group.templates, {}
        for template in old.values():
            template.key = template.words = group.key(list(template.key))
            into = group.templates.setdefault(template.key, template)
            if into is not template:
                into.count += template.count
                self.on_join(into, template)
                template.joined = into
                template.data = None
                del self._recent[template]

    def _descend(self, apart: str, words: list[str]) -> tuple[str, ...]:
        path: tuple[str, ...] = (apart, str(len(words)))
        for word in words[:DEPTH]:
            if WILDCARD in word or _DIGIT.search(word):
                word = WILDCARD
            known = self._branches.setdefault(path, set())
            if word not in known:
                if len(known) >= CHILDREN:
                    word = WILDCARD
                else:
                    known.add(word)
            path = (*path, word)
        return path

    def _evict(self) -> None:
        """Drop the least recently seen template."""
        old, _ = self._recent.popitem(last=False)
        group = old.group
        del group.templates[old.key]
        if not group.templates:
            leaf = self._leaves[group.path]
            leaf.remove(group)
            if not leaf.groups:
                del self._leaves[group.path]
        old.joined = old  # the caches must not find it
        self.forgotten += old.count
        self.on_evict(old)


def _without_long_hex(raw: bytes) -> bytes:
    """Return the line without runs of 12 or more of ``0-9a-f-``, in half the time of a pattern."""
    pieces = raw.translate(_HEX).split(_LONG_HEX)
    if len(pieces) == 1:
        return raw
    at = len(pieces[0])
    kept = [raw[:at]]
    for piece in pieces[1:]:
        at += len(_LONG_HEX) + len(piece)
        kept.append(raw[at - len(piece.lstrip(b"\0")) : at])  # the run may be longer
    return b"".join(kept)


def _plain(message: str) -> str:
    """Return the used part of a message, without the characters that stand for values here."""
    text = message[:LONGEST].replace(_MARK, " ")
    return text if text.isascii() else _KEPT_MARK.sub(" ", text)


def mask(message: str) -> str:
    """Return the message with NUL in place of everything that looks like a value."""
    masked = _VALUE.sub(_MARK, _plain(message))
    return _LIST.sub(_MARK, _EMPTY.sub(_MARK, masked))


def values_of(message: str) -> list[str]:
    """Return each word with the values as written, and the text before them that `mask` takes."""
    found: list[str] = []

    def keep(match: re.Match[str]) -> str:
        found.append(match.group())
        return chr(_KEPT + len(found) - 1) if len(found) <= _MOST_KEPT else _MARK

    def join(match: re.Match[str]) -> str:
        return match.group().replace(",", _COMMA).replace(" ", _SPACE)

    def written(match: re.Match[str]) -> str:
        kept = match.group()
        return "," if kept == _COMMA else " " if kept == _SPACE else found[ord(kept) - _KEPT]

    text = _EMPTY.sub(_MARK, _KEPT_LIST.sub(join, _VALUE.sub(keep, _plain(message))))
    spans: list[tuple[int, int]] = []
    wild = False
    for token in islice(_TOKEN.finditer(text), MOST_WORDS):
        word = token.group()
        plain = word if word.isascii() else _KEPT_MARK.sub(_MARK, word)
        is_value = not plain.strip(_MARK) or _DIGIT.search(plain) is not None
        if is_value and wild:
            spans[-1] = spans[-1][0], token.end()
        else:
            spans.append(token.span())
        wild = is_value
    values = []
    for start, end in spans:
        closing = text[end : end + 1]
        if closing in _OPENING and _OPENING[closing] in text[start:end]:
            end += 1
        values.append(_KEPT_MARK.sub(written, text[start:end]).replace(_MARK, "").rstrip())
    return values


def pieces(message: str, words: Sequence[str]) -> tuple[list[tuple[str, str]], str]:
    """Split a line into (text before a word, word of the template) pairs and the rest."""
    masked = mask(message)
    parts: list[tuple[str, str]] = []
    at = place = 0
    wild = False
    between = ""  # text between adjacent values
    for found in _TOKEN.finditer(masked):
        word = found.group()
        is_value = not word.strip(_MARK) or _DIGIT.search(word) is not None
        gap = masked[at : found.start()]
        if is_value and wild:
            between += gap
        else:
            if place >= len(words):
                break
            if gap[:1] in _OPENING and _OPENING[gap[:1]] in between:
                gap = gap[1:]
            parts.append((gap, words[place]))
            place, between = place + 1, ""
        at, wild = found.end(), is_value
    return parts, masked[at:]


def shown(message: str, words: Sequence[str]) -> str:
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


def words_of(masked: str) -> list[str]:
    """Return the words of a masked message, at most MOST_WORDS; adjacent values are one word."""
    words: list[str] = []
    for word in _TOKEN.findall(masked)[:MOST_WORDS]:
        if not word.strip(_MARK) or _DIGIT.search(word):
            word = WILDCARD
        else:
            word = word.replace(_MARK, WILDCARD)
        if word == WILDCARD and words and words[-1] == WILDCARD:
            continue
        words.append(word)
    return words
