"""H2O: the entries with the most accumulated attention, and the newest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvstream.methods.base import EntryTensor, Evidence, Method, Step, setting
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.scoring import pool, pooling_width


class Attended(Method):
    """Sums for each entry the attention of all queries so far: ``attention`` [G, K, n]."""

    def evidence(self) -> Evidence:
        return Evidence(accumulated_attention=True)

    def tensors(self) -> tuple[EntryTensor, ...]:
        return (EntryTensor("attention"),)

    def absorb(self, step: Step) -> None:
        attention = step.state["attention"]
        attention[..., attention.shape[-1] - step.new :] = 0  # these places have values of others
        if step.accumulated_attention is not None:
            attention += step.accumulated_attention


@dataclass(frozen=True)
class H2O(Attended, ScoredMethod):
    """Keeps what all tokens so far attended to most (heavy hitters), and the newest.

    Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
    Models", section 4 and algorithm 1: the score of an entry is its ``attention``, the sum over
    all queries q_t so far, and half of the memory belongs to the newest entries:

        attention_j = sum_t softmax(q_t K^T / sqrt(D))_j

    Departures: eviction once per chunk, where the paper evicts one entry per token. The attention
    of the query heads of a group is averaged.
    """

    name: ClassVar[str] = "h2o"
    source: ClassVar[str] = "H2O, section 4, algorithm 1"

    recent: float = setting(0.5, "share of memory that belongs to the newest tokens", most=1)
    pool: int = pooling_width(1)

    def score(self, step: Step) -> Tensor:
        return pool(step.state["attention"], step.origin, self.pool)

    def newest(self, keep: int) -> int:
        return int(self.recent * keep)
