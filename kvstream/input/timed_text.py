"""Read the cues of captions in XML: Timed Text Markup Language (TTML, DFXP)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from xml.parsers import expat

LONGEST, LONGEST_NAME = 1 << 20, 100
"""Characters of a line of a cue that are held until it ends, and of a speaker's name, which is
repeated in every cue."""
_CLOCK = re.compile(r"(\d{1,9}):(\d\d):(\d\d(?:\.\d+)?)(?::(\d{1,9}(?:\.\d+)?))?")
_OFFSET = re.compile(r"(\d{1,18}(?:\.\d+)?)(h|ms|m|s|f|t)")
_TIMED = ("body", "div", "p", "span", "br")
Cue = tuple[float, float, list[str]]
"""Seconds of its begin and its end, and its lines."""


@dataclass
class _Element:
    """An open element, with the seconds in which it is shown."""

    name: str
    begin: float
    end: float
    in_turn: bool = False
    """Whether its elements are shown one after the other."""
    last: float = 0.0
    """When the next of them begins, in that case."""


class TimedText:
    """Collects cues from pieces of XML. Entities are refused, so that none can grow."""

    def __init__(self) -> None:
        self.cues: list[Cue] = []
        self._open = [_Element("", 0.0, inf)]
        self._lines: list[str] = [""]
        self._cue = (0.0, inf)
        self._units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "f": 1 / 30, "t": 1.0}
        self._speakers: dict[str, str] = {}
        self._agent = ""
        self._parser = expat.ParserCreate("utf-8", " ")
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._data
        self._parser.EntityDeclHandler = self._refuse

    def feed(self, text: str, *, final: bool = False) -> None:
        """Parse more of the text. Raises ExpatError."""
        self._parser.Parse(text.encode("utf-8", "replace"), final)

    def take(self) -> Iterator[Cue]:
        """Yield the complete cues."""
        cues, self.cues = self.cues, []
        yield from cues

    def _refuse(self, *_: object) -> None:
        raise expat.ExpatError("it declares entities")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = _local(name)
        given = {_local(key): value for key, value in attributes.items()}
        parent = self._open[-1]
        if name == "tt":
            self._set_units(given)
        if name == "agent":
            self._agent = given.get("id", "")
        begin = (parent.last if parent.in_turn else parent.begin) + self._seconds(given, "begin", 0)
        end = parent.begin + self._seconds(given, "end", inf)
        end = min(end, begin + self._seconds(given, "dur", inf), parent.end)
        self._open.append(_Element(name, begin, end, given.get("timeContainer") == "seq", begin))
        if name == "br":
            self._lines.append("")
        elif name == "p" or (name == "span" and "begin" in given):
            self._finish()
            self._cue = begin, end
        if name in ("p", "span") and (speaker := self._speakers.get(given.get("agent", ""))):
            self._lines[-1] += f"{speaker}: "

    def _end(self, _: str) -> None:
        ended = self._open.pop()
        if ended.name == "p":
            self._finish()
        if ended.name in _TIMED and ended.end < inf:
            self._open[-1].last = ended.end

    def _data(self, text: str) -> None:
        if self._open[-1].name == "name" and self._agent:
            known = self._speakers.get(self._agent, "")
            self._speakers[self._agent] = " ".join(f"{known}{text}".split())[:LONGEST_NAME]
        if any(each.name == "p" for each in self._open) and self._open[-1].name in _TIMED:
            self._lines[-1] += text.replace("\n", " ")
            if len(self._lines[-1]) > LONGEST:  # cut it between words
                self._lines[-1], space, rest = self._lines[-1].rpartition(" ")
                self._lines[-1], rest = (self._lines[-1], rest) if space else (rest, "")
                self._finish()
                self._lines = [rest]

    def _finish(self) -> None:
        lines = [words for line in self._lines if (words := " ".join(line.split()))]
        if lines:
            self.cues.append((*self._cue, lines))
        self._lines = [""]

    def _set_units(self, given: dict[str, str]) -> None:
        rate = _number(given.get("frameRate", "")) or 30.0
        over, under = [*map(_number, given.get("frameRateMultiplier", "1 1").split()), 0.0, 0.0][:2]
        frames = rate * over / under if over and under else rate
        ticks = _number(given.get("tickRate", "")) or (frames if "frameRate" in given else 1.0)
        self._units |= {"f": 1 / frames, "t": 1 / ticks}

    def _seconds(self, given: dict[str, str], name: str, absent: float) -> float:
        text = given.get(name, "").strip()
        if clock := _CLOCK.fullmatch(text):
            hours, minutes, seconds, frames = clock.groups()
            whole = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
            return whole + float(frames or 0) * self._units["f"]
        if offset := _OFFSET.fullmatch(text):
            return float(offset[1]) * self._units[offset[2]]
        return absent


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text) else 0.0
