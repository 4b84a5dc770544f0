"""The outline of a text: its headings, from the structure of a document or from lines that look
like headings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, pairwise

from kvstream.exact.routing import INNER, OUTER
from kvstream.exact.wording import ORDINALS, TENS, WORDS
from kvstream.input.blocks import Heading, TextBlock
from kvstream.input.lines import Line, lines_of
from kvstream.input.sources import SourceSet

ENTRY = 1000
"""A heading with at most so many bytes below it is an entry of a table of contents, if the part of
the same number or title is ten times as long."""
BLANK = 8
"""A numbered heading of a text with at most so many bytes below it is one, too, if its number comes
again."""
LONGEST, LONGEST_MARKED = 80, 500
"""Characters of a heading, and of one that Markdown marks, or a sign behind its number."""
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_COMPOUND = rf"(?:{TENS})(?:[- ](?:{WORDS}))?"
_NUMBER = rf"(?P<number>\d+(?:\.\d+)*|[ivxlc]+|[a-z]|(?:the )?(?:{_COMPOUND}|{ORDINALS}|{WORDS}))"
_NUMBERED = re.compile(
    rf"(?:the )?(?P<kind>{'|'.join(OUTER + INNER)}),? (?:no\.? )?{_NUMBER}"
    r"(?:(?:[.)\]]|\s*[-–—:]|$).*|\s+(?-i:[A-Z\"“]).*[^.,;])$"
    rf"|(?:the )?(?P<ordinal>{ORDINALS}) (?P<of>{'|'.join(OUTER + INNER)})(?:[.:].*)?$",
    re.IGNORECASE,
)  # fmt: skip
_MARKED = re.compile(rf"(?:{'|'.join(OUTER + INNER)}),? (?:no\.? )?{_NUMBER}[.:)] ", re.IGNORECASE)
_SECTION = re.compile(r"(?P<number>\d+(?:\.\d+)*)\.? +(?P<title>[A-Z][^.!?;]*[^.!?;,:])$")
_CAPITALS = re.compile(r"(?=.*[A-Z]{3})[A-Z\d][A-Z\d ,.'’:&()-]+$")
_NUMERAL = re.compile(r"(?P<number>[IVXLC]+)(?:\.(?: +[A-Z].*[^.,;])?)?$")
"""A heading with a Roman number alone: a chapter, if no heading says so."""
_BELOW = re.compile(r"[\"“‘']?[A-Z].*[^.,;:!?\"”]$")
"""A title in any case below a number, if an empty line follows."""
_MARKDOWN = re.compile(r"(?P<level>#{1,6}) +(?P<title>.*[^ #]|)[ #]*$")
_OF_MARKDOWN = re.compile(r"\.(?:md|markdown|mdx|rmd|qmd)(?:\.(?:gz|bz2|xz|zst))?$", re.IGNORECASE)
"""Files in which a heading needs no empty line before it, and tildes are no underline."""
_CELL = re.compile(r"(?:^|, )cell (\d+)$")
_FENCE = re.compile(r"`{3,}(?=[^`]*$)|~{3,}")
_UNDERLINE = re.compile(r"={3,}|-{3,}")
_TO_PAGE = re.compile(r"(?:\.[ .]*\.|\s{2,})\s*\d+$")
"""The end of an entry of a table of contents."""
_ABROAD = {
    "chapter": "kapitel|chapitre|cap[ií]tulo|capitolo|глава|hoofdstuk|rozdział|[章回話话장]",
    "part": "teil|partie|parte|часть|deel|część|[部編编篇부]", "book": "buch|livre|libro|книга",
    "act": "akt|aufzug|acte|acto|atto|акт|действие|[幕막]",
    "volume": "band|tome|tomo|том|[卷巻冊册권]",
    "scene": "szene|auftritt|scène|escena|scena|сцена|[場场]",
    "article": "artikel|artículo|[条條조]",
    "section": "abschnitt|sección|sezione|раздел|[節节절]",
}  # fmt: skip
_STEMS = (
    "erst|eins|premi|prim|перв", "zwei|deux|second|segund|втор", "dr[ei]|trois|ter[cz]|tr[e]|трет",
    "vier|quatr|[cq]uart|cuatr|quattr|четв", "fünf|cin[cq]|quint|пят",
    "sechs|six|seis?\\b|sest|sext|шест",
    "sieb|sept|sépt|siete|sett|седьм", "acht|huit|oct|ocho|ott|восьм",
    "neun|neuv|neuf|no[nv]|nuev|девят", "zehn|dix|d[ée]cim|die[zc]|десят",
)  # fmt: skip
"""How numbers from 1 to 10 begin in German, French, Spanish, Italian and Russian."""
_DIGITS, _TENS = "〇一二三四五六七八九영일이삼사오육칠팔구", "十百千십백천"
_EAST = re.compile(
    rf"[第제]\s*(?P<number>[\d零两兩{_DIGITS}{_TENS}]{{1,12}})\s*"
    r"(?P<kind>[章回話话部編编篇卷巻冊册幕場场節节条條장부절조권막])(?P<rest>(?:[\s:：.·(（「《—-].*|[^。，、！？,.!?]{,15})$)"
)
_KIND = "|".join(names.partition("|[")[0] for names in _ABROAD.values())
_STEM = rf"(?:{'|'.join(_STEMS)})\w{{0,6}}"
_WEST = re.compile(
    rf"(?:(?P<kind>{_KIND}) +(?P<number>\d+|[ivxlc]+|{_STEM})"
    rf"|(?P<ordinal>\d+\.|{_STEM}) +(?P<of>{_KIND}))"
    r"(?P<rest>$|[.:)]? *[-–—].*|[.)].*|\s?:.*| +(?-i:[^\W\d_a-zß-öø-ÿа-я]|[\"“«„]).*[^.,;])$",
    re.IGNORECASE,
)


def in_english(title: str) -> str:
    """Return a heading with a number in some other languages as ``chapter 3: TITLE``, else it."""
    match = _EAST.match(title)
    if match:
        number, value = 0, 0
        for sign in match["number"]:
            if sign in _TENS:
                number, value = number + (value or 1) * 10 ** (1 + _TENS.index(sign) % 3), 0
            else:
                digit = int(sign) if sign.isdecimal() else _DIGITS.find(sign) % 10
                value = 10 * value + (2 if sign in "两兩" else 0 if sign == "零" else digit)
        name, which = match["kind"], str(number + value)
    elif match := _WEST.match(title):
        name, which = match["kind"] or match["of"], (match["number"] or match["ordinal"]).lower()
        if not re.fullmatch(r"\d+\.?|[ivxlc]+", which):
            which = str(1 + next(i for i, stem in enumerate(_STEMS) if re.match(stem, which)))
    else:
        return title
    kind = next(k for k, names in _ABROAD.items() if re.fullmatch(names, name, re.IGNORECASE))
    rest = match["rest"].strip(" \u3000.:：)-–—·")
    return f"{kind} {which.rstrip('.')}" + f": {rest}" * bool(rest)


@dataclass(frozen=True)
class Part:
    """A part of a text, from its heading to the next one of its level."""

    title: str
    kind: str
    """chapter, part, ...; empty for a heading without a number."""
    number: str
    level: int
    source: int
    begin: int
    """Global byte offset of the heading."""
    end: int
    place: str
    """Its lines or pages, for people; empty for the headings of a document."""


def number_of(text: str) -> str:
    """Return a number in digits: of ``III``, ``three``, ``the Third``; empty if it is none."""
    text = text.lower().removeprefix("the ")
    if re.fullmatch(r"\d+(?:\.\d+)*", text):
        return text
    tens, _, ones = text.replace(" ", "-").partition("-")
    if tens in TENS.split("|"):
        return str(20 + 10 * TENS.split("|").index(tens) + int(number_of(ones) or 0))
    for names in (WORDS, ORDINALS):
        if text in names.split("|"):
            return "last" if text == "last" else str(1 + names.split("|").index(text))
    if re.fullmatch(r"[ivxlc]+", text):
        values = [_ROMAN[letter] for letter in text]
        pairs = zip(values, [*values[1:], 0], strict=True)
        return str(sum(-a if a < b else a for a, b in pairs))
    return text if len(text) == 1 else ""


def of_kind(parts: Sequence[Part], kind: str) -> list[Part]:
    """Return the parts of a kind. If no heading says that it is a chapter, those with a Roman
    number are, and else sections without a section around them.
    """
    for each in (kind, "numeral", "section") if kind == "chapter" else (kind,):
        own = [part for part in parts if part.kind == each]
        if own and each != kind:  # L. Frank Baum is no chapter
            whole = {int(part.number) for part in own if part.number.isdecimal()}
            some = {n for n in whole if n == 1 or {n - 1, n + 1} & whole}
            own = [part for part in own if part.number in map(str, some)]
        if own:
            return own
    return []


def joined(parts: Sequence[Part]) -> list[Part]:
    """Return the parts; the cells of a notebook below one heading are one, others are none."""
    found: list[Part] = []
    for part in parts:
        if cell := _CELL.search(part.title):
            part = replace(part, title=part.title[: cell.start()], place=f"from cell {cell[1]}")
            if found and found[-1].title == part.title and found[-1].end == part.begin:
                part = replace(found.pop(), end=part.end)
        found += [part] if part.title else []
    return found


def outline(sources: SourceSet) -> list[Part]:
    """Return the parts of a text, in their order, in one pass."""
    ends: dict[int, Line] = {}
    pairs: list[tuple[Part, Line]] = []
    for source, lines in groupby(
        lines_of(sources, joined=True), key=lambda line: line.block.source
    ):
        marks = sources.bookmarks(source)
        tight = _OF_MARKDOWN.search(sources.names[source]) is not None
        read = partial(_bookmarks, marks=marks) if marks else partial(_headings, tight=tight)
        own = [(part, _light(line)) for part, line in read(lines, ends)]
        marked = [pair for pair in own if not _is_unmarked(*pair)]
        pairs += marked if len(marked) > 1 else own  # the only one is the title
    parts = _parts(pairs, ends)
    pairs = [pair for pair, stays in zip(pairs, _are_no_entries(parts), strict=True) if stays]
    return _parts(pairs, ends)  # the text of an entry belongs to the part before it


def _headings(
    lines: Iterator[Line], ends: dict[int, Line], *, tight: bool
) -> Iterator[tuple[Part, Line]]:
    """Yield every heading of a source with its line; `ends` gets its end and its last line.
    ``tight``: a heading of Markdown needs no empty line before it."""
    blank, fence, place, latest = True, "", None, ""
    held: tuple[Part, Line] | None = None
    """A heading with only a number, until another line follows."""
    for line, after in pairwise(chain(lines, (None,))):
        assert line is not None
        ends[line.block.source] = line
        text = line.text.strip()
        marked = isinstance(now := line.block.place, str)
        if isinstance(now, str) and text and now not in (place, ""):
            yield from [held] if held is not None else ()
            held, place = None, now
            yield _part(now, line, getattr(now, "level", 0)), line
        elif not fence and (not now or not marked or isinstance(now, Heading)):
            begins = blank or marked or (tight and _MARKDOWN.match(text) is not None)
            part = _heading(line, after.text.strip() if after else "", blank=begins)
            part = None if marked and part and part.kind not in OUTER + INNER else part
            repeats = isinstance(now, int) and part is not None and part.title == latest
            if held is not None and text:
                if _is_title(text, part, after, *held):
                    held, part = (replace(held[0], title=f"{held[0].title} {text}"), held[1]), None
                yield held
                held = None
            if part is not None and not repeats:  # at the top of every page
                latest = part.title
                if part.kind and len(part.title.split()) < 3 - (part.kind == "numeral"):
                    held = part, line
                else:
                    yield part, line
        if fence:
            fence = "" if text.startswith(fence) and not text.strip(fence[0]) else fence
        elif (tight or text[:1] != "~") and (match := _FENCE.match(text)):
            fence = match[0]
        blank = not text or text.startswith("===")  # a line above a heading
    if held is not None:
        yield held


def _is_unmarked(part: Part, line: Line) -> bool:
    """Return whether a heading of a document is only a line that looks like one."""
    place = line.block.place
    return isinstance(place, str) and part.title != " ".join(place.split())


def _is_title(text: str, part: Part | None, after: Line | None, held: Part, line: Line) -> bool:
    """Return whether a line below the heading `held`, which has only a number, is its title."""
    if part is not None:
        return not part.kind and _CAPITALS.match(text) is not None
    if held.kind == "numeral" or line.text.lstrip()[:1] == "#" or len(text) > LONGEST:
        return False
    return after is not None and not after.text.strip() and _BELOW.match(text) is not None


def _bookmarks(
    lines: Iterator[Line], ends: dict[int, Line], marks: Sequence[tuple[str, int, int]]
) -> Iterator[tuple[Part, Line]]:
    """Yield the headings of a PDF that has bookmarks: these, and numbered ones that they lack."""
    matches = [_NUMBERED.match(in_english(title)) for title, _, _ in marks]
    theirs = {number_of(each["number"] or each["ordinal"]) for each in matches if each}
    numbers = (re.match(r"(\d+(?:\.\d+)*|[A-Z])\.? ", title) for title, _, _ in marks)
    theirs |= {match[1].lower() for match in numbers if match}  # not those of running headers
    for page, own in groupby(lines, key=lambda line: line.block.place):
        rows = list(own)
        ends[rows[-1].block.source] = rows[-1]
        texts = [" ".join(line.text.casefold().split()) for line in rows]
        headings = []
        for title, level, _ in (mark for mark in marks if mark[2] == page):
            name = " ".join(title.casefold().split())
            line = rows[texts.index(name) if name in texts else 0]
            part = _part(title, line)
            headings.append((part if part.kind else replace(part, level=3 + level), line))
        for line, after in zip(rows, [*(line.text.strip() for line in rows[1:]), ""], strict=True):
            heading = _heading(line, after, blank=True)
            if heading is not None and heading.number not in ("", *theirs):
                headings.append((heading, line))
        yield from sorted(headings, key=lambda each: each[0].begin)


def _light(line: Line) -> Line:
    """Return a heading without the text of its block, of which a long text has many."""
    block = TextBlock("", line.block.start, line.block.source, place=line.block.place)
    return line._replace(pieces=((block, 0, 0),))


def end_of(line: Line) -> int:
    """Return the global byte offset of the end of a line."""
    block, _, end = line.pieces[-1]
    return int(block.offsets()[end])


def _heading(line: Line, following: str, *, blank: bool) -> Part | None:
    """Return the heading that a line of plain text is, or None. `blank`: the line before is."""
    text = line.text.strip()
    paged = isinstance(line.block.place, int)
    begins = blank or paged or _EAST.match(text)  # a page has no blank lines
    markdown = _MARKDOWN.match(text)
    if not text or len(text) > LONGEST_MARKED or not begins or _TO_PAGE.search(text):
        return None
    if len(text) > LONGEST and not (markdown or (blank and _MARKED.match(in_english(text)))):
        return None
    if _UNDERLINE.fullmatch(following) and "|" not in text and "  " not in text:
        return replace(_part(text, line), level=1 if following[0] == "=" else 2)
    if markdown and not line.text.startswith(("    ", "\t")):  # which is code
        return replace(_part(markdown["title"], line), level=len(markdown["level"]))
    if _NUMBERED.match(in_english(text)):
        return None if _NUMBERED.match(in_english(following)) else _part(text, line)
    patterns = () if following else (_SECTION, _CAPITALS, _NUMERAL)
    return _part(text, line) if any(pattern.match(text) for pattern in patterns) else None


def _part(title: str, line: Line, depth: int = 0) -> Part:
    """Return the part of a heading; `depth`: its level, if the document says it."""
    title = " ".join(title.split())
    kind = number = ""
    name = _CELL.sub("", title)
    if match := _NUMBERED.match(in_english(name)):
        kind = (match["kind"] or match["of"]).lower()
        number = number_of(match["number"] or match["ordinal"])
    elif numeral := _NUMERAL.match(name):
        kind, number = "numeral", number_of(numeral["number"])
    elif section := _SECTION.match(name):
        kind, number = "section", section["number"]
    level = 1 if kind in OUTER else 2 if kind in INNER else 3
    if kind == "section":
        level = 3 + number.count(".")
    if depth:
        level = 2 * depth - (kind in OUTER)
    return Part(title, kind, number, level, line.block.source, line.byte, 0, "")


def _parts(pairs: Sequence[tuple[Part, Line]], ends: dict[int, Line]) -> list[Part]:
    """Return the parts with their ends and places."""
    open: dict[int, tuple[int, Line, bool]] = {}
    parts: list[Part] = []
    source = -1
    for part, line in reversed(pairs):
        if part.source != source:
            source, open = part.source, {}
            whole = end_of(ends[source]), ends[source], False
        levels = [level for level in open if level <= part.level]
        # The open heading of the highest number of these levels begins first.
        end, last, heads = min((open[level] for level in levels), default=whole)
        if end == part.begin and parts:  # bookmarks of one page, whose places on it are unknown
            end = parts[-1].end
        place, first = "", line.block.place
        if first is None:
            behind = last.number + last.text.count("\n", 0, -1)  # of several lines without words
            place = f"lines {line.number}-{behind - heads}"
        elif isinstance(first, int):
            place = f"pages {first}-{last.block.place}"
        parts.append(replace(part, end=end, place=place))
        open[part.level] = part.begin, line, True
    return parts[::-1]


def _are_no_entries(parts: Sequence[Part]) -> list[bool]:
    """Return for each part whether it is no entry of a table of contents."""
    keys = [(part.source, part.kind, part.number or part.title.casefold()) for part in parts]
    nexts = [part.begin for part in parts[1:]] + [part.end for part in parts[-1:]]
    own = [behind - part.begin for part, behind in zip(parts, nexts, strict=True)]
    last = {key: part.begin for key, part in zip(keys, parts, strict=True)}
    longest: dict[object, int] = {}
    stays = []
    for key, part, size in zip(keys, parts, own, strict=True):
        bare = "" not in (part.number, part.place) and size <= len(part.title.encode()) + BLANK
        stays.append(not bare or part.begin == last[key])
        if stays[-1]:
            longest[key] = max(longest.get(key, 0), part.end - part.begin)
    return [
        stay and (size > ENTRY or 10 * (part.end - part.begin) >= longest[key])
        for key, part, size, stay in zip(keys, parts, own, stays, strict=True)
    ]
