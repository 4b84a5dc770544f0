"""The level of a log line, by its name, by a letter, by a number, or by words of failure.

A number is a level in a record, the status of a failed HTTP request, or in the line of a router.

The names of levels are those of syslog (RFC 5424), log4j, Python, Go and Android.
"""

from __future__ import annotations

import re

LEVELS = ("", "debug", "info", "notice", "warning", "suspect", "error", "fatal")
"""Levels, least severe first. A ``suspect`` line names no level, but has words of failure."""
SEVERE = frozenset(("warning", "suspect", "error", "fatal"))

_LEVEL_WORDS = {
    "debug": "trace verbose debug fine finer finest trce dbug dbg vrb silly trc debu",
    "info": "info information informational config inf",
    "notice": "notice",
    "warning": "warn warning wrn",
    "error": "error err eror severe failure fail erro fault",
    "fatal": "fatal critical crit emergency alert emerg panic ftl fata pnc",
}
_OF_WORD = {word: level for level, words in _LEVEL_WORDS.items() for word in words.split()}
_ONLY_MARKED = ("alert", "emerg", "panic", "fail", "inf")
"""Words that count only if they are set apart, because messages also have them in capitals:
``logrotate: ALERT exited abnormally``."""
FACILITY = r"(?:kern|user|mail|daemon|auth(?:priv)?|syslog|lpr|news|cron|ftp|local\d)\."
"""Of syslog, before the level: ``daemon.err dnsmasq[7]:``."""
_CAPITALS = "|".join(word.upper() for word in _OF_WORD if word not in _ONLY_MARKED)
_ANY_CASE = "|".join(word for word in _OF_WORD if word != "fault")
# A level is in capitals, or the first word, or set apart: "in error state" names none. It may have
# a name before it: [core:error] of Apache, [Server thread/ERROR], app.ERROR: of Monolog.
_LEVEL = re.compile(
    rf"(?:^|[\s\[(<|=:\"')])({_CAPITALS})(?=$|[\s\])>|,:\"'!])"
    rf"|^\W*(?:[\w-]{{1,40}}\.({_CAPITALS}|ALERT): "
    rf"|\[[\w #-]{{1,40}}(?:/({_CAPITALS})|:(?i:({_ANY_CASE})))\])"
    rf"|^(?:npm|[1-9]\d*) ({_ANY_CASE}) |(?:^|\s){FACILITY}({_ANY_CASE})\s"
    rf"|(?i:^\W*({_ANY_CASE})\b|[\[(<|]\s?({_ANY_CASE})\s?[\])>|:]|[\s:]({_ANY_CASE}) *:(?=\s|$))"
)
_COLUMN = re.compile(rf",(?:({_CAPITALS}|LOG)|\"(?i:({_ANY_CASE}))\"),")
"""In a row of values with commas; LOG is of PostgreSQL."""
_LABEL = re.compile(
    r"\b(?:level|lvl|severity|loglevel|at(?==))\"?\s*[=:]\s*\"?(\w+)", re.IGNORECASE
)
_END = re.compile(r"[^a-z]|[a-z][^\w\s]")
"""The end of a level in capitals or set apart, and what follows it."""
LETTER = re.compile(r"^\s*(\d+\s+){0,2}([VDIWEF])[ /]")
_APART = re.compile(
    r"^\s*[(<]([VDIWEF])\1?[)>]|(?:^|[\s\]])\[([VDIWEF])\]|^\s*\d+-\d+ .*? {2}([VDIWEF]) {2}"
    r"|^\s*[\da-f]{8} .{13} ([VDIWEF]) "
)
"""A letter in brackets, of X.org twice: ``(EE)``; or in the fourth column of Android Studio, or
behind the thread and the short name of WebSphere."""
OF_LETTER = dict(
    zip("VDIWEF", ("debug", "debug", "info", "warning", "error", "fatal"), strict=True)
)
_FAILURE = re.compile(
    r"\b(?:errors?|fail(?:s|ed|ure|ures|ing)?|fatal|panic(?:s|ked)?|exceptions?|\w+(?:Exception|Error)|denied"
    r"|refused|rejected|timed?[ -]?out|unable|cannot|can't|could not|couldn't|segfault"
    r"|abort(?:ed|ing)?"
    r"|corrupt\w*|out of memory|oom|killed|crash\w*|unreachable|unavailable|not responding"
    r"|lost connection|connection reset|broken pipe|no servers? available|no space left"
    r"|too many open files|deadlock|invalid|illegal|warn(?:ing)?|critical|emergency"
    r"|(?<!not )abnormal(?:ly)?)\b|\b(?-i:BUG|Oops): ",
    re.IGNORECASE,
)
_NO_FAILURE = re.compile(
    r"(?<!\S)(?:0|no|without) (?:errors?|fail(?:ures?|ed)|exceptions?|warnings?)\b"
    r"|\b(?:errors?|fail(?:ures?|ed)|exceptions?|warnings?)[=:] ?0\b"
    r"|(?<![\w.])/?(?:[\w.@+-]+/){2,}[\w.@+-]*",  # a path
    re.IGNORECASE,
)
_SUCCESS = re.compile(r"\b(?:done|ok|succeeded|success(?:ful(?:ly)?)?)\b[\s.!)\]]*$", re.IGNORECASE)
"""End of a line that reports success, with any other words before."""
LEVEL_FIRST = re.compile(
    r"[\s|,\-]*\[?(?:TRACE|DEBUG|INFO(?:RMATION)?|NOTICE|WARN(?:ING)?|ERROR|SEVERE|CRITICAL|FATAL"
    r"|(?:VRB|DBG|INF|WRN|ERR|FTL)(?=\]))\b(?:\s*\])?"
    r":?[|,\-]*\s*(?:[:|,\-]+\s+)*",
    re.IGNORECASE,
)
"""A level at the beginning of a line without its time, and what follows it."""
BEGINS_WITH_LEVEL = re.compile(
    r"\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|FATAL|CRITICAL)\b[\]: |-]"
    r"|(?:trce|dbug|info|warn|fail|crit): [\w.]+\[\d+\]$"  # of .NET
    r"|(?:TRAC|DEBU|INFO|WARN|ERRO|FATA|PANI)\[\d+\] |[VDIWEF]/[^\s(]+ *\( *\d+\): "
    r"|(?:npm|\d+) (?:silly|verbose|info|http|timing|notice|warn|error|WARN|ERR!) \w"
)
"""A line without a time that begins with a level, as a log without times has it."""
_HEAD = 100
"""Number of characters after the time in which to look for the level."""
_FAILED = re.compile(r"[45]\d\d")
SYSLOG = ("fatal", "fatal", "fatal", "error", "warning", "notice", "info", "debug")
_SMALL = ("info", "warning", "error", *SYSLOG[3:], "error", "error")
"""Levels of the numbers 0 to 9 under other keys."""
_TENS = ("debug", "debug", "debug", "info", "warning", "error", "fatal")
"""Levels of bunyan and pino, by tens."""
_HUNDREDS = ("debug", "debug", "info", "warning", "error", "fatal", "fatal")
"""Levels of Monolog, by hundreds."""
_HTTP = re.compile(r"HTTP/[\d.]+\"? ([45]\d\d)\b")
"""``"GET / HTTP/1.1" 500`` of a server; ``"HTTP/1.1 500 Internal Server Error"`` of a client."""
_SERVED = re.compile(r"HTTP/[\d.]+\" [123]\d\d\b")
"""Of a request that did not fail: words of failure are those of its path or its browser."""
_HAPROXY = re.compile(r" -?\d+(?:/\+?-?\d+){4} ([45]\d\d) ")
_RAILS = re.compile(r"Completed ([45]\d\d) ")
_SQUID = re.compile(r"\bTCP_\w+/([45]\d\d) ")
_LOAD_BALANCER = re.compile(r"\bapp/\S+ \S+ \S+(?: -?[\d.]+){3} ([45]\d\d) ")
"""Of AWS: behind the addresses and three durations."""
_ROUTER = re.compile(r"%[A-Z][A-Z\d_]*(?:-[A-Z][A-Z\d_]*)*-([0-7])(?:-[A-Z\d_]+)?:")
"""``%ASA-3-106100:``, ``%LINK-3-UPDOWN:``, ``%DAEMON-3:``: the number is that of syslog."""
_MACOS = re.compile(r" +0x[\da-f]+ +([A-Z]\w+) +0x[\da-f]+ +\d+ +\d+ +(?=\S)")
"""Columns of ``log show``: thread, level, activity, process and time to live."""
_STATUS = re.compile(r"[^\"]*\"(?:[^\"\\]|\\.)*\" ([45]\d\d) ")
"""Behind the first text in quotes, which is the request. Other numbers follow."""
FIELDS = "#Fields:"
"""Beginning of a header of W3C's extended log format, which IIS and CloudFront write."""


