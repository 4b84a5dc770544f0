"""A job: the readings of every document, and the file names of the results."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kvstream.collection.document_list import KEY, Document
from kvstream.errors import UsageError
from kvstream.input.parts import Stretch
from kvstream.input.sources import SourceSet
from kvstream.run.request import Request
from kvstream.settings import ModelSettings, table
from kvstream.store.stores import find
from kvstream.version import __version__

STEM = 60
"""Maximum bytes of a document's name in the name of its result."""
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".json")


@dataclass(frozen=True)
class Job:
    """One or more readings of every document by one model. A job can be pickled."""

    model: ModelSettings
    parts: tuple[Request, ...]
    """The readings; several are compared."""
    into: Path | None = None
    memories: bool = False
    """Make memory files for any command, which then answers from them."""

    def __post_init__(self) -> None:
        if self.makes_memories and self.into is None:
            raise UsageError("Memories of many documents need a folder: name it with -o FOLDER.")

    @property
    def makes_memories(self) -> bool:
        """Whether the result of a document is a memory file instead of answers."""
        return self.memories or self.parts[0].command == "remember"

    def target(self, document: Document, sha256: str) -> Path:
        """Return the path for the result of a document with this content."""
        assert self.into is not None
        decides = f"{document.name}\n{sha256}\n{self.settings}"
        # A file name may be invalid as text.
        key = hashlib.sha256(decides.encode("utf-8", "surrogateescape")).hexdigest()
        suffix = ".kvs" if self.makes_memories else ".json"
        return self.into / f"{_stem(document.name)}-{key[:KEY]}{suffix}"

    @cached_property
    def settings(self) -> str:
        """All settings that a result depends on, as JSON: they are in the name of the result."""
        parts = [
            {
                "method": request.run.method,
                "command": request.command,
                "questions": request.questions,
                "layout": request.layout and asdict(request.layout),
                "budget": request.run.budget and asdict(request.run.budget),
                "run": _deciding(replace(request.run, budget=None)),
                **_deciding(request),
            }
            for request in self.parts
        ]
        whole = {
            "version": __version__,
            "model": _deciding(self.model),
            "weights": _weights(self.model.model),
            "parts": parts,
        }
        return json.dumps(whole, sort_keys=True)


def _deciding(settings: Any) -> dict[str, Any]:
    """Return the options among the fields of settings that a result depends on."""
    rows = table(type(settings)).values()
    return {row.name: getattr(settings, row.name) for row in rows if row.of_results}


def _stem(name: str) -> str:
    """Return the beginning of a file's name, in characters that every file system accepts."""
    stem = Path(name).name
    beginning = "".join(c if c.isalnum() or c in "._" else "-" for c in stem).strip(".")
    while len(beginning.encode()) > STEM:
        beginning = beginning[:-1]
    return beginning or "document"


def _weights(model: str) -> list[Any]:
    """Return sizes and times of the files of a local model; changed files change the result."""
    path = find(model) or Path(os.path.expanduser(model))
    files = [path] if path.is_file() else []
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _WEIGHTS)
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]


@dataclass(frozen=True)
class PartTask:
    """A part of a text that a worker of this machine reads."""

    opening: Callable[[], SourceSet]
    folder: str
    """Working directory that the paths of its sources are relative to."""
    stretch: Stretch


@dataclass(frozen=True)
class Task:
    """A document to read, and the path of its result."""

    document: Document
    target: Path | None = None
    place: str = ""
    """Absolute path of the document, for processes with another working directory; empty for a part
    of a text."""
    sha256: str = ""
    """SHA-256 of the file's bytes; empty if it is not needed."""
    part: PartTask | None = None
    """Read this part of a text instead of the document."""
