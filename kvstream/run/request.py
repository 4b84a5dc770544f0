"""What somebody asks of a reading: one object from the command line to where it is obeyed."""

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
"""Passages of an extract, where nothing else was said."""
CHECKPOINT_EVERY = 32768
"""Tokens between two checkpoints, where nothing else was said."""


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Request:
    """Everything that is asked of a reading; options have the names of the command line."""

    questions: tuple[str, ...] = ()
    """Known before the reading; memory is chosen for them."""
    run: RunSettings = field(default_factory=RunSettings)
    """Budget, method, schedule and sampling."""
    command: CommandName = "ask"
    """``summarize`` asks for a summary; after ``remember`` and ``chat`` questions come later."""
    system: str | None = None
    """System text for the model."""
    layout: Layout | None = None
    """Words in place of the program's own around the text and the questions."""
    extract: bool = False
    """Answer with the passages that memory holds on to most, instead of the model's words."""
    passages: int = PASSAGES
    """How many passages `extract` gives."""
    strict: bool = False
    """Withhold an answer that rests on little."""
    reread: str | None = None
    """Read parts of the sources a second time and answer from those: parts that the first answer
    looked at (``citations``), that have the words of the question (``words``), or ``both``."""
    every: Intervals | None = None
    """Answer during the reading, too, at these intervals."""
    checkpoint: Path | None = None
    """Save the reading in this file, and go on from it if it is there."""
    checkpoint_every: int = CHECKPOINT_EVERY
    """Tokens between two checkpoints."""
    interrupted: Callable[[], bool] = _never
    """Whether to stop reading and answer from what was read."""

    @property
    def open_ended(self) -> bool:
        """Whether questions come later that nobody knows yet."""
        return self.command in ("remember", "chat")
