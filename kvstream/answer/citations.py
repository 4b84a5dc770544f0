"""What an answer looked at: the attention of its tokens to what memory holds, by passages.

A citation says where the model looked when it chose the words of the answer. It is no proof that
the passage says so (docs/guide/citations.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvstream.engine.reader import Reader
from kvstream.model.attention import AttentionRequest
from kvstream.model.cache import PROMPT
from kvstream.tokenization.passages import Passage

CITED = 5
"""Passages that are cited at most."""
LEAST_WEIGHT = 0.01
"""A passage that gets less of the attention to the text is not cited."""
HEAVIEST = 3
"""Passages whose weights together are the focus of an answer."""


@dataclass(frozen=True)
class Attended:
    """What question and answer paid to the source tokens that memory holds."""

    ordinals: Tensor
    """int64 [n], sorted and distinct."""
    by_answer: Tensor
    """float32 [n] of the sum 1."""
    by_question: Tensor
    """float32 [n] of the sum 1."""
    losses: Tensor
    """float32 [m], nats: how unlikely each of the answer's tokens was."""

    @property
    def confidence(self) -> float:
        """Geometric mean of the probabilities of the answer's tokens."""
        return float((-self.losses.mean()).exp())


def attended(reader: Reader, question: Sequence[int], answer: Sequence[int]) -> Attended | None:
    """Measure it: question and answer go through the model once more and leave memory as it was.

    Of the answer counts what the queries looked at that chose its tokens: the question's last one
    and those of the answer but its last. What the budget has no room for at the answer's end is
    left out. None where nothing was answered or memory holds nothing of the source.

    A token's weight is the sum over layers and heads of the square of the mean attention it gets:
    so a head that looks at one place outweighs the many that spread theirs.
    """
    room = reader.sizes.budget - reader.cache.held - len(question)
    said = list(answer[: room + 1])
    if not said or room < 0:
        return None
    wanted = AttentionRequest(
        (len(said),), accumulated_attention=True, queries=len(question), reduce="max"
    )
    with reader.cache.answering(), reader.cache.passing() as ends:
        for store in reader.cache.stores:
            store.window_attention = store.accumulated_attention = None
        hidden = reader.model.forward([*question, *said[:-1]], reader.cache, wanted)
        targets = torch.tensor(said, device=hidden.device)
        losses = reader.model.loss(hidden[len(question) - 1 :], targets)
        found = []
        for store, end in zip(reader.cache.stores, ends, strict=True):
            if store.window_attention is not None and store.accumulated_attention is not None:
                own = store.origin[:, :end] != PROMPT
                measured = (
                    store.origin,
                    store.window_attention / len(said),
                    store.accumulated_attention / len(question),
                )
                found.append([part[:, :end][own].cpu() for part in measured])
    if not found:
        return None
    origin, *weights = (torch.cat(parts) for parts in zip(*found, strict=True))
    ordinals, places = origin.long().unique(return_inverse=True)
    if not len(ordinals):
        return None
    summed = (torch.zeros(len(ordinals)).index_add_(0, places, w.float() ** 2) for w in weights)
    answer_share, question_share = (s / s.sum().clamp_min(1e-30) for s in summed)
    return Attended(ordinals, answer_share, question_share, losses.float().cpu())


@dataclass(frozen=True)
class Basis:
    """What an answer rests on, in passages."""

    cited: tuple[Passage, ...]
    """By the answer's attention, heaviest first."""
    regions: tuple[Passage, ...]
    """By that of answer and question together, heaviest first: where to look again."""
    focus: float
    """Share of the answer's attention to the text that the three heaviest passages have."""
    confidence: float
    """Geometric mean of the probabilities of the answer's tokens."""
    likelihood: float = 0.0
    """Logarithm of the probability of the whole answer."""

    def to_json(self) -> dict[str, float]:
        return {"focus": round(self.focus, 4), "confidence": round(self.confidence, 4)}


NOTHING = Basis((), (), 0.0, 0.0)
"""Of an answer without words."""


def basis_of(
    by_answer: Sequence[Passage], by_question: Sequence[Passage], found: Attended
) -> Basis:
    """From passages and what they weigh to the answer and to the question (each of the sum 1)."""
    ranked = sorted(by_answer, key=lambda p: (-p.weight, p.start))
    both: dict[int, tuple[float, Passage]] = {}
    for passage in (*by_answer, *by_question):
        weight, _ = both.get(passage.start, (0.0, passage))
        both[passage.start] = weight + passage.weight, passage
    regions = [p for _, p in sorted(both.values(), key=lambda pair: (-pair[0], pair[1].start))]
    return Basis(
        tuple(p for p in ranked[:CITED] if p.weight >= LEAST_WEIGHT),
        tuple(regions),
        sum(p.weight for p in ranked[:HEAVIEST]),
        found.confidence,
        -float(found.losses.sum()),
    )


def as_json(passage: Passage, names: Sequence[str], bases: Sequence[int]) -> dict[str, Any]:
    """One citation: bytes count from the beginning of its source, as decompressed."""
    base = bases[passage.source] if passage.source < len(bases) else 0
    return {
        "source": names[passage.source],
        "byte_start": passage.start - base,
        "byte_end": passage.end - base,
        **passage.where(),
        "text": passage.text,
        "weight": round(passage.weight, 4),
    }
