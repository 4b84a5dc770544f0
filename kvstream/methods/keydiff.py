"""KeyDiff: keys least similar to the others, without attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from kvstream.methods.base import ModelFacts, Step, setting
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.scoring import pool, pooling_width


@dataclass(frozen=True)
class KeyDiff(ScoredMethod):
    """Keeps the keys that are least similar to the mean key; needs no attention.

    Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
    Resource-Constrained Environments", section 3. Over the candidates j of a head,

        anchor  = mean_j k_j / |k_j|
        score_j = -cos(k_j, anchor)

    The paper also works block by block within a budget. Departure: it compares keys before their
    rotation, because positions change at every eviction. With `centered` the mean key of the head
    is subtracted first: if a model adds a bias to its keys, they all point the same way, so their
    cosines are close to 1 and differ by rounding.
    """

    name: ClassVar[str] = "keydiff"
    source: ClassVar[str] = "KeyDiff, section 3"
    needs_keys = True

    recent: int = setting(0, "newest tokens that always stay")
    pool: int = pooling_width(1)
    centered: str = setting(
        "false",
        "subtract the mean key of each head; biased: if the model adds a bias to keys; false: the "
        "paper's",
        choices=("false", "true", "biased"),
    )

    def fitted(self, model: ModelFacts) -> KeyDiff:
        if self.centered == "biased" and not model.key_bias:
            return replace(self, centered="false")
        return self

    def score(self, step: Step) -> Tensor:
        scores = unlikeness(step.keys(), self.centered != "false")
        return pool(scores, step.origin, self.pool)


def unlikeness(keys: Tensor, centered: bool = False) -> Tensor:
    """Return the scores of KeyDiff for keys [..., n, D], up to a factor per head: [..., n]."""
    keys = keys.float()
    if centered:
        keys = keys - keys.mean(-2, keepdim=True)
    inverse = keys.norm(dim=-1).clamp_min_(1e-12).reciprocal_()
    # The sum of the normalized keys has the direction of their mean; its length does not matter.
    anchor = inverse[..., None, :] @ keys
    return (keys @ anchor.transpose(-1, -2))[..., 0] * inverse.neg_()
