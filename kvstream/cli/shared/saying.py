"""Messages of the program itself, on stderr."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from kvstream.reporters.format import in_lines


def say(text: str) -> None:
    """Write a message; on a terminal its lines break between words."""
    with suppress(OSError):  # nobody is listening; the exit code still tells
        click.echo(in_lines(text) if sys.stderr.isatty() else text, err=True)
