"""The command line: turns options into settings, runs, reports, and is the only place that exits.

Importing it must stay cheap: ``kvstream --help`` loads neither torch nor rich.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``kvstream`` command."""
    from kvstream.cli.app import run

    sys.exit(run(sys.argv[1:]))
