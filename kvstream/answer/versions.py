"""Find sources that say the same sentence with another value: versions of one text.

Only sentences that are equal except for one number, name or date count, and only if the answer has
the part that differs. One of them may have more before or behind a comma, and after `LONG` equal
words and another number the rest may differ. Comparing the model's answers from each source was
tried and does not work (docs/research/tried.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from kvstream.exact.routing import iso_dates
from kvstream.tokenization.passages import Passage

LEAST, MOST = 3, 4
"""Least number of words that two versions share, and most words of the part that differs."""
LONG = 5
"""Least number of words before a number and its unit, if the sentences end differently."""
COMPARED = 30
"""Most sentences that are compared with all others: those with most words of the answer."""
SHOWN = 3
"""Most versions in a warning."""
_WORD = re.compile(r"\w+(?:[.,:/'’-]\w+)*")
_PAST = re.compile(r"\d|\b(?:was|were|did|had|old|first|last|before|earlier|originally)\b", re.I)
_COMMA = re.compile(r"[,:] ")
_DAY = re.compile(r"(?<!\d)(?:19|20)\d\d-(?:0[1-9]|1[0-2])-[0-3]\d(?!\d)")
_DATE = re.compile(r"(?<!\d)(?:19|20)\d\d(?:[-_.]?(?:0[1-9]|1[0-2])(?:[-_.]?[0-3]\d)?)?(?!\d)")


def versions(answer: str, passages: Sequence[Passage]) -> list[tuple[str, Passage]]:
    """Return the versions of the sentence that has the answer, one of each value; else nothing.

    A value is the part of the sentence that differs, with the word behind it.
    """
    in_answer = {*_WORD.findall(answer.casefold())}
    whole = [(each.text, each) for each in passages]
    parts = [(part, each) for each in passages for part in _parts(each.text)]
    split = [(_WORD.findall(text.casefold()), text, each) for text, each in whole + parts]
    matches = [len(in_answer.intersection(words)) for words, _, _ in split]
    best = sorted(range(len(split)), key=lambda place: -matches[place])[:COMPARED]
    for at in (place for place in best if matches[place]):
        words, text, passage = split[at]
        values: dict[str, tuple[str, Passage]] = {}
        for others, other_text, other in split if at < len(whole) else split[: len(whole)]:
            differ = _difference(words, others) if other.source != passage.source else None
            if differ is None or not in_answer.issuperset(words[differ[0]]):
                continue
            for own, part, place in ((text, differ[0], passage), (other_text, differ[1], other)):
                value = " ".join(_WORD.findall(own)[part.start : part.stop + 1])
                values.setdefault(value.casefold(), (value, place))
        if values:
            return list(values.values())
    return []


def _parts(text: str) -> list[str]:
    """Return what stands behind, and before, the first two commas of a sentence."""
    commas = [*islice(_COMMA.finditer(text), 2)]
    return [text[at.end() :] for at in commas] + [text[: at.start()] for at in commas]


def _difference(a: list[str], b: list[str]) -> tuple[slice, slice] | None:
    """Return the one part in which two sentences differ; None if they differ otherwise."""
    shorter = min(len(a), len(b))
    before = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    rest = shorter - before
    behind = next((i for i in range(rest) if a[-1 - i] != b[-1 - i]), rest)
    parts = slice(before, len(a) - behind), slice(before, len(b) - behind)
    at, unit = slice(before, before + 1), slice(before + 1, before + 2)
    if before >= LONG and a[unit] == b[unit] != [] and (a[before] + b[before]).isdigit():
        return at, at
    sizes = [part.stop - part.start for part in parts]
    if before + behind < LEAST or not (min(sizes) > 0 and max(sizes) <= MOST):
        return None
    digits = [any(map(str.isdigit, "".join(w[p]))) for w, p in zip((a, b), parts, strict=True)]
    return parts if digits[0] == digits[1] else None


def disagreement(
    answer: str, passages: Sequence[Passage], names: Sequence[str], question: str = ""
) -> tuple[str, str] | None:
    """Return a warning that names what each source says, the newest first, and the answer; or None.

    The date of a source is the one in its name, else the first day in its other passages. If the
    answer is that of an older source, it begins with the value of the newest, unless the question
    asks about the past.
    """
    different = versions(answer, passages)
    if not different:
        return None
    days: dict[int, str] = {}
    own = [passage for _, passage in different]
    for passage in passages:
        if passage not in own and (day := _DAY.search(iso_dates(passage.text))):
            days.setdefault(passage.source, day[0])
    lines = []
    for value, passage in different:
        name, day_of = names[passage.source], days.get(passage.source, "")
        date = _DATE.search(name)
        line = f"{value} ({name}:{passage.spot}{day_of and f', {day_of}'})"
        lines.append((re.sub(r"\D", "", date[0] if date else day_of), line))
    newest = sorted(lines, key=lambda pair: pair[0], reverse=True)
    more = f"; {len(different) - SHOWN} more" if len(different) > SHOWN else ""
    text = "; ".join(line for _, line in newest[:SHOWN])
    if "" < lines[0][0] < newest[0][0] and not _PAST.search(question):
        answer = f"{newest[0][1]}; in an older source: {answer}"
    return f"The sources disagree: {text}{more}.", answer
