"""The cascade, compared with algorithm 2 of its paper and a slow reference for runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import Memory
from torch import Tensor

from kvstream.methods.cascade import Cascade, split
from kvstream.methods.recency import Streaming


class Slow:
    """Algorithm 2 for one head, one token at a time. `score` is fixed during a chunk.

    `literal` selects the printed algorithm: in a sub-cache that is full and not accepting, tokens
    contest (and one is lost) even while a deeper sub-cache has room. Without `literal` the
    sub-cache takes the token then. With runs of one token the rest is as printed.
    """

    def __init__(self, parts: int, run: int = 1, *, literal: bool = False) -> None:
        self.caches: list[list[int]] = [[] for _ in range(parts)]
        self.offered = [0] * parts
        self.won = [False] * parts
        self.room = [0] * parts
        self.run, self.literal = run, literal

    @property
    def kept(self) -> list[int]:
        return [token for cache in reversed(self.caches) for token in cache]

    def resize(self, size: int, score: Tensor) -> None:
        self.room = split(size, len(self.caches))
        for part, cache in enumerate(self.caches):
            while len(cache) > self.room[part]:
                self.offer(cache.pop(0), score, part + 1)

    def offer(self, token: int, score: Tensor, first: int = 0) -> None:
        for part in range(first, len(self.caches)):
            cache, room = self.caches[part], self.room[part]
            full = len(cache) >= room
            turn = self.offered[part] % (2 * self.run)
            accepting = part == 0 or turn < self.run
            self.offered[part] += 1
            if not self.literal and not accepting:
                free = zip(self.caches[part:], self.room[part:], strict=True)
                accepting = any(len(c) < r for c, r in free)
                if accepting:  # no contest; the rest of its run loses
                    self.won[part] = False
            if room == 0:
                return
            if accepting or not full:
                cache.append(token)
                if not full:
                    return
                token = cache.pop(0)
            else:
                if turn == self.run:  # the first of its run; the rest follows
                    comes = [token, *self.caches[part - 1][: self.run - 1]]
                    self.won[part] = bool(score[comes].mean() > score[cache[-self.run :]].mean())
                if self.won[part]:
                    cache.pop(-self.run)
                    cache.append(token)
                return


def run(method: Cascade, chunks: list[int], sizes: list[int], *, levels: int, seed: int) -> None:
    """Drive the method and one slow reference per head side by side, with the same scores."""
    memory = Memory(method, layers=2, heads=2)
    slow = [Slow(method.cascades, method.run) for _ in range(4)]
    draw = torch.Generator().manual_seed(seed)
    for chunk, size in zip(chunks, sizes, strict=True):
        step = memory.read(chunk, accumulated_attention=None)
        # With few levels ties are frequent. Scores change with each chunk, as averages do.
        score = torch.randint(levels, (2, 2, memory.seen), generator=draw).float()
        memory.state["ema"] = score.gather(-1, memory.origin.long())
        step.state = memory.state
        before = memory.size
        memory.cut(step, size)
        if before <= size:
            continue  # everything fits, so the method was not called
        for head, reference in enumerate(slow):
            flat = score.flatten(0, 1)[head]
            reference.resize(size, flat)
            for token in range(getattr(reference, "at", 0), memory.seen):
                reference.offer(token, flat)
            reference.at = memory.seen  # type: ignore[attr-defined]
            assert memory.origin.flatten(0, 1)[head].tolist() == reference.kept


def reachable(sizes: list[int], chunks: list[int], held: int = 0) -> list[int]:
    """Return the sizes, reduced where too few tokens came to fill them."""
    wanted = []
    for chunk, size in zip(chunks, sizes, strict=True):
        held = min(held + chunk, size)
        wanted.append(held)
    return wanted


def paper(cascades: int, **settings: Any) -> Cascade:
    """Return a cascade with the settings of the paper."""
    return Cascade(cascades=cascades, run=1, contest="attention", **settings)


@given(
    cascades=st.integers(1, 8),
    chunks=st.lists(st.integers(1, 41), min_size=1, max_size=12),
    size=st.integers(1, 60),
    levels=st.sampled_from([1, 2, 3, 1000]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=50)
def test_equals_algorithm_2_at_a_fixed_size(
    cascades: int, chunks: list[int], size: int, levels: int, seed: int
) -> None:
    run(paper(cascades), chunks, [size] * len(chunks), levels=levels, seed=seed)


@given(
    cascades=st.integers(1, 8),
    steps=st.lists(st.tuples(st.integers(1, 41), st.integers(1, 60)), min_size=1, max_size=12),
    growing=st.booleans(),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=50)
def test_equals_algorithm_2_while_sizes_change(
    cascades: int, steps: list[tuple[int, int]], growing: bool, seed: int
) -> None:
    sizes = [size for _, size in steps]
    if growing:
        sizes.sort()
    # No size exceeds the number of tokens, so memory is full after every cut.
    wanted = reachable(sizes, [chunk for chunk, _ in steps])
    run(paper(cascades), [c for c, _ in steps], wanted, levels=5, seed=seed)


@given(
    cascades=st.integers(2, 4),
    length=st.integers(2, 5),
    steps=st.lists(st.tuples(st.integers(1, 41), st.integers(0, 20)), min_size=1, max_size=14),
    levels=st.sampled_from([1, 2, 1000]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=100)
def test_runs_pass_as_one(
    cascades: int, length: int, steps: list[tuple[int, int]], levels: int, seed: int
) -> None:
    # Each sub-cache needs room for two runs. Otherwise a run is cut before its contest.
    least = 2 * length * cascades
    first, chunks = least + 40, [chunk for chunk, _ in steps]
    sizes = [least + more for _, more in steps]
    run(
        replace(paper(cascades), run=length),
        [first, *chunks],
        [sizes[0], *reachable(sizes, chunks, sizes[0])],
        levels=levels,
        seed=seed,
    )


def test_layers_with_different_pasts_choose_as_each_alone_does() -> None:
    """Under an adaptive schedule the sizes of layers differ, and can become equal again."""
    first, second = (Memory(paper(2), layers=1, heads=2) for _ in range(2))
    steps = []
    for memory, size, chunk in ((first, 12, 10), (second, 9, 13)):
        for count in (30, chunk):
            n = memory.size + count
            draw = torch.Generator().manual_seed(n)
            step = memory.read(count, accumulated_attention=torch.rand(1, 2, n, generator=draw))
            if count == 30:
                memory.cut(step, size)
        steps.append(step)
    both = Memory(paper(2), layers=2, heads=2)
    both.origin = torch.cat((first.origin, second.origin))
    both.state = {"ema": torch.cat((first.state["ema"], second.state["ema"]))}
    both.head_state = {
        name: torch.cat((tensor, second.head_state[name]))
        for name, tensor in first.head_state.items()
    }
    together = both.method.select(both.step(0), 8)
    alone = [m.method.select(s, 8) for m, s in zip((first, second), steps, strict=True)]
    assert torch.equal(together, torch.cat(alone))


def test_full_sub_caches_do_what_is_printed() -> None:
    """Once all sub-caches are full, our reference equals the printed algorithm."""
    ours, printed = Slow(4), Slow(4, literal=True)
    score = torch.rand(900, generator=torch.Generator().manual_seed(1))
    ours.resize(40, score)
    for token in range(100):
        ours.offer(token, score)
    printed.caches = [list(cache) for cache in ours.caches]
    printed.offered, printed.room = list(ours.offered), list(ours.room)
    for token in range(100, 900):
        ours.offer(token, score)
        printed.offer(token, score)
        assert ours.kept == printed.kept


def test_one_sub_cache_is_streaming() -> None:
    one, newest = Memory(Cascade(cascades=1)), Memory(Streaming())
    for chunk, size in ((7, 20), (31, 20), (1, 20), (12, 23), (40, 23), (3, 9)):
        for memory in (one, newest):
            memory.cut(memory.read(chunk), size)
        assert torch.equal(one.origin, newest.origin)
    assert not one.state  # it measures nothing


def test_span_is_that_of_equation_4() -> None:
    for cascades, size in ((1, 64), (2, 64), (3, 96), (4, 128), (6, 192), (8, 256)):
        memory = Memory(paper(cascades), layers=1, heads=1)
        expected = size / cascades * sum(2**i for i in range(cascades))
        while memory.seen < 2 * expected + 2 * size:
            memory.cut(
                memory.read(37, accumulated_attention=torch.rand(1, 1, memory.size + 37)), size
            )
        span = memory.seen - int(memory.origin.min())
        # In every sub-cache a winner can be the younger of a pair, and a pair can still be open.
        assert abs(span - expected) <= 2**cascades


def test_average_of_attention_is_that_of_every_query() -> None:
    """Chunk sums with decay give the same moving average as one step per query."""
    gamma, size = 0.9, 12
    memory = Memory(paper(2, gamma=gamma), layers=1, heads=1)
    draw = torch.Generator().manual_seed(3)
    average = torch.zeros(0, dtype=torch.float64)
    for chunk in (5, 9, 1, 14):
        held = memory.size
        attention = torch.rand(chunk, held + chunk, generator=draw).double()
        attention = attention.tril(held)  # a query sees memory and earlier tokens
        average = torch.cat((average, torch.zeros(chunk, dtype=torch.float64)))
        for row in attention:
            average = gamma * average + (1 - gamma) * row
        ages = gamma ** torch.arange(chunk - 1, -1, -1, dtype=torch.float64)
        columns = (attention * ages[:, None]).sum(0).float()[None, None]
        step = memory.read(chunk, accumulated_attention=columns)
        torch.testing.assert_close(memory.state["ema"][0, 0].double(), average)
        chosen = memory.cut(step, min(size, memory.size))
        average = average[chosen[0, 0]]


def test_heads_may_decide_together() -> None:
    for reduce in ("max", "mean"):
        method = paper(3, heads="shared", reduce=reduce)
        memory, alone = Memory(method), Memory(paper(3))
        draw = torch.Generator().manual_seed(5)
        for _ in range(12):
            columns = torch.rand(2, 3, memory.size + 11, generator=draw)
            for each in (memory, alone):
                each.cut(each.read(11, accumulated_attention=columns.clone()), min(30, each.size))
        assert (memory.origin == memory.origin[:, :1]).all()
        assert not (alone.origin == alone.origin[:, :1]).all()


def test_without_contests_a_fixed_pattern_remains() -> None:
    memory = Memory(Cascade(cascades=3, run=1, contest="none"))
    assert not memory.method.evidence().accumulated_attention
    for _ in range(20):
        memory.cut(memory.read(12), min(24, memory.size))
    assert (memory.origin == memory.origin[:1, :1]).all()
    oldest, middle, newest = memory.origin[0, 0].split(8)
    assert newest.diff().tolist() == [1] * 7
    assert middle.diff().tolist() == [2] * 7
    assert oldest.diff().tolist() == [4] * 7


def test_sinks_take_a_sixteenth_of_a_small_budget() -> None:
    assert Cascade().sized(4096).sinks == 64
    assert Cascade().sized(512).sinks == 32


def test_runs_stay_whole() -> None:
    memory = Memory(Cascade(cascades=3, run=4))
    assert memory.method.needs_keys
    assert not memory.method.evidence().accumulated_attention
    for _ in range(40):
        memory.cut(memory.read(12), min(96, memory.size))
    deeper = memory.origin[..., :64].unflatten(-1, (16, 4))
    assert (deeper.diff(dim=-1) == 1).all()
    assert (deeper[..., 0] % 4 == 0).all()
    assert not (memory.origin == memory.origin[:1, :1]).all()  # heads decide independently


def test_the_run_that_is_unlike_the_rest_stays() -> None:
    memory = Memory(Cascade(cascades=2, run=3), layers=1, heads=1)
    first = memory.read(60)
    memory.keys[:] = torch.eye(memory.width)[0]  # all keys are alike, so contesting runs lose
    memory.keys[..., 22, 0] = -1.0  # except one key
    memory.cut(first, 36)
    kept = memory.origin[0, 0].tolist()
    # 0 to 17 fill the second sub-cache. Then 21 to 23 contest with 18 to 20, and so on.
    assert kept[:18] == [*range(12, 18), 21, 22, 23, 24, 25, 26, 30, 31, 32, 36, 37, 38]
    assert kept[18:] == [*range(42, 60)]


@given(
    cascades=st.integers(1, 5),
    length=st.integers(1, 40),
    contest=st.sampled_from(["keys", "attention", "none"]),
    heads=st.sampled_from(["independent", "shared"]),
    steps=st.lists(st.tuples(st.integers(1, 41), st.integers(1, 60)), min_size=1, max_size=10),
)
@settings(max_examples=80)
def test_any_size_is_kept(
    cascades: int, length: int, contest: str, heads: str, steps: list[tuple[int, int]]
) -> None:
    """Sizes may change, and be too small for two runs. `Memory.cut` checks the selection."""
    memory = Memory(Cascade(cascades=cascades, run=length, contest=contest, heads=heads))
    for chunk, size in steps:
        columns = torch.rand(2, 3, memory.size + chunk) if memory.state else None
        memory.cut(
            memory.read(chunk, accumulated_attention=columns), min(size, memory.size + chunk)
        )
