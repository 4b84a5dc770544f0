"""A server that runs in a thread of the tests, and the requests that they send to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvstream.server.routes import Service
from kvstream.server.run import Server

SMALL = {"budget": 300, "max_tokens": 16}
FACT = "Ada hid the letter under the third stone of the garden wall. "
FILLER = "Nobody in the village saw the boats that came home that evening. "
QUESTION = "Who hid the letter?"


@dataclass
class Running:
    """A server that runs in a thread."""

    server: Server
    http: Any

    @property
    def service(self) -> Service:
        return self.server.service

    @property
    def url(self) -> str:
        return self.server.address

    @property
    def busy(self) -> bool:
        load = self.service.worker.load
        return bool(load["active"] or load["waiting"])

    def ask(self, *messages: str | dict[str, str], model: str = "pocket", **more: Any) -> Any:
        """Post messages and return the response; plain text is a message of the user."""
        body = {"model": model, "messages": [as_message(m) for m in messages], **more}
        return self.http.post("/v1/chat/completions", json=body)

    def health(self) -> dict[str, Any]:
        return self.http.get("/health").json()

    def wait(self, done: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until `done` returns True; fail after `seconds`."""
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, self.health()
            time.sleep(0.02)


def as_message(message: str | dict[str, str]) -> dict[str, str]:
    return message if isinstance(message, dict) else {"role": "user", "content": message}
