"""The sources of a command: which can be read again, and opening them."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvstream.cli.options.table import Options
from kvstream.cli.shared.interrupts import InterruptibleInput
from kvstream.errors import SourceError, UsageError
from kvstream.reporters.format import counted
from kvstream.reporters.plain import Teller


def check_shards(paths: Sequence[str]) -> None:
    """Raise UsageError if the sources cannot be split into parts."""
    for path in paths:
        if (os.path.exists(path) and not can_be_read_again(path)) or path == "-":
            name = "standard input" if path == "-" else path
            raise UsageError(
                f"--shards needs a text of known length, and {name} can be read only once; write "
                "it to a file first, and name the file."
            )


def open_sources(
    paths: Sequence[str],
    options: Options,
    stop: Callable[[], bool],
    *,
    due: Callable[[], bool] | None = None,
    copies: Mapping[str, str] | None = None,
) -> Any:
    """Open the sources. Standard input is used only if it is a source and was not copied."""
    from kvstream.api.source_objects import Source, sources_for

    request = options.request
    follow = request.follow
    due = due or request.due
    if list(paths).count("-") > 1:
        raise UsageError("Standard input (-) was named twice, but it can be read only once.")

    def source(path: str) -> str | Source:
        if copies and path in copies:
            return Source(copies[path], path)
        if path == "-":
            return Source(InterruptibleInput(stop, due), path)
        if follow or not os.path.exists(path) or can_be_read_again(path):
            return path
        try:
            return Source(InterruptibleInput(stop, due, Path(path)), path)
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from error

    empty = list(paths) == ["-"] and not copies and _ended_empty()
    request = replace(request, interrupted=stop)
    opened = sources_for(request, [source(path) for path in paths], due=due)
    if empty:
        raise opened.nothing()
    return opened


def _ended_empty() -> bool:
    """Return whether standard input is known to be empty by now. Reads nothing from it."""
    _, data = InterruptibleInput.begun.get(sys.stdin, (None, b""))
    if data:
        return False
    try:
        descriptor = sys.stdin.fileno()
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            return found.st_size <= os.lseek(descriptor, 0, os.SEEK_CUR)
        if sys.platform == "win32":  # it cannot poll pipes
            return False
        if stat.S_ISCHR(found.st_mode):
            return found.st_rdev == os.stat(os.devnull).st_rdev
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        events = [event for _, event in waiting.poll(0)]
    except (AttributeError, OSError, ValueError):  # closed, or not a file
        return False
    return events == [select.POLLHUP]


def tell_pages(reporter: Teller, pages: Mapping[str, int]) -> None:
    """Report the PDFs that are converted, before the first event of a reading."""
    if not pages:
        return
    total = sum(pages.values())
    what = next(iter(pages)) if len(pages) == 1 else f"{len(pages):,} PDFs"
    reporter.wait_for(f"Reading {what} ({counted(total, 'page')}) ...")


def can_be_read_again(path: str) -> bool:
    """Return False for standard input, named pipes and process substitutions of a shell."""
    return path != "-" and (os.path.isfile(path) or os.path.isdir(path))
