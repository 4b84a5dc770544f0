"""Rewording of errors and warnings for clients.

The messages of kvstream address the user of a command: they suggest its options and name its
files. A client of a server cannot use either.
"""

from __future__ import annotations

import re
from pathlib import Path

REWORDED = (
    (
        r"Use --budget ([\d,]+) or more, or (a shorter question|fewer questions)",
        r"Use \2, or set the server's budget to \1 or more",
    ),
    (
        r"Read the text again with a larger --budget",
        r"{whose} budget is too small to keep all of it",
    ),
    (r", or read with a larger --budget", ""),
    (
        r"use a larger --budget, or a method that evicts",
        "the server needs a larger budget, or a method that evicts",
    ),
    (r"raise the budget", "raise the server's budget"),
    (r"; use --budget (\d+)\.", r"; the server needs a budget of \1."),
    (r"--repetition-penalty (?=[\d.]+ makes)", "repetition_penalty "),
    (r", or --reread if the source is a file", ""),
    (r"--kv-dtype (\w+) keeps it", r"a server with --kv-dtype \1 keeps it"),
    (r"use --kv-dtype", "the server needs --kv-dtype"),
)
"""Patterns of messages, with the text for a client."""


def for_clients(text: str, *folders: Path | None, of_memory: bool = False) -> str:
    """Return a message without command-line options and without paths of these folders.

    `of_memory`: the message is about a memory file, which has its own budget.
    """
    whose = "The memory's" if of_memory else "The server's"
    for said, shown in REWORDED:
        text = re.sub(said, shown.replace("{whose}", whose), text)
    return without_folders(text, *folders)


def without_folders(text: str, *folders: Path | None) -> str:
    """Replace the paths of files in these folders by their names."""
    known = {each for folder in folders if folder for each in (folder, folder.resolve())}
    for folder in sorted(map(str, filter(Path.is_absolute, known)), key=len, reverse=True):
        # Do not match in the middle of a longer path.
        text = re.sub(rf"(?<![\w/.-]){re.escape(folder)}/", "", text)
    return text
