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
from kvstream.settings import row, size_of


def _cache_size(text: str) -> int | None:
    """Return a size in bytes, or 0."""
    return 0 if text.strip() == "0" else size_of(text)


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens, what it serves, and its limits: the options of ``kvstream serve``."""

    request: Request = field(default_factory=Request)
    """Options of a reading and its answers, without questions."""
    memories: Path | None = row(
        None, "Server",
        "Offer every memory file of this folder as a model: book.kvs is the model book.",
        metavar="DIR",
    )  # fmt: skip
    host: str = row(
        "127.0.0.1", "Server",
        "Address to listen on. An address that other machines can reach needs --key.",
        metavar="ADDRESS",
    )  # fmt: skip
    port: int = row(
        8100, "Server", "Port to listen on; 0 selects a free port.", least=0, most=65535,
        metavar="N",
    )  # fmt: skip
    key: str | None = row(
        None, "Server",
        "API key that clients must send. KVSTREAM_KEY is safer: other users of this machine can "
        "see command lines.",
        metavar="TEXT",
    )  # fmt: skip
    allow_host: tuple[str, ...] = row(
        (), "Server",
        "Accept requests whose Host header has this name, for example behind a proxy; repeatable.",
        metavar="NAME", advanced=True,
    )  # fmt: skip
    parallel: int = row(
        2, "Server", "Maximum requests in progress; others wait.", least=1, most=64, metavar="N"
    )
    bound: int | None = row(
        None, "Server",
        "Maximum size of all KV caches together. [default: --parallel times --budget]",
        parse=size_of, metavar="SIZE",
    )  # fmt: skip
    cache: int = row(
        256 * 1000**2, "Server",
        "Maximum disk space for the memories of conversations; 0 saves none.",
        users="256MB", parse=_cache_size, metavar="SIZE",
        variable=False,  # KVSTREAM_CACHE is the folder of models
    )  # fmt: skip
    cache_dir: Path | None = row(
        None, "Server",
        "Save the memories of conversations in this folder, and use them after a restart. "
        "[default: a temporary folder]",
        metavar="DIR",
    )  # fmt: skip
    queue: int = row(
        32, "Server", "Maximum number of waiting requests; a further one gets error 429.",
        least=0, most=10000, metavar="N", advanced=True,
    )  # fmt: skip
    max_body: int = row(
        16 * 1000**2, "Server", "Maximum size of a request; a larger one gets error 413.",
        users="16MB", parse=size_of, metavar="SIZE", advanced=True,
    )  # fmt: skip
    timeout: float = row(
        600.0, "Server",
        "Maximum time of a request, including its wait; a longer one gets error 504.",
        least=0, above=True, metavar="SECONDS", advanced=True,
    )  # fmt: skip
    grace: float = row(
        10.0, "Server", "Time that requests in progress have to finish when the server stops.",
        least=0, metavar="SECONDS", advanced=True,
    )  # fmt: skip

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
        for name in self.allow_host:
            if not re.fullmatch(r"[^\s:/@\[\]]+", name) and address_of(name) is None:
                raise UsageError(
                    f"--allow-host {name!r} is not a name; leave out http://, the port and the "
                    "path."
                )
        if self.cache_dir is not None and not self.cache:
            raise UsageError("--cache-dir has no effect with --cache 0; leave one of them out.")
        folders = {each.resolve() for each in (self.cache_dir, self.memories) if each is not None}
        if self.cache_dir is not None and self.memories is not None and len(folders) == 1:
            raise UsageError(
                "--cache-dir is the folder of --memories, which would offer all conversations to "
                "all clients as models; name another folder for --cache-dir."
            )

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
