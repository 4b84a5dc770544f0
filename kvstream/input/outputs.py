"""Recognize files that kvstream wrote, which are no sources of their folder."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

FIRST = 1024
"""Number of bytes at the beginning of a file that say whether kvstream wrote it."""
GENERATOR = '<meta name="generator" content="kvstream">'
_COMMANDS = b"ask|count|summarize|compare|remember|merge|inspect"
_RESULT = re.compile(
    rb'\{"command": "(?:%b)", "(?:model|method|memory|file|question|words|source)": ' % _COMMANDS
    + rb'|\{"kind": "log", "lines": \d+, "blank_lines": '
    + rb'|\{"event": "started", "model": "[^\n]*", "budget_tokens": '
    + rb'|\{\n "document": "[^\n]*",\n "answers": \['
)
"""The beginning of what --json, --stats and --each write."""


def kind_of(start: bytes) -> str:
    """Return what a file is that begins with these bytes if kvstream wrote it, else ``""``."""
    if start[8:].startswith(b'{"__metadata__": {"state": "'):
        return "memory file of kvstream"
    if start.startswith(b"<!doctype html>") and GENERATOR.encode() in start:
        return "report of kvstream"
    return "JSON file of kvstream" if _RESULT.match(start) is not None else ""


def is_own(path: Path) -> bool:
    """Return whether kvstream wrote the file at `path`."""
    with suppress(OSError), path.open("rb") as file:
        return bool(kind_of(file.read(FIRST)))
    return False
