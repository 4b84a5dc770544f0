"""One bound on the bytes of all memories: working ones, and those that wait for a question."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from kvstream.api.memory import Memory
from kvstream.errors import KvstreamError
from kvstream.server.client_errors import ApiError


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


def rounded_up(size: int) -> str:
    """Format bytes as a value of ``--bound``, rounded up: ``13MB``, ``640kB``."""
    unit, name = (1000**2, "MB") if size >= 1000**2 else (1000, "kB")
    return f"{-(-size // unit)}{name}"


class Bound:
    """Counts what KV caches may hold. Only the worker changes it; any thread may read `bytes`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.working = 0
        self.peak = 0
        """Maximum of `bytes` so far, in bytes."""
        self._waiting: list[tuple[Entry, Memory]] = []
        """The memory that has waited longest is the first."""
        self._lock = threading.RLock()
        """Guards `working` and `_waiting`, so that readers see both in one state."""

    @property
    def bytes(self) -> int:
        """Bytes of all working and waiting memories."""
        with self._lock:
            return self.working + sum(entry.bytes for entry, _ in self._waiting)

    def check(self, size: int) -> None:
        """Raise ApiError if a memory of `size` bytes can never be held."""
        if size > self.most:
            raise ApiError(
                400,
                f"The memory needs {size:,} bytes of KV cache, and all memories of this server "
                f"together may hold {self.most:,}; start the server with --bound "
                f"{rounded_up(size)} or more.",
                code="context_length_exceeded",
                param="model",
            )

    def fits(self, size: int) -> bool:
        """Return whether `size` bytes fit beside the working memories; waiting ones give way."""
        return self.working + size <= self.most

    def take(self, size: int, entry: Entry | None = None) -> Memory | None:
        """Count `size` bytes; return a waiting memory. Raises KvstreamError unless it `fits`."""
        if not self.fits(size):
            raise KvstreamError(
                f"{size:,} bytes were to be taken beside {self.working:,} at work, over the bound "
                f"of {self.most:,}."
            )
        with self._lock:
            match = next((pair for pair in self._waiting if pair[0] == entry), None)
            if match is not None:
                self._waiting.remove(match)
            while self.bytes + size > self.most:
                del self._waiting[0]
            self.working += size
            self.peak = max(self.peak, self.bytes)
            return match and match[1]

    def give_back(self, size: int) -> None:
        """Stop counting `size` bytes as working. The memory is gone, or `keep` gets it."""
        with self._lock:
            self.working -= size

    def keep(self, entry: Entry, memory: Memory) -> None:
        """Let a memory wait for the next question, if it fits. Its bytes were given back before."""
        with self._lock:
            if self.bytes + entry.bytes <= self.most:
                self._waiting.append((entry, memory))
