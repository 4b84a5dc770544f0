"""Methods that need no evidence: streaming, window, random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvstream.methods.base import IMDC, Method, Preset, Step, setting
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.scoring import latest, noise


@dataclass(frozen=True)
class Streaming(Method):
    """Keeps the first tokens (attention sinks) and the newest ones.

    Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (StreamingLLM),
    section 3: of n candidates stay ``n - keep .. n - 1``, the same in all heads.
    """

    name: ClassVar[str] = "streaming"
    source: ClassVar[str] = "StreamingLLM, section 3"
    paper: ClassVar[Preset | None] = IMDC

    def select(self, step: Step, keep: int) -> Tensor:
        return latest(step, keep)


@dataclass(frozen=True)
class Window(Streaming):
    """Keeps the newest tokens only (and the prompt, which always stays)."""

    name: ClassVar[str] = "window"
    source: ClassVar[str] = ""
    paper: ClassVar[Preset | None] = None

    sinks: int = setting(0, "first tokens of the source that always stay")


@dataclass(frozen=True)
class Random(ScoredMethod):
    """Keeps a random choice in each head, and the newest tokens.

    A baseline that every method should beat. The entries of an early chunk disappear over time:
    each step keeps a random part of them, so their number shrinks geometrically.
    """

    name: ClassVar[str] = "random"

    recent: int = setting(32, "newest tokens that always stay")

    def score(self, step: Step) -> Tensor:
        return noise(step.origin.shape, step.generator, step.origin.device)
