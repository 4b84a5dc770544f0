"""The engine: chunk after chunk through the model, memory cut back after each, then an answer.

It takes token ids and yields steps and tokens; it never prints and knows no text but what it is
given to decode elsewhere. Three layers, each usable alone: `Reader.step` runs one chunk,
`Reader.read` a whole feed, `Reader.answer` a question over what remains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.eviction import NEWEST, Evictor
from kvstream.engine.schedule import NoEviction, Schedule
from kvstream.errors import BudgetError
from kvstream.methods.base import Method
from kvstream.model.attention import AttentionRequest
from kvstream.model.bounded import BoundedModel
from kvstream.model.cache import PROMPT, BoundedCache, LayerStore
from kvstream.settings import PAPER, RunSettings

START_SHARE = 2
"""Memory starts at this part of m_max unless told otherwise. IMDC sets m_0 to m_max / n (section
4.1); with so little, what stands early in a long text is lost more often
(docs/reference/schedules.md)."""


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
        """Expected number of tokens in all, as far as it can be told."""


@dataclass(frozen=True)
class StepReport:
    """What happened in one step, in numbers."""

    chunk: int
    memory: tuple[int, ...]
    in_flight: int
    seconds: float
    select_seconds: float
    """Part of `seconds` spent in selection and compaction."""
    loss: Tensor | None = None
    """Cross-entropy [chunk] in nats of the chunk's tokens, if `Reader.report_loss` is set."""


