"""Runs under a limit on address space (``ulimit -v``), where libraries crash without an error.

C++ code and the threads of torch end the process if an allocation fails. The process itself
cannot report that, so under such a limit a second process does the work and this one waits.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS")
PARENT_DIED = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def guarded(work: Callable[[], int], crashed: Callable[[str], int]) -> int:
    """Return the exit code of ``work``, or that of ``crashed`` if a library ended its process.

    ``crashed`` gets the libraries' output to stderr, which is not shown otherwise. kvstream's own
    messages must have a separate descriptor (`stderr_apart`).
    """
    if sys.platform != "linux" or not _limited():
        return work()
    import tempfile  # imports ten modules and is rarely needed

    forwarded = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    waited = {*forwarded, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    ended, end = os.pipe()
    with tempfile.TemporaryFile() as noise:
        child = os.fork()
        if not child:
            _end_with_parent()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            with suppress(OSError):
                os.dup2(noise.fileno(), 2)
            code = _code_of(work)
            os.write(end, bytes([code]))
            return code
        os.close(end)
        while True:
            found = signal.sigwaitinfo(waited)
            if found.si_signo == signal.SIGCHLD:
                process, status = os.waitpid(child, os.WNOHANG)
                if process:
                    break
            elif found.si_pid:  # from a process; signals of the terminal reach the child anyway
                with suppress(ProcessLookupError):
                    os.kill(child, found.si_signo)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if told := os.read(ended, 1):
            return told[0]
        code = os.waitstatus_to_exitcode(status)
        if code < 0 and signal.Signals(-code).name not in CRASHES:
            return 128 - code
        if code > 128:  # ended by a signal during imports, which the child reported
            return code
        noise.seek(0)
        return crashed(noise.read().decode(errors="replace"))


def _code_of(work: Callable[[], int]) -> int:
    try:
        return work()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:
        return 130


def _limited() -> bool:
    if sys.platform == "win32":
        return False
    import resource

    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _end_with_parent() -> None:
    if sys.platform == "win32":
        return
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PARENT_DIED, signal.SIGKILL)


def stderr_apart() -> None:
    """Give ``sys.stderr`` its own descriptor, so that output of libraries can be redirected."""
    if sys.stderr is None:
        return
    with suppress(OSError, ValueError):
        encoding, errors = sys.stderr.encoding, sys.stderr.errors
        own = os.dup(sys.stderr.fileno())
        sys.stderr = open(own, "w", encoding=encoding, errors=errors, buffering=1)  # noqa: SIM115
