"""The file that a training writes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kvstream.errors import KvstreamError, UsageError


def refuse_unwritable(path: Path) -> None:
    """Check before long work that the file of --out can be written, without leaving one.

    Its folder may be missing. Raises UsageError for what is no file, or KvstreamError with the
    reason.
    """
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder; name a file in it.")
    if path.exists() and not path.is_file():
        # Written by root, the new file would take the place of /dev/null.
        raise UsageError(f"--out {path} is a device or a pipe; name a file.")
    there = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise KvstreamError(
            f"Cannot write {path}: {error.strerror or error}. Choose another file for --out."
        ) from error
