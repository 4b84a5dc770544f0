"""How a server runs; made by the command line, checked when it is made."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstream.errors import UsageError

PORT = 8100


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens, what it serves, and its limits."""

    reading: Mapping[str, Any] = field(default_factory=dict)
    """Options of a reading and its answers, by the names of `Model.read`."""
    host: str = "127.0.0.1"
    port: int = PORT
    """0: a free one."""
    key: str | None = None
    """What clients send as ``Authorization: Bearer KEY``; None: nobody needs one."""
    allowed_hosts: tuple[str, ...] = ()
    """Names in the Host header beside those of this machine."""
    memories: Path | None = None
    """The folder whose memory files are models."""
    parallel: int = 2
    """Most requests that are read or answered at once."""
    bound: int | None = None
    """Bytes that all memories may hold together; None: `parallel` memories of the budget."""
    cache: int = 256 * 1000**2
    """Bytes of the files that conversations go on from; 0: none are kept."""
    cache_dir: Path | None = None
    """Where these files are; None: in a temporary folder that goes with the server."""
    queue: int = 32
    """Most requests that wait."""
    max_body: int = 16 * 1000**2
    """Most bytes of a request."""
    timeout: float = 600.0
    """Most seconds of a request, from its arrival to its last token."""
    grace: float = 10.0
    """Seconds that running requests have to finish when the server ends."""

    def __post_init__(self) -> None:
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise UsageError("The key has characters that no HTTP header can hold; use ASCII.")
        if self.key is not None and (not self.key or self.key != self.key.strip()):
            raise UsageError("The key is empty, or begins or ends with a space; choose another.")
        if not self.is_local and self.key is None:
            raise UsageError(
                f"{self.host} can be reached from other machines, so a key is needed: set "
                "KVSTREAM_KEY to a long random text, or listen on 127.0.0.1."
            )
        if self.memories is not None and not self.memories.is_dir():
            raise UsageError(f"--memories {self.memories} is not a directory; check the path.")
        if self.cache_dir is not None and not self.cache:
            raise UsageError("--cache-dir has no effect with --cache 0; leave one of them out.")

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can connect."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """``localhost``, ``127.0.0.1``, ``::1`` and their likes."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
