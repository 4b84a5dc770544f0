"""The method tova: the attention of the last token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvstream.methods.base import Evidence, Step, setting
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.scoring import pool, pooling_width


@dataclass(frozen=True)
class TOVA(ScoredMethod):
    """Keeps what the last token of each chunk attends to, the same in all heads of a layer.

    Oren et al., "Transformers are Multi-State RNNs" (TOVA), section 3.2: evicts the entry with the
    least attention from the newest query q, averaged over the H heads of the layer,

        score_j = sum_h softmax(q_h K_h^T / sqrt(D))_j / H

    Recent tokens are not protected; only the newest token itself always stays.

    Departures: one decision per chunk instead of one per token. With ``heads=independent`` each KV
    head decides separately, as in the other methods.
    """

    name: ClassVar[str] = "tova"
    source: ClassVar[str] = "TOVA, section 3.2"

    heads: str = setting(
        "shared",
        "who decides: all KV heads of a layer together, or each head alone",
        choices=("shared", "independent"),
    )
    pool: int = pooling_width(1)

    def evidence(self) -> Evidence:
        return Evidence(window_attention=1)

    def score(self, step: Step) -> Tensor:
        attention = step.window_attention
        assert attention is not None
        if self.heads == "independent":
            return pool(attention, step.origin, self.pool)
        # Heads that always decide together hold the same tokens, so one origin is enough.
        return pool(attention.mean(1, keepdim=True), step.origin[:, :1], self.pool)

    def newest(self, keep: int) -> int:
        return 1
