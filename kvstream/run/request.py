"""The request for a reading: one object, passed from the command line to the code that uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kvstream.settings import RunSettings

if TYPE_CHECKING:
    from kvstream.run.intervals import Intervals
    from kvstream.run.prompt import Layout

CommandName = Literal["ask", "summarize", "compare", "remember", "chat"]
PASSAGES = 10
"""Default number of passages of an extract."""
CHECKPOINT_EVERY = 32768
"""Default number of tokens between two checkpoints."""


def never() -> bool:
    """For readings that nobody interrupts; unlike a lambda it can be sent to a worker."""
    return False


@dataclass(frozen=True)
class Request:
    """All options of a reading except those of loading; they have the command line's names."""

    questions: tuple[str, ...] = ()
    """Questions known before the reading; memory is chosen for them."""
    run: RunSettings = field(default_factory=RunSettings)
    """Budget, method, schedule and sampling."""
    command: CommandName = "ask"
    """``summarize`` asks for a summary; ``remember`` and ``chat`` expect later questions."""
    system: str | None = None
    """System text for the model."""
    layout: Layout | None = None
    """Words around the text and the questions that replace those of kvstream."""
    extract: bool = False
    """Answer with the passages that memory retains best, instead of generated text."""
    passages: int = PASSAGES
    """Maximum number of passages with `extract`."""
    strict: bool = False
    """Withhold a weakly supported answer."""
    every: Intervals | None = None
    """Also answer during the reading, at these intervals."""
    checkpoint: Path | None = None
    """Save the reading in this file, and resume from it if it exists."""
    checkpoint_every: int = CHECKPOINT_EVERY
    """Tokens between two checkpoints."""
    interrupted: Callable[[], bool] = never
    """Return whether to stop reading and answer from what was read."""

    @property
    def open_ended(self) -> bool:
        """Whether questions will come later that are not known yet."""
        return self.command in ("remember", "chat")