class Reader:
    """Reads a feed under a bound and answers from what remains.

    `head` are the protected ids in front of the source; `catalysts` the ids of each catalyst.
    After `read`, `answer` may be called any number of times: each leaves memory as it was, unless
    it is told that it may compress it (`may_compress`).
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
        self.cache: BoundedCache = model.new_cache(
            sizes.budget, self.method.tensors(), self.method.head_tensors()
        )
        self.generator = torch.Generator().manual_seed(run.seed)
        folding = self.method.folding(model.facts, asked=bool(self.catalysts))
        self.compactor = Evictor(self.cache, self.method, len(self.head), self.generator, folding)
        self.planned = estimate
        """The length that the schedule was first made for."""
        self.schedule = self._new_schedule(run, estimate)
        self._shrinking = run.chunk == "decremental"
        self.asked = self.method.evidence()
        self.extract = extract
        """Measure every chunk, the last one too, so that passages can be ranked."""
        self.report_loss = False
        """Whether every step reports the loss of its tokens, given what memory held."""
        self.exact_times = False
        """Wait for a GPU around selection, so that `select_seconds` is what it takes there."""
        self.steps = 0
        self.stopped = "end"
        self.select_seconds = 0.0
        self._before: Tensor | None = None
        self._following = False
        """Whether scores follow the answer that is being given."""
        self._due = list(head)
        """The prompt until it goes through the model, with the first chunk."""

    @property
    def compressible(self) -> list[LayerStore]:
        """Layers from which the method chooses what stays."""
        return self.compactor.layers

    @property
    def seen(self) -> int:
        """Source tokens so far."""
        return self.compactor.seen

    @property
    def begun(self) -> bool:
        """Whether the prompt went through the model."""
        return not self._due

    @property
    def first_candidate(self) -> int:
        """Entries at the beginning that never leave: the prompt and the source's sinks."""
        return self.compactor.first_candidate

    def _new_schedule(self, run: RunSettings, estimate: int | None) -> Schedule | NoEviction:
        free, final, layers = self.sizes.free, self.sizes.final, len(self.compressible)
        if not self.method.evicts:
            return NoEviction(layers, min(free, final))
        most = run.keep or min(final, free - max(64, free // 8))
        start: int | None = None  # the schedule's own: m_max / n
        if run.start != PAPER:
            wanted = run.start or max(self.method.sinks + NEWEST, most // START_SHARE)
            start = min(int(wanted), most)
        return Schedule(
            growth=run.growth,
            chunk=run.chunk,
            layers=layers,
            free=free,
            final=final,
            keep=run.keep,
            start=start,
            chunk_size=run.chunk_size,
            length=estimate,
        )

    # Reading

    def read(
        self, feed: Feed, interrupted: Callable[[], bool] = lambda: False
    ) -> Iterator[StepReport]:
        """Read the feed to its end, or until `interrupted`; yields after every chunk."""
        while not interrupted():
            room = self._room()
            if room == 0 and not feed.exhausted():
                raise BudgetError(
                    f"The text is longer than the {self.sizes.final} tokens that "
                    f"{self.method.name} can hold under a budget of {self.sizes.budget}; use a "
                    "larger --budget, or a method that evicts."
                )
            piece = feed.read(room)
            if not len(piece.ids):
                return
            last = feed.exhausted()
            report = self.step(piece, last=last)
            length = feed.estimate()
            if length is not None and not last:
                self._revise(length)
            yield report  # all of the step is done: who saves a memory saves it here

    def _room(self) -> int:
        """Tokens to read now: what the schedule says, or a few less for a round width of the pass.

        Some processors compile their products anew for every width (`BoundedModel.round_width`),
        and a decremental chunk brings a new one with every step. A text that fits must not lose
        anything for it, so the first chunk stays as it is.
        """
        room, width = self.schedule.chunk(), self.model.round_width
        if not self._shrinking or self.schedule.first:
            return room
        with_chunk = 0 if self.cache.recurrent else sum(map(len, self.catalysts))
        over = (room + with_chunk) % width
        return room - over if room - over >= 2 * width else room

    def begin(self) -> None:
        """Run the protected prompt by itself, where no chunk is to take it along."""
        if self._due:
            self._forward(())

    def step(self, piece: Chunk, *, last: bool) -> StepReport:
        """Run one chunk and cut memory back; `last` says that nothing follows."""
        started = time.perf_counter()
        self.compactor.remix()
        n, held = len(piece.ids), self.schedule.held
        targets = self._targets(n, last)
        evict = any(t < h + n for t, h in zip(targets, held, strict=True))
        catalyst = [i for c in self.catalysts for i in c] if evict else []
        measure = evict or not last or self.extract
        wanted = self._wanted(n, bool(catalyst)) if measure else None
        for store in self.compressible:  # evidence is of the latest pass alone
            store.rows = store.columns = None
        hidden = self._read(piece, catalyst, wanted)
        in_flight = self.cache.used + len(catalyst)
        asked = self.report_loss or (measure and self.asked.loss)
        loss = self._loss(hidden[:n], piece.ids) if asked else None
        self._before = hidden[n - 1 : n].clone()
        self.compactor.seen += n
        self.steps += 1
        self._wait_if_exact()
        selecting = time.perf_counter()
        with self.cache.momentary.metered():
            self.compactor.absorb(n, loss)
        if evict:
            with self.cache.momentary.metered():
                self.compactor.compact(dict(zip(self.compressible, targets, strict=True)), n, loss)
        self.cache.note_scratch()
        self._wait_if_exact()
        spent = time.perf_counter() - selecting
        self.select_seconds += spent
        shown = loss if self.report_loss else None
        return StepReport(n, targets, in_flight, time.perf_counter() - started, spent, shown)

    def _read(
        self, piece: Chunk, catalyst: Sequence[int], wanted: AttentionRequest | None
    ) -> Tensor:
        """Take in a chunk. Hidden states [n, d], those of a catalyst behind it, which leaves again.

        States have to be copied between the two, so where there are any each has its own pass.
        """
        n = len(piece.ids)
        if not (catalyst and wanted and self.cache.recurrent):
            hidden = self._forward([*piece.ids, *catalyst], wanted)
            self.cache.drop_newest(len(catalyst))
            self.cache.tag(n, piece.first)
            return hidden
        hidden = self._forward(piece.ids, replace(wanted, segments=()))
        self.cache.tag(n, piece.first)
        columns = [store.columns for store in self.compressible]
        with self.cache.passing():
            self.model.forward(catalyst, self.cache, replace(wanted, columns=False))
        for store, measured in zip(self.compressible, columns, strict=True):
            store.columns = measured
        return hidden

    def _forward(self, ids: Sequence[int], wanted: AttentionRequest | None = None) -> Tensor:
        """Hidden states [n, d] of `ids`; the first pass takes the prompt in front of them.

        A pass over a few tokens has to read all weights too, so the prompt has none of its own.
        """
        head, self._due = self._due, []
        hidden = self.model.forward([*head, *ids], self.cache, wanted)
        if head:
            self.cache.tag(len(head) + len(ids), None)
            self._before = hidden[len(head) - 1 : len(head)]
        return hidden[len(head) :]

    def _wait_if_exact(self) -> None:
        if self.exact_times and self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def _targets(self, n: int, last: bool) -> tuple[int, ...]:
        """Source entries that each compressible layer holds after this chunk."""
        held = self.schedule.held
        sizes = self.schedule.memory(n, self.compactor.ratios, last=last)
        whole = all(s >= h + n for s, h in zip(sizes, held, strict=True))
        shaped = sizes if whole else self.method.layer_sizes(sizes)
        # A method may shift entries between layers, but never past the schedule or what is there.
        limit, least = max(sizes), self.compactor.sinks or 0  # the sinks are there already
        sizes = tuple(min(max(s, least), limit, h + n) for s, h in zip(shaped, held, strict=True))
        if whole:
            targets = sizes
        else:
            kept = [self.method.target(s, h + n) for s, h in zip(sizes, held, strict=True)]
            targets = tuple(max(t, min(s, least)) for t, s in zip(kept, sizes, strict=True))
        self.schedule.held = targets
        return targets

    def _revise(self, length: int) -> None:
        known = self.schedule.length
        # Each revision solves the remaining steps again; small corrections are not worth it.
        if known is not None and abs(length - known) > max(64, known // 50):
            self.schedule.revise(length)

    def _wanted(self, n: int, catalyst: bool) -> AttentionRequest:
        if catalyst:
            segments = tuple(len(c) for c in self.catalysts)
        else:
            segments = (min(self.asked.rows, n),) if self.asked.rows else ()
        return AttentionRequest(
            segments, self.asked.columns, n, self.asked.decay, self.asked.reduce, len(self._due)
        )

    def _loss(self, hidden: Tensor, ids: Sequence[int]) -> Tensor:
        """Cross-entropy [n] of every token of the chunk, the first by what stood before it."""
        targets = torch.tensor(list(ids), device=hidden.device)
        if self._before is None:  # nothing stands before the very first token
            loss = self.model.loss(hidden[:-1], targets[1:])
            return torch.cat((loss.mean()[None] if len(loss) else loss.new_zeros(1), loss))
        return self.model.loss(torch.cat((self._before, hidden[:-1])), targets)

    # Between two processes

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All that changes in the course of a run beside the cache: numbers, and tensors."""
        numbers = {
            "seen": self.seen,
            "steps": self.steps,
            "sinks": self.compactor.sinks,
            "ratios": self.compactor.ratios,
            "begun": self.begun,
            "planned": self.planned,
            "schedule": self.schedule.state(),
        }
        tensors = {"generator": self.generator.get_state()}
        if self._before is not None:
            tensors["before"] = self._before
        return numbers, tensors

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from a `state`; the cache is filled apart. Raises ValueError, KeyError,
        RuntimeError.
        """
        self.schedule.restore(numbers["schedule"])
        for name in ("seen", "steps", "sinks"):
            value = numbers[name]
            if not (type(value) is int and 0 <= value < 2**31) and (name, value) != ("sinks", None):
                raise ValueError(f"{name} cannot be {value!r}")
        held, ratios = self.schedule.held, numbers["ratios"]
        if any(h > numbers["seen"] for h in held):
            raise ValueError(f"its layers hold more than the {numbers['seen']} tokens it has seen")
        if (numbers["sinks"] or 0) > min(self.method.sinks, *held):
            raise ValueError(f"{numbers['sinks']} sinks cannot be among what its layers hold")
        if ratios is not None and len(ratios) != len(held):
            raise ValueError(f"it has {len(ratios)} ratios, and {len(held)} layers are compressed")
        if numbers["begun"] is not True and (numbers["begun"] is not False or numbers["seen"]):
            raise ValueError("it cannot have seen the text before the prompt")
        self.compactor.seen, self.steps = numbers["seen"], numbers["steps"]
        self.compactor.sinks, self.compactor.ratios = numbers["sinks"], numbers["ratios"]
        self._due = [] if numbers["begun"] else list(self.head)
        try:
            self.generator.set_state(tensors["generator"])
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"its random numbers cannot go on: {error}") from error
        before = tensors.get("before")
        if before is not None and (before.dim(), len(before)) != (2, 1):
            raise ValueError(f"what stood before has the shape {list(before.shape)}")
        self._before = None if before is None else before.to(self.model.device)
        if self._before is not None:
            self.model.logits(self._before)  # a RuntimeError where it is not of this model

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

    # What remains

    def retained(self) -> Tensor:
        """Ordinals of the distinct source tokens that some head still holds, sorted; int64, CPU."""
        held = [s.origin[:, : s.used].flatten() for s in self.compressible or self.cache.stores]
        # All layers at once: reporters ask after every chunk, and a GPU should be asked once.
        every = torch.cat([t.to(held[0].device) for t in held]).unique().cpu().long()
        return every[every != PROMPT]

    def rank(self, share: float = 0.25) -> tuple[Tensor, Tensor]:
        """(ordinals, weights): what memory would hold on to most if it were a quarter of its size.

        The catalysts are run once more over what remains, and the method selects `share` of it
        without anything leaving; a token's weight is the share of heads that would keep it, and the
        mean of those for the newest ones, which all heads keep.
        """
        catalyst = [i for c in self.catalysts for i in c]
        if self.cache.used + len(catalyst) > self.sizes.budget:
            raise BudgetError(
                f"Ranking takes {len(catalyst)} entries beside the {self.cache.used} that are held "
                f"under a budget of {self.sizes.budget}; memory was made without room for it."
            )
        if catalyst:
            with self.cache.passing():
                self.model.forward(catalyst, self.cache, self._wanted(0, True))
        first = self.first_candidate
        chosen = []
        drawn = self.generator.get_state()
        groups = self.compactor.groups({s: s.used for s in self.compressible})
        parts = [(group, slice(first, group[0].used)) for group in groups]
        for group, part, step in self.compactor.views(parts, 0, None):
            candidates = part.stop - first
            keep = max(1, int(share * candidates))
            if self.method.evicts and keep < candidates:
                kept = self.method.select(step, keep).to(step.origin.device)
                chosen.append(step.origin.gather(-1, kept).flatten().cpu())
            else:
                chosen += [s.origin[:, first : s.used].flatten().cpu() for s in group]
        self.generator.set_state(drawn)  # ranking leaves everything as it was
        ordinals, counts = torch.cat(chosen).unique(return_counts=True)
        weights = counts.float() / sum(s.spec.heads for s in self.compressible)
        # The newest tokens stay by rule and not for what they say: they count as the others do.
        behind = torch.arange(len(ordinals) - 1, -1, -1)
        newest = (weights == 1) & (ordinals == ordinals[-1:] - behind)  # sinks alone: none
        newest = newest.flip(0).cumprod(0).flip(0).bool()
        weights[newest] = weights[~newest].mean() if not newest.all() else 1.0
        return ordinals.long(), weights

    # Answering

    def score(self, question: Sequence[int], continuation: Sequence[int]) -> Tensor:
        """Cross-entropy [n] in nats of a continuation of `question`; memory stays as it is."""
        self.begin()
        with self.cache.passing():
            hidden = self.model.forward([*question, *continuation[:-1]], self.cache)
            targets = torch.tensor(list(continuation), device=hidden.device)
            return self.model.loss(hidden[len(question) - 1 :], targets)

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
        self.compactor.remix()
        self.stopped = "interrupted"
        may_compress = may_compress and self.method.evicts
        # Only an answer that may fill the budget needs scores that follow it.
        longest = self.cache.used + len(question) + max_tokens - 1
        self._following = may_compress and self.asked.columns and longest > self.sizes.budget
        if self._following:
            for store in self.compressible:
                store.set_state_aside()
        try:
            with self.cache.passing() as ends:
                yield from self._answered(question, choose, stop, max_tokens, ends, may_compress)
        finally:
            self.compactor.unfold()
            for store in self.compressible:
                store.restore_state()

    def _answered(
        self,
        question: Sequence[int],
        choose: Callable[[Tensor], int],
        stop: frozenset[int],
        max_tokens: int,
        ends: list[int],
        may_compress: bool,
    ) -> Iterator[int]:
        hidden = self._said(question)
        for count in range(max_tokens):
            token = choose(self.model.logits(hidden[-1:])[0])
            if token in stop:
                self.stopped = "end"
                return
            yield token
            if count + 1 == max_tokens:
                self.stopped = "length"
                return
            if self.cache.used == self.sizes.budget and not (
                may_compress and self._squeezed(ends, len(question))
            ):
                self.stopped = "budget"
                return
            hidden = self._said([token])

    def _squeezed(self, ends: list[int], question: int) -> bool:
        with self.cache.momentary.metered():
            return self.compactor.squeeze(ends, question)

    def _said(self, ids: Sequence[int]) -> Tensor:
        """Hidden states [n, d] of tokens of a question or an answer, and evidence of this pass.

        Attention is measured for a compression that comes right after the pass. Where an answer
        may fill the budget, methods that add up attention go on adding.
        """
        n = len(ids)
        full = self.cache.used + n == self.sizes.budget
        wanted = AttentionRequest(
            (1,) if full else (), self._following, n, self.asked.decay, self.asked.reduce
        )
        hidden = self.model.forward(ids, self.cache, wanted)
        self.cache.tag(n, None)
        if self._following:
            self.compactor.absorb(n, None)
        return hidden
