"""Inspect memory files and checkpoints without a model."""

from __future__ import annotations

import os
from pathlib import Path

from kvstream.api.given import path_of
from kvstream.errors import SourceError
from kvstream.memory.memory_file import MemoryFile as MemoryFile


def inspect(path: str | os.PathLike[str]) -> MemoryFile:
    """Read and check a memory file or a checkpoint. Raises SourceError."""
    from kvstream.memory.saving import look

    return look(Path(path_of("path", path)))


def opened(path: str | os.PathLike[str] | MemoryFile) -> MemoryFile:
    """Return a file with its entries. Raises SourceError, also if it has changed since."""
    if not isinstance(path, MemoryFile):
        return inspect(path)
    if path.whole:
        return path
    found = inspect(path.path)
    if found.digest != path.digest:
        raise SourceError(f"{path.path} changed since it was recalled; give its path.")
    return found


def checkpoint_tokens(path: str | os.PathLike[str]) -> int | None:
    """Return how many tokens a checkpoint has read, by its header; None if there is no file yet.

    Raises UsageError for a memory, SourceError for any other file, and KvstreamError if it cannot
    be written.
    """
    from kvstream.memory.checkpoint import tokens_of

    return tokens_of(Path(path))
