"""Checks of a request before the application: Host header, key, type and size.

A page of another site in a browser can send requests to this machine. It cannot read the answer
(no CORS headers), cannot send JSON without a preflight request (OPTIONS is refused), and cannot
reach the server under a name of that site (the Host header is checked).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvstream.reporters.format import shortened, visible
from kvstream.server.client_errors import ApiError, shut_down
from kvstream.server.replies import Refusal
from kvstream.server.server_settings import ServerSettings, address_of, is_loopback

log = logging.getLogger("kvstream.server")
KNOWN, QUEUED = "kvstream.known", "kvstream.queued"
"""Keys of a request's scope: whether the client is authorized, whether the worker has a job."""
LONGEST_PATH = 80
"""Characters of a path in a line of the log."""
BODY_SECONDS = 60.0
"""Maximum time for the arrival of a body; the request fails after that."""
DISCARD_SECONDS, DISCARDED = 5.0, 2**26
"""Maximum time and bytes for reading the rest of a body after its request was refused."""
SILENT_SECONDS = 1.0
"""Seconds without data after which a client is taken to have sent everything."""
BODIES = 4
"""Number of bodies of maximum size that may be in memory at once."""


class Guard:
    """Wraps the application. Passes on requests whose body has arrived and is small enough."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app, self.settings = app, settings
        self.bodies = 0
        """Bytes of the bodies of all unanswered requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, arrived, status = bytearray(), False, 0
        headers = Headers(scope=scope)

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            self._check_host(headers)
            scope[KNOWN] = self._check_key(scope["path"], headers)
            if scope["method"] == "POST":
                _check_type(headers)
                await self._read(headers, receive, body)
            arrived = True
            await self.app(scope, _again(bytes(body), receive), noted)
        except ApiError as error:
            self.bodies -= len(body)
            body.clear()  # sending the refusal may take seconds
            await _refuse(error, noted, receive, rest=not arrived)
        except asyncio.CancelledError:  # the server ends at once
            if status:
                raise
            await _refuse(shut_down(saved=False), noted, receive, rest=False)
        finally:
            self.bodies -= len(body)
            if status >= 400 and not scope.get(QUEUED):  # the worker notes the others
                _note(scope, status)

    def _check_host(self, headers: Headers) -> None:
        """Refuse names of other sites that resolve to this machine (DNS rebinding)."""
        host = headers.get("host", "")
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]/@]+)(?::\d{1,5})?", host)
        if match is None:
            raise ApiError(
                400,
                f"The Host header {host[:80]!r} is not a name or an address, with or without a "
                "port.",
                code="invalid_host",
            )
        name = match[1].strip("[]").lower().rstrip(".")
        own = {self.settings.host.lower(), *map(str.lower, self.settings.allow_host)}
        anywhere = not self.settings.is_local and address_of(name) is not None
        if name in own or is_loopback(name) or anywhere:
            return
        raise ApiError(
            403,
            f"The Host header names {name[:80]!r}, which is not a name of this server; allow it "
            "with --allow-host.",
            code="invalid_host",
        )

    def _check_key(self, path: str, headers: Headers) -> bool:
        """Return whether the client is authorized. Raises ApiError if a needed key is wrong."""
        if self.settings.key is None:
            return True
        scheme, _, token = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(token.strip().encode(), self.settings.key.encode())
        if right and scheme.lower() == "bearer":
            return True
        if path == "/health":  # without the key it only tells that the server runs
            return False
        why = "The key is missing or wrong; send it as Authorization: Bearer KEY."
        raise ApiError(401, why, code="invalid_api_key")

    async def _read(self, headers: Headers, receive: Receive, body: bytearray) -> None:
        """Read the body into `body` and count its bytes."""
        length = headers.get("content-length", "0")
        if length.isdecimal():
            self._check_size(int(length[:20]), 0)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "The client left.", code="client_left")
                    part = message.get("body", b"")
                    self._check_size(len(body) + len(part), len(body))
                    body += part
                    self.bodies += len(part)
                    if not message.get("more_body"):
                        return
        except TimeoutError:
            why = f"The body did not arrive within {BODY_SECONDS:g} s."
            raise ApiError(408, why, code="timeout") from None

    def _check_size(self, size: int, counted: int) -> None:
        """Raise ApiError if a body of `size` bytes is too large; `counted` are already counted."""
        most = self.settings.max_body
        if size > most:
            raise ApiError(
                413,
                f"The body has {size:,} bytes or more; --max-body allows {most:,}. A longer text "
                "can be read with kvstream remember, and asked as a memory.",
                code="request_too_large",
            )
        if self.bodies + size - counted > BODIES * most:
            why = "Other requests with long texts are already waiting; try again later."
            raise ApiError(429, why, code="rate_limit_exceeded", retry_after=5)


def _note(scope: Scope, status: int) -> None:
    client, path = scope.get("client"), shortened(visible(scope["path"]), LONGEST_PATH)
    log.info(
        "%s %s from %s: refused with status %d",
        scope["method"], path, client[0] if client else "an unknown client", status,
    )  # fmt: skip


def _check_type(headers: Headers) -> None:
    """Refuse other types: a form or a page of another site can send those without preflight."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        why = "The body must be JSON: send Content-Type: application/json."
        raise ApiError(415, why, code="unsupported_media_type")
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        why = f"The server does not decompress bodies (Content-Encoding: {coding[:40]}); send the"
        raise ApiError(415, f"{why} body as it is.", code="unsupported_media_type")


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a receiver that gives the body once, then the messages after it (disconnect)."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> Message:
        return waiting.pop() if waiting else await receive()

    return read


async def _discard(receive: Receive) -> None:
    """Read a body and discard it, within limits."""
    size, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while more and size < DISCARDED:
                async with asyncio.timeout(SILENT_SECONDS):
                    message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)


async def _refuse(error: ApiError, send: Send, receive: Receive, *, rest: bool) -> None:
    """Send the error, then close the connection; `rest`: part of the body may not be here yet.

    The answer goes first: a client that waits for ``100 Continue`` gets it instead and need not
    send the body. Other clients send the whole body before they read an answer, so the connection
    stays open until then. Closing it with unread bytes would reset it, and the answer would be
    lost.
    """
    reply = Refusal(error)
    headers = [*reply.raw_headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body, "more_body": rest})
    if rest:
        await _discard(receive)
        await send({"type": "http.response.body", "body": b""})
