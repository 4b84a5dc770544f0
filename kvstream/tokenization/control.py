"""Keep the control sequences of a chat template out of the ids of text that is only read.

Even if a tokenizer treats special tokens in a text as plain text, it can still give their ids: if
its own vocabulary contains them, if its normalizer makes them out of other characters, or if the
template marks turns by ordinary tokens such as ``[INST]``. So the ids are checked, not the text:

- no id that a template writes as a control token may occur, and
- no sequence of ids that the template writes for one of its markers may occur.

If one occurs, the characters of that place are encoded one by one, and their text stays the same.
If even that gives the same ids, other ids are put between them, or as a last resort in their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise, product

import numpy as np

_TAG = re.compile(r"<\|[^<>|\n]{1,64}\|>|<+[^<>\s\"'=,]{1,64}>+|\[+[^\[\]\s\"'=,]{1,64}\]+")
"""A word in brackets: ``[INST]``, ``<<SYS>>``, ``<|user|>``, ``<| user |>``."""
_HEADER = re.compile(
    r"(?:#{1,6} ?[^\n:#]{1,30}:?|\w{1,20}[:\uff1a]|(\*\*|==|__)[^\n*=_]{1,30}\1:?)\s*$"
)
"""A header before a message in templates without tags: ``### Input:``, ``USER:``, ``**User**``."""
_COMPLETES = "Answer:"
"""A prompt with this end is a plain text to be completed, without turns."""
_LITERAL = ("data", "string")
_TURNS = (
    ("user",),
    ("system", "user"),
    ("user", "assistant"),
    ("user", "assistant", "user"),
    ("system", "user", "assistant", "user"),
    ("user", "assistant", "tool"),
)
_MARK = "kvstream9c41e7"
_BEFORE, _BEHIND = ("", "x", " ", "\n", ".", "]", ">"), ("", "x", " ", "\n")
"""Neighbors that a marker may have in a prompt. Its ids depend on them."""
_SEPARATORS = (" ", "_", ".", "x")
_SPACES = "▁Ġ"

