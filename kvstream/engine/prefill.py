"""Chunked prefill: a chunk through the model, with the evidence that the method requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.chunks import Chunk
from kvstream.engine.eviction import NEWEST, Evictor
from kvstream.engine.schedule import NoEviction, Schedule
from kvstream.methods.base import Method
from kvstream.model.attention import AttentionRequest
from kvstream.model.bounded import BoundedModel
from kvstream.settings import PAPER, RunSettings

START_SHARE = 2
"""Memory starts at this part of m_max unless told otherwise. IMDC sets m_0 to m_max / n (section
4.1); with so little, what stands early in a long text is lost more often
(docs/reference/schedules.md)."""


@dataclass(frozen=True)
class StepPlan:
    """What one step does, settled before the model runs."""

    targets: tuple[int, ...]
    """Source entries that each compressible layer holds after this step."""
    evicts: bool
    """Whether entries have to leave."""
    catalyst: Sequence[int]
    """Ids behind the chunk, all catalysts in a row; none where nothing leaves."""
    request: AttentionRequest | None
    """Attention to measure; None where nobody will look at it."""


class Prefill:
    """Takes chunks into the cache of `evictor`, as large as `schedule` says.

    `head` are the protected ids in front of the source; they go through the model together with the
    first chunk, because a pass over a few tokens has to read all weights too. `catalysts` are the
    ids of each catalyst. With `extract` the last chunk is measured even if nothing leaves.
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
        """The prompt until it goes through the model, with the first chunk."""
        self.before: Tensor | None = None
        """Hidden state [1, d] of the newest token, which predicts the next; None: there is none."""

    @property
    def catalyst(self) -> list[int]:
        """Ids of all catalysts in a row."""
        return [i for c in self.catalysts for i in c]

    def room(self, *, round_down: bool) -> int:
        """Tokens to read now: what the schedule says, or a few less for a round width of the pass.

        Some processors compile their products anew for every width (`BoundedModel.round_width`),
        and a decremental chunk (`round_down`) brings a new one with every step. A text that fits
        must not lose anything for it, so the first chunk stays as it is.
        """
        room, width = self.schedule.chunk(), self.model.round_width
        if not round_down or self.schedule.first:
            return room
        with_chunk = 0 if self.cache.recurrent else len(self.catalyst)
        over = (room + with_chunk) % width
        return room - over if room - over >= 2 * width else room

    # The stages of a step; the evictor has the other two

    def plan(self, n: int, *, last: bool) -> StepPlan:
        """What to do with a chunk of `n` tokens. Moves the schedule on."""
        held = self.schedule.held
        targets = self._targets(n, last)
        evicts = any(t < h + n for t, h in zip(targets, held, strict=True))
        catalyst = self.catalyst if evicts else []
        measured = evicts or not last or self.extract
        request = self.request(n, bool(catalyst)) if measured else None
        return StepPlan(targets, evicts, catalyst, request)

    def forward(self, chunk: Chunk, plan: StepPlan) -> Tensor:
        """Run the chunk and the catalyst behind it, which leaves again: hidden states of both.

        A recurrent state has to be copied between the two, so there each has its own pass, and the
        hidden states are those of the chunk alone.
        """
        self.evictor.resume_compressive_memory()
        for store in self.evictor.layers:  # evidence is of the latest pass alone
            store.window_attention = store.accumulated_attention = None
        n, catalyst, request = len(chunk.ids), plan.catalyst, plan.request
        if not (catalyst and request and self.cache.recurrent):
            hidden = self._pass([*chunk.ids, *catalyst], request)
            self.cache.drop_newest(len(catalyst))
            self.cache.tag(n, chunk.first)
            return hidden
        hidden = self._pass(chunk.ids, replace(request, segments=()))
        self.cache.tag(n, chunk.first)
        accumulated = [store.accumulated_attention for store in self.evictor.layers]
        with self.cache.passing():
            alone = replace(request, accumulated_attention=False)
            self.model.forward(catalyst, self.cache, alone)
        for store, measured in zip(self.evictor.layers, accumulated, strict=True):
            store.accumulated_attention = measured
        return hidden

    def measure(
        self, hidden: Tensor, chunk: Chunk, plan: StepPlan, *, always: bool
    ) -> Tensor | None:
        """Cross-entropy [n] in nats of the chunk's tokens, if the method asks for it or `always`.

        Attention was measured in the pass itself, and is in the layers' stores.
        """
        n = len(chunk.ids)
        wanted = always or (plan.request is not None and self.evidence.loss)
        loss = self._loss(hidden[:n], chunk.ids) if wanted else None
        self.before = hidden[n - 1 : n].clone()
        return loss

    # Parts of these

    def begin(self) -> None:
        """Run the protected prompt by itself, where no chunk takes it along."""
        if self.due:
            self._pass(())

    def request(self, n: int, catalyst: bool) -> AttentionRequest:
        """The attention to measure in a pass over `n` tokens, with the catalysts behind or not."""
        evidence = self.evidence
        window = min(evidence.window_attention, n)
        segments: tuple[int, ...] = (window,) if window else ()
        if catalyst:
            segments = tuple(len(c) for c in self.catalysts)
        return AttentionRequest(
            segments,
            evidence.accumulated_attention,
            n,
            evidence.decay,
            evidence.reduce,
            len(self.due),
        )

    def _pass(self, ids: Sequence[int], request: AttentionRequest | None = None) -> Tensor:
        """Hidden states [n, d] of `ids`; the first pass takes the prompt in front of them."""
        head, self.due = self.due, []
        hidden = self.model.forward([*head, *ids], self.cache, request)
        if head:
            self.cache.tag(len(head) + len(ids), None)
            self.before = hidden[len(head) - 1 : len(head)]
        return hidden[len(head) :]

    def _targets(self, n: int, last: bool) -> tuple[int, ...]:
        """Source entries that each compressible layer holds after this chunk."""
        held, evictor = self.schedule.held, self.evictor
        sizes = self.schedule.memory(n, evictor.ratios, last=last)
        whole = all(s >= h + n for s, h in zip(sizes, held, strict=True))
        shaped = sizes if whole else self.method.layer_sizes(sizes)
        # A method may shift entries between layers, but never past the schedule or what is there.
        limit, least = max(sizes), evictor.sinks or 0  # the sinks are there already
        sizes = tuple(min(max(s, least), limit, h + n) for s, h in zip(shaped, held, strict=True))
        if whole:
            targets = sizes
        else:
            kept = [self.method.target(s, h + n) for s, h in zip(sizes, held, strict=True)]
            targets = tuple(max(t, min(s, least)) for t, s in zip(kept, sizes, strict=True))
        self.schedule.held = targets
        return targets

    def _loss(self, hidden: Tensor, ids: Sequence[int]) -> Tensor:
        """Cross-entropy [n] of every token of the chunk, the first by what stood before it."""
        targets = torch.tensor(list(ids), device=hidden.device)
        if self.before is None:  # nothing stands before the very first token
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
    """The schedule of a run over an expected `length`; `trained` positions are the largest budget.

    Raises BudgetError.
    """
    free, final = sizes.free, sizes.final
    if not method.evicts:
        return NoEviction(layers, min(free, final))
    most = run.keep or min(final, free - max(64, free // 8))
    start: int | None = None  # the schedule's own: m_max / n
    if run.start != PAPER:
        wanted = run.start or max(method.sinks + NEWEST, most // START_SHARE)
        start = min(int(wanted), most)
    return Schedule(
        name=run.growth,
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
