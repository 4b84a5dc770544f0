"""The schedule: sizes of chunk and memory, step by step.

`Schedule` solves the equations of IMDC ("Memorize Step by Step: Incremental Memory and Decremental
Chunk") for a budget and an estimated length. All sizes are KV cache entries of one head, or tokens,
which is the same number. Nothing here depends on the model, and nothing grows with the length of
the source.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvstream.errors import BudgetError

SMALLEST_CHUNK = 64
"""Minimum planned chunk in tokens, except the last; the minimum is ``free / 8`` if that is more."""
CHUNK_SHARE = 8
"""The minimum chunk is ``free``, or a given average chunk, divided by this."""
OPEN_CHUNK_SHARE = 4
"""The minimum chunk of a stream of unknown length is ``free`` divided by this."""
OPEN_HALFWAY = 1.0
"""Such a stream is halfway along the growth curve after ``free`` times this many tokens."""
LEAST_SUM = 1e-9
"""If the retention ratios add up to less than this, all layers count alike."""
ADAPTIVE_FLOOR = 0.25
"""The retention ratio of a layer counts as at least this share of the mean: a layer without memory
could never show that it needs some."""
ADAPTIVE_CHUNK = 0.75
"""A layer with more memory than the mean leaves the next chunk at least this share of what the mean
leaves. Otherwise one large layer would make all chunks tiny, and each chunk evicts."""

Curve = Callable[[float], float]


def flat(_: float) -> float:
    return 1.0


def linear(t: float) -> float:
    return t


def square(t: float) -> float:
    return t * t


CURVES: dict[str, tuple[Curve, Curve]] = {
    "fixed": (flat, flat),
    "linear": (linear, linear),
    "adaptive": (linear, linear),
    "square": (square, square),
    "sqrt": (math.sqrt, math.sqrt),
    "square-sqrt": (square, math.sqrt),
}
"""How memory grows along a text, from 0 to 1 (IMDC, eqs. 1, 7 and 8): the curve of the lower half
of the layers, and that of the upper half, which is never the smaller of the two."""


class Schedule:
    """Sizes of the next chunk and of memory after it, for a budget and an expected length.

    Use: read at most `chunk()` tokens, run them, reduce every layer to what `memory(read)` returns.
    Repeat until the source ends; the last call passes ``last=True``. These rules always hold, even
    if the expected length is wrong: chunk + memory <= ``free``; memory never shrinks (except
    ``adaptive``, layer by layer) and never exceeds `m_max` (the mean of the layers, if adaptive),
    or ``final`` if the source fits; `chunk()` >= `smallest`. The one exception: a text that is
    expected to fit stays whole while it is read in pieces. If it turns out to be longer, memory
    shrinks, and a chunk is small.

    name, chunk: as in `kvstream.settings` (SCHEDULES, CHUNKS).
    layers: number of layers that hold memory.
    free: A, maximum number of entries of memory and the chunk in flight together.
    final: maximum number of entries in memory when the question is read.
    keep: m_max; None is the maximum that leaves a smallest chunk and fits ``final``.
    start: m_0, memory after the first step; None is m_max / n, as in the paper (`schedule_for` sets
        half of m_max by default).
    chunk_size: None solves for the budget: chunk = A - memory, so that the peak is flat. Else
        tokens in a chunk if ``fixed``, and the paper's average c if ``decremental`` (eqs. 4-6).
    length: expected tokens of the source; None for a stream without a known end.
    least: minimum m_0, if ``start`` is None.
    widest: whether the budget is the largest for the model, so that errors advise no larger one.

    Raises BudgetError if these sizes cannot be combined.
    """

    def __init__(
        self,
        *,
        name: str,
        chunk: str,
        layers: int,
        free: int,
        final: int,
        keep: int | None = None,
        start: int | None = None,
        chunk_size: int | None = None,
        length: int | None = None,
        least: int = 1,
        widest: bool = False,
    ) -> None:
        self.name, self.layers, self.free, self.final = name, layers, free, final
        self._widest = widest
        self.length = length
        self.seen = 0
        """Number of tokens read so far."""
        self.done = 0
        """Number of steps finished so far."""
        self.held: tuple[int, ...] = (0,) * layers
        """Entries in memory of each layer that the method compresses, without the prompt."""

        self._lower, self._upper = CURVES[name]
        self._keep, self._start, self._least = keep, start, least
        decremental = chunk == "decremental"
        # The paper's average chunk; an unknown length has no average.
        self._average = chunk_size if decremental and length is not None else None
        self.smallest = _smallest_chunk(free, chunk_size, self._average, length is None)
        """Minimum of `chunk()` in tokens after the first eviction. Only the end of the source makes
        a chunk shorter."""
        self._limit = min(final, free - self.smallest)
        self._check(chunk_size)
        self.m_max = self._limit if keep is None else keep
        """Entries in memory after the last step, if the source has so many tokens."""
        if self._average:
            self._settle_average(self._average, self._steps_of_average(self._average))
        # None: the chunk is what memory leaves of `_attention`.
        self._fixed: int | None = None
        if not decremental or (chunk_size and not self._average):
            self._fixed = self.smallest = chunk_size or free - self.m_max
        self._uneven = 1.0  # ratio of the fullest layer to the mean, if adaptive
        self._fresh = True  # nothing was evicted yet: held entries are part of the first chunk
        self._plan()

    # The engine calls these.

    @property
    def whole(self) -> bool:
        """Whether the source is expected to fit in one chunk without eviction."""
        return self.length is not None and self.length <= self._room

    @property
    def steps(self) -> int | None:
        """Expected total number of steps; None for a stream without a known end."""
        return None if self.length is None else self.done + self._left

    @property
    def first(self) -> bool:
        """Whether the next chunk is the first, which has to take the whole of a text that fits."""
        return self._fresh

    def chunk(self) -> int:
        """Return the maximum number of tokens to read now.

        The caller may read fewer after the first step, or at the end of the source.
        """
        most = max(self.held)
        if self._fresh:
            return (self.free if self.whole else self._first) - most
        size = self._fixed or max(self.smallest, self._attention - most)
        return min(size, self.free - most)  # less than `size` only if a full memory reads on

    def memory(
        self, read: int, ratios: Sequence[float] | None = None, *, last: bool = False
    ) -> tuple[int, ...]:
        """Return how many entries each layer keeps after ``read`` tokens, and begin the next step.

        ``read``: tokens of the current chunk. ``ratios``: retention ratio of each layer in the step
        before (eq. 2), used only by ``adaptive``. ``last``: the source ended with this chunk.
        Raises ValueError if more was read than is free.
        """
        if not 0 <= read <= self.free - max(self.held):
            raise ValueError(f"read {read} tokens, but only {self.free - max(self.held)} fit")
        planned = read == self.chunk() and self.name != "adaptive"
        present = [m + read for m in self.held]
        self._fresh = False
        self.seen += read
        self.done += 1
        if last:
            self.length, self._left, self._position = self.seen, 0, 1.0
        else:
            self._advance()
        goes_on = self.length is not None and self.seen < self.length <= self._room
        whole = min(present) == self.seen
        fits = max(present) <= self._limit or (whole and self.seen <= self._room)
        if (last and fits) or (goes_on and whole):
            # Nothing more is read, or the rest is expected to fit: no need to evict (InfiniPot
            # distills a pot only when it is about to overflow).
            self.held = tuple(present)
        elif self.name == "adaptive":
            self.held = self._adapt(self._target(linear), ratios, present, last)
        else:
            half = self.layers // 2
            lower, upper = self._target(self._lower), self._target(self._upper)
            self.held = tuple(
                # Held entries stay: a revised length may put the curve below them. Only a memory
                # that reads on after its end may hold more than m_max.
                min(max(lower if j < half else upper, m if last else min(m, self.m_max)), m + read)
                for j, m in enumerate(self.held)
            )
        if self._left == 0 or not planned:
            self._left = self._steps_left()
        return self.held

    def revise(self, length: int) -> None:
        """Solve the remaining steps again for a corrected estimate of the source's tokens."""
        self.length = max(length, self.seen)
        if self.seen == 0:
            self._plan()
        else:
            self._left = self._steps_left()

    def reopen(self, length: int | None) -> None:
        """Continue after ``last``, up to this expected length.

        If the whole source is still held, the schedule continues as if it had not ended: held
        entries count as part of the first chunk. Otherwise memory keeps its size, and chunks stay
        small.
        """
        self.length = None if length is None else max(length, self.seen)
        whole = min(self.held) == self.seen
        if whole and (self.whole or max(self.held) < self._first):
            self.done, self._fresh = 0, True
            self._plan()
        else:
            self._left = self._steps_left()

    def take_over(self, sizes: tuple[int, ...], seen: int, done: int) -> None:
        """Start at the end of a source of `seen` tokens that other readings read in `done` steps.

        `reopen` continues from there. Raises BudgetError if a layer holds too many entries.
        """
        if max(sizes) > self.free:
            raise BudgetError(f"{max(sizes)} entries do not fit the {self.free} that are free.")
        self.held, self.seen, self.done = sizes, seen, done
        self.length, self._left, self._position = seen, 0, 1.0
        self._fresh = min(sizes) == seen

    # Saving and resuming.

    def state(self) -> dict[str, Any]:
        """Return all that changes during a run, in types that JSON has."""
        return {name: getattr(self, name) for name in _STATE}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state` of a schedule with the same parameters.

        Raises ValueError if the state cannot be one of those.
        """
        if set(state) != set(_STATE):
            raise ValueError("the schedule has other fields than a schedule")
        sizes = sizes_in(state["held"], self.layers, self.free)
        ranges: dict[str, tuple[float, float]] = {
            **dict.fromkeys(("smallest", "_average", "_fixed", "_first"), (1, self.free)),
            **dict.fromkeys(("m_max", "_limit", "_m_0"), (0, min(self.free, self.final))),
            **dict.fromkeys(("length", "seen", "done", "_left"), (0, 2**53)),
            **dict.fromkeys(("_attention", "_uneven"), (0, self.free)),
            "_position": (0, 1),
        }
        for name, (least, most) in ranges.items():
            value = state[name]
            if value is None and (name == "length" or getattr(self, name) is None):
                continue
            kinds = (int, float) if name in ("_position", "_uneven") else (int,)
            if type(value) not in kinds or not least <= value <= most:
                raise ValueError(f"the schedule's {name} cannot be {value!r}")
        if type(state["_fresh"]) is not bool:
            raise ValueError(f"the schedule's _fresh cannot be {state['_fresh']!r}")
        for name in _STATE:
            setattr(self, name, state[name])
        self.held = sizes
        if self.chunk() < 0:
            raise ValueError(f"{max(sizes)} entries are more than its first chunk")

    # Solving.

    @property
    def _room(self) -> int:
        """Length in tokens of the longest source that may stay whole."""
        room = self.final if self._keep is None else min(self._keep, self.final)
        return min(room, self.free)

    def _check(self, chunk_size: int | None) -> None:
        if self.final < 1:
            raise BudgetError(
                f"The budget leaves {self.final:,} entries for memory, in addition to the prompt, "
                "the question and the answer; raise the budget or ask for a shorter answer."
            )
        if self.free <= self.smallest:
            # `smallest` is a part of a requested average: report the requested value.
            raise self._no_memory(chunk_size)
        if self._keep is not None and self._keep > self._limit:
            why = f"{self.free:,} entries are free, and a chunk takes at least {self.smallest:,}"
            if self._limit == self.final:
                why = f"question and answer leave {self.final:,} entries"
            remedy = "" if self._widest else " For more, raise the budget."
            raise BudgetError(
                f"Memory cannot keep {self._keep:,} entries. Keep at most {self._limit:,}: "
                f"{why}.{remedy}"
            )

    def _no_memory(self, chunk_size: int | None) -> BudgetError:
        size = f"smallest chunk of {self.smallest:,}"
        remedy = "raise the budget"
        if chunk_size is not None:
            size = f"chunk size of {chunk_size:,}"
            remedy = f"use one below {self.free:,}, or {remedy}"
        return BudgetError(
            f"{self.free:,} entries are free for memory and chunk together, and the {size} "
            f"leaves no memory; {remedy}."
        )

    def _steps_of_average(self, c: int) -> int:
        assert self.length is not None
        return max(1, -(-self.length // c))

    def _met(self, m_max: int, n: int) -> tuple[float, float]:
        """Return m-hat and memory before the last of n chunks, for memory that ends at m_max."""
        if n == 1:
            return 0.0, 0.0
        m_0 = self._first_memory(m_max, n)
        mean = m_0 + (m_max - m_0) * mean_on_grid(self._upper, 0.0, n - 1)
        return mean, m_0 + (m_max - m_0) * self._upper((n - 2) / (n - 1))

    def _first_memory(self, m_max: int, n: int) -> int:
        return min(m_max, max(self._least, m_max // n) if self._start is None else self._start)

    def _settle_average(self, c: int, n: int) -> None:
        """Set m_max and the smallest chunk by eqs. 5-6; raise BudgetError if there are none."""

        def fits(m_max: int, least: int) -> bool:
            mean, last = self._met(m_max, n)
            return c + mean <= self.free and c + mean - last >= least

        if self._keep is None:
            most = first_true(lambda m: m > self._limit or not fits(m, self.smallest)) - 1
            self.m_max = max(1, most)
        mean, last = self._met(self.m_max, n)
        if c + mean > self.free:
            if self._keep is None:
                raise self._no_memory(c)
            raise BudgetError(
                f"An average chunk of {c:,} tokens and a mean memory of {mean:,.0f} entries take "
                f"{c + mean:,.0f}, and {self.free:,} entries are free; use a smaller chunk size, "
                "keep less, or raise the budget."
            )
        if c + mean - last < 1:
            most = first_true(lambda m: m >= self.m_max or not fits(m, 1)) - 1
            raise BudgetError(
                f"Keeping {self.m_max} entries with an average chunk of {c} leaves the last chunk "
                f"less than one token (eq. 6); with {self.name} growth keep at most {most}, use a "
                "larger chunk size, or --chunk fixed."
            )
        self.smallest = max(1, min(self.smallest, int(c + mean - last)))

    def _plan(self) -> None:
        """Solve all steps, before anything is read."""
        self._attention = self.free
        self._position = 0.0  # place of memory on the growth curve
        self._first = self._fixed or self._average or self.free
        if self.length is None:
            start = self._least if self._start is None else self._start
            self._m_0, self._left = min(self.m_max, start), 0
            return
        if self.whole or self.length <= self._first:
            n = 1
        elif self._fixed:
            n = -(-self.length // self._fixed)
        elif self._average:
            n = self._steps_of_average(self._average)
            self._attention = min(self.free, math.ceil(self._average + self._met(self.m_max, n)[0]))
        else:
            rest = self.length - self.free
            n = 1 + first_true(lambda k: k * (self.free - self._met(self.m_max, k + 1)[0]) >= rest)
        self._m_0 = self._first_memory(self.m_max, n)
        self._left = n

    def _steps_left(self) -> int:
        """Return the minimum number of steps that read the rest of the expected length."""
        rest = 0 if self.length is None else self.length - self.seen
        if self._average:
            # Eqs. 4-6 hold only for the planned length; beyond it chunks would become too small.
            roomy = self.m_max + max(self.smallest, self._average // CHUNK_SHARE)
            self._attention = max(self._attention, min(self.free, roomy))
        if rest <= 0:
            return 0
        if self._fixed:
            return -(-rest // self._fixed)

        def reaches(k: int) -> bool:
            curve = mean_on_grid(self._upper, self._position, k)
            mean = (self._m_0 + (self.m_max - self._m_0) * curve) * self._uneven
            return k * max(self.smallest, self._attention - mean) >= rest

        return first_true(reaches)

    def _advance(self) -> None:
        """Move along the growth curve by one step."""
        if self.length is None:
            self._position = self.seen / (self.seen + OPEN_HALFWAY * self.free)
        elif self._left <= 1 or self.seen >= self.length:
            self._position, self._left = 1.0, 0
        else:
            self._left -= 1
            if self.done > 1:
                self._position += (1 - self._position) / (self._left + 1)

    def _target(self, curve: Curve) -> int:
        size = self._m_0 + (self.m_max - self._m_0) * curve(self._position)
        if self.length is not None:
            # Memory grows at most by the tokens that still come. Make it large enough to end full,
            # but leave room to read the rest in one chunk.
            rest = max(0, self.length - self.seen)
            full = min(self.m_max, self._attention) - rest
            size = max(size, min(full, self._most_between))
        return int(size + 1e-6)

    @property
    def _most_between(self) -> int:
        """Maximum number of entries in a layer if another chunk follows."""
        return min(self.final, self._attention - self.smallest)

    def _adapt(
        self, base: int, ratios: Sequence[float] | None, present: Sequence[int], last: bool
    ) -> tuple[int, ...]:
        """Return the sizes of eq. 3 under a ceiling; others get what full layers cannot take."""
        if ratios is None or sum(ratios) < LEAST_SUM:
            ratios = [1.0] * self.layers
        least = ADAPTIVE_FLOOR * sum(ratios) / self.layers
        shares = [max(p, least) for p in ratios]
        ceiling = self.final
        if not last:
            ceiling = self._most_between
            if self._fixed is None:
                chunk = ADAPTIVE_CHUNK * (self._attention - base)
                ceiling = min(ceiling, int(self._attention - chunk))
        sizes = [min(p, ceiling) for p in present]
        open_layers, rest = set(range(self.layers)), self.layers * base
        while open_layers:
            scale = rest / sum(shares[j] for j in open_layers)
            full = {j for j in open_layers if shares[j] * scale >= sizes[j]}
            if not full:
                for j in open_layers:
                    sizes[j] = int(shares[j] * scale + 1e-6)
                break
            open_layers -= full
            rest -= sum(sizes[j] for j in full)
        self._uneven = max(sizes) / max(1, base)
        return tuple(sizes)


_STATE = (
    "length", "seen", "done", "held", "smallest", "m_max", "_average", "_limit", "_fixed",
    "_uneven", "_fresh", "_attention", "_position", "_first", "_m_0", "_left",
)  # fmt: skip


def mean_on_grid(curve: Curve, t: float, k: int) -> float:
    """Return the mean of a curve at t, t+d, ..., 1-d with d = (1-t)/k, without a loop over k."""
    d = (1 - t) / k
    if curve is flat or d == 0:
        return curve(t)
    if curve is linear:
        return t + d * (k - 1) / 2
    if curve is square:
        return t * t + t * d * (k - 1) + d * d * (k - 1) * (2 * k - 1) / 6
    # Square root: sum the first points one by one, the rest by Euler-Maclaurin (error below 1e-5).
    head = min(k, 16)
    total = sum(math.sqrt(t + j * d) for j in range(head))
    if k > head:
        a, b = t / d + head, t / d + k
        rest = (b * math.sqrt(b) - a * math.sqrt(a)) * 2 / 3
        rest -= (math.sqrt(b) - math.sqrt(a)) / 2
        rest += (1 / math.sqrt(b) - 1 / math.sqrt(a)) / 24
        total += rest * math.sqrt(d)
    return total / k


def first_true(enough: Callable[[int], bool]) -> int:
    """Return the smallest integer >= 1 for which ``enough`` (monotone) is true."""
    high = 1
    while not enough(high):
        high *= 2
    low = high // 2 + 1
    return low + bisect_left(range(low, high), True, key=enough)


def sizes_in(value: Any, layers: int, most: int) -> tuple[int, ...]:
    """Return the entries of each layer from JSON. Raise ValueError if they are impossible."""
    if not isinstance(value, list) or len(value) != layers:
        raise ValueError(f"the schedule is not for {layers} layers")
    if not all(type(m) is int and 0 <= m <= most for m in value):
        raise ValueError(f"a layer holds more than the {most} entries that there are")
    return tuple(value)


def _smallest_chunk(free: int, chunk_size: int | None, average: int | None, is_open: bool) -> int:
    if average:
        return max(1, average // CHUNK_SHARE)
    if chunk_size:
        return chunk_size
    share = OPEN_CHUNK_SHARE if is_open else CHUNK_SHARE
    return max(SMALLEST_CHUNK, -(-free // share))


class NoEviction:
    """The schedule of a method that evicts nothing: it reads pieces until nothing more fits."""

    PIECE = 2048
    """Tokens per forward pass; more would only cost activation memory."""
    first = True
    """Nothing is ever evicted, so every chunk is like a first one."""
    steps: int | None = None

    def __init__(self, layers: int, room: int, length: int | None) -> None:
        self.room = self.m_max = room
        self.held: tuple[int, ...] = (0,) * layers
        self.length = length

    @property
    def whole(self) -> bool:
        """Whether the source is expected to fit."""
        return self.length is not None and self.length <= self.room

    def chunk(self) -> int:
        """Return how many tokens to read now; 0 if nothing more fits."""
        return min(self.PIECE, self.room - max(self.held))

    def memory(
        self, read: int, ratios: Sequence[float] | None = None, *, last: bool = False
    ) -> tuple[int, ...]:
        """Return the entries of each layer: all that is held, and the new tokens."""
        self.held = tuple(m + read for m in self.held)
        return self.held

    def revise(self, length: int | None) -> None:
        """Note an estimate; no size depends on it."""
        self.length = length

    reopen = revise

    def state(self) -> dict[str, Any]:
        """Return all that changes during a run."""
        return {"held": self.held}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state`. Raise ValueError if it is impossible."""
        self.held = sizes_in(state["held"], len(self.held), self.room)
