"""Every error a user can meet, and the exit code it ends the program with.

KvstreamError            1  failed while running
+-- UsageError           2  the command line, the config file or a setting is wrong
+-- SourceError          3  nothing to read, or a source cannot be read
+-- ModelError           4  the model is missing, gated, too large, or will not load
|   +-- UnsupportedModelError   4  the model loads, but its KV cache cannot be bounded
+-- BudgetError          5  the budget cannot hold the prompt, the question and one chunk

A message says what was wrong, with the number, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable


class KvstreamError(Exception):
    """Base of all errors that are told to the user without a traceback."""

    exit_code = 1


class UsageError(KvstreamError):
    """The command line, the configuration file or a method's setting is wrong."""

    exit_code = 2


class SourceError(KvstreamError):
    """There is nothing to read, or what is there cannot be read as text."""

    exit_code = 3


class ModelError(KvstreamError):
    """The model cannot be found, fetched, held in memory or loaded."""

    exit_code = 4


class UnsupportedModelError(ModelError):
    """The model loads, but what it keeps of the past cannot be bounded faithfully."""


class BudgetError(KvstreamError):
    """The budget is too small for what has to be in memory at once, or too large for the model."""

    exit_code = 5


def meant(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """`` Did you mean ...?`` for a name that there is none of, or nothing where none is close."""
    from difflib import get_close_matches  # only where something is wrong

    close = get_close_matches(name, list(known), 1, likeness)
    return f" Did you mean {close[0]}?" if close else ""


_NO_MEMORY = (
    "bad_alloc",
    "can't allocate memory",
    "cannot allocate memory",
    "failed to map segment",
)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Python's own error, torch's, or what libraries make of a failed allocation.

    By name, because torch may not be loaded and must not be loaded for this.
    """
    if error is None:
        return False
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError"}:
        return True
    told = isinstance(error, (RuntimeError, OSError, ImportError))
    return told and any(words in str(error).lower() for words in _NO_MEMORY)
