"""Chunked prefill: run a chunk through the model and measure the evidence of the method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.eviction import NEWEST, Evictor
from kvstream.engine.schedule import NoEviction, Schedule
from kvstream.methods.base import Method
from kvstream.model.attention import AttentionRequest
from kvstream.model.bounded import BoundedModel
from kvstream.settings import PAPER, RunSettings

START_SHARE = 2
"""By default memory starts at m_max divided by this. IMDC sets m_0 to m_max / n (section 4.1); with
so little memory, early parts of a long text are lost more often (docs/reference/schedules.md)."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of the source that the model reads in one step."""

    ids: Sequence[int]
    first: int
    """Ordinal of the first token in the source; the others follow without a gap."""


@dataclass(frozen=True)
class StepPlan:
    """What one step does, decided before the model runs."""

    targets: tuple[int, ...]
    """Source entries that each compressible layer holds after this step."""
    evicts: bool
    """Whether the step evicts entries."""
    catalyst: Sequence[int]
    """Ids of all catalysts in a row, to append to the chunk; empty if the step evicts nothing."""
    request: AttentionRequest | None
    """Attention to measure; None if nothing uses it."""


class Prefill:
    """Reads chunks into the cache of `evictor`, with the sizes of `schedule`.

    `head` are the protected ids before the source. They go through the model together with the
    first chunk, because a pass over a few tokens has to read all weights too. `catalysts` are the
    ids of each catalyst. With `extract`, the last chunk is measured even if nothing is evicted.
    """

    def __init__(
        self,
        model: BoundedModel,
        evictor: Evictor,
        schedule: Schedule | NoEviction,
        head: Sequence[int],
        catalysts: Sequence[Sequence[int]],
        *,
        extract: bool,
    ) -> None:
        self.model, self.evictor, self.schedule = model, evictor, schedule
        self.cache, self.method = evictor.cache, evictor.method
        self.head, self.catalysts = list(head), [list(c) for c in catalysts]
        self.extract = extract
        self.evidence = self.method.evidence()
        self.due = list(head)
        """Ids of the prompt that the model has not read yet."""
        self.before: Tensor | None = None
        """Hidden state [1, d] of the newest token, which predicts the next; None before any."""

    @property
    def catalyst(self) -> list[int]:
        """Ids of all catalysts in a row."""
        return [i for c in self.catalysts for i in c]

    def room(self, *, round_down: bool) -> int:
        """Return how many tokens to read now: the chunk of the schedule, or a few less to round.

        Some processors compile matrix products again for every width of a pass, and decremental
        chunks have a new width in every step. `round_down` therefore makes the width of the pass a
        multiple of `BoundedModel.round_width`, if that leaves two of them. The first chunk is never
        rounded, so that a text that fits is read whole.
        """
        room, width = self.schedule.chunk(), self.model.round_width
        if not round_down or self.schedule.first:
            return room
        with_chunk = 0 if self.cache.recurrent else len(self.catalyst)
        over = (room + with_chunk) % width
        return room - over if room - over >= 2 * width else room

    # The stages of a step; the evictor has the other two

    def plan(self, n: int, *, last: bool) -> StepPlan:
        """Return the plan for a chunk of `n` tokens, and advance the schedule."""
        sizes = self.schedule.held
        targets = self._targets(n, last)
        evicts = any(t < h + n for t, h in zip(targets, sizes, strict=True))
        catalyst = self.catalyst if evicts else []
        measured = evicts or not last or self.extract
        request = self.request(n, bool(catalyst)) if measured else None
        return StepPlan(targets, evicts, catalyst, request)

    def forward(self, chunk: Chunk, plan: StepPlan) -> Tensor:
        """Run the chunk with the catalyst after it, remove the catalyst, return hidden states.

        The hidden states are those of both. With recurrent layers, whose state must be copied
        between the two, chunk and catalyst each have a pass; then only those of the chunk return.
        """
        self.evictor.resume_compressive_memory()
        for store in self.evictor.layers:  # evidence is only of the latest pass
            store.window_attention = store.accumulated_attention = None
        n, catalyst, request = len(chunk.ids), plan.catalyst, plan.request
        if not (catalyst and request and self.cache.recurrent):
            hidden = self._pass([*chunk.ids, *catalyst], request)
            self.cache.cut([store.used - len(catalyst) for store in self.cache.stores])
            self.cache.tag(n, chunk.first)
            return hidden
        hidden = self._pass(chunk.ids, replace(request, segments=()))
        self.cache.tag(n, chunk.first)
        self.measure_catalysts()
        return hidden

    def measure_catalysts(self) -> None:
        """Measure the attention of the catalysts to memory, which does not change.

        Accumulated attention stays as the text left it: no token of the text is in this pass.
        """
        self.evictor.resume_compressive_memory()
        accumulated = [store.accumulated_attention for store in self.evictor.layers]
        request = replace(self.request(0, True), accumulated_attention=False)
        with self.cache.passing():
            self.model.forward(self.catalyst, self.cache, request)
        for store, measured in zip(self.evictor.layers, accumulated, strict=True):
            store.accumulated_attention = measured

    def measure(
        self, hidden: Tensor, chunk: Chunk, plan: StepPlan, *, always: bool
    ) -> Tensor | None:
        """Return the cross-entropy [n] in nats of the chunk's tokens, if requested or `always`.

        The pass itself has measured attention and put it into the stores of the layers.
        """
        n = len(chunk.ids)
        wanted = always or (plan.request is not None and self.evidence.loss)
        loss = self._loss(hidden[:n], chunk.ids) if wanted else None
        self.before = hidden[n - 1 : n].clone()
        return loss

    # Parts of the stages

    def begin(self) -> None:
        """Run the protected prompt alone, unless the model has read it already."""
        if self.due:
            self._pass(())

    def request(self, n: int, catalyst: bool) -> AttentionRequest:
        """Return the attention to measure over `n` tokens, with the catalysts after them or not."""
        evidence = self.evidence
        window = min(evidence.window_attention, n)
        segments: tuple[int, ...] = (window,) if window else ()
        if catalyst:
            segments = tuple(len(c) for c in self.catalysts)
        return AttentionRequest(
            segments, evidence.accumulated_attention, n, evidence.decay, evidence.reduce,
            len(self.due),
        )  # fmt: skip

    def _pass(self, ids: Sequence[int], request: AttentionRequest | None = None) -> Tensor:
        """Return the hidden states [n, d] of `ids`. The first pass runs the prompt before them."""
        head, self.due = self.due, []
        hidden = self.model.forward([*head, *ids], self.cache, request)
        if head:
            self.cache.tag(len(head) + len(ids), None)
            self.before = hidden[len(head) - 1 : len(head)]
        return hidden[len(head) :]

    def _targets(self, n: int, last: bool) -> tuple[int, ...]:
        """Return how many source entries each compressible layer holds after this chunk."""
        old, evictor = self.schedule.held, self.evictor
        sizes = self.schedule.memory(n, evictor.ratios, last=last)
        whole = all(s >= h + n for s, h in zip(sizes, old, strict=True))
        shaped = sizes if whole else self.method.layer_sizes(sizes)
        # A method may move entries between layers, but not beyond the schedule or what is present.
        limit, least = max(sizes), evictor.sinks or 0  # the sinks are present already
        sizes = tuple(min(max(s, least), limit, h + n) for s, h in zip(shaped, old, strict=True))
        if whole:
            targets = sizes
        else:
            goals = [self.method.target(s, h + n) for s, h in zip(sizes, old, strict=True)]
            targets = tuple(max(t, min(s, least)) for t, s in zip(goals, sizes, strict=True))
        self.schedule.held = targets
        return targets

    def _loss(self, hidden: Tensor, ids: Sequence[int]) -> Tensor:
        """Return the cross-entropy [n] of each token of the chunk.

        The token before the chunk predicts its first token. If there is none, the first token gets
        the mean of the others.
        """
        targets = torch.tensor(list(ids), device=hidden.device)
        if self.before is None:
            loss = self.model.loss(hidden[:-1], targets[1:])
            return torch.cat((loss.mean()[None] if len(loss) else loss.new_zeros(1), loss))
        return self.model.loss(torch.cat((self.before, hidden[:-1])), targets)


def schedule_for(
    method: Method,
    run: RunSettings,
    sizes: BudgetSplit,
    layers: int,
    length: int | None,
    trained: int | None = None,
) -> Schedule | NoEviction:
    """Return the schedule of a run for an expected `length` in tokens.

    `trained`: positions that the model was trained for, the largest possible budget. Raises
    BudgetError.
    """
    free, final = sizes.free, sizes.final
    if not method.evicts:
        return NoEviction(layers, min(free, final), length)
    most = run.keep or min(final, free - max(64, free // 8))
    start: int | None = None  # the default of the schedule, m_max / n
    if run.start != PAPER:
        size = run.start or max(method.sinks + NEWEST, most // START_SHARE)
        start = min(int(size), most)
    return Schedule(
        name=run.schedule,
        chunk=run.chunk,
        layers=layers,
        free=free,
        final=final,
        keep=run.keep,
        start=start,
        chunk_size=run.chunk_size,
        length=length,
        least=max(1, -(-4 * method.sinks // 3)),  # sinks are at most three quarters of memory
        widest=trained is not None and sizes.budget >= trained,
    )
