"""Connections that the system cannot accept."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys

import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve")

from kvstream.server.run import Refusals


class Full(socket.socket):
    """Listens in a process that may open no more files."""

    def accept(self) -> tuple[socket.socket, object]:
        raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.skipif(sys.platform == "win32", reason="accepts in another way")
def test_connections_that_cannot_be_accepted_are_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop tries as often as the backlog allows, and then again and again."""
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0.02)

    async def refused() -> None:
        asyncio.get_running_loop().set_exception_handler(Refusals())
        with Full() as found, socket.socket() as client:
            found.bind(("127.0.0.1", 0))
            server = await asyncio.start_server(lambda *_: None, sock=found, backlog=8)
            client.connect(found.getsockname())
            await asyncio.sleep(0.05)
            server.close()
            await asyncio.sleep(0.05)

    with caplog.at_level(logging.INFO):
        asyncio.run(refused())
    (told,) = caplog.messages
    assert told.startswith("Cannot accept more connections: Too many open files. New clients wait")


def test_other_errors_of_the_event_loop_are_told_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def failed() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(Refusals())
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)

    asyncio.run(failed())
    (record,) = caplog.records
    assert isinstance(record.exc_info[1], ZeroDivisionError)
