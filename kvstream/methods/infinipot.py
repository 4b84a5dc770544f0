"""InfiniPot: continual context distillation by a catalyst prompt and by novelty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kvstream.methods.base import EntryTensor, Evidence, Method, Preset, Step, setting
from kvstream.methods.tools.scoring import best, pool, pooling_width

GENERAL = "Summarize what matters most in this section."
UNRELATED = "A kettle hums on the stove. Rain falls on the roof. The cat sleeps, and so it goes on."
SMALL = 256
"""Budgets below this leave no room for shared entries, wide pools and many recent tokens."""
CATALYSTS = ("auto", "none", "placeholder", "unrelated", "general", "question", "both")


@dataclass(frozen=True)
class InfiniPot(Method):
    """Keeps what a catalyst prompt attends to, and with alpha what surprised the model.

    Kim et al., "InfiniPot: Infinite Context Processing on Memory-Constrained LLMs", section 3.
    The catalyst is a text of tokens x_i, such as the question, that is read before every
    distillation and then removed. ``alpha * keep`` entries stay by their novelty (the paper's NuC,
    eq. 3), the rest by the attention that the catalyst pays them (its CaP, eq. 2):

        novelty_t   = -log P(x_t | entries in memory, x_<t)
        attention_t = sum_i softmax(q_i K^T / sqrt(D))_t

    Departures: an entry keeps its first novelty; scores are pooled along the source, so that
    neighbors stay together; all heads share a part of memory, because few heads find what a
    question asks for and all need it for the answer; alpha is 0 and not 0.5, because novelty takes
    room from answers if the question is the catalyst; the catalyst is the bare question, without
    the paper's instruction before it. The paper keeps far fewer entries than the pot holds, and
    names no number; by default 7/8 of the pot stay, also with the preset (see --keep). Small
    budgets have narrower pools, fewer recent tokens and no shared part.
    """

    name: ClassVar[str] = "infinipot"
    source: ClassVar[str] = "InfiniPot, section 3"
    paper: ClassVar[Preset] = Preset(
        "InfiniPot, sections 3.2, 4.4.1 and 4.4.2, Code 1",
        {
            "alpha": "0.5", "catalyst_kind": "both", "pool": "1", "pool_novelty": "1",
            "shared": "0", "recent": "0", "sinks": "0",
        },
        {"schedule": "fixed", "chunk": "decremental"},
    )  # fmt: skip

    alpha: float = setting(
        0.0,
        "share of memory chosen by novelty, the rest by the catalyst; the paper takes 0.5",
        most=1,
    )
    catalyst_kind: str = setting(
        "auto",
        "text appended to every chunk to draw attention: none, placeholder, unrelated, general, "
        "question, both (general, then question); auto: question if one is known, else general",
        choices=CATALYSTS,
    )
    catalyst_text: str = setting("", "own text for the catalyst; overrides catalyst_kind")
    pool: int = pooling_width(
        31,
        "width of the pooling of the catalyst's scores, in source tokens; at most 15 under a "
        f"budget of {SMALL}",
    )
    pool_novelty: int = pooling_width(15, "width of the pooling of novelty, in source tokens")
    shared: float = setting(
        0.25,
        "share of memory that all heads of all layers fill with the same tokens, by the sum of "
        f"their scores; at most 1 - alpha, and none under a budget of {SMALL}",
        most=1,
    )
    recent: int = setting(
        32, f"newest tokens that always stay; at most 8 under a budget of {SMALL}"
    )

    def sized(self, budget: int) -> InfiniPot:
        if budget >= SMALL:
            return self
        pool, recent = min(self.pool, 15), min(self.recent, 8)
        return replace(self, pool=pool, recent=recent, shared=0.0)

    def evidence(self) -> Evidence:
        return Evidence(window_attention=1, loss=self.alpha > 0)

    def tensors(self) -> tuple[EntryTensor, ...]:
        return (EntryTensor("novelty"),) if self.alpha > 0 else ()

    def catalyst(self, questions: Sequence[str]) -> tuple[str, ...]:
        if self.catalyst_text:
            return (self.catalyst_text,)
        kind = self.catalyst_kind
        if kind in ("auto", "question"):
            return tuple(questions) or (GENERAL,)
        if kind == "both":
            return tuple(f"{GENERAL} {question}" for question in questions) or (GENERAL,)
        texts = {"placeholder": "\n\n\n", "unrelated": UNRELATED, "general": GENERAL}
        return (texts[kind],) if kind in texts else ()

    def absorb(self, step: Step) -> None:
        if "novelty" in step.state:
            novelty = step.state["novelty"]
            novelty[..., novelty.shape[-1] - step.new :] = 0 if step.loss is None else step.loss

    def votes(self, step: Step) -> Tensor | None:
        if not self.shared or step.window_attention is None:
            return None
        return self._representative(step)

    def _representative(self, step: Step) -> Tensor:
        """Return CaP, the pooled attention of the catalyst's tokens: float32 [G, K, n]."""
        attention = step.window_attention
        assert attention is not None
        return pool(attention, step.origin, self.pool)

    def select(self, step: Step, keep: int) -> Tensor:
        scores = self._representative(step) if step.votes is None else step.votes
        n, recent = scores.shape[-1], min(self.recent, keep)

        def first(values: Tensor, count: int) -> Tensor:
            """Return the scores, with the `count` best of `values` raised above all others."""
            top = values[..., : n - recent].topk(count, dim=-1, sorted=False).indices
            return scores.scatter(-1, top, torch.inf)

        novel = int(self.alpha * (keep - recent))
        # Novelty comes first, as in the paper: shared tokens get only the room that is left.
        common = min(int(self.shared * (keep - recent)), keep - recent - novel)
        if common:
            assert step.agreed is not None
            scores = first(step.agreed, common)
        if novel:
            novelty = pool(step.state["novelty"], step.origin, self.pool_novelty)
            scores = first(novelty, novel)
        return best(scores, keep, recent=recent)
