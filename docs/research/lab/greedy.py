"""Measure how close the algorithms of `bumblebee` come to exact greedy, on the keys of a model.

See docs/research/papers.md.

    python docs/research/lab/greedy.py bumblebee:algorithm=fast --model smollm2 \\
        --text ../shared/data/books/*.gz --heldout --trials 2

The script reads a part of each text with `bumblebee`. It solves the selection of the last step of
every layer again with each algorithm. It prints the value of what the algorithm selects, divided by
the value of what exact greedy (`lazy`) selects from the same entries: the mean and the minimum of
this ratio, and the seconds. `fast` solves one problem for all heads of a layer, so its ratio is to
exact greedy on that problem. `random` is a random selection, `importance` the entries with the most
attention: a ratio near theirs says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvstream.methods.base import Step
from kvstream.methods.bumblebee import BumbleBee, _joined
from kvstream.methods.tools.submodular import (
    Mixture,
    batched_greedy,
    lazy_greedy,
    logarithm,
    stochastic_greedy,
)
from likelihood import case_of, document, opened, options, reading

MIXTURE = 0.3
Solver = Callable[[Mixture, int, int], Tensor]


def stochastic(samples: int, picks: int) -> Solver:
    generator = torch.Generator().manual_seed(0)
    return lambda g, old, count: stochastic_greedy(g, old, count, samples, picks, generator)


def anything(g: Mixture, old: int, count: int) -> Tensor:
    draw = torch.rand(g.heads, old, generator=torch.Generator().manual_seed(0))
    return draw.argsort(1)[:, :count]


def importance(g: Mixture, old: int, count: int) -> Tensor:
    return g.weights[:, :old].topk(count, dim=1).indices


OF_HEADS: dict[str, Solver] = {
    "lazy": lazy_greedy,
    "stochastic, 23 samples, 1 pick (paper)": stochastic(23, 1),
    "stochastic, 8 samples, 8 picks (default)": stochastic(8, 8),
    "random": anything,
    "importance": importance,
}
OF_LAYERS: dict[str, Solver] = {"lazy": lazy_greedy, "fast": batched_greedy, "random": anything}


@dataclass(frozen=True)
class Problem:
    keys: Tensor
    """[1, K, n, D]"""
    attention: Tensor
    """[1, K, n]"""
    keep: int


def watched(select: Callable[[BumbleBee, Step, int], Tensor], found: dict[int, Problem]) -> Any:
    """Return `bumblebee`'s `select`; it also puts the last problem of every layer into `found`."""

    def watching(method: BumbleBee, step: Step, keep: int) -> Tensor:
        keys, attention = step.keys().clone(), step.state["attention"].clone()
        for at, layer in enumerate(step.layers):
            found[layer] = Problem(keys[at : at + 1], attention[at : at + 1], keep)
        return select(method, step, keep)

    return watching


def solved(
    solvers: dict[str, Solver], keys: Tensor, weights: Tensor, keep: int
) -> dict[str, tuple[Tensor, float]]:
    """Return for each algorithm the value [P] of what it selects, and its seconds."""
    recent = min(32, keep)
    heads, n = weights.shape
    newest = torch.arange(n - recent, n).expand(heads, -1)
    values = {}
    for name, solve in solvers.items():
        began = time.process_time()
        g = Mixture(keys, weights, MIXTURE, logarithm)
        g.begin(newest)
        chosen = solve(g, n - recent, keep - recent)
        seconds = time.process_time() - began
        judge = Mixture(keys, weights, MIXTURE, logarithm)
        judge.begin(newest)
        judge.begin(chosen)
        values[name] = (judge.value(), seconds)
    return values


def main() -> None:
    asked = options(__doc__ or "").parse_args()
    session, filler = opened(asked)
    found: dict[int, Problem] = {}
    BumbleBee.select = watched(BumbleBee.select, found)  # type: ignore[method-assign]
    ratios: dict[str, list[Tensor]] = {}
    seconds: dict[str, float] = {}
    for trial in range(asked.trials):
        doc = document(session, filler, "passage", asked.tokens, [0.5], 1, 1, trial)
        reading(session, doc, case_of(asked.cases[0], asked), read=True)
        for of in found.values():
            keys, weights = of.keys.flatten(0, 1), of.attention.flatten(0, 1)
            of_heads = solved(OF_HEADS, keys, weights, of.keep)
            of_layer = solved(OF_LAYERS, _joined(of.keys), of.attention.mean(1), of.keep)
            for prefix, values in (("", of_heads), ("one problem a layer: ", of_layer)):
                for name, (value, took) in values.items():
                    ratios.setdefault(prefix + name, []).append(value / values["lazy"][0])
                    seconds[prefix + name] = seconds.get(prefix + name, 0.0) + took
    n = next(iter(found.values())).keys.shape[2]
    print(f"{asked.model}, {asked.trials} texts, the last step of {len(found)} layers, n = {n}")
    for name, parts in ratios.items():
        each = torch.cat(parts)
        print(
            f"{name:55} {len(each):5} problems  ratio {each.mean():.4f}, least {each.min():.4f}"
            f"  {seconds[name]:.1f} s"
        )


if __name__ == "__main__":
    main()
