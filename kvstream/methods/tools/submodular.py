"""Greedy maximization of facility location plus concave importance, for many heads at once.

``g(A) = mixture * f(A) + (1 - mixture) * c(A)`` over subsets A of a ground set V of n entries:
``f(A) = sum_v max_{a in A} sim(v, a) / n`` with ``sim = ReLU(cosine)`` and
``c(A) = phi(sum_{a in A} weight_a) / phi(sum_{v in V} weight_v)``; both are 1 on V.

P independent problems (heads) are solved together. Similarities are computed when they are needed,
at most 256 rows [P, R, n] at a time, and then freed: the whole matrix would take n / (2 D) times
the memory of the keys and values of these heads, 12 times for 1,536 entries of 64 dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kvstream.methods.tools.scoring import noise

ROWS = 64
"""Rows of similarities to compute at once in a pass over many entries."""
FEW_ROWS = 16
"""Rows of similarities to copy at once."""
BOUNDS = 16
"""Number of candidates of each head that a round of lazy greedy evaluates."""

NARROW, WIDE = 64, 256
"""Number of candidates of each head that a round of batched greedy evaluates. There are only two
values, because a CPU with matrix tiles compiles every new shape of a product, in milliseconds."""
COLUMNS = 256
"""The number of columns of similarities is a multiple of this, for the same reason."""

Concave = Callable[[Tensor], Tensor]


def power_like(x: Tensor, alpha: float = 0.04, beta: float = 1.0) -> Tensor:
    """Invert ``y -> alpha * y ** (1 / alpha) + beta * y``: linear, then nearly flat."""
    # Each term alone gives an upper bound of y. The function is convex, so Newton's method descends
    # from there to the root without overshooting.
    y = torch.minimum(x / beta, (x / alpha) ** alpha)
    for _ in range(8):
        high = y ** (1 / alpha - 1)
        y = y - (alpha * high * y + beta * y - x) / (high + beta)
    return y


CONCAVE: dict[str, Concave] = {"log": torch.log1p, "power": power_like}


class Mixture:
    """g over P ground sets, and what entries would add to a growing subset of each.

    Args:
        keys: [P, n, D], any float dtype, in which products are computed.
        weights: [P, n] importance, 0 or more.
        mixture: weight of facility location.
        concave: phi.
    """

    def __init__(self, keys: Tensor, weights: Tensor, mixture: float, concave: Concave) -> None:
        # Zero entries at the end change nothing.
        self.unit = normalized(keys, -keys.shape[1] % COLUMNS)
        # [P, m, D] and [P, D, m], so that no factor of a product is copied and rows are contiguous.
        self.keys = self.unit.transpose(1, 2).contiguous()
        self.heads, self.n = weights.shape
        # In double precision: late gains are small differences of saturated values.
        self.weights = weights.double().clamp_min(0)
        self.concave = concave
        self.share = mixture / self.n
        total = concave(self.weights.sum(-1, keepdim=True)).clamp_min(1e-30)
        self.importance = (1 - mixture) / total  # [P, 1]
        self.best = keys.new_zeros(self.heads, 1, self.keys.shape[2])
        """[P, 1, m]: similarity of every entry to the closest added entry. It starts at zero, which
        implements the ReLU."""
        self.entries = torch.arange(self.keys.shape[2], device=keys.device).expand(self.heads, -1)
        """[P, m]: index of the entry of each column of `keys` and `best`."""
        self.added = torch.zeros_like(self.entries, dtype=torch.bool)
        """[P, n and padding]: whether an entry was added."""
        self.count = 0
        """Number of entries that each head has added."""
        self.mass = self.weights.new_zeros(self.heads, 1)
        """[P, 1]: sum of the weights of added entries."""

    def rows(self, entries: Tensor) -> Tensor:
        """Return the cosines [P, R, m] of `entries` [P, R] with all columns."""
        return _pick(self.unit, entries) @ self.keys

    def covers(self, rows: Tensor) -> Tensor:
        """Return what entries with `rows` [P, R, m] would add to facility location: [P, R]."""
        # In blocks, because each comparison makes a copy.
        parts = rows.split(FEW_ROWS, dim=1)
        sums = [torch.maximum(p, self.best).sum(-1, dtype=torch.float32) for p in parts]
        after = torch.cat(sums, dim=1)
        before = self.best.sum(-1, dtype=torch.float32)
        return (after - before).double() * self.share

    def weighs(self, weights: Tensor) -> Tensor:
        """Return what entries of these `weights` [P, R] would add to importance: [P, R]."""
        return (self.concave(self.mass + weights) - self.concave(self.mass)) * self.importance

    def gains(self, entries: Tensor, rows: Tensor) -> Tensor:
        """Return what each of `entries` [P, R], with its `rows`, would add to g: [P, R] float64."""
        return self.covers(rows) + self.weighs(self.weights.gather(1, entries))

    def add(self, entries: Tensor, rows: Tensor) -> None:
        """Add `entries` [P, R], whose rows are `rows` [P, R, m]."""
        self.reach(rows)
        self.weigh(entries)

    def reach(self, rows: Tensor) -> None:
        """Update `best` with the rows [P, R, m] of added entries."""
        self.best = torch.maximum(self.best, rows.amax(1, keepdim=True))

    def weigh(self, entries: Tensor) -> None:
        """Add the weights of `entries` [P, R], whose rows were given to `reach`."""
        self.mass = self.mass + self.weights.gather(1, entries).sum(1, keepdim=True)
        self.added.scatter_(1, entries, True)
        self.count += entries.shape[1]

    def begin(self, entries: Tensor) -> None:
        """Add any number of entries [P, R], in blocks."""
        for part in entries.split(ROWS, dim=1):
            if part.shape[1]:
                self.add(part, self.rows(part))

    def narrow(self) -> None:
        """Remove the columns of added entries, which are their own closest and cannot gain more.

        No entry may have been added twice. Does nothing until it saves a quarter of the columns.
        """
        m, size = self.entries.shape[1], self.unit.shape[1] - self.count
        size += -size % COLUMNS
        if size > m * 3 // 4:
            return
        mask = self.added.gather(1, self.entries)
        rest = mask.byte().sort(dim=1, stable=True).indices[:, :size]
        self.entries = self.entries.gather(1, rest)
        self.best = self.best.gather(2, rest[:, None])
        self.keys = _pick(self.unit, self.entries).transpose(1, 2).contiguous()


def stochastic_greedy(
    g: Mixture, candidates: int, count: int, samples: int, picks: int, generator: torch.Generator
) -> Tensor:
    """Select `count` of the first `candidates` entries: [P, count], in the order they are added.

    Each step adds the best of `samples` random candidates (Mirzasoleiman et al., "Lazier than lazy
    greedy"). A round evaluates `picks` disjoint samples before it adds the best of each; more than
    1 saves time and, among hundreds of entries, loses next to nothing. A step of the published
    algorithm draws from all candidates that are left. Here, candidates are drawn without
    replacement until less than a round is left, and then shuffled again.
    """
    device = g.weights.device
    pool = torch.arange(candidates, device=device).expand(g.heads, -1)
    entries = []
    missing = count
    while missing:
        pool = pool.gather(1, noise(pool.shape, generator, device).argsort(1))
        size = min(samples, pool.shape[1])
        window = max(1, min(picks, pool.shape[1] // size)) * size
        rest, first = [], 0
        while missing and first + window <= pool.shape[1]:
            g.narrow()
            sample = pool[:, first : first + window]
            first += window
            rows = g.rows(sample)
            groups = g.gains(sample, rows).unflatten(1, (-1, size))
            groups = groups[:, : min(missing, groups.shape[1])]
            places = groups.argmax(-1)  # [P, picks]
            offset = torch.arange(places.shape[1], device=device) * size
            top = sample.gather(1, places + offset)
            g.add(top, _pick(rows, places + offset))
            entries.append(top)
            missing -= top.shape[1]
            # Remove the picked one of each group: overwrite it with the first, then drop the first.
            groups = sample.unflatten(1, (-1, size))[:, : places.shape[1]]
            groups = groups.scatter(2, places[..., None], groups[..., :1])
            rest.append(groups[..., 1:].flatten(1))
            del rows  # free them before the next ones are computed
        pool = torch.cat((*rest, pool[:, first:]), dim=1)
    return torch.cat(entries, dim=1)


def lazy_greedy(g: Mixture, candidates: int, count: int) -> Tensor:
    """Select with exact greedy, which adds the best of all candidates in each step: [P, count].

    An earlier gain in facility location is an upper bound of the later gain (Minoux, "Accelerated
    greedy algorithms"); the gain in importance is always exact. Each round evaluates the most
    promising candidates of every head again, and adds the best while it beats the bounds of all
    others. Ties go to the oldest entry. The loop reads values to find its end, so every round waits
    for the GPU.
    """
    device = g.weights.device
    bounds, weights = _bounds(g, candidates), g.weights[:, :candidates]
    entries = torch.empty(g.heads, count, dtype=torch.int64, device=device)
    counts = torch.zeros(g.heads, dtype=torch.int64, device=device)
    width = min(BOUNDS, candidates)
    heads = torch.arange(g.heads, device=device)
    while bool((counts < count).any()):
        # A stable sort puts the oldest of equals first, which is added; `topk` could leave it out.
        worth = bounds + g.weighs(weights)
        trials = worth.sort(dim=1, descending=True, stable=True).indices[:, :width]
        trials = trials.sort(1).values  # by age, so that the first maximum is the oldest
        rows = g.rows(trials)
        for _ in range(width):
            fresh = g.covers(rows)
            fresh[bounds.gather(1, trials) == -torch.inf] = -torch.inf
            bounds.scatter_(1, trials, fresh)
            top = (bounds + g.weighs(weights)).argmax(1)
            here = (trials == top[:, None]) & (counts < count)[:, None]
            sure = here.any(1)  # the best bound is a fresh gain
            if not bool(sure.any()):
                break
            row = rows[heads, here.int().argmax(1)]
            closer = torch.maximum(g.best[:, 0], row)
            g.best[:, 0] = torch.where(sure[:, None], closer, g.best[:, 0])
            weight = weights.gather(1, top[:, None])
            g.mass = g.mass + torch.where(sure[:, None], weight, 0)
            entries[heads[sure], counts[sure]] = top[sure]
            counts += sure
            bounds[heads[sure], top[sure]] = -torch.inf
    return entries


def batched_greedy(g: Mixture, candidates: int, count: int) -> Tensor:
    """Select in few rounds: not exact, but deterministic.

    A round takes the candidates with the highest bounds of `lazy_greedy`, at least twice as many as
    it adds, evaluates them again and adds the best. The first rounds are small, because their picks
    overlap most.
    """
    bounds, weights = _bounds(g, candidates), g.weights[:, :candidates]
    entries: list[Tensor] = []
    size = 0
    # Rows of WIDE candidates take WIDE / D times the memory of the keys. If that is more than the
    # keys, compute them in blocks, and again for those that are added.
    fits = g.unit.shape[2] >= WIDE
    while size < count:
        early = size < 2 * NARROW
        most = min(max(8, size // 2), NARROW // 2) if early else WIDE // 2
        take, width = min(count - size, most), NARROW if early else WIDE
        width = min(width, candidates - size)
        g.narrow()
        trials = (bounds + g.weighs(weights)).topk(width, dim=1).indices
        rows = g.rows(trials) if fits else None
        if rows is not None:
            covers = g.covers(rows)
        else:
            covers = torch.cat([g.covers(g.rows(p)) for p in trials.split(ROWS, dim=1)], dim=1)
        bounds.scatter_(1, trials, covers)
        places = (covers + g.weighs(weights.gather(1, trials))).topk(take, dim=1).indices
        top = trials.gather(1, places)
        for part in places.split(FEW_ROWS, dim=1):
            chosen_rows = g.rows(trials.gather(1, part)) if rows is None else _pick(rows, part)
            g.reach(chosen_rows)
        g.weigh(top)
        del rows  # free them before the next ones are computed
        bounds.scatter_(1, top, -torch.inf)
        entries.append(top)
        size += take
    return torch.cat(entries, dim=1)


def _bounds(g: Mixture, candidates: int) -> Tensor:
    """Return present gains [P, n] of candidates in facility location, which bound later ones."""
    # A single problem can afford larger products, which take less time per row.
    parts = g.unit[:, :candidates].split(2 * ROWS if g.heads == 1 else ROWS, dim=1)
    return torch.cat([g.covers(part @ g.keys) for part in parts], dim=1)


def streaming(keys: Tensor, weights: Tensor, size: int, mixture: float, concave: Concave) -> Tensor:
    """Return the entries of a summary of `size` after a pass over all, oldest first: [P, size].

    Each new entry enters, and the entry with the smallest conditional gain given the others leaves
    (BumbleBee, algorithm 2). The ground set of each step is the summary with the new entry. There
    every entry is its own closest, so one that leaves takes ``1 - (similarity to the nearest
    other)`` from facility location, and only nearest neighbors have to be updated. Weights are
    those after the last entry. The loop reads how many entries lose their nearest neighbor, so
    every new entry waits for the GPU.

    Args:
        keys: [P, n, D]; weights: [P, n]; ``size < n``.
    """
    heads, n, _ = keys.shape
    device = keys.device
    unit = normalized(keys)
    weights = weights.double().clamp_min(0)
    head = torch.arange(heads, device=device)
    summary = torch.arange(size + 1, device=device).repeat(heads, 1)
    unit_summary = unit[:, : size + 1].clone()
    near = torch.empty(heads, size + 1, dtype=torch.float32, device=device)
    whose = torch.empty(heads, size + 1, dtype=torch.int64, device=device)
    for first in range(0, size + 1, FEW_ROWS):
        part = slice(first, min(first + FEW_ROWS, size + 1))
        cosines = (unit_summary[:, part] @ unit_summary.transpose(1, 2)).float()
        cosines.diagonal(offset=first, dim1=1, dim2=2).fill_(-1)
        near[:, part], whose[:, part] = cosines.max(-1)
    worst = torch.full((heads,), size, dtype=torch.int64, device=device)
    mass = weights[:, : size + 1].sum(1)
    for newcomer in range(size, n):
        if newcomer > size:
            summary[head, worst] = newcomer
            unit_summary[head, worst] = unit[:, newcomer]
            cosines = (unit_summary @ unit[:, newcomer, :, None])[..., 0].float()
            cosines[head, worst] = -1
            near[head, worst], whose[head, worst] = cosines.max(-1)
            closer = cosines > near
            near = torch.where(closer, cosines, near)
            whose = torch.where(closer, worst[:, None], whose)
            mass = mass + weights[:, newcomer]
        own = weights.gather(1, summary)
        total = concave(mass)[:, None]
        loss = (total - concave((mass[:, None] - own).clamp_min(0))) / total.clamp_min(1e-30)
        alone = (1 - near.clamp_min(0)).double() / (size + 1)
        worst = (mixture * alone + (1 - mixture) * loss).argmin(1)
        mass = mass - own[head, worst]
        orphans = whose == worst[:, None]
        most = int(orphans.sum(1).max())
        if most:
            # Some heads have fewer orphans: their other rows are computed again, unchanged.
            for rows in orphans.int().topk(most, dim=1).indices.split(FEW_ROWS, dim=1):
                cosines = (_pick(unit_summary, rows) @ unit_summary.transpose(1, 2)).float()
                cosines.scatter_(2, rows[..., None], -1)
                cosines.scatter_(2, worst[:, None, None].expand(-1, rows.shape[1], 1), -1)
                nearest = cosines.max(-1)
                near.scatter_(1, rows, nearest.values)
                whose.scatter_(1, rows, nearest.indices)
    keep = torch.ones_like(summary, dtype=torch.bool)
    keep[head, worst] = False
    return summary[keep].view(heads, size).sort(1).values


def normalized(keys: Tensor, more: int = 0) -> Tensor:
    """Return keys [P, n, D] divided by their length, in their own dtype, then `more` zero keys."""
    heads, n, width = keys.shape
    unit = keys.new_empty(heads, n + more, width)
    unit[:, n:] = 0
    for first in range(0, n, ROWS):  # in blocks, as float32 may be twice as large
        rows = slice(first, min(first + ROWS, n))
        part = keys[:, rows].float()
        unit[:, rows] = part / part.norm(dim=-1, keepdim=True).clamp_min_(1e-12)
    return unit


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """Return the rows [P, R, D] of x [P, n, D] at index [P, R]."""
    heads, n, _ = x.shape
    flat = index + torch.arange(heads, device=x.device)[:, None] * n
    # Several times as fast as `gather`, which copies single elements.
    return x.flatten(0, 1).index_select(0, flat.flatten()).unflatten(0, (heads, -1))
