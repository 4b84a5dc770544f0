"""Every method reads a million tokens without growth of the process."""

from __future__ import annotations

import resource
import sys
from typing import Any

import pytest
from models import FAMILIES, fresh, tokens

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.methods.bumblebee import BumbleBee
from kvstream.methods.edgeinfinite import EdgeInfinite
from kvstream.methods.registry import BUILT_IN
from kvstream.model.probe import bound
from kvstream.settings import RunSettings
from kvstream_lab.gates import train as gate

TOKENS, SETTLED = 10**6, 10**5
MARGIN = 4 * 2**20
"""Bytes that the process may grow after the first tenth: allocators, tables, caches."""
EVICTING = [method.name for method in BUILT_IN if method.evicts]


def rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("name", EVICTING)
def test_a_million_tokens_take_no_more_memory_than_a_tenth_of_them(name: str) -> None:
    """The length is unknown. The model is the smallest, because its size does not affect growth."""
    smaller = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model = bound(fresh(FAMILIES["llama"].config(**smaller)), name)
    method: Any = next(m for m in BUILT_IN if m.name == name)()
    if isinstance(method, BumbleBee):
        method = BumbleBee(algorithm="fast")
    if isinstance(method, EdgeInfinite):
        method = gate.with_gates(method, gate.new_gates(model.facts, gate.GateRecipe()))
    sizes = BudgetSplit(2000, 4, 8, 8, 16)
    reader = Reader(model, method, RunSettings(), sizes, tokens(4), [tokens(8)], None)
    text, settled = tokens(4096, seed=1), 0
    while reader.seen < TOKENS:
        room = reader.schedule.chunk()
        at = reader.seen % (len(text) - room)
        reader.step(Chunk(text[at : at + room], reader.seen), last=False)
        if not settled and reader.seen >= SETTLED:
            settled = rss()
    assert reader.cache.peak.tokens <= sizes.budget
    assert reader.cache.peak.bytes <= reader.cache.capacity_bytes
    grown = rss() - settled
    print(f"{name}: {grown / 2**20:+.1f} MiB after {reader.seen:,} tokens")
    assert grown <= MARGIN
