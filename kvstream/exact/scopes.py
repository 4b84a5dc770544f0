"""A part of a text that is read alone: a chapter, pages, lines, messages, or a span of time.

The text keeps its offsets, line numbers and places, so that citations are those of the whole.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from email.utils import parsedate_to_datetime
from itertools import accumulate, chain, groupby, islice, pairwise
from math import inf
from time import gmtime, strftime

from kvstream.errors import SourceError, UsageError
from kvstream.exact.outline import Part, in_english, joined, number_of, of_kind, outline
from kvstream.exact.routing import EXCLUSIVE, INNER, OUTER
from kvstream.exact.units import definitions, is_head, sender_of
from kvstream.exact.wording import ORDINALS, TENS, WORDS
from kvstream.input.blocks import TextBlock
from kvstream.input.lines import Line, lines_of
from kvstream.input.sources import SourceSet
from kvstream.input.table_reader import header_lines
from kvstream.logs.line_parser import LONGEST_LINE, LineParser
from kvstream.reporters.format import counted, shortened

DAY = 86400
SAMPLE = 50
"""Lines that are looked at for a time."""
HEAD = 20
"""Lines from which the header of a table is recognized."""
NAMES = 8
_KINDS = "|".join(OUTER + INNER)
_TO = r"(?: ?(?:-|–|to|through|and) ?(?:(?P=kind)s? )?(?P<last>[\w.]+))?"
_TO_NUMBER = _TO.replace(r"[\w.]", r"\d")
_NUMBERS = re.compile(
    rf"(?:the )?(?P<kind>{_KINDS})s? (?:no\.? |number )?"
    rf"(?P<first>(?:{TENS})[- ](?:{WORDS})|[\w.]+|the \w+)"
    rf"{_TO}|(?:the )?(?P<ordinal>{ORDINALS}) (?P<of>{_KINDS})",
    re.IGNORECASE,
)
_LIKE_TIME = re.compile(r"\d:\d\d|\d{4}-\d\d-\d\d")
_SPAN = re.compile(rf"(?P<kind>line|page|pp?\.?)s? ?(?P<first>\d+){_TO_NUMBER}", re.IGNORECASE)
_UNITS = "message|e-?mail|mail|paragraph"
_FEW = re.compile(
    r"(?:the )?(?:very )?(?P<which>first|last|latest|newest"
    r"|(?P<second>penultimate|second[- ](?:to[- ])?last|last[- ]but[- ]one|next[- ]to[- ]last))"
    rf"(?: (?P<count>\d+|{WORDS}))? (?P<unit>line|page|{_UNITS}|{_KINDS})s?"
    r"(?: (?:from|by) (?P<name>.+))?",
    re.IGNORECASE,
)
"""Some at the beginning or at the end."""
_FROM = re.compile(
    rf"(?:the |an? )?(?:(?P<which>{ORDINALS}) )?(?P<unit>{_UNITS})s?(?: (?:from|by) (?P<name>.+))?",
    re.IGNORECASE,
)
_PLACED = re.compile(rf"(?P<kind>{_UNITS})s? (?:no\.? )?(?P<first>\d+){_TO_NUMBER}", re.IGNORECASE)
_TITLE = re.compile(
    rf"(?:the )?(?:(?:{_KINDS}) (?:called |named |titled |on |about )?)?"
    rf"[\"'“‘]?(?P<name>.+?)[\"'”’]?(?: (?:{_KINDS}))?",
    re.IGNORECASE,
)
_OF_CODE = re.compile(
    r"(?:the )?(?P<unit>function|method|class) [\"'`]?(?P<name>[\w$]+)(?:\(\))?[\"'`]?",
    re.IGNORECASE,
)
_CLOCK = re.compile(r"(\d\d+):(\d\d):(\d\d)")
"""The place of a caption."""
_DAY = re.compile(r"\W{0,4}(?P<day>\d{4}-\d\d-\d\d)(?![\d-])")
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WHEN = re.compile(
    rf"(?:(?P<week>{'|'.join(_WEEKDAYS)})|(?P<day>\d{{4}}-\d\d-\d\d))?(?:,? at |[, ]+)?"
    r"(?:(?P<hour>\d\d?)(?::(?P<minute>\d\d))?(?::(?P<second>\d\d))?(?: ?(?P<half>[ap])\.?m\.?)?)?",
    re.IGNORECASE,
)
_STAMP = re.compile(
    r"\[?(?P<a>\d{1,4})(?P<sep>[-./])(?P<b>\d\d?)(?P=sep)(?P<c>\d{1,4})(?:,? |[T,])(?:at )?"
    r"(?P<clock>\d\d?:\d\d)(?P<second>:\d\d)?(?:\s?(?P<half>[AaPp])\.?[Mm]\b)?"
)
"""The time of a chat or a diary, which a log does not have: without seconds or century."""
_SLASHED = re.compile(r"\W{0,4}(\d\d?)[-/](\d\d?)[-/]\d\d")
_DAY_OR_WEEKDAY = re.compile(
    rf"{'|'.join(_WEEKDAYS)}|\d{{4}}-(?:(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01]))(?!\d)", re.IGNORECASE
)
_MONTH_DAY = re.compile(r"[A-Z][a-z]{2} \d\d?(?!\d)")
_LETTERS = {"1": "i", "5": "v", "10": "x", "50": "l", "100": "c"}
"""Numbers of parts that are letters, if others of their kind are: appendix C."""
EARLIEST = 1e8
"""Times below it, in 1973, are of a clock without a day, such as seconds since a start."""
Keep = Callable[[Line], bool]


@dataclass
class Scope:
    """Chooses lines of a text."""

    name: str
    ranges: tuple[tuple[int, int], ...] = ()
    """Global byte offsets."""
    span: tuple[str, int, int] | None = None
    """``line`` or ``page``, the first and the last number."""
    sender: str = ""
    since: str = ""
    until: str = ""
    _senders: list[str] = field(default_factory=list)
    """Senders that there are, for an error."""
    _times: list[str] = field(default_factory=list)
    """The first and the last time."""
    parser: LineParser = field(default_factory=LineParser)
    """Knows whether the day is before the month."""
    headed: bool = True
    """Whether the header of a table goes with its lines."""
    notes: list[str] = field(default_factory=list)
    names: Callable[[], Sequence[str]] = tuple
    """Returns those of the sources, whose order may change."""

    @property
    def end(self) -> int | None:
        """Global byte offset of the end, if it is known."""
        return self.ranges[-1][1] if self.ranges else None

    def select(self, blocks: Iterator[TextBlock]) -> Iterator[TextBlock]:
        """Yield what is chosen of a text. Raises SourceError if that is nothing."""
        tests = self._tests()
        source, skips, last, nothing = -1, 0, 0, True
        part: tuple[TextBlock, int, int, int, int] | None = None
        header: list[tuple[Line, int]] = []
        for line, is_header in self._flag(lines_of(blocks)):
            if self.end is not None and line.byte >= self.end:
                break
            if line.block.source != source:
                source, skips, header = line.block.source, 0, []
            if self.span is not None:
                last = _number(line, self.span[0]) or last
            verdicts = [test(line) for test in tests]  # each must see every line
            if not all(verdicts):
                header += [(line, skips)] if is_header else []
                skips += line.text.endswith("\n") and not is_header
                continue
            nothing = False
            if header:
                at = f"line {header[0][0].number}"
                self.notes = [f"The header of the table, {at}, is read with {self.name}."]
            batch, header = [*header, (line, skips)], []
            pieces = ((piece, own, out) for own, out in batch for piece in own.pieces)
            for (block, begin, end), own, out in pieces:
                if part is not None and part[0] is block and part[2:4] == (begin, out):
                    part = block, part[1], end, out, part[4]
                    continue
                if part is not None:
                    yield part[0].part(*part[1:])
                part = block, begin, end, out, own.byte if begin else block.start
        if part is not None:
            yield part[0].part(*part[1:])
        for _ in blocks:  # sizes and digests are those of the whole text
            pass
        if nothing:
            raise SourceError(self._missing(last))

    def _flag(self, lines: Iterator[Line]) -> Iterator[tuple[Line, bool]]:
        """Yield every line, and whether it is the header of a table whose lines are chosen."""
        for source, own in groupby(lines, key=lambda line: line.block.source):
            first = [] if self.ranges or self.sender or not self.headed else [*islice(own, HEAD)]
            plain = bool(first) and first[0].block.place is None
            names = self.names()
            name = names[source] if names else ""
            heads = {line.byte for line in header_lines(first, name)} if plain else ()
            yield from ((line, line.byte in heads) for line in chain(first, own))

    def _tests(self) -> list[Keep]:
        tests: list[Keep] = []
        if self.ranges:
            begins, ends = zip(*sorted(self.ranges), strict=True)
            until = [0, *accumulate(ends, max)]  # of the ranges that have begun
            tests.append(lambda line: line.byte < until[bisect_right(begins, line.byte)])
        if self.span is not None:
            unit, first, last = self.span
            tests.append(lambda line: first <= (_number(line, unit) or -1) <= last)
        if self.sender:
            tests.append(_from(self.sender, self._senders))
        if self.since or self.until:
            tests.append(_between(self.since, self.until, self._times, deepcopy(self.parser)))
        return tests

    def _missing(self, last: int) -> str:
        timed, has = bool(self.since or self.until), []
        if self.sender:
            names = ", ".join(self._senders[:NAMES])
            has.append(f"there are messages from {names}" if names else "it has no messages")
        elif self.span is not None and not (timed and last >= self.span[1]):
            timed = False
            has.append(f"it has {counted(last, self.span[0]) if last else f'no {self.span[0]}s'}")
        if timed or not has:
            ends = (
                f"its times are from {self._times[0]} to {self._times[-1]}" if self._times else ""
            )
            has.append(ends or "its lines have no times that kvstream knows")
        within = " in that time" * (timed and (self.sender != "" or self.span is not None))
        return f"No part of the text is {self.name}{within}: {', and '.join(has)}."


def restrict(sources: SourceSet, only: str = "", since: str = "", until: str = "") -> SourceSet:
    """Read only a part of the sources. Raises SourceError if it is missing or unreadable."""
    if only or since or until:
        times = " ".join(f"{n} {v}" for n, v in (("since", since), ("until", until)) if v)
        scope = _scope(sources, only) if only else Scope(times)
        scope.since, scope.until, scope.names = since, until, lambda: sources.names
        if since or until:
            scope.parser = _of_days(sources)
        sources.scope = scope
    return sources


def _scope(sources: SourceSet, only: str) -> Scope:
    only = only.strip()
    if span := _SPAN.fullmatch(only):
        (first,), (last,) = _ends(only, span["first"], span["last"])
        if not first:
            raise UsageError(f"--only {only}: lines and pages begin with 1.")
        unit = "line" if span["kind"].lower().startswith("l") else "page"
        return Scope(only, span=(unit, first, last))
    few = _FEW.fullmatch(only)
    unit = few["unit"].lower() if few else ""
    if few and unit in ("line", "page"):
        return _few(sources, only, unit, _some(few))
    if scope := _ordered(sources, only):
        return scope
    every = outline(sources.again())
    parts = joined(every)
    nexts = (part.begin for part in every[1:])
    cells = [replace(p, end=min(p.end, next(nexts, p.end))) for p in every]  # each alone
    hits = _hits(parts, only) or _hits(cells, only)
    if not hits and (scope := _numbered(sources, only)):
        return scope
    if not hits and (code := _OF_CODE.fullmatch(only)):
        unit = "class" if code["unit"].lower() == "class" else "function"
        hits = definitions(sources.again(), unit, code["name"])
    pair = re.split(r"(?i),? (?:of|in) |, |(?<=[\divxlc]) (?=[a-z])", only, maxsplit=1)
    for inner, outer in (pair, pair[::-1]) if len(pair) == 2 and not hits else ():
        if not hits and len(around := _hits(parts, outer)) == 1:
            begin, end = around[0].begin, around[0].end
            own = sources.again()
            own.scope = Scope(outer, ranges=((begin, end),))
            if scope := _ordered(own, inner) or _numbered(own, inner):
                return replace(scope, name=only)
            hits = _hits([p for p in parts if begin <= p.begin < end], inner)
    if not hits:
        name = only.removeprefix("the ")
        titles = {re.split("[.:] ", p.title)[-1].casefold(): p.title for p in parts}
        near = [] if _NUMBERS.fullmatch(only) else get_close_matches(name.casefold(), titles, 1)
        hint = f'Did you mean "{titles[near[0]]}"? ' if near else ""
        advice = "kvstream found no headings in it; --only takes lines 100-200, too."
        advice = f"It has {_list(parts)}; kvstream inspect FILE shows all." if parts else advice
        advice = "For a time use --since and --until." if _LIKE_TIME.search(only) else advice
        raise SourceError(f"The text has no {name}. {hint}{advice}")
    numbers = {part.number for part in hits}
    if len(hits) > 1 and ("" in numbers or len(numbers) < len(hits)):
        several = len({part.source for part in hits}) > 1
        advice = "Read one of the files alone." if several else (
            "Name one by its title, lines or pages, or by the part around it, as in --only "
            f'"{only} of part 2".'
        )  # fmt: skip
        names = _list(hits, sources.names if several else ())
        raise SourceError(f"{len(hits)} parts are {only}: {names}. {advice}")
    title = f"{hits[0].title}{f' to {hits[-1].title}' if len(hits) > 1 else ''}"
    return Scope(title, ranges=tuple((p.begin, p.end) for p in hits))


def _ordered(sources: SourceSet, only: str) -> Scope | None:
    """Return the scope of the messages of somebody, or of paragraphs or messages by their order."""
    if (few := _FEW.fullmatch(only)) and re.fullmatch(_UNITS, few["unit"], re.IGNORECASE):
        scope = Scope(only, sender=few["name"] or "")
        return _stretches(sources, scope, few["unit"], _some(few))
    if (one := _FROM.fullmatch(only)) is None or not (one["name"] or one["which"]):
        return None
    scope = Scope(only, sender=one["name"] or "")
    at = int(number_of((one["which"] or "first").lower())) - 1
    return _stretches(sources, scope, one["unit"], slice(at, at + 1)) if one["which"] else scope


def _numbered(sources: SourceSet, only: str) -> Scope | None:
    """Return the scope of paragraphs or messages by their numbers."""
    if (placed := _PLACED.fullmatch(only)) is None:
        return None
    (first,), (last,) = _ends(only, placed["first"], placed["last"])
    some = slice(first - 1, last) if first else slice(0)
    return _stretches(sources, Scope(only), placed["kind"], some)


def _some(few: re.Match[str]) -> slice:
    """Return which of all units some at the beginning or at the end are."""
    count = int(number_of(few["count"] or "one"))
    if few["second"]:
        return slice(-2, -1)
    return slice(count) if few["which"].lower() == "first" else slice(-count, None)


def _few(sources: SourceSet, only: str, unit: str, some: slice) -> Scope:
    """Return the scope of some lines or pages, of each source."""
    if some.stop is not None and some.stop > 0:
        return Scope(only, span=(unit, 1, some.stop))
    ends = {line.block.source: n for line, n in _numbers(sources, unit)}
    numbers = {source: range(1, end + 1)[some] for source, end in ends.items()}
    if len(numbers) == 1 and (own := numbers.popitem()[1]):
        return Scope(only, span=(unit, own[0], own[-1]))
    every = _numbers(sources, unit)
    places = (line.byte for line, n in every if n in numbers[line.block.source])
    return Scope(only, ranges=tuple((at, at + 1) for at in places) or ((0, 0),))


def _stretches(sources: SourceSet, scope: Scope, unit: str, which: slice) -> Scope:
    """Return the scope with the range of some paragraphs, none of them a heading, or of messages,
    perhaps of one sender.
    """
    of_text = unit.lower() == "paragraph"
    heads = {part.begin for part in outline(sources.again())} if of_text else ()
    begins, end, keep = list[tuple[int, bool]](), 0, _from(scope.sender, scope._senders)
    source, blank = -1, True
    for line in lines_of(sources.again()):
        other, space, head = line.block.source != source, line.text.isspace(), line.byte in heads
        if of_text:
            begins += [(line.byte, not head)] if (blank or other or head) and not space else []
        elif sender_of(line) is not None:
            begins.append((line.byte, keep(line)))
        elif other:
            begins.append((line.byte, False))
        source, blank = line.block.source, space or head
        end = line.byte + len(line.text.encode("utf-8", "replace"))
    spans = [(a, b) for (a, own), (b, _) in pairwise([*begins, (end, False)]) if own]
    if not spans[which] and not scope.sender:
        has = counted(len(spans), "paragraph" if of_text else "message")
        raise SourceError(f"The text has no {scope.name}: it has {has}.")
    ends = (spans[which][0][0], spans[which][-1][1]) if spans[which] else (0, 0)
    return replace(scope, ranges=(ends,))


def _hits(parts: list[Part], only: str) -> list[Part]:
    """Return the parts that have a number, or a title; all that fit."""
    few = _FEW.fullmatch(only)
    if few and few["unit"].lower() in OUTER + INNER and (few["count"] or few["second"]):
        return of_kind(parts, few["unit"].lower())[_some(few)]
    if (numbers := _NUMBERS.fullmatch(in_english(only))) and (
        first := number_of(numbers["first"] or numbers["ordinal"])
    ):
        some = of_kind(parts, (numbers["kind"] or numbers["of"]).lower())
        if first == "last":
            return some[-1:]
        last = number_of(numbers["last"] or "") or first
        lettered = any(len(part.number) == 1 and part.number.isalpha() for part in some)
        names = _LETTERS if lettered else {}
        begin, end = _ends(only, names.get(first, first), names.get(last, last))
        hits = [p for p in some if begin <= _rank(names.get(p.number, p.number)) <= end]
        if hits:
            return hits
    if (match := _TITLE.fullmatch(only)) is None:
        return []
    name = " ".join(match["name"].casefold().split())
    titles = [(part, part.title.casefold()) for part in parts]
    exact = [part for part, title in titles if title in (name, only.casefold())]
    bare = [part for part, title in titles if re.sub(r"^\W*[\d.]+\W+", "", title) == name]
    within = re.compile(rf"(?<!\w){re.escape(name)}(?!\w|\.\d)")
    inside = [part for part, title in titles if within.search(title)]
    if hits := exact or bare or (inside if len(name) > 2 and not number_of(name) else []):
        return hits
    other = re.sub(r"^(?:clause|subsection|item|rule)(?=s? \d)", "section", name)
    return _hits(parts, other) if other != name else []


def _ends(only: str, begin: str, end: str | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks of a range. Raises UsageError if it ends before it begins, or if ``and``
    leaves others out.
    """
    first, last = _rank(begin), _rank(end or begin)
    if first > last:
        raise UsageError(f"--only {only!r} ends before it begins; write the smaller number first.")
    if " and " in only and (*first[:-1], first[-1] + 1) < last:
        raise UsageError(f"--only {only!r} names two parts; read one of them alone, or 2-4.")
    return first, last


