"""Connections: a deadline for headers, a limit of their number, and errors in JSON."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvstream.server.client_errors import ApiError
from kvstream.server.request_checks import QUEUED, SILENT_SECONDS

log = logging.getLogger("kvstream.server")
HEADER_SECONDS = 10.0
"""Maximum time for the headers of a request, from the connection or the request before it."""
LONGEST_HEADERS = 2**14
"""Maximum bytes of the headers of a request."""
SPARE = 256
"""Connections beside those of the requests that the worker has: idle ones, and new requests."""
RARELY = 60.0
"""Minimum seconds between two lines of the log about too many connections."""
_FILES = 64
"""Files that the process needs for other things than connections."""


def most_connections(requests: int) -> int:
    """Return the limit of connections of a server whose worker has at most some `requests`."""
    most = requests + SPARE
    if sys.platform != "win32":
        import resource

        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if allowed != resource.RLIM_INFINITY:
            most = max(1, min(most, allowed - _FILES))
    return most


def _shown(error: BaseException | None) -> str:
    """Return what h11 says, without the type of the bytes that it quotes."""
    return re.sub(r"bytearray\(b(.*)\)", r"\1", str(error), flags=re.DOTALL)[:80]


class Connection(H11Protocol):
    """A connection of a client.

    If there are too many, the oldest one that does not wait for an answer is closed: clients that
    send no headers must not keep others out, as they would with uvicorn's own limit.
    """

    _next_line = -math.inf
    """Time from which the log may have a line again."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._refused = False

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, and close another one if there are too many."""
        super().connection_made(transport)
        self._idle_since = time.monotonic()
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._expire)
        if self._most is not None and len(self.connections) > self._most:
            found = [each for each in self.connections if isinstance(each, Connection)]
            oldest = min(found, key=lambda each: (each._waits, each._idle_since))
            if time.monotonic() >= Connection._next_line:
                Connection._next_line = time.monotonic() + RARELY
                log.warning(
                    "More than %d connections: those that wait longest are closed.", self._most
                )
            oldest.transport.abort()
            self.connections.discard(oldest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._deadline.cancel()

    def on_response_complete(self) -> None:
        self._idle_since = time.monotonic()
        self._deadline.cancel()
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._expire)
        super().on_response_complete()

    @property
    def _waits(self) -> bool:
        """Whether the client waits for an answer of the worker, and takes what it gets."""
        busy = self.cycle is not None and not self.cycle.response_complete
        return busy and bool(self.scope.get(QUEUED)) and not self.flow.write_paused

    def _expire(self) -> None:
        if not self.conn.trailing_data[0]:  # it has sent nothing, so it waits for no reply
            self.transport.close()
            return
        why = f"The headers did not arrive within {HEADER_SECONDS:g} s."
        self._refuse(ApiError(408, why, code="timeout"))

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP request, as all other errors are refused."""
        error = sys.exception()
        if isinstance(error, h11.RemoteProtocolError) and "Host" in str(error):
            self._refuse(ApiError(400, "The request needs one Host header.", code="invalid_host"))
            return
        status = getattr(error, "error_status_hint", 400)
        why = {
            431: f"The headers of the request have more than {LONGEST_HEADERS:,} bytes.",
            501: "The server does not know this Transfer-Encoding; send chunked, or a "
            "Content-Length.",
        }.get(status, f"The request is not valid HTTP/1.1: {_shown(error)}.")
        self._refuse(ApiError(status, why, code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error.to_json()).encode()
            headers = [("Content-Type", "application/json"), ("Connection", "close")]
            length = ("Content-Length", str(len(body)))
            response = h11.Response(status_code=error.status, headers=[*headers, length])
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            address = self.client[0] if self.client else "an unknown client"
            log.info("A request from %s: refused with status %d", address, error.status)
            # Unread bytes would reset the connection, and the answer would be lost.
            self._refused = True
            self._deadline.cancel()
            self._deadline = self.loop.call_later(SILENT_SECONDS, self.transport.close)
            self.transport.write_eof()
        else:
            self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
