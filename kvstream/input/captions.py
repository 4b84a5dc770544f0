"""Read the words of captions (WebVTT, SubRip, SBV, TTML) once, each with its time."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import inf
from xml.parsers import expat

from kvstream.input.document_lines import Losses, Piece, Read, texts_of
from kvstream.input.limits import unreadable

BATCH = 64
MOST_LINES = 100
"""Maximum lines of a cue that are held."""
TOUCH = 0.1
"""Seconds between two cues of which the second may show words of the first again."""
FLASH = 0.2
"""Maximum seconds of a cue that only moves the words of another one."""
_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})(?:[.,](\d{1,3}))?"
TIMES = re.compile(rf"\s*{_TIME}(?:[ \t]*--+>[ \t]*|,){_TIME}(?!\S)")
_NOT_SPOKEN = re.compile(r"(?:WEBVTT|NOTE|STYLE|REGION)(?!\S)")
_SPEAKER = re.compile(r"<v[^\s<>]*+\s++([^<>]++)>")
_TAG = re.compile(r"<rt>[^<]*</rt>|</?[A-Za-z][^<>]*>|<[\d:.]+>|</?>|\{\\[^{}]*\}")
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u9fff"
_GROWS = re.compile(f"(?<=[{_UNSPACED}])[{_UNSPACED}\uff0c\u3001]")
"""Where a line goes on, in scripts that write no spaces."""
LEAST_UNSPACED = 4
"""Characters of such a line, at least. Shorter words are also said twice."""
_BREAK = re.compile(r"\[br\]|<br */?>", re.IGNORECASE)
LONGEST, LONGEST_NAME = 1 << 20, 100
"""Characters of a line of a cue that are held until it ends, and of a speaker's name, which is
repeated in every cue."""
_CLOCK = re.compile(r"(\d{1,9}):(\d\d):(\d\d(?:\.\d+)?)(?::(\d{1,9}(?:\.\d+)?))?")
_OFFSET = re.compile(r"(\d{1,18}(?:\.\d+)?)(h|ms|m|s|f|t)")
_TIMED = ("body", "div", "p", "span", "br")
Cue = tuple[float, float, list[str]]
"""Seconds of its begin and its end, and its lines."""


def caption_parts(
    read: Read, losses: Losses, name: str, warnings: list[str]
) -> Iterator[list[Piece]]:
    """Yield the words that each cue adds; ``warnings`` gets where damaged XML ends."""
    pieces: list[Piece] = []
    before: Cue | None = None
    texts = (text or "" for text in texts_of(read, losses))
    first = next((text for text in texts if text.strip("\ufeff \t\n")), "").lstrip("\ufeff \t\n")
    every, of_xml = chain([first], texts), first.startswith("<")
    for cue in _xml_cues(every, name, warnings) if of_xml else _plain_cues(every):
        if words := _new_words(before, cue):
            pieces.append((f"{words}\n", _clock(cue[0])))
            before = cue
        elif before is not None:  # it shows the cue before again
            before = before[0], max(before[1], cue[1]), before[2]
        if len(pieces) >= BATCH:
            yield pieces
            pieces = []
    yield pieces


def _xml_cues(texts: Iterator[str], name: str, warnings: list[str]) -> Iterator[Cue]:
    reader, begun = TimedText(), False
    try:
        for text in texts:
            reader.feed(text)
            begun = begun or bool(reader.cues)
            yield from reader.take()
        reader.feed("", final=True)
    except expat.ExpatError as error:
        if not begun and not reader.cues:
            raise unreadable(name, "captions", error) from error
        warnings.append(f"{name} is damaged XML ({error}); what comes after that is not read.")
    yield from reader.take()


def _plain_cues(texts: Iterator[str]) -> Iterator[Cue]:
    for begin, end, raw in _cues(_lines(texts)):
        if lines := [line for each in raw for line in _clean(each)]:
            yield begin, end, lines


def _lines(texts: Iterator[str]) -> Iterator[str]:
    rest = ""
    for text in texts:
        *lines, rest = (rest + text).split("\n")
        yield from lines
        if len(rest) > LONGEST:
            line, rest = _cut(rest)
            yield line
    yield rest


def _cut(line: str) -> tuple[str, str]:
    """Return the two parts of a long line, cut between words if it has several."""
    first, space, rest = line.rpartition(" ")
    return (first, rest) if space else (rest, "")


def _cues(lines: Iterator[str]) -> Iterator[Cue]:
    """Yield the cues. A block of lines without a time belongs to the cue before it."""
    cue: Cue | None = None
    block: list[str] = []
    own = False  # whether the block is directly below the time of the cue
    for line in lines:
        times = TIMES.match(line)
        if times is None and line and (cue is None or len(cue[2]) + len(block) < MOST_LINES):
            block.append(line)
            continue
        if times is None:
            if cue is not None:
                if own or not (block and _NOT_SPOKEN.match(block[0])):
                    cue[2].extend(block)
                if line:  # it is too long to be held until it ends
                    yield cue
                    cue = cue[0], cue[1], [line]
            block, own = [], False
            continue
        if block and ((len(block) == 1 and not own) or block[-1].strip().isdigit()):
            block.pop()  # the number or the name of the new cue
        if cue is not None:
            cue[2].extend(block)
            yield cue
        block, own = [], True
        cue = _seconds(times.groups()[:4]), _seconds(times.groups()[4:]), []
    if cue is not None:
        cue[2].extend(block)
        yield cue


def _seconds(parts: tuple[str | None, ...]) -> float:
    hours, minutes, seconds, part = (part or "0" for part in parts)
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds) + float(f"0.{part}")


def _clean(line: str) -> list[str]:
    """Return a line of a cue without tags, as one or more lines."""
    line = _SPEAKER.sub(r"\1: ", line)
    lines = (html.unescape(_TAG.sub("", part)) for part in _BREAK.sub("\n", line).split("\n"))
    return [words for part in lines if (words := " ".join(part.split()))]


def _new_words(before: Cue | None, cue: Cue) -> str:
    """Return the words of a cue without those that it only shows again."""
    begin, end, lines = cue
    text = " ".join(lines)
    if before is None or not before[0] <= begin <= before[1] + TOUCH:
        return text
    for count in range(min(len(before[2]), MOST_LINES), 0, -1):
        last = " ".join(before[2][-count:])
        moved = count < len(before[2]) or min(end - begin, before[1] - before[0]) <= FLASH
        if text == last and (moved or len(lines) > 1):
            return ""
        if text.startswith(f"{last} ") and (" " in last or last[-1] not in ".!?"):
            return text[len(last) + 1 :]
        if len(last) >= LEAST_UNSPACED and text.startswith(last) and _GROWS.match(text, len(last)):
            return text[len(last) :]
    return text


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"


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
    spoken: bool = False
    """Whether it is a paragraph, or in one."""


class TimedText:
    """Collects cues from pieces of TTML (DFXP), in XML. It refuses entities, so that none grows."""

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
        pairs = {_local(key): value for key, value in attributes.items()}
        parent = self._open[-1]
        if name == "tt":
            self._set_units(pairs)
        if name == "agent":
            self._agent = pairs.get("id", "")
        begin = (parent.last if parent.in_turn else parent.begin) + self._seconds(pairs, "begin", 0)
        end = parent.begin + self._seconds(pairs, "end", inf)
        end = min(end, begin + self._seconds(pairs, "dur", inf), parent.end)
        in_turn, spoken = pairs.get("timeContainer") == "seq", parent.spoken or name == "p"
        self._open.append(_Element(name, begin, end, in_turn, begin, spoken))
        if name == "br":
            self._lines.append("")
        elif name == "p" or (name == "span" and "begin" in pairs):
            self._finish()
            self._cue = begin, end
        if name in ("p", "span") and (speaker := self._speakers.get(pairs.get("agent", ""))):
            self._lines[-1] += f"{speaker}: "

    def _end(self, _: str) -> None:
        element = self._open.pop()
        if element.name == "p":
            self._finish()
        if element.name in _TIMED and element.end < inf:
            self._open[-1].last = element.end

    def _data(self, text: str) -> None:
        if self._open[-1].name == "name" and self._agent:
            name = self._speakers.get(self._agent, "")
            self._speakers[self._agent] = " ".join(f"{name}{text}".split())[:LONGEST_NAME]
        if self._open[-1].spoken and self._open[-1].name in _TIMED:
            self._lines[-1] += text.replace("\n", " ")
            if len(self._lines[-1]) > LONGEST:
                self._lines[-1], rest = _cut(self._lines[-1])
                self._finish()
                self._lines = [rest]

    def _finish(self) -> None:
        lines = [words for line in self._lines if (words := " ".join(line.split()))]
        if lines:
            self.cues.append((*self._cue, lines))
        self._lines = [""]

    def _set_units(self, pairs: dict[str, str]) -> None:
        rate = _number(pairs.get("frameRate", "")) or 30.0
        over, under = [*map(_number, pairs.get("frameRateMultiplier", "1 1").split()), 0.0, 0.0][:2]
        frames = rate * over / under if over and under else rate
        ticks = _number(pairs.get("tickRate", "")) or (frames if "frameRate" in pairs else 1.0)
        self._units |= {"f": 1 / frames, "t": 1 / ticks}

    def _seconds(self, pairs: dict[str, str], name: str, absent: float) -> float:
        text = pairs.get(name, "").strip()
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
