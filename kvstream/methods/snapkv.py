"""SnapKV: what the last tokens of the chunk attend to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvstream.methods.base import IMDC, Evidence, Preset, Step, setting
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.scoring import observed, pooling_width


@dataclass(frozen=True)
class SnapKV(ScoredMethod):
    """Keeps what an observation window at the end of each chunk attends to, and the window.

    Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", section 4. The
    paper selects once, from the end of the prompt; with chunked prefill each chunk has its own
    window.
    """

    name: ClassVar[str] = "snapkv"
    source: ClassVar[str] = "SnapKV, section 4"
    paper: ClassVar[Preset | None] = IMDC

    window: int = setting(
        32, "newest tokens whose attention is observed, and which always stay", least=1
    )
    pool: int = pooling_width(7, "width of the max pooling of the scores, in source tokens")

    def evidence(self) -> Evidence:
        return Evidence(window_attention=self.window)

    def score(self, step: Step) -> Tensor:
        return observed(step, self.pool)

    def newest(self, keep: int) -> int:
        return self.window
