"""Hide panics of the ``tokenizers`` library, which writes their backtraces directly to stderr."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR = 2
_lock = threading.Lock()
_inside = 0
_kept = -1


@contextmanager
def without_panics() -> Iterator[None]:
    """Discard what libraries write to stderr inside. Exceptions are not affected.

    This only works if ``sys.stderr`` has a descriptor of its own, as in the command line. Otherwise
    the messages of other threads would be lost too.
    """
    if not _apart():
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def _apart() -> bool:
    try:
        return sys.stderr.fileno() != _STDERR
    except (AttributeError, OSError, ValueError):  # stderr is missing or not a file
        return False


def _enter() -> None:
    global _inside, _kept
    with _lock:
        if not _inside:
            _kept = os.dup(_STDERR)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, _STDERR)
            os.close(nowhere)
        _inside += 1


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        if not _inside:
            os.dup2(_kept, _STDERR)
            os.close(_kept)
