"""Input and output of the engine: chunks of tokens, the feed they come from, reports of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

MOST_TOKENS = 2**31 - 1
"""Maximum number of tokens of a source: their ordinals in the cache are int32."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of the source that the model reads in one step."""

    ids: Sequence[int]
    first: int
    """Ordinal of the first token in the source; the others follow without a gap."""


class Feed(Protocol):
    """The source of the engine's tokens."""

    def read(self, count: int) -> Chunk:
        """Return the next `count` tokens; fewer only at the end of the source, none after it."""

    def exhausted(self) -> bool:
        """Return whether nothing is left to read. May wait for the source."""

    def estimate(self) -> int | None:
        """Return the expected total number of tokens; None if there is no estimate."""


@dataclass(frozen=True)
class StepReport:
    """Measurements of one step."""

    chunk: int
    memory: tuple[int, ...]
    in_flight: int
    """Entries of the fullest head during the pass, including those of the catalyst."""
    seconds: float
    select_seconds: float
    """Part of `seconds` spent in selection and eviction."""
    loss: Tensor | None = None
    """Cross-entropy [chunk] of the chunk's tokens in nats, if `Reader.report_loss` is set."""
