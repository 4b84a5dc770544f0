"""The passages that memory keeps of a text: the best ones, in a fixed room.

They are kept while the text streams by, so a passage that was dropped cannot be read again. Two
kinds of evidence choose them: the words of the questions (BM25, `bm25.py`), and what the KV cache
of a scout holds and attends to. The best candidates are judged (`judge.py`) before the answering
model reads them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvstream.errors import BudgetError, SourceError
from kvstream.input.blocks import TextBlock
from kvstream.memory.contents import Beside, Memory, Trace
from kvstream.passages.bm25 import Counts, QuestionWords
from kvstream.passages.excerpts import Excerpt, ExcerptCutter
from kvstream.passages.judge import Judge
from kvstream.tokenization.loading import Tokenizer
from kvstream.tokenization.passages import Passage

BY = "both"
"""What chooses the passages of a memory file: words and memory."""
BYTES_A_TOKEN = 64
"""Bytes of text that may be kept for each entry of the budget. They take less than 3% of the bytes
of the KV cache of any model that can be loaded."""
MOST = 24
"""Maximum number of passages to judge."""
NEAR = 700
"""Bytes on each side of the best passage, for `near_the_best`."""
LEAST_SHARE = 0.2
"""Share of the best score by words that a passage needs to be judged, if words alone rank it."""
_FUSION = 60
"""k of reciprocal rank fusion (Cormack et al. 2009): each ranking gives 1 / (60 + rank)."""


@dataclass
class _Entry:
    excerpt: Excerpt
    bytes: int
    counts: list[Counts] = field(default_factory=list)
    """Counts for each known question."""


Chooser = Callable[[Judge | None], list[Excerpt]]
"""Returns all passages, best first. A judge reads the first ones, and its log-odds are added to the
scores by words."""


class PassageMemory:
    """The text of passages: at most `room` bytes; the rest is dropped.

    The passages with most words of the known questions stay, and those of which the KV cache of a
    scout holds most. Each `memory` below is that of the scout; it is None if no model reads all of
    the text, and then the questions must be known.
    """

    def __init__(self, room: int, questions: Sequence[str] = ()) -> None:
        self.room = room
        self.bytes = self.peak = self.dropped = 0
        """Bytes of text that are held now, their peak, and bytes that were dropped."""
        self._words = [QuestionWords(q) for q in questions]
        self.questions = tuple(questions)
        self._index = {question: i for i, question in enumerate(questions)}
        self._cutter = ExcerptCutter()
        self._coming: deque[Excerpt] = deque()
        self._entries: list[_Entry] = []

    def __len__(self) -> int:
        """Return the number of excerpts held."""
        return len(self._entries)

    @property
    def excerpts(self) -> list[Excerpt]:
        """The excerpts held, in document order."""
        return [entry.excerpt for entry in self._entries]

    def feed(self, block: TextBlock) -> None:
        """Add the next block of text. It waits until the model has read it."""
        self._cutter.feed(block)

    def note(self, end: int, memory: Memory | None = None, *, final: bool = False) -> None:
        """Add the text up to byte `end`; drop the lowest-ranked passages if there is no room."""
        self._coming.extend(self._cutter.take(final=final))
        while self._coming and (final or self._coming[0].end <= end):
            self._entries.append(self._entry(self._coming.popleft()))
            self.bytes += self._entries[-1].bytes
        if self.bytes > self.room:
            self.fit(self.room, self.order(memory))
        self.peak = max(self.peak, self.bytes)

    def _entry(self, excerpt: Excerpt) -> _Entry:
        counts = [words.count(excerpt.own_text) for words in self._words]
        return _Entry(excerpt, excerpt.bytes, counts)

    def fit(self, room: int, order: Sequence[int]) -> None:
        """Keep what fits in `room` bytes, in `order`, first the headers of tables."""
        stay, size = [], 0
        for index in sorted(order, key=lambda i: not self._entries[i].excerpt.names_columns):
            if size + self._entries[index].bytes <= room:
                size += self._entries[index].bytes
                stay.append(index)
        self._entries = [self._entries[i] for i in sorted(stay)]
        self.dropped += self.bytes - size
        self.bytes = size

    def order(self, memory: Memory | None) -> list[int]:
        """Return the indices of the held passages, best first."""
        every = self._entries
        rankings = [self._scores(question) for question in self.questions]
        if memory is not None or not rankings:
            rankings.append(_weights(every, memory))
        scores = fused(rankings)
        # Of passages without a score, the newest stay: memory may score them later.
        return sorted(range(len(every)), key=lambda i: (-scores[i], -i))

    def ranked(self, question: str, memory: Memory | None, cited: Sequence[Passage]) -> Chooser:
        """Rank the passages by their evidence for a question; memory may be released then.

        `cited`: passages, with weights, that the question and the scout's answer attended to.
        If the question was not known, its words rank first, and memory breaks ties.
        """
        every, excerpts = self._entries, self.excerpts
        words = self._scores(question)
        rankings = [words]
        if memory is not None:
            weights = np.array([passage.weight for passage in cited])
            starts = np.array([passage.start for passage in cited], dtype=np.int64)
            rankings.append(weights_in(_places(every), starts, weights))
            if every and question in self._index:
                rankings = [fused(rankings)]
        # Break ties by how much memory holds, then by document order.
        order = np.lexsort([-by for by in (_weights(every, memory), *reversed(rankings))])
        candidates = len(every)
        if memory is None and candidates:
            candidates = int((words >= LEAST_SHARE * words.max()).sum())

        def choose(judge: Judge | None = None) -> list[Excerpt]:
            best = order
            if judge is not None and every:
                first, rest = np.split(order, [min(candidates, MOST)])
                scores = words[first] + judge([excerpts[i] for i in first])
                best = np.concatenate((first[np.argsort(-scores, kind="stable")], rest))
            return [excerpts[i] for i in best]

        return choose

    def totals(self, question: str) -> list[int] | None:
        """Return `QuestionWords.totals` of a question; None if it was not known."""
        place = self._index.get(question)
        return None if place is None else self._words[place].totals

    def speaks(self, question: str) -> bool:
        """Return whether the text has a word of the question; if it was not known, what is held."""
        _, _, *having = self._counts(question)[0].totals
        return any(having)

    def _scores(self, question: str) -> np.ndarray:
        """Return scores by the words of a question; if it was not known, among held passages."""
        words, counts = self._counts(question)
        return words.scores(counts, self.excerpts)

    def _counts(self, question: str) -> tuple[QuestionWords, list[Counts]]:
        if (i := self._index.get(question)) is not None:
            return self._words[i], [entry.counts[i] for entry in self._entries]
        words = QuestionWords(question)
        return words, [words.count(excerpt.own_text) for excerpt in self.excerpts]

    def beside(self, model: str, fingerprint: str, budget: int) -> Beside:
        """Return the passages and the answering model, for a memory file."""
        excerpts = [excerpt.passages for excerpt in self.excerpts]
        totals = [words.totals for words in self._words]
        sizes = self.room, self.peak, self.dropped
        return Beside(model, fingerprint, budget, BY, *sizes, excerpts, totals)

    @classmethod
    def of(cls, beside: Beside, questions: Sequence[str] = ()) -> PassageMemory:
        """Restore the passages of a memory file. Raises ValueError for impossible numbers."""
        memory = cls(beside.room, questions)
        for excerpt in map(ExcerptCutter().excerpt, beside.excerpts):
            memory._entries.append(memory._entry(excerpt))
        if beside.words:
            for words, totals in zip(memory._words, beside.words, strict=True):
                words.totals = totals
        memory.bytes = sum(entry.bytes for entry in memory._entries)
        memory.peak, memory.dropped = max(beside.peak, memory.bytes), beside.dropped
        if memory.peak > memory.room:
            raise ValueError(f"it keeps {memory.peak:,} bytes of text, and {memory.room:,} may be")
        return memory

    def to_json(self) -> dict[str, Any]:
        """Return the object ``kept`` of ``--json``, which describes the kept text."""
        return {
            "passages": len(self),
            "bytes": self.bytes,
            "peak_bytes": self.peak,
            "room_bytes": self.room,
            "dropped_bytes": self.dropped,
        }


def recalled(memory: Memory) -> PassageMemory:
    """Return the passages beside a memory. Raises SourceError if its file is damaged."""
    assert memory.beside is not None
    try:
        return PassageMemory.of(memory.beside, memory.plan.questions)
    except ValueError as error:
        raise SourceError(f"The memory cannot be used: {error}.") from error


@dataclass(frozen=True)
class KeptPart:
    """The passages kept beside a memory that is joined with others."""

    passages: PassageMemory
    order: Sequence[int]
    """Indices of the passages, best first."""
    beside: Beside
    trace: Trace

    @classmethod
    def of(cls, memory: Memory) -> KeptPart:
        """Take the part of a memory of two models. Raises SourceError if its file is damaged."""
        assert memory.beside is not None
        passages = recalled(memory)
        return cls(passages, passages.order(memory), memory.beside, memory.trace)


def joined(parts: Sequence[KeptPart], budget: int) -> Beside:
    """Return the passages kept of all texts, in order, for an answering model's `budget`.

    As with entries (`memory/merging.py`), each text gets a share in proportion to its tokens that
    were read. Its best passages stay, as ranked with the memory beside which they were kept.
    """
    room = BYTES_A_TOKEN * budget
    sizes, weights = [part.passages.bytes for part in parts], [part.trace.read for part in parts]
    excerpts: list[tuple[Passage, ...]] = []
    sources = end = 0
    for part, share in zip(parts, shares(room, sizes, weights), strict=True):
        part.passages.fit(share, part.order)
        for excerpt in part.passages.excerpts:
            excerpts.append(tuple(p.moved(sources, end) for p in excerpt.passages))
        sources, end = sources + len(part.trace.names), end + part.trace.source_end
    size = sum(part.passages.bytes for part in parts)
    dropped = sum(part.passages.dropped for part in parts)
    first = parts[0].beside
    # All parts have the same questions, possibly in another order.
    totals = [[p.passages.totals(q) for p in parts] for q in parts[0].passages.questions]
    words = [[sum(each) for each in zip(*one, strict=True)] for one in totals if None not in one]
    return Beside(
        first.model, first.fingerprint, budget, first.by, room, size, dropped, excerpts, words
    )  # fmt: skip


def shares(room: int, sizes: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Divide `room` in proportion to `weights`; a size below its share leaves room to others."""
    result, weight = [0] * len(sizes), sum(weights)
    for i in sorted(range(len(sizes)), key=lambda i: sizes[i] / weights[i]):
        result[i] = min(sizes[i], room * weights[i] // weight)
        room, weight = room - result[i], weight - weights[i]
    return result


def fitting(
    ranked: Sequence[Excerpt], tokenizer: Tokenizer, sizes: tuple[int, int]
) -> list[Excerpt]:
    """Return the best passages that fit, in document order, until they are enough.

    `tokenizer` is that of the answering model; `sizes` are the maximum number of tokens of all
    passages together, and the number that is enough. Raises BudgetError if no passage fits.
    """
    room, enough = sizes
    passages: list[Excerpt] = []
    size = 0
    for excerpt in ranked:
        tokens = len(tokenizer.encode("\n\n" + excerpt.text))
        if size + tokens <= room:
            size += tokens
            passages.append(excerpt)
        if size >= enough:
            break
    if not passages:
        raise BudgetError(
            f"No passage of the text fits in the {max(0, room):,} entries that the budget leaves; "
            "use a larger --budget."
        )
    return sorted(passages, key=lambda excerpt: excerpt.start)


def near_the_best(ranked: Sequence[Excerpt]) -> list[Excerpt]:
    """Return the passages of a source within NEAR bytes of the best one, the nearest first."""
    best = ranked[0]
    low, high, source = best.start - NEAR, best.end + NEAR, best.passages[0].source
    near = (
        e for e in ranked if low <= e.start and e.end <= high and e.passages[0].source == source
    )
    return sorted(near, key=lambda excerpt: abs(excerpt.start - best.start))


def weights_in(
    places: Sequence[tuple[int, int]], starts: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Return for each range of bytes the sum of the weights of what starts in it, float [n]."""
    order = np.argsort(starts, kind="stable")
    sums = np.cumsum([0.0, *weights[order]])
    ends = np.array(places, dtype=np.int64).reshape(-1, 2).T
    low, high = np.searchsorted(starts[order], ends)
    return sums[high] - sums[low]


def fused(rankings: Sequence[np.ndarray]) -> np.ndarray:
    """Fuse several scores of the same items by rank; a score of 0 adds nothing."""
    total = np.zeros(len(rankings[0]))
    for scores in rankings:
        order = np.argsort(-scores, kind="stable")
        points = 1.0 / (_FUSION + 1 + np.arange(len(order)))
        total[order] += np.where(scores[order] > 0, points, 0.0)
    return total


def _places(every: Sequence[_Entry]) -> list[tuple[int, int]]:
    return [(entry.excerpt.start, entry.excerpt.end) for entry in every]


def _weights(every: Sequence[_Entry], memory: Memory | None) -> np.ndarray:
    """Return how much of each passage memory holds: the share of heads, summed over its tokens."""
    if memory is None:
        return np.zeros(len(every))
    ordinals, weights = memory.reader.retained_weights()
    starts = memory.trace.origins.starts(ordinals.numpy())
    return weights_in(_places(every), starts, weights.numpy())
