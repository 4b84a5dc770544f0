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
    """Base of all errors that the user sees without a traceback."""

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


def closest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known name that is most like an unknown one; None if no known name is close."""
    from difflib import get_close_matches  # only where something is wrong

    return next(iter(get_close_matches(name, list(known), 1, likeness)), None)


def meant(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """`` Did you mean ...?`` for an unknown name, or nothing if no known name is close."""
    close = closest(name, known, likeness)
    return "" if close is None else f" Did you mean {close}?"


_NO_MEMORY = (
    "bad_alloc",
    "can't allocate memory",
    "cannot allocate memory",
    "failed to map segment",
)
_NEARLY_ALL = 0.8
"""A limit of address space is used up here: what was asked for last is not counted."""


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
    if told and any(words in str(error).lower() for words in _NO_MEMORY):
        return True
    # "could not create a primitive", "Invalid thread pool", "error return without exception set":
    # libraries give a failed allocation many names.
    # Not so where the operating system or the importer names a cause.
    vague = isinstance(error, (RuntimeError, SystemError, ImportError, AttributeError, OSError))
    named = isinstance(error, ModuleNotFoundError) or getattr(error, "errno", None) is not None
    return vague and not named and _address_space_is_spent()


def _address_space_is_spent() -> bool:
    """Whether the process came close to a limit of its address space (``ulimit -v``)."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return False
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmPeak"))
    except (ImportError, OSError, StopIteration):  # not every system tells
        return False
    return peak * 1024 > _NEARLY_ALL * limit
