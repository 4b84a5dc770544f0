"""Count the units of a text, such as rows or messages, all or those with some words.

A unit is a run of lines. What begins one is decided by the structure of the text; a text without
that structure has no such units, and nothing is counted.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import accumulate, chain, groupby, islice, pairwise, takewhile
from pathlib import PurePath

from kvstream.errors import SourceError
from kvstream.exact.counting import Place, Tally
from kvstream.exact.outline import Part, end_of, joined, of_kind, outline
from kvstream.exact.routing import HEADINGS, OF_LOG
from kvstream.exact.words import OTHER, Words
from kvstream.input.blocks import TextBlock
from kvstream.input.lines import Line, lines_of
from kvstream.input.sources import SourceSet
from kvstream.input.table_reader import VALUE, delimiter_of, rows_of, without_names
from kvstream.logs.levels import level_of
from kvstream.logs.line_parser import LineParser, looks_like_log
from kvstream.logs.traces import TRACE

SAMPLE = 20
"""Lines from which the structure of a text is recognized."""
AT_ONCE = 1 << 20
"""Characters of a unit that are searched at once."""
LINE = 16
"""Characters for which a line counts in addition, because an empty one needs memory, too."""
MOST_CODE = 1 << 22
"""Maximum characters of a file of code or JSON, which is held whole."""
MOST_SENDERS = 10_000
"""Senders of messages that are counted each."""
Begins = Callable[[Line, Line | None], bool]
"""Whether a unit begins with a line; also gets the line before it."""
_WELL, _NONE = ("debug", "info", "notice"), ("", "suspect")
_CHAT = re.compile(
    r"\u200e?\[?\d{1,4}[-./]\d{1,2}[-./]\d{1,4},? (?:at )?\d{1,2}[:.]\d\d(?:[:.]\d\d)?"
    r"(?:\s?[AaPp]\.?[Mm]\.?)?\]?(?: -)? (?P<name>[^:\n]{1,40}): "
    r"|(?:\[?\d{1,2}:\d\d(?::\d\d)?\]? )?<(?P<nick>[^>\n]{1,40})> (?=\S)"
)
"""How a message of a chat export begins: time and name, or a name in angle brackets."""
_WORD = re.compile(r"[^\W_]\S*")
"""A word from its first letter or digit on: from the sign before it, a rule of dashes would take
time that grows with its square."""
_UNSPACED = re.compile(f"[{OTHER}]")
_HEAD = re.compile(r"(?:From|To|Cc|Date|Subject): ")
_NO = r"(?!(?:if|for|while|switch|catch|return|else|do|with|new|throw)\b)"
_FUNCTIONS = {
    "py pyi": r"^[ \t]*(?:async[ \t]+)?def[ \t]+\w+",
    "js mjs cjs jsx ts tsx": r"\bfunction\b\s*\*?\s*\w+\s*\("
    r"|\b\w+\s*[=:]\s*(?:async\s+)?(?:function\b|\([^()]*\)\s*(?::[^=\n]+)?=>|\w+\s*=>)"
    rf"|^[ \t]+(?:(?:async|static|get|set)\s+)*{_NO}[\w#$]+\([^()]*\)\s*(?::[^{{\n]+)?\{{",
    "go": r"^func\b", "rs": r"\bfn\s+\w+", "rb": r"^[ \t]*def\s+\S+", "swift": r"\bfunc\s+\w+",
    "kt": r"\bfun\s+[\w.<>]+\s*\(", "php": r"\bfunction\s+&?\w+\s*\(", "pl pm": r"^[ \t]*sub\s+\w+",
    "lua": r"\bfunction\s+[\w.:]+\s*\(", "sh bash": r"^[ \t]*(?:function\s+[\w-]+|[\w-]+\s*\(\))",
    "c h cc cpp hpp cxx java cs": rf"^[ \t]*{_NO}(?:(?:[\w:<>,\[\]]+[ \t*&]+)+|(?=\w+::)){_NO}"
    r"[\w:~]+\s*\([^;{}()]*(?:\([^()]*\)[^;{}()]*)*\)[^;{}()=]*(?:(?<!:):(?!:)[^;={]*)?\{",
}  # fmt: skip
"""How a function of a language begins, by the suffixes of its files."""
_GOES_ON = re.compile(r"\s*(?:[)\]{}]|end\b|\w+:\s*$)").match
"""Returns whether a line that is not indented is of the same function: a bracket, or a label."""
_RECEIVER = re.compile(r"(?<=^func )\([^()]*\)")
"""What comes before the name of a method of Go."""
_SUFFIXES = {f".{s}": pattern for key, pattern in _FUNCTIONS.items() for s in key.split()}


def count_units(
    sources: SourceSet, blocks: Iterable[TextBlock], unit: str, words: Words | None, most: int = 1
) -> Tally | None:
    """Count the units with the words, or all; None if no source has the structure for it. `most`:
    how many of the first places are kept.
    """
    tally, lines = Tally(most), lines_of(without_names(blocks))
    if unit in HEADINGS:
        parts = headings(outline(sources.again()), unit)
        if unit == "heading" and words is not None:  # it has the words itself, not what is below
            begins = {part.begin for part in parts if words.pattern.search(part.title)}
            words = None
        else:
            begins = {part.begin for part in parts}
        _count(lines, lambda line, _: line.byte in begins, words, tally)
        return tally if parts else None
    begins_of = _samples(sources)
    for source, own in groupby(lines, key=lambda line: line.block.source):
        first = next((some for each, some in begins_of if each == source), ())
        own_tally = deepcopy(tally) if unit in (*OF_LOG, "word") else tally  # they may fail late
        known = _count_source(own, first, sources.names[source], unit, words, own_tally)
        tally = own_tally if known else tally
        tally.sources[known] += 1
    return tally if tally.sources[True] else None


def _samples(sources: SourceSet) -> Iterator[tuple[int, Sequence[Line]]]:
    """Yield how each source begins, if only a part is read, which may be too short to show it."""
    with suppress(SourceError):  # a pipe
        whole = sources.opening()() if sources.scope is not None else ()
        for source, own in groupby(lines_of(without_names(whole)), lambda line: line.block.source):
            yield source, [*islice(own, SAMPLE)]


def headings(parts: Sequence[Part], unit: str) -> list[Part]:
    """Return the parts of a unit; chapters without numbers by the highest level of several."""
    parts = joined(parts)
    if unit == "heading":
        return parts
    if unit == "section":
        return [part for part in parts if part.kind in ("section", "")]
    if own := of_kind(parts, unit):
        return own
    levels = Counter(part.level for part in parts if unit == "chapter" and not part.kind)
    level = min((level for level, count in levels.items() if count > 1), default=None)
    return [part for part in parts if part.level == level and not part.kind]


def _count_source(
    lines: Iterator[Line], sample: Sequence[Line], name: str, unit: str, words: Words | None,
    tally: Tally,
) -> bool:  # fmt: skip
    """Count the units of one source; return whether it has such units. `sample`: lines that show
    its structure, if these are not the first ones.
    """
    some = [*islice(lines, SAMPLE)]
    first, every = sample or some, chain(some, lines)
    if unit in ("function", "class"):
        return _count_code(every, name, unit, words, tally)
    if unit == "word":
        return _count_words(every, tally)
    if unit in OF_LOG:
        return looks_like_log(each.text for each in first) and _count_levels(
            every, OF_LOG[unit], words, tally
        )
    begins = _BEGINS.get(unit)
    if unit in ("row", "record"):
        texts = [line.text for line in first if line.text.strip()]
        delimiter = delimiter_of(texts, name) if first[0].block.place is None else None
        if delimiter not in (None, "json"):
            return _count_rows(rows_of(every, delimiter, name), words, tally)
        begins = _BEGINS["json"] if delimiter else None
    if unit == "page" and not isinstance(first[0].block.place, int):
        begins = None
    if unit == "message" and not any(is_head(line) for line in first):
        chats = sum(_is_of_chat(line) for line in first)
        begins = _is_of_chat if 2 * chats > len(first) else None
    if begins is not None:
        return _count(every, begins, words, tally)
    return unit in ("row", "record") and _count_items(every, words, tally)


def chat_name(text: str) -> str | None:
    """Return who wrote a message of a chat that begins with this line, or None."""
    match = _CHAT.match(text)
    return match and (match["name"] or match["nick"])


def is_head(line: Line, before: Line | None = None) -> bool:
    """Return whether a line is the first of the headers that the converter of mail writes."""
    text = line.block.text
    if line.pieces[0][1] or not isinstance(line.block.place, str) or not text.endswith("\n\n"):
        return False
    return all(_HEAD.match(each) for each in text.rstrip("\n").split("\n"))


def sender_of(line: Line) -> str | None:
    """Return who wrote the message that begins with a line, or None."""
    if is_head(line) and (head := re.search(r"^From: (.*)", line.block.text, re.MULTILINE)):
        return head[1]
    return chat_name(line.text) if line.block.place is None else None


def _is_of_chat(line: Line, before: Line | None = None) -> bool:
    return chat_name(line.text) is not None


_BEGINS: dict[str, Begins] = {
    "line": lambda line, before: True,
    "json": lambda line, before: line.text.lstrip()[:1] == "{",
    "paragraph": lambda line, before: (
        not line.text.isspace() and (before is None or before.text.isspace())
    ),
    "page": lambda line, before: line.block.place not in (before and before.block.place, ""),
    "message": is_head,
}
"""How a unit begins in a text that has such units."""


def _count(lines: Iterator[Line], begins: Begins, words: Words | None, tally: Tally) -> bool:
    """Count the units that begin as `begins` says."""
    unit: list[Line] = []
    open, size = False, 0
    for line in lines:
        before = unit[-1] if unit else None
        goes_on = before and before.block.source == line.block.source and before.text[-1:] != "\n"
        if not goes_on and begins(line, before):  # a long line comes in pieces
            _close(unit, words, tally, open=open)
            unit, open, size = [], words is not None, 0
            if words is None:
                sender = sender_of(line) if begins in (is_head, _is_of_chat) else ""
                known = sender in tally.forms or len(tally.forms) < MOST_SENDERS
                _add(tally, [line], form=(sender or "") if known else "others")
        unit.append(line)
        size += len(line.text) + LINE
        if size > AT_ONCE:
            open = open and not _close(unit, words, tally, open=open)
            unit, size = unit[-1:], len(line.text)
        tally.end = line.byte + len(line.text)
    _close(unit, words, tally, open=open)
    return True


def _count_words(lines: Iterator[Line], tally: Tally) -> bool:
    """Count what blanks separate; return whether the text is in a script with blanks."""
    for line in lines:
        if not line.text.isascii() and _UNSPACED.search(line.text):
            return False
        if count := len(_WORD.findall(line.text)):
            _add(tally, [line])
            tally.count += count - 1
    return True


def _count_rows(
    rows: Iterable[tuple[list[str], list[Line]]], words: Words | None, tally: Tally
) -> bool:
    """Count the rows of data. The first row has headings if none of it looks like a value."""
    width = 0
    for number, (cells, own) in enumerate(rows):
        width = width or len(cells)
        tally.uneven += len(cells) != width
        heads = not any(VALUE.fullmatch(cell.strip()) for cell in cells)
        _close(own, words, tally, open=number > 0 or not heads)
        tally.end = own[-1].byte + len(own[-1].text)
    return True


def _count_levels(
    lines: Iterable[Line], levels: Sequence[str], words: Words | None, tally: Tally
) -> bool:
    """Count the lines of a log with one of the levels, each with the lines that continue it.

    Return whether the count is sure: half of the lines name a level, or the others have no words of
    failure. A line above a stack trace is an error.
    """
    parser, unit, size, level, ended = LineParser(), list[Line](), 0, "", True
    entries = names = doubts = 0
    for line in chain(lines, [None]):
        # A long line comes in pieces, of which the first names the level.
        some = [parser.entry(line.text.rstrip("\r\n"), line.number)] if line and ended else []
        for entry in parser.rest() if line is None else some:
            if entry is None or not entry.text.strip():
                continue
            # A trace below a line of success is not its part.
            trace = TRACE.match(entry.text) is not None
            apart = trace and level in _WELL and not entry.text[0].isspace()
            if apart or not entry.continues:
                _close(unit, words, tally, open=level in levels, form=level)
                unit, size, level = unit[-1:] * (line is None), 0, level_of(entry.rest)
                level = "error" if apart and level in _NONE else level
                entries, names = entries + 1, names + (level not in _NONE)
                doubts += level == "suspect"
            elif trace and level in _NONE:
                doubts -= level == "suspect"
                names, level = names + 1, "error"
        if line is not None and size < AT_ONCE:
            unit.append(line)
            size += len(line.text) + LINE
        if line is not None:
            ended, tally.end = line.text.endswith("\n"), line.byte + len(line.text)
    _close(unit, words, tally, open=level in levels, form=level)
    tally.plain += entries - names
    return 2 * names >= entries or not doubts


def _close(
    lines: Sequence[Line], words: Words | None, tally: Tally, *, open: bool, form: str = ""
) -> bool:
    """Count a unit of these lines if it has the words, and return whether it has.

    `form` stands for the spelling of the words if all units are counted.
    """
    if not open or not lines:
        return False
    if words is None:
        _add(tally, lines[:1], form=form)
        return True
    match = words.pattern.search("".join(line.text for line in lines))
    if match is not None:
        _add(tally, lines, *match.span(), match[0])
    return match is not None


def _add(tally: Tally, lines: Sequence[Line], begin: int = 0, end: int = 0, form: str = "") -> None:
    """Count a unit of these lines, and note the place of its words in their text."""
    text, char = "".join(line.text for line in lines), begin
    pieces = ((line, *piece) for line in lines for piece in line.pieces)
    for own, block, first, last in pieces:
        if char < last - first:
            tally.add(own.byte, form)
            tally.last = Place.at(block, first + char, own.number, text, begin, end)
            tally.places += [tally.last] * (len(tally.places) < tally.most)
            return
        char -= last - first


def _count_code(
    lines: Iterator[Line], name: str, unit: str, words: Words | None, tally: Tally
) -> bool:
    """Count definitions in a file of code, without those in comments and strings."""
    every, code, starts = _code(lines, name, unit)
    text = "".join(line.text for line in every)
    ends = [*accumulate(len(line.text) for line in every)]
    for begin, end in pairwise([*starts, len(text)]):
        match = words.pattern.search(text, begin, end) if words else None
        if words is None or match:
            line = every[bisect_right(ends, begin)]
            _add(tally, [line], form=match[0] if match else "")
    return code != ""


def _code(lines: Iterator[Line], name: str, unit: str) -> tuple[list[Line], str, list[int]]:
    """Return the lines of a file of code, its text with blanks for comments and strings, and where
    its functions or classes begin; nothing of other files."""
    from pygments.lexers import get_lexer_for_filename
    from pygments.token import Comment, String

    pattern = _SUFFIXES.get(PurePath(name).suffix.lower())
    every = _whole(lines) if pattern else None
    if not every:
        return [], "", []
    text = "".join(line.text for line in every)
    lexer = get_lexer_for_filename(name, stripnl=False, ensurenl=False)
    code = "".join(
        re.sub(r"[^\n]", " ", value) if kind in Comment or kind in String else value
        for kind, value in lexer.get_tokens(text.replace("\r\n", " \n"))  # else it is shortened
    )
    pattern = r"^[ \t]*(?:\w+[ \t]+)*class[ \t]+\w+" if unit == "class" else pattern
    return every, code, [at.start() for at in re.finditer(pattern or "", code, re.MULTILINE)]


def definitions(sources: SourceSet, unit: str, name: str) -> list[Part]:
    """Return the functions or classes with a name in files of code, as parts of a text. Each ends
    before the next line that is indented no more."""
    found = []
    named = re.compile(rf"(?<![\w$]){re.escape(name)}(?![\w$])")
    for source, own in groupby(lines_of(sources), key=lambda line: line.block.source):
        every, code, starts = _code(own, sources.names[source], unit)
        ends = [*accumulate(len(line.text) for line in every)]
        texts = [code[begin:end] for begin, end in pairwise([0, *ends])]
        for first in dict.fromkeys(bisect_right(ends, start) for start in starts):
            head = _RECEIVER.sub("", texts[first]).partition("(")[0]
            if named.search(head):
                goes_on = partial(_is_inside, depth=_indentation(texts[first]))
                inside = takewhile(goes_on, (texts[n] for n in range(first + 1, len(texts))))
                last = first + sum(1 for _ in inside)
                place = f"lines {every[first].number}-{every[last].number}"
                title, begin, end = head.strip(), every[first].byte, end_of(every[last])
                found.append(Part(title, unit, "", 1, source, begin, end, place))
    return found


def _is_inside(line: str, depth: int) -> bool:
    """Return whether a line below the head of a definition, of this depth, is part of it."""
    return not line.strip() or _indentation(line) > depth or _GOES_ON(line) is not None


def _indentation(line: str) -> int:
    return len(line.expandtabs()) - len(line.expandtabs().lstrip())


def _count_items(lines: Iterator[Line], words: Words | None, tally: Tally) -> bool:
    """Count the items of a JSON array, which may be a value of an object."""
    every = _whole(lines)
    if not every or every[0].text.lstrip()[:1] not in ("[", "{"):
        return False
    try:
        items = json.loads("".join(line.text for line in every))
    except (ValueError, RecursionError):
        return False
    if isinstance(items, dict):
        arrays = [value for value in items.values() if isinstance(value, list)]
        items = arrays[0] if len(arrays) == 1 else None
    for item in items or ():
        match = words and words.pattern.search(json.dumps(item, ensure_ascii=False))
        if words is None or match:
            tally.add(every[0].byte, match[0] if match else "")
    return isinstance(items, list)


def _whole(lines: Iterator[Line]) -> list[Line] | None:
    """Return all lines of a file, or None if it is too large to be held."""
    every, size = [], 0
    for line in lines:
        every.append(line)
        size += len(line.text)
        if size > MOST_CODE:
            return None
    return every