def _rank(number: str) -> tuple[int, ...]:
    """Return what numbers such as 12, 2.10 and c are sorted by."""
    return tuple(int(n) if n.isdecimal() else ord(n[0]) for n in number.split(".") if n)


def has_times(sources: SourceSet) -> bool:
    """Return whether a line near the beginning of a text has a time."""
    parser = _of_days(sources)
    return any(_time(line, parser) is not None for line in islice(lines_of(sources), SAMPLE))


def one_day(sources: SourceSet) -> bool:
    """Return whether a text has times, all of one day."""
    parser, days = _of_days(sources), set[float]()
    for line in lines_of(sources):
        if (time := _time(line, parser)) is not None:
            days.add((time + (parser.zone or 0)) // DAY)
        if len(days) > 1:
            return False
    return bool(days)


def _list(parts: list[Part], sources: Sequence[str] = ()) -> str:
    """Name parts, the numbered ones first, perhaps with their `sources`."""
    some = [part for part in parts if part.number] or parts
    names = []
    for part in some[:NAMES]:
        places = (sources[part.source] if sources else "", part.place)
        place = ", ".join(filter(None, places))
        names.append(shortened(part.title, 40) + (f" ({place})" if place else ""))
    more = f" and {len(some) - NAMES:,} more" if len(some) > NAMES else ""
    return ", ".join(names) + more


def _numbers(sources: SourceSet, unit: str) -> Iterator[tuple[Line, int]]:
    """Yield the lines of a text that have a number, each with it."""
    for line in lines_of(sources.again()):
        if number := _number(line, unit):
            yield line, number


def _number(line: Line, unit: str) -> int | None:
    """Return the number of a line, or of its page; None if it has none."""
    place = line.block.place
    if unit == "line":
        return line.number if place is None else None
    return place if isinstance(place, int) else None


def _from(sender: str, senders: list[str]) -> Keep:
    """Return the test for lines of messages from somebody."""
    inside, source = False, -1
    known = re.compile(rf"(?<!\w){re.escape(sender.casefold())}(?!\w)")  # such as +49 170 12

    def keep(line: Line) -> bool:
        nonlocal inside, source
        inside, source = inside and line.block.source == source, line.block.source
        name = sender_of(line)
        if name is not None:
            inside = not sender or known.search(name.casefold()) is not None
            if name not in senders and len(senders) < NAMES:
                senders.append(name)
        return inside

    return keep


def _of_days(sources: SourceSet) -> LineParser:
    """Return a parser that knows whether the day is before the month, if a line shows that."""
    some = False
    with suppress(SourceError):  # a pipe is read only once
        for number, line in enumerate(lines_of(sources.again())):
            if match := _SLASHED.match(line.text):
                some, parser = True, LineParser()
                if max(map(int, match.groups())) > 12 and _time(line, parser) is not None:
                    return parser
            elif number > SAMPLE and not some:
                break
    return LineParser()


def _between(since: str, until: str, times: list[str], parser: LineParser) -> Keep:
    """Return the test for lines of a span of time; lines without one follow the line before."""
    inside, zone, source = False, 0, -1
    limits: list[float] = []

    def keep(line: Line) -> bool:
        nonlocal inside, zone, source
        inside, source = inside and line.block.source == source, line.block.source
        if (time := _time(line, parser)) is None:
            return inside
        if not limits:
            zone = parser.zone or 0
            limits.append(_limit(since, parser, time + zone, "00:00:00") if since else -inf)
            limits.append(_limit(until, parser, time + zone, "23:59:59.999") if until else inf)
            if limits[0] > limits[1]:
                raise UsageError(
                    f"--since {since} is later than --until {until}; exchange them, or give both "
                    "their days, as in '2024-05-01 10:30'."
                )
        text = _time_text(time + zone, parser, line)
        times[:] = [*(times[:1] or [text]), text]
        inside = limits[0] <= time <= limits[1]
        return inside

    return keep


def _time(line: Line, parser: LineParser) -> float | None:
    """Return the time of a line, of a message by its header; None if it has none."""
    if is_head(line):
        head = re.search(r"^Date: (.*)", line.block.text, re.MULTILINE)
        with suppress(ValueError, TypeError):
            if head is None:
                return None
            date = parsedate_to_datetime(head[1])
            parser.zone = int((date.utcoffset() or timedelta()).total_seconds())
            return date.timestamp()
    place = line.block.place
    if isinstance(place, str) and (clock := _CLOCK.fullmatch(place)):
        hours, minutes, seconds = map(int, clock.groups())
        return 3600.0 * hours + 60 * minutes + seconds
    time = parser.time_of(_as_in_a_log(line.text[:LONGEST_LINE].rstrip()))
    if time is None and (match := _DAY.match(line.text)):
        with suppress(ValueError):
            return datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp()
    return time


def _as_in_a_log(text: str) -> str:
    """Return a text whose time a log would not have with seconds and the century."""
    match = _STAMP.match(text := text.removeprefix("\u200e"))
    if match is None or (
        match["second"]
        and "," not in match[0]
        and (max(map(len, match.group("a", "c"))) == 4 or match["sep"] == "/")
    ):
        return text
    a, sep, b, c = match.group("a", "sep", "b", "c")
    century = "20" * (len(c) == 2)
    date = f"{a}-{b}-{c}" if len(a) == 4 else f"{a:0>2}{sep}{b:0>2}{sep}{century}{c}"
    half = f" {match['half'].upper()}M" if match["half"] else ""
    return f"{date} {match['clock']}{match['second'] or ':00'}{half} {text[match.end() :]}"


def _time_text(time: float, parser: LineParser, line: Line) -> str:
    """Return a time as ``--since`` takes it."""
    day = "%Y-%m-%d " if parser.dated else "%b %e "
    dated = parser.has_days or is_head(line) or _DAY.match(line.text)
    return strftime(f"{day if dated else ''}%H:%M:%S", gmtime(time))


def _limit(value: str, parser: LineParser, first: float, rest: str) -> float:
    """Return --since or --until in seconds. A time without a day is on the day of the first time, a
    weekday the first one from there; a day stands for its beginning, or its end. A time without a
    zone is in that of the parser; `first` is the first time by this clock. Raises UsageError.
    """
    value, zone = value.strip(), parser.zone or 0
    if value.endswith(EXCLUSIVE):
        clock, step = ("23:59:59", 1) if rest == "00:00:00" else ("00:00:00", -1e-6)
        return _limit(value.removesuffix(EXCLUSIVE), parser, first, clock) + step
    undated = not parser.dated or (not parser.has_days and first < EARLIEST)
    if undated and (match := _DAY_OR_WEEKDAY.match(value)):
        if match[1] is None or not parser.has_days:
            lacks, example = ("year", "'Jun 15 10:30'") if parser.has_days else ("day", "10:30")
            raise SourceError(
                f"The times of the text have no {lacks}, so nothing shows which of them are of "
                f"{match[0]}; write {example}."
            )
        month = datetime(2000, int(match[1]), 1)  # no year can be compared
        value = f"{month:%b} {match[2]}{value[match.end() :]}"
    if match := _MONTH_DAY.match(value):  # of the year in which it is next to the first time
        year = datetime.fromtimestamp(first, UTC).year
        days = []
        for each in (year - 1, year, year + 1):
            with suppress(ValueError):  # February 29
                days.append(datetime.strptime(f"{each} {match[0]} +0000", "%Y %b %d %z"))
        if days:
            day = min(days, key=lambda day: abs(day.timestamp() - first))
            value = f"{day.date()}{value[match.end() :]}"
    if (match := _WHEN.fullmatch(value)) and not value.isdigit():
        clock = rest
        if match["hour"]:
            hour = int(match["hour"])
            if match["half"]:
                hour = hour % 12 + 12 * (match["half"] in "pP")
            clock = f"{hour:02}:{match['minute'] or '00'}:{match['second'] or '00'}{rest[8:]}"
        start = datetime.fromtimestamp(first // DAY * DAY, UTC)
        if match["week"]:
            start += timedelta((_WEEKDAYS.index(match["week"].lower()) - start.weekday()) % 7)
        with suppress(ValueError):
            date = datetime.fromisoformat(f"{match['day'] or start.date()}T{clock}Z")
            return date.timestamp() - zone
    within = float(f"0{rest[8:]}")  # the last second counts whole, unless it has a fraction
    with suppress(ValueError):
        date = datetime.fromisoformat(f"{value}T{rest}" if value.isdigit() else value)
        time = date.timestamp() if date.tzinfo else date.replace(tzinfo=UTC).timestamp() - zone
        return time + within * (time % 1 == 0)
    for end in ("", ":00", f" {rest[:8]}"):
        own = deepcopy(parser)
        found, _ = own.parse(_as_in_a_log(f"{value}{end} x"))
        if found is not None:
            return found - zone * (own.zone is None) + within * (found % 1 == 0)
    raise UsageError(
        f"{value!r} is not a time; write 2024-05-01, '2024-05-01 10:30', 10:30, '3 pm' or 'Tuesday "
        "10:00'."
    )
