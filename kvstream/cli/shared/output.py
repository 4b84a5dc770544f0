"""Output files of the user: checked before the long work, and never left half-written."""

from __future__ import annotations

import errno
import io
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TextIO

from kvstream.api.source_objects import would_read
from kvstream.cli.config import config_path
from kvstream.cli.shared.saying import say
from kvstream.errors import FULL, KvstreamError, UsageError
from kvstream.reporters.format import visible
from kvstream.store import writing

STDIN, STDOUT = Path("/dev/stdin"), Path("/dev/stdout")
IN_PLACE = "--stats"
"""The option whose file is written during the reading, under its own name."""


class ClosedOutput(io.TextIOWrapper):
    """Stands for a closed stdout (``>&-``). Every write raises an error."""

    def __init__(self) -> None:
        super().__init__(open(os.devnull, "wb"), encoding="utf-8")  # noqa: SIM115

    def write(self, text: str) -> int:
        """Raise KvstreamError."""
        raise KvstreamError("stdout is closed, so nothing can be printed.")


def refuse_closed(output: Path | None) -> None:
    """Raise KvstreamError before the long work if stdout is needed and closed."""
    if output in (None, Path("-")) and isinstance(sys.stdout, ClosedOutput):
        raise KvstreamError("stdout is closed, so nothing can be printed; name a file with -o.")


