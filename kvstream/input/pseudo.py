"""Pseudo files: the kernel or a device generates their content while it is read."""

from __future__ import annotations

import io
import os
import queue
import stat
import sys
import threading
from functools import cache
from pathlib import Path

PATIENCE = 5.0
"""Seconds without data after which such a file counts as ended."""
PSEUDO = frozenset([
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
    "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore",
    "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
])  # fmt: skip
"""Pseudo file systems of Linux, which are not on a disk."""


def kind(status: os.stat_result) -> str | None:
    """Return the kind of a pseudo file or folder; None for others, pipes and terminals."""
    if sys.platform == "win32":
        return None
    if stat.S_ISCHR(status.st_mode):
        # /dev/tty, consoles, serial lines, pseudo terminals
        terminal = os.major(status.st_rdev) in (4, 5, *range(136, 144), 204)
        return None if terminal else "device"
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return None
    return _mounted().get(status.st_dev)


@cache
def _mounted() -> dict[int, str]:
    """Return the mounted pseudo file systems by device."""
    if sys.platform != "linux":
        return {}
    found = {}
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:  # /proc is not mounted
        return {}
    for line in lines:
        before, _, after = line.partition(" - ")
        kind = after.split(" ", 1)[0]
        if kind in PSEUDO:
            major, _, minor = before.split()[2].partition(":")
            found[os.makedev(int(major), int(minor))] = kind
    return found


class PseudoFile(io.RawIOBase):
    """A pseudo file that is read in a thread, so that reading can stop if it waits forever."""

    def __init__(self, path: Path) -> None:
        self.gave_up = False
        """Whether reading ended because the file gave no data for PATIENCE seconds."""
        self.given = 0
        """Number of bytes so far."""
        self._wanted: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._data: queue.SimpleQueue[bytes | OSError] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(path,), daemon=True).start()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; empty at the end and after PATIENCE seconds. Raises OSError."""
        if self.gave_up:
            return b""
        self._wanted.put(size)
        try:
            data = self._data.get(timeout=PATIENCE)
        except queue.Empty:
            self.gave_up = True
            return b""
        if isinstance(data, OSError):
            raise data
        self.given += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._wanted.put(0)
        super().close()

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb", buffering=0) as file:
                while size := self._wanted.get():
                    self._data.put(file.read(size) or b"")
        except OSError as error:
            self._data.put(error)
