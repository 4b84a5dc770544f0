"""reader: smollm2 with an adapter that teaches it to answer from a memory, briefly, or to refuse.

The folder holds ``adapter.safetensors`` and ``card.json``; `kvstream.model.adapter` merges them
into the weights that ``kvstream models get reader`` fetches. ``kvstream.training.reader`` trains
the adapter.
"""

from __future__ import annotations

from pathlib import Path

NAME = "reader"
ADAPTER, CARD = "adapter.safetensors", "card.json"


def path() -> Path:
    """The folder of the adapter."""
    return Path(__file__).resolve().parent


def is_shipped() -> bool:
    """Whether this copy of the program has the adapter."""
    return (path() / ADAPTER).is_file() and (path() / CARD).is_file()
