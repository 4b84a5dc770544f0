"""The memory file that a command asks or continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvstream.cli.options.option import option
from kvstream.cli.options.types import FileType


def memory_option(help: str, *, folder: bool = False) -> Callable[[Any], Any]:
    """Return the option --memory."""
    return option(
        "--memory", type=FileType(folder=folder), metavar="FILE", envvar=(), section="Questions",
        help=help,
        once="--memory names one memory file. Join several with kvstream merge, or put them into a "
        "folder and use kvstream ask --memory FOLDER.",
    )  # fmt: skip


memory_file = memory_option(
    "Ask this memory file (from kvstream remember). For a folder, ask the memory files most "
    "relevant to the question.",
    folder=True,
)
