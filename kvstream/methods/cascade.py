"""Cascade: a chain of sub-caches, each of which takes every second run that the previous one drops.

A sub-cache holds only entries that the previous one dropped. So memory in order of age is the last
sub-cache of the chain, then the one before it, and at the end the first. Heads differ in which run
wins a contest, not in how many entries take part, so a sub-cache is the same range of entries in
all heads. Therefore the state beside the scores is small: the number of entries in sub-caches, the
position of each sub-cache in its two runs, and the result of an unfinished contest.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvstream.methods.base import EntryTensor, Evidence, HeadTensor, Method, Preset, Step, setting
from kvstream.methods.keydiff import unlikeness
from kvstream.methods.tools.subcaches import insert

SINK_SHARE = 16
"""Sinks take at most the budget divided by this."""
MOST_CASCADES = 64
"""Maximum number of sub-caches: far more than any text needs, as each doubles the span."""
LONGEST_RUN = 1024
"""Maximum number of tokens in a run: far more than any passage that should stay whole."""


@dataclass(frozen=True)
class Cascade(Method):
    """Keeps a window whose older parts are sparser, with tokens whose keys differ most.

    Willette et al., "Training-Free Exponential Context Extension via Cascading KV Cache", section
    3.1 and algorithms 1-3. Memory is N sub-caches of equal size. Each takes every second token
    that the previous one drops. Any other token contests the newest entry; the higher score stays
    (in a tie the newest entry). The span of N full sub-caches of memory m is
    ``m / N * (2^N - 1)`` tokens (eq. 4); N = 1 is `streaming`. The chunk in flight is the paper's
    stride: its own queries see all of it, then it is inserted.

    Two things differ from the paper, because together they measured better. First, a ``run`` of
    adjacent tokens with their mean score is taken or contests: single tokens would break names and
    numbers. Second, scores are those of `keydiff`, the difference of a key from the mean key of its
    head, which needs no attention. ``run=1, contest=attention`` is the paper's: the moving average
    ``mu <- gamma mu + (1 - gamma) s`` over all queries, the entry's ``ema`` [G, K, n].

    If memory grows with the schedule, every sub-cache grows by its share and takes all tokens until
    it is full again. If memory shrinks, each passes on its oldest tokens.

    Other departures: sinks count in the budget. While a sub-cache or a deeper one has room, it
    takes every token, so memory that is not full loses nothing; algorithm 2 already lets tokens
    contest then. The log-sum-exp of the attention is exact, where algorithm 3 extrapolates it
    within its kernel. The maximum over the query heads of a group is taken of a chunk's sums, not
    per query.
    """

    name: ClassVar[str] = "cascade"
    source: ClassVar[str] = "Cascading KV cache, section 3.1, algorithms 1-3"
    paper: ClassVar[Preset] = Preset(
        "Cascading KV cache, section 4 and appendix C",
        {
            "sinks": "64", "cascades": "4", "run": "1", "contest": "attention", "gamma": "0.9999",
            "heads": "independent", "reduce": "max",
        },
        {"schedule": "fixed", "chunk": "fixed"},
    )  # fmt: skip

    sinks: int = setting(
        64, "first tokens of the source that always stay, at most a 16th of the budget"
    )
    cascades: int = setting(
        4, "sub-caches; the paper takes 4, and 8 for retrieval", least=1, most=MOST_CASCADES
    )
    run: int = setting(
        16,
        "adjacent tokens that are taken, or contest, together; the paper's is 1",
        least=1,
        most=LONGEST_RUN,
    )
    contest: str = setting(
        "keys",
        "who wins: keys least similar to the others, or more attention (the paper's); "
        "none: every token that is not taken is evicted (table 3)",
        choices=("keys", "attention", "none"),
    )
    gamma: float = setting(
        0.9999, "decay of the moving average of attention, for each token", most=1
    )
    heads: str = setting(
        "independent",
        "who decides a contest: each KV head alone, or all heads of a layer together",
        choices=("independent", "shared"),
    )
    reduce: str = setting(
        "max", "how the scores of several heads become one", choices=("max", "mean")
    )

    @property
    def needs_keys(self) -> bool:
        return self._contest == "keys"

    @property
    def _contest(self) -> str:
        """`contest`, or ``none`` with a single sub-cache, which takes every token."""
        return self.contest if self.cascades > 1 else "none"

    def evidence(self) -> Evidence:
        if self._contest != "attention":
            return Evidence()
        return Evidence(accumulated_attention=True, decay=self.gamma, reduce=self.reduce)

    def tensors(self) -> tuple[EntryTensor, ...]:
        return (EntryTensor("ema"),) if self._contest == "attention" else ()

    def head_tensors(self) -> tuple[HeadTensor, ...]:
        return (
            HeadTensor("inserted", dtype=torch.int32, on_host=True),
            HeadTensor("turns", self._of_each, torch.int32, on_host=True),
            HeadTensor("won", self._of_each, torch.int32),
        )

    def _of_each(self, key_dim: int, value_dim: int) -> tuple[int, ...]:
        return (self.cascades,)

    def sized(self, budget: int) -> Cascade:
        return dataclasses.replace(self, sinks=min(self.sinks, budget // SINK_SHARE))

    def absorb(self, step: Step) -> None:
        if self._contest != "attention":
            return
        ema = step.state["ema"]
        old = ema.shape[-1] - step.new
        ema[..., :old] *= self.gamma**step.new
        ema[..., old:] = 0
        if step.accumulated_attention is not None:  # already weighted by gamma ** age
            ema.add_(step.accumulated_attention, alpha=1 - self.gamma)

    def select(self, step: Step, keep: int) -> Tensor:
        layers, heads, n = step.origin.shape
        scores = self._scores(step)
        inserted, turns, won = (step.head_state[name] for name in ("inserted", "turns", "won"))
        chosen = torch.empty(layers, heads, keep, dtype=torch.int64, device=scores.device)
        state = torch.cat((inserted[:, :1], turns[:, 0]), dim=-1).tolist()
        # All layers are in the same state unless their sizes differed at some time (adaptive).
        same = all(s == state[0] for s in state)
        for part in [slice(layers)] if same else [slice(i, i + 1) for i in range(layers)]:
            held, *begun = state[part.start or 0]
            winners = won[part, : scores.shape[1]].bool()
            chosen[part], begun = insert(scores[part], min(held, n), keep, begun, winners, self.run)
            turns[part] = torch.tensor(begun, dtype=torch.int32)
            won[part] = winners.int()
        inserted.fill_(keep)
        return chosen

    def _scores(self, step: Step) -> Tensor:
        """Return scores [G, K, n], or [G, 1, n] if all heads of a layer decide together."""
        layers, _, n = step.origin.shape
        if self._contest == "none":
            return torch.zeros(layers, 1, n, device=step.origin.device)
        scores = step.state["ema"] if self._contest == "attention" else unlikeness(step.keys())
        if self.heads == "independent":
            return scores
        return scores.amax(1, True) if self.reduce == "max" else scores.mean(1, True)
