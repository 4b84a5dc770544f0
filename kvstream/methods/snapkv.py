"""Methods by the attention of the last tokens: snapkv, pyramidkv, tova, append."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kvstream.methods.base import IMDC, Evidence, Method, Preset, Step, setting
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.scoring import best, pool, pooling_width


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


@dataclass(frozen=True)
class Append(Method):
    """Adds each chunk's best entries to memory and never selects among older ones again.

    The "incremental fixed memory" of "Memorize Step by Step" (IMDC), appendix B.2, after
    AutoCompressors: a baseline to compare with memory that is compressed again at every step. Of a
    chunk, ``m_i - m_(i-1)`` entries stay, selected by SnapKV's score (attention of the chunk's last
    ``window`` tokens, [G, K, n]). With a fixed memory the first chunks fill it, and no entry of the
    later ones stays.

    If memory has to shrink (an adaptive schedule, a long answer), the entries with the least
    attention from the newest tokens are evicted.
    """

    name: ClassVar[str] = "append"
    source: ClassVar[str] = "IMDC, appendix B.2"
    paper: ClassVar[Preset] = Preset(
        "IMDC, appendix B.2", run={"schedule": "linear", "chunk": "fixed", "start": "paper"}
    )

    window: int = setting(32, "newest tokens whose attention is observed", least=1)
    recent: int = setting(0, "newest tokens of each chunk that stay, of the room it has")
    pool: int = pooling_width(7, "width of the max pooling of the scores, in source tokens")

    def evidence(self) -> Evidence:
        return Evidence(window_attention=self.window)

    def select(self, step: Step, keep: int) -> Tensor:
        assert step.window_attention is not None
        old = step.origin.shape[-1] - step.new
        if keep <= old:
            return best(step.window_attention[..., :old], keep)
        scores = pool(step.window_attention[..., old:], step.origin[..., old:], self.pool)
        added = best(scores, keep - old, recent=self.recent) + old
        before = torch.arange(old, device=added.device).expand(*added.shape[:-1], old)
        return torch.cat((before, added), dim=-1)
