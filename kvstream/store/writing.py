"""Write files whole or not at all: via a temporary file beside them, or devices directly.

Also what tells two files apart: their paths, or the digest of their bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from kvstream.errors import KvstreamError

DAY = 24 * 3600.0
PARTIAL = ".partial"
"""Suffix of the name of an incomplete file."""
PREFIX = 60
"""Maximum bytes of a file's name in its temporary file's name. A longer name could be too long."""


def replaceable(path: Path) -> Path | None:
    """Return the regular file that `path` leads to, even if it does not exist yet.

    Return None if `path` must be written directly: a pipe, a device, or a file that only /dev/fd
    can reach has no name that another file could take. Raise OSError, such as IsADirectoryError.
    """
    target = Path(os.path.realpath(path))
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return target
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, "Is a folder")
    if not stat.S_ISREG(status.st_mode):
        return None
    return target if target.exists() and os.path.samestat(status, target.stat()) else None


def check_writable(path: Path) -> None:
    """Raise KvstreamError if a file cannot be written there, before the long work begins."""
    problem = None
    try:
        target = replaceable(path)
        if target is not None and not target.parent.is_dir():
            problem = f"there is no folder {target.parent}"
        elif target is not None and not os.access(target.parent, os.W_OK):
            problem = f"the folder {target.parent} is read-only"
        elif os.path.exists(path) and not os.access(path, os.W_OK):
            problem = "permission denied"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise KvstreamError(f"Cannot write {path}: {problem}. Choose another file.")


def hidden_name(target: Path) -> str:
    """Return a short name for an incomplete file. Each target name gets a different one."""
    name = os.fsencode(target.name)
    begin = name[:PREFIX].decode("utf-8", "ignore")
    return f".{begin}.{hashlib.sha256(name).hexdigest()[:12]}"


def same(first: Path, second: Path) -> bool:
    """Return whether two paths lead to the same regular file, or resolve to the same path."""
    try:
        one, two = os.stat(first), os.stat(second)
    except OSError:
        return os.path.realpath(first) == os.path.realpath(second)
    return stat.S_ISREG(one.st_mode) and os.path.samestat(one, two)


def digest_of(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _partial(target: Path) -> Path:
    """Return the path of a hidden file beside `target`. Each thread has its own, because several
    may write the same memory. Remove the files that killed processes left."""
    hidden = hidden_name(target)
    remove_partials(target.parent, re.escape(hidden))
    own = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    return target.with_name(f"{hidden}.{own}{PARTIAL}")


def remove_partials(folder: Path, hidden: str) -> None:
    """Remove incomplete files of killed processes, or a day old; `hidden`: pattern of names."""
    parts = re.compile(rf"{hidden}\.(.+)-([0-9]{{1,9}})-[0-9]+{re.escape(PARTIAL)}")
    with suppress(OSError):
        for path in folder.iterdir():
            if match := parts.fullmatch(path.name):
                machine, process = match.groups()
                changed_at = path.stat().st_mtime
                here = machine == socket.gethostname()
                if _is_gone(int(process), changed_at) if here else time.time() - changed_at > DAY:
                    path.unlink()


def _is_gone(process: int, since: float) -> bool:
    """Return whether a process ended that ran at the time `since`; a new one may have its id."""
    try:
        import psutil  # few runs need it

        return psutil.Process(process).create_time() > since
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:  # of another user
        return False


def replace(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a temporary file beside `path`, sync it, and rename it. Raise OSError on failure."""
    target = replaceable(path)
    if target is None:
        with path.open("wb") as file:
            fill(file)
        return
    partial = _partial(target)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    try:
        with open(os.open(partial, flags, 0o666), "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(partial, target.stat().st_mode & 0o777)
        os.replace(partial, target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    with suppress(OSError):  # not every file system can sync a folder
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
