"""Facts about a memory file that the server keeps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """Facts about a memory file at the time when it was read."""

    path: Path
    signature: tuple[int, int, int]
    """Inode, size and time of the last change; it differs for another content."""
    digest: str
    bytes: int
    """Bytes of the KV cache that the file needs."""
    tokens: int
    """Number of tokens that the memory has read."""
    answering: str | None = None
    """Model that the saved passages are for; None for the model that made the file."""
