"""Follow a file that other processes write to, as ``tail -F`` does."""

from __future__ import annotations

import io
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.2
COMPARED = 1024
"""Number of bytes before the last position that are compared, to detect that a file was cut."""
LATE_SECONDS = 2.0
"""Seconds to continue reading an old file after the new one is in use, because other processes may
still write to it."""


@dataclass(frozen=True)
class Follow:
    """Conditions to stop waiting for more data."""

    stop: Callable[[], bool]
    """Stop permanently: the file ends here."""
    due: Callable[[], bool] = lambda: False
    """Stop temporarily, because the reader has something else to do."""


class FollowedFile(io.RawIOBase):
    """Waits for more data at the end of a file, and continues with a new file of the same name.

    A replaced file (log rotation) is read until the new one was in use for LATE_SECONDS, because a
    writer continues with it. So all lines of one writer are in order. A file whose bytes before the
    position have changed was cut, and is read from the start. Raises OSError.
    """

    def __init__(self, path: Path, follow: Follow) -> None:
        self.path, self.follow = path, follow
        self.file = path.open("rb", buffering=0)
        self._newer: list[io.FileIO] = []
        """Files that have had the name since, oldest first."""
        self._since: float | None = None
        """Time at which the first of them was first seen in use."""
        self._before = b""
        """The last bytes before the position, at most COMPARED."""
        self._unread = 0
        self.cuts = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes | None:
        """Return at most ``size`` bytes; empty on `Follow.stop`, None on `Follow.due`."""
        while not self.follow.stop():
            cut = self._was_cut()
            if not cut and (data := self.file.read(size)):
                self._before = (self._before + data)[-COMPARED:]
                return data
            if cut or self._another():
                last, self._before = self._before[-1:], b""
                if last not in (b"", b"\n"):  # two lines must not become one
                    return b"\n"
                continue
            if self.follow.due():
                return None
            time.sleep(POLL_SECONDS)
        return b""

    @property
    def unread(self) -> int:
        """Bytes at the end of the file that were not read, and those of the newer files."""
        if not self.file.closed:
            files = [self.file, *self._newer]
            sizes = [os.fstat(file.fileno()).st_size - file.tell() for file in files]
            self._unread = sum(max(0, size) for size in sizes)
        return self._unread

    def close(self) -> None:
        self._unread = self.unread
        for file in (self.file, *self._newer):
            file.close()
        super().close()

    def _was_cut(self) -> bool:
        """Return whether the file was cut since the last read. If so, go to its start."""
        if not self._before:
            return False
        self.file.seek(-len(self._before), os.SEEK_CUR)
        if self.file.read(len(self._before)) == self._before:
            return False
        self.file.seek(0)
        self.cuts += 1
        return True

    def _another(self) -> bool:
        """Switch to a new file of this name if necessary, and return whether it switched."""
        # Look for the newest file at each call: the log may be replaced again before the switch.
        newest = self._newer[-1] if self._newer else self.file
        if self._replaced(os.fstat(newest.fileno())):
            with suppress(OSError):  # removed again, or not readable yet
                self._newer.append(self.path.open("rb", buffering=0))
        if not self._newer or not self._late():
            return False
        self.file.close()
        self.file, self._since = self._newer.pop(0), None
        return True

    def _late(self) -> bool:
        """Return whether the next file was seen in use LATE_SECONDS ago."""
        if self._since is not None:
            return time.monotonic() - self._since >= LATE_SECONDS
        if len(self._newer) > 1 or os.fstat(self._newer[0].fileno()).st_size:
            self._since = time.monotonic()
        return False

    def _replaced(self, status: os.stat_result) -> bool:
        """Return whether the name now belongs to another file, and not to a pipe or a folder."""
        with suppress(OSError):  # removed, and not replaced yet
            now = self.path.stat()
            another = (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino)
            return another and stat.S_ISREG(now.st_mode)
        return False
