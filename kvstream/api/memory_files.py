"""Inspect memory files and checkpoints without a model."""

from __future__ import annotations

import os
from pathlib import Path

from kvstream.api.given import path_of
from kvstream.api.source_objects import SourceLike, open_sources
from kvstream.errors import SourceError
from kvstream.memory.memory_file import MemoryFile as MemoryFile


def ends_with(file: MemoryFile, source: SourceLike) -> bool:
    """Read `source`, and return whether the newest sources of the file have its content."""
    sources = open_sources(source)
    for _ in sources:
        pass
    read = [(record.bytes, record.sha256) for record in sources.records]
    kept = [(each["bytes"], each["sha256"]) for each in file.sources]
    return kept[-len(read) :] == read


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


def finished_reading(
    checkpoint: str | os.PathLike[str], target: str | os.PathLike[str]
) -> MemoryFile | None:
    """Return the memory of `target` if `checkpoint` has finished reading into another memory.

    Then nothing is left to read. The headers decide this; the memory of `target` is then checked
    completely. Raises SourceError.
    """
    from kvstream.memory.checkpoint import is_finished

    return inspect(target) if is_finished(Path(checkpoint), Path(target)) else None
