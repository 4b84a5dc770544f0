"""One bound of bytes for all memories: those that work, and those that wait for a question."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from kvstream.errors import KvstreamError
from kvstream.server.entry import Entry
from kvstream.server.errors import ApiError

if TYPE_CHECKING:
    from kvstream.api.memory import Memory


def rounded_up(size: int) -> str:
    """Bytes as a value of ``--bound`` that is no less: ``13MB``, ``640kB``."""
    unit, name = (1000**2, "MB") if size >= 1000**2 else (1000, "kB")
    return f"{-(-size // unit)}{name}"


class Bound:
    """Counts the bytes of KV caches as they are allocated: what each may hold, not what it does.

    Memories of files that are done wait for the next question as long as nobody needs their room.
    The worker changes it, and any thread may ask what is `held`.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.working = 0
        self.peak = 0
        """The highest that `held` ever was."""
        self._waiting: OrderedDict[tuple[Entry, int], Memory] = OrderedDict()
        self._made = 0
        self._lock = threading.RLock()
        """Of `working` and `_waiting`, so that nobody sees one without the other."""

    @property
    def held(self) -> int:
        """Bytes now."""
        with self._lock:
            return self.working + sum(entry.bytes for entry, _ in self._waiting)

    def check(self, size: int) -> None:
        """Raises ApiError for a memory that can never be held."""
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
        """Whether so many bytes can be had now, memories that wait left aside."""
        return self.working + size <= self.most

    def take(self, size: int, entry: Entry | None = None) -> Memory | None:
        """Count `size` bytes as working; a memory of `entry` that waits is handed out.

        Raises KvstreamError where they do not fit: ask `fits` first.
        """
        if not self.fits(size):
            raise KvstreamError(
                f"{size:,} bytes were to be taken beside {self.working:,} at work, over the bound "
                f"of {self.most:,}."
            )
        with self._lock:
            found = next((key for key in self._waiting if key[0] == entry), None)
            memory = None if found is None else self._waiting.pop(found)
            while self.held + size > self.most:
                self._waiting.popitem(last=False)
            self.working += size
            self.peak = max(self.peak, self.held)
            return memory

    def give_back(self, size: int) -> None:
        """The work is done; the memory is gone, or is put into `keep`."""
        with self._lock:
            self.working -= size

    def keep(self, entry: Entry, memory: Memory) -> None:
        """Let a memory, whose bytes were given back, wait for the next question."""
        with self._lock:
            if self.held + entry.bytes <= self.most:
                self._made += 1
                self._waiting[entry, self._made] = memory
