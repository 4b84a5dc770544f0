"""Files the user named for results: found unwritable before the long work, never half a file."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import click

from kvstream.errors import KvstreamError, UsageError
from kvstream.store import writing


class ClosedOutput(io.TextIOWrapper):
    """What stands for a stdout that is closed (``>&-``): whatever is written there is an error."""

    def __init__(self) -> None:
        super().__init__(open(os.devnull, "wb"), encoding="utf-8")  # noqa: SIM115

    def write(self, text: str) -> int:
        """Raises KvstreamError."""
        raise KvstreamError("stdout is closed, so nothing can be printed; name a file with -o.")


def refuse_closed(output: Path | None) -> None:
    """Find out before the long work that stdout is closed and needed. Raises KvstreamError."""
    if output in (None, Path("-")) and isinstance(sys.stdout, ClosedOutput):
        sys.stdout.write("")


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
        self.target: Path | None = None
        """What is replaced in the end; None where the path itself is written."""
        self.temporary: Path | None = None
        self.wrote = False
        self.named = False
        """Whether the file has its name: what was written is complete."""
        try:
            self.stream = self._open()
        except OSError as error:
            raise self.failure(error) from error

    def _open(self) -> TextIO:
        self.target = target = writing.replaceable(self.path)
        if self.in_place or target is None:
            return open(self.path, "w", encoding="utf-8", errors="backslashreplace")
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(13, "Permission denied")
        prefix = f"{writing.hidden_name(target)}."
        handle, name = tempfile.mkstemp(prefix=prefix, dir=target.parent)
        self.temporary = Path(name)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
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
            self.wrote = False  # what is there is not whole
            raise self.failure(error) from error
        self.wrote = True
        return count

    def flush(self) -> None:
        """Every write is flushed already."""

    def close(self) -> None:
        """Give the file its name if anything was written, else leave no trace.

        Where it cannot get its name, what was written goes to stdout. Raises KvstreamError.
        """
        with suppress(OSError):  # what a failed write left in the buffer fails here once more
            self.stream.close()
        if self.temporary is None or self.target is None:
            return
        temporary, self.temporary = self.temporary, None
        try:
            if self.wrote:
                os.replace(temporary, self.target)
                self.named = True
            else:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            if self.wrote:
                with suppress(OSError):
                    sys.stdout.write(temporary.read_text(encoding="utf-8"))
                    sys.stdout.flush()
            with suppress(OSError):
                temporary.unlink()
            raise self.failure(error) from error

    def finish(self, *, quiet: bool) -> None:
        """Close it, and say on stderr that the file is there. Raises KvstreamError."""
        self.close()
        if self.named and not quiet:
            click.echo(f"Wrote {self.path}.", err=True)

    def discard(self) -> None:
        """Leave no trace, whatever was written."""
        self.wrote = False
        self.close()


def refuse_unwritable(path: Path, option: str) -> None:
    """Find out before long work that a file cannot be written in the end; nothing is left of it.

    Its folder may be missing. Raises UsageError, or KvstreamError with the reason.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; name a file in it.")
    there = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise KvstreamError(
            f"Cannot write {path}: {error.strerror or error}. Choose another file for {option}."
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def refuse_clashes(
    outputs: Mapping[str, Path | None],
    inputs: Mapping[str, Path | None],
    sources: Sequence[str] = (),
    replaced: Sequence[str] = (),
) -> None:
    """Find files that would destroy each other, before anything is read. Raises UsageError.

    `outputs` and `inputs` are paths by option. What is written by an option of `replaced` may be a
    source: it takes its name when all has been read.
    """
    named = [(option, path) for option, path in outputs.items() if path not in (None, Path("-"))]
    read = [(option, path) for option, path in inputs.items() if path is not None]
    texts = [("a source", Path(source)) for source in sources if source != "-"]
    for number, (option, path) in enumerate(named):
        others = named[number + 1 :] + read + ([] if option in replaced else texts)
        for other, place in others:
            assert path is not None
            assert place is not None
            if writing.same(path, place):
                raise UsageError(
                    f"{option} {path} and {other} {place} are the same file, and one would "
                    f"destroy the other; name another file for {option}."
                )
