"""Methods by the attention of the last tokens: snapkv, pyramidkv."""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass(frozen=True)
class PyramidKV(SnapKV):
    """Keeps what the newest tokens attend to, with memory that shrinks from layer to layer.

    Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling",
    section 4: with a mean of ``m`` entries per layer, the top layer gets ``m / beta``, the bottom
    layer ``2 m - m / beta``, and sizes between them are linear. Within a layer SnapKV decides.

    Departure: the budget limits each head, so the bottom layer gets what the schedule allows, and
    the other layers get less. All layers together hold little more than half of what `snapkv`
    holds at the same budget. If a schedule has sizes per layer (square-sqrt, adaptive), the
    pyramid replaces them and follows the largest.
    """

    name: ClassVar[str] = "pyramidkv"
    source: ClassVar[str] = "PyramidKV, section 4"
    paper: ClassVar[Preset | None] = None

    window: int = setting(
        8, "newest tokens whose attention is observed, and which always stay", least=1
    )
    beta: float = setting(
        20.0, "steepness: the top layer holds this part of the mean; 1 is flat", least=1
    )

    def layer_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        most, last = max(sizes), max(1, len(sizes) - 1)
        top = 1 / (2 * self.beta - 1)  # as a share of the bottom layer
        # Every layer keeps the observed window. With less than twice the sinks, these could be cut.
        least = min(most, self.sinks + max(self.sinks, self.window))
        return tuple(
            max(least, int(most * (1 - (1 - top) * layer / last))) for layer in range(len(sizes))
        )
