"""BumbleBee: submodular selection of entries that are diverse and important."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvstream.methods.base import Preset, Step, setting
from kvstream.methods.h2o import Attended
from kvstream.methods.tools import submodular
from kvstream.methods.tools.scoring import pool, pooling_width

MOST_SAMPLES = 256
"""Maximum of `samples` and of `picks`: with more, exact greedy takes no longer."""


@dataclass(frozen=True)
class BumbleBee(Attended):
    """Keeps entries that represent all others (facility location) and received attention.

    Kumari et al., "BumbleBee: Dynamic KV-Cache Streaming Submodular Summarization for
    Infinite-Context Transformers", section 5. For each head, selects the subset A of the n present
    entries (memory and chunk, eqs. 2-4) that maximizes ``mixture * f(A) + (1 - mixture) * c(A)``,
    with ``f(A) = sum_v max_{a in A} ReLU(cos(k_v, k_a)) / n`` on unrotated keys [K, n, D] and
    ``c(A) = phi(sum_{a in A} s_a) / phi(sum_v s_v)`` on the accumulated attention s [K, n].
    The newest entries always stay, and count as members of A (not with ``streaming``).

    Algorithms: ``lazy`` is algorithm 1 exactly, ``stochastic`` the paper's choice for long
    prompts, ``streaming`` algorithm 2 token by token; ``fast`` solves one problem for all heads
    of a layer (joint cosines of their keys, mean attention) in few rounds. ``lazy`` and
    ``streaming`` read values to find their end, so they wait for a GPU many times per layer.

    Departures: the ground set of a step is the present entries without prompt and sinks, because
    the others were evicted; algorithm 2 uses the attention at the end of the chunk; eight samples
    are evaluated at once, where the paper evaluates one; candidates are drawn again only when
    nearly all were drawn; the size of a sample is a setting, not the 23 of epsilon 1e-5.
    """

    name: ClassVar[str] = "bumblebee"
    source: ClassVar[str] = "BumbleBee, section 5, algorithms 1 and 2"
    needs_keys = True
    paper: ClassVar[Preset] = Preset(
        "BumbleBee, section 6.3 and appendix D",
        {
            "mixture": "0.3", "concave": "log", "algorithm": "stochastic", "samples": "23",
            "picks": "1", "pool": "1", "recent": "0", "sinks": "0", "centered": "false",
        },
        {"schedule": "fixed", "chunk": "fixed"},
    )  # fmt: skip

    mixture: float = setting(
        0.3, "lambda: weight of facility location; importance has the rest", most=1
    )
    concave: str = setting(
        "log",
        "concave function of the importance: log(1 + x), or power-like",
        choices=tuple(submodular.CONCAVE),
    )
    algorithm: str = setting(
        "stochastic",
        "stochastic greedy; lazy: exact greedy, slow; streaming: token by token; "
        "fast: one problem for all heads of a layer",
        choices=("stochastic", "lazy", "streaming", "fast"),
    )
    samples: int = setting(
        8, "candidates among which stochastic greedy takes the best", least=1, most=MOST_SAMPLES
    )
    picks: int = setting(
        8,
        "samples evaluated before the best of each is added; 1: the paper's",
        least=1,
        most=MOST_SAMPLES,
    )
    pool: int = pooling_width(
        1, "width of the max pooling of the attention, in source tokens; 1: none"
    )
    recent: int = setting(32, "newest tokens that always stay")
    centered: bool = setting(False, "subtract the mean key of each head; false: the paper's")

    def select(self, step: Step, keep: int) -> Tensor:
        layers, heads, n = step.origin.shape
        weights = pool(step.state["attention"], step.origin, self.pool)
        weights = weights.mean(1) if self.algorithm == "fast" else weights.flatten(0, 1)
        recent, phi = min(self.recent, keep), submodular.CONCAVE[self.concave]
        old, count = n - recent, keep - recent
        newest = torch.arange(old, n, device=weights.device).expand(len(weights), -1)
        if not count:
            entries = newest[:, :0]
        elif self.algorithm == "streaming":
            keys = self._keys(step)[:, :old]
            entries = submodular.streaming(keys, weights[:, :old], count, self.mixture, phi)
        else:  # `Mixture` alone holds the keys, so they are freed as soon as they are normalized
            g = submodular.Mixture(self._keys(step), weights, self.mixture, phi)
            g.begin(newest)
            if self.algorithm == "lazy":
                entries = submodular.lazy_greedy(g, old, count)
            elif self.algorithm == "fast":
                entries = submodular.batched_greedy(g, old, count)
            else:
                entries = submodular.stochastic_greedy(
                    g, old, count, self.samples, self.picks, step.generator
                )
        entries = torch.cat((entries.sort(-1).values, newest), dim=-1)
        # Not `view`: without entries it could not tell how many heads decide.
        return entries.unflatten(0, (layers, -1)).expand(-1, heads, -1)

    def _keys(self, step: Step) -> Tensor:
        """Return the keys of each problem: [P, n, D]."""
        keys = step.keys()
        if self.centered:
            keys = keys - keys.mean(-2, keepdim=True, dtype=torch.float32).to(keys.dtype)
        return _join(keys) if self.algorithm == "fast" else keys.flatten(0, 1)


def _join(keys: Tensor) -> Tensor:
    """Join the keys of all heads: [G, K, n, D] -> [G, n, K * D].

    The cosine of two joined keys is the mean of their cosines in the heads.
    """
    layers, heads, n, dim = keys.shape
    out = keys.new_empty(layers, n, heads, dim)
    for head in range(heads):
        out[:, :, head] = submodular.normalized(keys[:, head])
    return out.flatten(2)
