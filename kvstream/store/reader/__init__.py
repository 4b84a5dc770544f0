"""Readers: fetched models with an adapter that trains them to answer briefly, or to refuse.

The folder of a reader holds ``adapter.safetensors``, ``card.json`` and ``support.json``.
`kvstream.model.adapter` adds the adapter to the weights that ``kvstream models get`` fetches.
"""

from __future__ import annotations

from pathlib import Path

NAME = "reader"
NAMES = (NAME, "reader-0.5b", "reader-1.5b")
QUERIES = {"qwen-0.5b": "queries", "qwen-1.5b": "queries-1.5b"}
"""The adapters that write queries for tables, by their models."""
ADAPTER, CARD = "adapter.safetensors", "card.json"


def path(name: str = NAME) -> Path:
    """Return the folder of a reader's adapter."""
    folder = Path(__file__).resolve().parent
    return folder if name == NAME else folder / name


def is_shipped(name: str = NAME) -> bool:
    """Return whether this copy of the program includes the adapter of a reader."""
    return (path(name) / ADAPTER).is_file() and (path(name) / CARD).is_file()


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter and no model."""
    return (folder / ADAPTER).is_file() and not (folder / "config.json").is_file()
