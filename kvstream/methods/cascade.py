"""Cascade: sub-caches in a row, each of which takes every second token that the one before drops.

Whatever a sub-cache holds was dropped by the one before, so memory in order of age is the deepest
sub-cache, then the next, and at its end the first. Heads differ in who wins a contest, not in how
many take part: a sub-cache is one range of entries in all of them. So little has to be remembered
beside the scores: how many entries lie in sub-caches, and whether each of these takes the next
token or lets it contest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvstream.methods.base import EntryTensor, Evidence, HeadTensor, Method, Step, setting

SINK_SHARE = 16
"""Sinks take at most this part of the budget."""
MOST_CASCADES = 64
"""Sub-caches that there may be: far more than any text needs, as each doubles the span."""


@dataclass(frozen=True)
class Cascade(Method):
    """Keeps a window whose older parts grow sparser, and in them what attention favours.

    Willette et al., "Training-Free Exponential Context Extension via Cascading KV Cache", section
    3.1 and algorithms 1-3. Memory is N sub-caches of equal size. Each takes every second token
    that the one before drops; a token that is not taken contests the newest entry, and the one
    with the higher attention stays (a tie leaves the incumbent). Attention is the moving average
    ``mu <- gamma mu + (1 - gamma) s`` over all queries, the entry's ``ema`` [G, K, n]. The span
    of N full sub-caches of memory m is ``m / N * (2^N - 1)`` tokens (eq. 4); N = 1 is `streaming`.
    The chunk in flight is the paper's stride: seen whole by its own queries, then inserted.

    Where memory grows with the schedule, every sub-cache grows by its part and takes what it is
    offered until it is full again; where memory shrinks, each passes its oldest on as if pushed.

    Departures: sinks count in the budget. As long as a sub-cache or one behind it has room a token
    is taken, where algorithm 2 already lets it contest: memory that is not full loses nothing. The
    normaliser of the attention is exact, where algorithm 3 extrapolates it within its kernel. The
    maximum over the query heads of a group is taken of a chunk's sums, not query by query.
    """

    name: ClassVar[str] = "cascade"
    source: ClassVar[str] = "Cascading KV cache, section 3.1, algorithms 1-3"

    sinks: int = setting(
        64, "first tokens of the source that always stay, at most a 16th of the budget"
    )
    cascades: int = setting(
        4, "sub-caches; the paper takes 4, and 8 for retrieval", least=1, most=MOST_CASCADES
    )
    gamma: float = setting(
        0.9999, "decay of the moving average of attention, for each token", most=1
    )
    heads: str = setting(
        "independent",
        "who decides a contest: each KV head for itself, or all of a layer together",
        choices=("independent", "shared"),
    )
    reduce: str = setting(
        "max", "how the scores of several heads become one", choices=("max", "mean")
    )
    contest: bool = setting(
        True, "token selection; without it a token that is not taken is lost (table 3)"
    )

    def evidence(self) -> Evidence:
        return Evidence(columns=self._scores, decay=self.gamma, reduce=self.reduce)

    @property
    def _scores(self) -> bool:
        return self.contest and self.cascades > 1

    def tensors(self) -> tuple[EntryTensor, ...]:
        return (EntryTensor("ema"),) if self._scores else ()

    def head_tensors(self) -> tuple[HeadTensor, ...]:
        return (
            HeadTensor("inserted", dtype=torch.int32, on_host=True),
            HeadTensor(
                "contests",
                lambda key_dim, value_dim: (self.cascades,),
                torch.int32,
                on_host=True,
            ),
        )

    def sized(self, budget: int) -> Cascade:
        return dataclasses.replace(self, sinks=min(self.sinks, budget // SINK_SHARE))

    def absorb(self, step: Step) -> None:
        if not self._scores:
            return
        ema = step.state["ema"]
        old = ema.shape[-1] - step.new
        ema[..., :old] *= self.gamma**step.new
        ema[..., old:] = 0
        if step.columns is not None:  # already weighted by gamma ** age
            ema.add_(step.columns, alpha=1 - self.gamma)

    def select(self, step: Step, keep: int) -> Tensor:
        layers, heads, n = step.origin.shape
        if self._scores:
            scores = step.state["ema"]
            if self.heads == "shared":
                scores = scores.amax(1, True) if self.reduce == "max" else scores.mean(1, True)
        else:
            scores = torch.zeros(layers, 1, n, device=step.origin.device)
        inserted, contests = step.heads["inserted"], step.heads["contests"]
        chosen = torch.empty(layers, heads, keep, dtype=torch.int64, device=scores.device)
        state = torch.cat((inserted[:, :1], contests[:, 0]), dim=-1).tolist()
        # All layers are in the same state unless their sizes differed at some time (adaptive).
        same = all(s == state[0] for s in state)
        for part in [slice(layers)] if same else [slice(i, i + 1) for i in range(layers)]:
            held, *turns = state[part.start or 0]
            chosen[part], turns = insert(scores[part], min(held, n), keep, turns)
            contests[part] = torch.tensor(turns, dtype=torch.int32)
        inserted.fill_(keep)
        return chosen


def split(size: int, parts: int) -> list[int]:
    """Sizes of `parts` sub-caches that together hold `size`: equal, or the first larger by one."""
    return [size // parts + (part < size % parts) for part in range(parts)]


def insert(
    scores: Tensor, inserted: int, keep: int, contests: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """Algorithm 2 for all candidates behind the first `inserted`; scores stay fixed meanwhile.

    Args:
        scores: [..., n] float32 of all candidates, oldest first.
        inserted: candidates that lie in sub-caches, ``split(inserted, N)`` of them in each.
        keep: entries in sub-caches afterwards, at most n.
        contests: of each sub-cache, 1 if the next token offered to it has to contest, else 0.

    Returns the candidates that stay, [..., keep] in order of age, and the new `contests`.

    A token that is taken pushes the oldest of a full sub-cache on to the next. Between two tokens
    taken stands at most one contest, so a chunk passes through a sub-cache as "the better of each
    pair, then first in, first out", and no loop over tokens is needed.
    """
    parts, n = len(contests), scores.shape[-1]
    held, room = split(inserted, parts), split(keep, parts)
    every = torch.arange(n, device=scores.device).expand(scores.shape)
    offered, end = every[..., inserted:], inserted
    kept: list[Tensor] = []
    turns: list[int] = []
    for part in range(parts):
        inside = every[..., end - held[part] : end]
        end -= held[part]
        count = offered.shape[-1]
        # The first sub-cache takes all; the others do while they or any behind them have room.
        free = count if part == 0 else max(0, sum(room[part:]) - sum(held[part:]))
        free = min(free, count) if room[part] else 0
        inside, rest = torch.cat((inside, offered[..., :free]), dim=-1), offered[..., free:]
        turn = (contests[part] + free) % 2
        if room[part] and rest.shape[-1]:
            if turn:  # the first of the rest contests the newest inside
                inside, rest = inside[..., :-1], torch.cat((inside[..., -1:], rest), dim=-1)
            inside = torch.cat((inside, _winners(scores, rest)), dim=-1)
        turns.append((contests[part] + count) % 2 if part else 0)
        cut = inside.shape[-1] - room[part]
        kept.append(inside[..., cut:])
        offered = inside[..., :cut]
    return torch.cat(kept[::-1], dim=-1), turns


def _winners(scores: Tensor, entries: Tensor) -> Tensor:
    """Of each pair of neighbours [..., 2 i : 2 i + 2] the better; an odd one at the end stays."""
    first, second = entries[..., ::2], entries[..., 1::2]
    pairs = second.shape[-1]
    paired = first[..., :pairs]
    # A tie leaves the incumbent, which is the first.
    better = scores.gather(-1, second) > scores.gather(-1, paired)
    return torch.cat((torch.where(better, second, paired), first[..., pairs:]), dim=-1)
