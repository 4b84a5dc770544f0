"""Watch a reader and compute numbers about its memory after each step, without storing tensors."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from torch import Tensor

from kvstream.engine.reader import Chunk, Reader
from kvstream.evaluation.harness import IdFeed
from kvstream.evaluation.records import Record
from kvstream.model.attention import AttentionRequest
from kvstream_lab.retention import shares
from kvstream_lab.retention.whole import Whole

MEASURES = (
    "hit_question", "hit_chunk", "jaccard", "shared", "attention", "attention_sinks", "retention",
    "age", "spread",
)  # fmt: skip
"""Measures at every step, over all layers; None if a measure cannot be computed."""


class Watch(IdFeed):
    """A feed for the watched reader. It sees each chunk before the reader does.

    `whole` reads the same text. `question` are the ids of a question that is asked after every
    step; if empty, there is no question.
    """

    def __init__(self, ids: Sequence[int], reader: Reader, whole: Whole, question: Sequence[int]):
        super().__init__(ids)
        self.reader, self.whole, self.question = reader, whole, question
        self.steps: list[Record] = []
        """Numbers of each step so far, over all layers."""
        self.compared = 0
        """Number of tokens of the text up to which `whole` could hold it."""
        self._layers: list[Record] = []
        """Numbers of the newest step by layer."""
        self._before = 0

    def read(self, count: int) -> Chunk:
        """Return the next chunk, after measuring its attention."""
        chunk = super().read(count)
        if not len(chunk.ids):
            return chunk
        attended = self.whole.read(chunk.ids)
        self.compared = self.whole.seen
        if self.steps:
            self._next_chunk(chunk.ids, attended)
        return chunk

    def after_step(self) -> None:
        """Measure what memory holds now."""
        reader = self.reader
        if self.steps:
            self._close()
        held = self._held()
        overlap = shares.overlap(held)
        asked = self.whole.asked(self.question) if self.question else None
        self._layers = []
        for i, origin in enumerate(held):
            parts = shares.parts(origin, reader.seen)
            self._layers.append(
                {
                    "memory": origin.shape[1],
                    "hit_question": None if asked is None else shares.hit_rate(asked[i], origin),
                    "retention": self._retention(origin),
                    "age": shares.age(origin, reader.seen),
                    "spread": shares.spread(parts),
                    "parts": parts.mean(0).tolist(),
                }
            )
        memory = statistics.fmean(layer["memory"] for layer in self._layers)
        self.steps.append(
            {
                "tokens": reader.seen,
                "memory": memory,
                "chance": memory / reader.seen,
                "jaccard": overlap.jaccard,
                "shared": overlap.shared,
            }
        )
        self._before = reader.seen

    def record(self) -> Record:
        """Return the numbers of the steps, and from which parts of the text memory is at the end.

        Call it once, after the last step.
        """
        self._close()
        columns = zip(*(layer["parts"] for layer in self._layers), strict=True)
        return {
            "compared": self.compared,
            "steps": self.steps,
            "parts": [round(statistics.fmean(column), 5) for column in columns],
        }

    def _held(self) -> list[Tensor]:
        """Return ordinals [K, m] of the source tokens that each layer holds."""
        prompt = self.reader.evictor.prompt
        return [s.origin[:, prompt : s.used].cpu() for s in self.reader.compressible]

    def _retention(self, origin: Tensor) -> float | None:
        """Return the share of a layer's memory that was there one step before (IMDC, eq. 2)."""
        return float((origin < self._before).float().mean()) if self._before else None

    def _next_chunk(self, ids: Sequence[int], attended: list[Tensor] | None) -> None:
        """Measure the attention of the chunk after memory: to all text before it, and to memory."""
        reader = self.reader
        if attended is not None:
            for layer, scores, origin in zip(self._layers, attended, self._held(), strict=True):
                layer["hit_chunk"] = shares.hit_rate(scores, origin)
        first, ends = reader.evictor.first_candidate, [s.used for s in reader.compressible]
        request = AttentionRequest(accumulated_attention=True, queries=len(ids))
        with reader.cache.passing():
            # A separate pass, because a method may weigh queries by age, or take a group's maximum.
            reader.model.forward(ids, reader.cache, request)
            for layer, store, end in zip(self._layers, reader.compressible, ends, strict=True):
                sums = store.accumulated_attention
                assert sums is not None
                mass = sums.double().mean(0) / len(ids)
                layer["attention"] = float(mass[first:end].sum())
                layer["attention_sinks"] = float(mass[:first].sum())

    def _close(self) -> None:
        """Finish the newest step: compute means over its layers."""
        step = self.steps[-1]
        for name in MEASURES:
            step[name] = step.get(name, mean(layer.get(name) for layer in self._layers))
        self.steps[-1] = {k: _number(v) for k, v in step.items()}


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    known = [v for v in values if v is not None]
    return _number(statistics.fmean(known)) if known else None


def _number(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else round(value, 5)