class OutputFile:
    """A text file that gets its name only when it is complete.

    Text goes to a hidden file beside it, so an earlier file of that name (even a source) stays
    until there is an answer. Devices and pipes are written directly, and so is a file that others
    watch while it grows (``in_place``). Such a file is a by-product: if a write fails, nothing more
    is written, and `close` raises the error.
    """

    def __init__(
        self, path: Path, option: str = "--output", *, in_place: bool = False, rescued: bool = False
    ) -> None:
        self.path = path
        self.option = option
        self.in_place = in_place
        self.rescued = rescued
        """Whether all of its text goes to stdout if the file fails: it may have taken an hour. What
        follows goes there, too, and `close` raises the error."""
        self.whole = 0
        """Bytes of the hidden file after the last complete write."""
        self.target: Path | None = None
        """File to replace at the end; None if the path itself is written."""
        self.temporary: Path | None = None
        self.wrote = False
        self.error: KvstreamError | None = None
        """The error of a file that is written in place or `rescued`."""
        self.stdout = sys.stdout
        self.named = False
        """Whether the complete file has its name."""
        try:
            self.stream = self._open()
        except OSError as error:
            raise self.failure(error) from error

    def _open(self) -> TextIO:
        self.target = target = writing.replaceable(self.path)
        if self.in_place or target is None:
            how: Literal["w", "a"] = "a" if target else "w"  # a file stays until the first write
            return open(self.path, how, encoding="utf-8", errors="backslashreplace")
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(13, "Permission denied")
        prefix = f"{writing.hidden_name(target)}."
        handle, name = tempfile.mkstemp(prefix=prefix, dir=target.parent)
        self.temporary = Path(name)
        mask = os.umask(0)
        os.umask(mask)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~mask
        os.chmod(name, mode)
        return open(handle, "w", encoding="utf-8", errors="backslashreplace")

    def failure(self, error: OSError) -> KvstreamError:
        """Return the error to raise if the file could not be opened or written."""
        reason = error.strerror or str(error)
        room = ", or make room there" if error.errno in FULL else ""
        return KvstreamError(
            f"Cannot write {self.path}: {reason}. Choose another file for {self.option}{room}."
        )

    def isatty(self) -> bool:
        """Return False: a file is no terminal, and control characters are kept."""
        return False

    @property
    def encoding(self) -> str:
        """Encoding of the file: always UTF-8, whatever the terminal uses."""
        return "utf-8"

    def write(self, text: str) -> int:
        """Write and flush at once, to notice a full disk here and not at the end."""
        if self.error is not None:
            if self.rescued:
                self._rescue(None, text)
            return len(text)
        try:
            if self.in_place and self.target is not None and not self.wrote:
                self.stream.truncate(0)
            count = self.stream.write(text)
            self.stream.flush()
        except OSError as error:
            self._give_up(error, text)
            return len(text)
        self.wrote = True
        if self.temporary is not None:
            self.whole = os.fstat(self.stream.fileno()).st_size
        return count

    def _give_up(self, error: OSError, text: str = "") -> None:
        """Note that the file is incomplete and does not get `text`. Raise KvstreamError if nothing
        else takes it."""
        self.wrote = False
        self.error = self.failure(error)
        if self.rescued:
            say(str(self.error))
            self._rescue(self.temporary, text)
            self.error = KvstreamError(f"{self.path} was not written; see stdout.")
        elif not self.in_place:
            raise self.error from error

    def _rescue(self, hidden: Path | None, text: str = "") -> None:
        """Write what the hidden file has, and `text`, to stdout. A device has the earlier text."""
        with suppress(OSError, KvstreamError):
            if hidden is not None and self.stream.closed:
                text = hidden.read_bytes()[: self.whole].decode() + text
            elif hidden is not None:  # perhaps it has no name anymore
                os.lseek(self.stream.fileno(), 0, os.SEEK_SET)
                text = os.read(self.stream.fileno(), self.whole).decode() + text
            self.stdout.write(visible(text) if self.stdout.isatty() else text)
            self.stdout.flush()

    def flush(self) -> None:
        """Do nothing: every write is flushed."""

    def close(self) -> None:
        """Give the file its name if anything was written, else remove it. Raises KvstreamError."""
        if self.wrote and self.rescued and self.temporary and not self.temporary.exists():
            self._give_up(FileNotFoundError(errno.ENOENT, "Its folder or temporary file is gone"))
        with suppress(OSError):  # the buffer of a failed write fails again here
            self.stream.close()
        if self.error is not None and sys.exception() is None:
            if self.temporary is not None:
                self.temporary.unlink(missing_ok=True)
            raise self.error
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
                self._rescue(temporary)
            with suppress(OSError):
                temporary.unlink()
            raise self.failure(error) from error

    def finish(self, *, quiet: bool, ends_early: bool = False) -> None:
        """Close the file and report it. Raises KvstreamError. If an exception ends the run, write
        the text to stdout: the file would look complete. A run that `ends_early` may end any time.
        """
        if self.wrote and self.temporary is not None and not ends_early and sys.exception():
            self._rescue(self.temporary)
            self.discard()
            say(f"{self.path} was not written, because the run did not end.")
        self.close()
        if self.named and not quiet:
            say(f"Wrote {self.path}.")

    def discard(self) -> None:
        """Remove the file, even if something was written."""
        self.wrote = False
        self.close()


def refuse_clashes(
    outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None], sources: Sequence[str]
) -> None:
    """Raise UsageError if an output would destroy another one or an input, by option. Stdout always
    is an output, because a shell may append it to a source.
    """
    files = [(option, path) for option, path in outputs.items() if path and path != Path("-")]
    inputs = {**inputs, "the config file": config_path()}
    read = [(option, path) for option, path in inputs.items() if path and os.path.isfile(path)]
    texts = [("a source", Path(source if source != "-" else STDIN)) for source in sources]
    files.append(("standard output", STDOUT))
    for number, (option, path) in enumerate(files):
        for other, place in files[number + 1 :] + read + texts:
            if writing.same(path, place):
                raise UsageError(
                    f"{option} {path} and {other} {place} are the same file, and one would "
                    f"destroy the other; name another file for {option}."
                )
        if option != IN_PLACE and not os.path.isfile(path):
            continue
        how = "a file" if option == IN_PLACE else "a new file, or one"
        for folder in (place for _, place in texts if place.is_dir()):
            if path != STDOUT and would_read(folder, path, growing=option == IN_PLACE):
                raise UsageError(
                    f"{option} {path} is in the folder {folder}, and is read with it; name "
                    f"{how} elsewhere."
                )
