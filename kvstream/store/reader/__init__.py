"""reader: smollm2 with an adapter that trains it to answer briefly from memory, or to refuse.

The folder holds ``adapter.safetensors`` and ``card.json``. `kvstream.model.adapter` merges the
adapter into the weights that ``kvstream models get reader`` fetches. ``reader``
trains the adapter.
"""

from __future__ import annotations

from pathlib import Path

NAME = "reader"
ADAPTER, CARD = "adapter.safetensors", "card.json"


def path() -> Path:
    """Return the folder of the adapter."""
    return Path(__file__).resolve().parent


def is_shipped() -> bool:
    """Return whether this copy of the program includes the adapter."""
    return (path() / ADAPTER).is_file() and (path() / CARD).is_file()
