"""The command line: turns options into settings, runs, reports, and is the only place that exits.

Importing it must stay cheap: ``kvstream --help`` loads neither torch nor rich.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType


def main() -> None:
    """Entry point of the ``kvstream`` command."""
    # OpenMP's threads spin while they wait for one another. Where something else wants a core, the
    # others then burn theirs until it is done: with one core taken, reading was over 10 times
    # slower. It is read when torch is loaded, so it has to be set before.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, _terminated)
    try:
        from kvstream.cli.app import crashed, run
        from kvstream.cli.guard import guarded, stderr_apart

        stderr_apart()
        arguments = sys.argv[1:]
        code = guarded(lambda: run(arguments), lambda noise: crashed(noise, arguments))
    except KeyboardInterrupt:  # so early that nobody is there to tell it
        code = 130
    sys.exit(code)


def _terminated(number: int, _: FrameType | None) -> None:
    """End at once: `Interrupts` takes over before there is anything to close.

    An exception would go through the C++ code of a library that is being imported, which aborts.
    """
    with suppress(OSError, ValueError, AttributeError):  # closed
        os.write(sys.stderr.fileno(), b"Terminated.\n")
    os._exit(128 + number)
