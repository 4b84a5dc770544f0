"""Time limit for the conversion of one document."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from kvstream.errors import SourceError

Block = TypeVar("Block")
SECONDS = 60.0
"""Base time limit for the conversion of a document of any size."""
SECONDS_PER_BYTE = 5e-6
"""Additional time per byte: 5 s for 1 MB of the file. Converters take 0.2 s for that."""


class Patience:
    """Ends a conversion that takes too long. The time between two parts does not count."""

    def __init__(self, name: str, size: int = 0) -> None:
        self.name = name
        self.seconds = 0.0
        self.size = size

    @property
    def limit(self) -> float:
        """Total seconds allowed."""
        return SECONDS + self.size * SECONDS_PER_BYTE

    @property
    def rest(self) -> float:
        """Remaining seconds."""
        return max(self.limit - self.seconds, 0.0)

    def over(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Yield blocks, and count the time of their conversion. Raises SourceError at its end."""
        end: Any = object()
        while True:
            began = time.perf_counter()
            block = next(blocks, end)
            self.seconds += time.perf_counter() - began
            if not self.rest:
                raise self.error()
            if block is end:
                return
            yield block

    def outside(self, read: Callable[[int], bytes | None]) -> Callable[[int], bytes | None]:
        """Return ``read`` without its time, in which it may wait for a pipe."""

        def reading(size: int) -> bytes | None:
            began = time.perf_counter()
            data = read(size)
            self.seconds -= time.perf_counter() - began
            return data

        return reading

    def error(self) -> SourceError:
        return SourceError(
            f"{self.name} takes more than {self.limit:,.0f} seconds to convert to text, so it was "
            "given up: convert it with another program first and name the text file."
        )


def unreadable(path: object, kind: str, why: object) -> SourceError:
    """Return the error for a document that its library cannot read."""
    return SourceError(
        f"{path} cannot be read as {kind.upper()}: {' '.join(str(why).split()).rstrip('.')}. "
        "Fetch it again if it is damaged, or convert it to text first."
    )
