"""Passages that an answer attended to, and the coverage of the document, for a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvstream.events import Result
from kvstream.reporters.format import beginning, cells, cut, end_of, fit, share, strip, visible

SHOWN = 3
"""Number of passages shown under an answer; the JSON has all."""
LINES = 2
"""Maximum number of lines for the text of a passage."""
CHAPTER = 24
"""Maximum cells for the heading of a chapter."""
MAP = 36
"""Number of places in the map of a document."""
INDENT = "    "
_WORD = re.compile(r"\w+")


def looked_lines(result: Result, width: int) -> list[str]:
    """Return the lines under a generated answer on a terminal: citations and log lines."""
    if not result.generated:
        return []
    lines = citation_lines(result.citations, width, result.answer)
    return [*lines, *match_lines(result.lines, width)]


def citation_lines(
    citations: Sequence[Mapping[str, Any]], width: int, answer: str = ""
) -> list[str]:
    """Return source, place, weight and text of the heaviest passages, in `width` cells."""
    if not citations:
        return []
    lines = ["", "Where the model looked:"]
    for number, citation in enumerate(citations[:SHOWN], 1):
        tail = f"{place_of(citation)} ({share(citation['weight'], 1.0)})"
        head = f"[{number}] "
        name = end_of(_one_line(str(citation["source"])), max(8, width - len(head) - cells(tail)))
        lines += [head + name + tail, *_passage(citation["text"], width, answer)]
    return lines


def _passage(text: str, width: int, answer: str = "") -> list[str]:
    """Return the beginning of a text, or the part with the words of the answer, indented."""
    room = max(16, width - len(INDENT))
    part = _around(_one_line(text), answer, LINES * room)
    return [INDENT + line for line in wrapped(part, room, LINES)]


def news_lines(result: Result, width: int) -> list[str]:
    """Return an answer that changed, below its time and place and above the passage."""
    news = result.news or {}
    passage = news.get("passage")
    lines = [news_head(news), *result.answer.rstrip("\n").split("\n")]
    if passage is not None and result.generated:
        lines += _passage(passage["text"], width, result.answer)
    return lines


def news_head(news: Mapping[str, Any]) -> str:
    """Return the time and the place of an answer that changed."""
    passage, place = news.get("passage"), ""
    if passage is not None:
        place = f" · {end_of(_one_line(str(passage['source'])), 40)}{place_of(passage)}"
    return f"--- {news['time']}{place} ---"


def match_lines(lines: Mapping[str, Any] | None, width: int) -> list[str]:
    """Return source, number and text of the log lines that have the words of the question."""
    if lines is None or not lines["matches"]:
        return []
    rows = ["", "Lines with the words of the question:"]
    for match in lines["matches"]:
        rows.append(f"{end_of(_one_line(match['source']), max(8, width - 12))}:{match['line']}")
        rows += _passage(match["text"], width)
    return rows


def match_places(lines: Mapping[str, Any] | None) -> list[str]:
    """Return source and number of the first of these lines, for stderr."""
    matches = [] if lines is None else lines["matches"][:SHOWN]
    return [f"{_one_line(match['source'])}:{match['line']}" for match in matches]


def coverage_line(result: Result, *, pictures: bool) -> str | None:
    """Return the share of the text that memory represents, with a map; None if all or unknown."""
    if result.coverage is None or not result.evicted:
        return None
    text = "what was read" if result.interrupted else "the text"
    words = f"{share(result.coverage['share'], 1.0)} of {text} is represented in memory"
    if not pictures:
        return words
    return f"{words} {strip(fit(result.coverage['map'], MAP), '·')}"


def support_line(result: Result) -> str | None:
    """Return the numbers that decide on a warning about the answer, or None without support."""
    if result.support is None:
        return None
    words = {
        "probability": "probability that the answer is right",
        "focus": "attention to the text on its three heaviest passages",
        "confidence": "mean probability of its tokens",
    }
    rows = [f"{w} {share(result.support[k], 1.0)}" for k, w in words.items() if k in result.support]
    return " · ".join(rows)


def place_of(citation: Mapping[str, Any]) -> str:
    """Return the place of a passage in its source, without the parts that are unknown."""
    if citation.get("page") is not None:
        first, last = citation["page"], citation["page_end"]
        return f" p. {first}" if first == last else f" pp. {first}-{last}"
    if citation.get("chapter") is not None:
        return f", {cut(_one_line(citation['chapter']), CHAPTER)}"
    first, last = citation["line_start"], citation["line_end"]
    if first is None:
        return ""
    return f":{first}" if first == last else f":{first}-{last}"


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))


def _around(text: str, answer: str, room: int) -> str:
    """Return `text` from before the place with the most words of the answer, for `room` cells."""
    terms = {word.casefold() for word in _WORD.findall(answer) if _tells(word)}
    words = text.split(" ")
    ends = [0]
    for word in words:
        ends.append(ends[-1] + cells(word) + 1)
    if not terms or ends[-1] <= room:
        return text
    hits = [(i, terms.intersection(_WORD.findall(w.casefold()))) for i, w in enumerate(words)]
    hits = [(place, match) for place, match in hits if match]

    def count(start: int, most: int) -> int:
        inside = [f for i, f in hits if i >= start and ends[i + 1] - ends[start] <= most]
        return len(set().union(*inside))

    at_first = count(0, room - 8)
    best = max((place for place, _ in hits), key=lambda i: count(i, room // 2), default=0)
    if count(best, room // 2) <= at_first:
        return text
    start = best
    while start > 0 and ends[best] - ends[start - 1] <= room // 3:
        start -= 1
    return ("... " if start else "") + " ".join(words[start:])


def _tells(word: str) -> bool:
    """Return whether to look for a word of an answer: a name, a number or a long word."""
    return len(word) > 3 or word[0].isupper() or word[0].isdigit()


def wrapped(text: str, width: int, most: int | None = None) -> list[str]:
    """Split `text` into at most `most` lines of `width` cells; three dots mark a cut."""
    lines, line = [], ""
    for word in text.split(" "):
        while cells(word) > width:  # no spaces: Chinese, or a long address
            part = beginning(word, width, least=1) if not line else ""
            lines.append(line or part)
            line, word = "", word[len(part) :]
        if cells(line) + bool(line) + cells(word) > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    lines.append(line)
    lines = [line for line in lines if line]
    if most is not None and len(lines) > most:
        last = beginning(lines[most - 1], width - 4)
        if len(last) < len(lines[most - 1]) and lines[most - 1][len(last)] != " ":
            last = last.rpartition(" ")[0] or last  # whole words
        lines = [*lines[: most - 1], last.rstrip() + " ..."]
    return lines
