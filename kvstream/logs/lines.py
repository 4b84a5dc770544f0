"""Parse lines of a log (time, level, component), and recognize logs.

Each format of a time has a pattern; the pattern that matched last is tried first.
"""

from __future__ import annotations

import calendar
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from kvstream.logs.levels import (
    LEVELS,
    OF_LETTER,
    SEVERE,
    SYSLOG,
    begins_with_level,
    level_of,
    level_of_status,
    number_level,
)
from kvstream.logs.stamps import ACCESS, ENDS, EPOCH, HOUR, KERNEL, LOOSE, MONTHS, PATTERNS

LONGEST_LINE = 65_536
"""Maximum number of characters kept of a line. Longer lines are cut and counted."""
LONGEST_HOUR = 16
"""A text with fewer characters can be a time without a date."""
SETTLED = 4
"""Number of lines that match the last, loose pattern, after which its number counts as a time."""
_LEAP_YEAR = 1972
"""A year with a February 29."""
_SECONDS = 4096
"""Maximum number of line beginnings whose time is cached."""
_LENGTHS = 4
"""Maximum number of different lengths of these beginnings."""

_COMPONENT = re.compile(
    r"[\s|\-\]]*(?:\d+[\s|]+){0,2}(?:\[?[A-Za-z]{1,11}\]?[\s|]+(?:-\s+)?)?(?:\[[^\]]{0,60}\][\s|:-]*){0,2}"
    r"(?:\d+[\s|]+)?([A-Za-z][\w.$/-]*(?:\([\w-]+\))?)(?:\[[^\]]{1,60}\])?(?::\s|\s-\s)"
    r"(?:\[ *\d+\.\d{6}\] )?"  # of a kernel: the seconds since its start
)
_LOG_FILE = re.compile(r"\S*\.log\S*:? ?$")
# LEVEL package.module [request] message; LEVEL [thread:Class@line] - message; and of Kubernetes
# L     1 file.go:88] message
_LOGGER = re.compile(
    r"[\s|-]*(?:\d+\s+)?(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\s+"
    r"(?:([A-Za-z]\w*(?:\.\w+)+)\s+(?=\[|-\s)|\[.{0,100}?:([A-Za-z][\w$]*)@\d+\] - )"
    r"|[IWEFD]\s+\d+ ([\w.-]+):\d+\] "
)
_LEVEL_FIRST = re.compile(
    r"[\s|,\-]*\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|SEVERE|CRITICAL|FATAL"
    r"|(?:VRB|DBG|INF|WRN|ERR|FTL)(?=\]))\b\]?"
    r":?[|,\-]*\s*(?:[:|,\-]+\s+)*",
    re.IGNORECASE,
)
_CONTINUED = re.compile(
    r"\s+\S|\}|\]|\)|Caused by:|\.\.\. \d+ (?:more|common)|at [\w.$]+\(|Traceback \(|"
    r"During handling of|The above exception|"
    r"(?:[\w$]+\.)*[\w$]*(?:Exception|Error|Exit|Interrupt)(?:: |$)|"
    r"goroutine \d+|Suppressed: "
)
_TRACE = re.compile(
    r"\s+at [\w.$<>]+|Caused by:|Traceback \(|\s+File \"|"
    r"(?:[\w$]+\.)*[\w$]*(?:Exception|Error)(?:: |$)"
)
_JSON_TIME = ("time", "timestamp", "@timestamp", "ts", "date", "datetime", "asctime", "t",
              "__REALTIME_TIMESTAMP")  # fmt: skip
_JSON_TEXT = ("msg", "message", "event", "log", "text", "short_message", "MESSAGE")
_JSON_LEVEL = ("level", "levelname", "severity", "lvl", "loglevel", "log.level", "PRIORITY")
_JSON_NAME = ("logger", "name", "service", "component", "module", "source", "caller", "app",
              "SYSLOG_IDENTIFIER")  # fmt: skip
_JSON_CAUSE = ("err", "error", "error.message")
_JSON_STATUS = ("status", "status_code", "statusCode", "http_status", "http.status_code",
                "http.response.status_code")  # fmt: skip
