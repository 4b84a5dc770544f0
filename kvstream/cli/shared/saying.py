"""Messages of the program itself, and the room that its tables have."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress

import click

from kvstream.reporters.format import in_lines


def say(text: str) -> None:
    """Write a message; on a terminal its lines break between words."""
    with suppress(OSError):  # nobody is listening; the exit code still tells
        click.echo(in_lines(text) if sys.stderr.isatty() else text, err=True)


def columns() -> int:
    """Of the terminal that stdout is; a pipe gets whole lines, for `grep` and the like."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
