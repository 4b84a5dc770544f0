"""The command line: turns options into settings, runs, and reports. Only this package exits.

Importing it must stay cheap: ``kvstream --help`` loads neither torch nor rich.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from contextlib import suppress
from types import FrameType


def main() -> None:
    """Entry point of the ``kvstream`` command."""
    # The threads of OpenMP spin while they wait for one another. If another program takes a core,
    # all other threads spin until the delayed one is done: with one core taken, reading was over
    # 10 times slower. torch reads the variable when it is loaded, so set it before.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # torch and transformers make millions of objects that stay. To look for garbage among them so
    # often, and once more at the end, takes a quarter of the time of a short run.
    gc.set_threshold(10_000)
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, _terminated)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a job in the background
            signal.signal(signal.SIGINT, _interrupted)
    try:
        from kvstream.cli.app import asks_for_tracebacks, run
        from kvstream.streams import apart

        if not asks_for_tracebacks(sys.argv[1:]):
            sys.stderr = apart(sys.stderr)
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # too early for the handlers that report it
        code = 130
    except OSError as error:  # no module that reports it can be imported
        if error.errno != errno.EMFILE:
            raise
        with suppress(OSError):
            os.write(2, b"Error: Too many open files; raise their limit (ulimit -n).\n")
        code = 1
    with suppress(OSError, ValueError, AttributeError):  # closed, perhaps by a plugin
        sys.stdout.flush()
        # Everything is written: what a plugin prints from now on is no answer.
        os.dup2(2, 1)
        sys.stdout = sys.stderr
    with suppress(ValueError):
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            # An exception in the cleanup of a library would print its traceback.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()
    sys.exit(code)


def _terminated(number: int, _: FrameType | None) -> None:
    """End at once: an exception would abort the C++ code of a library that is being imported."""
    message = b"Interrupted.\n" if number == signal.SIGINT else b"Terminated.\n"
    with suppress(OSError, ValueError, AttributeError):  # closed
        os.write(sys.stderr.fileno(), message)
    os._exit(128 + number)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but end at once during an import, where Python would abort, and as
    an object is freed, where it would print and drop the exception.
    """
    while frame is not None:
        code, frame = frame.f_code, frame.f_back
        if code.co_name == "__del__" or code.co_filename.startswith("<frozen importlib"):
            _terminated(number, None)
    raise KeyboardInterrupt
