"""Signals in the processes that tests start."""

from __future__ import annotations

import signal


def heed_hangup() -> None:
    """Run in a new process: tests under nohup would hand on that SIGHUP is ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
