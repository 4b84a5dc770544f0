"""Lines whose level is a number: the status of a failed HTTP request, and that of a router."""

from __future__ import annotations

import re

from kvstream.logs.components import LEVEL_FIRST
from kvstream.logs.levels import LEVELS, SEVERE, SYSLOG, level_of, level_of_status

_HTTP = re.compile(r"HTTP/[\d.]+\"? ([45]\d\d)\b")
"""``"GET / HTTP/1.1" 500`` of a server; ``"HTTP/1.1 500 Internal Server Error"`` of a client."""
_HAPROXY = re.compile(r"haproxy\[.*?(?:/\+?-?\d+){4} ([45]\d\d) ")
_RAILS = re.compile(r"Completed ([45]\d\d) ")
_SQUID = re.compile(r"TCP_\w+/([45]\d\d) ")
_LOAD_BALANCER = re.compile(r"\bapp/\S+ \S+ \S+(?: -?[\d.]+){3} ([45]\d\d) ")
"""Of AWS: behind the addresses and three durations."""
_ROUTER = re.compile(r"%[A-Z][A-Z\d_]*(?:-[A-Z][A-Z\d_]*)*-([0-7])(?:-[A-Z\d_]+)?:")
"""``%ASA-3-106100:``, ``%LINK-3-UPDOWN:``, ``%DAEMON-3:``: the number is that of syslog."""
_STATUS = re.compile(r"[^\"]*\"(?:[^\"\\]|\\.)*\" ([45]\d\d) ")
"""Behind the first text in quotes, which is the request. Other numbers follow."""
FIELDS = "#Fields:"
"""Beginning of a header of W3C's extended log format, which IIS and CloudFront write."""


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
    that of a router."""
    found = None
    if (at := rest.find("HTTP/")) >= 0:
        found = _HTTP.match(rest, at) or ("haproxy[" in rest and _HAPROXY.search(rest))
        found = found or (" app/" in rest[:at] and _LOAD_BALANCER.search(rest))
    elif "Completed " in rest:
        found = _RAILS.search(rest)
    elif "TCP_" in rest:
        found = _SQUID.search(rest)
    elif "%" in rest and (router := _ROUTER.search(rest)) is not None:
        level = SYSLOG[int(router.group(1))]
        return f"{level.upper()} {rest.lstrip()}" if level in SEVERE else rest
    if not found:
        return rest
    failure, own = level_of_status(found.group(1)), level_of(rest)
    named = own not in ("", "suspect")
    if LEVELS.index(own) >= LEVELS.index(failure) or (named and failure != "error"):
        return rest
    first = LEVEL_FIRST.match(rest)
    return f"{failure.upper()} {(rest if first is None else rest[first.end() :]).lstrip()}"