_FAILED = re.compile(r"[45]\d\d")
"""Of HTTP."""
_WHOLE = re.compile(r"-?[0-9]{1,9}")
_OF_SYSLOG = ("PRIORITY", "severity")
"""Keys whose numbers are the levels of syslog."""
_PRIORITY = re.compile(r"<(\d{1,3})>(?:\d )?$")
"""Of syslog: eight times the facility, and the level."""
# An atomic group and space between pairs prevent catastrophic backtracking.
_LOGFMT = re.compile(r"^(?:[\w.@/-]+=(?>\"(?:[^\"\\]|\\.)*\"(?!\S)|\S*)(?:\s+|$)){2,}$")
_KEY_FIRST = re.compile(r"[\w.@/-]+=[\"\w]")
_LONGEST_KEY = 48
"""Number of characters within which the first key of logfmt must end."""
_PAIR = re.compile(r"([\w.@/-]+)=(\"(?:[^\"\\]|\\.)*\"|\S*)")
_FAILED_REQUESTS = (
    # "GET / HTTP/1.1" 500 of a server; "HTTP/1.1 500 Internal Server Error" of a client
    ("HTTP/", re.compile(r"HTTP/[\d.]+\"? ([45])\d\d\b")),
    ("Completed ", re.compile(r"Completed ([45])\d\d ")),  # Rails
    ("TCP_", re.compile(r"TCP_\w+/([45])\d\d ")),  # Squid
    ("haproxy[", re.compile(r"haproxy\[.*?(?:/\+?-?\d+){4} ([45])\d\d ")),
)
"""Where a line without a fixed place of the status has it: the text before, and the whole."""
_WITHIN = 1000
"""Number of characters in which this text must begin."""
_STATUS = re.compile(r"[^\"]*\"(?:[^\"\\]|\\.)*\" ([45])\d\d ")
"""Behind the first text in quotes, which is the request. Other numbers follow."""
_COLOR = re.compile(r"\x1b\[[\d;:]*[mK]")
_NAME = re.compile(r"([A-Za-z][\w.-]*) *\|(?: |$)|\[pod/([\w./-]+)\] ?")
_LONGEST_NAME = 80


def uncolored(line: str) -> str:
    """Return a line without the colors that programs write for a terminal."""
    return _COLOR.sub("", line) if "\x1b" in line else line


def bare(line: str) -> tuple[str, str]:
    """Return the name before a line, and the line without it and without colors.

    ``docker compose logs`` (``web-1  | ``) and ``kubectl logs --prefix`` (``[pod/web/app] ``) put
    the name of the container before each line. For other lines the name is empty.
    """
    line = uncolored(line)
    if line.find("|", 1, _LONGEST_NAME) < 0 and line[:5] != "[pod/":
        return "", line
    found = _NAME.match(line)
    return ("", line) if found is None else (found.group(found.lastindex or 1), line[found.end() :])


def with_name(name: str, rest: str) -> str:
    """Return a line without its time, with a name from `bare` as its component."""
    if not name:
        return rest
    level = _LEVEL_FIRST.match(rest)
    if level is None:
        return f"{name}: {rest.lstrip()}"
    return f"{level.group().strip(' :|,-')} {name}: {rest[level.end() :]}"


