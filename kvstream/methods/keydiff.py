"""KeyDiff: keys least similar to the others, without attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvstream.methods.base import Step, setting
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.scoring import pool, pooling_width, unlikeness


@dataclass(frozen=True)
class KeyDiff(ScoredMethod):
    """Keeps the keys that are least similar to the mean key; needs no attention.

    Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
    Resource-Constrained Environments", section 3. With the anchor ``a = mean_j k_j / |k_j|`` over
    the candidates of a head, an entry's score is ``-cos(k_j, a)``; keys [1, K, n, D]. The paper
    also works block by block within a budget.

    Departure: it compares keys before their rotation, because positions change at every eviction.
    """

    name: ClassVar[str] = "keydiff"
    source: ClassVar[str] = "KeyDiff, section 3"

    recent: int = setting(0, "newest tokens that always stay")
    pool: int = pooling_width(1)

    @property
    def needs_keys(self) -> bool:
        return True

    def score(self, step: Step) -> Tensor:
        return pool(unlikeness(step.keys()), step.origin, self.pool)

    def newest(self, keep: int) -> int:
        return self.recent