def level_of(rest: str) -> str:
    """Return the level of a line without its time: one of LEVELS."""
    head = rest[:_HEAD]
    letter = LETTER.match(head)
    if letter is not None and letter.group(1):  # after the numbers of process and thread
        return OF_LETTER[letter.group(2)]
    label, match = _LABEL.search(rest[:400]), _LEVEL.search(head)
    if label is not None and (level := _OF_WORD.get(label.group(1).lower())):
        first = match and match.start() < label.start() and _END.match(rest, match.end() - 1)
        if not first:  # else the message names another one: INFO set level=error
            return level
    if head[:1] in ('"', ",") and (column := _COLUMN.search(rest[:400])) is not None:
        return _OF_WORD.get((column.group(1) or column.group(2)).lower(), "info")
    if match is not None:
        return _OF_WORD[(match.group(match.lastindex or 1)).lower()]
    if (letter := letter or _APART.search(head)) is not None:
        return OF_LETTER[letter.group(letter.lastindex or 1)]
    text = rest[:1000]
    if _SUCCESS.search(text) or not _FAILURE.search(_NO_FAILURE.sub("", text)):
        return ""
    return "" if _SERVED.search(text) else "suspect"


def number_level(level: int, *, syslog: bool) -> str:
    """Return the name of a level that is a number.

    syslog has 0 (most severe) to 7, bunyan and pino 10 to 60, Monolog 100 to 600. The numbers of Go
    increase with severity and begin below 0: debug, info, warn and error are -4, 0, 4 and 8 in
    slog, and -1, 0, 1 and 2 in zap. So a number below 0 is debug. 0 to 2 are read as zap, unless
    the key is one of syslog, because hardly any program writes its emergencies, alerts and critical
    errors. 3 and 5 to 7 are read as syslog, 8 as slog; for 4 both agree. The tens of Python are one
    step lower than those of pino, but Python writes names.
    """
    if level < 0:
        return "debug"
    if syslog and level < len(SYSLOG):
        return SYSLOG[level]
    if level < len(_SMALL):
        return _SMALL[level]
    return _TENS[min(level // 10, 6)] if level < 100 else _HUNDREDS[min(level // 100, 6)]


def level_of_status(status: str) -> str:
    """Return the level of an HTTP request: ``warning`` for the status 4xx, ``error`` for 5xx."""
    if _FAILED.fullmatch(status) is None:
        return ""
    return "warning" if status[0] == "4" else "error"


def with_status(before: str, rest: str) -> str:
    """Return an access log line (`before` and behind its time) with the level of its status."""
    status = _STATUS.match(rest)
    level = "" if status is None else f"{level_of_status(status.group(1)).upper()} "
    return f"{level}{before}{rest}"


def place_of_status(header: str) -> int | None:
    """Return the place of the HTTP status among the fields of a log, if this header names it."""
    names = header.removeprefix(FIELDS).split()
    return names.index("sc-status") if "sc-status" in names else None


def with_status_at(place: int, line: str, rest: str) -> str:
    """Return a line without its time with a level, if its field at `place` is one of failure."""
    values = line.split("\t") if "\t" in line else line.split()
    level = level_of_status(values[place]) if place < len(values) else ""
    return f"{level.upper()} {rest.lstrip()}" if level else rest


def with_failure(rest: str) -> str:
    """Return a line with the level of the failed request in it, unless its own is as high; or with
    that of a router or of macOS."""
    match = None
    if (at := rest.find("HTTP/")) >= 0:
        last = at > len(rest) - len("HTTP/1.1 ..")  # HAProxy has the request at the end
        match = _HTTP.match(rest, at) or ((last or "haproxy[" in rest) and _HAPROXY.search(rest))
        match = match or (" app/" in rest[:at] and _LOAD_BALANCER.search(rest))
    elif "Completed " in rest:
        match = _RAILS.search(rest)
    elif "TCP_" in rest:
        match = _SQUID.search(rest)
    elif rest[:3] == " 0x" and (columns := _MACOS.match(rest)) is not None:
        return f"{columns[1].upper()} {rest[columns.end() :]}"
    elif "%" in rest and (router := _ROUTER.search(rest)) is not None:
        level = SYSLOG[int(router.group(1))]
        return f"{level.upper()} {rest.lstrip()}" if level in SEVERE else rest
    if not match:
        return rest
    failure, own = level_of_status(match.group(1)), level_of(rest)
    named = own not in ("", "suspect")
    if LEVELS.index(own) >= LEVELS.index(failure) or (named and failure != "error"):
        return rest
    first = LEVEL_FIRST.match(rest)
    return f"{failure.upper()} {(rest if first is None else rest[first.end() :]).lstrip()}"
