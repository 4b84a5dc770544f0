"""An answer: its text, its citations and its costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvstream.events import Answered, Event, Result


@dataclass(frozen=True)
class Answer:
    """An answer or a summary; `str(answer)` is its text."""

    result: Result
    """All facts of the answer: sizes, times, tokens read and retained."""

    @property
    def text(self) -> str:
        """The text that the model generated, or the passages of an extract."""
        return self.result.answer

    @property
    def question(self) -> str:
        """The question; empty for a summary."""
        return self.result.question

    @property
    def citations(self) -> tuple[Mapping[str, Any], ...]:
        """The passages that the answer rests on, heaviest first: ``source``, ``byte_start``,
        ``byte_end`` (bytes of the unpacked source, or of the text that is extracted from a
        document), ``line_start``, ``line_end`` or a page or heading, ``text``, and ``weight`` (its
        share of the answer's attention, 0 to 1)."""
        return self.result.citations

    @property
    def coverage(self) -> float | None:
        """The share of the text that memory still represents, 0 to 1; None if not measured."""
        found = self.result.coverage
        return None if found is None else float(found["share"])

    @property
    def support(self) -> Mapping[str, float] | None:
        """How far the answer rests on single passages (``focus``, 0 to 1), the model's
        ``confidence``, and, if the model is calibrated, the ``probability`` that the answer is
        right. None for an extract."""
        return self.result.support

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to read before you rely on the answer."""
        return self.result.warnings

    @property
    def abstained(self) -> bool:
        """Whether the answer is a refusal: it says that the text has no answer."""
        from kvstream.answer.support import abstains

        return abstains(self.text)

    @property
    def withheld(self) -> str | None:
        """The model's answer that `strict` withheld for weak support; None if it withheld none."""
        return self.result.withheld

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return self.result.to_json()

    def __str__(self) -> str:
        return self.text


def answers(events: Iterator[Event]) -> list[Answer]:
    """Consume all events and return the answers among them."""
    return [Answer(event.result) for event in events if isinstance(event, Answered)]
