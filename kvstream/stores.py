"""Where models lie: kvstream's own cache, and those of Ollama, LM Studio, llama.cpp and the hub."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "KVSTREAM_CACHE"


def cache_folder() -> Path:
    """kvstream's own, whether it is there or not; ``KVSTREAM_CACHE`` names another one."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("kvstream", appauthor=False)


def converted_folder() -> Path:
    """Where GGUF files lie as they were converted."""
    return cache_folder() / "converted"
