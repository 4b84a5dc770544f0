"""Choose where to write a file that a user named: via a temporary file beside it, or directly."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

SHOWN = 60
"""Maximum bytes of a file's name in its temporary file's name. A longer name could be too long."""


def replaceable(path: Path) -> Path | None:
    """Return the regular file that `path` leads to, even if it does not exist yet.

    Return None if `path` must be written directly: a pipe, a device, or a file that only /dev/fd
    can reach has no name that another file could take. Raise OSError, such as IsADirectoryError.
    """
    target = Path(os.path.realpath(path))
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return target
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(21, "Is a folder")
    if not stat.S_ISREG(found.st_mode):
        return None
    return target if target.exists() and os.path.samestat(found, target.stat()) else None


def hidden_name(target: Path) -> str:
    """Return a short name for an incomplete file. Each target name gets a different one."""
    name = os.fsencode(target.name)
    begin = name[:SHOWN].decode("utf-8", "ignore")
    return f".{begin}.{hashlib.sha256(name).hexdigest()[:12]}"


def same(first: Path, second: Path) -> bool:
    """Return whether two paths lead to the same regular file, also through links.

    Devices and pipes are never the same. If a path does not exist, compare the resolved paths.
    """
    try:
        one, two = os.stat(first), os.stat(second)
    except OSError:
        return os.path.realpath(first) == os.path.realpath(second)
    return stat.S_ISREG(one.st_mode) and os.path.samestat(one, two)
