"""The baselines, each compared with a short, slow reference."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from memory import Memory
from models import bounded, tokens
from torch import Tensor

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.methods.append import Append
from kvstream.methods.base import Method
from kvstream.methods.h2o import H2O
from kvstream.methods.keydiff import KeyDiff
from kvstream.methods.registry import available
from kvstream.methods.sirllm import SirLLM
from kvstream.methods.snapkv import PyramidKV, SnapKV
from kvstream.methods.tova import TOVA
from kvstream.settings import RunSettings

DRAW = torch.Generator().manual_seed(0)


def draw(memory: Memory, count: int) -> Tensor:
    """Draw random evidence for the held entries and `count` new tokens."""
    return torch.rand(*memory.shape, memory.size + count, generator=DRAW)


def names(memory: Memory) -> list[list[int]]:
    """Return the ordinals that each head holds."""
    return memory.origin.flatten(0, 1).tolist()


def top(scores: Tensor, keep: int, recent: int = 0) -> list[list[int]]:
    """Select per head the newest `recent` entries and the best of the rest, with slow loops."""
    found = []
    for head in scores.flatten(0, 1).tolist():
        n = len(head)
        rest = sorted(range(n - recent), key=lambda i: -head[i])[: keep - recent]
        found.append(sorted([*rest, *range(n - recent, n)]))
    return found


def test_h2o_adds_up_attention_over_all_chunks() -> None:
    memory = Memory(H2O(recent=0.25))
    total = torch.zeros(*memory.shape, 0)
    for count, size in ((30, 20), (13, 22), (1, 22), (40, 22)):
        columns = draw(memory, count)
        total = torch.cat((total, torch.zeros(*memory.shape, count)), -1) + columns
        chosen = memory.cut(memory.read(count, accumulated_attention=columns), size)
        assert chosen.flatten(0, 1).tolist() == top(total, size, recent=int(0.25 * size))
        total = total.gather(-1, chosen)
        torch.testing.assert_close(memory.state["attention"], total)


def test_attention_counts_from_the_first_chunk_on_though_nothing_leaves() -> None:
    text = tokens(60, seed=1)
    sums = []
    for cuts in ((60,), (25, 20, 15)):
        reader = Reader(
            bounded("llama"), H2O(), RunSettings(), BudgetSplit(256, 4, 0, 4, 4), tokens(4), (), 90
        )
        for cut in cuts:
            reader.step(Chunk(text[reader.seen :][:cut], reader.seen), last=False)
        sums.append([s.state["attention"][:, : s.used] for s in reader.compressible])
    for once, pieces in zip(*sums, strict=True):
        assert once.sum() > 0
        torch.testing.assert_close(once, pieces)


def test_what_was_not_measured_counts_as_nothing() -> None:
    for method in (H2O(), SirLLM()):
        memory = Memory(method)
        memory.read(8)
        assert all((t == 0).all() for t in memory.state.values())


def test_tova_keeps_what_the_last_token_attends_to_in_all_heads_alike() -> None:
    together, alone = Memory(TOVA()), Memory(TOVA(heads="independent"))
    for count, size in ((30, 20), (13, 22)):
        rows = draw(together, count)
        shared = rows.mean(1, keepdim=True).expand_as(rows)
        chosen = together.cut(together.read(count, window_attention=rows), size)
        assert chosen.flatten(0, 1).tolist() == top(shared, size, recent=1)
        assert (together.origin == together.origin[:, :1]).all()
        chosen = alone.cut(alone.read(count, window_attention=rows), size)
        assert chosen.flatten(0, 1).tolist() == top(rows, size, recent=1)


@pytest.mark.parametrize("centered", ["false", "true"])
def test_keydiff_keeps_what_is_least_like_the_mean_key(centered: str) -> None:
    memory = Memory(KeyDiff(centered=centered))
    for count, size in ((30, 20), (13, 22)):
        step = memory.read(count)
        keys = memory.keys.double()
        if centered == "true":
            keys = keys - keys.mean(-2, keepdim=True)
        unit = keys / keys.norm(dim=-1, keepdim=True)
        anchor = unit.mean(-2, keepdim=True)
        cosine = torch.nn.functional.cosine_similarity(keys, anchor, dim=-1)
        assert memory.cut(step, size).flatten(0, 1).tolist() == top(-cosine, size)


@pytest.mark.parametrize(("family", "bias"), [("qwen2", True), ("llama", False), ("qwen3", False)])
def test_keydiff_centers_the_keys_of_models_that_add_a_bias(family: str, bias: bool) -> None:
    assert bounded(family).facts.key_bias == bias
    fitted = KeyDiff(pool=15, centered="biased").fitted(bounded(family).facts)
    assert fitted == KeyDiff(pool=15, centered="biased" if bias else "false")
    assert KeyDiff(centered="true").fitted(bounded(family).facts).centered == "true"


def test_sirllm_keeps_the_least_expected_and_lets_the_old_fade() -> None:
    memory = Memory(SirLLM(decay=0.5, recent=3))
    entropy = torch.zeros(0)
    for count, size in ((30, 20), (13, 22), (25, 22)):
        loss = torch.rand(count, generator=DRAW)
        entropy = torch.cat((entropy * 0.5, loss))
        chosen = memory.cut(memory.read(count, loss=loss), size)
        assert chosen[0, 0].tolist() == top(entropy[None, None], size, recent=3)[0]
        assert (memory.origin == memory.origin[:1, :1]).all()
        entropy = entropy[chosen[0, 0]]


def test_append_never_touches_what_it_holds() -> None:
    memory = Memory(Append(pool=1))
    held: list[list[int]] = [[] for _ in range(6)]
    for count, size in ((30, 10), (13, 14), (40, 14), (25, 31)):
        rows = draw(memory, count)
        new = top(rows[..., -count:], size - len(held[0]))
        first = memory.seen
        memory.cut(memory.read(count, window_attention=rows), size)
        held = [old + [first + i for i in added] for old, added in zip(held, new, strict=True)]
        assert names(memory) == held


def test_append_keeps_the_newest_of_each_chunk_where_it_is_asked_to() -> None:
    memory = Memory(Append(pool=1, recent=3))
    for count, size in ((30, 10), (40, 18)):
        rows = draw(memory, count)
        new = top(rows[..., -count:], size - memory.size, recent=3)
        first = memory.seen
        memory.cut(memory.read(count, window_attention=rows), size)
        added = [[first + i for i in head] for head in new]
        assert [head[-len(added[0]) :] for head in names(memory)] == added


def test_append_gives_way_where_it_must() -> None:
    memory = Memory(Append(pool=1))
    memory.cut(memory.read(30, window_attention=draw(memory, 30)), 20)
    rows = draw(memory, 0)
    chosen = memory.cut(memory.step(0, window_attention=rows), 12)
    assert chosen.flatten(0, 1).tolist() == top(rows, 12)


def test_append_under_a_growing_memory_is_spread_and_under_a_fixed_one_full_at_once() -> None:
    """In the engine a chunk may append as many entries as memory grows by."""
    oldest = {}
    for growth in ("linear", "fixed"):
        method = Append()
        run = RunSettings(schedule=growth, chunk="fixed", chunk_size=64, keep=120)
        read = Reader(
            bounded("llama"), method, run, BudgetSplit(256, 4, 0, 4, 4), tokens(4), (), 900
        )
        text, before = tokens(900, seed=1), None
        while read.seen < 900:
            piece = Chunk(text[read.seen :][:64], read.seen)
            read.step(piece, last=False)  # the last step would keep what fits
            store = read.compressible[0]
            held = store.origin[:, : store.used].clone()
            if before is not None:
                assert torch.equal(held[:, : before.shape[1]], before)
            before = held
        assert before is not None
        oldest[growth] = int(before.max())
    assert oldest["linear"] > 800
    assert oldest["fixed"] < 200


@pytest.mark.parametrize("layers", [1, 2, 6, 32])
@pytest.mark.parametrize("size", [5, 40, 1024])
def test_pyramid_falls_in_equal_steps_and_never_passes_what_is_allowed(
    layers: int, size: int
) -> None:
    method = PyramidKV(beta=20)
    sizes = method.layer_sizes([size] * layers)
    assert sizes[0] == size == max(sizes)
    assert list(sizes) == sorted(sizes, reverse=True)
    least = min(size, method.sinks + method.window)
    assert min(sizes) >= least
    if size == 1024 and layers > 1:
        free = [s for s in sizes if s > least]
        drops = [a - b for a, b in pairwise(free)]
        assert max(drops, default=0) - min(drops, default=0) <= 1
        # From the top layer to the bottom, as in the paper: m / beta to 2 m - m / beta.
        assert sizes[-1] == pytest.approx(max(least, size / 39), abs=1)
    assert PyramidKV(beta=1).layer_sizes([size] * layers) == (size,) * layers


@pytest.mark.parametrize("method", [SnapKV(window=5), PyramidKV(window=5), Append(window=5)])
def test_the_window_whose_attention_counts_is_the_one_that_was_asked_for(method: Method) -> None:
    assert method.evidence().window_attention == 5


@pytest.mark.parametrize("sinks", [4, 40])
def test_the_smallest_layer_of_a_pyramid_has_room_for_its_sinks(sinks: int) -> None:
    """Sinks may take at most three quarters of a layer."""
    method = PyramidKV(sinks=sinks)
    least = min(method.layer_sizes([900] * 6))
    assert least * 3 // 4 >= sinks
    assert least < 300


def test_pyramid_in_the_engine_holds_less_in_upper_layers_and_all_while_all_fits() -> None:
    run = RunSettings(schedule="fixed")
    reader = Reader(
        bounded("smollm3"), PyramidKV(), run, BudgetSplit(256, 4, 0, 4, 4), tokens(4), (), 900
    )
    text = tokens(900, seed=1)
    while reader.seen < 900:
        fits = reader.schedule.held[0] == reader.seen
        piece = Chunk(text[reader.seen :][: reader.schedule.chunk()], reader.seen)
        report = reader.step(piece, last=reader.seen + len(piece.ids) == 900)
        if fits and report.memory[0] == reader.seen:
            assert len(set(report.memory)) == 1
    assert report.memory[0] > report.memory[1] > report.memory[2] > report.memory[3] >= 12


def test_pyramid_chooses_as_snapkv_does() -> None:
    pyramid, snap = Memory(PyramidKV(window=32)), Memory(SnapKV())
    for count, size in ((60, 40), (13, 42)):
        rows = draw(snap, count)
        for memory in (pyramid, snap):
            memory.cut(memory.read(count, window_attention=rows), size)
        assert torch.equal(pyramid.origin, snap.origin)


# Left out: foresight, whose scores come from a trained network and not from attention.
POOLING = [
    name
    for name, method in available().items()
    if hasattr(method(), "pool") and name != "foresight"
]


@pytest.mark.parametrize("name", POOLING)
def test_pooling_keeps_the_neighbors_of_what_stands_out(name: str) -> None:
    """One token stands out. With a wide pool its neighbors stay too."""
    n, at, keep = 200, 60, 80
    held = {}
    for width in (1, 9):
        memory = Memory(available()[name](pool=width), layers=1, heads=1)
        peak = torch.full((1, 1, n), 0.1)
        peak[..., at] = 5.0
        step = memory.read(n, window_attention=peak, accumulated_attention=peak, loss=peak[0, 0])
        memory.keys = torch.ones(1, 1, n, memory.width)
        memory.keys[:, :, at] *= -1
        memory.cut(step, keep)
        held[width] = set(memory.origin[0, 0].tolist())
    assert at in held[1]
    assert set(range(at - 4, at + 5)) <= held[9]
