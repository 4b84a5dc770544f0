"""Fixtures: a server on a free local port, the embedded model, and a folder of memories."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
httpx = pytest.importorskip("httpx", reason="needs the extra test")

from serving import FACT, FILLER, QUESTION, SMALL, Running  # noqa: E402

from kvstream.api.model import Model  # noqa: E402
from kvstream.api.options import request_of  # noqa: E402
from kvstream.server.routes import Service  # noqa: E402
from kvstream.server.run import Server, listen  # noqa: E402
from kvstream.server.server_settings import ServerSettings  # noqa: E402
from kvstream.session.session import Session  # noqa: E402
from kvstream.settings import ModelSettings  # noqa: E402


class Logged(logging.Handler):
    """What the server logs. The plugin of pytest would go through all loggers in every test."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.emit = self.records.append  # type: ignore[method-assign]

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    @property
    def text(self) -> str:
        return "\n".join(map(self.format, self.records))


@pytest.fixture
def logged() -> Iterator[Logged]:
    """Yield what the server logs. Afterwards its level is what it was."""
    log, handler = logging.getLogger("kvstream.server"), Logged()
    level = log.level
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)


@pytest.fixture(scope="session")
def model() -> Model:
    """The embedded model, loaded once for all tests of the server."""
    torch.set_num_threads(1)
    return Model(Session.open(ModelSettings(dtype="float32")))


@pytest.fixture(scope="session")
def memories(model, tmp_path_factory) -> Path:
    """A folder with the memories ``book`` and ``other``."""
    folder = tmp_path_factory.mktemp("memories")
    model.read(text=FACT + FILLER * 60, questions=[QUESTION], **SMALL).save(folder / "book.kvs")
    other = FACT.replace("Ada", "Grace") + FILLER * 30
    model.read(text=other, questions=[QUESTION], **SMALL).save(folder / "other.kvs")
    return folder


@contextmanager
def starter(model: Model) -> Iterator[Callable[..., Running]]:
    """Yield a function that starts a server from fields of ServerSettings. End all of them."""
    with ExitStack() as stack:

        def begin(**fields: Any) -> Running:
            reading = {**SMALL, **fields.pop("reading", {})}
            settings = ServerSettings(request=request_of((), **reading), port=0, **fields)
            server = Server(Service(model, settings), listen(settings))
            thread = threading.Thread(target=server.serve_all, daemon=True)
            thread.start()
            headers = {} if settings.key is None else {"Authorization": f"Bearer {settings.key}"}
            http = httpx.Client(base_url=server.address, headers=headers, timeout=120)
            running = Running(server, http)

            def end() -> None:
                http.close()
                server.end()
                server.service.worker.stop()
                thread.join(30)
                assert not thread.is_alive()

            stack.callback(end)
            while http.get("/health").status_code != 200:
                time.sleep(0.02)
            return running

        yield begin


@pytest.fixture(scope="module")
def start(model) -> Iterator[Callable[..., Running]]:
    with starter(model) as begin:
        yield begin


@pytest.fixture
def start_of() -> Iterator[Callable[..., Running]]:
    """A function that starts a server of any model, its first argument."""
    with ExitStack() as stack:
        yield lambda model, **fields: stack.enter_context(starter(model))(**fields)


@pytest.fixture(scope="session")
def server(model, memories) -> Iterator[Running]:
    """One server with the memories for all tests, with a user's settings."""
    with starter(model) as begin:
        yield begin(memories=memories)
