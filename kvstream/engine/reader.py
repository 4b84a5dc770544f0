"""The engine: it reads chunk after chunk, evicts entries after each, then answers.

It takes token ids and yields steps and tokens. It never prints and does not know the text. `Reader`
is its facade. `Reader.step` is the body of the main loop:

    plan     how much each layer will hold, and so whether entries leave   (prefill, schedule)
    forward  run chunk and catalyst through the model                      (prefill)
    measure  the evidence that the method requests                         (prefill)
    absorb   the method absorbs the evidence                               (eviction)
    evict    the method selects what stays, and the rest is evicted        (eviction)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.eviction import Evictor
from kvstream.engine.prefill import Chunk, Prefill, schedule_for
from kvstream.engine.schedule import NoEviction, Schedule
from kvstream.errors import BudgetError, KvstreamError, ModelError
from kvstream.methods.base import Method
from kvstream.model.attention import AttentionRequest
from kvstream.model.bounded import BoundedModel
from kvstream.model.cache import BoundedCache
from kvstream.model.layer_store import PROMPT, LayerStore
from kvstream.settings import RunSettings

MOST_TOKENS = 2**31 - 1
"""Maximum number of tokens of a source: their ordinals in the cache are int32."""
LEAST = 64
"""Minimum number of entries that a ranking keeps in a head, because a share of a few sentences
would be only a word or two."""


class Feed(Protocol):
    """The source of the engine's tokens."""

    def read(self, count: int) -> Chunk:
        """Return the next `count` tokens; fewer only at the end of the source, none after it."""

    def exhausted(self) -> bool:
        """Return whether nothing is left to read. May wait for the source."""

    def estimate(self) -> int | None:
        """Return the expected total number of tokens; None if there is no estimate."""


@dataclass(frozen=True)
class StepReport:
    """Measurements of one step."""

    chunk: int
    memory: tuple[int, ...]
    in_flight: int
    """Entries of the fullest head during the pass, including those of the catalyst."""
    seconds: float
    select_seconds: float
    """Part of `seconds` spent in selection and eviction."""
    loss: Tensor | None = None
    """Cross-entropy [chunk] of the chunk's tokens in nats, if `Reader.report_loss` is set."""


