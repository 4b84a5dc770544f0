"""SirLLM: the tokens that the model did not expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvstream.methods.base import EntryTensor, Evidence, Step, setting
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.scoring import pool, pooling_width


@dataclass(frozen=True)
class SirLLM(ScoredMethod):
    """Keeps sinks and the tokens with the highest cross-entropy.

    Yao et al., "SirLLM: Streaming Infinite Retentive LLM", section 3: the score of a token t, that
    was read c chunks ago, is its first "token entropy", the same in all heads and layers:

        entropy_t = decay^c * -log P(x_t | x_<t)

    In the paper c counts turns of a dialogue (decay 1, 0.9 or 0.7 by task). The paper's own runs
    keep 4 sinks and no recency window.
    """

    name: ClassVar[str] = "sirllm"
    source: ClassVar[str] = "SirLLM, section 3"

    decay: float = setting(1.0, "factor on the entropies of older tokens at every chunk", most=1)
    recent: int = setting(0, "newest tokens that always stay")
    pool: int = pooling_width(1)

    def evidence(self) -> Evidence:
        return Evidence(loss=True)

    def tensors(self) -> tuple[EntryTensor, ...]:
        return (EntryTensor("entropy"),)

    def absorb(self, step: Step) -> None:
        entropy = step.state["entropy"]
        if self.decay != 1.0:
            entropy *= self.decay
        entropy[..., entropy.shape[-1] - step.new :] = 0 if step.loss is None else step.loss

    def score(self, step: Step) -> Tensor:
        # One head is enough: all hold the same tokens with the same entropies.
        return pool(step.state["entropy"][:, :1], step.origin[:, :1], self.pool)
