"""``--follow``: of the answers during a reading, only those that say something new."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from kvstream.events import Answered, AnswerStarted, Event, Notice, Result

SECONDS = 10.0
"""Default seconds between two answers."""
SLOW = (
    "An answer takes {0:.0f} s on this machine, so they come about every {0:.0f} s, not {1:.0f} s."
)
DOUBTED = "The answer matches --until-answer, but has a warning; waiting for one without."
UNMATCHED = "No answer matched --until-answer."
UNMET = 1
"""Exit code if the reading ended before an answer matched --until-answer."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")


class Watch:
    """Compares each answer with the last one to its question."""

    def __init__(self, until: str | None, seconds: float | None = None) -> None:
        """`seconds` between two answers, if the user chose them."""
        self._until, self._seconds = until, seconds
        self._answers: dict[str, str] = {}
        self._sentences: set[str] = set()
        """All sentences of summaries so far."""
        self._read: dict[str, dict[str, int]] = {}
        """For each question, bytes of each source that its last answer rests on."""
        self.met = False
        """Whether an answer matched --until-answer."""
        self.changed_at = ""
        self.is_news = False
        """Whether the last answer said something new."""

    def news(self, events: Iterator[Event]) -> Iterator[Event]:
        """Yield the events of the reading, and those of answers that say something new."""
        start: AnswerStarted | None = None
        began = 0.0
        for event in events:
            if isinstance(event, AnswerStarted):
                began = time.monotonic()
                # What memory holds is shown as it is before the answer.
                snapshot = event.kept() if event.kept else None
                start = replace(event, kept=partial(copy, snapshot))
            elif isinstance(event, Answered):
                took = time.monotonic() - began
                if self._seconds is not None and took > self._seconds:
                    yield Notice(SLOW.format(took, self._seconds), note=True)
                    self._seconds = None  # said once
                result = self._compared(event.result)
                self.is_news = result is not None
                if result is not None and start is not None:
                    yield from (start, Answered(result))
                    if self._matches(result) and not self.met:
                        yield Notice(DOUBTED, note=True)
                start = None
                if self.met:
                    return
            elif start is None:
                yield event

    def _compared(self, result: Result) -> Result | None:
        """Return the result with its news; None if it says nothing new."""
        text = result.answer
        own = set(result.warnings) - set(result.of_reading)
        self.met = self._matches(result) and not own  # a script acts on it: no guess will do
        if result.command == "summarize":
            lines = [line for line in _SENTENCE.split(text) if _plain(line) not in self._sentences]
            self._sentences.update(map(_plain, lines))
            text, same = "\n".join(lines), not lines
        else:
            same = self._answers.get(result.question) == _plain(text)
            self._answers[result.question] = _plain(text)
        passage = self._passage(result)
        sources = (result.receipt or {}).get("input", {}).get("sources", [])
        read = self._read[result.question] = {each["name"]: each["bytes"] for each in sources}
        if sources:
            read[sources[-1]["name"]] -= result.waiting
        if same:
            return None
        self.changed_at = time.strftime("%Y-%m-%d %H:%M:%S")
        return replace(result, answer=text, news={"time": self.changed_at, "passage": passage})

    def _matches(self, result: Result) -> bool:
        return self._until is not None and re.search(self._until, result.answer) is not None

    def _passage(self, result: Result) -> Mapping[str, Any] | None:
        """Return the heaviest passage of the text since the last answer, else the heaviest."""
        read = self._read.get(result.question, {})
        for citation in result.citations:
            if citation["byte_end"] > read.get(str(citation["source"]), 0):
                return citation
        return next(iter(result.citations), None)


def _plain(text: str) -> str:
    """Return the words of an answer for comparison, without case and signs."""
    return " ".join(re.findall(r"\w+", text.casefold()))
