"""All errors that a user can see, with the exit code of each.

KvstreamError            1  failed while running
+-- UsageError           2  the command line, the config file or a setting is wrong
+-- SourceError          3  nothing to read, or a source cannot be read
+-- ModelError           4  the model is missing, gated, too large, or will not load
|   +-- UnsupportedModelError   4  the model loads, but its KV cache cannot be bounded
+-- BudgetError          5  the budget cannot hold the prompt, the question and one chunk

Each message says what is wrong, with the number, and what to do about it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""Errors of a disk, or of a limit on files or on the user's share of a disk."""


class KvstreamError(Exception):
    """Base of all errors that the user sees without a traceback."""

    exit_code = 1


class UsageError(KvstreamError):
    """The command line, the configuration file or a method's setting is wrong."""

    exit_code = 2


class SourceError(KvstreamError):
    """There is nothing to read, or a source cannot be read as text."""

    exit_code = 3


class ModelError(KvstreamError):
    """The model cannot be found, fetched or loaded, or does not fit in RAM or GPU memory."""

    exit_code = 4


class UnsupportedModelError(ModelError):
    """The model loads, but its KV cache cannot be bounded correctly."""


class BudgetError(KvstreamError):
    """The budget is too small for the entries needed at once, or too large for the model."""

    exit_code = 5


def closest(name: str, names: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known name closest to an unknown one, or None if no known name is close."""
    from difflib import get_close_matches  # imported only after an error

    return next(iter(get_close_matches(name, list(names), 1, likeness)), None)


def hint(name: str, names: Iterable[str], likeness: float = 0.6) -> str:
    """Return `` Did you mean ...?`` for an unknown name, or "" if no known name is close."""
    close = closest(name, names, likeness)
    return "" if close is None else f" Did you mean {close}?"


_NO_MEMORY = (
    "bad_alloc", "can't allocate memory", "cannot allocate memory", "failed to map segment"
)  # fmt: skip


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is out of memory: of Python, of torch, or of another library.

    Compare classes by name: torch may not be loaded, and this function must not load it.
    """
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError"}:
        return True
    candidate = isinstance(error, (RuntimeError, OSError, ImportError))
    return candidate and any(words in str(error).lower() for words in _NO_MEMORY)
