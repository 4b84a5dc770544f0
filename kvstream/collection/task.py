"""The task of reading one document, which is sent between processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvstream.collection.document_list import Document
from kvstream.input.parts import Stretch
from kvstream.input.sources import SourceSet


@dataclass(frozen=True)
class PartTask:
    """A part of a text that a worker of this machine reads."""

    opening: Callable[[], SourceSet]
    """Opens the whole text."""
    folder: str
    """Working directory that the paths of its sources are relative to."""
    stretch: Stretch


@dataclass(frozen=True)
class Task:
    """A document to read, and the path of its result."""

    document: Document
    target: Path | None = None
    place: str = ""
    """Absolute path of the document, for processes with another working directory."""
    sha256: str = ""
    """SHA-256 of the file's bytes; empty if it is not needed."""
    part: PartTask | None = None
    """Read this part of a text instead of the document."""

    @property
    def path(self) -> str:
        """Path of the document on the machine that made the task."""
        return self.place or self.document.name
