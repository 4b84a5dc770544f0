"""What a reader is given of a document. It travels between processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvstream.collection.documents import Document


@dataclass(frozen=True)
class Task:
    """A document that is to be read, and where its result goes."""

    document: Document
    target: Path | None = None
    place: str = ""
    """The absolute path, for processes with another working directory."""
    sha256: str = ""
    """Of the file's bytes; empty where nobody has to know."""

    @property
    def path(self) -> str:
        """Where the document is on the machine that named it."""
        return self.place or self.document.name
