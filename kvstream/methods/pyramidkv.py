"""PyramidKV: SnapKV with much memory in the lower layers and little in the upper ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvstream.methods.base import Preset, setting
from kvstream.methods.snapkv import SnapKV


@dataclass(frozen=True)
class PyramidKV(SnapKV):
    """Keeps what the newest tokens attend to, with memory that shrinks from layer to layer.

    Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling",
    section 4: with a mean of ``m`` entries per layer, the top layer gets ``m / beta``, the bottom
    layer ``2 m - m / beta``, and sizes between them are linear. Within a layer SnapKV decides.

    Departure: the budget limits each head, so the bottom layer gets what the schedule allows, and
    the other layers get less. All layers together hold little more than half of what `snapkv`
    holds at the same budget. If a schedule has sizes per layer (square-sqrt, adaptive), the
    pyramid replaces them and follows the largest.
    """

    name: ClassVar[str] = "pyramidkv"
    source: ClassVar[str] = "PyramidKV, section 4"
    paper: ClassVar[Preset | None] = None

    window: int = setting(
        8, "newest tokens whose attention is observed, and which always stay", least=1
    )
    beta: float = setting(
        20.0, "steepness: the top layer holds this part of the mean; 1 is flat", least=1
    )

    def layer_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        most, last = max(sizes), max(1, len(sizes) - 1)
        top = 1 / (2 * self.beta - 1)  # as a share of the bottom layer
        # Every layer keeps the observed window. With less than twice the sinks, these could be cut.
        least = min(most, self.sinks + max(self.sinks, self.window))
        return tuple(
            max(least, int(most * (1 - (1 - top) * layer / last))) for layer in range(len(sizes))
        )
