"""Progress of a reading: shown in a notebook by default, elsewhere only on request."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import TypeAlias

from kvstream.api.given import kind
from kvstream.errors import UsageError
from kvstream.events import Event, Notice, Value, returned
from kvstream.reporters.plain import Plain

Progress: TypeAlias = "bool | Callable[[Event], None] | None"
"""True shows plain lines, False shows none, None shows lines only in a notebook. A function gets
every event. Without lines, a checkpoint that cannot be written is a Python warning."""


def in_notebook() -> bool:
    """Return whether this process is a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell"


def shown(events: Generator[Event, None, Value], progress: Progress) -> Value:
    """Consume all events, show them, and return the value of the generator."""
    return returned(events, _shower(progress))


def watched(events: Iterator[Event], progress: Progress) -> Iterator[Event]:
    """Show each event and yield it."""
    show = _shower(progress)
    for event in events:
        show(event)
        yield event


def _shower(progress: Progress) -> Callable[[Event], None]:
    if callable(progress):
        return progress
    if progress not in (True, False, None):
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
