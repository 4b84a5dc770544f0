"""Merge LoRA adapters into the linear layers of their base, once, as a model folder in the cache.

The merged weights W + alpha / rank * B A (Hu et al. 2021, https://arxiv.org/abs/2106.09685,
section 4.1) are computed in float32 and stored in the number type of the base. The result is a
plain model: the adapter costs nothing at run time. Another number type or a quantization is applied
to the merged weights.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvstream.errors import ModelError
from kvstream.model.gguf import converted, digest_of, is_whole, new_folder, write_whole
from kvstream.model.weights import SINGLE
from kvstream.store import offered
from kvstream.store.reader import ADAPTER, CARD
from kvstream.store.stores import converted_folder

FORMAT = 1
"""Version of the merge. Increase it if adapters must be merged again."""
COPIED = ("config.json", "tokenizer.json", "tokenizer_config.json")
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
            said: dict[str, Any] = json.loads(card.read_text("utf-8"))
            base, own = said["base"], said["adapter"]
            found = cls(
                folder, str(base["name"]), str(base["sha256"]), str(own["sha256"]),
                int(own["bytes"]), int(own["rank"]), float(own["alpha"]),
            )  # fmt: skip
        except FileNotFoundError:
            raise ModelError(f"{folder} has no {CARD}, so its base is not known. {AGAIN}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"{card} is not the card of an adapter ({type(error).__name__}: {error}). {AGAIN}"
            ) from error
        found._check()
        return found

    def _check(self) -> None:
        file = self.folder / ADAPTER
        try:
            content = file.read_bytes()
        except OSError as error:
            raise ModelError(f"{file} cannot be read: {error.strerror}. {AGAIN}") from error
        if len(content) < self.bytes:
            raise ModelError(
                f"{file} is cut short: it has {len(content):,} bytes and should have "
                f"{self.bytes:,}. {AGAIN}"
            )
        digest = sha256(content).hexdigest()
        if digest != self.sha256:
            raise ModelError(
                f"{file} has the SHA-256 {digest}, and {CARD} names {self.sha256}: it is damaged, "
                f"or from another training. {AGAIN}"
            )


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter and no model."""
    return (folder / ADAPTER).is_file() and not (folder / "config.json").is_file()


def merged(folder: Path, quiet: bool = False) -> Path:
    """Return the merged model folder of an adapter. It is made if the cache does not have it.

    Adapter and base are checked by their digests, which also name the folder. Raises ModelError for
    a problem with either, or with the cache.
    """
    adapter = Adapter.of(folder)
    file = offered.fetched(adapter.base)
    if file is None:
        raise ModelError(
            f"{folder / CARD} names the base {adapter.base!r}, which kvstream does not offer. "
            f"{AGAIN}"
        )
    base, digest = converted(file, quiet), digest_of(file)
    if digest != adapter.base_sha256:
        raise ModelError(
            f"The adapter of {folder} is for the {adapter.base} with the SHA-256 "
            f"{adapter.base_sha256}, and {file} has {digest}. `kvstream models get {adapter.base}` "
            "fetches the right one; if it is that one already, the adapter is for another base."
        )
    made = converted_folder() / f"{digest[:32]}-{FORMAT}-{adapter.sha256[:16]}"
    if not is_whole(made):
        with new_folder(made) as part:
            _merge(adapter, base, part)
            for name in COPIED:
                shutil.copyfile(base / name, part / name)
            origin = {"files": [str(file)], "adapter": str(folder)}
            (part / "origin.json").write_text(json.dumps(origin), "utf-8")
    with suppress(OSError):  # a newer calibration needs no new weights
        content, there = (folder / SUPPORT).read_bytes(), made / SUPPORT
        # Written whole and only if it changed, because other processes may be reading it.
        if not there.is_file() or there.read_bytes() != content:
            write_whole(there, content)
    return made


def _merge(adapter: Adapter, base: Path, part: Path) -> None:
    """Write the merged weights. Raises ModelError if the adapter does not fit the base."""
    weights: dict[str, Tensor] = {}
    try:
        with (
            safe_open(adapter.folder / ADAPTER, "pt") as own,
            safe_open(base / SINGLE, "pt") as old,
        ):
            names = set(own.keys())
            layers = {name.removesuffix(".A") for name in names if name.endswith(".A")}
            known = set(old.keys())
            strange = sorted(x for x in layers if f"{x}.weight" not in known)
            if strange or names != {f"{x}.{side}" for x in layers for side in "AB"}:
                raise ValueError(
                    f"the base has no {strange[0]}" if strange else "a half is missing"
                )
            for name in sorted(known):
                weight = old.get_tensor(name)
                layer = name.removesuffix(".weight")
                if layer in layers:
                    down, up = own.get_tensor(f"{layer}.A"), own.get_tensor(f"{layer}.B")
                    weight = _added(layer, weight, down, up, adapter)
                weights[name] = weight
        save_file(weights, part / SINGLE, {"format": "pt"})
    except (SafetensorError, ValueError) as error:
        raise ModelError(
            f"The adapter of {adapter.folder} does not fit {adapter.base}: {error}. {AGAIN}"
        ) from error


def _added(layer: str, weight: Tensor, down: Tensor, up: Tensor, adapter: Adapter) -> Tensor:
    """Return W + alpha / rank * B A for W `weight` [out, in], A `down` [rank, in] and B `up`
    [out, rank].

    Raises ValueError if the shapes do not fit or a result is not finite.
    """
    wanted = ((adapter.rank, weight.shape[1]), (weight.shape[0], adapter.rank))
    if (tuple(down.shape), tuple(up.shape)) != wanted:
        raise ValueError(
            f"{layer} has {tuple(weight.shape)} weights, and the adapter {tuple(down.shape)} and "
            f"{tuple(up.shape)}"
        )
    change = up.float() @ down.float() * (adapter.alpha / adapter.rank)
    found = (weight.float() + change).to(weight.dtype)
    if not bool(torch.isfinite(found).all()):
        raise ValueError(f"{layer} has numbers beyond {weight.dtype} with the adapter")
    return found
