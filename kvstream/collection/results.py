"""Result files: written completely or not at all, and found again by a later run."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from kvstream.errors import KvstreamError, SourceError, UsageError
from kvstream.reporters.format import escaped
from kvstream.store.writing import replace

KEY = 12
"""Number of hex digits in a result's name that identify its document and settings."""


def check_folder(folder: Path) -> None:
    """Make the folder of the results. Raises UsageError if a file is in its place, KvstreamError if
    no file can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, probe = tempfile.mkstemp(prefix=".probe.", dir=folder)
        os.close(handle)
        os.unlink(probe)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{folder} is a file, or is below one; name a folder for -o.") from None
    except OSError as error:
        raise KvstreamError(
            f"Cannot write in {folder}: {error.strerror or error}. Choose another folder, or make "
            "room there."
        ) from error


def write_records(target: Path, document: str, records: tuple[dict[str, Any], ...]) -> None:
    """Write the answers of a document. Raises KvstreamError."""
    record = {"document": document, "answers": records}
    text = escaped(json.dumps(record, ensure_ascii=False, indent=1))
    try:
        replace(target, lambda file: file.write(f"{text}\n".encode()))
    except OSError as error:
        raise KvstreamError(
            f"Cannot write {target}: {error.strerror or error}. Make room, and run the command "
            "again: it continues where it stopped."
        ) from error


def found_records(target: Path, document: str) -> tuple[dict[str, Any], ...] | None:
    """Return the answers that an earlier run wrote; None if there are none that can be used."""
    try:
        found = json.loads(target.read_text("utf-8"))
        records = found["answers"]
        if found["document"] != document or not all(isinstance(r, dict) for r in records):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return tuple(records)


def found_memory(target: Path) -> tuple[dict[str, Any], ...] | None:
    """Return the record of a memory that an earlier run wrote; None if it cannot be used."""
    if not target.exists():
        return None
    from kvstream.memory.saving import look

    try:
        file = look(target)
    except SourceError:
        return None
    record = {
        "command": "remember",
        "model": file.model["name"],
        "memory": {**file.to_json(), "bytes": target.stat().st_size},
        "tokens": {"read": file.tokens},
        "warnings": list(file.warnings),
    }
    return (record,)