class Reader:
    """Reads a feed within a budget and answers from memory.

    `head` are the protected ids before the source, `catalysts` the ids of each catalyst, `estimate`
    the expected length of the source in tokens. After `read`, `answer` may be called any number of
    times. An answer leaves memory unchanged, unless it has to evict and may (`may_compress`).
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
        facts = model.facts
        self.method = method.sized(sizes.budget).fitted(facts)
        self.model, self.sizes = model, sizes
        self.head, self.catalysts = list(head), [list(c) for c in catalysts]
        self.extract = extract
        """Whether to measure every chunk, also the last, so that passages can be ranked."""
        self.cache: BoundedCache = model.new_cache(
            sizes.budget, self.method.tensors(), self.method.head_tensors()
        )
        self.generator = torch.Generator().manual_seed(run.seed)
        memory = self.method.compressive_memory(facts, asked=bool(self.catalysts))
        learned = self.method.learned(facts)
        self.evictor = Evictor(
            self.cache, self.method, len(self.head), self.generator, memory, learned
        )
        self.compressible: list[LayerStore] = self.evictor.layers
        """Layers in which the method selects the entries that stay."""
        self.planned = estimate
        """Expected length in tokens when the schedule was created."""
        self.schedule: Schedule | NoEviction = schedule_for(
            self.method, run, sizes, len(self.compressible), estimate, model.trained_length
        )
        self.prefill = Prefill(
            model, self.evictor, self.schedule, self.head, self.catalysts, extract=extract
        )
        self.stopped = "end"
        """Why the last answer ended: end, length, budget or interrupted."""
        self._shrinking = run.chunk == "decremental"
        self.report_loss = False
        """Whether every step reports the loss of its tokens, given memory before them."""
        self.exact_times = False
        """Whether to wait for the GPU before and after selection, so that `select_seconds` is
        exact."""
        self.steps = 0
        self.select_seconds = 0.0
        self._last_retained: Tensor | None = None

    # Reading

    def read(
        self, feed: Feed, interrupted: Callable[[], bool] = lambda: False
    ) -> Iterator[StepReport]:
        """Read the feed to its end, or until `interrupted`. Yield after every chunk.

        Raises BudgetError if a method that evicts nothing has no room for the rest.
        """
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
                old = self.schedule.length
                # Each revision solves the remaining steps again, so ignore small corrections.
                if old is not None and abs(length - old) > max(64, old // 50):
                    self.schedule.revise(length)
            yield report  # the step is complete: the caller may save memory here

    def step(self, chunk: Chunk, *, last: bool) -> StepReport:
        """Read one chunk and reduce memory to its target size. `last`: no chunk follows.

        Raises KvstreamError, before it reads, for a token that has no ordinal.
        """
        started, n = time.perf_counter(), len(chunk.ids)
        if chunk.first + n > MOST_TOKENS:
            raise KvstreamError(
                f"The text has more than {MOST_TOKENS:,} tokens, the most that a reading "
                "can count; read it in parts."
            )
        plan = self.prefill.plan(n, last=last)
        hidden = self.prefill.forward(chunk, plan)
        loss = self.prefill.measure(hidden, chunk, plan, always=self.report_loss)
        in_flight = self.cache.size + len(plan.catalyst)
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
        """Run the protected prompt alone, unless the model has read it already."""
        self.prefill.begin()

    def reopen(self, length: int | None) -> None:
        """Allow more reading after the end of a source; `length` is the expected total in tokens.

        Raises BudgetError if memory leaves no room for another chunk.
        """
        self.schedule.reopen(length)
        if self.schedule.chunk() < 1:
            raise BudgetError(
                f"Memory holds {max(self.schedule.held)} entries and leaves no room to read more "
                f"under a budget of {self.sizes.budget}."
            )

    def _now(self) -> float:
        if self.exact_times and self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return time.perf_counter()

    # Answering

    def answer(
        self,
        question: Sequence[int],
        choose: Callable[[Tensor], int],
        stop: frozenset[int],
        max_tokens: int,
        *,
        may_compress: bool = True,
        final: bool = False,
    ) -> Iterator[int]:
        """Yield the tokens of the answer; ``choose(logits [V])`` picks each.

        Ends at a token of `stop` (not yielded), after `max_tokens`, or when the budget is full and
        no entries may or can be evicted. When the iterator is closed, memory is as before, except
        for the entries that the answer evicted. `final` makes each token cheaper, but leaves the
        keys rotated: then memory must not be read on or saved. Raises ModelError for logits that
        are NaN.
        """
        self.begin()
        evictor, cache = self.evictor, self.cache
        evictor.resume_compressive_memory()
        if final:
            cache.rotate()
        self.stopped = "interrupted"
        may_compress = may_compress and self.method.evicts
        # Scores have to include the answer's attention only if the answer may fill the budget.
        longest = cache.size + len(question) + max_tokens - 1
        follows = may_compress and self.prefill.evidence.accumulated_attention
        accumulates = follows and longest > cache.capacity
        if accumulates:
            for store in self.compressible:
                store.set_state_aside()
        try:
            with cache.answering(), cache.passing() as ends:
                hidden = self._answer_pass(question, accumulates)
                for count in range(max_tokens):
                    token = choose(self._next_logits(hidden))
                    if token in stop:
                        self.stopped = "end"
                        return
                    yield token
                    if count + 1 == max_tokens:
                        self.stopped = "length"
                        return
                    if cache.size == cache.capacity and not (
                        may_compress and evictor.evict_while_decoding(ends, len(question))
                    ):
                        self.stopped = "budget"
                        return
                    hidden = self._answer_pass([token], accumulates)
        finally:
            evictor.forget_answer()
            for store in self.compressible:
                store.restore_state()
            # An answer may have evicted entries of memory.
            self.schedule.held = tuple(s.size - len(self.head) for s in self.compressible)

    def _next_logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [V] of the next token. Raises ModelError if one is NaN.

        The probe runs only a few tokens: in float16 a text can still overflow.
        """
        logits = self.model.logits(hidden[-1:])[0]
        if bool(logits.isnan().any()):
            kind = str(self.model.dtype).removeprefix("torch.")
            wider = "number type, such as --dtype float32"
            other = "method or model" if kind == "float32" else wider
            raise ModelError(
                f"{self.model.name} computed numbers that are not finite in {kind} from this text, "
                f"so it cannot answer; use another {other}."
            )
        return logits

    def _answer_pass(self, ids: Sequence[int], accumulates: bool) -> Tensor:
        """Run tokens of a question or an answer, measure evidence, and return hidden states [n, d].

        Window attention is measured only if the pass fills the budget, because eviction follows.
        Accumulated attention is measured, and absorbed, if the method `accumulates` it.
        """
        n, evidence = len(ids), self.prefill.evidence
        full = self.cache.size + n == self.cache.capacity
        request = AttentionRequest(
            (1,) if full else (), accumulates, n, evidence.decay, evidence.reduce
        )
        hidden = self.model.forward(ids, self.cache, request)
        self.cache.tag(n, None)
        if accumulates:
            self.evictor.absorb(n, None)
        return hidden

    def score(self, question: Sequence[int], continuation: Sequence[int]) -> Tensor:
        """Return the cross-entropy [n] in nats of a continuation of `question`.

        Memory does not change.
        """
        self.begin()
        self.evictor.resume_compressive_memory()
        with self.cache.passing():
            hidden = self.model.forward([*question, *continuation[:-1]], self.cache)
            targets = torch.tensor(list(continuation), device=hidden.device)
            return self.model.loss(hidden[len(question) - 1 :], targets)

    @contextmanager
    def in_sight(self, begins: Sequence[int], order: Sequence[int], best: int) -> Iterator[int]:
        """Let answers inside this context see only the first `best` stretches of `order`.

        Yields the number of visible entries in the fullest head. Stretch i is the tokens from
        ``begins[i]`` to ``begins[i + 1]``. The other entries stay held, and are visible again
        afterwards.
        """
        evictor = self.evictor
        cache, prompt = evictor.cache, evictor.prompt
        least = evictor.first_candidate - prompt  # as many as evicting while decoding protects
        places = torch.empty(len(order), dtype=torch.long)
        places[list(order)] = torch.arange(len(order))
        inner = torch.tensor(list(begins[1:]), dtype=torch.int32)
        visible = {s: _visible(s, prompt, inner, places, best, least) for s in evictor.layers}
        with cache.in_sight(prompt, visible):
            yield max(store.used for store in evictor.layers)

    # Memory

    @property
    def seen(self) -> int:
        """Number of source tokens read so far."""
        return self.evictor.seen

    @property
    def begun(self) -> bool:
        """Whether the model has read the prompt."""
        return not self.prefill.due

    def retained(self) -> Tensor:
        """Return the sorted, distinct ordinals of the retained source tokens; int64, on the CPU.

        After `release`, these are the tokens that were retained then.
        """
        if self._last_retained is not None:
            return self._last_retained
        origins = [s.origin[:, : s.used].flatten() for s in self.compressible or self.cache.stores]
        # One transfer for all layers: reporters ask after every chunk, and each transfer waits.
        every = torch.cat([t.to(origins[0].device) for t in origins]).unique().cpu().long()
        return every[every != PROMPT]

    def ordinals(self) -> dict[int, list[list[int]]]:
        """Return, for each layer by its index, the ordinals of the tokens that each head holds."""
        return {s.spec.index: [h.tolist() for h in s.ordinals()] for s in self.cache.stores}

    def release(self) -> None:
        """Free the KV cache. Only `retained` may be called afterwards."""
        self._last_retained = self.retained()  # the panel shows it until the answer ends
        self.cache.release()

    def retained_weights(self) -> tuple[Tensor, Tensor]:
        """Return (ordinals, weights) of the retained source tokens, sorted and distinct.

        A weight is the share of heads that hold the token. The newest tokens, which all heads hold,
        get the mean weight of the others.
        """
        layers = self.compressible or self.cache.stores
        every = torch.cat([s.origin[:, : s.used].flatten().cpu() for s in layers])
        return _weighed(every[every != PROMPT], sum(s.spec.heads for s in layers))

    def rank(self, share: float = 0.25) -> tuple[Tensor, Tensor]:
        """Return (ordinals, weights) of the tokens that stay if memory shrinks to `share` of it.

        Runs the catalysts again over memory and lets the method select, but evicts nothing. A
        weight is the share of heads that would keep the token. The newest tokens, which all heads
        keep, get the mean weight of the others. Raises BudgetError if the catalysts do not fit.
        """
        evictor, cache, catalyst = self.evictor, self.cache, self.prefill.catalyst
        if cache.size + len(catalyst) > cache.capacity:
            raise BudgetError(
                f"Ranking takes {len(catalyst)} entries, but memory holds {cache.size} and left no "
                f"room for it under its budget of {cache.capacity}."
            )
        if catalyst:
            self.prefill.measure_catalysts()
        # Sinks are protected from the first eviction on. Before it they are candidates like others.
        first = evictor.prompt if evictor.sinks is None else evictor.first_candidate
        ordinals = []
        state = evictor.generator.get_state()
        groups = evictor.groups({s: s.used for s in evictor.layers})
        parts = [(group, slice(first, group[0].used)) for group in groups]
        for _, part, step in evictor.views(parts, 0, None):
            origin, candidates = step.origin, part.stop - first
            size = max(min(candidates, LEAST), int(share * candidates))
            if evictor.method.evicts and size < candidates:
                origin = origin.gather(-1, evictor.select(step, size).to(origin.device))
            ordinals.append(origin.flatten().cpu())
        evictor.generator.set_state(state)  # ranking changes nothing
        return _weighed(torch.cat(ordinals), sum(s.spec.heads for s in evictor.layers))

    # Saving and resuming

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return all that changes during a run, except the cache.

        Returns numbers in types that JSON has, and tensors. The names are those of memory files.
        """
        evictor, prefill = self.evictor, self.prefill
        numbers = {
            "seen": evictor.seen,
            "steps": self.steps,
            "sinks": evictor.sinks,
            "ratios": evictor.ratios,
            "begun": not prefill.due,
            "planned": self.planned,
            "schedule": prefill.schedule.state(),
        }
        tensors = {"generator": evictor.generator.get_state()}
        if prefill.before is not None:
            tensors["before"] = prefill.before
        return numbers, tensors

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Resume from a `state`. The caller fills the cache.

        Raises ValueError, KeyError or RuntimeError if the state does not fit this run.
        """
        evictor, prefill = self.evictor, self.prefill
        self.schedule.restore(numbers["schedule"])
        _check(numbers, prefill)
        for name in ("seen", "sinks", "ratios"):
            setattr(evictor, name, numbers[name])
        prefill.due = [] if numbers["begun"] else list(self.head)
        try:
            evictor.generator.set_state(tensors["generator"])
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"its random numbers cannot go on: {error}") from error
        prefill.before = None
        if (before := tensors.get("before")) is not None:
            if (before.dim(), len(before)) != (2, 1):
                raise ValueError(f"what stood before has the shape {list(before.shape)}")
            prefill.before = before.to(self.model.device)
            try:
                self.model.logits(prefill.before)
            except RuntimeError:  # saved in another number type, or by another model
                prefill.before = prefill.before.to(self.model.dtype)
                self.model.logits(prefill.before)
        self.steps = numbers["steps"]


