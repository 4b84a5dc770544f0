"""KeyDiff: keys that are unlike the rest, without looking at attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvstream.methods.base import Method, Step, setting
from kvstream.methods.scoring import best, pool, pooling_width


@dataclass(frozen=True)
class KeyDiff(Method):
    """Keeps the keys that are least similar to the mean key; needs no attention at all.

    Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
    Resource-Constrained Environments", section 3. With the anchor ``a = mean_j k_j / |k_j|`` over
    the candidates of a head, an entry's score is ``-cos(k_j, a)``; keys [1, K, n, D]. The paper
    works block by block under a bound as we do.

    Departure: keys are compared as they are stored here, before their rotation, since an entry's
    position changes whenever others leave.
    """

    name: ClassVar[str] = "keydiff"
    source: ClassVar[str] = "KeyDiff, section 3"
    needs_keys: ClassVar[bool] = True

    recent: int = setting(0, "newest tokens that always stay")
    pool: int = pooling_width(
        1, "width of the max pooling of the scores, in source tokens; 1: none"
    )

    def select(self, step: Step, keep: int) -> Tensor:
        keys = step.keys().float()
        inverse = keys.norm(dim=-1).clamp_min_(1e-12).reciprocal_()
        # The sum of the normalised keys points where their mean does; its length changes nothing.
        anchor = inverse[..., None, :] @ keys
        likeness = (keys @ anchor.transpose(-1, -2))[..., 0] * inverse
        return best(pool(-likeness, step.origin, self.pool), keep, recent=self.recent)
