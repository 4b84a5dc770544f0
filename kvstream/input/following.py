"""Follow a file that other processes write to, as ``tail -F`` does."""

from __future__ import annotations

import io
import math
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvstream.input.encodings import by_mark

POLL_SECONDS = 0.2
COMPARED = 1024
"""Number of bytes before the last position that are compared, to detect that a file was cut."""
LATE_SECONDS = 2.0
"""Seconds to continue reading an old file after the new one is in use, because other processes may
still write to it."""
LOST_SECONDS = 2 * POLL_SECONDS
"""Seconds after which the user is told that the name cannot be read: a rotation takes less."""
LAST = 256 * 1024
"""Maximum number of bytes that are read after the stop. More than that is a long text."""


@dataclass(frozen=True)
class Follow:
    """Conditions to stop waiting for more data."""

    stop: Callable[[], bool]
    """Stop permanently: the file ends here."""
    due: Callable[[], bool] = lambda: False
    """Stop temporarily, because the reader has something else to do."""
    tell: Callable[[str], None] = lambda _: None
    """Gets a message if the name cannot be read."""


class FollowedFile(io.RawIOBase):
    """Waits for more data at the end of a file, and continues with a new file of the same name.

    A replaced file (log rotation) is read until the new one was in use for LATE_SECONDS, because a
    writer continues with it. So all lines of one writer are in order. A file whose bytes before the
    position have changed was cut, and is read from the start. What has arrived at the stop is still
    read, if it is at most LAST bytes. Raises OSError.
    """

    def __init__(self, path: Path, follow: Follow) -> None:
        self.path, self.follow = path, follow
        self.file = path.open("rb", buffering=0)
        self._newer: list[io.FileIO] = []
        """Files that have had the name since, oldest first."""
        self._grown = 0
        """Size of the last of them when it was last seen."""
        self._since: float | None = None
        """Time at which the first of them was first seen in use."""
        self._before = b""
        """The last bytes before the position, at most COMPARED."""
        self._between = b""
        """What must stand before the next bytes."""
        self._line_end = b""
        """A line end in the encoding of the last file; empty before the first text."""
        self._rest: int | None = None
        """Bytes that had arrived at the stop and are not read; None before."""
        self._reads_on = False
        """Whether they are read after the stop."""
        self.problem = ""
        """Why no file of this name can be read at the moment."""
        self._fails_since: float | None = None
        """Time since which it cannot; infinite when that is told."""
        self.cuts = 0

    def read(self, size: int = -1) -> bytes | None:
        """Return at most ``size`` bytes; empty after `Follow.stop`, None on `Follow.due`."""
        while not self.follow.stop():
            self._notice_cut()
            # Look for the newest file each time: the log may be replaced again before the switch.
            self._look()
            if data := self._data(size):
                return data
            if self._newer and self._late():
                self._switch()
                continue
            if self.follow.due():
                return None
            time.sleep(POLL_SECONDS)
        return self._last(size)

    def _last(self, size: int) -> bytes:
        """Return what had arrived at the stop, and empty bytes after that."""
        rest = self.unread
        while self._reads_on and rest:
            before = self.file.tell()
            data = self._data(rest if size < 0 else min(size, rest))
            self._rest = rest = rest - (self.file.tell() - before)
            if data:
                return data
            if not self._newer:  # the file was cut since
                self._rest = rest = 0
            else:
                self._switch()
        return b""

    def _data(self, size: int) -> bytes:
        """Return bytes of the file, or first the line end that must stand before them."""
        if data := self._between:
            self._between = b""
            return data
        data = self.file.read(size) or b""
        begins = not self._before
        self._before = (self._before + data)[-COMPARED:]
        if data and begins:
            encoding, before = by_mark(data) or "utf-8", self._line_end
            self._line_end = "\n".encode(encoding)
            if before:  # a byte order mark would be within the text
                data = data.removeprefix("\ufeff".encode(encoding))
        return data

    @property
    def unread(self) -> int:
        """Bytes of the file and the newer files that were not read; from the stop on, those that
        had arrived by then."""
        if self._rest is None:
            if not self.follow.stop():
                return self._size()
            self._notice_cut()
            self._look()
            self._rest = self._size()
            self._reads_on = self._rest <= LAST
        return self._rest

    def _size(self) -> int:
        files = [self.file, *self._newer]
        return sum(max(0, os.fstat(file.fileno()).st_size - file.tell()) for file in files)

    def close(self) -> None:
        if not self.closed:
            self._rest = self.unread
        for file in (self.file, *self._newer):
            file.close()
        super().close()

    def _notice_cut(self) -> None:
        """Go to the start of the file if it was cut since the last read."""
        if not self._before:
            return
        self.file.seek(-len(self._before), os.SEEK_CUR)
        if self.file.read(len(self._before)) != self._before:
            self.file.seek(0)
            self._begin()
            self.cuts += 1

    def _begin(self) -> None:
        """Prepare for text from the start of a file: two lines must not become one."""
        if self._before and not self._before.endswith(self._line_end):
            self._between = self._line_end
        self._before = b""

    def _switch(self) -> None:
        self.file.close()
        self.file, self._since = self._newer.pop(0), None
        self._begin()

    def _look(self) -> None:
        """Open the file that has the name now, if it is a new one; if that fails, note why. Count
        a cut of one whose turn has not come: its lines are lost."""
        newest = os.fstat((self._newer[-1] if self._newer else self.file).fileno())
        self.cuts += bool(self._newer) and newest.st_size < self._grown
        self._grown = newest.st_size
        self.problem = ""
        try:
            now = self.path.stat()
            if (now.st_dev, now.st_ino) != (newest.st_dev, newest.st_ino):
                if stat.S_ISREG(now.st_mode):  # opening a pipe would wait
                    self._newer.append(self.path.open("rb", buffering=0))
                    self._grown = 0
                else:
                    self.problem = "it is not a plain file"
        except OSError as error:
            self.problem = error.strerror or str(error)
        if not self.problem:
            self._fails_since = None
        elif self._fails_since is None:
            self._fails_since = time.monotonic()
        elif time.monotonic() - self._fails_since >= LOST_SECONDS:
            self._fails_since = math.inf
            self.follow.tell(f"{self.path} cannot be read: {self.problem}; waiting for it.")

    def _late(self) -> bool:
        """Return whether the next file was seen in use LATE_SECONDS ago."""
        if self._since is not None:
            return time.monotonic() - self._since >= LATE_SECONDS
        if len(self._newer) > 1 or os.fstat(self._newer[0].fileno()).st_size:
            self._since = time.monotonic()
        return False
