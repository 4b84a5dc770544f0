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


@dataclass(frozen=True)
class Follow:
    """When to stop waiting for more."""

    stop: Callable[[], bool]
    """For good: the file then ends where it is."""
    due: Callable[[], bool] = lambda: False
    """For now: whoever reads has something else to do."""


class FollowedFile(io.RawIOBase):
    """Waits at the end of a file for more; goes on with the file that takes its name.

    When the file is replaced (a log that is rotated) the old one is read to its end first. When it
    is cut short, what is written then is read from the start. Raises OSError.
    """

    def __init__(self, path: Path, follow: Follow) -> None:
        self.path, self.follow = path, follow
        self.file = path.open("rb", buffering=0)
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
        super().close()

    def _another(self) -> bool:
        """Whether there is another file of this name now, or this one was cut short."""
        here = os.fstat(self.file.fileno())
        with suppress(OSError):  # gone, and nothing in its place yet
            now = self.path.stat()
            if (now.st_dev, now.st_ino) != (here.st_dev, here.st_ino):
                newer = self.path.open("rb", buffering=0)
                self.file.close()
                self.file = newer
                return True
        if here.st_size < self.file.tell():
            self.file.seek(0)
            return True
        return False
