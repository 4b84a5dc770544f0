"""Pseudo files: the kernel or a device generates their content while it is read."""

from __future__ import annotations

import os
import stat
import sys
from functools import cache
from pathlib import Path

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
    return _mounts().get(status.st_dev)


@cache
def _mounts() -> dict[int, str]:
    """Return the mounted pseudo file systems by device."""
    if sys.platform != "linux":
        return {}
    mounts = {}
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:  # /proc is not mounted
        return {}
    for line in lines:
        before, _, after = line.partition(" - ")
        kind = after.split(" ", 1)[0]
        if kind in PSEUDO:
            major, _, minor = before.split()[2].partition(":")
            mounts[os.makedev(int(major), int(minor))] = kind
    return mounts
