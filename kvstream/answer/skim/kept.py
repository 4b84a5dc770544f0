"""Passages whose text is kept while a small model reads on: the best, within a fixed room.

The text is read once, so what is dropped here cannot be read again.
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
from kvstream.answer.skim.words import Counts, QuestionWords, with_neighbors
from kvstream.errors import BudgetError, SourceError
from kvstream.input.blocks import TextBlock
from kvstream.memory.base import Beside, Memory
from kvstream.tokenization.loading import Tokenizer
from kvstream.tokenization.passages import Passage

BY = ("memory", "words", "both")
BYTES_A_TOKEN = 64
"""Of text that may be kept for each token of the budget."""


@dataclass
class _Kept:
    excerpt: Excerpt
    bytes: int
    counts: list[Counts] = field(default_factory=list)
    """For each question that is known."""


class KeptPassages:
    """The text of passages beside a memory: at most `room` bytes, the rest is dropped.

    `by` says which stay: those of which memory holds most (``memory``), those that have the words
    of a question (``words``), or ``both``. Without a question that is known, memory alone decides.
    Without a memory, where no model reads, `by` is ``words`` and the questions are known.
    """

    def __init__(self, room: int, by: str, questions: Sequence[str] = ()) -> None:
        self.room, self.by = room, by
        self.bytes = self.peak = self.dropped = 0
        """Bytes of text that are held, the most that ever were, and those that were dropped."""
        self._words = [QuestionWords(q) for q in questions] if by != "memory" else []
        self.questions = tuple(questions)
        """Those that are known."""
        self._asked = {question: i for i, question in enumerate(questions)}
        self._cutter = ExcerptCutter()
        self._coming: deque[Excerpt] = deque()
        self._kept: list[_Kept] = []

    def __len__(self) -> int:
        """Passages held."""
        return len(self._kept)

    @property
    def excerpts(self) -> list[Excerpt]:
        """Those that are held, in the order of the document."""
        return [kept.excerpt for kept in self._kept]

    def feed(self, block: TextBlock) -> None:
        """The next block of text; it waits until the model has read it."""
        self._cutter.feed(block)

    def note(self, end: int, memory: Memory | None = None, *, final: bool = False) -> None:
        """Take in the text that was read by now, up to byte `end`, and drop the least where there
        is no room. `memory` is what a model holds of it; None where words alone decide.
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
        """Drop what comes last in an `order`, so that what is held has at most `room` bytes."""
        stay, size = [], 0
        for index in order:
            if size + self._kept[index].bytes <= room:
                size += self._kept[index].bytes
                stay.append(index)
        self._kept = [self._kept[i] for i in sorted(stay)]
        self.dropped += self.bytes - size
        self.bytes = size

    def order(self, memory: Memory | None) -> list[int]:
        """Places of those that are held, the best first."""
        every = self._kept
        rankings = [
            with_neighbors(words.scores([k.counts[i] for k in every]), [k.excerpt for k in every])
            for i, words in enumerate(self._words)
        ]
        if self.by != "words" or not rankings:
            rankings.append(_held(every, memory))
        scores = fused(rankings)
        # Of those that nothing speaks for, the newest stay: memory may yet tell.
        return sorted(range(len(every)), key=lambda i: (-scores[i], -i))

    def choose(
        self,
        question: str,
        memory: Memory | None,
        cited: Sequence[Passage],
        tokenizer: Tokenizer,
        sizes: tuple[int, int],
    ) -> list[Excerpt]:
        """The best passages for a question, in the order of the document, for another model.

        `cited` are passages that the small model's answer and question looked at, with weights.
        `tokenizer` is that of the model which will read them, `sizes` the tokens that they may have
        together and those with which it is enough. If the question was not known during the
        reading, ``both`` goes by its words, and by memory only among those that have none
        (docs/research/skim.md, Questions that come later). Raises BudgetError where no passage
        fits.
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
        # Where they do not tell, by what memory holds, then in the order of the document.
        order = np.lexsort([-by for by in (_held(every, memory), *reversed(rankings))])
        chosen = fitting([every[i].excerpt for i in order], tokenizer, sizes)
        if not chosen:
            raise BudgetError(
                f"No passage of the text fits in the {max(0, sizes[0]):,} entries that the budget "
                "leaves; use a larger --budget."
            )
        return chosen

    def totals(self, question: str) -> list[int] | None:
        """`QuestionWords.totals` of a question; None where it was not known, or words decide
        nothing.
        """
        place = self._asked.get(question)
        return None if place is None or not self._words else self._words[place].totals

    def speaks(self, question: str) -> bool:
        """Whether a passage that is held has a word of a question."""
        return bool(self._scores(question).any())

    def _scores(self, question: str) -> np.ndarray:
        """By the words of a question; one that was not known is compared with what is held."""
        place = self._asked.get(question)
        if place is not None:
            scores = self._words[place].scores([k.counts[place] for k in self._kept])
        else:
            words = QuestionWords(question)
            scores = words.scores([words.count(k.excerpt.text) for k in self._kept])
        return with_neighbors(scores, self.excerpts)

    def beside(self, model: str, fingerprint: str, budget: int) -> Beside:
        """For a memory file: the passages, and the model that answers."""
        excerpts = [excerpt.passages for excerpt in self.excerpts]
        totals = [words.totals for words in self._words]
        sizes = self.room, self.peak, self.dropped
        return Beside(model, fingerprint, budget, self.by, *sizes, excerpts, totals)

    @classmethod
    def of(cls, beside: Beside, questions: Sequence[str] = ()) -> KeptPassages:
        """From a memory file, made for `questions`. Raises ValueError where it holds more than its
        room.
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
        """The object ``kept`` of ``--json``: the text that was kept."""
        return {
            "passages": len(self),
            "bytes": self.bytes,
            "peak_bytes": self.peak,
            "room_bytes": self.room,
            "dropped_bytes": self.dropped,
        }


def recalled(memory: Memory) -> KeptPassages:
    """What was kept beside a memory of two models. Raises SourceError where its file is damaged."""
    assert memory.beside is not None
    try:
        return KeptPassages.of(memory.beside, memory.plan.questions)
    except ValueError as error:
        raise SourceError(f"The memory cannot be used: {error}.") from error


def _held(every: Sequence[_Kept], memory: Memory | None) -> np.ndarray:
    """How much of each passage memory holds: the sum over its tokens of the share of heads."""
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
