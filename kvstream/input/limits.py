"""How long the conversion of one document may take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvstream.errors import SourceError

SECONDS = 60.0
"""Of conversion, for a document of any size."""
SECONDS_PER_BYTE = 5e-6
"""More, for a large one: 5 s for 1 MB of the file. Converters take 0.2 s for that."""


class Patience:
    """Counts the seconds that the conversion of a document takes, and ends it when too long.

    The time between two parts, when the model reads, does not count.
    """

    def __init__(self, name: str, size: int = 0) -> None:
        self.name = name
        self.used = 0.0
        self.size = size

    def grow(self, size: int) -> None:
        """The document has ``size`` bytes by now."""
        self.size = max(self.size, size)

    @property
    def limit(self) -> float:
        """Seconds in all."""
        return SECONDS + self.size * SECONDS_PER_BYTE

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(self.limit - self.used, 0.0)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the time of the block. Raises SourceError when there is none left."""
        began = time.perf_counter()
        yield
        self.used += time.perf_counter() - began
        if not self.left:
            raise self.error()

    def error(self) -> SourceError:
        return SourceError(
            f"{self.name} takes more than {self.limit:,.0f} seconds to convert to text, so it was "
            "given up: convert it with another program first and name the text file."
        )


def unreadable(path: object, kind: str, why: object) -> SourceError:
    """The error for a document that its library does not understand."""
    return SourceError(
        f"{path} cannot be read as {kind.upper()}: {str(why).rstrip('.')}. "
        "Fetch it again if it is damaged, or convert it to text first."
    )
