"""The engine: chunk after chunk through the model, entries evicted after each, then an answer.

It takes token ids and yields steps and tokens. It never prints and knows no text. `Reader` is its
facade; `Reader.step` is the main loop's body:

    plan     how much each layer will hold, hence whether entries leave   (prefill, schedule)
    forward  chunk and catalyst through the model                         (prefill)
    measure  the evidence that the method asked for                       (prefill)
    absorb   the method takes in the evidence                             (eviction)
    evict    the method selects what stays, and the rest leaves           (eviction)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from kvstream.engine import narrowing, ranking, snapshot
from kvstream.engine.budget import BudgetSplit
from kvstream.engine.chunks import Chunk, Feed, StepReport
from kvstream.engine.decode import Decoder
from kvstream.engine.eviction import Evictor
from kvstream.engine.prefill import Prefill, schedule_for
from kvstream.engine.schedule import NoEviction, Schedule
from kvstream.errors import BudgetError
from kvstream.methods.base import Method
from kvstream.model.bounded import BoundedModel
from kvstream.model.cache import BoundedCache, LayerStore
from kvstream.settings import RunSettings

__all__ = ["Chunk", "Feed", "Reader", "StepReport"]


class Reader:
    """Reads a feed under a bound and answers from what remains.

    `head` are the protected ids in front of the source; `catalysts` the ids of each catalyst;
    `estimate` the expected length of the source in tokens. After `read`, `answer` may be called any
    number of times: each leaves memory as it was, unless it may compress it (`may_compress`).
    """

    def __init__(
        self,
        model: BoundedModel,
        method: Method,
        run: RunSettings,
        sizes: BudgetSplit,
        head: Sequence[int],
        catalysts: Sequence[Sequence[int]] = (),
        estimate: int | None = None,
        *,
        extract: bool = False,
    ) -> None:
        self.model, self.method, self.sizes = model, method.sized(sizes.budget), sizes
        self.head, self.catalysts = list(head), [list(c) for c in catalysts]
        self.extract = extract
        """Measure every chunk, the last one too, so that passages can be ranked."""
        self.cache: BoundedCache = model.new_cache(
            sizes.budget, self.method.tensors(), self.method.head_tensors()
        )
        self.generator = torch.Generator().manual_seed(run.seed)
        memory = self.method.compressive_memory(model.facts, asked=bool(self.catalysts))
        learned = self.method.learned(model.facts)
        self.evictor = Evictor(
            self.cache, self.method, len(self.head), self.generator, memory, learned
        )
        self.planned = estimate
        """The length that the schedule was first made for."""
        self.schedule: Schedule | NoEviction = schedule_for(
            self.method, run, sizes, len(self.compressible), estimate, model.trained_length
        )
        self.prefill = Prefill(
            model, self.evictor, self.schedule, self.head, self.catalysts,
            extract=extract,
        )  # fmt: skip
        self.decoder = Decoder(model, self.evictor)
        self._shrinking = run.chunk == "decremental"
        self.report_loss = False
        """Whether every step reports the loss of its tokens, given what memory held."""
        self.exact_times = False
        """Wait for a GPU around selection, so that `select_seconds` is what it takes there."""
        self.steps = 0
        self.select_seconds = 0.0
        self._last_retained: Tensor | None = None

    # Reading

    def read(
        self, feed: Feed, interrupted: Callable[[], bool] = lambda: False
    ) -> Iterator[StepReport]:
        """Read the feed to its end, or until `interrupted`; yields after every chunk."""
        while not interrupted():
            room = self.prefill.room(round_down=self._shrinking)
            if room == 0 and not feed.exhausted():
                raise BudgetError(
                    f"The text has more tokens than the {self.sizes.final} entries that "
                    f"{self.method.name} can hold under a budget of {self.sizes.budget}; use a "
                    "larger --budget, or a method that evicts."
                )
            chunk = feed.read(room)
            if not len(chunk.ids):
                return
            last = feed.exhausted()
            report = self.step(chunk, last=last)
            length = feed.estimate()
            if length is not None and not last:
                self._revise(length)
            yield report  # all of the step is done: who saves a memory saves it here

    def step(self, chunk: Chunk, *, last: bool) -> StepReport:
        """Read one chunk and cut memory back; `last` says that nothing follows."""
        started, n = time.perf_counter(), len(chunk.ids)
        plan = self.prefill.plan(n, last=last)
        hidden = self.prefill.forward(chunk, plan)
        loss = self.prefill.measure(hidden, chunk, plan, always=self.report_loss)
        in_flight = self.cache.held + len(plan.catalyst)
        self.steps += 1
        selecting = self._now()
        self.evictor.absorb_chunk(n, loss)
        if plan.evicts:
            self.evictor.evict(dict(zip(self.compressible, plan.targets, strict=True)), n, loss)
        self.cache.note_scratch()
        ended = self._now()
        self.select_seconds += ended - selecting
        reported = loss if self.report_loss else None
        seconds = time.perf_counter() - started
        return StepReport(n, plan.targets, in_flight, seconds, ended - selecting, reported)

    def begin(self) -> None:
        """Run the protected prompt by itself, where no chunk takes it along."""
        self.prefill.begin()

    def reopen(self, length: int | None) -> None:
        """Read on though the source had ended; `length` is that of both, as far as expected.

        Raises BudgetError where memory leaves no room for another chunk.
        """
        self.schedule.reopen(length)
        if self.schedule.chunk() < 1:
            raise BudgetError(
                f"Memory holds {max(self.schedule.held)} entries and leaves no room to read more "
                f"under a budget of {self.sizes.budget}."
            )

    def _revise(self, length: int) -> None:
        known = self.schedule.length
        # Each revision solves the remaining steps again; small corrections are not worth it.
        if known is not None and abs(length - known) > max(64, known // 50):
            self.schedule.revise(length)

    def _now(self) -> float:
        if self.exact_times and self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return time.perf_counter()

    # Answering

    @property
    def stopped(self) -> str:
        """Why the last answer ended: end, length, budget or interrupted."""
        return self.decoder.stopped

    @stopped.setter
    def stopped(self, why: str) -> None:
        self.decoder.stopped = why

    def answer(
        self,
        question: Sequence[int],
        choose: Callable[[Tensor], int],
        stop: frozenset[int],
        max_tokens: int,
        *,
        may_compress: bool = True,
    ) -> Iterator[int]:
        """Tokens of the answer, one by one; ``choose(logits [V])`` picks each.

        Ends at a token of `stop` (not handed out), after `max_tokens`, or where the budget is full
        and memory may not be compressed. Memory is as before once the iterator is closed; where
        it had to be compressed, what is left of it.
        """
        self.begin()
        try:
            yield from self.decoder.answer(
                question, choose, stop, max_tokens, may_compress=may_compress
            )
        finally:  # what is left of a memory that had to be compressed
            self.schedule.held = tuple(s.held - len(self.head) for s in self.compressible)

    def score(self, question: Sequence[int], continuation: Sequence[int]) -> Tensor:
        """Cross-entropy [n] in nats of a continuation of `question`; memory stays as it is."""
        self.begin()
        return self.decoder.score(question, continuation)

    def in_sight(
        self, begins: Sequence[int], order: Sequence[int], best: int
    ) -> AbstractContextManager[int]:
        """Inside, answers see the entries of the `best` first stretches of `order` alone.

        Stretch i is the tokens from ``begins[i]`` to ``begins[i + 1]``; see `narrowing.in_sight`.
        """
        return narrowing.in_sight(self.evictor, begins, order, best)

    # What remains

    @property
    def compressible(self) -> list[LayerStore]:
        """Layers from which the method chooses what stays."""
        return self.evictor.layers

    @property
    def seen(self) -> int:
        """Source tokens so far."""
        return self.evictor.seen

    @property
    def begun(self) -> bool:
        """Whether the prompt went through the model."""
        return not self.prefill.due

    @property
    def first_candidate(self) -> int:
        """Entries at the beginning that never leave: the prompt and the source's sinks."""
        return self.evictor.first_candidate

    def retained(self) -> Tensor:
        """Ordinals of the distinct source tokens that some head still holds, sorted; int64, CPU.
        After `release` those that were held then.
        """
        if self._last_retained is not None:
            return self._last_retained
        return ranking.retained(self.cache, self.compressible)

    def release(self) -> None:
        """Give the room of the KV cache back; nothing but `retained` can be asked any more."""
        self._last_retained = self.retained()  # a panel shows it until the answer ends
        self.cache.release()

    def retained_weights(self) -> tuple[Tensor, Tensor]:
        """(ordinals, weights) of the distinct source tokens that some head still holds, sorted;
        a weight is the share of heads that do, and the mean of those for the newest ones.
        """
        return ranking.retained_weights(self.cache, self.compressible)

    def rank(self, share: float = 0.25) -> tuple[Tensor, Tensor]:
        """(ordinals, weights): what memory would hold on to most if it were a quarter of its size.

        The catalysts are run once more over what remains, and the method selects `share` of it
        without anything leaving; a token's weight is the share of heads that would keep it, and the
        mean of those for the newest ones, which all heads keep.
        """
        return ranking.rank(self.prefill, share)

    # Between two processes

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All that changes in the course of a run beside the cache: numbers, and tensors."""
        return snapshot.state(self.prefill, self.steps, self.planned)

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from a `state`; the cache is filled apart. Raises ValueError, KeyError,
        RuntimeError.
        """
        snapshot.restore(self.prefill, numbers, tensors)
        self.steps = numbers["steps"]
