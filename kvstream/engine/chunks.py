"""What goes into the engine and what it reports: chunks of tokens, their feed, steps in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Chunk:
    """Tokens of the source, in order, as the model will read them."""

    ids: Sequence[int]
    first: int
    """Ordinal in the source of the first; the rest follow without a gap."""


class Feed(Protocol):
    """Where the engine gets its tokens from."""

    def read(self, count: int) -> Chunk:
        """At most `count` tokens; fewer only at the end, none after it."""

    def exhausted(self) -> bool:
        """Whether nothing is left to read; may wait for the source."""

    def estimate(self) -> int | None:
        """Expected total number of tokens, if it can be estimated."""


@dataclass(frozen=True)
class StepReport:
    """What happened in one step, in numbers."""

    chunk: int
    memory: tuple[int, ...]
    in_flight: int
    """Entries that the fullest head held during the pass, those of the catalyst included."""
    seconds: float
    select_seconds: float
    """Part of `seconds` spent in selection and eviction."""
    loss: Tensor | None = None
    """Cross-entropy [chunk] in nats of the chunk's tokens, if `Reader.report_loss` is set."""
