"""The level of a log line, by its name, by a letter, by a number, or by words of failure.

The names of levels are those of syslog (RFC 5424), log4j, Python, Go and Android.
"""

from __future__ import annotations

import re

LEVELS = ("", "debug", "info", "notice", "warning", "suspect", "error", "fatal")
"""Levels, least severe first. A ``suspect`` line names no level, but has words of failure."""
SEVERE = frozenset(("warning", "suspect", "error", "fatal"))

_LEVEL_WORDS = {
    "debug": "trace verbose debug fine finer finest trce dbug dbg vrb silly",
    "info": "info information config inf",
    "notice": "notice",
    "warning": "warn warning wrn",
    "error": "error err eror severe failure fail",
    "fatal": "fatal critical crit emergency alert emerg panic ftl",
}
_OF_WORD = {word: level for level, words in _LEVEL_WORDS.items() for word in words.split()}
_ONLY_MARKED = ("alert", "emerg", "panic", "fail", "inf")
"""Words that count only if they are set apart, because messages also have them in capitals:
``logrotate: ALERT exited abnormally``."""
_CAPITALS = "|".join(word.upper() for word in _OF_WORD if word not in _ONLY_MARKED)
_ANY_CASE = "|".join(_OF_WORD)
# A level is in capitals, or the first word, or set apart: "in error state" names none. It may have
# a name before it: [core:error] of Apache, [Server thread/ERROR], app.ERROR: of Monolog.
_LEVEL = re.compile(
    rf"(?:^|[\s\[(<|=:\"'])({_CAPITALS})(?=$|[\s\])>|,:\"'!])"
    rf"|^\W*(?:[\w-]{{1,40}}\.({_CAPITALS}|ALERT): "
    rf"|\[[\w #-]{{1,40}}(?:/({_CAPITALS})|:(?i:({_ANY_CASE})))\])"
    rf"|^(?:npm|[1-9]\d*) ({_ANY_CASE}) "
    rf"|(?i:^\W*({_ANY_CASE})\b|[\[(<|]\s?({_ANY_CASE})\s?[\])>|:]|[\s:]({_ANY_CASE})\ ?:(?=\s|$))"
)
_COLUMN = re.compile(rf",(?:({_CAPITALS}|LOG)|\"(?i:({_ANY_CASE}))\"),")
"""In a row of values with commas; LOG is of PostgreSQL."""
_NAMED = re.compile(
    r"\b(?:level|lvl|severity|loglevel|at(?==))\"?\s*[=:]\s*\"?(\w+)", re.IGNORECASE
)
_LETTER = re.compile(r"^\s*(\d+\s+){0,2}([VDIWEF])[ /]")
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
    r"|(?<!not )abnormal(?:ly)?)\b",
    re.IGNORECASE,
)
_NO_FAILURE = re.compile(
    r"(?<!\S)(?:0|no|without) (?:errors?|fail(?:ures?|ed)|exceptions?|warnings?)\b"
    r"|\b(?:errors?|fail(?:ures?|ed)|exceptions?|warnings?)[=:] ?0\b"
    r"|(?<![\w.])/?(?:[\w.@+-]+/){2,}[\w.@+-]*",  # a path
    re.IGNORECASE,
)
_DONE = re.compile(r"\b(?:done|ok|succeeded|success(?:ful(?:ly)?)?)\b[\s.!)\]]*$", re.IGNORECASE)
"""End of a line that reports success, with any other words before."""
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


def level_of(rest: str) -> str:
    """Return the level of a line without its time: one of LEVELS."""
    head = rest[:_HEAD]
    letter = _LETTER.match(head)
    if letter is not None and letter.group(1):  # after the numbers of process and thread
        return OF_LETTER[letter.group(2)]
    named = _NAMED.search(rest[:400])
    if named is not None and (level := _OF_WORD.get(named.group(1).lower())):
        return level
    if head[:1] in ('"', ",") and (column := _COLUMN.search(rest[:400])) is not None:
        return _OF_WORD.get((column.group(1) or column.group(2)).lower(), "info")
    found = _LEVEL.search(head)
    if found is not None:
        return _OF_WORD[(found.group(found.lastindex or 1)).lower()]
    if letter is not None:
        return OF_LETTER[letter.group(2)]
    text = rest[:1000]
    if _DONE.search(text):
        return ""
    return "suspect" if _FAILURE.search(_NO_FAILURE.sub("", text)) else ""


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


def begins_with_level(line: str) -> bool:
    """Return whether a line without a time begins with a level, as a log without times has it."""
    return (
        re.match(
            r"\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|FATAL|CRITICAL)\b[\]: |-]"
            r"|(?:trce|dbug|info|warn|fail|crit): [\w.]+\[\d+\]$"  # of .NET
            r"|(?:npm|\d+) (?:silly|verbose|info|http|timing|notice|warn|error|WARN|ERR!) \w",
            line,
        )
        is not None
    )
