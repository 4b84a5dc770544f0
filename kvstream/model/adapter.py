"""Merge LoRA adapters into the linear layers of their base, once, as a model folder in the cache.

The merged weights W + alpha / rank * B A (Hu et al. 2021, https://arxiv.org/abs/2106.09685,
section 4.1) are computed in float32 and stored in the number type of the base. The result is a
plain model: the adapter costs nothing at run time. Another number type or a quantization is applied
to the merged weights.
"""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from kvstream.errors import ModelError
from kvstream.store.reader import ADAPTER, CARD

SUPPORT = "support.json"
"""The calibration of the merged model, if there is one."""
AGAIN = (
    "Install kvstream again, or pack the adapter again (python docs/research/lab/reader_pack.py)."
)


@dataclass(frozen=True)
class Adapter:
    """The facts that ``card.json`` states about an adapter."""

    folder: Path
    base: str
    """The offered model that the adapter was trained on."""
    base_sha256: str
    """SHA-256 of the GGUF file of that model."""
    sha256: str
    """SHA-256 of the adapter's own file."""
    bytes: int
    rank: int
    alpha: float

    @classmethod
    def of(cls, folder: Path) -> Adapter:
        """Read the adapter of a folder and check its file. Raises ModelError."""
        card = folder / CARD
        try:
            facts: dict[str, Any] = json.loads(card.read_text("utf-8"))
            base, own = facts["base"], facts["adapter"]
            adapter = cls(
                folder, str(base["name"]), str(base["sha256"]), str(own["sha256"]),
                int(own["bytes"]), int(own["rank"]), float(own["alpha"]),
            )  # fmt: skip
        except FileNotFoundError:
            raise ModelError(f"{folder} has no {CARD}, so its base is not known. {AGAIN}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"{card} is not the card of an adapter ({type(error).__name__}: {error}). {AGAIN}"
            ) from error
        file = folder / ADAPTER
        try:
            content = file.read_bytes()
        except OSError as error:
            raise ModelError(f"{file} cannot be read: {error.strerror}. {AGAIN}") from error
        if len(content) < adapter.bytes:
            raise ModelError(
                f"{file} is cut short: it has {len(content):,} bytes and should have "
                f"{adapter.bytes:,}. {AGAIN}"
            )
        digest = sha256(content).hexdigest()
        if digest != adapter.sha256:
            raise ModelError(
                f"{file} has the SHA-256 {digest}, and {CARD} names {adapter.sha256}: it is "
                f"damaged, or from another training. {AGAIN}"
            )
        return adapter

    @cached_property
    def _halves(self) -> dict[str, Tensor]:
        try:
            return load_file(self.folder / ADAPTER)
        except (SafetensorError, ValueError) as error:
            raise self._misfit(error) from error

    def refuse_others(self, names: AbstractSet[str]) -> None:
        """Raise ModelError if the adapter is not for a model with weights of these names."""
        layers = {name.removesuffix(".A") for name in self._halves if name.endswith(".A")}
        strange = sorted(x for x in layers if f"{x}.weight" not in names)
        if strange:
            raise self._misfit(f"the base has no {strange[0]}")
        if self._halves.keys() != {f"{x}.{side}" for x in layers for side in "AB"}:
            raise self._misfit("a half is missing")

    def added(self, name: str, weight: Tensor) -> Tensor:
        """Return W + alpha / rank * B A for W `weight` [out, in], A [rank, in] and B [out, rank].

        Raises ModelError if the shapes do not fit or a result is not finite.
        """
        layer = name.removesuffix(".weight")
        if f"{layer}.A" not in self._halves:
            return weight
        down, up = self._halves[f"{layer}.A"], self._halves[f"{layer}.B"]
        if (down.shape, up.shape) != ((self.rank, weight.shape[1]), (weight.shape[0], self.rank)):
            raise self._misfit(
                f"{layer} has {tuple(weight.shape)} weights, and the adapter {tuple(down.shape)} "
                f"and {tuple(up.shape)}"
            )
        sum_ = weight.float() + up.float() @ down.float() * (self.alpha / self.rank)
        result = sum_.to(weight.dtype)
        if not bool(torch.isfinite(result).all()):
            raise self._misfit(f"{layer} has numbers beyond {weight.dtype} with the adapter")
        return result

    def _misfit(self, why: object) -> ModelError:
        return ModelError(f"The adapter of {self.folder} does not fit {self.base}: {why}. {AGAIN}")
