"""The memory of a reading: the entries of the cache, the prompt around them, and their sources."""

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
    """The positions of the tokens in memory in the sources."""

    names: Sequence[str] = ()
    bases: Sequence[int] = ()
    """Global byte offset of each source's beginning."""
    origins: TokenOrigins = field(default_factory=TokenOrigins)
    passages: Passages | None = None
    """Sentences and lines around retained tokens; None if they are not needed."""
    words: WordForms | None = None
    """The words and numbers of the whole text; None if they were not gathered."""
    read: int = 0
    """Number of tokens of the sources read so far."""
    end: int = 0
    """Global byte offset after the last of these tokens."""
    records: Sequence[SourceRecord] = ()
    """Sizes and digests of the sources, as far as they were read."""
    line_counts: LineCounts | None = None
    """For logs: number of lines, and of lines that were not read because they repeat others."""
    interrupted: bool = False
    """Whether the user stopped the reading before the end of the text."""
    ended_line: bool = True
    """Whether the last source ended with a newline."""
    notes: Sequence[str] = ()
    """Messages about the sources that are no reason to doubt an answer."""
    waiting: int = 0
    """Bytes after `end` that were taken from the sources, and not read yet."""

    @property
    def source_end(self) -> int:
        """Global byte offset after all bytes taken; an interrupted reading takes more text."""
        return max(self.end, sum(record.bytes for record in self.records))

    def prune(self, ordinals: torch.Tensor) -> None:
        """Drop offsets and text of tokens that are not in `ordinals` (int64, sorted, unique)."""
        self.origins.prune(ordinals.numpy())
        if self.passages is not None:
            self.passages.prune(self.origins.known()[1], self.end)


@dataclass
class Beside:
    """Passages that are kept beside a memory for the answering model, if another model read."""

    model: str
    fingerprint: str
    """Fingerprint of the answering model's weights."""
    budget: int
    """The answering model's budget, in entries per head."""
    by: str
    """What selects its passages: ``memory``, ``words`` or ``both``."""
    room: int
    """Maximum number of bytes of text that may be kept."""
    peak: int
    """Maximum number of bytes that were ever kept."""
    dropped: int
    """Bytes of text that were not kept."""
    excerpts: list[tuple[Passage, ...]]
    """Excerpts in the order of the document, each of consecutive passages."""
    words: list[list[int]] = field(default_factory=list)
    """For each known question, `QuestionWords.totals` of the whole text, including what was
    dropped. Empty if words do not select passages, and in older files."""

    def to_json(self) -> dict[str, Any]:
        """Return the object ``answering`` of ``--json`` for a memory of two models."""
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
    """How a text was read in parts."""

    count: int
    budgets: int
    """Maximum number of memories held at a time, each of at most one budget."""
    budget_bytes: int
    """Bytes of one budget."""

    def to_json(self) -> dict[str, int]:
        return {
            "count": self.count,
            "budgets": self.budgets,
            "bytes": self.budgets * self.budget_bytes,
        }


@dataclass
class Memory:
    """A reader that has read, the prompt around its memory, and the sources of its tokens."""

    model: str
    tokenizer: Tokenizer
    reader: Reader
    plan: RunPlan
    run: RunSettings
    trace: Trace
    command: str = "ask"
    load_s: float = 0.0
    prefill_s: float = 0.0
    """Seconds of reading in this run, and before it if a checkpoint was resumed."""
    loaded_s: float = 0.0
    """Seconds of the earlier runs that read the `loaded` tokens."""
    loaded: int = 0
    """Source tokens that were loaded from a memory file, not read in this run."""
    warnings: list[str] = field(default_factory=list)
    digest: str | None = None
    """Digest of the file that it was loaded from."""
    beside: Beside | None = None
    """Text for the answering model, if another model read."""
    shards: Shards | None = None
    always: frozenset[str] = frozenset()
    """Names of sources that every answer sees, even if it sees only one of the others."""

    @property
    def prompt(self) -> Prompt:
        return self.plan.prompt

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of reading; 0 if nothing was read in this run."""
        return (self.trace.read - self.loaded) / self.prefill_s if self.prefill_s else 0.0

    @property
    def retained(self) -> int:
        """Number of distinct source tokens that at least one head holds."""
        return int(self.reader.retained().numel())

    @property
    def partial(self) -> bool:
        """Whether some heads evicted tokens, though each token is in another head."""
        read = self.trace.read
        return min(self.reader.schedule.held, default=read) < read == self.retained
