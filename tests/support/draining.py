"""What a generator of events returns at its end."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any


def returned(events: Generator[Any, None, Any]) -> Any:
    """Run it to the end, and hand out what it returned."""
    while True:
        try:
            next(events)
        except StopIteration as end:
            return end.value
