"""What remains of a reading: what the cache holds, the prompt around it, where it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kvstream.engine.reader import Reader
from kvstream.input.source import LineCounts, SourceRecord
from kvstream.run.plan import RunPlan
from kvstream.run.prompt import Prompt
from kvstream.settings import RunSettings
from kvstream.tokenization.loading import Tokenizer, WordForms
from kvstream.tokenization.passages import Passage, Passages, TokenOrigins


@dataclass
class Trace:
    """Where in the sources the tokens that memory holds came from."""

    names: Sequence[str] = ()
    """Of the sources, in order."""
    bases: Sequence[int] = ()
    """Global byte offset of each source's beginning."""
    origins: TokenOrigins = field(default_factory=TokenOrigins)
    passages: Passages | None = None
    """Sentences and lines around retained tokens, where they are wanted."""
    words: WordForms | None = None
    """Which words and numbers all of the text has; None where that was not gathered."""
    read: int = 0
    """Tokens of the sources so far."""
    end: int = 0
    """Global byte offset behind the last of them."""
    records: Sequence[SourceRecord] = ()
    """Sizes and digests of the sources, as far as they were read."""
    line_counts: LineCounts | None = None
    """Of logs: lines, and how many of them were not read because they repeat others."""
    interrupted: bool = False
    """The user stopped the reading; the text has more."""
    ended_line: bool = True
    """Whether the last of them ended with a newline."""

    def prune(self, kept: torch.Tensor) -> None:
        """Drop offsets and text of what memory no longer holds; `kept` int64, sorted, unique."""
        ordinals = kept.numpy()
        self.origins.prune(ordinals)
        if self.passages is not None:
            self.passages.prune(self.origins.starts(ordinals), self.end)


@dataclass
class Beside:
    """What is kept beside a memory for another model, which answers from it."""

    model: str
    """The name of that model."""
    fingerprint: str
    """Of its weights."""
    budget: int
    """Entries a head that it may hold."""
    by: str
    """What decides which passages it gets: ``memory``, ``words`` or ``both``."""
    room: int
    """Bytes of text that may be kept."""
    peak: int
    """The most bytes that ever were."""
    dropped: int
    """Bytes of text that were not kept."""
    excerpts: list[tuple[Passage, ...]]
    """Consecutive passages each, in the order of the document."""
    words: list[list[int]] = field(default_factory=list)
    """For each question that was known, `QuestionWords.totals` of the whole text: what was dropped
    counts, too. Empty where passages do not go by words, and in older files."""

    def to_json(self) -> dict[str, Any]:
        """The object ``answering`` of ``--json`` for a memory of two models."""
        texts = [passage.text for excerpt in self.excerpts for passage in excerpt]
        return {
            "model": self.model,
            "budget": self.budget,
            "passages": len(self.excerpts),
            "bytes": sum(len(text.encode("utf-8", "replace")) for text in texts),
            "room_bytes": self.room,
            "dropped_bytes": self.dropped,
        }


@dataclass(frozen=True)
class Shards:
    """A text that was read in parts."""

    count: int
    """Parts."""
    budgets: int
    """The most memories that were held at a time, each of them of one budget at most."""
    budget_bytes: int
    """Of one budget."""

    def to_json(self) -> dict[str, int]:
        return {
            "count": self.count,
            "budgets": self.budgets,
            "bytes": self.budgets * self.budget_bytes,
        }


@dataclass
class Memory:
    """A reader that has read, the prompt around what it holds, and where that came from."""

    model: str
    """Name of the model."""
    tokenizer: Tokenizer
    reader: Reader
    plan: RunPlan
    run: RunSettings
    trace: Trace
    command: str = "ask"
    load_s: float = 0.0
    prefill_s: float = 0.0
    """Time of reading in this run."""
    loaded: int = 0
    """Source tokens of the memory file that it came from: they were read at another time."""
    warnings: list[str] = field(default_factory=list)
    digest: str | None = None
    """Of the file that it came from."""
    beside: Beside | None = None
    """Text for another model that answers, where there is one."""
    shards: Shards | None = None
    """How it was read, where that was in parts."""

    @property
    def prompt(self) -> Prompt:
        """What stands around what memory holds."""
        return self.plan.prompt

    @property
    def tokens_per_s(self) -> float:
        """Of reading; 0 where it was done at another time."""
        return (self.trace.read - self.loaded) / self.prefill_s if self.prefill_s else 0.0

    @property
    def retained(self) -> int:
        """Distinct source tokens that some head still holds."""
        return int(self.reader.retained().numel())

    def release(self) -> None:
        """Give the room of the KV cache back; the memory can no longer be asked."""
        self.reader.release()
