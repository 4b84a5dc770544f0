"""Citations: the attention of an answer's tokens to the entries in memory, by passages.

A citation says where the model looked when it chose the words of the answer. It does not prove
that the passage says so (docs/guide/citations.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvstream.engine.reader import Reader
from kvstream.model.attention import AttentionRequest
from kvstream.model.layer_store import PROMPT
from kvstream.tokenization.passages import Passage

CITED = 5
"""Maximum number of citations."""
LEAST_WEIGHT = 0.01
"""A passage with a smaller share of the attention to the text is not cited."""
HEAVIEST = 3
"""Number of heaviest passages whose weights add up to the focus of an answer."""


@dataclass(frozen=True)
class Attention:
    """Attention of the question and the answer to the source tokens in memory."""

    ordinals: Tensor
    """int64 [n], sorted and distinct: the source tokens."""
    by_answer: Tensor
    """float32 [n] with sum 1: weights by the attention of the answer."""
    by_question: Tensor
    """float32 [n] with sum 1: weights by the attention of the question."""
    losses: Tensor
    """float32 [m]: cross-entropy of each token of the answer, in nats."""


def measure(reader: Reader, question: Sequence[int], answer: Sequence[int]) -> Attention | None:
    """Run question and answer through the model again and measure their attention to memory.

    Memory stays unchanged. The queries of the answer are those that chose its tokens: the last
    token of the question, and all tokens of the answer but the last. The end of an answer for
    which the budget has no room is left out. Return None if there is no answer, or if memory holds
    nothing of the source.

    The weight of a token is the sum over layers and heads of its squared mean attention, so a head
    that looks at one place outweighs many heads that spread their attention.
    """
    room = reader.sizes.budget - reader.cache.size - len(question)
    tokens = list(answer[: room + 1])
    if not tokens or room < 0:
        return None
    request = AttentionRequest(
        (len(tokens),), accumulated_attention=True, queries=len(question), reduce="max"
    )
    with reader.cache.answering(), reader.cache.passing() as ends:
        for store in reader.cache.stores:
            store.window_attention = store.accumulated_attention = None
        states = reader.model.forward([*question, *tokens[:-1]], reader.cache, request)
        targets = torch.tensor(tokens, device=states.device)
        losses = reader.model.loss(states[len(question) - 1 :], targets)
        rows = []
        for store, end in zip(reader.cache.stores, ends, strict=True):
            if store.window_attention is not None and store.accumulated_attention is not None:
                own = store.origin[:, :end] != PROMPT
                columns = (
                    store.origin,
                    store.window_attention / len(tokens),
                    store.accumulated_attention / len(question),
                )
                rows.append([part[:, :end][own].cpu() for part in columns])
    if not rows:
        return None
    origin, *weights = (torch.cat(parts) for parts in zip(*rows, strict=True))
    ordinals, places = origin.long().unique(return_inverse=True)
    if not len(ordinals):
        return None
    sums = (torch.zeros(len(ordinals)).index_add_(0, places, w.float() ** 2) for w in weights)
    answer_share, question_share = (s / s.sum().clamp_min(1e-30) for s in sums)
    return Attention(ordinals, answer_share, question_share, losses.float().cpu())


@dataclass(frozen=True)
class Basis:
    """The passages that an answer rests on."""

    citations: tuple[Passage, ...]
    """The citations: passages by the answer's attention, heaviest first."""
    regions: tuple[Passage, ...]
    """Passages by the attention of answer and question together, heaviest first. A second pass
    reads them again."""
    focus: float
    """Share of the answer's attention to the text that its three heaviest passages get."""
    confidence: float
    """Geometric mean of the probabilities of the answer's tokens."""
    likelihood: float = 0.0
    """Logarithm of the probability of the whole answer."""

    def to_json(self) -> dict[str, float]:
        return {"focus": round(self.focus, 4), "confidence": round(self.confidence, 4)}


NOTHING = Basis((), (), 0.0, 0.0)


def basis_of(
    by_answer: Sequence[Passage], by_question: Sequence[Passage], attention: Attention
) -> Basis:
    """Make a Basis from passages with weights by the answer and by the question (each sum 1)."""
    ranking = sorted(by_answer, key=lambda p: (-p.weight, p.start))
    both: dict[int, tuple[float, Passage]] = {}
    for passage in (*by_answer, *by_question):
        weight, _ = both.get(passage.start, (0.0, passage))
        both[passage.start] = weight + passage.weight, passage
    regions = [p for _, p in sorted(both.values(), key=lambda pair: (-pair[0], pair[1].start))]
    return Basis(
        tuple(p for p in ranking[:CITED] if p.weight >= LEAST_WEIGHT),
        tuple(regions),
        sum(p.weight for p in ranking[:HEAVIEST]),
        float((-attention.losses.mean()).exp()),
        -float(attention.losses.sum()),
    )


def as_json(passage: Passage, names: Sequence[str], bases: Sequence[int]) -> dict[str, Any]:
    """Return the JSON object of one citation; byte offsets are those of the unpacked source."""
    base = bases[passage.source] if passage.source < len(bases) else 0
    return {
        "source": names[passage.source],
        "byte_start": passage.start - base,
        "byte_end": passage.end - base,
        **passage.where(),
        "text": passage.text,
        "weight": round(passage.weight, 4),
    }
