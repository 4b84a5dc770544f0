"""Keep what libraries and plugins write to descriptors 1 and 2 out of answers and errors."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from typing import TextIO

_hiding = threading.RLock()


def apart(stream: TextIO) -> TextIO:
    """Return a stream to the same place with a descriptor of its own, if the stream has one."""
    try:
        return open(os.dup(stream.fileno()), "w", 1, encoding=stream.encoding, errors=stream.errors)
    except (AttributeError, OSError, ValueError):  # closed, or no file
        return stream


@contextmanager
def diverted(descriptor: int, to: int) -> Iterator[None]:
    """Send to another descriptor what any code, also a child process, writes to one."""
    try:
        copy = os.dup(descriptor)
        os.dup2(to, descriptor)
    except OSError:  # one of them is closed
        yield
        return
    try:
        yield
    finally:
        os.dup2(copy, descriptor)
        os.close(copy)


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Send to stderr what plugins and libraries print: stdout is for answers."""
    with diverted(1, to=2), redirect_stdout(sys.stderr):
        yield


@contextmanager
def without_panics() -> Iterator[None]:
    """Hide what a library in Rust prints when it fails. Its error has the same text.

    Only if `sys.stderr` is `apart`, as in the command line: messages of others would be lost too.
    """
    if not isinstance(getattr(sys.stderr, "name", None), int):  # the number of its descriptor
        yield
        return
    with _hiding, diverted(2, _nowhere()):
        yield


@cache
def _nowhere() -> int:
    """Return a descriptor of the null device, which stays open."""
    return os.open(os.devnull, os.O_WRONLY)
