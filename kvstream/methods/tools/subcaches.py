"""How tokens pass through the sub-caches of `cascade`: algorithm 2 of its paper, for a whole chunk.

A sub-cache takes the first of every two runs of `run` tokens that it is offered, and lets the
second contest for the place of the first. A run that has to contest is decided upon when its first
token comes: what follows it is still in the sub-cache in front, where its scores can be seen. From
then on each of its tokens takes the place of one token of the other run, or is lost. So with every
token a sub-cache holds as many as before. With runs of one token this is the paper's rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def split(size: int, parts: int) -> list[int]:
    """Sizes of `parts` sub-caches that together hold `size`: equal, or the first larger by one."""
    return [size // parts + (part < size % parts) for part in range(parts)]


def insert(
    scores: Tensor, inserted: int, keep: int, turns: Sequence[int], won: Tensor, run: int
) -> tuple[Tensor, list[int]]:
    """Algorithm 2 for all candidates behind the first `inserted`; scores stay fixed meanwhile.

    Args:
        scores: [..., n] float32 of all candidates, oldest first.
        inserted: candidates that lie in sub-caches, ``split(inserted, N)`` of them in each.
        keep: entries in sub-caches afterwards, at most n.
        turns: of each sub-cache, tokens of its two runs that it was offered, below ``2 run``.
        won: [..., N] bool, whether the run that contests has won; written.
        run: tokens that are taken, or contest, together.

    Returns the candidates that stay, [..., keep] in order of age, and the new `turns`.
    """
    parts, n = len(turns), scores.shape[-1]
    held, room = split(inserted, parts), split(keep, parts)
    every = torch.arange(n, device=scores.device).expand(scores.shape)
    offered, end = every[..., inserted:], inserted
    kept: list[Tensor] = []
    after: list[int] = []
    for part in range(parts):
        inside = every[..., end - held[part] : end]
        end -= held[part]
        # The first sub-cache takes all; the others do while they or any behind them have room.
        free = offered.shape[-1] if room[part] else 0
        if part:
            free = min(free, max(0, sum(room[part:]) - sum(held[part:])))
        inside, rest = torch.cat((inside, offered[..., :free]), dim=-1), offered[..., free:]
        turn = (turns[part] + free) % (2 * run)
        if free and turn > run:  # it was taken without a contest, and the rest of it loses
            won[..., part] = False
        if room[part] and rest.shape[-1]:
            inside = _contest(scores, inside, rest, kept[-1], turn, won[..., part], run)
        after.append((turn + rest.shape[-1]) % (2 * run) if part else 0)
        cut = inside.shape[-1] - room[part]
        kept.append(inside[..., cut:])
        offered = inside[..., :cut]
    return torch.cat(kept[::-1], dim=-1), after


def _contest(
    scores: Tensor, inside: Tensor, offered: Tensor, ahead: Tensor, turn: int, won: Tensor, run: int
) -> Tensor:
    """What a full sub-cache holds after it was offered entries, before its oldest leave.

    `ahead` are the entries that will be offered next; `turn` and `won` are those of `insert`.
    """
    if turn > run:  # a contest has begun
        left = offered[..., : 2 * run - turn]
        inside, offered = _replace(inside, left, won, run), offered[..., 2 * run - turn :]
        turn = 0
    begun = min(turn, inside.shape[-1])
    inside, undecided = inside.tensor_split((inside.shape[-1] - begun,), dim=-1)
    offered = torch.cat((undecided, offered), dim=-1)
    pairs = offered.shape[-1] // (2 * run)
    paired, first, second = offered.tensor_split((2 * run * pairs, 2 * run * pairs + run), dim=-1)
    inside = torch.cat((inside, _winners(scores, paired, run), first), dim=-1)
    if second.shape[-1]:
        whole = torch.cat((second, ahead[..., : run - second.shape[-1]]), dim=-1)
        won.copy_(_mean(scores, whole) > _mean(scores, first))
        inside = _replace(inside, second, won, run)
    return inside


def _winners(scores: Tensor, entries: Tensor, run: int) -> Tensor:
    """Of each pair of runs in entries [..., 2 run p] the better, [..., run p]."""
    first, second = entries.unflatten(-1, (entries.shape[-1] // (2 * run), 2, run)).unbind(-2)
    # A tie leaves the incumbent, which is the first.
    better = _mean(scores, second) > _mean(scores, first)
    return torch.where(better[..., None], second, first).flatten(-2)


def _replace(inside: Tensor, tokens: Tensor, won: Tensor, run: int) -> Tensor:
    """`inside` with each token in the place of one of the newest run, oldest first, where `won`."""
    older, newest = inside.tensor_split((max(0, inside.shape[-1] - run),), dim=-1)
    moved = torch.cat((newest, tokens), dim=-1)[..., tokens.shape[-1] :]
    return torch.cat((older, torch.where(won[..., None], moved, newest)), dim=-1)


def _mean(scores: Tensor, entries: Tensor) -> Tensor:
    """Mean score of entries [..., p, run] or [..., run] of each of p runs, or of one."""
    rows = entries.flatten(scores.ndim - 1)
    return scores.gather(-1, rows).view(entries.shape).mean(-1)
