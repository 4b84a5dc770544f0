"""Passages whose text is kept while the skimming model reads: the best ones, in a fixed room.

The text is read once, so a dropped passage cannot be read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvstream.answer.reread.excerpts import Excerpt, ExcerptCutter
from kvstream.answer.reread.ranking import Cited, fused
from kvstream.answer.reread.second_pass import fitting
from kvstream.answer.skim.reranking import Reranker
from kvstream.answer.skim.words import Counts, QuestionWords, with_neighbors
from kvstream.errors import BudgetError, SourceError
from kvstream.input.blocks import TextBlock
from kvstream.memory.base import Beside, Memory
from kvstream.tokenization.loading import Tokenizer
from kvstream.tokenization.passages import Passage

BY = ("memory", "words", "both")
BYTES_A_TOKEN = 64
"""Bytes of text that may be kept for each entry of the budget."""


@dataclass
class _Kept:
    excerpt: Excerpt
    bytes: int
    counts: list[Counts] = field(default_factory=list)
    """Counts for each known question."""


class KeptPassages:
    """The text of passages beside a memory: at most `room` bytes; the rest is dropped.

    `by` says which passages stay: those of which memory holds most (``memory``), those with the
    words of a question (``words``), or ``both``. Without a known question, memory alone decides.
    Without a memory, in a word search, `by` is ``words`` and the questions are known.
    """

    def __init__(self, room: int, by: str, questions: Sequence[str] = ()) -> None:
        self.room, self.by = room, by
        self.bytes = self.peak = self.dropped = 0
        """Bytes of text that are held now, their peak, and bytes that were dropped."""
        self._words = [QuestionWords(q) for q in questions] if by != "memory" else []
        self.questions = tuple(questions)
        """The known questions."""
        self._asked = {question: i for i, question in enumerate(questions)}
        self._cutter = ExcerptCutter()
        self._coming: deque[Excerpt] = deque()
        self._kept: list[_Kept] = []

    def __len__(self) -> int:
        """Return the number of excerpts held."""
        return len(self._kept)

    @property
    def excerpts(self) -> list[Excerpt]:
        """The excerpts held, in document order."""
        return [kept.excerpt for kept in self._kept]

    def feed(self, block: TextBlock) -> None:
        """Add the next block of text. It waits until the model has read it."""
        self._cutter.feed(block)

    def note(self, end: int, memory: Memory | None = None, *, final: bool = False) -> None:
        """Add the text up to byte `end`, which has been read, and drop the lowest-ranked passages
        if there is no room. `memory` is what a model holds of the text; None in a word search.
        """
        self._coming.extend(self._cutter.take(final=final))
        new: list[_Kept] = []
        while self._coming and (final or self._coming[0].end <= end):
            excerpt = self._coming.popleft()
            counts = [words.count(excerpt.text) for words in self._words]
            new.append(_Kept(excerpt, excerpt.bytes, counts))
        self._kept += new
        self.bytes += sum(kept.bytes for kept in new)
        if self.bytes > self.room:
            self.fit(self.room, self.order(memory))
        self.peak = max(self.peak, self.bytes)

    def fit(self, room: int, order: Sequence[int]) -> None:
        """Keep the passages that fit in `room` bytes, taken in `order`, and drop the others."""
        stay, size = [], 0
        for index in order:
            if size + self._kept[index].bytes <= room:
                size += self._kept[index].bytes
                stay.append(index)
        self._kept = [self._kept[i] for i in sorted(stay)]
        self.dropped += self.bytes - size
        self.bytes = size

    def order(self, memory: Memory | None) -> list[int]:
        """Return the indices of the held passages, best first."""
        every = self._kept
        rankings = [
            with_neighbors(words.scores([k.counts[i] for k in every]), [k.excerpt for k in every])
            for i, words in enumerate(self._words)
        ]
        if self.by != "words" or not rankings:
            rankings.append(_held(every, memory))
        scores = fused(rankings)
        # Of passages without a score, the newest stay: memory may score them later.
        return sorted(range(len(every)), key=lambda i: (-scores[i], -i))

    def choose(
        self,
        question: str,
        memory: Memory | None,
        cited: Sequence[Passage],
        tokenizer: Tokenizer,
        sizes: tuple[int, int],
        reranker: Reranker | None = None,
    ) -> list[Excerpt]:
        """Return the best passages for a question, in document order, for the answering model.

        `cited` are passages, with weights, that the question and the skimming model's answer
        attended to. `tokenizer` is that of the answering model; `sizes` are the maximum number of
        tokens of all passages together, and the number that is enough. If the question was not
        known during the reading, ``both`` ranks by its words, and by memory among equal scores
        (docs/research/skim.md, Questions that come later). With ``words``, a
        `reranker` reads the best passages, and its log-odds are added to their scores. Raises
        BudgetError if no passage fits.
        """
        every, rankings = self._kept, []
        if self.by != "memory":
            rankings.append(self._scores(question))
        if self.by != "words":
            looked = Cited(cited)
            rankings.append(
                np.array([looked.weight(k.excerpt.start, k.excerpt.end) for k in every])
            )
        if self.by == "both" and every and question in self._asked:
            rankings = [fused(rankings)]
        # Break ties by how much memory holds, then by document order.
        order = np.lexsort([-by for by in (_held(every, memory), *reversed(rankings))])
        if reranker is not None and every:
            order = reranker.rerank(order, rankings[0], self.excerpts)
        chosen = fitting([every[i].excerpt for i in order], tokenizer, sizes)
        if not chosen:
            raise BudgetError(
                f"No passage of the text fits in the {max(0, sizes[0]):,} entries that the budget "
                "leaves; use a larger --budget."
            )
        return chosen

    def totals(self, question: str) -> list[int] | None:
        """Return `QuestionWords.totals` of a question; None if it was not known, or if `by` is
        ``memory``.
        """
        place = self._asked.get(question)
        return None if place is None or not self._words else self._words[place].totals

    def speaks(self, question: str) -> bool:
        """Return whether a held passage has a word of the question."""
        return bool(self._scores(question).any())

    def _scores(self, question: str) -> np.ndarray:
        """Return scores by the words of a question.

        If the question was not known, the word counts are those of the held passages.
        """
        place = self._asked.get(question)
        if place is not None:
            scores = self._words[place].scores([k.counts[place] for k in self._kept])
        else:
            words = QuestionWords(question)
            scores = words.scores([words.count(k.excerpt.text) for k in self._kept])
        return with_neighbors(scores, self.excerpts)

    def beside(self, model: str, fingerprint: str, budget: int) -> Beside:
        """Return the passages and the answering model, for a memory file."""
        excerpts = [excerpt.passages for excerpt in self.excerpts]
        totals = [words.totals for words in self._words]
        sizes = self.room, self.peak, self.dropped
        return Beside(model, fingerprint, budget, self.by, *sizes, excerpts, totals)

    @classmethod
    def of(cls, beside: Beside, questions: Sequence[str] = ()) -> KeptPassages:
        """Restore the passages of a memory file that was read for `questions`.

        Raises ValueError if they exceed their room, or if their word counts are impossible.
        """
        made = cls(beside.room, beside.by, questions)
        for excerpt in map(Excerpt, beside.excerpts):
            counts = [words.count(excerpt.text) for words in made._words]
            made._kept.append(_Kept(excerpt, excerpt.bytes, counts))
        if beside.words:
            for words, totals in zip(made._words, beside.words, strict=True):
                words.totals = totals
        made.bytes = sum(kept.bytes for kept in made._kept)
        made.peak, made.dropped = max(beside.peak, made.bytes), beside.dropped
        if made.peak > made.room:
            raise ValueError(f"it keeps {made.peak:,} bytes of text, and {made.room:,} may be")
        return made

    def to_json(self) -> dict[str, Any]:
        """Return the object ``kept`` of ``--json``, which describes the kept text."""
        return {
            "passages": len(self),
            "bytes": self.bytes,
            "peak_bytes": self.peak,
            "room_bytes": self.room,
            "dropped_bytes": self.dropped,
        }


def recalled(memory: Memory) -> KeptPassages:
    """Return the passages beside a memory of two models.

    Raises SourceError if its file is damaged.
    """
    assert memory.beside is not None
    try:
        return KeptPassages.of(memory.beside, memory.plan.questions)
    except ValueError as error:
        raise SourceError(f"The memory cannot be used: {error}.") from error


def _held(every: Sequence[_Kept], memory: Memory | None) -> np.ndarray:
    """Return how much of each passage memory holds: the share of heads, summed over its tokens."""
    if memory is None:
        return np.zeros(len(every))
    ordinals, weights = memory.reader.retained_weights()
    starts = memory.trace.origins.starts(ordinals.numpy())
    order = np.argsort(starts, kind="stable")
    starts, sums = starts[order], np.cumsum([0.0, *weights.numpy()[order]])
    places = [(k.excerpt.start, k.excerpt.end) for k in every]
    low, high = np.searchsorted(starts, np.array(places, dtype=np.int64).reshape(-1, 2).T)
    found: np.ndarray = sums[high] - sums[low]
    return found
