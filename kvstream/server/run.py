"""Listening, connections, serving and an orderly end of the server."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import math
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvstream.errors import KvstreamError
from kvstream.server.client_errors import ApiError
from kvstream.server.request_checks import QUEUED, SILENT_SECONDS, Guard
from kvstream.server.routes import Service, make_app
from kvstream.server.server_settings import ServerSettings

log = logging.getLogger("kvstream.server")
EXTRA_SECONDS = 60.0
"""Additional seconds after `grace` for a chunk that is being read."""
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
"""Signals that end the server; Windows has no SIGHUP."""
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


def _words(error: BaseException | None) -> str:
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
            candidates = [each for each in self.connections if isinstance(each, Connection)]
            oldest = min(candidates, key=lambda each: (each._waits, each._idle_since))
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
        }.get(status, f"The request is not valid HTTP/1.1: {_words(error)}.")
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


class Server(uvicorn.Server):
    """Ends on a signal: running requests may finish. The second signal ends it at once."""

    def __init__(self, service: Service, listener: socket.socket) -> None:
        self.service, self.socket = service, listener
        self.afterwards: signal.Handlers | None = None
        """What signals do after the end; None: what they did before."""
        settings = service.settings
        guarded = Guard(make_app(service), settings)
        super().__init__(
            uvicorn.Config(
                guarded,
                http=Connection,
                h11_max_incomplete_event_size=LONGEST_HEADERS,
                limit_concurrency=most_connections(settings.parallel + settings.queue),
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                ws="none",
                timeout_graceful_shutdown=int(settings.grace + EXTRA_SECONDS),
            )
        )

    @property
    def address(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def serve_all(self, ready: Callable[[Server], None] = lambda server: None) -> None:
        """Call `ready`, serve until a signal or `end`, then close the service."""
        with self.capture_signals():  # uvicorn's own capture follows later
            try:
                ready(self)
                self.service.worker.start()
                self.run(sockets=[self.socket])
            finally:
                self.service.close()
                self.socket.close()

    def end(self) -> None:
        """Accept no more requests, and give the running ones time to finish."""
        self.service.worker.drain()
        wait = min(self.service.settings.grace, threading.TIMEOUT_MAX)
        timer = threading.Timer(wait, self.service.worker.stop)
        timer.daemon = True
        timer.start()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End in an orderly way on the first signal, and at once on the second."""
        again, self.should_exit = self.should_exit, True
        if again:
            logging.getLogger("uvicorn.error").addFilter(_is_of_the_server)
            self.force_exit = True
        # Use another thread: the interrupted code may hold the lock of the worker, or be writing to
        # the log, which then raises an error.
        threading.Thread(target=self._signaled, args=(again,)).start()

    def _signaled(self, again: bool) -> None:
        if again:
            log.info("Ending at once.")
            return
        if not self.force_exit:  # no second signal was faster than this thread
            log.info(
                "Ending; requests in progress have %g s. A second signal ends at once.",
                self.service.settings.grace,
            )
        self.end()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals without raising them again at the end, as uvicorn's method would."""
        before = {}
        with suppress(ValueError):  # not in the main thread: the host program handles signals
            for number in SIGNALS:
                # Leave signals alone that are ignored (nohup) or handled outside Python (None).
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    before[number] = signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if self.afterwards is None else self.afterwards)


def _is_of_the_server(record: logging.LogRecord) -> bool:
    """Return whether a record is about anything but a request canceled by the immediate end."""
    ended = asyncio.CancelledError
    error = record.exc_info and record.exc_info[1]
    # uvicorn logs one of these errors as the text of its traceback.
    return not isinstance(error, ended) and ended.__name__ not in record.getMessage()


def listen(settings: ServerSettings) -> socket.socket:
    """Open a socket at the address of the settings. Raises KvstreamError if that fails."""
    family, address = settings.address()
    dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=dual)
    except OSError as error:
        remedy = "Choose another --port, or end the program that uses it."
        if error.errno == errno.EADDRNOTAVAIL:  # a port cannot help
            remedy = "This machine does not have that address: check --host."
        why = os.strerror(error.errno) if error.errno else error
        raise KvstreamError(
            f"Cannot listen on {settings.host} port {settings.port}: {why}. {remedy}"
        ) from error
