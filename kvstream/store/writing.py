"""Where a file that a user named is written: beside it first, or directly."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

SHOWN = 60
"""Bytes of a file's name in that of its temporary file; all of it may be too long with more."""


def replaceable(path: Path) -> Path | None:
    """The regular file that `path` leads to, be it still to come; None: write `path` directly.

    A pipe, a device and what only /dev/fd knows have no name that another file could take.
    Raises OSError.
    """
    target = Path(os.path.realpath(path))
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return target
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(21, "Is a directory")
    if not stat.S_ISREG(found.st_mode):
        return None
    return target if target.exists() and os.path.samestat(found, target.stat()) else None


def hidden_name(target: Path) -> str:
    """A name for what is not complete yet: short, and another one for every name."""
    name = os.fsencode(target.name)
    begin = name[:SHOWN].decode("utf-8", "ignore")
    return f".{begin}.{hashlib.sha256(name).hexdigest()[:12]}"


def same(first: Path, second: Path) -> bool:
    """Whether two paths lead to the same file, through links too; never so for devices, pipes."""
    try:
        one, two = os.stat(first), os.stat(second)
    except OSError:
        return os.path.realpath(first) == os.path.realpath(second)
    return stat.S_ISREG(one.st_mode) and os.path.samestat(one, two)
