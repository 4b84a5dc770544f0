"""Messages of the program, and the width of its tables."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from contextlib import suppress

import click

from kvstream.reporters.format import in_lines, visible


def say(text: str) -> None:
    """Write a message to stderr. On a terminal, lines break between words."""
    with suppress(OSError):  # stderr is closed; the exit code still tells
        click.echo(in_lines(text) if sys.stderr.isatty() else visible(text), err=True)


def columns() -> int:
    """Return the width of the terminal of stdout. A pipe gets whole lines, for `grep`."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def quiet(*, offline: bool, verbose: bool, bars: bool = True) -> None:
    """Silence libraries on stderr, and progress bars of the hub, before they are imported."""
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    if verbose:
        return
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not bars:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
