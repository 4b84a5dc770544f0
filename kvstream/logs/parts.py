"""The parts of a line of a log: what a container runtime adds, its component, its message."""

from __future__ import annotations

import json
import re

from kvstream.input.terminal import without_controls

_COMPONENT = re.compile(
    r"[\s|\-\]]*(?:\d+[\s|]+){0,2}"
    r"(?:\[?[A-Za-z]{1,11}\]?[\s|]+(?:-\s+)?"
    r"|\w[\w.-]*+ (?=(?:[\w./()@-]+\[\d+\]|kernel): ))?"  # the host of a line of syslog
    r"(?:\[[^\]]{0,60}\][\s|:-]*){0,2}"
    r"(?:\d+[\s|]+)?([A-Za-z][\w.$/-]*(?:::[\w.$/-]+)*(?:\([\w-]+\))?)"
    r"(?:\[[^\]]{1,60}\])?(?::\s|\s-\s)"
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
    r"[\s|,\-]*\[?(?:TRACE|DEBUG|INFO(?:RMATION)?|NOTICE|WARN(?:ING)?|ERROR|SEVERE|CRITICAL|FATAL"
    r"|(?:VRB|DBG|INF|WRN|ERR|FTL)(?=\]))\b(?:\s*\])?"
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
_NAME = re.compile(r"([A-Za-z][\w.-]*+) *+\|(?: |$)|\[pod/([\w./-]+)\] ?")
# docker logs --timestamps; files of Kubernetes have the stream too
_RUNTIME = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.(?:\d{8,9}|\d+(?=\S* std)))(?:Z|[+-]\d\d:\d\d) "
    r"(?:(?:stdout|stderr) [FP](?: |$))?"
)
_FIELDS = re.compile(
    r" ?\S+ (?P<app>\S+) (?P<process>\S+) \S+ "
    r"(?:(?:-|(?:\[(?:\\.|[^\]\\])*\])+)(?: |$))?\ufeff?"
)
"""Of RFC 5424: host, program, process, message type and data before the message."""
_CONTAINER = re.compile(r"[-_]\d+$|/")
"""In a name: the number that compose adds, or what is between pod and container."""
_DOCKER = '{"log":"'
_ADDED = re.compile(r"[A-Za-z][\w.-]*+ *+\||\[pod/|\d{4}-\d\d-\d\dT|\{\"log\":\"")
"""Beginning of a line to which a runtime may have added something."""
_OF_DOCKER = {"log", "stream", "time", "attrs"}
"""Keys of the records in which Docker stores lines."""


def bare(line: str) -> tuple[str, str, str]:
    """Take off a line the codes for a terminal, and what a container runtime adds to it.

    Return the line as its program wrote it, the name of the container before it
    (``docker compose logs`` writes ``web-1  | ``, ``kubectl logs --prefix`` ``[pod/web/app] ``),
    and the time that the runtime noted; both are empty if there is none.
    """
    line = without_controls(line)
    if _ADDED.match(line) is None:
        return line, "", ""
    name = stamp = ""
    if (found := _NAME.match(line)) is not None:
        name, line = found.group(found.lastindex or 1), line[found.end() :]
    if (found := _RUNTIME.match(line)) is not None:
        stamp, line = found.group(), line[found.end() :]
    elif line.startswith(_DOCKER):
        line, stamp = _of_docker(line)
    return line, name, stamp


def _of_docker(line: str) -> tuple[str, str]:
    """Return the line and the time in a record of Docker; another record as it is."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return line, ""
    if not record.keys() <= _OF_DOCKER or not isinstance(record["log"], str):
        return line, ""
    return without_controls(record["log"].rstrip("\r\n")), f"{record.get('time', '')} "


def names_container(name: str) -> bool:
    """Return whether a name before a line is one of compose or Kubernetes, and of no table row."""
    return _CONTAINER.search(name) is not None


def with_name(name: str, rest: str) -> str:
    """Return a line without its time, with the name of its container as its component."""
    level = LEVEL_FIRST.match(rest)
    if level is None:
        return f"{name}: {rest.lstrip()}"
    return f"{level.group().strip(' :|,-')} {name}: {rest[level.end() :]}"


def without_fields(rest: str) -> str:
    """Return a line of RFC 5424 without its time as older programs write it: program[7]: message.

    Its host, message type and structured data are left out.
    """
    fields = _FIELDS.match(rest)
    if fields is None or fields["app"] == "-":
        return rest
    process = "" if fields["process"] == "-" else f"[{fields['process']}]"
    return f"{fields['app']}{process}: {rest[fields.end() :]}"


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
