"""A helper that runs a generator of events to its end."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any


def returned(
    events: Generator[Any, None, Any], see: Callable[[Any], object] = lambda event: None
) -> Any:
    """Run `events` to the end and return what they return; `see` gets every event as it comes."""
    while True:
        try:
            see(next(events))
        except StopIteration as end:
            return end.value