def _visible(
    store: LayerStore, prompt: int, begins: Tensor, places: Tensor, best: int, least: int
) -> Tensor:
    """Return which entries of a layer after the prompt are visible [K, m], in order; m >= `least`.

    All heads of a layer see equally many entries. If heads hold different tokens, a head that holds
    fewer entries of the best stretches also sees entries of the next stretches in the order.
    """
    origin = store.origin[:, prompt : store.used].contiguous()
    stretch = torch.bucketize(origin, begins.to(origin.device), right=True)
    place = places.to(origin.device)[stretch]
    m = max(least, int((place < best).sum(-1).max()))
    return place.argsort(dim=-1, stable=True)[:, :m].sort(dim=-1).values


def _check(numbers: Mapping[str, Any], prefill: Prefill) -> None:
    """Raise ValueError if the numbers, each of which can be one, cannot be those of a run."""
    sizes, ratios = prefill.schedule.held, numbers["ratios"]
    if any(h > numbers["seen"] for h in sizes):
        raise ValueError(f"its layers hold more than the {numbers['seen']} tokens it has seen")
    if (numbers["sinks"] or 0) > min(prefill.method.sinks, *sizes):
        raise ValueError(f"{numbers['sinks']} sinks cannot be among what its layers hold")
    if ratios is not None and len(ratios) != len(sizes):
        raise ValueError(f"it has {len(ratios)} ratios, and {len(sizes)} layers are compressed")
    if numbers["seen"] and not numbers["begun"]:
        raise ValueError("it cannot have seen the text before the prompt")


def _weighed(origins: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Return the distinct ordinals among those of all heads, and the share of heads with each."""
    ordinals, counts = origins.unique(return_counts=True)
    weights = counts.float() / heads
    # The newest tokens always stay, so their share says nothing: they get the mean of the others.
    behind = torch.arange(len(ordinals) - 1, -1, -1)
    newest = (weights == 1) & (ordinals == ordinals[-1:] - behind)  # not the sinks
    newest = newest.flip(0).cumprod(0).flip(0).bool()
    weights[newest] = weights[~newest].mean() if not newest.all() else 1.0
    return ordinals.long(), weights
