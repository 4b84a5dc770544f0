"""Methods that evict no entries: full refuses what does not fit, truncate never reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvstream.methods.base import Method, setting


@dataclass(frozen=True)
class Full(Method):
    """Keeps everything, as a plain cache does; refuses a source that does not fit the budget."""

    name: ClassVar[str] = "full"
    evicts: ClassVar[bool] = False


@dataclass(frozen=True)
class Passages(Full):
    """Keeps text instead of KV entries: the passages with most words of the question (BM25).

    The model judges the best ones and reads them at the end, so it must be known what is asked
    (`kvstream.session.scouting`). Of a text that fits it keeps everything.
    """

    name: ClassVar[str] = "passages"


@dataclass(frozen=True)
class Truncate(Method):
    """Reads the beginning and the end of the source, and drops the middle without reading it.

    Bai et al., "LongBench", section 4: the usual baseline. Kept and dropped tokens are counted.
    """

    name: ClassVar[str] = "truncate"
    source: ClassVar[str] = "LongBench, section 4"
    evicts: ClassVar[bool] = False

    head: float = setting(0.5, "share of the room that goes to the beginning", most=1)

    def shorten(self, head: int, free: int) -> tuple[int, int] | None:
        first = int(self.head * free)
        return first, free - first
