"""What a reader is given of a document. It travels between processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvstream.collection.documents import Document
from kvstream.input.parts import Stretch
from kvstream.input.sources import SourceSet


@dataclass(frozen=True)
class PartTask:
    """A part of a text, which a worker of this machine reads."""

    opening: Callable[[], SourceSet]
    """Opens the whole text."""
    folder: str
    """The working directory that its paths are relative to."""
    stretch: Stretch


@dataclass(frozen=True)
class Task:
    """A document that is to be read, and where its result goes."""

    document: Document
    target: Path | None = None
    place: str = ""
    """The absolute path, for processes with another working directory."""
    sha256: str = ""
    """Of the file's bytes; empty where nobody has to know."""
    part: PartTask | None = None
    """Read this part of a text, and no document."""

    @property
    def path(self) -> str:
        """Where the document is on the machine that named it."""
        return self.place or self.document.name
