"""An answer: its text, its citations and its costs; and the progress of what makes it: shown in a
notebook by default, elsewhere only on request.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvstream.api.checks import kind
from kvstream.errors import UsageError
from kvstream.events import Answered, Event, Notice, Result, Value, returned
from kvstream.reporters.plain import Plain

Progress: TypeAlias = "bool | Callable[[Event], None] | None"
"""True shows plain lines, False shows none, None shows lines only in a notebook. A function gets
every event. Without lines, a checkpoint that cannot be written is a Python warning."""


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
        coverage = self.result.coverage
        return None if coverage is None else float(coverage["share"])

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


def in_notebook() -> bool:
    """Return whether this process is a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell"


def value_of(events: Generator[Event, None, Value], progress: Progress) -> Value:
    """Consume all events, show them, and return the value of the generator."""
    return returned(events, _shower(progress))


def answer_of(events: Iterator[Event], progress: Progress) -> Answer:
    """Consume all events, show them, and return the last answer."""
    show = _shower(progress)
    for event in events:
        show(event)
        if isinstance(event, Answered):
            answer = Answer(event.result)
    return answer


def _shower(progress: Progress) -> Callable[[Event], None]:
    if callable(progress):
        return progress
    if not (progress is None or isinstance(progress, bool)):
        raise UsageError(f"progress= is True, False or a function, not {kind(progress)}.")
    notebook = in_notebook()
    if progress or (progress is None and notebook):
        # A notebook shows stderr as an error.
        return Plain(sys.stdout if notebook else sys.stderr).show
    return _warn


def _warn(event: Event) -> None:
    if isinstance(event, Notice) and event.loss:
        # The level is that of the call of `read` or `ask`.
        warnings.warn(event.message, RuntimeWarning, stacklevel=5)
