"""Listening, serving and an orderly end of the server."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn

from kvstream.errors import KvstreamError
from kvstream.server.protocol import LONGEST_HEADERS, Connection, most_connections
from kvstream.server.request_checks import Guard
from kvstream.server.routes import make_app
from kvstream.server.server_settings import ServerSettings
from kvstream.server.service import Service

log = logging.getLogger("kvstream.server")
EXTRA_SECONDS = 60.0
"""Additional seconds after `grace` for a chunk that is being read."""
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
"""Signals that end the server; Windows has no SIGHUP."""


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
