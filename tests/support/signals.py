"""Signals in the processes that tests start."""

from __future__ import annotations

import signal


def heed_hangup() -> None:
    """Restore SIGHUP in a new process; tests under nohup would let it inherit an ignored one."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
