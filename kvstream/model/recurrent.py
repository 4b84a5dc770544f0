"""Recurrent layers: they carry a state of fixed size from token to token.

Nothing is evicted from a state, and nothing has to be. A catalyst, question or answer must not
change it, so the states are copied before and restored afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from kvstream.errors import KvstreamError

PARTS = {"conv": "conv_states", "recurrent": "recurrent_states"}
"""The newest inputs of a short convolution, and the state of the recurrence."""
FLAGS = ("is_conv_states_initialized", "is_recurrent_states_initialized", "has_previous_state")


@dataclass(frozen=True)
class StateSpec:
    """The states of a layer, as the probe finds them."""

    index: int
    settings: Mapping[str, Any]
    """Arguments with which transformers makes the layer's cache."""
    shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    """Shape and number type of every state, under names such as ``conv.0``."""
    device: torch.device

    @property
    def bytes(self) -> int:
        return sum(torch.Size(s).numel() * dtype.itemsize for s, dtype in self.shapes.values())


class StateStore(LinearAttentionLayer):
    """The states of one layer, and a copy of them between `set_aside` and `give_back`."""

    def __init__(self, carries: StateSpec) -> None:
        super().__init__(**carries.settings)
        self.carries = carries
        self._aside: dict[str, dict[int, Any]] | None = None

    def states(self) -> dict[str, Tensor]:
        """Return the states by name, as in `StateSpec.shapes`. Empty before the first token."""
        return {f"{part}.{i}": t for part, i, t in _states(self) if self.has_previous_state[i]}

    def resume(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from what `states` returned. The layer takes over the tensors."""
        for name, tensor in tensors.items():
            part, _, i = name.partition(".")
            states: dict[str, Any] = {PARTS[part]: tensor}
            self.lazy_initialization(**states, state_idx=int(i))
            getattr(self, PARTS[part])[int(i)] = tensor
            self.has_previous_state[int(i)] = True

    def set_aside(self) -> None:
        """Copy the states for `give_back`. Raises KvstreamError if a copy exists already."""
        if self._aside is not None:
            raise KvstreamError(
                "Another answer of this memory is still being made; let it end, or close it."
            )
        self._aside = {
            name: {i: v.clone() if isinstance(v, Tensor) else v for i, v in values.items()}
            for name in (*PARTS.values(), *FLAGS)
            for values in [getattr(self, name)]
        }

    def give_back(self) -> None:
        assert self._aside is not None
        for name, values in self._aside.items():
            setattr(self, name, values)
        self._aside = None

    def release(self) -> None:
        """Free the states; they can no longer be used."""
        for name in PARTS.values():
            setattr(self, name, {})
        self._aside = None

    @property
    def state_bytes(self) -> int:
        """Bytes held now, with the copy. Raises KvstreamError if they exceed those of `carries`."""
        parts = [getattr(self, name) for name in PARTS.values()]
        most = self.carries.bytes
        if self._aside is not None:
            parts += [self._aside[name] for name in PARTS.values()]
            most *= 2
        size = sum(t.nbytes for values in parts for t in values.values() if t is not None)
        if size > most:
            raise KvstreamError(
                f"The states of layer {self.carries.index} take {size} bytes, over the {most} that "
                "they were counted with."
            )
        return size


def spec_of(index: int, settings: Mapping[str, Any], layer: LinearAttentionLayer) -> StateSpec:
    """Return the spec of the states that `layer` carries after some tokens."""
    shapes = {f"{part}.{i}": (tuple(t.shape), t.dtype) for part, i, t in _states(layer)}
    device = next((t.device for _, _, t in _states(layer)), torch.device("cpu"))
    return StateSpec(index, settings, shapes, device)


def _states(layer: LinearAttentionLayer) -> Iterator[tuple[str, int, Tensor]]:
    for part, attribute in PARTS.items():
        for i, tensor in getattr(layer, attribute).items():
            if tensor is not None:
                yield part, i, tensor
