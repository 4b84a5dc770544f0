"""The value of a gate: loss on held-out texts with its memory, without, and with a wrong one.

A gate is also a small adapter: its MLP may lower the loss whatever compressive memory holds. The
control is the memory of another text, read through the same gate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from kvstream.engine.reader import Chunk, Reader
from kvstream.methods.edgeinfinite import EdgeInfinite
from kvstream.methods.tools.gates import Gate, LearnedGate
from kvstream.model.bounded import BoundedModel
from kvstream.settings import RunSettings
from kvstream.tokenization.loading import Tokenizer
from kvstream_lab.gates.train import open_reader, with_gates

BASE = "without memory"
CONTROL = "memory of another text"
VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {"memory": False},
    "edgeinfinite": {},
    CONTROL: {},
    "without window": {"window": 0},
    "without sinks": {"sinks": 0},
    "without both": {"window": 0, "sinks": 0},
}
"""Settings to compare: sinks and window alone, the control, and the paper's ablation."""


@dataclass(frozen=True)
class Measured:
    """Loss over the tokens that were read after an eviction."""

    loss: float
    """Mean, in nats per token."""
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)


def measure(
    model: BoundedModel,
    tokenizer: Tokenizer,
    method: EdgeInfinite,
    texts: Sequence[Sequence[int]],
    budget: int,
    others: Sequence[Sequence[int]] = (),
) -> list[Measured]:
    """Return the loss on each text, over the chunks after the first eviction.

    All chunks have the segment size of the unchanged method, so that with fewer sinks or a smaller
    window no token has more tokens before it in its own chunk. With `others`, each text reads the
    compressive memory of the text at its index in `others`.
    """
    run = RunSettings(
        schedule="fixed", chunk="fixed", chunk_size=EdgeInfinite().sized(budget).segment
    )

    def reader_of(ids: Sequence[int]) -> Reader:
        reader = open_reader(model, tokenizer, method, budget, len(ids), run)
        reader.begin()
        return reader

    found = []
    for number, ids in enumerate(texts):
        reader = reader_of(ids)
        reader.report_loss = True
        lent = _memories(reader_of(others[number]), others[number]) if others else None
        total, tokens, at, left = 0.0, 0, 0, False
        while at < len(ids):
            part = ids[at : at + reader.schedule.chunk()]
            report = reader.step(Chunk(part, at), last=at + len(part) == len(ids))
            if left and report.loss is not None:
                total, tokens = total + float(report.loss.double().sum()), tokens + len(part)
            at += len(part)
            left = left or reader.cache.size < at
            if lent is not None:
                _borrow(reader, next(lent))
        found.append(Measured(total / max(1, tokens), tokens))
    return found


def _memories(reader: Reader, ids: Sequence[int]) -> Iterator[list[dict[str, Tensor]]]:
    """Yield the compressive memory of each layer after every chunk, the last one without end."""
    at = 0
    while True:
        if at < len(ids):
            part = ids[at : at + reader.schedule.chunk()]
            reader.step(Chunk(part, at), last=False)
            at += len(part)
        yield [store.head_state for store in reader.compressible]


def _borrow(reader: Reader, memory: Sequence[Mapping[str, Tensor]]) -> None:
    for store, heads in zip(reader.compressible, memory, strict=True):
        for name, tensor in heads.items():
            store.head_state[name].copy_(tensor)


def method_of(gates: Mapping[int, Gate]) -> EdgeInfinite:
    """Return the method that these gates were made for."""
    first = next(iter(gates.values()))
    if isinstance(first, LearnedGate):
        return EdgeInfinite(form="learned", features=first.b_key.shape[-1])
    return EdgeInfinite(form="paper")


def compare(
    model: BoundedModel,
    tokenizer: Tokenizer,
    gates: Mapping[int, Gate],
    texts: Sequence[Sequence[int]],
    budget: int,
    variants: Sequence[str] = tuple(VARIANTS),
) -> dict[str, list[Measured]]:
    """Return the loss of each variant, text by text. The control uses the next text's memory."""
    found = {}
    for name in variants:
        others = [*texts[1:], *texts[:1]] if name == CONTROL else ()
        method = with_gates(replace(method_of(gates), **VARIANTS[name]), gates)
        found[name] = measure(model, tokenizer, method, texts, budget, others)
    return found


def overall(found: Sequence[Measured]) -> Measured:
    """Return the result for all texts together; each token has the same weight."""
    tokens = sum(m.tokens for m in found)
    return Measured(sum(m.loss * m.tokens for m in found) / max(1, tokens), tokens)
