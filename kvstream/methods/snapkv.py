"""SnapKV: what the last tokens of the chunk attend to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from kvstream.methods.base import IMDC, Evidence, Preset, Step, setting
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.scoring import pool, pooling_width


@dataclass(frozen=True)
class SnapKV(ScoredMethod):
    """Keeps what an observation window at the end of each chunk attends to, and the window.

    Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", section 4: with the
    ``attention`` of entry j, summed over the queries q of the window (the newest `window` tokens),

        score_j = max_{|i - j| <= pool / 2} sum_q softmax(q k^T / sqrt(D))_i

    where i and j count in the source. The paper selects once, from the end of the prompt; with
    chunked prefill each chunk has its own window. The attention of the query heads of a group is
    averaged.
    """

    name: ClassVar[str] = "snapkv"
    source: ClassVar[str] = "SnapKV, section 4"
    paper: ClassVar[Preset | None] = replace(IMDC, settings={"sinks": "0"})

    window: int = setting(
        32, "newest tokens whose attention is observed, and which always stay", least=1
    )
    pool: int = pooling_width(7, "width of the max pooling of the scores, in source tokens")

    def evidence(self) -> Evidence:
        return Evidence(window_attention=self.window)

    def score(self, step: Step) -> Tensor:
        attention = step.window_attention
        assert attention is not None
        return pool(attention, step.origin, self.pool)

    def newest(self, keep: int) -> int:
        return self.window
