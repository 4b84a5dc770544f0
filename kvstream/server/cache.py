"""Memories of conversations, as files in a folder that never holds more than so many bytes."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvstream.errors import KvstreamError

if TYPE_CHECKING:
    from kvstream.api.memory import Memory

SUFFIX, READING = ".kvs", ".reading"
"""Of a finished reading, and of the checkpoint of one that was stopped."""


class ConversationCache:
    """Finds memories by the digest of what they have read; the least recently used leave first."""

    def __init__(self, folder: Path | None, most: int) -> None:
        """Without a `folder` the files are in a temporary one, which `close` removes; only this
        user can read it.
        """
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
        self.shrink()

    def find(self, key: str) -> Path | None:
        """The file of a memory, which counts as used now; None where there is none."""
        if not self._there():
            return None
        path = self.folder / f"{key}{SUFFIX}"
        try:
            os.utime(path)
        except OSError:
            return None
        return path

    def save(self, key: str, memory: Memory) -> None:
        """Keep a memory, if it is not kept already; one that cannot be written is not kept."""
        if not self.most or not self._there():
            return
        path = self.folder / f"{key}{SUFFIX}"
        if path.exists():
            return
        # The file holds little more than the KV cache: what would not fit is not written.
        if memory.budget[1] <= self.most:
            with suppress(KvstreamError):
                memory.save(path)
        self.shrink()

    def drop(self, path: Path) -> None:
        """Forget a file that turned out to be of no use."""
        with suppress(OSError):
            path.unlink()

    def checkpoint(self, key: str) -> Path | None:
        """Where the reading for `key` is saved when it is stopped; None where nothing lasts."""
        lasts = self.lasting and self.most and self._there()
        return self.folder / f"{key}{READING}" if lasts else None

    @property
    def bytes(self) -> int:
        """Of all files now."""
        return sum(size for _, size, _ in self._files())

    @property
    def count(self) -> int:
        """Memories that can be gone on from."""
        return len(self._files())

    def close(self) -> None:
        """Remove a temporary folder."""
        if not self.lasting:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _there(self) -> bool:
        """Whether the folder can be used; one that somebody removed is made anew.

        What cleans up temporary files may have done so, and another user may have the name since.
        """
        try:
            if self.lasting:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif not _is_own(self.folder):
                self.folder = _temporary()
        except OSError:
            return False
        return True

    def _files(self) -> list[tuple[int, int, Path]]:
        """Time of the last use, size and path; only files that this class writes."""
        found = []
        try:
            paths = list(self.folder.iterdir())
        except OSError:  # removed; see `_there`
            return []
        for path in paths:
            if path.suffix in (SUFFIX, READING) and len(path.stem) == 64:
                with suppress(OSError):
                    about = path.stat()
                    found.append((about.st_mtime_ns, about.st_size, path))
        return sorted(found)

    def shrink(self) -> None:
        """Let the least recently used files leave until the others fit."""
        files = self._files()
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self.most:
                return
            self.drop(path)
            total -= size


def _temporary() -> Path:
    """A new folder that only this user can read."""
    return Path(tempfile.mkdtemp(prefix="kvstream-serve-"))


def _is_own(folder: Path) -> bool:
    """Whether a folder is there, no link, and of this user."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
