"""Files that are read as a whole: settings and other small text that a user names."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

LARGEST = 1_000_000
"""Maximum number of bytes. No such file needs more, and a mistyped name may be that of a disk."""


def small_text(path: Path) -> str:
    """Return the text of a regular file, without a byte order mark.

    The null device is an empty file. Raises OSError, also for a file that never ends or is larger
    than `LARGEST`, and UnicodeDecodeError.
    """
    if not (stat.S_ISREG(os.stat(path).st_mode) or os.path.samefile(path, os.devnull)):
        raise OSError(errno.EINVAL, "it is not a regular file")
    # Files of the kernel, such as /proc/kmsg, wait for data otherwise, and may have none for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:
        data = file.read(LARGEST + 1)
    if data is None:
        raise OSError(errno.EAGAIN, "it has no data")
    if len(data) > LARGEST:
        raise OSError(errno.EFBIG, f"it has more than {LARGEST:,} bytes")
    return data.decode("utf-8-sig")
