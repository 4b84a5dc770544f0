"""A tiny offered base with an adapter, like the one that the package ships for ``reader``."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import gguf_files
import pytest
import torch
from safetensors.torch import load_file, save_file

from kvstream.model.folders import converted
from kvstream.store import offered, reader

RANK, ALPHA = 3, 6


@dataclass
class Tiny:
    """Paths of the files."""

    base: Path
    """The GGUF file, in place of a fetched one."""
    adapter: Path
    """The folder of the adapter."""

    @property
    def card(self) -> Path:
        return self.adapter / reader.CARD


def tiny_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, here: bool = True) -> Tiny:
    """Set up ``reader`` with a tiny Llama in place of smollm2 and a random adapter of its layers.

    here: whether the base is already fetched.
    """
    monkeypatch.setenv("KVSTREAM_CACHE", str(tmp_path / "cache"))
    file = gguf_files.write(tmp_path / "base.gguf")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    for name in ("smollm2", "reader"):
        offer = replace(offered.OFFERS[name], sha256=digest)
        monkeypatch.setitem(offered.OFFERS, name, offer)
    place = offered.OFFERS["smollm2"].path
    place.parent.mkdir(parents=True)
    weights = load_file(converted(file, quiet=True) / "model.safetensors")
    file.rename(place)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    write_adapter(adapter, weights, digest)
    monkeypatch.setattr(reader, "path", lambda name="reader": adapter)
    if not here:
        place.rename(tmp_path / "base.gguf")
    return Tiny(place, adapter)


def write_adapter(folder: Path, weights: dict[str, torch.Tensor], base: str) -> None:
    """Write a random adapter of all linear layers of `weights`, with its card."""
    draw = torch.Generator().manual_seed(1)
    made = {}
    for name, weight in weights.items():
        if name.endswith("_proj.weight"):
            layer, (rows, columns) = name.removesuffix(".weight"), weight.shape
            made[f"{layer}.A"] = torch.randn(RANK, columns, generator=draw).half() * 0.1
            made[f"{layer}.B"] = torch.randn(rows, RANK, generator=draw).half() * 0.1
    save_file(made, folder / reader.ADAPTER)
    content = (folder / reader.ADAPTER).read_bytes()
    card = {
        "base": {"name": "smollm2", "sha256": base},
        "adapter": {
            "sha256": hashlib.sha256(content).hexdigest(),
            "bytes": len(content),
            "rank": RANK,
            "alpha": ALPHA,
        },
    }
    (folder / reader.CARD).write_text(json.dumps(card))
