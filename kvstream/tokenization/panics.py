"""Panics of the ``tokenizers`` library, which writes their backtraces to stderr by itself."""

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
    """Nothing that a library writes to stderr within is shown; exceptions pass as they are.

    Only where ``sys.stderr`` has a descriptor of its own, as in the command line: elsewhere the
    messages of other threads would be lost too.
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
    except (AttributeError, OSError, ValueError):  # no stderr, or one that is no file
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
