"""What a server knows of a memory file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """A memory file as it was when it was looked at."""

    path: Path
    signature: tuple[int, int, int]
    """Inode, size and time of its last change; another file has another one."""
    digest: str
    bytes: int
    """Of the KV cache that it needs."""
    tokens: int
    """That it has read."""
    answering: str | None = None
    """The model that the passages beside it are kept for; None: that which made it."""
