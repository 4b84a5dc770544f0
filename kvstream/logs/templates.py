"""Templates of log lines: a fixed-depth tree in bounded memory.

He et al., "Drain: An Online Log Parsing Approach with Fixed Depth Tree", ICWS 2017. A line is cut
into words; the tree is descended by the number of words and by the first words, and among the
templates of the leaf the most similar one takes the line or a new one is made. Differences:

- Values that look like values (numbers, addresses, paths, identifiers) become ``<*>`` before the
  tree sees them, by one pattern for all logs.
- Words are cut at ``=``, ``:``, ``,`` and brackets as well, so that ``size=12`` and ``size=9`` are
  alike without a rule for each log.
- The tree holds at most `capacity` templates. The least recently seen one leaves, and what it had
  counted goes to `TemplateTree.forgotten`: the sum of all counts is the number of lines.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

WILDCARD = "<*>"
_VALUE = re.compile(
    r"""
      \b[a-z][a-z0-9+.-]*://[^\s"'<>)\]]+                     # a URL
    | \b[\w.+-]+@[\w-]+(?:\.[\w-]+)+                          # a mail address
    | (?<![\w])/(?:[\w.@+~-]+/)*[\w.@+~-]*(?=[\s,:;)\]"'>]|$)    # a path
    | \b[A-Za-z]:\\[^\s"']+                                   # a path of Windows
    | \b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b  # a UUID
    | \b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}\b          # IPv6, MAC
    | \b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b                    # IPv4 and a port
    | \b0[xX][0-9a-fA-F]+\b
    | \b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b                   # a digest
    | [-+]?\b\d+(?:[.,:]\d+)*(?:%|\b|(?=[a-zA-Z]{1,3}\b))     # a number, a time, with a unit
    """,
    re.VERBOSE,
)
_CUT = re.compile(r"[\s=:,;()\[\]{}\"'<>|]+")
_DIGIT = re.compile(r"\d")


@dataclass
class Template:
    """Lines of one shape."""

    words: list[str]
    """Words of the shape; ``<*>`` where lines differ."""
    number: int
    """Order in which templates were first seen, from 0."""
    count: int = 0
    data: dict[str, object] = field(default_factory=dict)
    """What callers hold on to with it."""

    def similarity(self, words: list[str]) -> tuple[float, int]:
        """Share of the words that are the same, and the number of wildcards."""
        same = wild = 0
        for mine, theirs in zip(self.words, words, strict=True):
            if mine == WILDCARD:
                wild += 1
            elif mine == theirs:
                same += 1
        return (same + wild) / len(words) if words else 1.0, wild


class TemplateTree:
    """Finds the template of each line.

    Args:
        similarity: share of equal words from which a line belongs to a template.
        depth: words that are looked at on the way down.
        children: most branches of a node; further words share the branch ``<*>``.
        capacity: most templates held.
        on_evict: called with a template that leaves.
    """

    def __init__(
        self,
        *,
        similarity: float = 0.5,
        depth: int = 2,
        children: int = 100,
        capacity: int = 4096,
        on_evict: Callable[[Template], None] = lambda template: None,
    ) -> None:
        self.similarity, self.depth, self.children = similarity, depth, children
        self.capacity, self.on_evict = capacity, on_evict
        self.forgotten = 0
        """Lines of templates that have left."""
        self._made = 0
        self._leaves: dict[tuple[str, ...], list[Template]] = {}
        self._branches: dict[tuple[str, ...], set[str]] = {}
        self._recent: OrderedDict[int, tuple[Template, tuple[str, ...]]] = OrderedDict()
        # Most lines equal an earlier one once their values are gone.
        self._known: OrderedDict[str, Template] = OrderedDict()

    def __iter__(self) -> Iterator[Template]:
        return (template for template, _ in self._recent.values())

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, message: str) -> Template:
        """Count a message (a line without its time and level) and return its template."""
        masked = mask(message)
        template = self._known.get(masked)
        if template is None:
            template = self._find(words_of(masked))
            self._known[masked] = template
            if len(self._known) > 4 * self.capacity:
                self._known.popitem(last=False)
        template.count += 1
        self._recent.move_to_end(template.number)
        return template

    def _find(self, words: list[str]) -> Template:
        path = self._descend(words)
        leaf = self._leaves.setdefault(path, [])
        best, rank = None, (self.similarity, -1)
        for template in leaf:
            found = template.similarity(words)
            if found > rank or (best is None and found[0] >= self.similarity):
                best, rank = template, found
        if best is None:
            best = Template(words, self._made)
            self._made += 1
            leaf.append(best)
            self._recent[best.number] = (best, path)
            if len(self._recent) > self.capacity:
                self._evict()
        else:
            pairs = zip(best.words, words, strict=True)
            best.words = [a if a == b else WILDCARD for a, b in pairs]
        return best

    def _descend(self, words: list[str]) -> tuple[str, ...]:
        path: tuple[str, ...] = (str(len(words)),)
        for word in words[: self.depth]:
            if WILDCARD in word or _DIGIT.search(word):
                word = WILDCARD
            known = self._branches.setdefault(path, set())
            if word not in known:
                if len(known) >= self.children:
                    word = WILDCARD
                else:
                    known.add(word)
            path = (*path, word)
        return path

    def _evict(self) -> None:
        _, (old, path) = self._recent.popitem(last=False)
        self._leaves[path].remove(old)
        if not self._leaves[path]:
            del self._leaves[path]
        self._known = OrderedDict((k, t) for k, t in self._known.items() if t is not old)
        self.forgotten += old.count
        self.on_evict(old)


def mask(message: str) -> str:
    """The message with ``<*>`` in the place of everything that looks like a value."""
    return _VALUE.sub(WILDCARD, message)


def words_of(masked: str) -> list[str]:
    """The words of a masked message."""
    return _CUT.sub(" ", masked.replace(WILDCARD, "\0")).replace("\0", WILDCARD).split()
