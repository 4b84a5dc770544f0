"""What a generator of events returns at its end."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any


def returned(
    events: Generator[Any, None, Any], see: Callable[[Any], object] = lambda event: None
) -> Any:
    """Run it to the end, and hand out what it returned; `see` gets every event as it comes."""
    while True:
        try:
            see(next(events))
        except StopIteration as end:
            return end.value