class LineParser:
    """Splits lines into a time and the rest.

    Times are seconds since 1970. The time zone of a line is applied; without one, times are those
    of the clock of the log. A time without a year gets one, so that January follows December. The
    first February has 29 days.
    """

    def __init__(self) -> None:
        self._pattern: re.Pattern[str] | None = None
        self._loose = 0
        self._begun: dict[str, tuple[float, str, re.Pattern[str]]] = {}
        self._lengths: list[int] = []
        self._first_year = self._year = _LEAP_YEAR
        self._month = 0
        self.dated = True
        """Whether the times have a year."""
        self.has_days = False
        """Whether a time has a day, and not only an hour or the seconds since a start."""

    def parse(self, line: str) -> tuple[float | None, str]:
        """Return the time of a `bare` line, or None, and the line without the time.

        The line of a failed HTTP request gets a level.
        """
        time, rest = self._split(line)
        # Every line is tested, so this is spelled out.
        if "HTTP/" in rest or "Completed " in rest or "TCP_" in rest or "haproxy[" in rest:
            return time, _with_failure(rest)
        return time, rest

    def _split(self, line: str) -> tuple[float | None, str]:
        if line[:1] == "{":
            found: tuple[float | None, str] | None = self._json(line)
            if found is not None:
                return found
        elif line.find("=", 0, _LONGEST_KEY) > 0 and _KEY_FIRST.match(line) is not None:
            found = self._logfmt(line)
            if found[0] is not None:
                return found
        for length in self._lengths:
            known = self._begun.get(line[:length])
            if known is not None:
                seconds, before, pattern = known
                end = ENDS[pattern].match(line, length)
                if end is not None:
                    return self._ended(line, seconds, before, end, end.groups(), pattern)
        return self._parse(line)

    def _parse(self, line: str) -> tuple[float | None, str]:
        """Parse a line whose beginning is not cached."""
        own = self._pattern
        settled = own is not LOOSE or self._loose >= SETTLED
        match = own.match(line) if own is not None and settled else None
        if match is None:
            if line[:1] in " \t" and own not in (None, KERNEL):
                return None, line
            for pattern in PATTERNS if own in (None, LOOSE, EPOCH) else PATTERNS[:-1]:
                match = pattern.match(line)
                if match is not None:
                    break
            else:
                return None, line
            if match.re is LOOSE:
                self._loose += 1
            elif own is LOOSE and not settled:
                self._begun.clear()  # their numbers were not times
            if not (own is LOOSE and settled):
                self._pattern = match.re
        year = self._year
        try:
            seconds = self._convert(match)
        except ValueError:  # a 13th month
            return None, line
        if len(self._begun) >= _SECONDS or self._year != year:
            self._begun.clear()
        length, before = match.end("stamp"), match.group("p")
        if _LOG_FILE.match(before) is not None:  # the name of the file is before every line
            before = ""
        self._begun[line[:length]] = seconds, before, match.re
        if length not in self._lengths:
            self._lengths = [length, *self._lengths[: _LENGTHS - 1]]
        return self._ended(line, seconds, before, match, match.group("f", "zone"), match.re)

    def _ended(
        self,
        line: str,
        seconds: float,
        before: str,
        match: re.Match[str],
        groups: tuple[str | None, ...],
        pattern: re.Pattern[str],
    ) -> tuple[float, str]:
        """Return the time with fraction and zone applied, and the rest of the line."""
        fraction, zone = groups
        if fraction:
            seconds += float(f"0.{fraction.lstrip('.,:')}")
        if zone and (zone := zone.strip()) != "Z":
            offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
            seconds -= offset if zone[0] == "+" else -offset
        rest = line[match.end() :]
        if pattern is ACCESS:
            return seconds, _with_status(before, rest)
        if match.group().endswith("]"):
            before = before.removesuffix("[").rstrip()
        if (priority := _PRIORITY.match(before)) is not None:
            level = SYSLOG[int(priority.group(1)) % 8]
            # Most programs write all of their lines as info or notice.
            before = level.upper() if level in SEVERE else ""
        if before and before not in ("[", "- "):
            return seconds, f"{before} {rest}"
        return seconds, rest

    def _convert(self, match: re.Match[str]) -> float:
        parts = match.groupdict()
        self.has_days = self.has_days or (match.re is not KERNEL and match.re is not HOUR)
        if parts.get("h") is None:  # an epoch
            return float(parts["stamp"])
        year = _year_of(parts.get("y"))
        named = parts.get("mo") or "1"
        month = MONTHS.get(named) or int(named)
        day = int(parts.get("d") or 1)
        hour, minute, second = int(parts["h"]), int(parts["mi"]), int(parts["s"])
        if half := parts.get("half"):
            hour = hour % 12 + 12 * (half == "PM")
        days = calendar.monthrange(year or _LEAP_YEAR, month)[1]
        if not (1 <= day <= days and hour < 24 and minute < 60 and second < 62):
            raise ValueError(parts["stamp"])
        if year is None:
            self.dated = False
            year = self._likely_year(month)
        return float(calendar.timegm((year, month, day, hour, minute, second)))

    def _likely_year(self, month: int) -> int:
        """Return the year for a time without one. A February 29 of a common year is March 1."""
        if not self._month:
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
        if isinstance(value, int | float):
            self.has_days = True
            return _seconds_of(value)
        text = str(value)
        if text.replace(".", "", 1).isdecimal():
            self.has_days = True
            return _seconds_of(float(text))
        return LineParser.parse(self, text)[0] if text[:1] != "{" else None

    def _json(self, line: str) -> tuple[float | None, str] | None:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(record, dict):
            return None
        low = {str(key): value for key, value in record.items()}
        if isinstance(low.get("t"), dict):  # MongoDB
            letter = OF_LETTER.get(str(low.get("s"))[:1], "")
            low |= {"t": low["t"].get("$date"), "level": letter, "component": low.get("c")}
        return self._record(low)

    def _record(self, low: dict[str, Any]) -> tuple[float | None, str]:
        """Return the time of a record with keys, and a line of its level, name and message."""
        times = (self._time_of(low[k]) for k in _JSON_TIME if k in low)
        time = next((found for found in times if found is not None), None)
        hour = low.get("time")
        if "date" in low and isinstance(hour, str) and len(hour) < LONGEST_HOUR:
            # FortiGate has date and time under two keys
            both = self._time_of(f"{low['date']} {low['time']}")
            time = time if both is None else both
        text = _first_of(low, _JSON_TEXT)
        key = next((k for k in _JSON_LEVEL if low.get(k) is not None), "")
        level = low.get(key, "")
        if isinstance(level, str) and _WHOLE.fullmatch(level):  # journald's are strings
            level = int(level)
        if isinstance(level, int) and not isinstance(level, bool):
            # GELF, the only format with a short_message, also has the numbers of syslog.
            level = number_level(level, syslog=key in _OF_SYSLOG or "short_message" in low)
        status = next((str(low[k]) for k in _JSON_STATUS if k in low), "")
        failed = _FAILED.fullmatch(status) is not None
        if failed and (level == "" or (status[0] == "5" and _written(level).lower() == "info")):
            level = level_of_status(status)
        name = _first_of(low, _JSON_NAME)
        used = {*_JSON_TIME, *_JSON_LEVEL, *_JSON_TEXT}
        if text is None:
            text = " ".join(f"{k}={v}" for k, v in low.items() if k not in used)
        else:
            text = f"{text} status={status}" if failed else text
            cause = _cause(next((low[k] for k in _JSON_CAUSE if low.get(k)), None))
            text = f"{text}: {cause}" if cause and cause not in text else text
        trace = next(
            (low[k] for k in ("exception", "stack", "stack_trace", "exc_info") if low.get(k)), ""
        )
        return (
            time,
            f"{_written(level).upper()} {name + ': ' if name else ''}{text} {trace}".rstrip(),
        )

    def _logfmt(self, line: str) -> tuple[float | None, str]:
        if not _LOGFMT.match(line[:4000]):
            return None, line
        record = {k: v.strip('"') for k, v in _PAIR.findall(line[:4000])}
        return self._record(record)


