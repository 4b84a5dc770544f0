"""Parse the times of the lines of a log, and recognize logs.

Each format of a time has a pattern; the pattern that matched last is tried first.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import gmtime
from typing import Any, NamedTuple

from kvstream.input.controls import without_controls
from kvstream.logs import containers, levels, stamps
from kvstream.logs.components import without_fields
from kvstream.logs.containers import LONGEST_LINE, ContainerLine
from kvstream.logs.keyed_lines import LONGEST_KEY, TIMES, inner_line, line_of, record_of
from kvstream.logs.stamps import EPOCH, HOUR, KERNEL, LOOSE, PATTERNS
from kvstream.logs.traces import TRACE, Continuation

LONGEST_HOUR = 16
"""A text with fewer characters can be a time without a date."""
LONG = 16_384
"""A line of at least so many characters is enough to recognize a log, as few others may fit in the
beginning that is examined."""
EARLIEST = 1e9
"""A number under a key of times that is certainly a time: seconds since 1970 in the year 2001."""
LOOSE_LINES = 4
"""Number of lines that match the last, loose pattern, after which its number counts as a time."""
_LEAP_YEAR = 1972
_SECONDS = 4096
"""Maximum number of line beginnings whose time is cached."""
_LENGTHS = 4
"""Maximum number of different lengths of these beginnings."""

_LOG_FILE = re.compile(r"\S*\.log\S*:? ?$")
_PROCESS = re.compile(r" ?((?:[\w.-]+ )?[\w./()@-]+\[\d+\]):(?: |$)")
LONGEST_PROCESS = 120
_PRIORITY = re.compile(r"<(\d{1,3})>(\d )?$")
"""Of syslog: eight times the facility, and the level; then the version, in RFC 5424 alone."""


class Entry(NamedTuple):
    """A line of a log."""

    text: str
    """The line as its program wrote it, without what a container runtime adds."""
    time: float | None
    rest: str
    """The line without its time, with the name of its container as its component."""
    container: str
    writer: str
    """The container and the stream."""
    continues: bool
    """Whether it continues the line before it, if that is of the same writer."""
    more: Sequence[str]
    """The other lines of the text of a record, such as a stack trace."""
    number: int
    """The number of the line in the log, and of the first one if a runtime split it."""
    pieces: int
    """Number of lines of the log into which a runtime split it."""


class LineParser:
    """Splits lines into a time and the rest.

    Times are seconds since 1970. The time zone of a line is applied; without one, times are those
    of the clock of the log. A time without a year gets that of the times before it, so that January
    follows December. If the first time of a log has no year, all years are made up, also those of
    later times that have one. Then the first February has 29 days.
    """

    def __init__(self) -> None:
        self._pattern: re.Pattern[str] | None = None
        self._loose = 0
        self._with_day = self._without_day = 0
        """Number of lines of the source whose time has a day, and of other times beside them."""
        self._cache: dict[str, tuple[float, str, re.Pattern[str]]] = {}
        self._lengths: list[int] = []
        self._first_year = self._year = _LEAP_YEAR
        self._month = 0
        self._made_up: bool | None = None
        """Whether the years of the log are made up; None before the first time with a day."""
        self._day_first: bool | None = None
        """Whether the day comes before the month, once a number above 12 shows it."""
        self._status: int | None = None
        """Which field has the status of a request, if a header says so."""
        self.split_lines = containers.SplitLines()
        self._continuations: dict[str, Continuation] = {}
        """Of each writer, the latest last, because their lines alternate."""
        self._process = ""
        """Host, program and number of the process of the last line, if it is one of syslog."""
        self._in_trace = False
        self.zone: int | None = None
        """Seconds by which the clock of the last line is ahead of UTC; None if it does not say."""
        self.dated = True
        self.has_days = False
        """Whether a time has a day, and not only an hour or the seconds since a start."""

    def begin(self) -> None:
        """Begin another source: the header of the one before it says nothing about its fields."""
        self._status = None
        self._with_day = self._without_day = 0

    def entry(self, line: str, number: int = 0) -> Entry | None:
        """Parse a line of the log; None for a piece of a line whose end is still to come."""
        line = without_controls(line)
        if line[:1] in " [" and '{"' in line[:LONGEST_KEY]:
            element = line.lstrip(" [")
            record = record_of(element)
            line = line if record is None or self._time_in(record) is None else element
        if not containers.PREFIX.match(line):
            return self._entry(ContainerLine(line, number=number))
        piece = containers.container_line(line, number)
        whole = self.split_lines.join(piece) if piece.stamp else piece
        return None if whole is None else self._entry(whole)

    def rest(self) -> list[Entry]:
        """Return the split lines whose end is missing, at the end of a source."""
        return [self._entry(line) for line in self.split_lines.rest()]

    def _entry(self, line: ContainerLine) -> Entry:
        """Parse a line from which `container_line` has taken what a runtime added."""
        text, name, stamp, stream, _, number, pieces = line
        if stamp:  # a record of Docker, or the pieces of a line, have control sequences
            text = without_controls(text)
        time, rest = self.parse(text)
        if "#01" in rest and _PROCESS.match(rest):  # as rsyslog writes line ends and tabs
            rest = rest.replace("#012", "\n").replace("#011", "\t")
        writer = f"{name} {stream}" if stream else name
        continuation = self._continuations.pop(writer, None) or Continuation()
        self._continuations[writer] = continuation
        if len(self._continuations) > containers.MOST_STREAMS:
            del self._continuations[next(iter(self._continuations))]
        more: Sequence[str] = ()
        if text[:1] == "{" or "\n" in rest:  # a record's text may have colors and several lines
            rest, *more = without_controls(rest).split("\n")
        continues, timed = False, time is not None
        if time is None and text:
            # With a stamp, the program may write no time in any line.
            surely = bool(stamp) and not (continuation.head or continuation.has_level)
            continues = continuation.continues(text, surely=surely)
        elif text and (message := self._of_trace(rest, continuation)) is not None:
            text = rest = message
            time, continues = None, True
        if stamp and text and not continues and (time or 0.0) < EARLIEST:  # it has no date
            time = self._time_of_stamp(stamp)
        if not continues and text:
            continuation.head = text if timed and not self._process else ""
            continuation.has_level = levels.BEGINS_WITH_LEVEL.match(text) is not None
            last = more[-1] if more else rest
            if continuation.expects or last[-1:] == ":":
                continuation.begin(last)
        rest = containers.with_name(name, rest) if name else rest
        return Entry(text, time, rest, name, writer, continues, more, number, pieces)

    def _of_trace(self, rest: str, continuation: Continuation) -> str | None:
        """Return the message of a line of syslog that continues a trace of its process."""
        match = _PROCESS.match(rest) if "]:" in rest[:LONGEST_PROCESS] else None
        process, before = (match[1] if match else ""), self._process
        self._process = process
        if not match or process != before:
            self._in_trace = False
            return None
        message = rest[match.end() :]
        if message and not message.isspace():
            trace = self._in_trace or continuation.expects or TRACE.match(message)
            self._in_trace = bool(trace) and continuation.continues(message, surely=True)
        return message if self._in_trace or not message else None

    def time_of(self, line: str) -> float | None:
        """Return the time of a line, or a piece of one; that of its runtime if it has no date."""
        element = line.lstrip(" [")
        piece = containers.container_line(element if element[:1] == "{" else line, 0)
        time = self.parse(piece.text)[0]
        return self._time_of_stamp(piece.stamp) if piece.stamp and (time or 0) < EARLIEST else time

    def _time_of_stamp(self, stamp: str) -> float | None:
        """Return the time of a runtime, which says nothing about those of its programs."""
        lines = self._with_day
        time = self._split(stamp)[0]
        self._with_day = lines
        return time

    def parse(self, line: str) -> tuple[float | None, str]:
        """Return the time of a line, or None, and its rest; failed requests get a level."""
        if line.startswith(levels.FIELDS):
            self._status = levels.place_of_status(line)
        time, rest = self._split(line)
        if time is not None and rest[-1:] == "}" and line[:1] != "{":
            rest = inner_line(rest)
        if self._status is not None and time is not None:
            return time, levels.with_status_at(self._status, line, rest)
        return time, levels.with_failure(rest)

    def _split(self, line: str) -> tuple[float | None, str]:
        record = record_of(line) if line[:1] == "{" or "=" in line[:LONGEST_KEY] else None
        if record is not None:
            time = self._time_in(record)
            if time is not None or line[:1] == "{":
                return time, line_of(record)
        for length in self._lengths:
            entry = self._cache.get(line[:length])
            if entry is not None:
                seconds, before, pattern = entry
                end = stamps.ENDS[pattern].match(line, length)
                if end is not None:
                    return self._finish(line, end, seconds, before, pattern)
        return self._parse(line)

    def _parse(self, line: str) -> tuple[float | None, str]:
        """Parse a line whose beginning is not cached."""
        own, month = self._pattern, (self._year, self._month)
        settled = own is not LOOSE or self._loose >= LOOSE_LINES
        others = PATTERNS if own in (None, LOOSE, EPOCH) else PATTERNS[:-1]
        if line[:1] in " \t" and own not in (None, KERNEL):
            others = []
        for pattern in [own, *others] if own is not None and settled else others:
            if (match := pattern.match(line)) is not None:
                if pattern in (HOUR, KERNEL) and self._beside_days():
                    return None, line
                with suppress(ValueError):  # a 13th month
                    seconds = self._convert(match)
                    break
        else:
            return None, line
        if pattern is not own or not settled:
            if pattern is LOOSE:
                self._loose += 1
            elif own is LOOSE and not settled:
                self._cache.clear()  # their numbers were not times
            if not (own is LOOSE and settled):
                self._pattern = pattern
        if len(self._cache) >= _SECONDS or (self._year, self._month) != month:
            self._cache.clear()  # the same day of another year may follow
        length, before = match.end("stamp"), match.group("p")
        if _LOG_FILE.match(before) is not None:  # the name of the file is before every line
            before = ""
        self._cache[line[:length]] = seconds, before, match.re
        if length not in self._lengths:
            self._lengths = [length, *self._lengths[: _LENGTHS - 1]]
        return self._finish(line, match, seconds, before, match.re)

    def _beside_days(self) -> bool:
        """Return whether a time without a day is one of a few in a log whose times have days."""
        self._without_day += 1
        return self._without_day <= self._with_day

    def _finish(
        self, line: str, end: re.Match[str], seconds: float, before: str, pattern: re.Pattern[str]
    ) -> tuple[float, str]:
        """Return the time with fraction and zone applied, and the rest of the line."""
        self._with_day += pattern is not HOUR and pattern is not KERNEL
        fraction, zone = end.group("f", "zone")
        if fraction:
            seconds += float(f"0.{fraction.lstrip('.,:')}")
        zone = (zone or "").strip()
        if zone[:1] in tuple("AaPp"):
            hour = seconds // 3600 % 24
            if hour <= 12:
                seconds += 43_200 * ((zone[0] in "Pp") - (hour == 12))
            zone = zone[2:].lstrip()
        self.zone = 0 if zone else None
        if zone and zone != "Z":
            offset = int(zone[1:3]) * 3600 + int(zone[3:].lstrip(":") or 0) * 60
            self.zone = offset if zone[0] == "+" else -offset
            seconds -= self.zone
        rest = line[end.end() :]
        if pattern is stamps.ACCESS:
            return seconds, levels.with_status(before, rest)
        if line[end.end() - 1] == "]":
            before = before.removesuffix("[").rstrip()
        if (priority := _PRIORITY.match(before)) is not None:
            level = levels.SYSLOG[int(priority.group(1)) % 8]
            # Most programs write all of their lines as info or notice.
            before = level.upper() if level in levels.SEVERE else ""
            rest = without_fields(rest) if priority.group(2) else rest
        if before[-1:] == rest[:1] == '"':  # a time in quotes
            before, rest = before[:-1], rest[1:]
        if before[-1:] == ",":
            return seconds, f"{before[:-1]} {rest.lstrip(',')}"
        if before and before not in ("[", "- ", "####<"):
            return seconds, f"{before} {rest}"
        return seconds, rest

    def _convert(self, match: re.Match[str]) -> float:
        parts = match.groupdict()
        self.has_days = self.has_days or (match.re is not KERNEL and match.re is not HOUR)
        if parts.get("h") is None:  # an epoch
            return float(parts["stamp"])
        year = _year_of(parts.get("y"))
        if match.re is stamps.YEAR_FIRST and year is not None and gmtime().tm_year < year <= 2031:
            # It can be a day.
            raise ValueError(parts["stamp"])
        if parts.get("a"):
            first, second = int(parts["a"]), int(parts["b"])
            month, day = self._month_and_day(first, second, likely="half" in parts)
        else:
            name = parts.get("mo") or "1"
            month = stamps.MONTHS.get(name[:3].title()) or int(name)
            day = int(parts.get("d") or 1)
        hour, minute, second = int(parts["h"]), int(parts["mi"]), int(parts.get("s") or 0)
        if half := parts.get("half"):
            hour = hour % 12 + 12 * (half in ("PM", "pm"))
        days = calendar.monthrange(year or _LEAP_YEAR, month)[1]
        if not (1 <= day <= days and hour < 24 and minute < 60 and second < 62):
            raise ValueError(parts["stamp"])
        if match.re is not HOUR:
            year = self._year_beside_others(year, month)
        elif year is None:
            self.dated, year = False, _LEAP_YEAR
        return float(calendar.timegm((year, month, day, hour, minute, second)))

    def _month_and_day(self, first: int, second: int, *, likely: bool) -> tuple[int, int]:
        """Return month and day, by a number above 12, or if `likely` month first, else raise."""
        if first > 12 or second > 12:
            day_first = first > 12
            if self._day_first is not day_first:
                self._cache.clear()
            self._day_first = day_first
        elif self._day_first is None and not likely:
            raise ValueError("the order of day and month is unknown")
        return (second, first) if self._day_first else (first, second)

    def _year_beside_others(self, year: int | None, month: int) -> int:
        """Return the year for a time, so that times with and without a year have one clock."""
        if self._made_up is None:
            self._made_up = year is None
        self.dated = self.dated and year is not None
        if year is not None and not self._made_up:
            if self.dated:  # afterwards, a date in a message must not change that of other lines
                self._first_year, self._year, self._month = year - 1, year, month
            return year
        if not self._month:  # a February 29 of a common year is March 1
            self._first_year = self._year = _LEAP_YEAR if month <= 2 else _LEAP_YEAR - 1
        elif self._month - month >= 10:
            self._year += 1
        elif month - self._month >= 10 and self._year > self._first_year:
            self._year -= 1  # lines of two sources alternate around a new year
        self._month = month
        return self._year

    def _time_of(self, value: Any) -> float | None:
        """Return the seconds of a value under a key of times; None if it is not a valid time."""
        if isinstance(value, bool) or value is None:
            return None
        if isinstance(value, str) and value.replace(".", "", 1).isdecimal():
            value = float(value)
        if isinstance(value, int | float):
            self.has_days = True
            return _seconds_of(value)
        text = str(value)
        if text[2:3] == "/":  # time_local of nginx
            text = f"[{text}]"
        return self._split(text)[0] if text[:1] != "{" else None

    def _time_in(self, record: dict[str, Any]) -> float | None:
        """Return the time of a record, preferably with a date: a number may be a duration."""
        hour = record.get("time")
        if "date" in record and isinstance(hour, str) and len(hour) < LONGEST_HOUR:
            # FortiGate has date and time under two keys
            both = self._time_of(f"{record['date']} {hour}")
            if both is not None:
                return both
        first = None
        for key in TIMES:
            time = self._time_of(record[key]) if key in record else None
            if time is not None and time >= EARLIEST:
                return time
            first = time if first is None else first
        return first


def _year_of(digits: str | None) -> int | None:
    """Return the year of a time, None if it has none. Raise ValueError for an unset time."""
    if not digits:
        return None
    year = int(digits)
    if len(digits) == 2:
        return 2000 + year
    if year <= 1:  # Go and .NET write an unset time in this way
        raise ValueError(digits)
    return year


def _seconds_of(number: float) -> float | None:
    """Return seconds since 1970 from a number of (milli, micro, nano)seconds; None: no time."""
    if not 0 < number < 1e20:  # also excludes NaN and infinity
        return None
    while number > 1e11:
        number /= 1000
    return float(number)


def looks_like_log(lines: Iterable[str], least: int = 2) -> bool:
    """Return whether the first lines of a text (some hundred) are those of a log.

    At least half of the lines that do not continue another, and at least `least`, must begin with a
    time, a level or the name of a container, and these must not be the rows of a table. A row with
    a level is a line of a log (CBS.log of Windows). Of very long lines (LONG), one is enough.
    """
    parser = LineParser()
    heads = own = rows = 0
    widths: set[int] = set()
    for entry in map(parser.entry, lines):
        if entry is None:  # a piece of a line that a container runtime split
            heads, own = heads + 1, own + 1
            continue
        if not (text := entry.text).strip():
            continue
        if entry.time is None and (text[:1].isspace() or (heads and entry.continues)):
            continue
        if text.startswith(("# User@Host: ", levels.FIELDS)):
            return True  # of MySQL, whose statements have several lines; or a header of CloudFront
        own += 1
        begins = entry.time is not None or bool(levels.BEGINS_WITH_LEVEL.match(text))
        if begins or containers.CONTAINER.search(entry.container):
            heads += 1
            least = 1 if len(text) >= LONG else least
            begin = entry.rest.lstrip('"')[:1] if text[0] != "[" else ""  # of Samba
            separator = next((c for c in ",;\t" if begin == c), None)
            if separator is not None and levels.level_of(entry.rest) in ("", "suspect"):
                rows += 1
                widths.add(entry.rest.count(separator))
    if heads < least or heads * 2 < own:
        return False
    return not (rows * 10 >= heads * 9 and len(widths) == 1)


class LineSplitter:
    """Splits text that arrives in pieces into lines; holds at most LONGEST_LINE characters."""

    def __init__(self) -> None:
        self._rest = ""
        self._cut = False
        self.long_lines = 0
        """Number of lines longer than LONGEST_LINE."""

    def feed(self, text: str) -> list[str]:
        """Return the lines that this text completes, without their ends."""
        *lines, last = text.replace("\0", "").split("\n")
        if lines:
            lines[0] = self._append(lines[0])
            self.long_lines += self._cut + sum(len(line) > LONGEST_LINE for line in lines[1:])
            self._rest, self._cut = "", False
        self._rest = self._append(last)
        lines = [line[:LONGEST_LINE] for line in lines]
        return [line[:-1] if line[-1:] == "\r" else line for line in lines]

    def _append(self, more: str) -> str:
        """Append text to the unfinished line and return it; note whether it is cut."""
        room = LONGEST_LINE - len(self._rest)
        self._cut = self._cut or len(more) > room
        return self._rest + more[:room]

    def close(self) -> list[str]:
        """Return the last line, if it has no newline."""
        last, self._rest = self._rest, ""
        self.long_lines += self._cut
        self._cut = False
        return [last] if last else []
