"""Read the words of captions (WebVTT, SubRip, SBV, TTML) once, each with its time."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import chain
from xml.parsers import expat

from kvstream.input.document_lines import Piece, Read, Undecoded, decoded
from kvstream.input.limits import unreadable
from kvstream.input.timed_text import Cue, TimedText

BATCH = 64
MOST_LINES = 100
"""Maximum lines of a cue that are held."""
TOUCH = 0.1
"""Seconds between two cues of which the second may show words of the first again."""
FLASH = 0.2
"""Maximum seconds of a cue that only moves the words of another one."""
_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})(?:[.,](\d{1,3}))?"
TIMES = re.compile(rf"\s*{_TIME}(?: *--+> *|,){_TIME}(?!\S)")
_NOT_SPOKEN = re.compile(r"(?:WEBVTT|NOTE|STYLE|REGION)(?!\S)")
_SPEAKER = re.compile(r"<v[^\s>]*\s+([^>]+)>")
_TAG = re.compile(r"<rt>[^<]*</rt>|</?[A-Za-z][^<>]*>|<[\d:.]+>|</?>|\{\\[^{}]*\}")
_BREAK = re.compile(r"\[br\]|<br */?>", re.IGNORECASE)


def caption_parts(
    read: Read, undecoded: Undecoded, name: str, warnings: list[str]
) -> Iterator[list[Piece]]:
    """Yield the words that each cue adds; ``warnings`` gets where damaged XML ends."""
    pieces: list[Piece] = []
    before: Cue | None = None
    texts = (text or "" for text in decoded(read, undecoded))
    first = next((text for text in texts if text.strip("\ufeff \t\n")), "").lstrip("\ufeff \t\n")
    every, of_xml = chain([first], texts), first.startswith("<")
    for cue in _xml_cues(every, name, warnings) if of_xml else _plain_cues(every):
        if added := _added(before, cue):
            pieces.append((f"{added}\n", _clock(cue[0])))
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
    yield rest


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


def _added(before: Cue | None, cue: Cue) -> str:
    """Return the words of a cue without those that it only shows again."""
    began, ended, lines = cue
    text = " ".join(lines)
    if before is None or not before[0] <= began <= before[1] + TOUCH:
        return text
    for count in range(min(len(before[2]), MOST_LINES), 0, -1):
        shown = " ".join(before[2][-count:])
        moved = count < len(before[2]) or min(ended - began, before[1] - before[0]) <= FLASH
        if text == shown and (moved or len(lines) > 1):
            return ""
        if text.startswith(f"{shown} ") and (" " in shown or shown[-1] not in ".!?"):
            return text[len(shown) + 1 :]
    return text


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"
