"""What a container runtime adds to the lines of a program, and the lines that it splits."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, NamedTuple

from kvstream.logs.levels import LETTER, LEVEL_FIRST, level_of

LONGEST_LINE = 65_536
"""Maximum number of characters kept of a line. Longer lines are cut and counted."""
MOST_STREAMS = 64
"""Maximum number of streams with an unfinished line, after which the oldest such line ends, and of
streams whose last line others can continue."""
PREFIX = re.compile(r"[A-Za-z][\w.-]*+(?:@[\w.-]++)? *+\||\[pod/|\d{4}-\d\d-\d\dT|\s*\{")
"""Beginning of a line to which a runtime may have added something."""
_NAME = re.compile(r"([A-Za-z][\w.-]*+)(?:@[\w.-]++)? *+\|(?: |$)|\[pod/([\w./-]+)\] ?")
# docker logs --timestamps; files of Kubernetes have the stream too, and F if the line is full
_RUNTIME = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.(?:\d{8,9}|\d+(?=\S* std)))(?:Z|[+-]\d\d:\d\d) "
    r"(?:(?P<stream>stdout|stderr) (?P<flag>[FP])(?::\S*)?(?: |$))?"
)
_DOCKER = {"log", "stream", "time", "attrs"}
"""Keys of the records in which Docker stores lines. A collector may add others."""
CONTAINER = re.compile(r"[-_]\d+$|/|\.\d+\.[a-z0-9]{12,}$")
"""In a name before a line: the number that compose adds, what is between pod and container, or the
number of a task of Swarm. The first column of a table has none of them."""


class ContainerLine(NamedTuple):
    """A line as its program wrote it, and what a container runtime added to it."""

    text: str
    name: str = ""
    """The name of the container before the line: ``docker compose logs`` writes ``web-1  | ``,
    ``kubectl logs --prefix`` ``[pod/web/app] ``."""
    stamp: str = ""
    """The time that the runtime noted."""
    stream: str = ""
    whole: bool | None = True
    """Whether the line ends here. None: perhaps, it has no newline in a record of Docker."""
    number: int = 0
    """Number of the line of the log at which it begins."""
    pieces: int = 1
    """Number of lines of the log into which the runtime split it."""


def container_line(line: str, number: int) -> ContainerLine:
    """Take off a line that begins like PREFIX what a container runtime adds to it, if anything."""
    name = ""
    if (match := _NAME.match(line)) is not None:
        name, line = match.group(match.lastindex or 1), line[match.end() :]
    if (match := _RUNTIME.match(line)) is not None:
        stream, whole = match["stream"] or "", match["flag"] != "P"
        return ContainerLine(line[match.end() :], name, match.group(), stream, whole, number)
    record: dict[str, Any] = {}
    if '"log"' in line and line.lstrip()[:1] == "{":
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
    stream, text = str(record.get("stream", "")), record.get("log")
    known = record.keys() <= _DOCKER or stream in ("stdout", "stderr")
    if not isinstance(text, str) or not known:
        return ContainerLine(line, name, number=number)
    flag = record.get("logtag", record.get("_p"))  # fluentd and Fluent Bit keep that of a file
    ends = flag != "P" if flag else text[-1:] == "\n" or None
    stamp = f"{record.get('time', '')} "
    return ContainerLine(text.rstrip("\r\n"), name, stamp, stream, ends, number)


class SplitLines:
    """Joins the pieces of a line that a runtime splits, for each stream of each container."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], ContainerLine] = {}
        self._ends = False
        """Whether the log has records of Docker with a newline, so that others are pieces."""

    def join(self, line: ContainerLine) -> ContainerLine | None:
        """Return the whole line that ends here, or the oldest of too many; None: not yet."""
        self._ends = self._ends or (line.whole is True and line.stamp != "")
        key = line.name, line.stream
        if (first := self._open.pop(key, None)) is not None:
            text = (first.text + line.text)[:LONGEST_LINE]
            line = first._replace(text=text, whole=line.whole, pieces=first.pieces + 1)
        if line.whole or (line.whole is None and not self._ends):
            return line
        self._open[key] = line
        return self._open.pop(next(iter(self._open))) if len(self._open) > MOST_STREAMS else None

    @property
    def held(self) -> list[ContainerLine]:
        """The lines whose end is missing."""
        return list(self._open.values())

    def rest(self) -> list[ContainerLine]:
        """Return the lines whose end is missing, and forget them."""
        lines, self._open, self._ends = self.held, {}, False
        return lines


def with_name(name: str, rest: str) -> str:
    """Return a line without its time, with the name of its container as its component."""
    level = LEVEL_FIRST.match(rest) or LETTER.match(rest)
    if level is None:
        own = level_of(rest)  # the name would hide it
        before = f"{own.upper()} " if own not in ("", "suspect") else ""
        return f"{before}{name}: {rest.lstrip()}"
    return f"{level.group().strip(' :|,-')} {name}: {rest[level.end() :]}"
