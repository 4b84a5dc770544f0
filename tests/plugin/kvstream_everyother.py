"""The method of the page "write a method", as a complete package of a third party."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvstream.methods.base import EntryTensor, Evidence, Step, setting
from kvstream.methods.scored import ScoredMethod


@dataclass(frozen=True)
class EveryOther(ScoredMethod):
    """Prefers what attention found, then every other token of the source.

    Scores are the attention of the last `window` tokens of every chunk since an entry came,
    [G, K, n], halved for tokens with an odd ordinal.
    """

    name: ClassVar[str] = "everyother"
    source: ClassVar[str] = "the page on writing a method"

    window: int = setting(16, "newest tokens whose attention counts, and which always stay")

    def evidence(self) -> Evidence:
        return Evidence(window_attention=self.window)

    def tensors(self) -> tuple[EntryTensor, ...]:
        return (EntryTensor("gathered"),)

    def absorb(self, step: Step) -> None:
        gathered = step.state["gathered"]
        gathered[..., gathered.shape[-1] - step.new :] = 0
        if step.window_attention is not None:
            gathered += step.window_attention

    def score(self, step: Step) -> Tensor:
        odd = step.origin % 2 == 1
        return step.state["gathered"] * (1 - 0.5 * odd.float())

    def newest(self, keep: int) -> int:
        return self.window
