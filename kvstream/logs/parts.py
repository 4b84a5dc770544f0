"""The parts of a line of a log: the name before it, its component, its message."""

from __future__ import annotations

import re

_COMPONENT = re.compile(
    r"[\s|\-\]]*(?:\d+[\s|]+){0,2}(?:\[?[A-Za-z]{1,11}\]?[\s|]+(?:-\s+)?)?(?:\[[^\]]{0,60}\][\s|:-]*){0,2}"
    r"(?:\d+[\s|]+)?([A-Za-z][\w.$/-]*(?:\([\w-]+\))?)(?:\[[^\]]{1,60}\])?(?::\s|\s-\s)"
    r"(?:\[ *\d+\.\d{6}\] )?"  # of a kernel: the seconds since its start
)
# LEVEL package.module [request] message; LEVEL [thread:Class@line] - message; and of Kubernetes
# L     1 file.go:88] message
_LOGGER = re.compile(
    r"[\s|-]*(?:\d+\s+)?(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\s+"
    r"(?:([A-Za-z]\w*(?:\.\w+)+)\s+(?=\[|-\s)|\[.{0,100}?:([A-Za-z][\w$]*)@\d+\] - )"
    r"|[IWEFD]\s+\d+ ([\w.-]+):\d+\] "
)
LEVEL_FIRST = re.compile(
    r"[\s|,\-]*\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|SEVERE|CRITICAL|FATAL"
    r"|(?:VRB|DBG|INF|WRN|ERR|FTL)(?=\]))\b\]?"
    r":?[|,\-]*\s*(?:[:|,\-]+\s+)*",
    re.IGNORECASE,
)
"""A level at the beginning of a line without its time, and what follows it."""
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
    level = LEVEL_FIRST.match(rest)
    if level is None:
        return f"{name}: {rest.lstrip()}"
    return f"{level.group().strip(' :|,-')} {name}: {rest[level.end() :]}"


def component_of(rest: str) -> str | None:
    """Return the program, service or class that wrote a line without its time; None: unknown."""
    found = _named(rest)
    return found.group(found.lastindex or 1) if found is not None else None


def _named(rest: str) -> re.Match[str] | None:
    """Return a match that ends behind the component of a line, None if it names none."""
    found = _LOGGER.match(rest) or _COMPONENT.match(rest)
    if found is None or LEVEL_FIRST.fullmatch(found.group(found.lastindex or 1)):
        return None
    return found


def message_of(rest: str) -> str:
    """Return a line, given without its time, also without its level and component."""
    found = _named(rest) or LEVEL_FIRST.match(rest)
    return rest[found.end() :] if found is not None and found.end() < len(rest) else rest


def continues(line: str) -> bool:
    """Return whether a line without a time continues the previous one: a stack trace, an indent."""
    return _CONTINUED.match(line) is not None


def is_trace(line: str) -> bool:
    """Return whether a line that continues another is part of a stack trace."""
    return _TRACE.match(line) is not None
