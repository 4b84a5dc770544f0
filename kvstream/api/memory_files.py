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
    """Return a file with its entries: as given, or read and checked.

    Raises SourceError, also if the file changed after `path`, a file without entries, was read.
    """
    if not isinstance(path, MemoryFile):
        return inspect(path)
    if path.whole:
        return path
    found = inspect(path.path)
    if found.digest != path.digest:
        raise SourceError(f"{path.path} changed since it was recalled; give its path.")
    return found


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise KvstreamError if a memory cannot be written to `path`."""
    from kvstream.memory.file import check_writable as check

    check(Path(path))


def checkpoint_tokens(path: str | os.PathLike[str]) -> int | None:
    """Return how many tokens a checkpoint has read; None if there is no file yet.

    Only the header is read; the reading that resumes from it checks the whole file. Raises
    UsageError if the file is a memory and no checkpoint, SourceError if it is neither, and
    KvstreamError if it cannot be written.
    """
    from kvstream.memory.checkpoint import tokens_of

    return tokens_of(Path(path))
