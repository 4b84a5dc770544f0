"""How tokens pass through the sub-caches of `cascade`: algorithm 2 of its paper, for a whole chunk.

Of every two runs of `run` tokens that a sub-cache is offered, it takes the first. The second
contests the place of the first. The contest is decided when the first token of the second run
arrives: the rest of the run is still in the previous sub-cache, so its scores are known. Then each
token of the second run replaces one token of the first, or is lost, so a full sub-cache always
holds the same number of tokens. With runs of one token this is the rule of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def split(size: int, parts: int) -> list[int]:
    """Return the sizes of `parts` sub-caches for `size` entries: equal, or the first ones +1."""
    return [size // parts + (part < size % parts) for part in range(parts)]


def insert(
    scores: Tensor, inserted: int, keep: int, turns: Sequence[int], won: Tensor, run: int
) -> tuple[Tensor, list[int]]:
    """Run algorithm 2 for all candidates after the first `inserted`, with fixed scores.

    Args:
        scores: [..., n] float32 of all candidates, oldest first.
        inserted: number of candidates in sub-caches, ``split(inserted, N)`` of them in each.
        keep: number of entries in sub-caches afterwards, at most n.
        turns: for each sub-cache, how many tokens of its two runs it was offered, below ``2 run``.
        won: [..., N] bool, whether the contesting run has won; updated in place.
        run: number of tokens that are taken, or contest, together.

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
        # The first sub-cache takes all tokens; others do while they or any later ones have room.
        free = offered.shape[-1] if room[part] else 0
        if part:
            free = min(free, max(0, sum(room[part:]) - sum(held[part:])))
        inside, rest = torch.cat((inside, offered[..., :free]), dim=-1), offered[..., free:]
        turn = (turns[part] + free) % (2 * run)
        if free and turn > run:  # the second run began without a contest: the rest of it loses
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
    """Return what a full sub-cache holds after it was offered entries, before its oldest leave.

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
    """Return the better run of each pair of runs in entries [..., 2 run p]: [..., run p]."""
    first, second = entries.unflatten(-1, (entries.shape[-1] // (2 * run), 2, run)).unbind(-2)
    # In a tie the first run stays.
    better = _mean(scores, second) > _mean(scores, first)
    return torch.where(better[..., None], second, first).flatten(-2)


def _replace(inside: Tensor, tokens: Tensor, won: Tensor, run: int) -> Tensor:
    """Return `inside` with `tokens` instead of the oldest ones of its newest run, where `won`."""
    older, newest = inside.tensor_split((max(0, inside.shape[-1] - run),), dim=-1)
    moved = torch.cat((newest, tokens), dim=-1)[..., tokens.shape[-1] :]
    return torch.cat((older, torch.where(won[..., None], moved, newest)), dim=-1)


def _mean(scores: Tensor, entries: Tensor) -> Tensor:
    """Return the mean score of each run in entries [..., p, run], or of one run [..., run]."""
    rows = entries.flatten(scores.ndim - 1)
    return scores.gather(-1, rows).view(entries.shape).mean(-1)