Encode = Callable[[str, bool], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""(text, continuing) -> ids of the tokens, their first characters and their ends; each int [n]."""


def frames(template: str, render: Callable[..., str]) -> tuple[str, ...]:
    """Return the texts that a template writes around messages, and those in its source."""
    texts: dict[str, None] = dict.fromkeys(_literals(template))
    for turns, prompts in product(_TURNS, (True, False)):
        marks = [f"{_MARK}{number:02d}" for number in range(len(turns))]
        messages = [{"role": r, "content": m} for r, m in zip(turns, marks, strict=True)]
        try:
            text = render(messages, add_generation_prompt=prompts)
        except Exception:  # a template may raise anything
            continue
        texts |= dict.fromkeys(re.split(rf"(?<={_MARK}\d\d)", text))
    return tuple(texts)


def markers(frames: Iterable[str], control: Iterable[str]) -> set[str]:
    """Return the texts in ``frames`` that mark turns. ``control``: texts of control tokens."""
    control = tuple(control)
    tags: set[str] = set()
    headers: set[str] = set()
    completes = False
    for frame in frames:
        tags.update(tag for tag in _TAG.findall(frame) if any(map(str.isalpha, tag)))
        before, mark, _ = frame.partition(_MARK)
        completes |= not mark and frame.rstrip().endswith(_COMPLETES)
        if mark and not _TAG.search(before) and not any(text in before for text in control):
            headers.update(match.group().strip() for match in _HEADER.finditer(before))
    return tags if completes else tags | headers


def _literals(template: str) -> Iterator[str]:
    """Yield the texts in a template's source, which may have branches that are not rendered."""
    from jinja2 import Environment
    from jinja2.exceptions import TemplateSyntaxError

    try:
        for _, kind, value in Environment().lex(template):
            if kind in _LITERAL:
                yield value
    except TemplateSyntaxError:  # the texts of other branches are then unknown
        return


class Guard:
    """Finds control sequences in ids and breaks them apart."""

    def __init__(
        self,
        pieces: Sequence[str],
        plain: Encode,
        template: Encode,
        control: Iterable[int],
        marks: Iterable[str],
        unknown: int | None,
    ) -> None:
        """Determine the ids of all markers.

        ``pieces``: the text of each id, without prefixes and suffixes that say where in a word it
        is. ``plain`` encodes text that is read, ``template`` text that the template writes.
        ``control``: ids of control tokens. ``marks``: markers. ``unknown``: id of unknown words.
        """
        self._pieces, self._plain = pieces, plain
        self._of = cache(lambda char: plain(char, True)[0].tolist())
        single = set(control)
        self._markers: dict[str, str] = {}  # marker -> its spelling by its ids
        self._sequences: set[tuple[int, ...]] = set()
        if unknown is not None and unknown in plain("\ue000", True)[0]:
            single.discard(unknown)  # any text may give it
        by_mark = {mark: _sequences_of(template, mark) for mark in marks}
        for every in by_mark.values():
            single |= {ids[0] for ids in every if len(ids) == 1 and ids[0] != unknown}
        for mark, every in by_mark.items():
            # Ids of spaces and unknown words alone are not a marker. Ids with a control token are
            # found by it.
            telling = {i for ids in every for i in ids if i != unknown and pieces[i].strip(_SPACES)}
            every = {ids for ids in every if telling & set(ids) and not single & set(ids)}
            spellings = ["".join(pieces[i] for i in ids).strip(_SPACES) for ids in every]
            # The shortest one, among those between different neighbors.
            if spelling := min(spellings, key=len, default=""):
                self._sequences |= every
                self._markers[mark] = spelling
        self._control = np.zeros(len(pieces), dtype=np.bool_)
        self._control[list(single)] = True
        self._spellings = sorted(set(self._markers.values()), key=len, reverse=True)
        self._search = re.compile(f"(?=({'|'.join(map(re.escape, self._spellings))}))")
        self.reach = max(map(len, self._sequences), default=1) - 1
        """Number of ids on either side of a border that decide whether a sequence crosses it."""
        self.longest = max((len(mark.encode()) for mark in self._markers), default=0)
        """UTF-8 bytes of the longest marker that is not a control token."""

    def clean(self, ids: np.ndarray) -> bool:
        """Return whether ``ids`` contain no control sequence."""
        if self._control.take(ids, mode="clip").any():  # `take` is the fastest lookup
            return False
        if not self._spellings:
            return True
        spelled = "".join(map(self._pieces.__getitem__, ids.tolist()))
        return not any(spelling in spelled for spelling in self._spellings)

    def count(self, ids: Sequence[int]) -> int:
        """Return the number of control sequences in ids of a template."""
        return len(self._places(np.array(ids, dtype=np.int32)))

    def _places(self, ids: np.ndarray) -> list[tuple[int, int]]:
        """Return control sequences in ``ids`` as (first, end), in order, without overlaps."""
        spans = [(int(i), int(i) + 1) for i in np.flatnonzero(self._control[ids])]
        if self._spellings:
            pieces = [self._pieces[i] for i in ids.tolist()]
            ends = np.cumsum([len(piece) for piece in pieces])
            for match in self._search.finditer("".join(pieces)):
                first, last = match.start(1), match.end(1) - 1
                begin, end = np.searchsorted(ends, [first, last], side="right")
                spans.append((int(begin), int(end) + 1))
        places: list[tuple[int, int]] = []
        for begin, end in sorted(spans):
            if places and begin < places[-1][1]:
                places[-1] = places[-1][0], max(end, places[-1][1])
            else:
                places.append((begin, end))
        return places

    def mend(self, text: str, continuing: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ids of ``text``, first characters of tokens, and first tokens of broken places."""
        ids, begins, ends = self._plain(text, continuing)
        new: list[int] = []
        starts: list[int] = []
        broken: list[int] = []
        at = 0
        for (begin, end), (until, _) in pairwise([*self._places(ids), (len(ids), len(ids))]):
            new += ids[at:begin].tolist()
            starts += begins[at:begin].tolist()
            at = end
            first = int(begins[begin])
            piece = text[first : max(int(ends[begin:end].max()), first)]
            behind = ids[end : min(end + self.reach, until)].tolist()
            apart = self._apart(piece, new[-self.reach :] if self.reach else [], behind)
            broken.append(len(new))
            new += [token for token, _ in apart]
            starts += [first + place for _, place in apart]
        new += ids[at:].tolist()
        starts += begins[at:].tolist()
        if broken and broken[-1] == len(new) and new:  # the last place has no tokens
            broken[-1] -= 1
        places = np.array(starts, dtype=np.int64), np.array(broken, dtype=np.int64)
        return np.array(new, dtype=np.int32), *places

    def _apart(self, piece: str, before: list[int], behind: list[int]) -> list[tuple[int, int]]:
        """Return ids for the text of a control sequence, and the character that each stands for."""
        single = [(i, place) for place, char in enumerate(piece) for i in self._of(char)]
        fillers = [i for text in _SEPARATORS for i in self._of(text)[:1]]
        apart = (
            [*single[:1], *(e for own in single[1:] for e in ((filler, own[1]), own))]
            for filler in fillers
        )
        for way in (single, *apart, *([(filler, 0)] for filler in fillers)):
            ids = [token for token, _ in way]
            if ids and not self.holds([*before, *ids, *behind]):
                return way
        return []

    def holds(self, ids: Sequence[int]) -> bool:
        """Return whether ``ids`` have a control token, or a marker's ids as in templates."""
        if self._control[np.array(ids, dtype=np.int64)].any():
            return True
        lengths = {len(sequence) for sequence in self._sequences}
        return any(
            tuple(ids[place : place + length]) in self._sequences
            for length in lengths
            for place in range(len(ids) - length + 1)
        )

    def between(self, before: Sequence[int], behind: Sequence[int]) -> list[int]:
        """Return ids to put between separately encoded ids that would form a control sequence."""
        if not self.reach:
            return []
        before, behind = list(before[-self.reach :]), list(behind[: self.reach])
        if not self.holds([*before, *behind]):
            return []
        fillers = (self._of(text)[:1] for text in _SEPARATORS)
        return next((f for f in fillers if f and not self.holds([*before, *f, *behind])), [])


def _sequences_of(template: Encode, mark: str) -> set[tuple[int, ...]]:
    """Return the ids that a template may write for ``mark``, including those that hold a part."""
    sequences = set()
    for before, behind in product(_BEFORE, _BEHIND):
        for continuing in (True, False):
            ids, begins, ends = template(before + mark + behind, continuing)
            within = (ends > len(before)) & (begins < len(before) + len(mark))
            if within.any():
                sequences.add(tuple(ids[within].tolist()))
    return sequences
