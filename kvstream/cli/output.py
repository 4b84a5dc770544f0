"""Files the user named for results: found unwritable before the long work, never half a file."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from kvstream.errors import KvstreamError


class OutputFile:
    """A text file that takes its name only when it is complete.

    What is written goes to a hidden file beside it, so an earlier file of that name (even one of
    the sources) stays as it was until there is an answer. Devices and pipes are written directly,
    and so is a file that others want to watch while it grows (``in_place``).
    """

    def __init__(self, path: Path, option: str = "--output", *, in_place: bool = False) -> None:
        self.path = path
        self.option = option
        self.in_place = in_place
        self.target = Path(os.path.realpath(path))
        self.temporary: Path | None = None
        self.wrote = False
        try:
            self.stream = self._open()
        except OSError as error:
            raise self.failure(error) from error

    def _open(self) -> TextIO:
        if self.target.is_dir():
            raise IsADirectoryError(21, "Is a directory")
        if self.in_place or (self.target.exists() and not self.target.is_file()):
            return open(self.target, "w", encoding="utf-8", errors="backslashreplace")
        if self.target.exists() and not os.access(self.target, os.W_OK):
            raise PermissionError(13, "Permission denied")
        handle, name = tempfile.mkstemp(prefix=f".{self.target.name[:80]}.", dir=self.target.parent)
        self.temporary = Path(name)
        mode = self.target.stat().st_mode & 0o777 if self.target.exists() else 0o666 & ~_umask()
        os.chmod(name, mode)
        return open(handle, "w", encoding="utf-8", errors="backslashreplace")

    def failure(self, error: OSError) -> KvstreamError:
        """The error to raise when the file could not be opened or written."""
        reason = error.strerror or str(error)
        return KvstreamError(
            f"Cannot write {self.path}: {reason}. Choose another file for {self.option}, "
            "or make room there."
        )

    def isatty(self) -> bool:
        """A file is no terminal; what is written is not made harmless for one."""
        return False

    @property
    def encoding(self) -> str:
        """Always UTF-8, whatever the terminal's encoding is."""
        return "utf-8"

    def write(self, text: str) -> int:
        """Write and flush at once, so that a full disk is met here and not at the very end."""
        try:
            count = self.stream.write(text)
            self.stream.flush()
        except OSError as error:
            raise self.failure(error) from error
        self.wrote = True
        return count

    def flush(self) -> None:
        """Every write is flushed already."""

    def close(self) -> None:
        """Give the file its name if anything was written, else leave no trace."""
        with suppress(OSError):  # what a failed write left in the buffer fails here once more
            self.stream.close()
        if self.temporary is None:
            return
        try:
            if self.wrote:
                os.replace(self.temporary, self.target)
            else:
                self.temporary.unlink(missing_ok=True)
        except OSError as error:
            raise self.failure(error) from error
        finally:
            self.temporary = None

    def discard(self) -> None:
        """Leave no trace, whatever was written."""
        self.wrote = False
        self.close()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
