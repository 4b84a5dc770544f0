"""Settings of a server. The command line creates them; they are checked on creation."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstream.api.options import Request
from kvstream.errors import KvstreamError, UsageError


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens, what it serves, and its limits."""

    request: Request = field(default_factory=Request)
    """Options of a reading and its answers, without questions."""
    host: str = "127.0.0.1"
    port: int = 8100
    """0 for a free port."""
    key: str | None = None
    """Key that clients send as ``Authorization: Bearer KEY``; None if no key is needed."""
    allowed_hosts: tuple[str, ...] = ()
    """Names allowed in the Host header in addition to those of this machine."""
    memories: Path | None = None
    """Folder whose memory files are served as models."""
    parallel: int = 2
    """Maximum number of requests that are processed at once."""
    bound: int | None = None
    """Bytes that all memories together may hold; None for `parallel` memories of the budget."""
    cache: int = 256 * 1000**2
    """Maximum bytes of the files that conversations continue from; 0 keeps none."""
    cache_dir: Path | None = None
    """Folder of these files; None for a temporary folder that is removed with the server."""
    queue: int = 32
    """Maximum number of waiting requests."""
    max_body: int = 16 * 1000**2
    """Maximum bytes of a request."""
    timeout: float = 600.0
    """Maximum seconds of a request, from its arrival to its last token."""
    grace: float = 10.0
    """Seconds that running requests have to finish when the server ends."""

    def __post_init__(self) -> None:
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise UsageError("The key has characters that no HTTP header can hold; use ASCII.")
        if self.key is not None and (not self.key or self.key != self.key.strip()):
            raise UsageError("The key is empty, or begins or ends with a space; choose another.")
        if not self.is_local and self.key is None:
            self.address()  # a name that nobody has needs no key, but another spelling
            raise UsageError(
                f"{self.host} can be reached from other machines, so a key is needed: set "
                "KVSTREAM_KEY to a long random text, or listen on 127.0.0.1."
            )
        for name in self.allowed_hosts:
            if not re.fullmatch(r"[^\s:/@\[\]]+", name) and address_of(name) is None:
                raise UsageError(
                    f"--allow-host {name!r} is not a name; leave out http://, the port and the "
                    "path."
                )
        if self.cache_dir is not None and not self.cache:
            raise UsageError("--cache-dir has no effect with --cache 0; leave one of them out.")

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can connect."""
        return is_loopback(self.host)

    def address(self) -> tuple[socket.AddressFamily, Any]:
        """Return the address to listen on, and its family. Raise KvstreamError if there is none."""
        try:
            family, _, _, _, address = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not a host name"
            raise KvstreamError(f"Cannot listen on {self.host!r}: {why}. Check --host.") from error
        return family, address


def is_loopback(host: str) -> bool:
    """Return whether a host is ``localhost``, ``127.0.0.1``, ``::1`` or another loopback."""
    address = address_of(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a host is, or None if it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