def _first_of(record: dict[str, Any], keys: Sequence[str]) -> str | None:
    """Return the text of the first of these keys with a value.

    Empty if all present keys are null, None if no key is present.
    """
    values = [record[key] for key in keys if key in record]
    return _written(next((v for v in values if v is not None), None)) if values else None


def _written(value: Any) -> str:
    """Return a value as text. journald writes a text that may be unprintable as a list of bytes."""
    if value is None:
        return ""
    if isinstance(value, list) and value and all(type(n) is int and 0 <= n < 256 for n in value):
        return bytes(value).decode("utf-8", "replace")
    return str(value)


def _cause(value: Any) -> str:
    """Return the cause of an error that a field of a record names: text, or an object's message."""
    if isinstance(value, dict):
        value = value.get("message") or value.get("msg")
    return value if isinstance(value, str) else ""


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
    """Convert a time since 1970 in seconds, milliseconds, microseconds or nanoseconds to seconds.

    None if the number is not a time.
    """
    if not 0 < number < 1e20:  # also excludes NaN and infinity
        return None
    while number > 1e11:
        number /= 1000
    return float(number)


def _with_status(before: str, rest: str) -> str:
    """Return a line of an access log, with a level if its status is a failure."""
    status = _STATUS.match(rest)
    level = "" if status is None else f"{level_of_status(status.group(1)).upper()} "
    return f"{level}{before}{rest}"


