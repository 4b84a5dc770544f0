"""InfiniPot's own choices: shares of memory for novelty, and for what all heads agree on."""

from __future__ import annotations

import pytest
import torch
from memory import Memory

from kvstream.methods.infinipot import InfiniPot
from kvstream.methods.scoring import pool, together


def test_all_heads_hold_what_one_of_them_sees() -> None:
    """One head of one layer looks at an answer; the others look at noise."""
    rng = torch.Generator().manual_seed(1)
    rows = torch.rand(2, 3, 400, generator=rng) * 0.02
    rows[1, 2, 100:110] = 0.5
    held = {}
    for shared in (0.0, 0.25):
        memory = Memory(InfiniPot(shared=shared, pool=7), layers=2, heads=3)
        memory.cut(memory.read(400, rows=rows), 120)
        held[shared] = [
            set(range(100, 110)) <= set(head.tolist()) for head in memory.origin.flatten(0, 1)
        ]
    assert held[0.0] == [False] * 5 + [True]
    assert held[0.25] == [True] * 6


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("shared", [0.0, 0.25, 1.0])
def test_each_share_has_its_entries(alpha: float, shared: float) -> None:
    """What is shared is the same in all heads, and no share is taken from the newest."""
    rng = torch.Generator().manual_seed(2)
    rows, loss = torch.rand(2, 3, 300, generator=rng), torch.rand(300, generator=rng)
    method = InfiniPot(alpha=alpha, shared=shared, pool=3, recent=20)
    memory = Memory(method, layers=2, heads=3)
    memory.cut(memory.read(300, rows=rows, loss=loss if alpha else None), 120)
    held = [set(head.tolist()) for head in memory.origin.flatten(0, 1)]
    assert all(len(h) == 120 and set(range(280, 300)) <= h for h in held)
    ordinals = torch.arange(300).int().expand(2, 3, 300)
    agreed = together(pool(rows, ordinals, 3), ordinals)[0, 0, :280]
    first = set(agreed.topk(int(shared * 100)).indices.tolist())
    if alpha + shared <= 1:
        assert all(first <= h for h in held)
