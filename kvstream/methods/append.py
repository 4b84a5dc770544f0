"""The method append: the best entries of each chunk, forever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvstream.methods.base import Evidence, Method, Preset, Step, setting
from kvstream.methods.tools.scoring import best, pool, pooling_width


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
        entries = best(scores, keep - old, recent=self.recent) + old
        before = torch.arange(old, device=entries.device).expand(*entries.shape[:-1], old)
        return torch.cat((before, entries), dim=-1)
