"""Memories of conversations, as files in a folder with a bound on its bytes."""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from kvstream.api.memory import Memory
from kvstream.errors import KvstreamError
from kvstream.store.writing import remove_partials

log = logging.getLogger("kvstream.server")
SUFFIX, READING = ".kvs", ".reading"
"""Suffixes of a finished reading, and of the checkpoint of a stopped one."""
OWN = re.compile(rf"[0-9a-f]{{64}}({SUFFIX}|{READING})")
"""Names of the files of a cache. The folder may have others, which are not its own to remove."""
HIDDEN = r"\.[0-9a-f]{60}\.[0-9a-f]{12}"
"""Pattern of the hidden names of incomplete files, which begin with a part of the digest."""


class ConversationCache:
    """Finds memories by the digest of what they have read; drops the least recently used."""

    def __init__(self, folder: Path | None, most: int) -> None:
        """Open the cache; without `folder` in a private temporary one, which `close` removes."""
        self.most = most
        self.lasting = folder is not None
        if folder is None:
            self.folder = _temporary()
        else:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise KvstreamError(
                    f"Cannot make the folder {folder}: {error.strerror}. Choose another one with "
                    "--cache-dir."
                ) from error
            self.folder = folder.resolve()
            if not os.access(self.folder, os.W_OK):
                raise KvstreamError(
                    f"Cannot write in the folder {folder}. Choose another one with --cache-dir."
                )
            remove_partials(self.folder, HIDDEN)
        self.shrink()

    def find(self, key: str) -> Path | None:
        """Return the file of a memory and mark it as used now, or None if there is none."""
        if not self._there():
            return None
        path = self.folder / f"{key}{SUFFIX}"
        try:
            os.utime(path)
        except OSError:
            return None
        return path

    def save(self, key: str, memory: Memory) -> None:
        """Save a memory unless it is saved already. If that fails, the log has the reason."""
        if not self.most or not self._there():
            return
        path = self.folder / f"{key}{SUFFIX}"
        if path.exists():
            return
        # The file is little larger than the KV cache, so skip a memory that would not fit.
        if memory.budget[1] <= self.most:
            try:
                memory.save(path)
            except KvstreamError as error:
                log.warning("The memory of a conversation is not saved. %s", error)
        self.shrink()

    def drop(self, path: Path) -> None:
        with suppress(OSError):
            path.unlink()

    def checkpoint(self, key: str) -> Path | None:
        """Return the checkpoint file of the reading for `key`, or None if none can be kept."""
        lasts = self.lasting and self.most and self._there()
        return self.folder / f"{key}{READING}" if lasts else None

    @property
    def bytes(self) -> int:
        return sum(size for _, size, _ in self._files())

    @property
    def count(self) -> int:
        """Number of memories and checkpoints that a request can continue from."""
        return len(self._files())

    def close(self) -> None:
        if not self.lasting:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _there(self) -> bool:
        """Return whether files can be written, and create the folder again if somebody removed it.

        A cleanup of temporary files may have removed it, and another user may have taken its name.
        """
        try:
            if self.lasting:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif not _is_own(self.folder):
                self.folder = _temporary()
        except OSError:
            return False
        return os.access(self.folder, os.W_OK)

    def _files(self) -> list[tuple[int, int, Path]]:
        """Return time of the last use, size and path of the files that this class writes."""
        files = []
        with suppress(OSError):  # the folder was removed; see `_there`
            for path in self.folder.iterdir():
                if OWN.fullmatch(path.name):
                    with suppress(OSError):
                        about = path.stat()
                        files.append((about.st_mtime_ns, about.st_size, path))
        return sorted(files)

    def shrink(self) -> None:
        """Remove the least recently used files until the rest fits."""
        files = self._files()
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self.most:
                return
            self.drop(path)
            total -= size


def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="kvstream-serve-"))


def _is_own(folder: Path) -> bool:
    """Return whether a folder exists, is no link, and belongs to this user."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    # Windows has no user ids; its temporary folders belong to one user.
    own = sys.platform == "win32" or status.st_uid == os.geteuid()
    return own and stat.S_ISDIR(status.st_mode)