def _with_failure(rest: str) -> str:
    """Return a line with the level of the failed HTTP request that it reports, if any.

    A level of the line itself stays, unless it is below an error and the status is 5xx.
    """
    for begin, pattern in _FAILED_REQUESTS:
        at = rest.find(begin, 0, _WITHIN)
        if at >= 0 and (found := pattern.match(rest, at)) is not None:
            break
    else:
        return rest
    failure, own = level_of_status(found.group(1)), level_of(rest)
    named = own not in ("", "suspect")
    if LEVELS.index(own) >= LEVELS.index(failure) or (named and failure != "error"):
        return rest
    first = _LEVEL_FIRST.match(rest)
    return f"{failure.upper()} {(rest if first is None else rest[first.end() :]).lstrip()}"


def component_of(rest: str) -> str | None:
    """Return the program, service or class that wrote a line without its time; None: unknown."""
    found = _named(rest)
    return found.group(found.lastindex or 1) if found is not None else None


def _named(rest: str) -> re.Match[str] | None:
    """Return a match that ends behind the component of a line, None if it names none."""
    found = _LOGGER.match(rest) or _COMPONENT.match(rest)
    if found is None or _LEVEL_FIRST.fullmatch(found.group(found.lastindex or 1)):
        return None
    return found


def message_of(rest: str) -> str:
    """Return a line, given without its time, also without its level and component."""
    found = _named(rest) or _LEVEL_FIRST.match(rest)
    return rest[found.end() :] if found is not None and found.end() < len(rest) else rest


def continues(line: str) -> bool:
    """Return whether a line without a time continues the previous one: a stack trace, an indent."""
    return _CONTINUED.match(line) is not None


def is_trace(line: str) -> bool:
    """Return whether a line that continues another is part of a stack trace."""
    return _TRACE.match(line) is not None


def looks_like_log(lines: Iterable[str], least: int = 2) -> bool:
    """Return whether the first lines of a text (some hundred) are those of a log.

    At least half of the lines that do not continue another, and at least `least`, must begin with a
    time or a level, and these must not be the rows of a table. A row with a level is a line of a
    log (CBS.log of Windows).
    """
    parser = LineParser()
    stamped = own = rows = 0
    widths: set[int] = set()
    for _, line in map(bare, lines):
        if not line.strip():
            continue
        time, rest = parser.parse(line)
        if time is None and (line[:1].isspace() or (stamped and continues(line))):
            continue
        own += 1
        if time is not None or begins_with_level(line):
            stamped += 1
            separator = next((c for c in ",;\t" if rest.lstrip('"')[:1] == c), None)
            if separator is not None and level_of(rest) in ("", "suspect"):
                rows += 1
                widths.add(rest.count(separator))
    if stamped < least or stamped * 2 < own:
        return False
    return not (rows * 10 >= stamped * 9 and len(widths) == 1)


class LineSplitter:
    """Splits text that arrives in pieces into lines; holds at most LONGEST_LINE characters."""

    def __init__(self) -> None:
        self._rest = ""
        self._cut = False
        self.shortened = 0
        """Number of lines longer than LONGEST_LINE."""

    def feed(self, text: str) -> list[str]:
        """Return the lines that this text completes, without their ends."""
        *lines, last = text.split("\n")
        if lines:
            lines[0] = self._begun(lines[0])
            self.shortened += self._cut + sum(len(line) > LONGEST_LINE for line in lines[1:])
            self._rest, self._cut = "", False
        self._rest = self._begun(last)
        lines = [line[:LONGEST_LINE] for line in lines]
        return [line[:-1] if line[-1:] == "\r" else line for line in lines]

    def _begun(self, more: str) -> str:
        """Append text to the unfinished line and return it; note whether it is cut."""
        room = LONGEST_LINE - len(self._rest)
        self._cut = self._cut or len(more) > room
        return self._rest + more[:room]

    def close(self) -> list[str]:
        """Return the last line, if it has no newline."""
        last, self._rest = self._rest, ""
        self.shortened += self._cut
        self._cut = False
        return [last] if last else []
