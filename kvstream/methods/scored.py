"""The base of methods that give every entry a score and keep the best."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from kvstream.errors import KvstreamError
from kvstream.methods.base import Method, Step
from kvstream.methods.tools.scoring import best


@dataclass(frozen=True)
class ScoredMethod(Method, ABC):
    """Keeps the entries with the highest scores, and the newest ones as `newest` says."""

    @abstractmethod
    def score(self, step: Step) -> Tensor:
        """Return the scores of the candidates, float32, higher is better: [G, K, n].

        [G, 1, n] if all heads of a layer keep the same entries.
        """

    def newest(self, keep: int) -> int:
        """Return how many of the `keep` entries are the newest ones, independent of their score."""
        return 0

    def select(self, step: Step, keep: int) -> Tensor:
        scores = self.score(step)
        layers, heads, n = step.origin.shape
        if tuple(scores.shape) not in ((layers, heads, n), (layers, 1, n)):
            raise KvstreamError(
                f"The method {self.name} returned scores of shape {list(scores.shape)}; expected "
                f"{[layers, heads, n]} (layers, KV heads, candidates)."
            )
        return best(scores, keep, recent=self.newest(keep)).expand(layers, heads, keep)
