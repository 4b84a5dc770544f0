"""A file that others write to, followed as ``tail -F`` does."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.2
LATE_SECONDS = 2.0
"""How long an old file is read on once the new one is in use: other processes may still write."""


@dataclass(frozen=True)
class Follow:
    """When to stop waiting for more."""

    stop: Callable[[], bool]
    """For good: the file then ends where it is."""
    due: Callable[[], bool] = lambda: False
    """For now: whoever reads has something else to do."""


class FollowedFile(io.RawIOBase):
    """Waits at the end of a file for more; goes on with the file that takes its name.

    When the file is replaced (a log that is rotated), the old one is read on until the new one has
    had content for LATE_SECONDS: a writer goes on with the old one until it opens the new one. So
    all lines of one writer are read, in their order; those that another writes to the old file
    later are lost. When the file is cut short, what is written then is read from the start. Raises
    OSError.
    """

    def __init__(self, path: Path, follow: Follow) -> None:
        self.path, self.follow = path, follow
        self.file = path.open("rb", buffering=0)
        self._next: io.FileIO | None = None
        self._since: float | None = None
        """When the next file was first seen in use."""
        self._last = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes | None:
        """At most ``size`` bytes; empty when it is to stop, None when something else is due."""
        while not self.follow.stop():
            data = self.file.read(size)
            if data:
                self._last = data[-1:]
                return data
            if self._another():
                if self._last not in (b"", b"\n"):  # two lines must not become one
                    self._last = b""
                    return b"\n"
                continue
            if self.follow.due():
                return None
            time.sleep(POLL_SECONDS)
        return b""

    def close(self) -> None:
        self.file.close()
        if self._next is not None:
            self._next.close()
        super().close()

    def _another(self) -> bool:
        """Whether it goes on in another file of this name now, or from the start of this one."""
        here = os.fstat(self.file.fileno())
        if here.st_size < self.file.tell():
            self.file.seek(0)
            return True
        if self._next is None:
            if not self._replaced(here):
                return False
            with suppress(OSError):  # gone again, or not readable yet
                self._next = self.path.open("rb", buffering=0)
        if self._next is None or not self._late(self._next):
            return False
        self.file.close()
        self.file, self._next, self._since = self._next, None, None
        return True

    def _late(self, file: io.FileIO) -> bool:
        """Whether the next file has been in use for LATE_SECONDS. Not when it is first seen so: the
        old one is read at least once more.
        """
        if self._since is not None:
            return time.monotonic() - self._since >= LATE_SECONDS
        status = os.fstat(file.fileno())
        if status.st_size or self._replaced(status):
            self._since = time.monotonic()
        return False

    def _replaced(self, status: os.stat_result) -> bool:
        """Whether the name is that of another file than this one."""
        with suppress(OSError):  # gone, and nothing in its place yet
            now = self.path.stat()
            return (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino)
        return False
