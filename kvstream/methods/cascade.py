"""Cascade: a chain of sub-caches, each of which takes every second run that the previous one drops.

A sub-cache holds only entries that the previous one dropped. So memory in order of age is the last
sub-cache of the chain, then the one before it, and at the end the first. Heads differ in which run
wins a contest, not in how many entries take part, so a sub-cache is the same range of entries in
all heads. Therefore the state beside the scores is small: the number of entries in sub-caches, the
position of each sub-cache in its two runs, and the result of an unfinished contest.

`insert` is algorithm 2 of the paper for a whole chunk. Of every two runs of `run` tokens that a
sub-cache is offered, it takes the first. The second contests the place of the first. The contest is
decided when the first token of the second run arrives: the rest of the run is still in the previous
sub-cache, so its scores are known. Then each token of the second run replaces one token of the
first, or is lost, so a full sub-cache always holds the same number of tokens. With runs of one
token this is the rule of the paper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvstream.methods.base import EntryTensor, Evidence, HeadTensor, Method, Preset, Step, setting
from kvstream.methods.keydiff import unlikeness

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
            HeadTensor("turns", lambda *dims: (self.cascades,), torch.int32, on_host=True),
            HeadTensor("won", lambda *dims: (self.cascades,), torch.int32),
        )

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
        counts, turns, won = (step.head_state[name] for name in ("inserted", "turns", "won"))
        entries = torch.empty(layers, heads, keep, dtype=torch.int64, device=scores.device)
        state = torch.cat((counts[:, :1], turns[:, 0]), dim=-1).tolist()
        # All layers are in the same state unless their sizes differed at some time (adaptive).
        same = all(s == state[0] for s in state)
        for part in [slice(layers)] if same else [slice(i, i + 1) for i in range(layers)]:
            count, *turn = state[part.start or 0]
            winners = won[part, : scores.shape[1]].bool()
            entries[part], turn = insert(scores[part], min(count, n), keep, turn, winners, self.run)
            turns[part] = torch.tensor(turn, dtype=torch.int32)
            won[part] = winners.int()
        counts.fill_(keep)
        return entries

    def _scores(self, step: Step) -> Tensor:
        """Return scores [G, K, n], or [G, 1, n] if all heads of a layer decide together."""
        layers, _, n = step.origin.shape
        if self._contest == "none":
            return torch.zeros(layers, 1, n, device=step.origin.device)
        scores = step.state["ema"] if self._contest == "attention" else unlikeness(step.keys())
        if self.heads == "independent":
            return scores
        return scores.amax(1, True) if self.reduce == "max" else scores.mean(1, True)


def split(size: int, parts: int) -> list[int]:
    """Return the sizes of `parts` sub-caches for `size` entries: equal, or the first ones +1."""
    return [size // parts + (part < size % parts) for part in range(parts)]


def insert(
    scores: Tensor, count: int, keep: int, turns: Sequence[int], won: Tensor, run: int
) -> tuple[Tensor, list[int]]:
    """Run algorithm 2 for all candidates after the first `count`, with fixed scores.

    Args:
        scores: [..., n] float32 of all candidates, oldest first.
        count: number of candidates in sub-caches, ``split(count, N)`` of them in each.
        keep: number of entries in sub-caches afterwards, at most n.
        turns: for each sub-cache, how many tokens of its two runs it was offered, below ``2 run``.
        won: [..., N] bool, whether the contesting run has won; updated in place.
        run: number of tokens that are taken, or contest, together.

    Returns the candidates that stay, [..., keep] in order of age, and the new `turns`.
    """
    parts, n = len(turns), scores.shape[-1]
    sizes, room = split(count, parts), split(keep, parts)
    every = torch.arange(n, device=scores.device).expand(scores.shape)
    offers, end = every[..., count:], count
    caches: list[Tensor] = []
    after: list[int] = []
    for part in range(parts):
        inside = every[..., end - sizes[part] : end]
        end -= sizes[part]
        # The first sub-cache takes all tokens; others do while they or any later ones have room.
        free = offers.shape[-1] if room[part] else 0
        if part:
            free = min(free, max(0, sum(room[part:]) - sum(sizes[part:])))
        inside, rest = torch.cat((inside, offers[..., :free]), dim=-1), offers[..., free:]
        turn = (turns[part] + free) % (2 * run)
        if free and turn > run:  # the second run began without a contest: the rest of it loses
            won[..., part] = False
        if room[part] and rest.shape[-1]:
            inside = _contest(scores, inside, rest, caches[-1], turn, won[..., part], run)
        after.append((turn + rest.shape[-1]) % (2 * run) if part else 0)
        cut = inside.shape[-1] - room[part]
        caches.append(inside[..., cut:])
        offers = inside[..., :cut]
    return torch.cat(caches[::-1], dim=-1), after


def _contest(
    scores: Tensor, inside: Tensor, offers: Tensor, ahead: Tensor, turn: int, won: Tensor, run: int
) -> Tensor:
    """Return what a full sub-cache holds after it was offered entries, before its oldest leave.

    `ahead` are the entries that will be offered next; `turn` and `won` are those of `insert`.
    """
    if turn > run:  # a contest has begun
        rest = offers[..., : 2 * run - turn]
        inside, offers = _replace(inside, rest, won, run), offers[..., 2 * run - turn :]
        turn = 0
    size = min(turn, inside.shape[-1])
    inside, tail = inside.tensor_split((inside.shape[-1] - size,), dim=-1)
    offers = torch.cat((tail, offers), dim=-1)
    pairs = offers.shape[-1] // (2 * run)
    contests, first, second = offers.tensor_split((2 * run * pairs, 2 * run * pairs + run), dim=-1)
    inside = torch.cat((inside, _winners(scores, contests, run), first), dim=-1)
    if second.shape[-1]:
        whole = torch.cat((second, ahead[..., : run - second.shape[-1]]), dim=-1)
        won.copy_(_mean(scores, whole) > _mean(scores, first))
        inside = _replace(inside, second, won, run)
    return inside


def _winners(scores: Tensor, entries: Tensor, run: int) -> Tensor:
    """Return the better run of each pair of runs in entries [..., 2 run p]: [..., run p]."""
    first, second = entries.unflatten(-1, (entries.shape[-1] // (2 * run), 2, run)).unbind(-2)
    # In a tie the first run stays.
    better = _mean(scores, second) > _mean(scores, first)
    return torch.where(better[..., None], second, first).flatten(-2)


def _replace(inside: Tensor, tokens: Tensor, won: Tensor, run: int) -> Tensor:
    """Return `inside` with `tokens` instead of the oldest ones of its newest run, where `won`."""
    older, newest = inside.tensor_split((max(0, inside.shape[-1] - run),), dim=-1)
    after = torch.cat((newest, tokens), dim=-1)[..., tokens.shape[-1] :]
    return torch.cat((older, torch.where(won[..., None], after, newest)), dim=-1)


def _mean(scores: Tensor, entries: Tensor) -> Tensor:
    """Return the mean score of each run in entries [..., p, run], or of one run [..., run]."""
    rows = entries.flatten(scores.ndim - 1)
    return scores.gather(-1, rows).view(entries.shape).mean(-1)
