"""The parts of a line without its time: its component and its message."""

from __future__ import annotations

import re

from kvstream.logs.levels import LEVEL_FIRST

_COMPONENT = re.compile(
    r"[\s|\-\]]*(?:\d+[\s|]+){0,2}"
    r"(?:(?:\[[A-Za-z]{1,11}\]|[A-Z]{1,11}|(?i:trace|debug|info|notice|warn(?:ing)?|err(?:or)?"
    r"|severe|crit(?:ical)?|fatal|verbose|trce|dbug|fail|[a-z]))[\s|]+(?:-\s+)?"
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
_FIELDS = re.compile(
    r" ?\S+ (?P<app>[^\s|]+) (?P<process>\S+) \S+ "
    r"(?:(?:-|(?:\[(?:\\.|[^\]\\])*\])+)(?: |$))?\ufeff?"
)
"""Of RFC 5424: host, program, process, message type and data before the message. CEF and LEEF may
begin in place of the program."""


def without_fields(rest: str) -> str:
    """Return the rest of a line of RFC 5424 in the older form: ``program[7]: message``."""
    fields = _FIELDS.match(rest)
    if fields is None or fields["app"] == "-":
        return rest
    process = "" if fields["process"] == "-" else f"[{fields['process']}]"
    return f"{fields['app']}{process}: {rest[fields.end() :]}"


def component_of(rest: str) -> str | None:
    """Return the program, service or class that wrote a line without its time; None: unknown."""
    match = _match(rest)
    return match.group(match.lastindex or 1) if match is not None else None


def _match(rest: str) -> re.Match[str] | None:
    """Return a match that ends behind the component of a line, None if it names none."""
    match = _LOGGER.match(rest) or _COMPONENT.match(rest)
    if match is None or LEVEL_FIRST.fullmatch(match.group(match.lastindex or 1)):
        return None
    return match


def message_of(rest: str) -> str:
    """Return a line, given without its time, also without its level and component."""
    match = _match(rest) or LEVEL_FIRST.match(rest)
    return rest[match.end() :] if match is not None and match.end() < len(rest) else rest
