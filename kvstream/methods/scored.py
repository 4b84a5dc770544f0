"""The base of methods that give every entry a score and keep the best."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

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
        """Return how many of the `keep` entries are the newest ones, independent of their score.

        By default, that is the setting ``recent`` of the method, if it has one.
        """
        return getattr(self, "recent", 0)

    def select(self, step: Step, keep: int) -> Tensor:
        entries = best(self.score(step), keep, recent=self.newest(keep))
        return entries.expand(*step.origin.shape[:-1], keep)
